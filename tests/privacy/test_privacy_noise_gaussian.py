"""The release: exact lattice points against big arithmetic, their law, and what they depend on."""

import math
import threading
from itertools import combinations

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from plain_noise import exact_normal, normals, words_of
from tacit.errors import InputError
from tacit.privacy.noise import gaussian, lattice
from tacit.privacy.noise.draws import NodeKeys, keystream, position, seeded_keys
from tacit.privacy.noise.gaussian import add_normal, careful_normals, spacing, uniform
from tacit.privacy.noise.independent import GAUSSIAN, LAPLACE
from tacit.privacy.noise.lattice import GROUP_PAIRS, Offsets, Pieces, over_pieces, over_rows

KEYS = seeded_keys(77, range(8))
DTYPES = [torch.float32, torch.float64]
TOP, TOP_BITS = (1 << 32) - 1, (1 << 64) - 1


@pytest.fixture
def _restore_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def bits(values):
    """What a tensor holds, the signs of zeros included."""
    return values.numpy().tobytes()


def noised(total, std, *, node=0, step=0):
    """One row, noised; the argument is kept."""
    row = total.clone().unsqueeze(0)
    assert add_normal(row, [std], KEYS, [node], "noise", step) is row
    return row[0]


def carefully(total, std, *, node=0, step=0, offsets=None):
    """What `noised` makes of a row, every value of it computed with care."""
    rows = total.clone().unsqueeze(0)
    source = gaussian._Source(KEYS, (node,), "noise", position(step, 0))
    drawn = words_of(KEYS, node, "noise", step, len(total))
    room = gaussian._Room(lattice.Pieces.of(1, len(total)))
    room.count = len(total)
    room.left = np.stack([np.zeros(len(total), np.int64), np.arange(len(total))], axis=1)
    room.left_words = np.stack([drawn.word, drawn.angle], axis=1)
    added = None if offsets is None else offsets.points.numpy()
    gaussian._settle(rows.numpy(), added, gaussian._Lattice.of([std], offsets), source, room)
    return rows[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("std", "size"), [(0.7312, 50.0), (64.0, 1e-3), (1e-9, 1e3), (3e7, 0.0)])
def test_releases_are_the_lattice_points_of_exact_sums(dtype, std, size):
    d = 301
    total = size * torch.randn(d, generator=torch.Generator().manual_seed(1), dtype=dtype)
    sample = noised(total, std, node=1, step=4).tolist()
    drawn = words_of(KEYS, 1, "noise", 4, d)
    step = spacing(std)
    with mpmath.workdps(60):
        for j, (word, angle, *bits, second, _) in enumerate(zip(*map(list, drawn), strict=True)):
            x = exact_normal(int(word), int(angle), tuple(map(int, bits)), bool(second))
            point = mpmath.nint((mpmath.mpf(total[j].item()) + mpmath.mpf(std) * x) / step) * step
            assert sample[j] == torch.tensor(float(point), dtype=dtype).item()


def use_words(words, bits, monkeypatch):
    """Make the streams of noise those of given pairs of words, all with the same further bits."""
    read = NodeKeys.read
    groups = -(-len(words) // 32)
    stream = np.full((groups, 2, 32), 1 << 30, "<u4")
    for pair, (word, angle) in enumerate(words):
        stream[pair // 32, :, pair % 32] = word, angle
    more = np.array(bits, "<u8").tobytes()

    def given(keys, node, purpose, counter, zeros, buffer):
        if purpose == "noise":
            buffer[: len(zeros)] = stream.tobytes()[: len(zeros)].ljust(len(zeros), b"\x40")
        elif purpose == "noise, more bits":
            buffer[: len(zeros)] = more * (len(zeros) // 16)
        else:
            read(keys, node, purpose, counter, zeros, buffer)

    def blocks(keys, node, purpose, counters):
        return np.frombuffer(more * len(counters), np.uint8).reshape(-1, 16)

    monkeypatch.setattr(NodeKeys, "read", given)
    monkeypatch.setattr(NodeKeys, "blocks", blocks)


# h = 0 with every pair of flags; both sides of what the loop leaves to care, of one half, and ends.
CORNERS = [*range(9), (1 << 19) - 1, 1 << 19, (1 << 19) + 5, 0xB504F333, 0xB504F337]
CORNERS += [(1 << 31) - 1, 1 << 31, (1 << 31) + 6, TOP - 8, TOP - 3, TOP - 2, TOP - 1, TOP]
ANGLES = [0, 1, 1 << 31, (1 << 31) - 1, (1 << 31) + 1, TOP, 0x1234_5678]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bits", [(0, 0), (TOP_BITS, TOP_BITS), (1 << 63, 12345)], ids=str)
def test_extreme_words_are_computed_with_care(dtype, bits, monkeypatch):
    pairs = [(word, angle) for word in CORNERS for angle in ANGLES]
    tails = [
        int.from_bytes(keystream(KEYS, 2, "noise, tails", 9, 64 * (pair + 1)).tobytes()[-64:])
        for pair in range(len(pairs))
    ]
    use_words(pairs, bits, monkeypatch)
    std, values = 1.9, 2 * 32 * -(-len(pairs) // 32)
    sample = noised(torch.zeros(values, dtype=dtype), std, node=2, step=9).tolist()
    with mpmath.workdps(200):
        for pair, (word, angle) in enumerate(pairs):
            for second in (False, True):
                exact = exact_normal(word, angle, bits, second, tails[pair])
                exact *= mpmath.mpf(std) / spacing(std)
                assert abs(abs(exact - mpmath.nint(exact)) - 0.5) > 1e-9  # no midpoint is near
                column = pair // 32 * 64 + pair % 32 + 32 * second
                assert sample[column] == float(mpmath.nint(exact)) * spacing(std)


def test_careful_normals_err_as_little_as_the_bound_assumes():
    rng = np.random.default_rng(3)
    word = np.concatenate([
        rng.integers(0, TOP, 600),
        rng.integers(4, 1 << 20, 200),
        TOP - (rng.integers(0, TOP, 300) >> rng.integers(1, 32, 300)),
    ]).astype(np.uint32)  # fmt: skip
    angle = rng.integers(0, TOP, len(word)).astype(np.uint32)
    angle[::9] = angle[::9] >> rng.integers(1, 32, len(angle[::9])).astype(np.uint32)
    more = rng.integers(0, TOP_BITS, (len(word), 2), dtype=np.uint64)
    more[::7] = 0
    for second in (False, True):
        found = careful_normals(
            uniform(word, more[:, 0]), word, angle, more, np.full(len(word), second)
        )
        with mpmath.workdps(60):
            for i in range(len(word)):
                bits = (int(more[i, 0]), int(more[i, 1]))
                exact = exact_normal(int(word[i]), int(angle[i]), bits, second)
                radius = exact_normal(int(word[i]) & ~3, 0, bits, False)
                assert abs(mpmath.mpf(found[i].item()) - exact) <= 4.2 * 2.0**-50 * radius


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("std", [0.3, 2.0**-90])
@pytest.mark.parametrize("size", [0.0, 1.0, 20.0, 1e5])
def test_both_fast_ways_find_what_care_finds(dtype, std, size):
    """In single precision where sums are small enough, else in double precision."""
    draw = torch.Generator().manual_seed(2)
    total = (std * size * torch.randn(60_001, generator=draw, dtype=torch.float64)).to(dtype)
    assert bits(noised(total, std)) == bits(carefully(total, std))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("points", [2.0**11 - 300, 2.0**11, 2.0**34 - 1e4, 2.0**34])
def test_totals_at_the_borders_of_the_fast_ways_are_settled(dtype, points):
    """Where their arithmetic is coarsest: totals just below and above the largest they take."""
    std = 1.99
    draw = torch.Generator().manual_seed(3)
    offsets = torch.randn(60_001, generator=draw, dtype=torch.float64)
    total = ((points + 100 * offsets) * spacing(std)).to(dtype)
    for signed in (total, -total):
        assert bits(noised(signed, std, step=11)) == bits(carefully(signed, std, step=11))


@settings(max_examples=100)
@given(std=st.floats(1e-100, 1e100))
def test_the_lattice_depends_on_the_deviation_alone(std):
    step = spacing(std)
    assert math.frexp(step)[0] == 0.5
    assert 64 <= std / step < 128


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_low_bits_say_nothing_of_the_total(dtype):
    std, d = 1.0, 20_000
    step = spacing(std)
    # Floating-point noise alone gives such totals away: sums with the larger one are coarser.
    totals = [torch.full((d,), value, dtype=dtype) for value in (1e-7, math.pi * 1000)]
    draws = torch.from_numpy(normals(KEYS, 0, "noise", 0, d)).to(dtype)
    finer = [int((((total + draws) / 2.0**-18) % 1 != 0).sum()) for total in totals]
    assert finer[0] > 0.5 * d
    assert dtype != torch.float32 or finer[1] == 0
    for total in totals:
        assert not bool(((noised(total, std) / step) % 1).any())


@pytest.mark.parametrize("offset", [0.0, 0.49, -0.3])
def test_a_million_releases_follow_the_rounded_gaussian(offset):
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


def test_the_first_four_moments_are_those_of_noise_and_rounding():
    total = torch.zeros(4, 250_000, dtype=torch.float64)
    add_normal(total, [1.0] * 4, KEYS, [0, 3, 5, 6], "noise", 8)
    values, n, step = total.flatten().numpy(), 1_000_000, spacing(1.0)
    second, fourth = 1 + step**2 / 12, 3 + step**2 / 2
    for order, mean, variance in [(1, 0, 1), (2, second, 2), (3, 0, 15), (4, fourth, 96)]:
        score = ((values**order).mean() - mean) / math.sqrt(variance / n)
        assert abs(score) < 4.5, f"moment {order}"


def test_tails_have_their_mass_on_both_sides():
    total = torch.zeros(8, 1_000_000)
    add_normal(total, [1.0] * 8, KEYS, range(8), "noise", 1)
    step = spacing(1.0)
    for sigmas in (3.0, 4.5, 5.0):
        mass = stats.norm.sf(sigmas - step / 2)  # what is rounded to `sigmas` and beyond
        for tail in (total >= sigmas, total <= -sigmas):
            low, high = stats.binom.interval(1 - 1e-6, total.numel(), mass)
            assert low <= int(tail.sum()) <= high


def test_releases_at_different_positions_are_uncorrelated():
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


def test_coordinates_of_a_release_are_uncorrelated():
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
def test_a_row_is_bitwise_the_same_in_any_stack_and_of_any_length(nodes, length, cut, dtype, seed):
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
def test_threads_change_nothing(monkeypatch):
    ones = torch.ones(2, 70_001)
    torch.set_num_threads(1)
    alone = add_normal(ones.clone(), [1.0, 1.0], KEYS, range(2), "noise", 8)
    torch.set_num_threads(3)
    monkeypatch.setattr(lattice, "_THREAD_VALUES", 1 << 10)
    assert lattice.Pieces.of(2, 70_001).pairs < 35_000  # even rows are shared
    shared = add_normal(ones.clone(), [1.0, 1.0], KEYS, range(2), "noise", 8)
    assert torch.equal(shared, alone)


def test_both_precisions_get_the_same_noise():
    single = noised(torch.full((50_000,), 0.25), 3.0)
    double = noised(torch.full((50_000,), 0.25, dtype=torch.float64), 3.0)
    assert torch.equal(single.double(), double)


def test_totals_of_any_layout_are_noised_in_place():
    expected = add_normal(torch.ones(2, 300), [1.0, 2.0], KEYS, [1, 4], "noise", 2)
    columns = torch.ones(300, 4)
    add_normal(columns.t()[1:3], [1.0, 2.0], KEYS, [1, 4], "noise", 2)
    assert torch.equal(columns[:, 1:3].t(), expected)
    assert bool((columns[:, [0, 3]] == 1).all())
    assert add_normal(torch.ones(0, 7), [], KEYS, [], "noise", 2).shape == (0, 7)


def test_the_noise_is_the_plain_normals_up_to_the_lattice():
    drawn = torch.from_numpy(normals(KEYS, 6, "noise", 5, 100_000))
    sample = noised(torch.zeros(100_000, dtype=torch.float64), 0.9, node=6, step=5)
    assert float((sample - 0.9 * drawn).abs().max()) <= spacing(0.9) / 2 * (1 + 1e-9)


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf, 1e-200])
def test_unusable_deviations_are_refused(std):
    with pytest.raises(InputError, match="standard deviation"):
        add_normal(torch.zeros(1, 3), [std], KEYS, [0], "noise", 0)


def test_unusable_totals_are_refused():
    for total, stds in [(torch.zeros(2, 3), [1.0]), (torch.zeros(1, 3), [1.0, 1.0])]:
        with pytest.raises(InputError, match="total"):
            add_normal(total, stds, KEYS, [0], "noise", 0)
    with pytest.raises(InputError, match="total"):
        add_normal(torch.zeros(1), [1.0], KEYS, [0], "noise", 0)
    with pytest.raises(InputError, match="float32 or float64"):
        add_normal(torch.zeros(1, 3, dtype=torch.float16), [1.0], KEYS, [0], "noise", 0)
    with pytest.raises(InputError, match="node = 8"):
        add_normal(torch.zeros(1, 3), [1.0], KEYS, [8], "noise", 0)


# Offsets: what is added to the exact sum beside the noise.
SIZES = [0.0, 1.0, 1e-30, 3e4, 5e12]


def offset(points, unit):
    """Of one row."""
    return Offsets(points.to(torch.int32).unsqueeze(0), (unit,))


def moved(total, offsets, std):
    """A row, noised with offsets; and likewise with care for every value."""
    rows = total.clone().unsqueeze(0)
    add_normal(rows, [std], KEYS, [1], "noise", 4, offsets=offsets)
    expected = carefully(total, std, node=1, step=4, offsets=offsets)
    assert bits(rows[0]) == bits(expected)
    return rows[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("std", "unit"), [(0.7312, 0.0371), (2.0**-90, 1e-29), (3.0, 1.0 / 3.0)])
def test_releases_with_offsets_are_the_lattice_points_of_exact_sums(dtype, size, std, unit):
    d = 61
    draw = torch.Generator().manual_seed(2)
    total = std * size * torch.randn(d, generator=draw, dtype=dtype)
    points = (2000.0 * torch.randn(d, generator=draw)).round()
    points[:6] = torch.tensor([0.0, 1.0, -1.0, 2.0**19 + 1, -(2.0**18) - 3, 2.0**20 - 1])
    released = moved(total, offset(points, unit), std).tolist()
    drawn = words_of(KEYS, 1, "noise", 4, d)
    step = spacing(std)
    with mpmath.workdps(60):
        for j, (word, angle, *found, second, _) in enumerate(zip(*map(list, drawn), strict=True)):
            x = exact_normal(int(word), int(angle), tuple(map(int, found)), bool(second))
            exact = mpmath.mpf(total[j].item()) + int(points[j]) * mpmath.mpf(unit)
            point = mpmath.nint((exact + mpmath.mpf(std) * x) / step) * step
            assert released[j] == torch.tensor(float(point), dtype=dtype).item()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("unit", [0.0, 0.37])
def test_fast_ways_with_offsets_find_what_care_finds(dtype, unit):
    """Half a million values against care for every one."""
    draw = torch.Generator().manual_seed(3)
    total = 30.0 * torch.randn(500_001, generator=draw, dtype=dtype)
    points = (300.0 * torch.randn(500_001, generator=draw)).round()
    found = moved(total, offset(points, unit), 1.3)
    if unit == 0.0:
        plain = add_normal(total.clone().unsqueeze(0), [1.3], KEYS, [1], "noise", 4)[0]
        assert bits(found) == bits(plain)


def test_a_large_offset_takes_no_low_bits_from_the_total():
    # Sums that lie next to the middle between two points, less than a rounding of the offset away.
    step, d = spacing(1.0), 300
    exact = torch.tensor(normals(KEYS, 1, "noise", 4, d)) / step
    total = ((torch.round(exact) + 0.5 - exact) * step).unsqueeze(0)
    offsets = offset(torch.full((d,), 1 << 20), 32.0 * step)
    for shift in (-(2.0**-35), 2.0**-35):
        shifted = total + shift * step
        plain = add_normal(shifted.clone(), [1.0], KEYS, [1], "noise", 4)
        found = add_normal(shifted.clone(), [1.0], KEYS, [1], "noise", 4, offsets=offsets)
        assert torch.equal(plain[0] / step, torch.round(exact) + (shift > 0))
        assert torch.equal(found - offsets.dense(), plain)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_not_finite_stays_so_alone_with_offsets(dtype):
    total, offsets = torch.zeros(900, dtype=dtype), offset(torch.full((900,), 11), 0.3)
    plain = moved(total, offsets, 2.0)
    rest = torch.arange(900) != 7
    for odd_one in (math.inf, -math.inf, math.nan, 1e30):
        total[7] = odd_one
        row = total.clone().unsqueeze(0)
        add_normal(row, [2.0], KEYS, [1], "noise", 4, offsets=offsets)
        assert torch.equal(row[0, rest], plain[rest])
        assert math.isfinite(row[0, 7].item()) == math.isfinite(odd_one)


def test_unusable_offsets_are_refused():
    total = torch.zeros(1, 3)
    good = torch.zeros(1, 3, dtype=torch.int32)
    for points, units in (
        (good.double(), (1.0,)),
        (good[:, :2], (1.0,)),
        (good[0], (1.0,)),
        (good, (1.0, 1.0)),
    ):
        with pytest.raises(InputError, match="offsets"):
            add_normal(total, [1.0], KEYS, [0], "noise", 0, offsets=Offsets(points, units))


@pytest.mark.parametrize(
    ("points", "unit"), [(1 << 20, 64 * spacing(1.0)), ((1 << 24) + 1, 1e-9), (1, math.inf)]
)
def test_offsets_that_are_too_large_release_nothing(points, unit):
    offsets = offset(torch.tensor([0, points, 0]), unit)
    with pytest.raises(InputError, match="offsets = 'one is larger'"):
        add_normal(torch.zeros(1, 3), [1.0], KEYS, [0], "noise", 0, offsets=offsets)


def test_laplace_noise_refuses_offsets():
    rows, offsets = torch.zeros(1, 3), offset(torch.zeros(3), 1.0)
    with pytest.raises(InputError, match="laplace noise is not proved to cancel"):
        LAPLACE.add(rows, [1.0], KEYS, [0], 0, part=0, offsets=offsets)
    assert not rows.any()
    found = GAUSSIAN.add(rows.clone(), [1.0], KEYS, [0], 0, part=0, offsets=offsets)
    assert torch.equal(found, GAUSSIAN.add(rows.clone(), [1.0], KEYS, [0], 0, part=0))


# How rows are cut into pieces, and shared among threads.


@pytest.fixture
def _three_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(threads)


@given(
    rows=st.integers(0, 40),
    length=st.integers(0, 3_000),
    most=st.sampled_from([32, 64, 500, 1 << 14]),
)
def test_pieces_are_contiguous_groups_that_cover_each_value_once(rows, length, most):
    pieces = Pieces.of(rows, length, most)
    values = np.zeros((rows, length), np.int64)
    for place in pieces.places():
        piece = values[place]
        piece += 1
        assert piece.flags.c_contiguous
        assert piece.shape[0] <= pieces.height
        assert piece.shape[1] <= 2 * pieces.pairs
        assert place[1].start % (2 * GROUP_PAIRS) == 0
    assert (values == 1).all()
    assert pieces.pairs % GROUP_PAIRS == 0
    assert pieces.pairs <= max(most, GROUP_PAIRS)


@pytest.mark.usefixtures("_three_threads")
def test_threads_share_the_pieces_and_the_rows(monkeypatch):
    monkeypatch.setattr(lattice, "_THREAD_VALUES", 1)
    monkeypatch.setattr(lattice, "_SHARED_VALUES", 1)
    begun = threading.Barrier(3, timeout=30)
    values = np.zeros((9, 640))

    def of_pieces(places):
        begun.wait()
        for place in places:
            values[place] += 1

    over_pieces(Pieces.of(9, 640, 64), of_pieces)

    def of_rows(rows):
        begun.wait()
        values[rows.start : rows.stop] += 1

    over_rows(9, 640, of_rows)
    assert (values == 2).all()


def test_an_error_in_a_thread_is_not_lost(monkeypatch):
    def fails(places):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        over_pieces(Pieces.of(3, 100), fails)
