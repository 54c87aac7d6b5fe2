"""The guarantees of the table in `stacked`, and the rest of its public functions."""

import copy
import math

import pytest
import torch
from gradient_problems import EVERY_PATH, FLOAT64, assert_equal, generator, normed, plain, problem
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from few import few
from tacit.errors import InputError
from tacit.gradients import LOSSES, build


@EVERY_PATH
@pytest.mark.parametrize("clip", [None, 0.5])
def test_chunks_do_not_change_the_sum(make, clip, oracle):
    case = problem(make, (4,), batch=7, memory_bytes=1)
    assert_equal(case.gradient(clip), case.expected(oracle, clip), clip)
    whole = problem(make, (4,), batch=7)
    assert_equal(case.gradient(clip), whole.gradient(clip), math.nan)
    assert torch.equal(
        case.stacked.outputs(case.parameters, case.inputs[0]),
        torch.cat(
            [case.stacked.outputs(case.parameters, row[None]) for row in case.inputs[0]], dim=1
        ),
    )


@EVERY_PATH
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_record_without_finite_gradient_contributes_nothing(make, bad, oracle):
    case = problem(make, (4,))
    inputs = case.inputs.clone()
    inputs[1, 2] = bad
    inputs[2, 0, 1] = bad
    without = case.mask.clone()
    without[1, 2] = without[2, 0] = False
    found = case.stacked.gradient(case.parameters, inputs, case.targets, case.mask, 0.5)
    right = oracle(case.model, case.loss, case.parameters, case.inputs, case.targets, without, 0.5)
    torch.testing.assert_close(found.total, right.total, rtol=1e-10, atol=1e-10)
    assert not torch.isfinite(found.norms[1, 2])


def test_a_squared_norm_that_overflows_contributes_nothing():
    case = problem(plain, (4,))
    inputs = case.inputs.clone()
    inputs[0, 0] = 1e300
    mask = case.mask.clone()
    mask[0, 0] = False
    found = case.stacked.gradient(case.parameters, inputs, case.targets, case.mask, 0.5)
    right = case.stacked.gradient(case.parameters, case.inputs, case.targets, mask, 0.5)
    assert torch.isinf(found.norms[0, 0])
    torch.testing.assert_close(found.total, right.total, rtol=1e-12, atol=1e-12)


@EVERY_PATH
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -1e300])
def test_masked_slots_contribute_nothing_whatever_they_hold(make, clip, garbage):
    case = problem(make, (4,))
    inputs, targets = case.inputs.clone(), case.targets.clone()
    inputs[~case.mask] = garbage
    targets[~case.mask] = -7
    found = case.stacked.gradient(case.parameters, inputs, targets, case.mask, clip)
    clean = case.gradient(clip)
    for left, right in (
        (found.total, clean.total),
        (found.norms, clean.norms),
        (found.losses, clean.losses),
    ):
        assert torch.equal(left, right)
    assert bool((found.losses[~case.mask] == 0).all())


@EVERY_PATH
@pytest.mark.parametrize("clip", [None, 0.5])
def test_nodes_without_records_give_zeros(make, clip):
    case = problem(make, (4,))
    mask = case.mask.clone()
    mask[1] = False
    parameters = case.parameters.clone()
    parameters[1] = math.nan
    inputs = case.inputs.clone()
    inputs[1] = math.nan
    found = case.stacked.gradient(parameters, inputs, case.targets, mask, clip)
    assert torch.equal(found.total[1], torch.zeros_like(found.total[1]))
    assert torch.equal(found.losses[1], torch.zeros_like(found.losses[1]))
    torch.testing.assert_close(found.total[[0, 2]], case.gradient(clip).total[[0, 2]])


@EVERY_PATH
def test_an_empty_batch_gives_zeros(make):
    case = problem(make, (4,))
    out = torch.full_like(case.parameters, math.nan)
    found = case.stacked.gradient(
        case.parameters, case.inputs[:, :0], case.targets[:, :0], case.mask[:, :0], 1.0, out=out
    )
    assert found.total is out
    assert torch.equal(out, torch.zeros_like(out))
    assert found.norms.shape == found.losses.shape == (3, 0)


@EVERY_PATH
def test_out_is_overwritten(make):
    case = problem(make, (4,))
    out = torch.full_like(case.parameters, math.nan)
    found = case.stacked.gradient(
        case.parameters, case.inputs, case.targets, case.mask, 0.5, out=out
    )
    assert found.total is out
    assert torch.equal(out, case.gradient(0.5).total)


@EVERY_PATH
def test_one_bound_a_node(make):
    case = problem(make, (4,))
    bounds = torch.tensor([0.1, 0.5, 2.0], dtype=FLOAT64)
    found = case.stacked.gradient(case.parameters, case.inputs, case.targets, case.mask, bounds)
    for node, bound in enumerate(bounds.tolist()):
        torch.testing.assert_close(found.total[node], case.gradient(bound).total[node])


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, math.inf, torch.tensor([1.0, 0.0, 1.0])])
def test_a_bound_that_bounds_nothing_is_refused(clip):
    case = problem(plain, (4,))
    with pytest.raises(InputError, match=r"algorithm\.clip"):
        case.stacked.gradient(case.parameters, case.inputs, case.targets, case.mask, clip)


@few(15, 40)
@given(
    seed=st.integers(0, 2**31),
    scale=st.floats(-18, 18),
    clip=st.floats(-6, 6),
    sequence=st.sampled_from([0, 1, 2, 9]),
    norm=st.sampled_from(["none", "layer", "group"]),
)
def test_no_record_contributes_more_than_the_bound_in_float32(seed, scale, clip, sequence, norm):
    """Inputs and weights over 36 orders of magnitude; one record is the whole batch."""
    draws = generator(seed)
    norms = {
        "none": nn.Identity(),
        "layer": nn.LayerNorm(5),
        "group": nn.GroupNorm(1, sequence or 5),  # the second axis is that of the channels
    }
    layers = [
        nn.Linear(6, 5, bias=False),
        norms[norm],
        nn.Flatten(),
        nn.Linear(5 * max(sequence, 1), 3),
    ]
    shape = (sequence, 6) if sequence else (6,)
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
    found = stacked.gradient(
        parameters, inputs * 10.0**scale, targets, torch.ones(2, 1, dtype=torch.bool), 10.0**clip
    )
    size = found.total.double().norm(dim=1)
    assert bool((size <= 10.0**clip).all())


@EVERY_PATH
def test_float32_agrees_with_float64(make):
    single = problem(make, (4,), dtype=torch.float32)
    exact = build(
        single.model,
        LOSSES["cross-entropy"],
        single.inputs[0],
        single.targets[0],
        dtype=FLOAT64,
        device="cpu",
    )
    found = single.gradient(0.5)
    right = exact.gradient(
        single.parameters.double(), single.inputs, single.targets, single.mask, 0.5
    )
    assert single.stacked.path == exact.path
    assert found.total.dtype == found.norms.dtype == torch.float32
    torch.testing.assert_close(found.total.double(), right.total, rtol=1e-4, atol=1e-6)


@EVERY_PATH
def test_outputs_and_module_hold_each_nodes_weights(make):
    case = problem(make, (4,))
    records = case.inputs[2]
    outputs = case.stacked.outputs(case.parameters, records)
    assert outputs.shape == (3, 5, 3)
    assert not outputs.requires_grad
    for node in range(3):
        trained = case.stacked.module(case.parameters[node])
        assert type(trained) is type(case.model)
        torch.testing.assert_close(outputs[node], trained(records), rtol=1e-10, atol=1e-10)
        vector = nn.utils.parameters_to_vector(trained.parameters())
        assert torch.equal(vector, case.parameters[node])


@pytest.mark.parametrize("channels", [1, 3])
def test_outputs_are_of_images_that_lie_channels_last(channels):
    strides = []

    class Seen(nn.Module):
        def forward(self, images):
            strides.append(images.stride())
            return images

    def make():
        first = Seen(), nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.MaxPool2d(2, 1)
        return nn.Sequential(*first, nn.Flatten(), nn.Linear(64, 3))

    case = problem(make, (channels, 7, 7))
    records = case.inputs[2]
    records[0, 0, 3, 3] = math.nan
    strides.clear()
    outputs = case.stacked.outputs(case.parameters, records)
    assert set(strides) == {(49 * channels, 1, 7 * channels, channels)}
    expected = case.stacked.module(case.parameters[0])(records)
    assert expected[0].isnan().all()
    torch.testing.assert_close(outputs[0], expected, rtol=1e-10, atol=1e-10, equal_nan=True)


def test_the_users_module_is_never_changed():
    model = nn.Sequential(nn.Linear(4, 3)).eval()
    before = copy.deepcopy(model.state_dict())
    stacked = build(
        model,
        LOSSES["cross-entropy"],
        torch.randn(2, 4, generator=generator(0)),
        torch.tensor([0, 1]),
        dtype=FLOAT64,
        device="cpu",
    )
    parameters = stacked.start(2, FLOAT64, "cpu") + 1
    inputs = torch.randn(2, 3, 4, generator=generator(1))
    stacked.gradient(
        parameters, inputs, torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3) > 0, 1.0
    )
    assert not model.training
    assert not model[0].weight.requires_grad or model[0].weight.grad is None
    assert {key: value.dtype for key, value in model.state_dict().items()} == {
        key: value.dtype for key, value in before.items()
    }
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    start = stacked.start(2, FLOAT64, "cpu")
    assert torch.equal(start[1], nn.utils.parameters_to_vector(model.parameters()).double())


def test_constant_buffers_are_kept(oracle):
    class Standardised(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("shift", torch.tensor([0.5, -2.0, 1.0, 3.0]))
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x - self.shift)

    case = problem(Standardised, (4,))
    assert case.stacked.path == "taps"
    assert_equal(case.gradient(0.5), case.expected(oracle, 0.5), 0.5)
    assert torch.equal(case.stacked.module(case.parameters[0]).shift, case.model.shift.double())


def test_building_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    problem(plain, (4,))
    problem(normed, (4,))
    assert torch.equal(before, torch.get_rng_state())
