"""Processes forked from one that has loaded already what runs need, and made a run of one step.

Loading torch and the rest takes seconds of a core, which so one process pays for in place of each.
It has one thread, reads no records and keeps no key: those of its run are dropped in a fork.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ROOT = str(Path(__file__).parents[3])  # where `tacit` lies, which may be nowhere on its own path


def start_server() -> None:
    """Begin to load, unless that has begun; nobody waits for it here.

    A program has one such server: one of its own is used as it is.
    """
    # What macOS multiplies matrices with does not survive a fork.
    loaded = ["tacit.analysis.settings.loaded"] if sys.platform == "linux" else []
    forkserver.set_forkserver_preload(loaded)
    path = os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH")]))
    with _inherited(OMP_NUM_THREADS="1", PYTHONPATH=path):
        forkserver.ensure_running()


@contextmanager
def _inherited(**environment: str) -> Iterator[None]:
    """What a process inherits that is started within: an environment, and no signals as yet.

    A Ctrl-C goes to every process of a terminal, but is meant for the parent, who then asks each to
    stop: until a process can ignore it, it is blocked there.
    """
    before = dict(os.environ)
    signal_mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    os.environ.update(environment)
    try:
        yield
    finally:
        for name in environment.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
        signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)
