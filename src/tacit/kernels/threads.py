"""Loops over rows on several threads, from one pool that lives as long as the process."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

__all__ = ["over_rows"]

# Handing work to a thread takes some 30 us: as long as a thread takes to move so many numbers.
_THREAD_NUMBERS = 1 << 17


def over_rows(rows: int, numbers: int, threads: int, work: Callable[[slice], object]) -> None:
    """Call `work` with slices that make up all rows, each on a thread of its own.

    Args:
        rows: how many there are; they must not depend on each other.
        numbers: that all of them together read or write, which decides how many threads pay.
        threads: at most.
        work: a compiled loop, which lets go of the interpreter lock.
    """
    count = max(1, min(threads, rows, numbers // _THREAD_NUMBERS))
    bounds = [rows * part // count for part in range(count + 1)]
    first, *others = (slice(*pair) for pair in pairwise(bounds))
    waiting = [_pool(threads).submit(work, part) for part in others]
    work(first)
    for one in waiting:
        one.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="tacit-loops")


# Threads do not survive a fork, and a pool without its threads would wait for ever.
os.register_at_fork(after_in_child=_pool.cache_clear)
