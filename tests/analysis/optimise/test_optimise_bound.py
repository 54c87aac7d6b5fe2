"""The bound and its published optimum, against the printed formulas and against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.analysis.optimise import (
    BoundConstants,
    Budget,
    claimed_variances,
    convergence_bound,
    least_steps,
    published_optimum,
    published_steps,
)

# PrivSGP-VR's CIFAR-10 experiment, with d inferred for ResNet-18.
CIFAR = BoundConstants(
    smoothness=25.0, heterogeneity=5e5, start_gap=2.8, start_norm=7.8e5, parameters=11_170_000
)
NODES, RECORDS = 16, 3125


def budgets(epsilon: float) -> list[Budget]:
    return [Budget(RECORDS, epsilon, 1e-5)] * NODES


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 3.0, 4.0])
def test_corollary_1_gives_the_papers_number_of_steps(epsilon: float) -> None:
    """K* = 3120 (eps / 3)^2, for the c2 of 0.37 that follows from the printed constants."""
    steps = published_steps(CIFAR, budgets(epsilon), gradient_bound=10.0, c2=0.3725)
    assert steps == pytest.approx(3120 * (epsilon / 3) ** 2, rel=2e-3)


def test_corollary_1_as_printed() -> None:
    """Both of its formulas, for budgets that differ."""
    mixed = [Budget(RECORDS, 1.0 + i / 4, 10.0 ** -(4 + i % 3)) for i in range(NODES)]
    c2, g, d, smooth = 0.7, 3.0, CIFAR.parameters, CIFAR.smoothness
    start = 13 * 2.8 + 6 * 25 * 7.8e5 + 18 * 25 * 5e5
    total = sum(math.log(1 / b.delta) / b.epsilon**2 for b in mixed)
    printed = start * RECORDS**2 * NODES / (216 * smooth * d * c2**2 * g**2 * total)
    steps = published_steps(CIFAR, mixed, gradient_bound=g, c2=c2)
    assert steps == pytest.approx(printed, rel=1e-12)
    variances = claimed_variances(mixed, steps, gradient_bound=g, c2=c2)
    bound = 12 * c2 * g * math.sqrt(6 * smooth * d * start * total) / (NODES * RECORDS)
    assert convergence_bound(CIFAR, variances, steps) == pytest.approx(bound, rel=1e-12)


positive = st.floats(1e-3, 1e3)


@given(
    st.builds(
        BoundConstants,
        smoothness=positive,
        heterogeneity=positive,
        start_gap=positive,
        start_norm=positive,
        parameters=st.integers(1, 10**6),
    ),
    st.lists(
        st.builds(
            Budget,
            records=st.integers(10, 10**5),
            epsilon=st.floats(0.1, 10),
            delta=st.floats(1e-8, 1e-2),
        ),
        min_size=1,
        max_size=5,
    ),
    positive,
)
def test_no_number_of_steps_beats_the_published_one(
    constants: BoundConstants, nodes: list[Budget], gradient_bound: float
) -> None:
    claim = published_optimum(constants, nodes, gradient_bound=gradient_bound, c2=1.0)

    def bound(steps: float) -> float:
        noise = claimed_variances(nodes, steps, gradient_bound=gradient_bound)
        return convergence_bound(constants, noise, steps)

    around = claim.exact * np.geomspace(0.01, 100, 201)
    assert min(map(bound, around)) >= bound(claim.exact) * (1 - 1e-12)
    assert claim.steps >= 1
    assert claim.bound == pytest.approx(bound(claim.steps))
    whole = {max(1, claim.steps - 1), claim.steps + 1}
    assert all(bound(steps) >= claim.bound * (1 - 1e-12) for steps in whole)


def test_theorem_1_needs_more_steps_than_anyone_takes() -> None:
    """Equation 92 by hand at J = 2, L = 3, n = 4: its last term, 64 J^4 (1 + J)^2 L^2 n / 9."""
    assert least_steps(3.0, [2, 5, 7, 2]) == pytest.approx(64 * 16 * 9 * 9 * 4 / 9)
    # With very few records the second term leads: 16 (4 J + 5)^2 L^2 / n.
    assert least_steps(1.0, [1]) == pytest.approx(16 * 81)
    assert least_steps(CIFAR.smoothness, [RECORDS] * NODES) > 1e20
