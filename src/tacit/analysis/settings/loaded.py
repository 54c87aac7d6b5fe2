"""Loads, when it is imported, what every run does: by the server of `fork_server` alone.

What is loaded on first use (compiled loops, the accountant's tables, the pages' templates) is
loaded by a run of one step on made-up records. No thread is left, which would not survive a fork.
"""

from __future__ import annotations

import gc
import logging
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path

import torch

import tacit.analysis.compare.session  # noqa: F401
from tacit.analysis.settings.processes import as_found
from tacit.training.api import train

_EXPERIMENT = {
    "task": {"model": "logistic"},
    "topology": {"graph": "exponential"},
    "algorithm": {"name": "privsgp", "learning_rate": 0.1, "clip": 1.0},
    "privacy": {"epsilon": 2.0, "delta": 1e-4, "noise_seed": 0},
    "train": {"steps": 1, "batch": 2},
}


def _load() -> None:
    records = torch.linspace(0.0, 1.0, 64).reshape(8, 8), torch.arange(8) % 2
    folder = tempfile.TemporaryDirectory()
    with folder, warnings.catch_warnings(action="ignore"), as_found():
        train(_EXPERIMENT, nodes=[records] * 2, test=records, out=Path(folder.name, "run"))


torch.set_num_threads(1)
logging.disable()
with suppress(Exception):  # then each process loads it
    _load()
logging.disable(logging.NOTSET)
gc.collect()
gc.freeze()  # so that no collection copies its pages into a fork
