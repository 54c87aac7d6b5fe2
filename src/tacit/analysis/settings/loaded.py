"""Loads, when it is imported, what every run does: by the server of `fork_server` alone.

What is loaded on first use (compiled loops, the accountant's tables, the pages' templates) is
loaded by a run of one step on public records. No thread is left, which would not survive a fork.
"""

from __future__ import annotations

import gc
import logging
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path

_EXPERIMENT = {
    "task": {"dataset": "digits", "model": "logistic"},
    "nodes": {"count": 8},
    "privacy": {"epsilon": 2.0, "delta": 1e-4, "noise_seed": 0},
    "train": {"steps": 1},
}


def _load() -> None:
    import torch

    import tacit.analysis.compare.session  # noqa: F401
    from tacit.analysis.settings.processes import as_found
    from tacit.training.api import train

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), as_found():
        warnings.simplefilter("ignore")
        train(_EXPERIMENT, out=Path(folder, "run"))


gc.disable()  # of a million objects none is garbage
logging.disable()
with suppress(Exception):  # then each process loads it
    _load()
logging.disable(logging.NOTSET)
gc.enable()
gc.freeze()  # so that no collection copies its pages into a fork
