"""A run's place among others: joins the processes that torchrun or `tacit launch` started."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tacit.communication.cluster import Cluster, connect
from tacit.communication.received import FOLDER, FolderName
from tacit.errors import InputError, PeerError, TacitError
from tacit.training.run_folder.folder import check_new

__all__ = ["agreed_folder", "process_group"]

_RUNS = Path("runs")  # where a run is written that nobody named a folder for


@contextmanager
def process_group(
    timeout: float, *, allow_insecure_network: bool = False
) -> Iterator[Cluster | None]:
    """The other processes, if the environment names any; None without.

    That this process ends, if it fails within, is told to the others; why, as far as it is public.

    Args:
        timeout: seconds that a process waits for another, `[train].timeout`.
        allow_insecure_network: whether messages may travel in clear over a public address.

    Raises:
        InputError: the environment is incomplete, or an address is public.
        PeerError: the other processes cannot be found.
    """
    cluster = connect(os.environ, timeout=timeout, allow_insecure_network=allow_insecure_network)
    if cluster is None:
        yield None
        return
    try:
        yield cluster
    except TacitError as error:
        cluster.report(error)
        raise
    except BaseException:
        cluster.report(PeerError("it ended with an error of its own; see its own screen"))
        raise
    finally:
        cluster.close()


def agreed_folder(
    cluster: Cluster | None, out: Path | None, resume: bool, new: Callable[[], Path]
) -> tuple[Path, bool]:
    """The run folder of all processes, and whether its run is to be continued.

    A process writes to the folder that its own user named, and where none was named to
    `runs/NAME` below its own current folder: of others it takes the name alone, never a path.

    After a restart by torchrun, whose command line stays as it was, that is the folder of the
    first time, if anything was written to it.

    Args:
        cluster: the other processes.
        out: as the user named it.
        resume: as the user asked.
        new: makes a name.

    Raises:
        InputError: the user of rank 0 named another folder than the user of this process, or none
            was named, and there is one of that name here already.
        PeerError: rank 0 named no run folder.
    """
    if cluster is None:
        return out or new(), resume
    own = FolderName(name=None, resume=resume)
    if cluster.rank == 0:
        text = cluster.noted("out")
        noted = None if text is None else FOLDER.read(text, 0, "run folder").name
        folder = out or (_RUNS / (_name(new()) if noted is None else noted))
        again = noted == _name(folder) and os.path.isfile(folder / "config.toml")
        own = FolderName(name=_name(folder), resume=resume or again)
        cluster.note("out", FOLDER.write(own))
    agreed, *_ = cluster.share("run folder", own, FOLDER)
    if agreed.name is None:
        raise PeerError("rank 0 named no run folder")
    if out is not None and _name(out) != agreed.name:
        expected = f"rank 0 writes to a folder called {agreed.name!r}: name the same folder"
        raise InputError("--out", str(out), expected, public=True)
    folder = out or _RUNS / agreed.name
    if out is None and not agreed.resume and cluster.rank > 0:
        check_new(folder)  # rank 0 makes its own later, once all have come this far
    return folder, agreed.resume


def _name(folder: Path) -> str:
    """The last part of a path, in the characters that every process takes from another."""
    return re.sub(r"[^\w. -]", "-", folder.name).lstrip(". -")[:100] or "run"
