"""Memory that a run keeps: what it changes, and that it ends with the run."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from tacit import memory
from tacit.memory import kept_memory

# Counts page faults of steps that make and free a few tensors of 64 MiB.
FAULTS = """
import resource, torch
from tacit.memory import kept_memory

state = [torch.zeros(2**24)]

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        half = state[0] / 2
        gradient = half + 1
        state[0] = half - gradient
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
with kept_memory():
    faults()
    within = faults()
print(before, within, faults())
"""
PAGES = 2**26 // 4096  # of one tensor


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_pages_are_asked_for_once_within_and_anew_afterwards() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True, timeout=120
    )
    before, within, after = map(int, ended.stdout.split())
    assert within < PAGES
    # How many of the rest are asked for anew, the system decides: huge pages count once.
    assert min(before, after) > 5 * PAGES


def test_it_does_nothing_without_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(name: object) -> object:
        raise OSError

    monkeypatch.setattr(memory.ctypes, "CDLL", no_library)
    with kept_memory():
        pass
