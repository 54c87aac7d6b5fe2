"""Clipped differences of clipped gradients against one record at a time, as autograd has them."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from tacit.errors import InputError
from tacit.gradients import LOSSES, StackedModel, build
from tacit.gradients.table import clipped_difference
from tacit.gradients.table_storage import entry_shapes

CLIP, BOUND, NODES, RECORDS = 0.6, 0.15, 3, 5
EVERY = torch.full((NODES,), RECORDS)


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Tanh(), nn.Linear(6, 3))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 3)
    )


class Scaled(nn.Module):
    """Known to no tap."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 16))

    def forward(self, inputs):
        return self.scale * inputs.flatten(1)


def other():
    return nn.Sequential(Scaled(), nn.Linear(16, 3))


Made = tuple[nn.Module, StackedModel, tuple[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def made(module_of, dtype, memory_bytes=2**26):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = module_of().to(dtype)
    draw = torch.Generator().manual_seed(4)
    inputs = torch.randn(NODES, RECORDS, 1, 4, 4, generator=draw, dtype=dtype)
    targets = torch.randint(0, 3, (NODES, RECORDS), generator=draw)
    mask = torch.rand(NODES, RECORDS, generator=draw) < 0.7
    mask[1] = False
    model = build(
        module,
        LOSSES["cross-entropy"],
        inputs[0],
        targets[0],
        dtype=dtype,
        device="cpu",
        memory_bytes=memory_bytes,
    )
    start = model.start(NODES, dtype, "cpu")
    points = tuple(
        start + size * torch.randn(start.shape, generator=draw, dtype=dtype) for size in (0.3, 0.1)
    )
    return module, model, (points[0], points[1]), (inputs, targets, mask)


def one_gradient(module, at, record, label):
    weights, start = {}, 0
    for name, weight in module.named_parameters():
        piece = at[start : start + weight.numel()].clone().view(weight.shape)
        weights[name], start = piece.requires_grad_(), start + weight.numel()
    outputs = functional_call(module, weights, (record[None],))
    loss = nn.functional.cross_entropy(outputs, label[None])
    found = torch.autograd.grad(loss, list(weights.values()))
    return torch.cat([gradient.reshape(-1) for gradient in found])


def shortened(vector, bound):
    norm = float(vector.norm())
    return vector if bound is None or norm <= bound else vector * (bound / norm)


@pytest.mark.parametrize("memory_bytes", [2**26, 1], ids=["at-once", "one-by-one"])
@pytest.mark.parametrize("clip", [None, CLIP])
@pytest.mark.parametrize("bound", [None, BOUND])
@pytest.mark.parametrize("module_of", [mlp, cnn, other])
def test_against_single_records(module_of, bound, clip, memory_bytes):
    module, model, points, batch = made(module_of, torch.float64, memory_bytes)
    found = clipped_difference(model, entry_shapes(model), points, batch, clip, bound, EVERY)
    inputs, targets, mask = batch
    right = torch.zeros_like(points[0])
    for node in range(NODES):
        for record in range(RECORDS):
            if mask[node, record]:
                new, old = (
                    shortened(
                        one_gradient(module, at[node], inputs[node, record], targets[node, record]),
                        clip,
                    )
                    for at in points
                )
                right[node] += shortened(new - old, bound)
    # The bound on a norm is kept from above: by a share of some 1e-6 where gradients are alike.
    torch.testing.assert_close(found.total, right, rtol=1e-9, atol=1e-9)
    assert found.losses.shape == mask.shape
    assert found.norms.shape == (mask.shape if clip is not None else (NODES, 0))


@pytest.mark.parametrize("module_of", [mlp, cnn, other])
def test_no_record_exceeds_the_bound_in_single_precision(module_of):
    _, model, points, (inputs, targets, mask) = made(module_of, torch.float32)
    shapes, largest = entry_shapes(model), 0.0
    for record in range(RECORDS):
        alone = torch.zeros_like(mask)
        alone[:, record] = True
        for bound in (BOUND, 1e-4, 2.0):
            batch = inputs * 10.0**record, targets, alone
            total = clipped_difference(model, shapes, points, batch, CLIP, bound, EVERY).total
            norms = total.double().norm(dim=1) / bound
            assert float(norms.max()) <= 1.0
            largest = max(largest, float(norms.max()))
    assert largest > 0.9999


def test_a_record_that_is_not_finite_adds_nothing():
    _, model, points, (inputs, targets, mask) = made(mlp, torch.float64)
    mask[:] = True
    shapes = entry_shapes(model)
    spoilt, without = inputs.clone(), mask.clone()
    spoilt[:, 2] = float("nan")
    without[:, 2] = False
    found, right = (
        clipped_difference(model, shapes, points, batch, CLIP, BOUND, EVERY).total
        for batch in ((spoilt, targets, mask), (inputs, targets, without))
    )
    # What clipping aims at follows the number of records, masked or not.
    torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-11)


def test_an_empty_batch_and_bad_bounds():
    _, model, points, (inputs, targets, mask) = made(mlp, torch.float64)
    shapes = entry_shapes(model)
    empty = inputs[:, :0], targets[:, :0], mask[:, :0]
    for bound in (None, BOUND):
        found = clipped_difference(model, shapes, points, empty, CLIP, bound, EVERY)
        assert not found.total.any()
    for bound in (0.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match=r"algorithm\.clip_difference"):
            clipped_difference(model, shapes, points, (inputs, targets, mask), CLIP, bound, EVERY)
