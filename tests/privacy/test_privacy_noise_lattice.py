"""Normals: their distribution, and what a draw does and does not depend on."""

import math
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.errors import InputError
from tacit.privacy.noise import lattice
from tacit.privacy.noise.draws import keystream, seeded_keys
from tacit.privacy.noise.lattice import NormalBlock, Pieces, normal

KEYS = seeded_keys(2024, range(8))
DTYPES = [torch.float32, torch.float64]


@pytest.fixture
def _restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-13)])
def test_normals_are_box_muller_of_the_keystream(dtype: torch.dtype, tolerance: float) -> None:
    words = keystream(KEYS, 3, "noise", 17, 16 * 500, 2).view("<i8").tolist()
    expected = []
    for radius_word, angle_word in zip(words[::2], words[1::2], strict=True):
        radius = math.sqrt(-2 * math.log(abs(radius_word) / 2**63))
        angle = 2 * math.pi * angle_word / 2**64
        expected += [radius * math.cos(angle), radius * math.sin(angle)]
    drawn = normal(KEYS, [3], "noise", 17, 1000, dtype=dtype, part=2)[0]
    assert drawn.dtype == dtype
    assert drawn.tolist() == pytest.approx(expected, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_million_normals_are_normal(dtype: torch.dtype) -> None:
    draws = normal(KEYS, range(4), "noise", 0, 250_000, dtype=dtype).double().numpy().ravel()
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    n = len(draws)
    # z-scores of the first four moments: the variance of z^k is m_2k - m_k^2.
    for order, mean, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        score = ((draws**order).mean() - mean) / math.sqrt(variance / n)
        assert abs(score) < 4.5, f"moment {order}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tails_have_their_mass(dtype: torch.dtype) -> None:
    draws = normal(KEYS, range(4), "noise", 1, 1_000_000, dtype=dtype)
    for sigmas in (3.0, 4.0, 5.0):
        for tail in (draws > sigmas, draws < -sigmas):
            low, high = stats.binom.interval(1 - 1e-6, draws.numel(), stats.norm.sf(sigmas))
            assert low <= int(tail.sum()) <= high


def test_float32_has_no_visible_lattice() -> None:
    n = 1_000_000
    ideal = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    drawn = normal(KEYS, [0], "noise", 2, n).numpy().ravel()
    # Rounding to float32 makes some values coincide; a lattice makes many more do.
    assert len(np.unique(drawn)) == pytest.approx(len(np.unique(ideal)), rel=5e-4)
    near, near_ideal = drawn[abs(drawn) < 0.01], ideal[abs(ideal) < 0.01]
    assert len(np.unique(near)) / len(near) > len(np.unique(near_ideal)) / len(near_ideal) - 2e-3


@pytest.mark.parametrize(
    ("word", "radius"), [(0, math.sqrt(130 * math.log(2))), (1, 9.3267), (-(2**63), 0.0)], ids=str
)
def test_extreme_words_give_finite_normals(word: int, radius: float) -> None:
    def read(row: int, pair: int, zeros: bytes, buffer: memoryview) -> None:
        """A keystream whose radius words are all `word` and whose angles are all 0."""
        words = np.frombuffer(buffer, "<i8")[: len(zeros) // 8]
        words[::2], words[1::2] = word, 0

    for dtype in (np.float32, np.float64):
        block = NormalBlock(Pieces.of(2, 128), np.dtype(dtype))
        block.draw((slice(0, 2), slice(0, 128)), read)
        assert block.normals.shape == (2, 128)
        assert block.normals[:, ::2] == pytest.approx(radius, abs=0.02)
        assert not block.normals[:, 1::2].any()


def test_draws_at_different_positions_are_uncorrelated() -> None:
    d = 50_000
    draws = {
        (node, purpose, step, part): normal(
            KEYS, [node], purpose, step, d, dtype=torch.float64, part=part
        )[0]
        for node in (0, 1)
        for purpose in ("noise", "start")
        for step in (3, 4)
        for part in (0, 1)
    }
    for one, other in combinations(draws, 2):
        score = float(draws[one] @ draws[other]) / math.sqrt(d)
        assert abs(score) < 5, (one, other)


def test_values_of_a_row_are_uncorrelated() -> None:
    row = normal(KEYS, [5], "noise", 9, 500_000, dtype=torch.float64)[0]
    for lag in (1, 2, 3, 64, 128, 131_072):
        for transform in (lambda x: x, lambda x: (x**2 - 1) / math.sqrt(2)):
            x = transform(row)
            score = float(x[lag:] @ x[:-lag]) / math.sqrt(len(row) - lag)
            assert abs(score) < 5, lag


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.lists(st.integers(0, 7), min_size=1, max_size=5),
    length=st.one_of(st.integers(0, 700), st.sampled_from([40_000, 65_536, 65_537, 131_073])),
    cut=st.floats(0, 1),
    dtype=st.sampled_from(DTYPES),
)
def test_a_row_is_bitwise_the_same_in_any_stack_and_of_any_length(
    nodes: list[int], length: int, cut: float, dtype: torch.dtype
) -> None:
    stack = normal(KEYS, nodes, "noise", 6, length, dtype=dtype)
    assert stack.shape == (len(nodes), length)
    prefix = int(cut * length)
    for row, node in zip(stack, nodes, strict=True):
        alone = normal(KEYS.subset([node]), [node], "noise", 6, prefix, dtype=dtype)[0]
        assert torch.equal(row[:prefix], alone)


@pytest.mark.usefixtures("_restore_threads")
def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    alone = normal(KEYS, None, "noise", 8, 70_001)
    torch.set_num_threads(3)
    monkeypatch.setattr(lattice, "_THREAD_VALUES", 1 << 10)
    assert torch.equal(normal(KEYS, None, "noise", 8, 70_001), alone)


def test_both_precisions_draw_the_same_noise() -> None:
    single = normal(KEYS, None, "noise", 3, 10_000)
    double = normal(KEYS, None, "noise", 3, 10_000, dtype=torch.float64)
    assert torch.allclose(single.double(), double, rtol=1e-5, atol=3e-6)


def test_out_is_filled_whatever_its_layout() -> None:
    expected = normal(KEYS, [1, 4], "noise", 2, 300)
    whole = torch.empty(2, 300)
    assert normal(KEYS, [1, 4], "noise", 2, 300, out=whole) is whole
    assert torch.equal(whole, expected)
    columns = torch.zeros(300, 4)
    normal(KEYS, [1, 4], "noise", 2, 300, out=columns.t()[1:3])
    assert torch.equal(columns[:, 1:3].t(), expected)
    assert not columns[:, [0, 3]].any()


def test_all_nodes_are_drawn_in_the_order_of_their_keys() -> None:
    keys = KEYS.subset([6, 2])
    assert torch.equal(normal(keys, None, "noise", 0, 10), normal(KEYS, [6, 2], "noise", 0, 10))
    assert normal(keys, [], "noise", 0, 10).shape == (0, 10)


def test_unusable_outputs_are_refused() -> None:
    with pytest.raises(InputError, match="shape"):
        normal(KEYS, [0], "noise", 0, 10, out=torch.empty(1, 11))
    with pytest.raises(InputError, match="float32 or float64"):
        normal(KEYS, [0], "noise", 0, 10, dtype=torch.float16)
    with pytest.raises(InputError, match="node = 8"):
        normal(KEYS, [8], "noise", 0, 10)
    with pytest.raises(InputError, match="step"):
        normal(KEYS, [0], "noise", 2**48, 10)
