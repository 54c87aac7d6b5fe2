"""A model, its stacked form and a ragged batch: what the tests of both paths start from."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from few import few
from tacit.gradients import LOSSES, StackedModel, build

Oracle = Callable[..., Any]
FLOAT64 = torch.float64
# Of what each of many models is asked, few examples with every change, and more at night.
FEW = few(8, 25)


class Tied(nn.Module):
    """One weight in two layers, for which there are no taps."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, inputs):
        return self.layer(torch.tanh(self.layer(inputs)))[:, :3]


class OwnNorm(nn.RMSNorm):
    """A layer that taps do not know."""


def generator(seed):
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Problem:
    model: nn.Module
    loss: str
    stacked: StackedModel
    parameters: Tensor
    inputs: Tensor
    targets: Tensor
    mask: Tensor

    def gradient(self, clip):
        return self.stacked.gradient(self.parameters, self.inputs, self.targets, self.mask, clip)

    def expected(self, oracle, clip):
        return oracle(
            self.model, self.loss, self.parameters, self.inputs, self.targets, self.mask, clip
        )


def problem(
    make,
    shape,
    *,
    loss="cross-entropy",
    nodes=3,
    batch=5,
    vocabulary=0,
    memory_bytes=2**28,
    dtype=FLOAT64,
):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = make()
    draws = generator(4)
    if vocabulary:
        inputs = torch.randint(0, vocabulary, (nodes, batch, *shape), generator=draws)
    else:
        inputs = torch.randn(nodes, batch, *shape, generator=draws, dtype=dtype)
    with torch.no_grad():
        outputs = copy.deepcopy(model).to(dtype)(inputs[0, :1])
    if loss == "cross-entropy":
        targets = torch.randint(0, outputs.shape[1], (nodes, batch), generator=draws)
    elif loss == "logistic":
        targets = torch.randint(0, 2, (nodes, batch, 1), generator=draws).to(dtype) * 2 - 1
    else:
        targets = torch.randn(nodes, batch, *outputs.shape[1:], generator=draws, dtype=dtype)
    # Ragged: node i has its first batch - i slots, and a hole.
    mask = torch.arange(batch).expand(nodes, batch) < (batch - torch.arange(nodes)).unsqueeze(1)
    mask = mask.clone()
    if batch > 1:
        mask[0, 1] = False
    stacked = build(
        model,
        LOSSES[loss],
        inputs[0],
        targets[0],
        dtype=dtype,
        device="cpu",
        memory_bytes=memory_bytes,
    )
    parameters = stacked.start(nodes, dtype, "cpu")
    noise = torch.randn(parameters.shape, generator=draws, dtype=dtype)
    return Problem(model, loss, stacked, parameters + 0.2 * noise, inputs, targets, mask)


def assert_equal(found, right, clip):
    tolerance = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(found.total, right.total, **tolerance)
    torch.testing.assert_close(found.losses, right.losses, **tolerance)
    if clip is None:
        assert found.norms.shape == (right.norms.shape[0], 0)
    else:
        torch.testing.assert_close(found.norms, right.norms, **tolerance)


def normed():
    return nn.Sequential(nn.Linear(4, 6), OwnNorm(6), nn.Linear(6, 3))


def plain():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def linear():
    return nn.Linear(4, 3)


EVERY_PATH = pytest.mark.parametrize(
    "make", [linear, plain, normed], ids=["closed form", "taps", "functional"]
)


def saturated(inputs, scale, norm="l2"):
    """What rounding alone does to a sum of gradients of `inputs [nodes, records, width]` / `scale`.

    Where a softmax is saturated, `1 - p` has an error of some `eps`, whatever its own size: a
    record's gradient that is shorter than the clip is off by that times its inputs' norm. Automatic
    clipping divides it by its own norm and 0.01 instead.
    """
    lengths = inputs.double().norm(dim=-1)
    lengths = lengths[lengths < 1e30]
    return (
        4
        * torch.finfo(inputs.dtype).eps
        * lengths.sum().item()
        / (0.01 if norm == "automatic" else scale)
    )


def whole(value):
    """A double as a whole number of the smallest one, 2^-1074: sums and products are exact."""
    numerator, denominator = value.as_integer_ratio()
    return numerator << 1075 - denominator.bit_length()


def assert_moved_at_most(one, other, bound, norm="l2"):
    """Each row of `[nodes, parameters]` is within the bound of that of the other, exactly."""
    for left, right in zip(one, other, strict=True):
        apart = left != right
        pairs = zip(left[apart].tolist(), right[apart].tolist(), strict=True)
        moved = [abs(whole(a) - whole(b)) for a, b in pairs]
        length = sum(moved) ** 2 if norm == "l1" else sum(value * value for value in moved)
        assert length <= whole(float(bound)) ** 2
