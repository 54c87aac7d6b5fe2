"""Noise on a lattice against continuous noise: the lemma of `docs/proofs/pairwise-noise.md`.

The law of what is seen, with pair noise on a lattice, is summed point by point; without, it is
integrated in closed form. All of it is in many digits.
"""

from itertools import product

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from tacit.privacy.noise.slack import slack

DIGITS = 60
LEAST = 3.6  # v over the spacing's square, from which rounding costs nothing


def bound(ratio):
    """What the lemma allows, relatively, where v is so many squares of the spacing."""
    return 2 * mp.nsum(lambda m: mp.exp(-2 * mp.pi**2 * m**2 * ratio), [1, 60])


def precision(b, own, factors):
    """1 / v of a pair whose noise has deviation b, seen through the own noise of its ends."""
    ends = zip(map(mp.mpf, own), map(mp.mpf, factors), strict=True)
    return 1 / mp.mpf(b) ** 2 + sum(c**2 / a**2 for a, c in ends)


def rounded(k, ratio):
    """The chance of the lattice point k of a normal that is rounded, of so many points."""
    half = mp.mpf("0.5")
    return mp.ncdf((k + half) / ratio) - mp.ncdf((k - half) / ratio)


def discrete(k, ratio):
    """The chance of the lattice point k of a discrete normal of so many points a deviation."""
    return mp.npdf(k, 0, ratio) / mp.jtheta(3, 0, mp.exp(-2 * (mp.pi * ratio) ** 2))


LAWS = {"rounded": rounded, "discrete": discrete}


def lattice_law(law, y, b, t, own, factors):
    """Density at y of own noise plus factors times a pair's noise on a lattice."""
    seen = [
        (mp.mpf(at) / c, abs(a / c)) for at, a, c in zip(map(mp.mpf, y), own, factors, strict=True)
    ]
    low = max(at - 22 * width for at, width in seen)
    high = min(at + 22 * width for at, width in seen)
    total = mp.mpf(0)
    for k in range(int(mp.floor(low / t)), int(mp.ceil(high / t)) + 1):
        cell = LAWS[law](k, mp.mpf(b) / t)
        for at, a, c in zip(y, own, factors, strict=True):
            cell *= mp.npdf(mp.mpf(at), c * k * t, a)
        total += cell
    return total


def smooth_law(law, y, b, t, own, factors):
    """The same with b x in place of a discrete normal, b x + U for one that was rounded."""
    count = len(y)
    sigma = mp.matrix(count)
    for i, j in product(range(count), repeat=2):
        sigma[i, j] = factors[i] * factors[j] * mp.mpf(b) ** 2
        sigma[i, j] += mp.mpf(own[i]) ** 2 if i == j else 0
    inverse = sigma**-1
    at, along = mp.matrix(list(map(mp.mpf, y))), mp.matrix(list(map(mp.mpf, factors)))

    def form(left, right):
        return (left.T * inverse * right)[0]

    square, cross = form(along, along), form(along, at)
    rest = mp.exp(-form(at, at) / 2) / mp.sqrt((2 * mp.pi) ** count * mp.det(sigma))
    if law == "discrete":
        return rest
    middle, root = cross / square, mp.sqrt(square)
    inside = mp.ncdf(root * (t / mp.mpf(2) - middle)) - mp.ncdf(root * (-t / mp.mpf(2) - middle))
    return rest * mp.exp(cross**2 / square / 2) * mp.sqrt(2 * mp.pi / square) * inside / t


def largest_error(law, points, b, t, own, factors):
    """The largest relative difference of the two laws at some points."""
    errors = []
    for y in points:
        smooth = smooth_law(law, y, b, t, own, factors)
        errors.append(abs(lattice_law(law, y, b, t, own, factors) / smooth - 1))
    return max(errors)


# Own noise, in spacings.
@pytest.mark.parametrize("a", [0.3, 0.5, 1.9])
@pytest.mark.parametrize("law", LAWS)
def test_one_message_is_within_the_bound_and_reaches_it(law, a):
    b, t = 70.0, 1.0
    with mp.workdps(DIGITS):
        allowed = bound(1 / precision(b, [a], [1.0]) / t**2)
        points = [[k / 8 + far] for k in range(5) for far in (0.0, 400.0)]
        worst = largest_error(law, points, b, t, [a], [1.0])
        assert 0.99 * allowed < worst <= allowed * (1 + mp.mpf(10) ** -20)


@pytest.mark.parametrize(
    ("own", "factors"),
    [
        ([0.6, 0.6], [1.0, -1.0]),
        ([30.0, 8.0], [60.0, -20.0]),  # messages are sums over batches of 60 and 20
        ([1.0, 50.0], [1.0, -1.0]),
        ([2.75, 2.75], [1.0, -1.0]),
    ],
)
@pytest.mark.parametrize("law", LAWS)
def test_both_ends_messages_are_within_the_bound(law, own, factors):
    b, t = 70.0, 1.0
    with mp.workdps(DIGITS):
        allowed = bound(1 / precision(b, own, factors) / t**2)
        points = [
            [c * at + step * a for c, a, step in zip(factors, own, steps, strict=True)]
            for at in (0.0, 0.25, -300.5)
            for steps in ((0.0, 0.0), (1.5, -0.5), (-4.0, 4.0))
        ]
        worst = largest_error(law, points, b, t, own, factors)
        assert 0.01 * allowed < worst <= allowed * (1 + mp.mpf(10) ** -20)


def test_pairs_are_replaced_one_after_another():
    """Three nodes, two pairs, the middle one in both: the errors multiply at worst."""
    b, own = 3.0, np.array([0.5, 0.45, 0.5])
    ways = np.array([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]])
    allowed = float(bound(float(1 / precision(b, own[:2].tolist(), [1, 1]))))
    points = np.arange(-30, 31)
    cells = stats.norm.cdf((points + 0.5) / b) - stats.norm.cdf((points - 0.5) / b)
    nodes, weights = np.polynomial.legendre.leggauss(24)
    sigma = np.diag(own**2) + b**2 * ways.T @ ways
    found = []
    for y in ([0.0, 0.0, 0.0], [1.2, -0.7, 0.5], [0.5, 0.0, -0.5], [6.0, -6.0, 1.0]):
        k = points[:, None, None] * ways[0] + points[None, :, None] * ways[1]
        densities = stats.norm.pdf(y - k, scale=own).prod(axis=-1)
        rounded = cells @ densities @ cells
        u = nodes[:, None, None] / 2 * ways[0] + nodes[None, :, None] / 2 * ways[1]
        smooth = weights @ stats.multivariate_normal.pdf(y - u, cov=sigma) @ weights / 4
        found.append(abs(np.log(rounded / smooth)))
    assert 0.1 * allowed < max(found) <= -2 * np.log1p(-allowed)


@pytest.mark.parametrize(
    ("deviations", "means"), [((0.4, 0.4), (0.0, 0.0)), ((0.3, 0.7), (0.2, -1.4))]
)
def test_a_sum_of_rounded_releases_is_a_rounded_sum(deviations, means):
    """Of two normals on one lattice: round(x + y + U), but for the bound."""

    def twice(x, deviation):
        """The second integral of the normal density."""
        return x * mp.ncdf(x / deviation) + deviation * mp.npdf(x / deviation)

    with mp.workdps(DIGITS):
        one, other = map(mp.mpf, deviations)
        allowed = bound(1 / (1 / one**2 + 1 / other**2))
        both = mp.sqrt(one**2 + other**2)
        middle = mp.mpf(means[0]) + mp.mpf(means[1])

        def cell(k, mean, deviation):
            near, far = k - mp.mpf("0.5") - mean, k + mp.mpf("0.5") - mean
            return mp.ncdf(far / deviation) - mp.ncdf(near / deviation)

        errors = []
        for k in range(-4, 5):
            law = mp.fsum(
                cell(j, means[0], one) * cell(k - j, means[1], other) for j in range(-14, 15)
            )
            x = k - middle
            once = twice(x + 1, both) - 2 * twice(x, both) + twice(x - 1, both)
            errors.append(abs(law / once - 1))
        assert 0.01 * allowed < max(errors) <= allowed


def test_from_the_least_ratio_on_rounding_disappears_in_the_slack():
    assert 2.0**-102 < bound(LEAST) < 2 * bound(LEAST) < 2.0**-100
    # One value of one pair for each draw, which is more than there are.
    for draws in (1, 1000, 10**10, 1 << 60):
        for spent in (0.2, 1e-6, 1e-30, 1e-300):
            certified = slack(draws, spent).epsilon
            # A billionth of what the theorem asks for is added to it.
            assert 1.01 * draws * 2.0**-100 < 0.1 * (certified / (1e9 + 1))


def test_splitting_total_and_offset_leaves_the_bound_of_a_draw():
    """In units of 2^-50 deviations: 4.5 R of arithmetic, sums of rests, the radius's resolution."""
    r = np.linspace(2.0**-6, 29.1, 100_001)
    assert (4.5 * r + 2 * 2.0**-6 + 2.0**-15 / r <= 7 * r).all()
    assert 4.5 * 2.0**-6 + 2 * 2.0**-6 <= 7 * 2.0**-6
