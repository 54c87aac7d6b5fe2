"""A run as a service starts it: with one command line, the first time and every time after."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.errors import InputError

if TYPE_CHECKING:
    from tacit.config import Config

__all__ = ["is_there", "own_folder", "rank_of", "was_done"]


def own_folder(out: Path, rank: int | None) -> Path:
    """The folder of one process of a run.

    Args:
        out: the run folder.
        rank: of the process; None: there is no other.
    """
    return out if rank is None else out / f"rank-{rank:04d}"


def rank_of(environment: Mapping[str, str]) -> int | None:
    """The rank that a launcher gave this process; None where it is alone, or nobody has said."""
    rank, processes = environment.get("RANK", ""), environment.get("WORLD_SIZE", "1")
    several = processes.isascii() and processes.isdigit() and int(processes) > 1
    return int(rank) if several and rank.isascii() and rank.isdigit() else None


def is_there(out: Path | None, *, resume: bool) -> bool:
    """Whether there is anything where the run is to be: then it is continued, or refused.

    What a process left half made, which was killed while it made the folder, is nothing yet.

    Raises:
        InputError: no folder is named, or `--resume` is given as well.
    """
    if out is None:
        raise InputError("--resume-if-there", True, "name the run folder with --out")
    if resume:
        raise InputError("--resume", True, "goes without --resume-if-there")
    return os.path.lexists(out)


def was_done(folder: Path, config: Config) -> bool:
    """Whether a process has ended this run as planned, so that nothing is left to do.

    The other processes are not asked: they may have ended long ago.

    Args:
        folder: of the process.
        config: the experiment.

    Raises:
        InputError: it has, and the run is of another experiment.
    """
    from tacit.report.documents.status import read_status
    from tacit.training.run_folder.folder import reopened

    try:
        if read_status(folder).state != "done":
            return False
    except InputError:  # a run that was killed, or none: what is there decides
        return False
    with reopened(folder, config):
        return True
