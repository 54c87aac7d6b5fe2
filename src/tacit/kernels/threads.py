"""The threads of this process on which compiled loops run: one pool, made when it is first used."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

import torch

_Share = TypeVar("_Share")
# Threads are made as they are needed: as many as PyTorch is told to use.
_MOST_THREADS = 256


def over_threads(work: Callable[[_Share], None], shares: list[_Share]) -> None:
    """Call `work` with each share, all at once; an error of any is raised when all have ended.

    There are as many shares as threads are wanted. `work` lets go of the interpreter lock for most
    of its time, and does not call this itself.
    """
    if len(shares) == 1:
        work(shares[0])
        return
    futures = [_pool().submit(work, share) for share in shares]
    wait(futures)
    for future in futures:
        future.result()


def over_threads_of_products(work: Callable[[_Share], None], shares: list[_Share]) -> None:
    """As `over_threads`, for work with PyTorch's operations: each of them takes one thread.

    Gradients are not recorded on those threads, and nothing is cast on its own.
    """
    threads = torch.get_num_threads()

    def alone(share: _Share) -> None:
        if len(shares) > 1:
            torch.set_num_threads(1)  # of this thread's own operations
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            work(share)

    try:
        over_threads(alone, shares)
    finally:
        if len(shares) > 1:
            torch.set_num_threads(threads)  # what threads that are made later begin with


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="tacit")


# The threads of a pool do not survive a fork: the child makes its own.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
