"""The loop of noise: its error for every word there is, and what that error can change."""

import json
import math
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import noise_process
import numba
import numpy as np
import pytest
import torch

from plain_noise import normals, words_of
from tacit.privacy.noise import fast, gaussian
from tacit.privacy.noise.draws import seeded_keys
from tacit.privacy.noise.fast import FAST_ERROR, LEAST_WORD, TOP_WORD, fast_direction, fast_radius
from tacit.privacy.noise.gaussian import add_normal, spacing

KEYS = seeded_keys(31, range(4))
SOURCE = Path(fast.__file__).parents[2]
# A scale is rounded to single precision, and two products are: each by 2^-24 relatively, at most.
ROUNDINGS = 3.001 * 2.0**-24
# Of a coordinate of a direction; that of all words is 1.387e-7.
DIRECTION_ERROR = 1.4e-7
# On a device the root is approximate: it errs by 2^-23 of it at most, and the loop's by 2^-24.
ROOT = 1.001 * (2.0**-23 + 2.0**-24)
DEVICE_ERROR = 3.75 * 2.0**-20  # of a normal: `kernels.normals.FAST_ERROR`
FIRST, LAST = LEAST_WORD >> 2, TOP_WORD >> 2
EIGHTH = math.pi / 4 * 2.0**-31


@numba.njit(nogil=True)
def radius(h):
    """The radius at the lower end of the cell of h."""
    if h < 1 << 29:
        return math.sqrt(-2.0 * math.log(h * 2.0**-30))
    return math.sqrt(-2.0 * math.log1p(-((1 << 30) - h) * 2.0**-30))


@numba.njit(nogil=True)
def worst_radius(first, last, direction):
    """The largest error of normals whose h is in a range, and whose direction errs by as much."""
    worst, before = 0.0, radius(first)
    for h in range(first, last):
        after = radius(h + 1)
        fast = np.float64(fast_radius(np.uint32(h << 2)))
        error = max(abs(fast - before), abs(fast - after)) + before * direction
        if not error < math.inf:
            return math.inf
        worst = max(worst, error)
        before = after
    return worst


@numba.njit(nogil=True)
def worst_direction(first, last):
    """The largest error of either coordinate over angles from 0 and, with a sign, below."""
    worst, sine, cosine = 0.0, math.sin(first * EIGHTH), math.cos(first * EIGHTH)
    for a in range(first, last):
        next_sine, next_cosine = math.sin((a + 1) * EIGHTH), math.cos((a + 1) * EIGHTH)
        c, s = fast_direction(np.uint32(0), np.uint32(a))
        worst = max(worst, abs(s - sine), abs(s - next_sine))
        worst = max(worst, abs(c - cosine), abs(c - next_cosine))
        # The cell of -a - 1 is that of a, mirrored: it ends where that of a begins.
        c, s = fast_direction(np.uint32(0), np.uint32(-a - 1))
        worst = max(worst, abs(-s - sine), abs(-s - next_sine))
        worst = max(worst, abs(c - cosine), abs(c - next_cosine))
        if not abs(c) + abs(s) < 2.0:
            return math.inf
        sine, cosine = next_sine, next_cosine
    return worst


def over_threads(work, first, last):
    """The largest of what is found in parts of a range."""
    bounds = [first + (last - first) * i // 16 for i in range(17)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return max(pool.map(lambda part: work(*part), pairwise(bounds)))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_no_angle_of_all_errs_by_more_than_the_bound(part):
    """Exhaustively: 2^32 angles, both ends of the cell of each.

    The polynomials are the same for all, and strict IEEE 754: so this holds on every processor, and
    on a device.
    The double precision they are compared with errs by 2^-50, which the bound has to spare.
    """
    assert over_threads(worst_direction, part << 28, (part + 1) << 28) < DIRECTION_ERROR


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_no_radius_of_all_errs_by_more_than_the_bound(part):
    """Exhaustively: the 2^30 radii, less those that are left to care, with the worst angle."""
    first, last = (FIRST + (LAST - FIRST) * end // 4 for end in (part, part + 1))
    worst = over_threads(
        lambda *ends: worst_radius(*ends, DIRECTION_ERROR + ROUNDINGS), first, last
    )
    assert worst < 0.99 * FAST_ERROR
    # A radius is below 4.25, and a root's error at most this share of it.
    assert worst + 4.25 * ROOT < 0.99 * DEVICE_ERROR


@pytest.mark.slow
def test_words_at_the_ends_and_everywhere_keep_the_bound():
    """The same for some: ends of ranges, powers of two, and a sample."""
    centres = [0, 1 << 12, 1 << 30, 1 << 31]
    direction = max(
        worst_direction(max(0, centre - 4_096), min(1 << 31, centre + 4_096)) for centre in centres
    )
    starts = np.random.default_rng(1).integers(0, (1 << 31) - 64, 4_000)
    direction = max(direction, *(worst_direction(int(a), int(a) + 64) for a in starts))
    assert 2.0**-25 < direction < DIRECTION_ERROR
    ends = [FIRST, LAST - 4_096, (1 << 29) - 2_048, round(2**29.5) - 2_048]
    ends += [(1 << power) - 2_048 for power in range(18, 30)]
    starts = np.random.default_rng(2).integers(FIRST, LAST - 64, 4_000)
    worst = max(
        *(worst_radius(h, h + 4_096, direction + ROUNDINGS) for h in ends),
        *(worst_radius(int(h), int(h) + 64, direction + ROUNDINGS) for h in starts),
    )
    assert 0.1 * FAST_ERROR < worst < 0.99 * FAST_ERROR
    assert worst + 4.25 * ROOT < 0.99 * DEVICE_ERROR


def test_flags_of_the_radius_word_make_the_whole_circle():
    quarters = [fast_direction(np.uint32(flags), np.uint32(1 << 29)) for flags in range(4)]
    cosine, sine = math.cos(math.pi / 16), math.sin(math.pi / 16)
    expected = [(cosine, sine), (-cosine, sine), (sine, cosine), (sine, -cosine)]
    np.testing.assert_allclose(quarters, expected, rtol=1e-6)


# Of sums, in lattice points: anywhere, and where single and double precision are coarsest.
SINGLE, DOUBLE = 2.0**11 - 150, 2.0**34 - 500


@pytest.mark.parametrize(
    ("dtype", "centre"),
    [(torch.float32, 0.0), (torch.float64, 0.0), (torch.float64, SINGLE), (torch.float64, DOUBLE)],
    ids=str,
)
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_fast_value_that_errs_by_the_whole_bound_changes_nothing(
    dtype, centre, sign, monkeypatch
):
    """The loop runs as Python, each of its normals as far from the true one as the bound allows.

    Most of the sums lie about as far from the middle of two lattice points as the bound, where an
    error decides.
    """
    count, std = 8_001, 0.703125  # of which single precision holds every digit
    exact = normals(KEYS, 1, "noise", 5, count)
    drawn = words_of(KEYS, 1, "noise", 5, count)
    pairs = {}
    for word, angle, second, x in zip(drawn.word, drawn.angle, drawn.second, exact, strict=True):
        pairs.setdefault((int(word), int(angle)), {})[bool(second)] = x
    rng = np.random.default_rng(7)
    step = spacing(std)
    # Close enough that the rounding of a sum decides as well, and beyond what the bound covers.
    width = rng.choice([1.02, 3.0], count) * (FAST_ERROR * std / step)
    near = centre + 0.5 + rng.uniform(-1, 1, count) * width
    totals = torch.from_numpy((rng.integers(-40, 40, count) + near) * step - std * exact)
    totals[::5] += torch.from_numpy(rng.standard_normal(len(totals[::5])))
    totals = totals.to(dtype)
    expected = add_normal(totals.clone().unsqueeze(0), [std], KEYS, [1], "noise", 5)

    def released(share):
        def wrong_direction(word, angle):
            both = pairs.get((int(word), int(angle)), {})
            return tuple(both.get(second, 0.0) + share * FAST_ERROR for second in (False, True))

        with monkeypatch.context() as patch:
            for name in ("_noise_groups", "_settled", "noise_rows"):
                patch.setattr(fast, name, getattr(fast, name).py_func)
            patch.setattr(fast, "fast_radius", lambda word: np.float64(1.0))
            patch.setattr(fast, "fast_direction", wrong_direction)
            patch.setattr(fast, "fused", lambda one, other, added: np.float32(one * other + added))
            return add_normal(totals.clone().unsqueeze(0), [std], KEYS, [1], "noise", 5)

    assert released(0.9999 * sign).numpy().tobytes() == expected.numpy().tobytes()
    wrong = released(2.5 * sign) != expected  # so the test would see an error above the bound
    assert int(wrong.sum()) > 100


def test_hardly_a_value_is_left_to_care():
    row = np.zeros((1, 640_000), np.float32)
    drawn = np.random.default_rng(5).integers(0, 1 << 32, (1, 640_000), dtype=np.uint32)
    left, words = np.zeros((640_000, 2), np.int64), np.zeros((640_000, 2), np.uint32)
    flags = np.zeros(320_000, np.uint8)
    std = 1.99
    scale = np.array([std / spacing(std)])
    count = fast.noise_rows(
        row, None, drawn, np.array([spacing(std)]), scale, np.zeros(1), flags, left, words, 0, 0, 0
    )
    assert 300 < count < 640_000 / 700


def digests_elsewhere(environment, source=SOURCE.parent):
    """What `noise_process` draws in a process of its own, with another environment."""
    code = "import json, noise_process as n; from tacit.privacy.noise.draws import seeded_keys\n"
    code += "print(json.dumps(n.digests(seeded_keys(31, range(4)), [0, 1, 2, 3])))"
    path = os.pathsep.join([str(source), str(Path(noise_process.__file__).parent)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.process
def test_a_processor_without_fused_or_wide_arithmetic_releases_the_same_bytes(tmp_path):
    plain = {
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    assert digests_elsewhere(plain) == noise_process.digests(KEYS, [0, 1, 2, 3])


@pytest.mark.process
@pytest.mark.parametrize("cached", [True, False], ids=["the user's cache", "none"])
def test_a_read_only_installation_draws_the_same_bytes(cached, tmp_path):
    """It is compiled into the user's cache, or anew where there can be none."""
    installed = tmp_path / "installed" / "tacit"
    shutil.copytree(SOURCE, installed, ignore=shutil.ignore_patterns("__pycache__"))
    # Where a file stands nobody can make a folder, not even the superuser.
    for folder in (installed, *(path for path in installed.rglob("*") if path.is_dir())):
        (folder / "__pycache__").touch()
    home = tmp_path / "cache"
    if not cached:
        home.touch()
    environment = {"XDG_CACHE_HOME": str(home), "HOME": str(home), "NUMBA_CACHE_DIR": ""}
    expected = noise_process.digests(KEYS, [0, 1, 2, 3])
    assert digests_elsewhere(environment, installed.parent) == expected
    assert bool(list(home.rglob("*.nbi"))) == cached


def test_more_bits_are_read_only_where_they_decide(monkeypatch):
    """A block for each value in doubt: few of them, whatever the totals are."""
    asked = []
    blocks = gaussian.NodeKeys.blocks

    def counted(keys, node, purpose, counters):  # type: ignore[no-untyped-def]
        asked.append(counters)
        return blocks(keys, node, purpose, counters)

    monkeypatch.setattr(gaussian.NodeKeys, "blocks", counted)
    for size in (0.0, 1.0, 1e4):
        asked.clear()
        add_normal(torch.full((1, 100_000), size), [1.0], KEYS, [0], "noise", 0)
        assert 0 < sum(map(len, asked)) < 200
