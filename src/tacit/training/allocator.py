"""Memory that a run keeps from step to step, and what is said where a device has too little."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from tacit.errors import InputError

# Parameters of glibc's mallopt.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4
_MIB = 2**20


@contextmanager
def plain_memory_errors() -> Iterator[None]:
    """Within, a device without memory raises `InputError` on `train.device`.

    What was asked for is not said: its size may follow from secret coins.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        expected = (
            "the device has too little memory left: lower train.batch or train.evaluate_records, "
            "take a smaller model or fewer nodes, end other programs there, or set it to 'cpu'"
        )
        raise InputError("train.device", "cuda", expected, public=True) from None


@contextmanager
def retain_allocations() -> Iterator[None]:
    """Within, memory that is freed stays with this process; afterwards it goes back.

    A step makes a few tensors `[nodes, d]` and frees them. Above 32 MiB glibc gets each from the
    system and gives it back, and the system clears every page of it again: with 400 nodes and
    d = 101,770 a step takes 632 ms so and 422 ms in memory that is kept; with 50 nodes, whose
    tensors are smaller, 75 and 70. The price is room between what is in use: at its peak a run of
    200 nodes takes 867 MiB in place of 638, of 500 nodes 1,906 in place of 1,145. The alternative,
    buffers that algorithms write into, would have every algorithm know which of its tensors are
    still in use.

    It concerns all of the process, which is why it ends with the run. Does nothing where the C
    library is not glibc.
    """
    mallopt = _mallopt()
    if mallopt is None:
        yield
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(_TOP_PAD, 64 * _MIB)
    try:
        yield
    finally:
        # glibc's own choices adapt until they are first set; these are where they end up.
        mallopt(_MMAP_MAX, 65_536)
        mallopt(_MMAP_THRESHOLD, 32 * _MIB)
        mallopt(_TRIM_THRESHOLD, 64 * _MIB)
        mallopt(_TOP_PAD, _MIB // 8)
        ctypes.CDLL(None).malloc_trim(0)


def _mallopt() -> Callable[[int, int], int] | None:
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018
        mallopt: Callable[[int, int], int] = library.mallopt
    except (AttributeError, OSError, TypeError):
        return None
    return mallopt
