"""From transforms to delta: against plain convolution, exact binomials and exact integrals."""

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from privacy_oracles import add_profile_exact, remove_profile_exact

from tacit.privacy.accounting.dominating_pairs import LaplaceStep, NormalStep
from tacit.privacy.accounting.spectrum import (
    Atoms,
    Contour,
    Cut,
    Spectrum,
    above,
    atoms,
    below,
    mixed,
    rougher,
    spectrum,
    sum_of,
)


def measure(losses, masses, infinite=0.0):
    return Atoms(losses, masses, infinite, losses, np.zeros_like(losses), 0.0)


def exact_delta(losses, masses, epsilon):
    return math.fsum(
        mass * -math.expm1(epsilon - loss)
        for loss, mass in zip(losses.tolist(), masses.tolist(), strict=True)
        if loss > epsilon
    )


LINE = Contour(tilt=2.0, step=2 * math.pi / 32, count=6000, smooth=0.01, above=4.0, below=0.5)


@settings(max_examples=25, deadline=None)
@given(
    losses=st.lists(st.floats(-1.5, 1.5), min_size=2, max_size=5, unique=True),
    weights=st.lists(st.floats(0.05, 1), min_size=5, max_size=5),
    steps=st.integers(1, 4),
    epsilon=st.floats(0, 3),
)
def test_bounds_hold_the_plain_convolution(losses, weights, steps, epsilon):
    at = np.asarray(losses)
    masses = np.asarray(weights[: len(losses)]) / sum(weights[: len(losses)])
    result = sum_of([(spectrum(measure(at, masses), LINE), steps)])
    total, law = np.zeros(1), np.ones(1)
    for _ in range(steps):
        total, law = np.add.outer(total, at).ravel(), np.outer(law, masses).ravel()
    truth = exact_delta(total, law, epsilon)
    assert result.lower(epsilon) <= truth <= result.upper(epsilon)
    # A kink is smoothed over s: delta is off by at most s / sqrt(2 pi) or so.
    assert result.upper(epsilon) - result.lower(epsilon) <= 0.03


def test_a_million_steps_are_a_binomial():
    share, steps = Fraction(1, 2000), 1_000_000
    at, masses = np.asarray([0.0, 0.25]), np.asarray([1 - float(share), float(share)])
    line = Contour(tilt=0.5, step=2 * math.pi / 200, count=4000, smooth=0.05, above=0.7, below=0.3)
    result = sum_of([(spectrum(measure(at, masses), line), steps)])
    with mp.workdps(30):
        q = mp.mpf(1) / 2000
        for epsilon in (140.0, 150.0):
            truth = mp.fsum(
                mp.binomial(steps, k)
                * q**k
                * (1 - q) ** (steps - k)
                * -mp.expm1(epsilon - mp.mpf(k) / 4)
                for k in range(int(4 * epsilon) + 1, 1100)
            )
            lower, upper = result.lower(epsilon), result.upper(epsilon)
            assert lower <= truth <= upper
            # Losses on a lattice of 0.25, smoothed over 0.05.
            assert upper <= truth * 1.1


def test_infinite_mass_counts_as_it_is():
    at, masses = np.asarray([-0.1, 0.1]), np.asarray([0.5, 0.499])
    plain = sum_of([(spectrum(measure(at, masses), LINE), 3)])
    more = sum_of([(spectrum(measure(at, masses, 1e-3), LINE), 3)])
    assert more.upper(0.2) == pytest.approx(plain.upper(0.2) + 3e-3, rel=1e-12)


def test_rounds_are_mixed():
    at, masses = np.asarray([-0.4, 0.7]), np.asarray([0.4, 0.6])
    inner = spectrum(measure(at, masses), LINE)
    result = mixed(inner, 0.3, 2)
    direct = sum_of(
        [(spectrum(measure(np.append(at, 0.0), np.append(0.3 * masses, 0.7)), LINE), 2)]
    )
    for epsilon in (0.0, 0.5, 1.2):
        assert result.upper(epsilon) == pytest.approx(direct.upper(epsilon), rel=1e-9)
        assert result.lower(epsilon) == pytest.approx(direct.lower(epsilon), rel=1e-9)


def gaussian_spectrum(square, line):
    z = line.points
    return Spectrum(line, square * z * (z + 1) / 2, gaussian=square)


@pytest.mark.parametrize("mu", [0.005, 0.3, 2.0])
def test_gaussian_losses_are_the_closed_form(mu):
    """Smoothed by themselves where they are wide, by a further step where they are not."""
    line = Contour(
        tilt=3 / mu,
        step=2 * math.pi / (30 * mu),
        count=8000,
        smooth=0.01 * mu,
        above=5 / mu,
        below=1 / mu,
    )
    result = gaussian_spectrum(mu * mu, line)
    for deviations in (2.0, 3.5):
        epsilon = mu * mu / 2 + deviations * mu
        with mp.workdps(40):
            m, e = mp.mpf(mu), mp.mpf(epsilon)
            truth = mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)
        assert result.lower(epsilon) <= truth <= result.upper(epsilon)
        assert result.upper(epsilon) - result.lower(epsilon) <= 1e-6 * truth


@settings(max_examples=30, deadline=None)
@given(smooth=st.floats(1e-4, 0.5), log_k=st.floats(-3, 3))
def test_the_convex_order_that_the_lower_bound_rests_on(smooth, log_k):
    """(delta_1 + Y_r) / 2 has dearer calls than Y_s."""

    def call(s):
        k = mp.exp(log_k * smooth)
        if s == 0:
            return max(mp.mpf(0), 1 - k)
        d = -mp.log(k) / s
        return mp.ncdf(d + mp.mpf(s) / 2) - k * mp.ncdf(d - mp.mpf(s) / 2)

    with mp.workdps(40):
        rough = rougher(smooth)
        assert rough >= smooth * (1 + math.exp(rough * rough / 8))
        assert call(rough) + call(0) >= 2 * call(smooth)


# Atoms of one step.

STEPS = [
    NormalStep(1e-3, 1 / 0.3),
    NormalStep(0.01, 1.0),
    NormalStep(0.5, 0.1),
    NormalStep(0.999, 5.0),
]


@pytest.mark.parametrize("step", STEPS, ids=repr)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cells", [40, 400])
def test_atoms_lie_on_either_side_of_the_true_profile(step, reverse, cells):
    cut = Cut(tilt=2.0, reach=9.0, cells=cells, width=1.0, most=1.0)
    high, low = (atoms(step, reverse, upper, cut) for upper in (True, False))
    profile = add_profile_exact if reverse else remove_profile_exact
    mu = step.drawn_mean
    for epsilon in (-1.0, -0.01, 0.0, 1e-4, 0.013, 0.3, 1.0, mu * mu / 2, mu * mu / 2 + 3 * mu):
        truth = profile(step.rate, mu, epsilon)
        assert exact_delta(low.losses, low.masses, epsilon) <= truth + mp.mpf(1e-14)
        upper = high.infinite + exact_delta(high.losses, high.masses, epsilon)
        assert truth - mp.mpf(1e-14) <= upper
        if cells == 400 and epsilon >= 0 and truth > 1e-9:
            assert upper <= truth * 1.15
    assert high.infinite + high.masses.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("rate", [1e-3, 0.2, 0.9])
@pytest.mark.parametrize("mu", [0.2, 1.0, 4.0])
def test_the_symmetric_step_is_the_larger_of_both_directions(rate, mu):
    cut = Cut(tilt=2.0, reach=9.0, cells=4000, width=1.0, most=1.0)
    cells = atoms(NormalStep(rate, mu, symmetric=True), False, True, cut)
    for epsilon in (-0.7, -0.05, -0.001, 0.0, 0.001, 0.02, 0.4, 1.5):
        truth = max(remove_profile_exact(rate, mu, epsilon), add_profile_exact(rate, mu, epsilon))
        upper = cells.infinite + exact_delta(cells.losses, cells.masses, epsilon)
        assert truth - mp.mpf(1e-14) <= upper <= truth * 1.001 + 1e-9


@pytest.mark.parametrize("rate", [0.01, 0.6])
@pytest.mark.parametrize("shift", [0.2, 3.0])
def test_laplace_atoms(rate, shift):
    def remove(epsilon):
        lifted = 1 + math.expm1(epsilon) / rate
        if lifted <= 0:
            return -math.expm1(epsilon)
        unsampled = math.log(lifted)
        inside = max(0.0, -math.expm1((unsampled - shift) / 2))
        return rate * (inside if unsampled > -shift else -math.expm1(unsampled))

    cut = Cut(tilt=2.0, reach=9.0, cells=500, width=1.0, most=1.0)
    for upper in (True, False):
        cells = atoms(LaplaceStep(rate, shift), False, upper, cut)
        for epsilon in (0.0, 0.001, 0.1, 0.9, 2.0):
            value = cells.infinite + exact_delta(cells.losses, cells.masses, epsilon)
            truth = remove(epsilon)
            assert (truth - 1e-15 <= value) if upper else (value <= truth + 1e-15)
            assert value == pytest.approx(truth, abs=1e-5)


def test_a_mirrored_pair_has_no_lower_bound():
    binned = NormalStep(0.1, 1.0, symmetric=True).binned(np.linspace(0.5, 8, 50))
    assert above(binned).masses.sum() <= 1 + 1e-12
    with pytest.raises(ValueError, match="maximum"):
        below(binned)
