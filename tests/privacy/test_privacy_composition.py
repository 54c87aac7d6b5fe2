"""Composed losses: against plain convolution, exact arithmetic and dp_accounting's own."""

import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting.pld.pld_pmf import DensePLDPmf
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tacit.privacy.composition import TAIL, Losses, compose, delta_at, epsilon_at
from tacit.privacy.losses import fixed_batch_step, poisson_replace_step, poisson_zero_out_step

STEPS = [poisson_zero_out_step, poisson_replace_step, fixed_batch_step]


def by_convolution(parts: list[tuple[Losses, int]]) -> Losses:
    """The same sum, one plain convolution a step."""
    masses, lowest, finite = np.ones(1), 0, 1.0
    for losses, steps in parts:
        for _ in range(steps):
            masses = np.convolve(masses, losses.masses)
            lowest += losses.lowest
            finite *= 1 - losses.infinite
    return Losses(parts[0][0].grid, lowest, masses, 1 - finite)


def exact_delta(losses: Losses, epsilon: float) -> float:
    points = losses.points
    terms = [
        mass * -math.expm1(epsilon - loss)
        for mass, loss in zip(losses.masses.tolist(), points.tolist(), strict=True)
        if loss > epsilon
    ]
    return losses.infinite + math.fsum(terms)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("levels", [[(0.8, 1)], [(1.5, 6)], [(0.6, 2), (2.0, 5), (9.0, 1)]])
def test_it_is_the_convolution_and_never_below_it(step, levels) -> None:
    directions = [step(0.05, multiplier, 5e-3) for multiplier, _ in levels]
    for direction in range(len(directions[0])):
        parts = [
            (one[direction], steps) for one, (_, steps) in zip(directions, levels, strict=True)
        ]
        found, plain = compose(parts), by_convolution(parts)
        for epsilon in (0.0, 0.01, 0.2, 1.0, 2.5, 7.0):
            right = exact_delta(plain, epsilon)
            assert right <= delta_at(found, epsilon) <= right + 3e-12


def test_what_is_added_covers_a_million_steps_and_is_small() -> None:
    """With integer losses of two kinds the sum is binomial: its tail is known exactly."""
    share = Fraction(1, 2000)
    steps = 1_000_000
    one = Losses(0.25, 0, np.array([1 - float(share), float(share)]), 0.0)
    found = compose([(one, steps)])
    mean = steps * float(share)
    deviation = math.sqrt(mean)
    for hits in (mean, mean + 3 * deviation, mean + 5 * deviation):
        epsilon = 0.25 * hits
        # P[X = k] by its logarithm, summed from the far tail inwards.
        terms = [
            math.exp(
                math.lgamma(steps + 1)
                - math.lgamma(k + 1)
                - math.lgamma(steps - k + 1)
                + k * math.log(share)
                + (steps - k) * math.log1p(-share)
            )
            * -math.expm1(epsilon - 0.25 * k)
            for k in range(math.floor(hits) + 1, 1100)
        ]
        right = math.fsum(reversed(terms))
        # lgamma of a million is good to about 1e-9 of the terms.
        assert right * (1 - 1e-8) <= delta_at(found, epsilon) <= right * (1 + 1e-8) + 1e-7
    assert 2 * TAIL < found.infinite < 1e-7


@settings(max_examples=25, deadline=None)
@given(
    multiplier=st.floats(0.5, 4),
    rate=st.floats(1e-3, 0.5),
    first=st.integers(1, 40),
    second=st.integers(1, 40),
)
def test_steps_add_up_however_they_are_grouped(
    multiplier: float, rate: float, first: int, second: int
) -> None:
    remove, _ = poisson_zero_out_step(rate, multiplier, 1e-2)
    together = compose([(remove, first + second)])
    apart = compose([(remove, first), (remove, second)])
    staged = compose([(compose([(remove, first)]), 1), (compose([(remove, second)]), 1)])
    for epsilon in (0.0, 0.5, 3.0):
        right = delta_at(together, epsilon)
        assert delta_at(apart, epsilon) == pytest.approx(right, abs=1e-11)
        assert delta_at(staged, epsilon) == pytest.approx(right, abs=1e-11)


@pytest.mark.parametrize(("rate", "multiplier", "steps"), [(0.01, 1.0, 300), (0.2, 3.0, 1000)])
def test_it_agrees_with_dp_accounting(rate: float, multiplier: float, steps: int) -> None:
    for losses in poisson_zero_out_step(rate, multiplier, 2e-3):
        theirs = DensePLDPmf(losses.grid, losses.lowest, losses.masses, losses.infinite, True)
        composed = theirs.self_compose(steps)
        found = compose([(losses, steps)])
        for epsilon in (0.0, 0.5, 2.0):
            right = composed.get_delta_for_epsilon(epsilon)
            assert delta_at(found, epsilon) == pytest.approx(right, abs=1e-9)
        assert epsilon_at(found, 1e-5) == pytest.approx(
            composed.get_epsilon_for_delta(1e-5), rel=1e-4
        )


@settings(max_examples=60, deadline=None)
@given(
    masses=st.lists(st.floats(0, 1), min_size=1, max_size=12),
    lowest=st.integers(-8, 4),
    infinite=st.floats(0, 0.2),
    delta=st.floats(1e-6, 0.9),
)
def test_epsilon_inverts_delta(
    masses: list[float], lowest: int, infinite: float, delta: float
) -> None:
    assume(sum(masses) > 0.01)
    losses = Losses(0.3, lowest, np.array(masses) * (1 - infinite) / sum(masses), infinite)
    epsilon = epsilon_at(losses, delta)
    if math.isinf(epsilon):
        assert infinite > delta
        return
    assert delta_at(losses, epsilon) <= delta * (1 + 1e-9) + 1e-12
    if epsilon > 0.01:
        assert delta_at(losses, epsilon - 0.01) >= delta * (1 - 1e-9)


def test_mass_beyond_the_window_counts_as_infinite() -> None:
    """A loss of tiny mass far out falls outside the window, and still costs its delta."""
    masses = np.zeros(20_001)
    masses[0], masses[-1] = 1 - 1e-17, 1e-17
    one = Losses(0.01, 0, masses, 1e-7)
    found = compose([(one, 10)])
    assert len(found.masses) < 200_001
    assert found.infinite >= 10 * 1e-7 + TAIL
