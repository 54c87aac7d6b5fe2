"""Who may draw on the ledgers of a folder: of runs whose records overlap, one at a time.

A run is admitted by looking at what all ledgers say of its records, and its own blocks are booked
later, in its own accounts alone. So from before it looks until it ends, no other run may draw on
any of the same records: each process keeps a file `in-use-*` in the folder with the digests of its
records, which counts for as long as the process lives (the operating system's lock on it ends with
the process). Processes of one run, which say the same session, do not hinder each other.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InputError
from tacit.private_files import new_private_file

__all__ = ["InUse", "admission", "declared", "in_use"]

_PATIENCE = 60.0  # seconds; an admission takes as long as to read the ledgers
_PAUSE = 0.02
_LOCK = "admission.lock"
_PREFIX = "in-use-"


@dataclass(frozen=True, eq=False)
class InUse:
    """What a process draws on.

    Args:
        session: of its run, the same in all processes of it.
        nodes: of the run, which this process has.
        accounts: names of the accounts.
        digests: of all their records, `[records]`.
    """

    session: str
    nodes: frozenset[int]
    accounts: frozenset[str]
    digests: NDArray[np.uint64]


@contextmanager
def admission(folder: Path) -> Iterator[None]:
    """One process at a time; others wait.

    Raises:
        InputError: another one takes too long, or the folder cannot be written.
    """
    path = folder / _LOCK
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError("privacy.ledger", str(folder), _unusable(error)) from None
    try:
        end = time.monotonic() + _PATIENCE
        while not _locked(descriptor):
            if time.monotonic() > end:
                expected = "ledgers that no other process is looking through: one has for a minute"
                raise InputError("privacy.ledger", str(folder), expected)
            time.sleep(_PAUSE)
        yield
    finally:
        os.close(descriptor)


def in_use(folder: Path) -> list[InUse]:
    """What living processes draw on; to be asked within `admission`.

    Files of processes that have died are removed.
    """
    processes = []
    for path in sorted(folder.glob(f"{_PREFIX}*")):
        try:
            file = path.open("r+b")
        except FileNotFoundError:  # it has just ended
            continue
        with file:
            if _locked(file.fileno()):
                path.unlink(missing_ok=True)
                continue
            head, _, digests = file.read().partition(b"\n")
        declaration = json.loads(head)
        records = np.frombuffer(digests, "<u8").astype(np.uint64)
        nodes, accounts = frozenset(declaration["nodes"]), frozenset(declaration["accounts"])
        processes.append(InUse(declaration["session"], nodes, accounts, records))
    return processes


@contextmanager
def declared(folder: Path, mine: InUse) -> Iterator[None]:
    """Let others know what this process draws on; to be entered within `admission`.

    Raises:
        InputError: the folder cannot be written.
    """
    path = folder / f"{_PREFIX}{secrets.token_hex(8)}"
    head = {
        "session": mine.session,
        "nodes": sorted(mine.nodes),
        "accounts": sorted(mine.accounts),
    }
    with ExitStack() as stack:
        try:
            file = stack.enter_context(os.fdopen(new_private_file(path), "wb"))
            stack.callback(path.unlink, missing_ok=True)
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(head).encode() + b"\n" + mine.digests.astype("<u8").tobytes())
            file.flush()
        except OSError as error:
            raise InputError("privacy.ledger", str(folder), _unusable(error)) from None
        yield


def _locked(descriptor: int) -> bool:
    """Whether the file's lock could be taken, which holds until the descriptor is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unusable(error: OSError) -> str:
    return f"a folder that can be written: {error.strerror}"
