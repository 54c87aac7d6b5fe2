"""Clipping in the l1 norm, by coordinate, and automatic clipping, against a loop over records."""

import math
from collections.abc import Callable

import pytest
import torch
from gradient_problems import EVERY_PATH, FLOAT64, OwnNorm, generator, plain, problem
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from few import few
from tacit.gradients import LOSSES, build

Make = Callable[[], nn.Module]
NORMS = pytest.mark.parametrize("norm", ["l1", "coordinate", "automatic"])


def ready(shape, *layers):
    model = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3))
    model(torch.zeros(1, *shape))
    return model


MODELS = {
    "outer products": (plain, (4,)),
    "convolution, in groups": (lambda: ready((4, 3, 3), nn.Conv2d(4, 6, 3, groups=2)), (4, 3, 3)),
    "positions, materialised": (lambda: ready((2, 5, 5), nn.Conv2d(2, 3, 3)), (2, 5, 5)),
    "positions, as they are": (lambda: ready((2, 20), nn.Linear(20, 24), nn.Tanh()), (2, 20)),
    "normalised": (lambda: ready((4,), nn.Linear(4, 6), nn.GroupNorm(2, 6)), (4,)),
    "functional": (lambda: ready((4,), nn.Linear(4, 6), OwnNorm(6)), (4,)),
}


def each_gradient(case, oracle):
    """Every record's own gradient, `[nodes, b, d]`; zeros where masked."""
    found = torch.zeros(*case.mask.shape, case.stacked.parameters_count, dtype=FLOAT64)
    for node, record in case.mask.nonzero().tolist():
        alone = torch.zeros_like(case.mask)
        alone[node, record] = True
        arguments = (case.parameters, case.inputs, case.targets, alone)
        found[node, record] = oracle(case.model, case.loss, *arguments, None).total[node]
    return found


def size(gradient, norm):
    if norm == "l1":
        return gradient.abs().sum(-1)
    if norm == "automatic":
        return gradient.norm(dim=-1)
    return math.sqrt(gradient.shape[-1]) * gradient.abs().amax(-1)


def clipped(gradient, norm, clip):
    """One record's `[d]`, as the definitions have it."""
    if norm == "coordinate":
        most = clip / math.sqrt(len(gradient))
        return gradient.new_tensor([min(max(value, -most), most) for value in gradient.tolist()])
    if norm == "automatic":
        return gradient * (clip / (math.sqrt(sum(v * v for v in gradient.tolist())) + 0.01))
    total = sum(abs(value) for value in gradient.tolist())
    return gradient if total <= clip else gradient * clip / total


@NORMS
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("memory_bytes", [1, 2**28])
def test_sums_and_norms_equal_the_loop(name, norm, memory_bytes, oracle):
    make, shape = MODELS[name]
    case = problem(make, shape, memory_bytes=memory_bytes)
    assert case.stacked.path == ("functional" if name == "functional" else "taps")
    each = each_gradient(case, oracle)
    for clip in (1e-3, 1.5, 1e6):
        right = torch.stack(
            [torch.stack([clipped(row, norm, clip) for row in rows]).sum(0) for rows in each]
        )
        out = torch.full_like(case.parameters, math.nan)
        arguments = (case.parameters, case.inputs, case.targets, case.mask)
        found = case.stacked.gradient(*arguments, clip, out=out, norm=norm)
        # Where sums over positions are lengthened, C less what they may lose is seen.
        torch.testing.assert_close(found.total, right, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(found.norms, size(each, norm), rtol=1e-10, atol=1e-10)
        assert bool((found.losses[case.mask] > 0).all())


@NORMS
def test_without_a_bound_nothing_is_clipped(norm):
    case = problem(plain, (4,))
    arguments = (case.parameters, case.inputs, case.targets, case.mask)
    found = case.stacked.gradient(*arguments, None, norm=norm)
    assert torch.equal(found.total, case.gradient(None).total)


@NORMS
@EVERY_PATH
def test_one_bound_a_node(make, norm):
    case = problem(make, (4,))
    arguments = (case.parameters, case.inputs, case.targets, case.mask)
    bounds = torch.tensor([0.1, 0.5, 2.0], dtype=FLOAT64)
    found = case.stacked.gradient(*arguments, bounds, norm=norm)
    for node, bound in enumerate(bounds.tolist()):
        alone = case.stacked.gradient(*arguments, bound, norm=norm)
        torch.testing.assert_close(found.total[node], alone.total[node])


@NORMS
@EVERY_PATH
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e308])
def test_a_record_without_finite_norm_contributes_nothing(make, norm, bad):
    case = problem(make, (4,))
    inputs, without = case.inputs.clone(), case.mask.clone()
    parameters = case.parameters * 10
    inputs[1, 2] = bad
    # A normalised record is finite whatever its size, unless it overflows before.
    without[1, 2] = False
    found = case.stacked.gradient(parameters, inputs, case.targets, case.mask, 0.5, norm=norm)
    right = case.stacked.gradient(parameters, inputs, case.targets, without, 0.5, norm=norm)
    assert not torch.isfinite(found.norms[1, 2])
    torch.testing.assert_close(found.total, right.total, rtol=1e-12, atol=1e-12)


@NORMS
@EVERY_PATH
def test_masked_slots_contribute_nothing_whatever_they_hold(make, norm):
    case = problem(make, (4,))
    inputs = case.inputs.clone()
    inputs[~case.mask] = math.nan
    found, clean = (
        case.stacked.gradient(case.parameters, values, case.targets, case.mask, 0.5, norm=norm)
        for values in (inputs, case.inputs)
    )
    assert torch.equal(found.total, clean.total)
    assert torch.equal(found.norms, clean.norms)
    assert bool((found.norms[~case.mask] == 0).all())


@few(15, 60)
@given(
    seed=st.integers(0, 2**31),
    scale=st.floats(-18, 18),
    clip=st.floats(-6, 6),
    positions=st.sampled_from([0, 2, 9]),
    norm=st.sampled_from(["l1", "coordinate", "automatic"]),
)
def test_no_record_contributes_more_than_the_bound_in_float32(seed, scale, clip, positions, norm):
    """Inputs and weights over 36 orders of magnitude; one record is the whole batch."""
    draws = generator(seed)
    shape = (positions, 6) if positions else (6,)
    layers = [nn.Linear(6, 5, bias=False), nn.Flatten(), nn.Linear(5 * max(positions, 1), 3)]
    inputs = torch.randn(2, 1, *shape, generator=draws)
    targets = torch.randint(0, 3, (2, 1), generator=draws)
    stacked = build(
        nn.Sequential(*layers),
        LOSSES["cross-entropy"],
        inputs[0],
        targets[0],
        dtype=torch.float32,
        device="cpu",
    )
    parameters = torch.randn(2, stacked.parameters_count, generator=draws) * 10.0 ** (-scale / 2)
    mask, bound = torch.ones(2, 1, dtype=torch.bool), 10.0**clip
    found = stacked.gradient(parameters, inputs * 10.0**scale, targets, mask, bound, norm=norm)
    total = found.total.double()
    assert bool((total.norm(dim=1) <= bound).all())
    assert bool((size(total, norm) <= bound).all())
