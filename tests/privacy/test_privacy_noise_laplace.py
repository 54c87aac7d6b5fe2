"""Laplace releases: points against exact arithmetic, their law, and the proof of the slack."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.errors import InputError
from tacit.privacy.noise import laplace as noise_laplace
from tacit.privacy.noise.draws import aes_ctr, seeded_keys
from tacit.privacy.noise.laplace import add_laplace, laplace_slack, laplace_spacing

KEYS = seeded_keys(78, range(8))
DTYPES = [torch.float32, torch.float64]
WORDS = 1 << 64
WIDER = 1 + Fraction(1, 1 << 63)


@pytest.fixture
def _restore_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def noised(total, scale, *, node=0, step=0):
    """One row, noised; the argument is kept."""
    row = total.clone().unsqueeze(0)
    assert add_laplace(row, [scale], KEYS, [node], "noise", step) is row
    return row[0]


def big_noise(keys, node, step, count):
    """X / b of each value, one word after the other: count is at most one chunk."""
    key = keys.purpose_key(node, "noise, Laplace")
    start = step << 80
    signs = aes_ctr(key, start, (count + 7) // 8)
    words = [[] for _ in range(count)]
    left, turn = list(range(count)), 0
    numbers = {}
    while left:
        turn += 1
        drawn = aes_ctr(key, start + (turn << 16), 32 * len(left)).view("<u8").tolist()
        for rank, j in enumerate(left):
            words[j] += drawn[4 * rank : 4 * rank + 4]
        numbers |= {j: sample for j in left if (sample := von_neumann(words[j])) is not None}
        left = [j for j in left if j not in numbers]
    sample = []
    for j in range(count):
        fraction_key = keys.purpose_key(node, "noise, Laplace fractions")
        bits = int.from_bytes(aes_ctr(fraction_key, start + 2 * j, 32).tobytes(), "big")
        size = WIDER * (numbers[j] + (bits + Fraction(1, 2)) / (1 << 256)) / WORDS
        sample.append(-size if signs[j // 8] >> (7 - j % 8) & 1 else size)
    return sample


def von_neumann(words):
    """2^64 times the failed attempts plus the word taken; None if there are too few words."""
    failed, begin = 0, 0
    while begin < len(words):
        end = begin + 1
        while end < len(words) and words[end] < words[end - 1]:
            end += 1
        if end == len(words):
            return None
        if (end - begin) % 2:  # the first word, and an even number below it
            return failed * WORDS + words[begin]
        failed, begin = failed + 1, end + 1
    return None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("scale", "size"), [(0.7312, 50.0), (64.0, 1e-3), (1e-9, 1e3), (3e7, 0.0)])
def test_releases_are_the_lattice_points_of_exact_sums(dtype, scale, size):
    d = 307
    total = size * torch.randn(d, generator=torch.Generator().manual_seed(1), dtype=dtype)
    sample = noised(total, scale, node=1, step=4).tolist()
    step = Fraction(laplace_spacing(scale))
    for j, x in enumerate(big_noise(KEYS, 1, 4, d)):
        point = round((Fraction(total[j].item()) + Fraction(scale) * x) / step)
        assert sample[j] == torch.tensor(float(point * step), dtype=dtype).item()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "setting"), [("_MARGIN", 1.0), ("_MOST_FAILED", 0)])
def test_the_fast_way_finds_what_care_finds(dtype, name, setting, monkeypatch):
    totals = torch.randn(2, 3_000, generator=torch.Generator().manual_seed(2), dtype=dtype)
    totals[:, :3] = torch.tensor([1e30, -(2.0**70), 2.0**52 + 1])
    fast = add_laplace(totals.clone(), [0.3, 9.0], KEYS, [2, 3], "noise", 1)
    monkeypatch.setattr(noise_laplace, name, setting)
    assert torch.equal(add_laplace(totals.clone(), [0.3, 9.0], KEYS, [2, 3], "noise", 1), fast)


def test_double_precision_errs_less_than_the_margin():
    """The size in lattice points as the fast way computes it, up to its largest."""
    rng = np.random.default_rng(5)
    words = rng.integers(0, WORDS, 2_000, dtype=np.uint64)
    words[:4] = [0, 1, WORDS - 1, 1 << 63]
    for failed in (0, 1, 63):
        for scale in (64.0, 100.123456789, math.nextafter(128.0, 0)):
            noise = words.astype(np.float64)
            noise *= 2.0**-64
            noise += failed
            noise *= scale
            for word, size in zip(words.tolist(), noise.tolist(), strict=True):
                exact = Fraction(scale) * WIDER * ((failed << 64) + word + 1) / WORDS
                # The sum with what is left of the total rounds once more, by 2^-40 at most.
                assert abs(Fraction(size) - exact) < Fraction(1, 1 << 38) - Fraction(1, 1 << 40)
    assert noise_laplace._MARGIN >= 2.0**-36
    assert noise_laplace._MOST_FAILED <= 64


@pytest.mark.parametrize("levels", [2, 3, 7, 16])
def test_an_even_run_has_exactly_the_probability_of_the_proof(levels):
    """All runs of words below `levels`, by exact recursion over the words, strictly descending."""
    even = [Fraction(0)] * levels
    for word in range(levels):
        # The next word stops an even run here, or goes on: then an odd number must follow it.
        even[word] = Fraction(levels - word, levels) + sum(
            (1 - even[below] for below in range(word)), Fraction(0)
        ) / levels  # fmt: skip
    assert even == [(1 - Fraction(1, levels)) ** word for word in range(levels)]


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_words_that_tie_often_still_make_an_exact_geometric_law(bits, monkeypatch):
    """Keystreams with all but the top bits of a word cleared: G is geometric in those units."""

    def coarse(key, counter, count_bytes):
        stream = aes_ctr(key, counter, count_bytes)
        if count_bytes % 32 == 0 and counter >> 16 & 0xFFFF:
            words = stream.view("<u8")
            words &= np.uint64(WORDS - (WORDS >> bits))
        return stream

    monkeypatch.setattr(noise_laplace, "aes_ctr", coarse)
    draws = [
        noise_laplace._RowDraw(KEYS.purpose_key(node, "law"), b"", 0, 1.0, 64.0) for node in (0, 1)
    ]
    failed, words = noise_laplace._geometric(draws, 0, 30_000)
    geometric = (failed << bits) + (words >> np.uint64(64 - bits)).astype(np.int64)
    assert stats.geom(2.0**-bits, loc=-1).mean() == pytest.approx(geometric.mean(), rel=0.03)
    expected = stats.geom.pmf(np.arange(1, 400), 2.0**-bits) * len(geometric)
    often = expected > 10
    counts = np.bincount(geometric, minlength=399)[:399].astype(float)
    observed = np.append(counts[often], len(geometric) - counts[often].sum())
    ideal = np.append(expected[often], len(geometric) - expected[often].sum())
    assert stats.chisquare(observed, ideal).pvalue > 1e-3


@pytest.mark.parametrize("offset", [0.0, 0.49, -0.3])
def test_releases_follow_the_rounded_laplace_law(offset):
    scale, nodes, d = 1.7, 4, 60_000
    step = laplace_spacing(scale)
    total = torch.full((nodes, d), offset * step, dtype=torch.float64)
    add_laplace(total, [scale] * nodes, KEYS, range(nodes), "noise", 3)
    points = (total / step).round().long().flatten().numpy()
    edges = (np.arange(-2000, 2001) + 0.5 - offset) * step / scale
    cells = np.diff(stats.laplace.cdf(edges))  # of the points -1999 .. 2000
    assert abs(points).max() < 1999
    counts = np.bincount(points + 1999, minlength=len(cells)).astype(float)
    often = cells * len(points) > 20
    observed = np.append(counts[often], counts[~often].sum())
    expected = np.append(cells[often], 1 - cells[often].sum()) * len(points)
    assert often.sum() > 400
    assert stats.chisquare(observed, expected).pvalue > 1e-3
    # Kolmogorov-Smirnov at the cells' borders, which is conservative.
    distance = abs(np.cumsum(counts) / len(points) - stats.laplace.cdf(edges[1:])).max()
    assert stats.kstwobign.sf(distance * math.sqrt(len(points))) > 1e-3


def test_moments_and_tails_are_those_of_laplace_noise():
    total = torch.zeros(3, 130_000, dtype=torch.float64)
    add_laplace(total, [1.0, 1.0, 1.0], KEYS, [0, 3, 5], "noise", 8)
    values, step = total.flatten().numpy(), laplace_spacing(1.0)
    n = len(values)
    moments = [(1, 0, 2), (2, 2 + step**2 / 12, 20), (3, 0, 720), (4, 24 + step**2, 40320 - 576)]
    for order, mean, variance in moments:
        score = ((values**order).mean() - mean) / math.sqrt(variance / n)
        assert abs(score) < 4.5, f"moment {order}"
    for scales in (1.0, 4.0, 8.0):
        mass = stats.laplace.sf(scales - step / 2)  # what is rounded to `scales` and beyond
        for tail in (values >= scales, values <= -scales):
            low, high = stats.binom.interval(1 - 1e-6, n, mass)
            assert low <= int(tail.sum()) <= high


def test_scales_belong_to_their_rows():
    scales = [0.01, 1.0, 300.0]
    rows = add_laplace(torch.zeros(3, 20_000), scales, KEYS, [0, 1, 2], "noise", 2)
    ratios = rows.double().abs().mean(1) / torch.tensor(scales)
    assert bool((abs(ratios - 1) < 4.5 / math.sqrt(20_000)).all())


def test_releases_at_different_positions_are_uncorrelated():
    d = 40_000
    places = [(0, "a", 0, 0), (5, "a", 0, 0), (0, "b", 0, 0), (0, "a", 1, 0), (0, "a", 0, 1)]
    draws = []
    for node, purpose, step, part in places:
        row = torch.zeros(1, d, dtype=torch.float64)
        draws.append(add_laplace(row, [1.0], KEYS, [node], purpose, step, part=part)[0].numpy())
    draws += [np.roll(draws[0], lag) for lag in (1, 2, 64, 8_192, 32_768)]
    for i, one in enumerate(draws):
        for other in draws[:i]:
            for x, y in ((one, other), (abs(one), abs(other))):
                assert abs(np.corrcoef(x, y)[0, 1]) * math.sqrt(d) < 5
    # The sign says nothing of the size.
    assert abs(np.corrcoef(np.sign(draws[0]), abs(draws[0]))[0, 1]) * math.sqrt(d) < 5


@settings(max_examples=30, deadline=None)
@given(
    nodes=st.lists(st.integers(0, 7), min_size=1, max_size=5),
    length=st.one_of(st.integers(0, 500), st.sampled_from([32_768, 32_769, 40_000])),
    cut=st.floats(0, 1),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_a_row_is_bitwise_the_same_in_any_stack_and_of_any_length(nodes, length, cut, dtype, seed):
    draw = torch.Generator().manual_seed(seed)
    totals = torch.randn(len(nodes), length, generator=draw, dtype=dtype)
    scales = [0.5 + 0.3 * node for node in nodes]
    stack = add_laplace(totals.clone(), scales, KEYS, nodes, "noise", 6)
    prefix = int(cut * length)
    i = seed % len(nodes)
    alone = totals[i : i + 1, :prefix].clone()
    add_laplace(alone, [scales[i]], KEYS.subset([nodes[i]]), [nodes[i]], "noise", 6)
    assert torch.equal(stack[i, :prefix], alone[0])


@pytest.mark.usefixtures("_restore_threads")
def test_threads_change_nothing():
    torch.set_num_threads(1)
    alone = add_laplace(torch.ones(5, 20_001), [1.0] * 5, KEYS, range(5), "noise", 8)
    torch.set_num_threads(3)
    shared = add_laplace(torch.ones(5, 20_001), [1.0] * 5, KEYS, range(5), "noise", 8)
    assert torch.equal(shared, alone)


def test_both_precisions_get_the_same_noise():
    single = noised(torch.full((20_000,), 0.25), 3.0)
    double = noised(torch.full((20_000,), 0.25, dtype=torch.float64), 3.0)
    assert torch.equal(single.double(), double)


@settings(max_examples=100)
@given(scale=st.floats(1e-100, 1e100))
def test_the_lattice_depends_on_the_scale_alone(scale):
    step = laplace_spacing(scale)
    assert math.frexp(step)[0] == 0.5
    assert 64 <= scale / step < 128


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_low_bits_say_nothing_of_the_total(dtype):
    for total in (1e-7, math.pi * 1000, -1 / 3):
        points = noised(torch.full((5_000,), total, dtype=dtype), 1.0) / laplace_spacing(1.0)
        assert not bool((points % 1).any())


def test_totals_of_any_layout_are_noised_in_place():
    expected = add_laplace(torch.ones(2, 300), [1.0, 2.0], KEYS, [1, 4], "noise", 2)
    columns = torch.ones(300, 4)
    add_laplace(columns.t()[1:3], [1.0, 2.0], KEYS, [1, 4], "noise", 2)
    assert torch.equal(columns[:, 1:3].t(), expected)
    assert bool((columns[:, [0, 3]] == 1).all())
    assert add_laplace(torch.ones(0, 7), [], KEYS, [], "noise", 2).shape == (0, 7)
    assert add_laplace(torch.ones(2, 0), [1.0, 1.0], KEYS, [0, 1], "noise", 2).shape == (2, 0)


def test_totals_that_are_not_finite_do_not_spoil_others(monkeypatch):
    monkeypatch.setattr(noise_laplace, "_MOST_FAILED", 0)
    plain = noised(torch.zeros(500), 2.0)
    rest = torch.arange(500) != 17
    for odd_one in (math.inf, -math.inf, math.nan):
        total = torch.zeros(500)
        total[17] = odd_one
        sample = noised(total, 2.0)
        assert torch.equal(sample[rest], plain[rest])
        assert not math.isfinite(sample[17].item())


def run_law(size):
    """P(G + F <= size) of what runs: G geometric, F uniform on 2^256 midpoints."""
    if size <= 0:
        return mpmath.mpf(0)
    ratio = 1 - mpmath.mpf(1) / WORDS
    whole = mpmath.floor(size)
    cells = mpmath.floor((size - whole) * 2**256 + mpmath.mpf(1) / 2) / 2**256
    return 1 - ratio**whole + ratio**whole * cells / WORDS


@pytest.mark.parametrize("scale", [64.0, 91.7, math.nextafter(128.0, 0)])
def test_every_lattice_point_has_its_ideal_probability_within_the_bound(scale):
    with mpmath.workdps(200):
        unit = mpmath.mpf(scale) * (1 + mpmath.mpf(2) ** -63) / WORDS  # a cell, in lattice points
        rate = -mpmath.log(1 - mpmath.mpf(1) / WORDS)
        rng = np.random.default_rng(6)
        largest = mpmath.mpf(0)
        for offset in [0.0, 0.5, 1e-19, *rng.uniform(-0.5, 0.5, 12).tolist()]:
            for point in (0, 1, -1, 7, -130, 4_000, 20_000):
                low, high = (mpmath.mpf(point) - offset + side / 2 for side in (-1, 1))
                parts = [(low, high), (-high, -low)]  # of the positive and the negative sign
                probability = (
                    sum(run_law(high / unit) - run_law(low / unit) for low, high in parts) / 2
                )
                ideal = sum(
                    mpmath.exp(-rate * max(low, 0) / unit) - mpmath.exp(-rate * max(high, 0) / unit)
                    for low, high in parts
                ) / 2  # fmt: skip
                largest = max(largest, abs(mpmath.log(probability / ideal)))
        assert 0 < largest <= mpmath.mpf(2) ** -117


def test_the_noise_is_never_narrower_than_asked():
    with mpmath.workdps(80):
        rate = -mpmath.log(1 - mpmath.mpf(1) / WORDS)
        assert noise_laplace._WIDER == WIDER
        wider = (1 + mpmath.mpf(2) ** -63) / (WORDS * rate)
        assert 1 <= wider <= 1 + mpmath.mpf(2) ** -63
        # Laplace(b') is Laplace(b) plus an independent variable: by characteristic functions.
        for t in (0.1, 1.0, 30.0):
            stay = wider**-2
            mixture = stay + (1 - stay) / (1 + (wider * t) ** 2)
            assert abs(mixture / (1 + mpmath.mpf(t) ** 2) - 1 / (1 + (wider * t) ** 2)) < 1e-70


def test_the_slack_is_nothing_beside_any_epsilon():
    assert laplace_slack(0).epsilon == 0.0
    own = laplace_slack(10**9)
    assert own.delta == 0.0
    assert 1e9 * 2.0**-117 < own.epsilon < 1e-25
    assert laplace_slack(1 << 60).epsilon < 1e-16
    assert own.total_epsilon(1.0) == math.nextafter(1.0, 2.0)
    assert own.total_delta(1.0, 0.0) == 0.0
    assert 1e-5 <= own.total_delta(1.0, 1e-5) < 1.0000001e-5
    for values in (-1, (1 << 60) + 1):
        with pytest.raises(InputError, match="values"):
            laplace_slack(values)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 1e-200])
def test_unusable_scales_are_refused(scale):
    with pytest.raises(InputError, match="scale of Laplace noise"):
        add_laplace(torch.zeros(1, 3), [scale], KEYS, [0], "noise", 0)


def test_unusable_totals_are_refused():
    for total, scales in [(torch.zeros(2, 3), [1.0]), (torch.zeros(1, 3), [1.0, 1.0])]:
        with pytest.raises(InputError, match="total"):
            add_laplace(total, scales, KEYS, [0], "noise", 0)
    with pytest.raises(InputError, match="total"):
        add_laplace(torch.zeros(1), [1.0], KEYS, [0], "noise", 0)
    with pytest.raises(InputError, match="float32 or float64"):
        add_laplace(torch.zeros(1, 3, dtype=torch.float16), [1.0], KEYS, [0], "noise", 0)
    with pytest.raises(InputError, match="node = 8"):
        add_laplace(torch.zeros(1, 3), [1.0], KEYS, [8], "noise", 0)
    with pytest.raises(InputError, match="step"):
        add_laplace(torch.zeros(1, 3), [1.0], KEYS, [0], "noise", -1)
