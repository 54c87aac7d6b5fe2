"""Proximal operators against brute force, and the contractions that privacy accounting uses."""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import optimize

from tacit.algorithms.parts import RegulariserName, prox
from tacit.errors import InputError

NAMES = sorted(get_args(RegulariserName))
NUMBERS = st.floats(-50, 50)
STEPS = st.floats(1e-3, 20)
LAMBDAS = st.floats(0, 10)


def plain_value(name, u, lam):
    """R of one coordinate."""
    return {
        "none": 0.0,
        "l1": lam * abs(u),
        "l2": lam * u * u / 2,
        "elastic-net": lam * (abs(u) + u * u / 2),
        "box": 0.0 if abs(u) <= lam else math.inf,
    }[name]


def value(name, x, lam):
    """R of every row, `[rows]`, with a gradient where R has one."""
    if name == "box":
        return torch.where((x.abs() <= lam).all(1), 0.0, math.inf)
    absolute = x.abs().sum(1) if name in ("l1", "elastic-net") else x.new_zeros(len(x))
    square = x.square().sum(1) / 2 if name in ("l2", "elastic-net") else x.new_zeros(len(x))
    return lam * (absolute + square)


def brute_force(name, x, step, lam):
    """The minimiser, by a grid and then a search between its neighbours."""

    def cost(u):
        return min(plain_value(name, u, lam), 1e9) + (u - x) ** 2 / (2 * step)

    # The minimiser lies between 0 and x; corners of R are points of the grid.
    grid = sorted({0.0, x, *np.linspace(min(0, x), max(0, x), 401).tolist()})
    grid = sorted({*grid, *(u for u in (-lam, lam) if grid[0] <= u <= grid[-1])})
    best = min(range(len(grid)), key=lambda i: cost(grid[i]))
    low, high = grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)]
    found = optimize.minimize_scalar(
        cost, bounds=(low, high), method="bounded", options={"xatol": 1e-12}
    )
    return min([grid[best], float(found.x)], key=cost)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("step", "lam"), [(0.5, 0.8), (3.0, 0.05), (0.01, 7.0), (1.0, 0.0)])
def test_the_operator_finds_the_minimum(name, step, lam):
    points = [-9.0, -1.3, -0.39, -0.05, 0.0, 0.03, 0.41, 0.81, 2.5, 7.3]
    found = prox(name, torch.tensor([points], dtype=torch.float64), step, lam)[0].tolist()
    for x, u in zip(points, found, strict=True):
        # Near a flat minimum the search resolves arguments to the root of the precision.
        assert u == pytest.approx(brute_force(name, x, step, lam), abs=3e-7)


@given(
    x=arrays.arrays(np.float64, (2, 5), elements=NUMBERS),
    other=arrays.arrays(np.float64, (2, 5), elements=NUMBERS),
    name=st.sampled_from(NAMES),
    step=STEPS,
    lam=LAMBDAS,
)
def test_no_other_point_costs_less(x, other, name, step, lam):
    def cost(u):
        return value(name, u, lam) + (u - torch.from_numpy(x)).square().sum(1) / (2 * step)

    best = prox(name, torch.from_numpy(x), step, lam)
    rival = torch.from_numpy(other)
    for share in (1.0, 0.1, 1e-3):
        mixed = cost(best + share * (rival - best))
        assert bool((cost(best) <= mixed + 1e-9 * (1 + mixed.abs())).all())


@given(
    x=arrays.arrays(np.float64, (1, 6), elements=NUMBERS),
    y=arrays.arrays(np.float64, (1, 6), elements=NUMBERS),
    name=st.sampled_from(NAMES),
    step=STEPS,
    lam=LAMBDAS,
)
def test_no_coordinate_and_no_norm_expands(x, y, name, step, lam):
    before = torch.from_numpy(x - y)
    after = prox(name, torch.from_numpy(x), step, lam) - prox(name, torch.from_numpy(y), step, lam)
    assert bool((after.abs() <= before.abs() + 1e-12).all())
    for norm in (1, 2, math.inf):
        assert float(after.norm(norm)) <= float(before.norm(norm)) + 1e-12
    # Monotone, coordinate by coordinate.
    assert bool((after * before >= -1e-12).all())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_each_node_may_have_a_step_of_its_own(name, dtype):
    x = torch.linspace(-4, 4, 27, dtype=dtype).view(3, 9)
    steps = torch.tensor([[0.1], [1.0], [4.0]], dtype=torch.float64)
    kept = x.clone()
    found = prox(name, x, steps, 0.6)
    assert torch.equal(x, kept)
    assert found.data_ptr() != x.data_ptr()
    assert (found.dtype, found.shape) == (dtype, x.shape)
    for i, step in enumerate(steps.flatten().tolist()):
        assert torch.equal(found[i], prox(name, x[i : i + 1], step, 0.6)[0])


@pytest.mark.parametrize("name", NAMES)
def test_smooth_ones_have_the_gradient_that_the_operator_follows(name):
    """u = prox(x) solves grad R(u) = (x - u) / step; where R has no gradient, autograd's fails."""
    x = torch.tensor([[0.03, -0.02, 1.5, -0.9, 0.0]], dtype=torch.float64)
    u = prox(name, x, 0.5, 0.4).requires_grad_()
    (slope,) = torch.autograd.grad(value(name, u, 0.4).sum() + 0.0 * u.sum(), u)
    follows = torch.allclose(slope, (x - u) / 0.5, atol=1e-12)
    assert follows == (name in ("none", "l2"))


def test_shrinking_sets_small_coordinates_to_exactly_zero():
    x = torch.tensor([[0.1, -0.1, 0.1000001, 1e-30]])
    assert prox("l1", x, 0.5, 0.2)[0].eq(0).tolist() == [True, True, False, True]
    assert prox("elastic-net", x, 0.5, 0.2)[0].eq(0).tolist() == [True, True, False, True]


def test_what_is_not_a_number_is_not_hidden():
    row = torch.tensor([[math.nan, 0.0]])
    for name in NAMES:
        assert math.isnan(prox(name, row, 1.0, 0.5)[0, 0].item())


def test_bad_input_is_refused():
    x = torch.ones(2, 3)
    with pytest.raises(InputError, match=r"algorithm\.regulariser .*elastic-net"):
        prox("elasticnet", x, 1.0, 1.0)
    for lam in (-1.0, math.inf, math.nan):
        with pytest.raises(InputError, match=r"algorithm\.regularisation"):
            prox("l1", x, 1.0, lam)
    for step in (0.0, -1.0, math.nan, torch.tensor([[1.0], [0.0]])):
        with pytest.raises(InputError, match="step"):
            prox("l1", x, step, 1.0)
