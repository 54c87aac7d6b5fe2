"""The threads of this process on which compiled loops run: one pool, made when it is first used."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

__all__ = ["over_threads"]

_Share = TypeVar("_Share")
# Threads are made as they are needed: as many as PyTorch is told to use.
_MOST_THREADS = 256


def over_threads(work: Callable[[_Share], None], shares: list[_Share]) -> None:
    """Call `work` with each share, all at once; an error of any is raised when all have ended.

    Args:
        work: lets go of the interpreter lock for most of its time, and does not call this itself.
        shares: as many as threads are wanted.
    """
    if len(shares) == 1:
        work(shares[0])
        return
    futures = [_pool().submit(work, share) for share in shares]
    wait(futures)
    for future in futures:
        future.result()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="tacit")


# The threads of a pool do not survive a fork: the child makes its own.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
