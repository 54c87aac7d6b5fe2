"""Convolutions with weights a node against torch's own, one node and one record at a time."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from few import few
from tacit import gradients
from tacit.gradients.contributions import Dense, Outer, Slot
from tacit.gradients.layers import convolution, processor
from tacit.gradients.layers.convolution import ChannelsLast, Geometry, geometry_of

NODES, RECORDS = 2, 3
WAYS = ("unfolded", "alone", "grouped", "alone, on a device")


def module(draw, sides):
    """A convolution that images of these sides can take."""
    small = st.tuples(st.integers(1, 4), st.integers(1, 4))
    kernel, stride = draw(small), draw(small)
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    fits = zip(sides, padding, dilation, kernel, strict=True)
    assume(all(side + 2 * pad > spread * (size - 1) for side, pad, spread, size in fits))
    groups = draw(st.sampled_from([1, 1, 2]))
    return nn.Conv2d(
        2 * groups, 3 * groups, kernel, stride, padding, dilation, groups, bias=draw(st.booleans())
    )


def geometry(made, *, channels_last=True, rectified=False):
    found = geometry_of(made, channels_last, rectified)
    assert isinstance(found, Geometry)
    return found


def normals(*shape, seed, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@st.composite
def cases(draw):
    sides = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    return module(draw, sides), sides


@few(20, 60)
@given(cases(), st.sampled_from(WAYS), st.booleans(), st.booleans(), st.integers(0, 1000))
def test_forward_and_both_gradients_are_those_of_torch(case, way, channels_last, rectified, seed):
    """By every way, also those of a device, where no loops serve; and of rectified images."""
    with pytest.MonkeyPatch.context() as patch:
        go(way, patch)
        check_against_torch(case, channels_last and way in WAYS[:2], rectified, seed)


def go(way, patch):
    patch.setattr(convolution, "UNFOLDED_OPERATIONS", 1e18 if way == "unfolded" else 0)
    patch.setattr(convolution, "GROUPED_OPERATIONS", 1e18 if way == "grouped" else 0)
    if way not in WAYS[:2]:
        patch.setattr(processor, "serves", lambda values: False)


def check_against_torch(case, channels_last, rectified, seed):
    made, sides = case
    found = geometry(made, channels_last=channels_last, rectified=rectified)
    images = normals(NODES * RECORDS, made.in_channels, *sides, seed=seed).requires_grad_()
    weight = normals(NODES, *made.weight.shape, seed=seed + 1)
    bias = None if made.bias is None else normals(NODES, made.out_channels, seed=seed + 2)
    outputs, shape, kept = found.forward(images, weight, bias)
    slope = normals(*outputs.shape, seed=seed + 3)
    (by_input,) = torch.autograd.grad(outputs, images, slope)
    assert outputs.shape == shape
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert outputs.is_contiguous(memory_format=layout)

    slot = Slot("weight", tuple(made.weight.shape), 5, 5 + made.weight.numel())
    left, right = found.factors(kept, slope, NODES)
    for as_matrix in (True, False):
        part = found.contribution(Outer(slot, left, right), as_matrix)
        matrices = part.materialised().values
        total = torch.full((NODES, slot.stop + 4), 7.0, dtype=torch.float64)
        factors = normals(NODES, RECORDS, seed=seed + 4)
        part.add_to(total, factors, 0)
        part.add_to(total, factors, 1)
        rows = part.outer()
        from_outer = (rows.gradients.transpose(3, 4) @ rows.inputs).flatten(2)
        torch.testing.assert_close(from_outer, matrices, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(
            part.sizes().bounds, matrices.square().sum(2), rtol=1e-7, atol=1e-7
        )
        whole = part if part.positions == 1 else part.materialised()
        torch.testing.assert_close(
            whole.absolute_sums(), matrices.abs().sum(2), rtol=1e-10, atol=1e-10
        )
        assert bool((total[:, :5] == 7).all())
        assert bool((total[:, slot.stop :] == 7).all())
        for node in range(NODES):
            expected = torch.zeros(slot.stop - slot.start, dtype=torch.float64)
            for record in range(RECORDS):
                row = node * RECORDS + record
                image = images[row : row + 1].detach().requires_grad_()
                kernel = weight[node].clone().requires_grad_()
                own = None if bias is None else bias[node]
                given_image = torch.relu(image) if rectified else image
                output = functional.conv2d(
                    given_image, kernel, own, made.stride, made.padding, made.dilation, made.groups
                )
                torch.testing.assert_close(outputs[row : row + 1], output, rtol=1e-10, atol=1e-10)
                slopes = torch.autograd.grad(output, (image, kernel), slope[row : row + 1])
                torch.testing.assert_close(
                    by_input[row : row + 1], slopes[0], rtol=1e-10, atol=1e-10
                )
                gradient = slopes[1].flatten()
                torch.testing.assert_close(matrices[node, record], gradient, rtol=1e-10, atol=1e-10)
                expected += 2 * factors[node, record] * gradient
            torch.testing.assert_close(total[node, 5 : slot.stop], expected, rtol=1e-10, atol=1e-10)


def test_single_precision_agrees_with_double():
    made = nn.Conv2d(16, 32, 4, stride=2)
    images, weight = normals(40, 16, 13, 13, seed=1), normals(2, 32, 16, 4, 4, seed=2) / 16
    exact, *_ = geometry(made).forward(images, weight, None)
    single, *_ = geometry(made).forward(images.float(), weight.float(), None)
    torch.testing.assert_close(single.double(), exact, rtol=1e-6, atol=2e-6)


def test_patches_are_those_of_unfold():
    made = nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2))
    images = normals(5, 3, 8, 7, seed=3)
    found = geometry(made).columns(images)[0, :, 0]
    channels_first = found.view(5, -1, 6, 3).transpose(2, 3).flatten(2)
    expected = functional.unfold(images, (3, 2), (1, 2), (1, 2), (2, 1)).transpose(1, 2)
    assert torch.equal(channels_first, expected)


def test_the_way_is_chosen_by_geometry_alone():
    """Not by how many nodes or records there are: so runs do not depend on who computes them."""
    small, large = nn.Conv2d(16, 32, 4, stride=2), nn.Conv2d(64, 64, 3, padding=1)
    for records in (1, 4):
        for nodes in (1, 2):
            for made, side, unfolded in ((small, 13, True), (large, 16, False)):
                images = torch.zeros(nodes * records, made.in_channels, side, side)
                weight = torch.zeros(nodes, *made.weight.shape)
                *_, kept = geometry(made).forward(images, weight, None)
                assert (kept.ndim == 5) == unfolded


def test_records_that_are_not_finite_are_left_out():
    slot = Slot("weight", (2, 2, 1, 1), 0, 4)
    values = torch.tensor([[[1.0, 2, 3, 4], [math.nan, 0, 0, 0]]])
    part = ChannelsLast(slot, Dense(slot, values), 2)
    cleaned = part.cleaned(torch.tensor([[True, False]]))
    assert cleaned.materialised().values.tolist() == [[[1, 2, 3, 4], [0, 0, 0, 0]]]
    assert (cleaned.dtype, cleaned.numel()) == (torch.float32, 8)


@pytest.mark.parametrize("way", ["grouped", "alone, on a device"])
def test_models_on_a_device_keep_each_record_to_itself(way, monkeypatch):
    """The trials of `build`, which refuse what mixes records, and sums against the CPU's way."""
    torch.manual_seed(4)
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.GroupNorm(2, 4),
        nn.Conv2d(4, 6, 3, stride=2, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(54, 5),
    )  # fmt: skip
    inputs = normals(NODES, RECORDS, 3, 16, 16, seed=6)
    labels = torch.arange(NODES * RECORDS).view(NODES, RECORDS) % 5
    mask = torch.tensor([[True] * 3, [True, False, True]])

    def total():
        model = gradients.build(
            module, gradients.LOSSES["cross-entropy"], inputs[0], labels[0],
            dtype=torch.float64, device="cpu",
        )  # fmt: skip
        assert model.path == "taps"
        start = model.start(NODES, torch.float64, "cpu")
        return model.gradient(start, inputs, labels, mask, 0.5, counts=3)

    right = total()
    go(way, monkeypatch)
    found = total()
    torch.testing.assert_close(found.total, right.total, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.norms, right.norms, rtol=1e-9, atol=1e-12)


def test_small_batches_go_together_on_a_device():
    """A layer of the small CNN at 20 x 32, the least batch measured, goes alone."""
    first = 2.0 * 14 * 14 * 64 * 16
    assert convolution.way_of(first, 32, 1, looped=False) == "alone"
    assert convolution.way_of(first, 1, 1, looped=False) == "grouped"
    assert convolution.way_of(first, 1, 1, looped=True) == "unfolded"
    assert convolution.way_of(first, 1, 2, looped=True) == "alone"
    assert convolution.way_of(9e6, 1, 1, looped=True) == "alone"
