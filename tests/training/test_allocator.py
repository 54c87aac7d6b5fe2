"""Memory that a run keeps: what it sets, that it is set back, and that numbers stay the same.

How many pages the system then hands out is the system's to decide, and is not asked here.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
import torch

from tacit.training import allocator as memory
from tacit.training.allocator import retain_allocations

glibc = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
# The numbers of malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, MMAP_MAX = -1, -2, -3, -4


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_set_is_set_back(fails, monkeypatch):
    now: dict[int, int] = {}
    trimmed: list[int] = []

    def mallopt(parameter, value):
        now[parameter] = value
        return 1

    library = SimpleNamespace(
        gnu_get_libc_version=None, mallopt=mallopt, malloc_trim=trimmed.append
    )
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: library)
    within: dict[int, int] = {}
    error: Exception | None = None
    try:
        with retain_allocations():
            within.update(now)
            if fails:
                raise ArithmeticError
    except ArithmeticError as raised:
        error = raised
    assert (error is not None) == fails
    # Nothing is mapped apart or given back, as far as malloc can be told.
    assert within[MMAP_MAX] == 0
    assert within[TRIM_THRESHOLD] == 2**31 - 1
    assert trimmed == [0]
    # Everything that was set, and the threshold that stops adapting then, is set anew.
    assert now.keys() == within.keys() | {MMAP_THRESHOLD}
    assert now[MMAP_MAX] == 65_536
    assert now[TOP_PAD] < now[MMAP_THRESHOLD] < now[TRIM_THRESHOLD] < within[TRIM_THRESHOLD]


@glibc
def test_the_c_library_takes_every_setting(monkeypatch):
    real, taken = ctypes.CDLL(None).mallopt, []

    def mallopt(parameter, value):
        taken.append(real(parameter, value))
        return int(taken[-1])

    monkeypatch.setattr(memory, "_mallopt", lambda: mallopt)
    with retain_allocations():
        pass
    assert taken == [1] * 7


@glibc
def test_numbers_are_the_same_in_kept_memory():
    def steps():
        state = torch.linspace(0, 1, 2**24)  # 64 MiB: beyond what glibc keeps by itself
        for _ in range(3):
            half = state / 2
            state = half - (half + 1)
        return state

    apart = steps()
    with retain_allocations():
        kept = steps()
    assert torch.equal(kept, apart)
    assert torch.equal(steps(), apart)


def test_it_does_nothing_without_glibc(monkeypatch):
    def no_library(name):
        raise OSError

    monkeypatch.setattr(memory.ctypes, "CDLL", no_library)
    with retain_allocations():
        pass
