"""The compiled loop of linear models: against taps, in exact numbers, and where it is not taken."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from gradient_problems import FEW, FLOAT64, assert_moved_at_most, generator, problem, saturated
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model._huber import _huber_loss_and_gradient
from torch import nn

from tacit.gradients import LOSSES, build
from tacit.gradients.contributions import layout_of
from tacit.gradients.linear import linear_layer
from tacit.gradients.losses import HUBER_BEND, OF_NUMBERS, loss_from_mean
from tacit.gradients.probe import probe_of

FLOAT32 = torch.float32
DTYPES = pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=["float32", "float64"])
EVERY_LOSS = pytest.mark.parametrize(
    ("loss", "outputs"),
    [("logistic", 1), ("cross-entropy", 4), ("mse", 1), ("mse", 3), ("huber", 3)],
)
WIDTH = 7


def targets_of(loss, outputs, shape, draws):
    if loss in OF_NUMBERS:
        return torch.randn(*shape, outputs, generator=draws, dtype=FLOAT64)
    return torch.randint(0, 2 if loss == "logistic" else outputs, shape, generator=draws)


@cache
def built(loss, outputs, dtype, bias=True, width=WIDTH):
    draws = generator(3)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = nn.Linear(width, outputs, bias=bias)
    examples = torch.randn(4, width, generator=draws), targets_of(loss, outputs, (4,), draws)
    model = build(module, LOSSES[loss], *examples, dtype=dtype, device="cpu")
    assert model.path == "closed form"
    return model


def by_taps(model):
    """The same model, without a closed form."""
    return replace(model, path="taps", loop=None)


def assert_taps_do(model, batch, clip, norm, close):
    """What a model finds of a batch is what taps find, where that is a number."""
    inputs = batch[1]
    found, right = (each.gradient(*batch, norm=norm) for each in (model, by_taps(model)))
    scale = max(1.0, right.total.abs().max().item()) if clip is None else clip
    sums = {**close, "atol": close["atol"] + saturated(inputs, scale, norm)}
    norms = {**close, "atol": close["atol"] + saturated(inputs, 1.0)}
    torch.testing.assert_close(found.total / scale, right.total / scale, **sums)
    assert torch.equal(torch.isinf(found.norms), torch.isinf(right.norms))
    kept = torch.isfinite(right.losses) & (right.losses < 1e30)
    torch.testing.assert_close(found.losses[kept], right.losses[kept], **close)
    bounded = torch.isfinite(right.norms)
    torch.testing.assert_close(found.norms[bounded], right.norms[bounded], **norms)


def assert_a_record_moves_the_sum(dtype, loss, outputs, seed, size, spread, clip, norm, count):
    """Sums and bounds as the rational numbers that they are; the other records are like it."""
    model, draws = built(loss, outputs, dtype), generator(seed)
    noise = torch.randn(1, count, WIDTH, generator=draws, dtype=FLOAT64)
    smaller = torch.rand(noise.shape, generator=draws, dtype=FLOAT64).mul(-2.3 * spread).exp()
    inputs = (10.0**size * noise * smaller).to(dtype)
    targets = targets_of(loss, outputs, (1, count), draws)
    if loss in OF_NUMBERS:
        targets = targets * 10.0 ** min(size, 30)
    at = model.start(1, dtype, "cpu")
    mask = torch.ones(1, count, dtype=torch.bool)
    place = seed % count
    sums = []
    for record in (inputs[0, place], -3 * inputs[0, place], torch.full((WIDTH,), math.nan)):
        changed = inputs.clone()
        changed[0, place] = record
        sums.append(model.gradient(at, changed, targets, mask, clip, norm=norm).total)
    assert all(bool(torch.isfinite(total).all()) for total in sums)
    one, other, without = sums
    assert_moved_at_most(one, without, clip, norm)
    assert_moved_at_most(other, without, clip, norm)
    assert_moved_at_most(one, other, 2 * clip, norm)


@DTYPES
@EVERY_LOSS
@FEW
@given(
    seed=st.integers(0, 2**31),
    size=st.integers(-4, 3),
    clip=st.sampled_from([None, 1e-3, 0.5, 1e4]),
    norm=st.sampled_from(["l2", "l1", "coordinate", "automatic"]),
    count=st.sampled_from([1, 5, 130]),
    bias=st.booleans(),
    spoilt=st.sampled_from([None, math.nan, math.inf, -math.inf, 3e38]),
)
def test_the_loop_does_what_taps_do(
    dtype, loss, outputs, seed, size, clip, norm, count, bias, spoilt
):
    model, draws = built(loss, outputs, dtype, bias), generator(seed)
    inputs = (10.0**size * torch.randn(3, count, WIDTH, generator=draws, dtype=FLOAT64)).to(dtype)
    targets = targets_of(loss, outputs, (3, count), draws)
    mask = torch.rand(3, count, generator=draws) < 0.8
    at = model.start(3, dtype, "cpu")
    at += 0.5 * torch.randn(at.shape, generator=draws).to(dtype)
    if spoilt is not None and clip is not None:
        inputs[1, 0, 2] = spoilt
    close = {"rtol": 1e-3, "atol": 1e-4} if dtype == FLOAT32 else {"rtol": 1e-9, "atol": 1e-11}
    assert_taps_do(model, (at, inputs, targets, mask, clip), clip, norm, close)


@DTYPES
@EVERY_LOSS
@FEW
@given(
    seed=st.integers(0, 2**31),
    size=st.sampled_from([-310, -44, -38, -20, 0, 2, 8, 15, 18, 19, 24, 30, 38, 100, 150, 300]),
    spread=st.sampled_from([0, 40]),
    clip=st.sampled_from([1e-17, 1e-9, 0.3, 1e6, 1e17]),
    norm=st.sampled_from(["l2", "l1", "automatic"]),
    count=st.sampled_from([1, 5, 130]),
)
def test_a_record_moves_the_loops_sum_by_the_bound_at_most(dtype, loss, outputs, **drawn):
    assert_a_record_moves_the_sum(dtype, loss, outputs, **drawn)


@DTYPES
def test_what_masked_slots_hold_is_not_read(dtype):
    model = built("cross-entropy", 4, dtype)
    at = model.start(2, dtype, "cpu")
    inputs = torch.randn(2, 3, WIDTH, generator=generator(1)).to(dtype)
    targets = torch.tensor([[0, 1, 2], [3, 0, 1]])
    mask = torch.tensor([[True, False, True], [False, False, False]])
    others = inputs.clone(), targets.clone()
    others[0][~mask], others[1][~mask] = math.nan, 10**12
    told = [model.gradient(at, *batch, mask, 1.0) for batch in ((inputs, targets), others)]
    for name in ("total", "norms", "losses"):
        assert torch.equal(getattr(told[0], name), getattr(told[1], name))
    assert not bool(told[0].total[1].any())
    assert not bool(told[0].norms[~mask].any())
    assert not bool(told[0].losses[~mask].any())


@pytest.mark.parametrize("label", [-1, 4, 2**62])
def test_a_label_that_is_no_class_reads_no_memory(label):
    assert_reads_no_memory(label)


def assert_reads_no_memory(label):
    model = built("cross-entropy", 4, FLOAT64)
    batch = torch.ones(1, 1, WIDTH, dtype=FLOAT64), torch.tensor([[label]])
    at = model.start(1, FLOAT64, "cpu")
    found = model.gradient(at, *batch, torch.ones(1, 1, dtype=torch.bool), 1.0)
    assert bool(torch.isnan(found.losses).all())
    assert bool(found.total.norm() <= 1.0)


def test_huber_is_that_of_scikit_learn():
    draws = generator(5)
    model = built("huber", 1, FLOAT64)
    inputs = torch.randn(1, 40, WIDTH, generator=draws, dtype=FLOAT64)
    targets = targets_of("huber", 1, (1, 40), draws)
    at = model.start(1, FLOAT64, "cpu")
    weight, bias = at[0, :WIDTH], at[0, WIDTH:]
    errors = (inputs[0] @ weight + bias - targets[0, :, 0]).abs()
    assert 0 < int((errors < HUBER_BEND).sum()) < 40
    for each in (model, by_taps(model)):
        found = each.gradient(at, inputs, targets, torch.ones(1, 40, dtype=torch.bool), None)
        given = torch.cat([weight, bias, torch.ones(1, dtype=FLOAT64)]).numpy()
        arrays = inputs[0].numpy(), targets[0, :, 0].numpy()
        value, slopes = _huber_loss_and_gradient(given, *arrays, HUBER_BEND, 0.0, np.ones(40))
        assert found.losses.sum() + 40 == pytest.approx(value)  # a sigma of 1 a record
        assert found.total[0].tolist() == pytest.approx(slopes[:-1], abs=1e-12)


@DTYPES
@pytest.mark.parametrize("margin", [0.0, 1.0, -1.0, 30.0, -30.0, 800.0, -800.0])
def test_logistic_losses_are_exact_at_any_margin(dtype, margin):
    model = built("logistic", 1, dtype)
    at = torch.zeros(1, WIDTH + 1, dtype=dtype)
    at[0, WIDTH] = margin
    inputs, mask = torch.zeros(1, 2, WIDTH, dtype=dtype), torch.ones(1, 2, dtype=torch.bool)
    found = model.gradient(at, inputs, torch.tensor([[1, 0]]), mask, 2.0)
    right = [math.log1p(math.exp(-abs(margin))) + max(-y * margin, 0.0) for y in (1, -1)]
    torch.testing.assert_close(found.losses[0], torch.tensor(right, dtype=dtype))
    slopes = [math.exp(-max(y * margin, 0.0)) / (1 + math.exp(-abs(margin))) for y in (1, -1)]
    torch.testing.assert_close(found.norms[0].double(), torch.tensor(slopes, dtype=FLOAT64))


class Subclass(nn.Linear):
    """May do anything."""


def hooked():
    layer = nn.Linear(WIDTH, 3)
    layer.register_forward_hook(lambda module, given, output: 2 * output)
    return layer


def replaced():
    layer = nn.Linear(WIDTH, 3)
    layer.forward = lambda inputs: torch.relu(inputs @ layer.weight.t())
    return layer


def frozen():
    layer = nn.Linear(WIDTH, 3)
    layer.bias.requires_grad_(False)
    return layer


@pytest.mark.parametrize(
    "make",
    [
        hooked,
        replaced,
        frozen,
        lambda: Subclass(WIDTH, 3),
        lambda: nn.Sequential(nn.Linear(WIDTH, 4), nn.Linear(4, 3)),
        lambda: nn.Sequential(nn.Linear(WIDTH, 3), nn.Tanh()),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 3)),
    ],
)
def test_what_is_more_than_a_linear_layer_has_no_closed_form(make):
    examples = torch.randn(4, WIDTH, generator=generator(1)), torch.tensor([0, 1, 2, 0])
    module = make()
    loss = LOSSES["cross-entropy"]
    layout = layout_of(module)
    exact = module.double()
    probe = probe_of(exact, loss, layout, *examples)
    assert linear_layer(module, exact, loss, layout, probe) is None


@DTYPES
@pytest.mark.parametrize("given", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_records_of_any_floating_type_are_taken(dtype, given):
    model = built("mse", 3, dtype)
    draws = generator(1)
    inputs = torch.randn(2, 5, WIDTH, generator=draws, dtype=FLOAT64).to(given)
    targets = torch.randn(2, 5, 3, generator=draws, dtype=FLOAT64).to(given)
    batch = model.start(2, dtype, "cpu"), inputs, targets, torch.ones(2, 5, dtype=torch.bool), 0.5
    found, right = (each.gradient(*batch).total for each in (model, by_taps(model)))
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


def test_batches_need_not_be_contiguous():
    assert_need_not_be_contiguous(5)


def assert_need_not_be_contiguous(count):
    model, draws = built("mse", 3, FLOAT64), generator(2)
    inputs = torch.randn(WIDTH, count, 2, generator=draws, dtype=FLOAT64).permute(2, 1, 0)
    targets = torch.randn(3, count, 2, generator=draws, dtype=FLOAT64).permute(2, 1, 0)
    mask = torch.ones(count, 2, dtype=torch.bool).t()
    at = model.start(1, FLOAT64, "cpu").expand(2, -1)
    found = model.gradient(at, inputs, targets, mask, 0.5).total
    right = by_taps(model).gradient(at, inputs, targets, mask, 0.5).total
    torch.testing.assert_close(found, right, rtol=1e-6, atol=1e-9)


def test_a_layer_over_a_sequence_has_no_closed_form():
    case = problem(lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten()), (3, 4))
    assert case.stacked.path == "taps"


def test_other_devices_and_other_losses_go_by_taps():
    examples = torch.randn(4, WIDTH, generator=generator(1)), torch.tensor([0, 1, 2, 0])
    module, loss = nn.Linear(WIDTH, 3), LOSSES["cross-entropy"]
    layout, exact = layout_of(module), nn.Linear(WIDTH, 3).double()
    probe = probe_of(exact, loss, layout, *examples)
    assert linear_layer(module, exact, loss, layout, probe) is not None
    elsewhere = replace(probe, inputs=probe.inputs.to("meta"))
    assert linear_layer(module, exact, loss, layout, elsewhere) is None
    own = loss_from_mean("cross-entropy", nn.functional.cross_entropy)
    model = build(module, own, *examples, dtype=FLOAT64, device="cpu")
    assert model.path == "taps"


@pytest.mark.parametrize("bias", [True, False])
def test_outputs_of_all_nodes_are_those_of_each(bias):
    assert_outputs_are_those_of_each(bias)


def assert_outputs_are_those_of_each(bias):
    model, draws = built("cross-entropy", 4, FLOAT64, bias), generator(1)
    at = model.start(3, FLOAT64, "cpu")
    at += torch.randn(at.shape, generator=draws, dtype=FLOAT64)
    inputs = torch.randn(9, WIDTH, generator=draws)
    found, right = (each.outputs(at, inputs) for each in (model, by_taps(model)))
    assert found.dtype == FLOAT64
    assert not found.requires_grad
    torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-14)


def test_gradients_of_records_are_those_of_taps():
    case = problem(lambda: nn.Linear(4, 3), (4,))
    batch = case.parameters, case.inputs, case.targets, case.mask, 0.5
    found, right = (each.record_gradients(*batch) for each in (case.stacked, by_taps(case.stacked)))
    total = torch.zeros_like(case.parameters)
    for part in found.parts:
        part.add_to(total, found.factors, 1)
    torch.testing.assert_close(total, case.gradient(0.5).total, rtol=1e-6, atol=1e-9)
    assert torch.equal(found.norms, right.norms)


def test_automatic_clipping_is_the_same_in_blocks_of_wide_layers():
    draws = generator(4)
    inputs = torch.randn(2, 300, 2000, generator=draws)
    inputs[0, 1] = 0.0
    inputs[1, 2] *= 1e-6
    targets = torch.randint(0, 10, (2, 300), generator=draws)
    mask = torch.rand(2, 300, generator=draws) < 0.9
    torch.manual_seed(5)
    model = build(
        nn.Linear(2000, 10, bias=False),
        LOSSES["cross-entropy"],
        inputs[0],
        targets[0],
        dtype=FLOAT32,
        device="cpu",
    )
    assert model.loop is not None
    assert model.loop.wide
    batch = model.start(2, FLOAT32, "cpu"), inputs, targets, mask, 0.7
    found, right = (each.gradient(*batch, norm="automatic") for each in (model, by_taps(model)))
    torch.testing.assert_close(found.total, right.total, rtol=1e-3, atol=1e-4)
    # Sums of 20,000 squares in float32, in another order.
    torch.testing.assert_close(found.norms, right.norms, rtol=1e-5, atol=1e-4)


@DTYPES
@pytest.mark.parametrize("way", ["loop", "taps"])
@FEW
@given(
    short=st.floats(-40, 0),
    steep=st.floats(0, 38),
    clip=st.sampled_from([1e-17, 1.0, 1e17]),
    bias=st.booleans(),
)
def test_factors_above_one_overflow_nowhere(dtype, way, short, steep, clip, bias):
    """Slopes as steep as numbers go beside inputs as short: an outer product of any length."""
    model = built("mse", 3, dtype, bias)
    model = model if way == "loop" else by_taps(model)
    inputs = torch.full((1, 1, WIDTH), 10.0**short, dtype=FLOAT64).to(dtype)
    targets = torch.full((1, 1, 3), 10.0**steep, dtype=FLOAT64).to(dtype)
    mask = torch.ones(1, 1, dtype=torch.bool)
    total = model.gradient(
        model.start(1, dtype, "cpu"), inputs, targets, mask, clip, norm="automatic"
    ).total
    assert bool(torch.isfinite(total).all())
    assert_moved_at_most(total, torch.zeros_like(total), clip)


@pytest.mark.parametrize("way", ["loop", "taps"])
def test_automatic_clipping_makes_zero_of_zero(way):
    model = built("mse", 3, FLOAT64, bias=False)
    model = model if way == "loop" else by_taps(model)
    targets = torch.tensor([[[1.0, 2.0, 3.0], [0.5, 0.0, 0.0]]], dtype=FLOAT64)
    inputs = torch.zeros(1, 2, WIDTH, dtype=FLOAT64)
    batch = model.start(1, FLOAT64, "cpu"), inputs, targets, torch.ones(1, 2, dtype=torch.bool)
    assert not bool(model.gradient(*batch, 5.0, norm="automatic").total.any())
