"""A run's place among others: joins the processes that torchrun or `tacit launch` started."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tacit.cluster import Cluster, connect
from tacit.errors import InputError, PeerError, TacitError

__all__ = ["agreed_folder", "joined"]


@contextmanager
def joined(timeout: float, *, allow_insecure_network: bool = False) -> Iterator[Cluster | None]:
    """The other processes, if the environment names any; None without.

    Why this process ends, if it fails within, is told to the others.

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
    except BaseException as error:
        cluster.report(PeerError(f"it ended with {type(error).__name__}"))
        raise
    finally:
        cluster.close()


def agreed_folder(
    cluster: Cluster | None, out: Path | None, resume: bool, new: Callable[[], Path]
) -> tuple[Path, bool]:
    """The run folder of all processes, and whether its run is to be continued.

    After a restart by torchrun, whose command line stays as it was, that is the folder of the
    first time, if anything was written to it.

    Args:
        cluster: the other processes.
        out: as the user named it.
        resume: as the user asked.
        new: makes a name.

    Raises:
        InputError: `out` exists, and is not to be continued.
    """
    if cluster is None:
        return out or new(), resume
    chosen: list[object] = [None, resume]
    if cluster.rank == 0:
        noted = cluster.noted("out")
        folder = out or (new() if noted is None else Path(noted))
        again = noted is not None and os.path.isfile(folder / "config.toml")
        cluster.note("out", str(folder))
        chosen = [str(folder), resume or again]
    said, *_ = cluster.share("run folder", chosen)
    try:
        folder, again = Path(said[0]), bool(said[1])
    except (TypeError, IndexError):
        raise PeerError("rank 0 named no run folder") from None
    if out is not None and out.name != folder.name:
        raise InputError("--out", str(out), f"rank 0 writes to {folder}: name the same folder")
    return (folder if out is None else out), again
