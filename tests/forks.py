"""The one server from which tests of a process fork others, and what it has loaded before.

`multiprocessing` has one such server for a process, and it loads what was named last: so it is
named here alone. Loading torch and the rest takes seconds of a core, and one process in a test pays
for it instead of all of them. What is loaded on first use (compiled kernels, tables of the
accountant) is loaded by a run of one step.
"""

import importlib
import multiprocessing
import os
import tempfile
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["forks_loaded"])
_PATH = "PYTHONPATH"

_MODULES = (
    "hypothesis.strategies",
    "pytest",
    "rich.progress",
    "scipy.stats",
    "tacit.analysis.ledger_report",
    "tacit.analysis.score",
    "tacit.analysis.statement",
    "tacit.cli.main",
    "tacit.cli.options",
    "tacit.cli.tables",
    "tacit.communication.cluster.channel",
    "tacit.communication.secure.carrier",
    "tacit.communication.secure.certificates",
    "tacit.communication.secure.sites",
    "tacit.privacy.ledger.shared",
    "tacit.training.processes.agreement",
)
_EXPERIMENT = {
    "task": {"dataset": "digits", "model": "logistic"},
    "nodes": {"count": 2},
    "topology": {"graph": "exponential"},
    "algorithm": {"name": "dyn-d2p"},
    "privacy": {"noise_std": 1.0},
    "train": {"steps": 1, "batch": 16},
}


def forks():
    """The context whose processes are forked from the server, once it has loaded everything."""
    with pytest.MonkeyPatch.context() as patch:  # of a server, at its first start
        patch.setenv(_PATH, str(Path(__file__).parent), prepend=os.pathsep)
        forkserver.ensure_running()
    return _FORKS


def forked_process(target, *args, daemon=False):
    """A process that calls a function of a module, forked when it is started."""
    return forks().Process(target=target, args=args, daemon=daemon)


def load_everything():
    """Load what processes of tests need; no thread is left, which would not survive a fork."""
    os.environ["OMP_NUM_THREADS"] = "1"
    # As `tacit` sets it where it is one of many processes; torch reads it when it is loaded.
    os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"
    import torch

    torch.set_num_threads(1)
    for name in _MODULES:
        importlib.import_module(name)
    import tacit

    with tempfile.TemporaryDirectory() as folder:
        tacit.train(_EXPERIMENT, out=Path(folder, "run"))
    deadline = time.monotonic() + 10.0
    while len(os.listdir("/proc/self/task")) > 1:  # one that was joined ends a moment later
        assert time.monotonic() < deadline, "threads do not survive a fork"
        time.sleep(0.001)
