"""A run as a service starts it: with one command line, the first time and every time after."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.errors import InputError

if TYPE_CHECKING:
    from tacit.config import Config


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


def own_rank(site: Path | None) -> int | None:
    """The rank of this site, or the one that a launcher gave; None: there is no other process.

    Raises:
        InputError: the site folder is not as it must be.
    """
    if site is not None:
        from tacit.identities.site import load_site

        return load_site(site).own.rank
    rank, processes = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "1")
    several = processes.isascii() and processes.isdigit() and int(processes) > 1
    return int(rank) if several and rank.isascii() and rank.isdigit() else None


def was_done(out: Path, config: Config, site: Path | None) -> bool:
    """Whether this process has ended the run as planned, and owes nobody anything.

    The other processes are not asked: they may have ended long ago. One that was killed when all
    was written, and before it could say so, has ended the run too.

    Raises:
        InputError: it has, and the run is of another experiment; or the site folder is not as it
            must be.
    """
    from tacit.report import write_report
    from tacit.report.documents.status import read_status
    from tacit.training.run_folder.folder import reopened
    from tacit.training.run_folder.status import say_done

    rank = own_rank(site)
    folder = out if rank is None else out / f"rank-{rank:04d}"
    try:
        said = read_status(folder).state == "done"
    except InputError:  # a run that was killed, or none: what is there decides
        said = False
    if not said and not (rank is not None and site is None and _lie_all(out)):
        return False
    if site is not None and rank is not None:
        from tacit.communication.secure.sites import session_folder, session_lasts

        if session_lasts(session_folder(out, rank)):
            return False  # other sites may lack messages of this one, which was ended before
    with reopened(folder, config, planned=False):
        if not said:
            say_done(folder)
            if rank == 0:
                write_report(out)  # it may have been killed while it wrote
        return True


def ends_alone(out: Path) -> bool:
    """Whether this one of several processes, to which no other comes, has ended the run.

    It has its models, and has heard that rank 0 has the rest: it needs nobody any more.
    """
    from tacit.training.run_folder.folder import KNOWN
    from tacit.training.run_folder.status import say_done

    folder = out / f"rank-{own_rank(None) or 0:04d}"
    ended = os.path.isfile(folder / KNOWN)
    if ended:
        say_done(folder)
    return ended


def _lie_all(out: Path) -> bool:
    """Whether the models and the results of all processes, and of the run, lie in this folder.

    They do on one machine.
    """
    from tacit.report.documents.run import read_result
    from tacit.training.run_folder.folder import NODES, RESULT

    try:
        status = read_result(out / RESULT).status
    except InputError:
        return False
    folders = (out / f"rank-{rank:04d}" for rank in range(int(os.environ["WORLD_SIZE"])))
    return status in ("done", "budget-exhausted") and all(
        os.path.isfile(folder / name) for folder in folders for name in (NODES, RESULT)
    )
