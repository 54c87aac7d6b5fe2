"""Memory that a run keeps: what it sets, that it is set back, and that numbers stay the same.

How many pages the system then hands out is the system's to decide, and is not asked here.
"""

import ctypes
from types import SimpleNamespace

import pytest
import torch

import tacit
from tacit import gradients
from tacit.errors import InputError
from tacit.gradients.stacked import MEMORY_BYTES, memory_bound
from tacit.training import allocator as memory
from tacit.training.allocator import plain_memory_errors, retain_allocations

glibc = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
# The numbers of malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, MMAP_MAX = -1, -2, -3, -4


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_set_is_set_back(fails, monkeypatch):
    now = {}
    trimmed = []

    def mallopt(parameter, value):
        now[parameter] = value
        return 1

    library = SimpleNamespace(
        gnu_get_libc_version=None, mallopt=mallopt, malloc_trim=trimmed.append
    )
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: library)
    within = {}
    error = None
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


@pytest.mark.slow
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


ASKED = "CUDA out of memory. Tried to allocate 731.00 MiB. GPU 0 has 12 MiB free."


def test_a_device_without_memory_says_what_to_set_and_no_size():
    with pytest.raises(InputError) as found, plain_memory_errors():
        raise torch.OutOfMemoryError(ASKED)
    line = str(found.value)
    assert line.startswith("train.device = 'cuda': ")
    assert "train.batch" in line
    assert not any(sign.isdigit() for sign in line)
    assert found.value.__suppress_context__
    with pytest.raises(RuntimeError, match="another"), plain_memory_errors():
        raise RuntimeError("another")


@pytest.mark.parametrize("where", ["start", "step"])
def test_a_run_that_finds_no_memory_ends_with_that_line(where, monkeypatch):
    def full(*arguments, **options):
        raise torch.OutOfMemoryError(ASKED)

    owner, name = {"start": (gradients, "build"), "step": (gradients.StackedModel, "gradient")}[
        where
    ]
    monkeypatch.setattr(owner, name, full)
    nodes = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(2)]
    settings = {
        "task": {"model": "linear", "loss": "mse"},
        "algorithm": {"name": "sgp"},
        "train": {"steps": 2, "batch": 2},
    }
    with pytest.raises(InputError, match="too little memory left"):
        tacit.train(settings, nodes=nodes)


def test_bounds_follow_from_what_is_free_on_a_device():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert memory_bound(gpu, 80 * 2**30) == 20 * 2**30
    assert memory_bound(gpu, 100) == memory_bound(cpu) == MEMORY_BYTES
