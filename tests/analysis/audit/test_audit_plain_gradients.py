"""Plain gradients of single records, against closed forms and against the product's engine."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tacit.analysis.audit.plain_gradients import clipped, plain_model
from tacit.gradients import LOSSES, Augmentation, Dropout, Recurrent, build
from tacit.gradients.dropout import record_coins

CPU = torch.device("cpu")


def drawn(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_linear_model_has_the_closed_form():
    """Of (w x - y)^2 it is 2 (w x - y) x."""
    inputs, targets = drawn(5, 3), drawn(5, 1, seed=2)
    engine = build(
        nn.Linear(3, 1, bias=False), LOSSES["mse"], inputs, targets, dtype=torch.float64, device=CPU
    )
    plain, at = plain_model(engine, torch.float64, CPU), drawn(3, seed=3)
    expected = 2 * (inputs @ at - targets[:, 0])[:, None] * inputs
    torch.testing.assert_close(plain.gradients(at, inputs, targets), expected)
    torch.testing.assert_close(plain.gradient(at, inputs[0], targets[0]), expected[0])


class Texts(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.memory = Recurrent(nn.LSTM(4, 3, batch_first=True))

    def forward(self, inputs):
        outputs: Tensor = self.memory(self.words(inputs))[0].mean(dim=1)
        return outputs


class Dropped(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 8), nn.Tanh(), Dropout(0.5), nn.Linear(8, 3))


def turned(records, coins):
    """Numbers or ids in another order."""
    places = (torch.arange(records.shape[1]) + coins.unsqueeze(1)) % records.shape[1]
    return records.gather(1, places)


@pytest.mark.parametrize("make", [Texts, Dropped])
@pytest.mark.parametrize("views", [None, 1, 3])
def test_the_clipped_sum_is_that_of_the_engine(views, make):
    inputs = torch.randint(9, (4, 6), generator=torch.Generator().manual_seed(3))
    records = inputs if make is Texts else inputs.double() / 9
    targets = torch.tensor([0, 1, 2, 1])
    with torch.random.fork_rng():
        torch.manual_seed(4)
        module = make()
    loss = LOSSES["cross-entropy"]
    shown = None if views is None else Augmentation("ours", turned, views)
    engine = build(
        module, loss, records, targets, dtype=torch.float64, device=CPU, augmentation=shown
    )
    at, mask = engine.start(1, torch.float64, "cpu"), torch.ones(1, 4, dtype=torch.bool)
    coins = record_coins(0, 0, 0, torch.tensor([0]), torch.arange(4)[None])
    found = plain_model(engine, torch.float64, CPU).gradients(at[0], records, targets, coins[0])
    right = engine.gradient(at, records[None], targets[None], mask, 0.05, coins=coins).total[0]
    torch.testing.assert_close(clipped(found, 0.05, "l2").sum(0), right, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("make", [Texts, Dropped])
@pytest.mark.parametrize("views", [None, 2])
def test_a_person_is_clipped_once_as_by_the_engine(views, make):
    inputs = torch.randint(9, (2, 3, 6), generator=torch.Generator().manual_seed(3))
    rows = inputs if make is Texts else inputs.double() / 9
    targets = torch.tensor([[0, 1, 2], [1, 1, 0]])
    with torch.random.fork_rng():
        torch.manual_seed(4)
        module = make()
    shown = None if views is None else Augmentation("ours", turned, views)
    engine = build(
        module,
        LOSSES["cross-entropy"],
        rows.flatten(0, 1),
        targets.flatten(),
        dtype=torch.float64,
        device=CPU,
        augmentation=shown,
        unit_rows=3,
    )
    at, mask = engine.start(1, torch.float64, "cpu"), torch.ones(1, 2, dtype=torch.bool)
    coins = record_coins(0, 0, 0, torch.tensor([0]), torch.arange(2)[None])
    shares = torch.tensor([[0.5, 0.5, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    plain = plain_model(engine, torch.float64, CPU)
    found = plain.gradients(at[0], rows, targets, coins[0], shares)
    right = engine.gradient(
        at, rows[None], targets[None], mask, 0.05, coins=coins, shares=shares[None]
    )
    summed = clipped(found, 0.05, "l2").sum(0)
    torch.testing.assert_close(summed, right.total[0], rtol=1e-7, atol=1e-9)


@given(
    seed=st.integers(0, 1000),
    size=st.sampled_from([1e-30, 1e-3, 1.0, 1e3, 1e200]),
    bound=st.sampled_from([1e-6, 1.0, 40.0]),
)
def test_a_clipped_gradient_has_the_length_of_the_shorter(seed, size, bound):
    gradients = size * drawn(3, 7, seed=seed)
    length = (gradients / size).norm(dim=1) * size
    found = clipped(gradients, bound, "l2")
    torch.testing.assert_close(found.norm(dim=1), length.clamp(max=bound))
    # In the direction of the gradient.
    torch.testing.assert_close(found / found.norm(dim=1, keepdim=True), gradients / length[:, None])
    scaled = clipped(gradients, bound, "automatic")
    torch.testing.assert_close(scaled, gradients * (bound / (length + 0.01))[:, None])
    sums = clipped(gradients, bound, "l1").abs().sum(dim=1)
    torch.testing.assert_close(sums, gradients.abs().sum(dim=1).clamp(max=bound))
    largest = clipped(gradients, bound, "coordinate").abs().amax(dim=1)
    limit = bound / math.sqrt(7)
    torch.testing.assert_close(largest, gradients.abs().amax(dim=1).clamp(max=limit))


def test_what_is_not_finite_contributes_nothing():
    gradients = torch.tensor([[math.nan, 1.0], [math.inf, 0.0], [0.0, 0.0]])
    for norm in ("l2", "l1", "coordinate", "automatic"):
        assert not clipped(gradients, 1.0, norm).any()  # type: ignore[arg-type]
