"""The release: exact lattice points against big arithmetic, their law, and what they depend on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.errors import InputError
from tacit.privacy.noise import gaussian, lattice
from tacit.privacy.noise.draws import NodeKeys, keystream, position, seeded_keys
from tacit.privacy.noise.gaussian import add_normal, careful_normals, spacing
from tacit.privacy.noise.lattice import Pieces, SingleBlock, normal

KEYS = seeded_keys(77, range(8))
DTYPES = [torch.float32, torch.float64]
BIG = 1 << 63


@pytest.fixture
def _restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def bits(values: torch.Tensor) -> bytes:
    """What a tensor holds, the signs of zeros included."""
    return values.numpy().tobytes()


def noised(total: torch.Tensor, std: float, *, node: int = 0, step: int = 0) -> torch.Tensor:
    """One row, noised; the argument is kept."""
    row = total.clone().unsqueeze(0)
    assert add_normal(row, [std], KEYS, [node], "noise", step) is row
    return row[0]


def big_normal(word: int, angle: int, odd: int, uniform: mpmath.mpf | None = None) -> mpmath.mpf:
    """Box-Muller of two signed words in 60 digits."""
    u = mpmath.mpf(abs(word)) / BIG if uniform is None else uniform
    radius = mpmath.sqrt(-2 * mpmath.log(u))
    turn = 2 * mpmath.pi * mpmath.mpf(angle) / (2 * BIG)
    return radius * (mpmath.sin(turn) if odd else mpmath.cos(turn))


def tail_uniform(node: int, step: int, word: int, pair: int) -> mpmath.mpf:
    """U of a small radius word: 512 more bits, from the keystream of the tails."""
    stream = keystream(KEYS, node, "noise, tails", step, 64 * (pair + 1)).tobytes()[-64:]
    fraction = mpmath.mpf(int.from_bytes(stream, "big")) / 2**512
    return abs(word + fraction - mpmath.mpf(1) / 2) / BIG


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("std", "size"), [(0.7312, 50.0), (64.0, 1e-3), (1e-9, 1e3), (3e7, 0.0)])
def test_releases_are_the_lattice_points_of_exact_sums(
    dtype: torch.dtype, std: float, size: float
) -> None:
    d = 301
    total = size * torch.randn(d, generator=torch.Generator().manual_seed(1), dtype=dtype)
    sample = noised(total, std, node=1, step=4).tolist()
    words = keystream(KEYS, 1, "noise", 4, 16 * (d + 1) // 2 * 2).view("<i8").tolist()
    step = spacing(std)
    with mpmath.workdps(60):
        for j in range(d):
            x = big_normal(words[j - j % 2], words[j - j % 2 + 1], j % 2)
            point = mpmath.nint((mpmath.mpf(total[j].item()) + mpmath.mpf(std) * x) / step) * step
            assert sample[j] == torch.tensor(float(point), dtype=dtype).item()


def use_words(words: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the keystreams of noise begin with these words, then zeros; not those of its tails."""
    read = NodeKeys.read

    def given(
        keys: NodeKeys, node: int, purpose: str, counter: int, zeros: bytes, buffer: memoryview
    ) -> None:
        if purpose != "noise":
            return read(keys, node, purpose, counter, zeros, buffer)
        keystream = np.frombuffer(buffer, "<i8")[: len(zeros) // 8]
        keystream[:] = 0
        keystream[: len(words)] = words
        return None

    monkeypatch.setattr(NodeKeys, "read", given)


CORNERS = [0, 1, -1, 2, 3, 1 << 20, -(1 << 46), (1 << 47) - 1, 1 << 47, -(1 << 50), (1 << 50) + 7]
CORNERS += [1 << 62, (1 << 62) - 1, -(1 << 62) - 1, BIG - 1, -BIG, BIG - (1 << 30), 1 - BIG]
ANGLES = [0, 1, -1, 1 << 61, -(1 << 62), 3 << 60, -BIG, BIG - 1, 0x1234_5678_9ABC_DEF0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extreme_words_are_computed_with_care(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [(word, angle) for word in CORNERS for angle in ANGLES]
    flat = [value for pair in pairs for value in pair]
    tails = {
        pair: tail_uniform(2, 9, word, pair)
        for pair, (word, _) in enumerate(pairs)
        if abs(word) < 1 << 47
    }
    use_words(flat, monkeypatch)
    std = 1.9
    sample = noised(torch.zeros(2 * len(pairs), dtype=dtype), std, node=2, step=9).tolist()
    with mpmath.workdps(200):
        for pair, (word, angle) in enumerate(pairs):
            for odd in (0, 1):
                exact = (
                    mpmath.mpf(std) * big_normal(word, angle, odd, tails.get(pair)) / spacing(std)
                )
                # An angle of a quarter turn has a cosine of 0: no midpoint is near.
                assert abs(abs(exact - mpmath.nint(exact)) - 0.5) > 1e-9
                assert sample[2 * pair + odd] == float(mpmath.nint(exact)) * spacing(std)


def test_careful_normals_err_as_little_as_the_bound_assumes() -> None:
    rng = np.random.default_rng(3)
    words = np.concatenate([
        rng.integers(-BIG, BIG - 1, 600),
        rng.integers(1 << 47, 1 << 52, 200),
        BIG - 1 - (rng.integers(0, BIG - 1, 300) >> rng.integers(1, 60, 300)),
    ])  # fmt: skip
    angles = rng.integers(-BIG, BIG - 1, len(words))
    magnitudes = np.abs(words).view(np.uint64)
    for odd in (0, 1):
        flags = np.full(len(words), bool(odd))
        normals = careful_normals(magnitudes * 2.0**-63, magnitudes, angles, flags)
        with mpmath.workdps(60):
            for i, (word, angle) in enumerate(zip(words.tolist(), angles.tolist(), strict=True)):
                radius = mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(abs(word)) / BIG))
                error = abs(mpmath.mpf(normals[i].item()) - big_normal(word, angle, odd))
                assert error <= 4.2 * 2.0**-50 * radius


def test_single_precision_errs_less_than_what_is_recomputed_covers() -> None:
    block = SingleBlock(Pieces.of(1, 65_536))
    factors = np.array([[-1.0]], np.float32)
    seen = 0
    for step in range(16):
        block.draw(
            (slice(0, 1), slice(0, 65_536)),
            lambda row, pair, zeros, buffer, step=step: KEYS.read(
                3, "noise", position(step, 0) + pair, zeros, buffer
            ),
            factors,
        )
        words = block.words[0]
        magnitudes = np.abs(words[:, 0]).view(np.uint64)
        sure = ~block.corner[0]
        seen += int(sure.sum())
        for odd in (0, 1):
            exact = careful_normals(
                magnitudes * 2.0**-63, magnitudes, words[:, 1], np.full(len(words), bool(odd))
            )
            error = abs(block.noise[0, odd::2] - exact)[sure].max()
            assert error < 0.4 * gaussian._FAST_ERROR
    assert 0.999 < seen / (16 * 32_768) < 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("std", [0.3, 2.0**-90])
@pytest.mark.parametrize("size", [0.0, 1.0, 20.0, 1e5])
def test_both_fast_ways_find_what_care_finds(
    dtype: torch.dtype, std: float, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In single precision where totals are small enough, else in double precision."""
    draw = torch.Generator().manual_seed(2)
    total = (std * size * torch.randn(60_001, generator=draw, dtype=torch.float64)).to(dtype)
    fast = noised(total, std)
    monkeypatch.setattr(gaussian, "_SINGLE_TOTAL", 0.0)
    double = noised(total, std)
    monkeypatch.setattr(gaussian, "_FAST_TOTAL", 0.0)
    careful = noised(total, std)
    assert bits(fast) == bits(double) == bits(careful)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_totals_at_the_border_of_the_single_way_are_settled(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where single precision is coarsest: totals just below the largest that it takes."""
    std = 1.99
    border = (gaussian._SINGLE_TOTAL - 1e-3) * spacing(std)
    draw = torch.Generator().manual_seed(3)
    total = (border - 1e-4 * torch.rand(60_001, generator=draw, dtype=torch.float64)).to(dtype)
    for signed in (total, -total):
        fast = noised(signed, std, step=11)
        with monkeypatch.context() as patch:
            patch.setattr(gaussian, "_SINGLE_TOTAL", 0.0)
            patch.setattr(gaussian, "_FAST_TOTAL", 0.0)
            assert bits(noised(signed, std, step=11)) == bits(fast)


def test_a_zero_that_is_released_has_no_sign() -> None:
    for size in (0.0, 1e4):  # one way, and the other
        total = torch.zeros(50_000)
        total[0] = size
        sample = noised(total, 1.0)
        assert int((sample == 0).sum()) > 200
        assert not bool(torch.signbit(sample[sample == 0]).any())


def test_huge_totals_and_those_that_are_not_finite_do_not_spoil_others() -> None:
    d = 4_000
    plain = noised(torch.zeros(d, dtype=torch.float64), 2.0)
    for odd_one in (math.inf, -math.inf, math.nan, 1e300, -(2.0**60)):
        total = torch.zeros(d, dtype=torch.float64)
        total[17] = odd_one
        sample = noised(total, 2.0)
        rest = torch.arange(d) != 17
        assert torch.equal(sample[rest], plain[rest])
        assert not math.isfinite(odd_one) or sample[17].item() == pytest.approx(odd_one)
        assert math.isfinite(odd_one) or not math.isfinite(sample[17].item())


@settings(max_examples=100)
@given(std=st.floats(1e-100, 1e100))
def test_the_lattice_depends_on_the_deviation_alone(std: float) -> None:
    step = spacing(std)
    assert math.frexp(step)[0] == 0.5
    assert 64 <= std / step < 128


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_low_bits_say_nothing_of_the_total(dtype: torch.dtype) -> None:
    std, d = 1.0, 20_000
    step = spacing(std)
    # Floating-point noise alone gives such totals away: sums with the larger one are coarser.
    totals = [torch.full((d,), value, dtype=dtype) for value in (1e-7, math.pi * 1000)]
    draws = normal(KEYS, [0], "noise", 0, d, dtype=dtype)[0]
    finer = [int((((total + draws) / 2.0**-18) % 1 != 0).sum()) for total in totals]
    assert finer[0] > 0.5 * d
    assert dtype != torch.float32 or finer[1] == 0
    for total in totals:
        assert not bool(((noised(total, std) / step) % 1).any())


@pytest.mark.parametrize("offset", [0.0, 0.49, -0.3])
def test_a_million_releases_follow_the_rounded_gaussian(offset: float) -> None:
    std, nodes, d = 1.7, 4, 250_000
    step = spacing(std)
    total = torch.full((nodes, d), offset * step, dtype=torch.float64)
    add_normal(total, [std] * nodes, KEYS, range(nodes), "noise", 3)
    points = (total / step).round().long().flatten().numpy()
    edges = (np.arange(-1000, 1001) + 0.5 - offset) * step / std
    cells = np.diff(stats.norm.cdf(edges))  # of the points -999 .. 1000
    counts = np.bincount(points + 999, minlength=len(cells)).astype(float)
    often = cells * len(points) > 20
    observed = np.append(counts[often], counts[~often].sum())
    expected = np.append(cells[often], 1 - cells[often].sum()) * len(points)
    assert often.sum() > 400
    assert stats.chisquare(observed, expected).pvalue > 1e-3
    # Kolmogorov-Smirnov at the cells' borders, which is conservative.
    distance = abs(np.cumsum(counts) / len(points) - stats.norm.cdf(edges[1:])).max()
    assert stats.kstwobign.sf(distance * math.sqrt(len(points))) > 1e-3


def test_the_first_four_moments_are_those_of_noise_and_rounding() -> None:
    total = torch.zeros(4, 250_000, dtype=torch.float64)
    add_normal(total, [1.0] * 4, KEYS, [0, 3, 5, 6], "noise", 8)
    values, n, step = total.flatten().numpy(), 1_000_000, spacing(1.0)
    second, fourth = 1 + step**2 / 12, 3 + step**2 / 2
    for order, mean, variance in [(1, 0, 1), (2, second, 2), (3, 0, 15), (4, fourth, 96)]:
        score = ((values**order).mean() - mean) / math.sqrt(variance / n)
        assert abs(score) < 4.5, f"moment {order}"


def test_tails_have_their_mass_on_both_sides() -> None:
    total = torch.zeros(8, 1_000_000)
    add_normal(total, [1.0] * 8, KEYS, range(8), "noise", 1)
    step = spacing(1.0)
    for sigmas in (3.0, 4.5, 5.0):
        mass = stats.norm.sf(sigmas - step / 2)  # what is rounded to `sigmas` and beyond
        for tail in (total >= sigmas, total <= -sigmas):
            low, high = stats.binom.interval(1 - 1e-6, total.numel(), mass)
            assert low <= int(tail.sum()) <= high


def test_releases_at_different_positions_are_uncorrelated() -> None:
    d = 60_000
    draws = {
        place: torch.zeros(d, dtype=torch.float64)
        for place in ((n, p, k, i) for n in (0, 5) for p in "ab" for k in (0, 1) for i in (0, 1))
    }
    for (node, purpose, step, part), row in draws.items():
        add_normal(row.view(1, d), [1.0], KEYS, [node], purpose, step, part=part)
    for one, other in combinations(draws, 2):
        for power in (1, 2):
            x, y = ((draws[at] ** power).numpy() for at in (one, other))
            assert abs(np.corrcoef(x, y)[0, 1]) * math.sqrt(d) < 5, (one, other)


def test_coordinates_of_a_release_are_uncorrelated() -> None:
    row = noised(torch.zeros(600_000, dtype=torch.float64), 1.0, node=4, step=6).numpy()
    for lag in (1, 2, 3, 64, 128, 32_768, 65_536):
        for x in (row, row**2 - 1):
            scale = math.sqrt(len(row) - lag) * (x**2).mean()
            assert abs(float(x[lag:] @ x[:-lag])) / scale < 5, lag


@settings(max_examples=50, deadline=None)
@given(
    nodes=st.lists(st.integers(0, 7), min_size=1, max_size=6),
    length=st.one_of(st.integers(0, 700), st.sampled_from([32_768, 65_536, 65_537, 131_073])),
    cut=st.floats(0, 1),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_a_row_is_bitwise_the_same_in_any_stack_and_of_any_length(
    nodes: list[int], length: int, cut: float, dtype: torch.dtype, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    totals = torch.randn(len(nodes), length, generator=draw, dtype=dtype)
    stds = [0.5 + 0.3 * node for node in nodes]
    stack = add_normal(totals.clone(), stds, KEYS, nodes, "noise", 6)
    prefix = int(cut * length)
    for i, node in enumerate(nodes):
        alone = totals[i : i + 1, :prefix].clone()
        add_normal(alone, [stds[i]], KEYS.subset([node]), [node], "noise", 6)
        assert torch.equal(stack[i, :prefix], alone[0])


@pytest.mark.usefixtures("_restore_threads")
def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ones = torch.ones(2, 70_001)
    torch.set_num_threads(1)
    alone = add_normal(ones.clone(), [1.0, 1.0], KEYS, range(2), "noise", 8)
    torch.set_num_threads(3)
    monkeypatch.setattr(lattice, "_THREAD_VALUES", 1 << 10)
    assert lattice.Pieces.of(2, 70_001).pairs < 35_000  # even rows are shared
    shared = add_normal(ones.clone(), [1.0, 1.0], KEYS, range(2), "noise", 8)
    assert torch.equal(shared, alone)


def test_both_precisions_get_the_same_noise() -> None:
    single = noised(torch.full((50_000,), 0.25), 3.0)
    double = noised(torch.full((50_000,), 0.25, dtype=torch.float64), 3.0)
    assert torch.equal(single.double(), double)


def test_totals_of_any_layout_are_noised_in_place() -> None:
    expected = add_normal(torch.ones(2, 300), [1.0, 2.0], KEYS, [1, 4], "noise", 2)
    columns = torch.ones(300, 4)
    add_normal(columns.t()[1:3], [1.0, 2.0], KEYS, [1, 4], "noise", 2)
    assert torch.equal(columns[:, 1:3].t(), expected)
    assert bool((columns[:, [0, 3]] == 1).all())
    assert add_normal(torch.ones(0, 7), [], KEYS, [], "noise", 2).shape == (0, 7)


def test_the_noise_is_the_plain_normals_up_to_the_lattice() -> None:
    drawn = normal(KEYS, [6], "noise", 5, 100_000, dtype=torch.float64)[0]
    sample = noised(torch.zeros(100_000, dtype=torch.float64), 0.9, node=6, step=5)
    assert float((sample - 0.9 * drawn).abs().max()) <= spacing(0.9) / 2 * (1 + 1e-9)


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf, 1e-200])
def test_unusable_deviations_are_refused(std: float) -> None:
    with pytest.raises(InputError, match="standard deviation"):
        add_normal(torch.zeros(1, 3), [std], KEYS, [0], "noise", 0)


def test_unusable_totals_are_refused() -> None:
    for total, stds in [(torch.zeros(2, 3), [1.0]), (torch.zeros(1, 3), [1.0, 1.0])]:
        with pytest.raises(InputError, match="total"):
            add_normal(total, stds, KEYS, [0], "noise", 0)
    with pytest.raises(InputError, match="total"):
        add_normal(torch.zeros(1), [1.0], KEYS, [0], "noise", 0)
    with pytest.raises(InputError, match="float32 or float64"):
        add_normal(torch.zeros(1, 3, dtype=torch.float16), [1.0], KEYS, [0], "noise", 0)
    with pytest.raises(InputError, match="node = 8"):
        add_normal(torch.zeros(1, 3), [1.0], KEYS, [8], "noise", 0)


# The release on a device, run on the host's own: lattice points equal those of the host's way.
DEVICE_KEYS = seeded_keys(78, range(6))


def on_device(
    total: torch.Tensor, stds: list[float], monkeypatch: pytest.MonkeyPatch, step: int = 3
) -> torch.Tensor:
    """What a device would release, had it the arithmetic of this processor."""
    released = total.clone()
    with monkeypatch.context() as patch:
        patch.setattr(gaussian, "_DEVICE_TYPES", frozenset({"cpu"}))
        assert add_normal(released, stds, DEVICE_KEYS, range(len(stds)), "noise", step) is released
    return released


def on_host(total: torch.Tensor, stds: list[float], step: int = 3) -> torch.Tensor:
    return add_normal(total.clone(), stds, DEVICE_KEYS, range(len(stds)), "noise", step)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_million_values_on_a_device_are_those_of_the_host(
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
def test_pieces_and_strips_on_a_device_make_the_same_rows(
    dtype: torch.dtype, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gaussian, "_DEVICE_PAIRS", 256)
    monkeypatch.setattr(gaussian, "_STRIP_PAIRS", 100)
    total = torch.ones(5, length, dtype=dtype)
    stds = [0.5, 1e-60, 1.0, 1e60, 7.0]
    if dtype == torch.float32:
        stds = [0.5, 1e-20, 1.0, 1e20, 7.0]
    assert torch.equal(on_device(total, stds, monkeypatch), on_host(total, stds))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extreme_words_on_a_device_are_those_of_the_host(
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


def test_what_is_not_finite_on_a_device_stays_so_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    total = torch.zeros(1, 2_000)
    plain = on_device(total, [2.0], monkeypatch)
    for odd_one in (math.inf, -math.inf, math.nan, 1e30):
        total[0, 7] = odd_one
        released = on_device(total, [2.0], monkeypatch)
        rest = torch.arange(2_000) != 7
        assert torch.equal(released[0, rest], plain[0, rest])
        assert math.isfinite(released[0, 7].item()) == math.isfinite(odd_one)


def test_views_on_a_device_are_noised_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = torch.ones(300, 4)
    with monkeypatch.context() as patch:
        patch.setattr(gaussian, "_DEVICE_TYPES", frozenset({"cpu"}))
        add_normal(columns.t()[1:3], [1.0, 2.0], DEVICE_KEYS, [1, 4], "noise", 2)
    expected = add_normal(torch.ones(2, 300), [1.0, 2.0], DEVICE_KEYS, [1, 4], "noise", 2)
    assert torch.equal(columns[:, 1:3].t(), expected)
    assert bool((columns[:, [0, 3]] == 1).all())
