"""The release on a device, run on the host's own: lattice points equal those of the host's way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tacit.privacy.noise import device as noise_device
from tacit.privacy.noise import gaussian as noise_lattice
from tacit.privacy.noise.draws import add_normal
from tacit.privacy.noise.keys import NodeKeys, seeded_keys

KEYS = seeded_keys(78, range(6))
DTYPES = [torch.float32, torch.float64]
BIG = 1 << 63


def on_device(
    total: torch.Tensor, stds: list[float], monkeypatch: pytest.MonkeyPatch, step: int = 3
) -> torch.Tensor:
    """What a device would release, had it the arithmetic of this processor."""
    released = total.clone()
    with monkeypatch.context() as patch:
        patch.setattr(noise_lattice, "DEVICE_TYPES", frozenset({"cpu"}))
        assert add_normal(released, stds, KEYS, range(len(stds)), "noise", step) is released
    return released


def on_host(total: torch.Tensor, stds: list[float], step: int = 3) -> torch.Tensor:
    return add_normal(total.clone(), stds, KEYS, range(len(stds)), "noise", step)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_million_values_are_those_of_the_host(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = torch.Generator().manual_seed(5)
    total = torch.randn(2, 500_001, generator=draw, dtype=dtype)
    total[1] *= 1e4
    stds = [0.77, 3.1]
    released, expected = on_device(total, stds, monkeypatch), on_host(total, stds)
    assert released.numpy().tobytes() == expected.numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [0, 1, 2, 129, 4_097])
def test_pieces_and_strips_of_any_size_make_the_same_rows(
    dtype: torch.dtype, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise_device, "_DEVICE_PAIRS", 256)
    monkeypatch.setattr(noise_device, "_STRIP_PAIRS", 100)
    total = torch.ones(5, length, dtype=dtype)
    stds = [0.5, 1e-60, 1.0, 1e60, 7.0]
    if dtype == torch.float32:
        stds = [0.5, 1e-20, 1.0, 1e20, 7.0]
    assert torch.equal(on_device(total, stds, monkeypatch), on_host(total, stds))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extreme_words_are_those_of_the_host(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    radii = [0, 1, -1, 2, 1 << 20, -(1 << 46), (1 << 47) - 1, 1 << 47, -(1 << 50), 1 << 62]
    radii += [(1 << 62) - 1, -(1 << 62) - 1, BIG - 1, -BIG, BIG - (1 << 30), 1 - BIG]
    angles = [0, 1, -1, 1 << 61, 3 << 60, -BIG, BIG - 1, 0x1234_5678_9ABC_DEF0]
    words = np.array([(word, angle) for word in radii for angle in angles], "<i8")
    read = NodeKeys.read

    def given(
        keys: NodeKeys, node: int, purpose: str, counter: int, zeros: bytes, buffer: memoryview
    ) -> None:
        if purpose != "noise":
            return read(keys, node, purpose, counter, zeros, buffer)
        keystream = np.frombuffer(buffer, "<i8")[: len(zeros) // 8]
        keystream[:] = 1 << 60
        keystream[: words.size] = words.ravel()[: len(keystream)]
        return None

    monkeypatch.setattr(NodeKeys, "read", given)
    total = torch.zeros(1, words.size, dtype=dtype)
    released = on_device(total, [1.9], monkeypatch)
    assert bool(torch.isfinite(released).all())
    assert torch.equal(released, on_host(total, [1.9]))


def test_what_is_not_finite_stays_so_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    total = torch.zeros(1, 2_000)
    plain = on_device(total, [2.0], monkeypatch)
    for odd_one in (math.inf, -math.inf, math.nan, 1e30):
        total[0, 7] = odd_one
        released = on_device(total, [2.0], monkeypatch)
        rest = torch.arange(2_000) != 7
        assert torch.equal(released[0, rest], plain[0, rest])
        assert math.isfinite(released[0, 7].item()) == math.isfinite(odd_one)


def test_views_are_noised_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = torch.ones(300, 4)
    with monkeypatch.context() as patch:
        patch.setattr(noise_lattice, "DEVICE_TYPES", frozenset({"cpu"}))
        add_normal(columns.t()[1:3], [1.0, 2.0], KEYS, [1, 4], "noise", 2)
    expected = add_normal(torch.ones(2, 300), [1.0, 2.0], KEYS, [1, 4], "noise", 2)
    assert torch.equal(columns[:, 1:3].t(), expected)
    assert bool((columns[:, [0, 3]] == 1).all())
