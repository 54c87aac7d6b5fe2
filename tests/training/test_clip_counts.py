"""What a record is clipped to does not follow how many others are drawn."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from tacit.communication.exchange import InProcessExchange
from tacit.config import load_config
from tacit.training.budget import node_keys
from tacit.training.prepare import prepare
from tacit.training.stacked_context import StackedContext

RECORDS = 400


def job(**train):
    """A node whose records all push one way but for the last, whose feature is opposite."""
    direction = torch.randn(6, generator=torch.Generator().manual_seed(1))
    inputs = (1e3 * direction).repeat(RECORDS, 1)
    config = load_config(
        {
            "task": {"loss": "cross-entropy", "outputs": 3},
            "algorithm": {"name": "dp-sgd", "clip": 1.0},
            "privacy": {"epsilon": 2.0, "delta": 1e-4, "noise_seed": 3},
            "train": {"steps": 3, **train},
        },
        count=1,
        given_model=True,
    )
    model = nn.Linear(6, 3, bias=False)
    nn.init.zeros_(model.weight)
    return prepare(config, model=model, nodes=[(inputs, torch.zeros(RECORDS, dtype=torch.int64))])


def summed(found, step):
    """The sum of a step at the start, and who was drawn for it."""
    plan = found.plan
    exchange = InProcessExchange(plan.mixing.weights, dtype=found.dtype, device=found.device)
    context = StackedContext(plan, found.model, found.train, node_keys(plan), exchange)
    start = found.model.start(1, found.dtype, found.device)
    total = context.batch_gradient(start, step).double()
    _, _, mask, indices = context._batch(step, 0, False, None, plan.nodes)
    return total, set(indices[mask].tolist())


ONCE = {"batch": 120, "sampling": "allocation"}


@pytest.mark.parametrize("train", [{"batch": 120}, {"batch": "all"}, ONCE])
def test_a_record_more_moves_the_sum_by_no_more_than_the_bound(train):
    found = job(**train)
    whole, drawn = summed(found, 0)
    record = max(drawn)
    # In D' the record is there, and contributes nothing: the coins of all others stay.
    inputs = found.train.stored.clone()
    inputs[record] = math.nan
    moved = {"nothing": summed(replace(found, train=replace(found.train, stored=inputs)), 0)[0]}
    inputs = found.train.stored.clone()
    inputs[record] *= -1
    opposed = replace(found, train=replace(found.train, stored=inputs))
    moved["the other way"] = summed(opposed, 0)[0]
    assert (whole - moved["nothing"]).norm() <= 1
    assert (moved["the other way"] - moved["nothing"]).norm() <= 1


def test_a_batch_that_is_one_longer_clips_the_others_alike():
    found = job(batch=120)
    _, drawn = summed(found, 0)
    one = max(drawn)
    rows = torch.tensor([sorted(drawn)])
    inputs, targets = found.train.gather(rows)
    start = found.model.start(1, found.dtype, found.device)
    sums = []
    for others in (torch.ones_like(rows, dtype=torch.bool), rows != one):
        total = found.model.gradient(start, inputs, targets, others, 1.0, counts=RECORDS).total
        sums.append(total.double())
    assert (sums[0] - sums[1]).norm() <= 1
    # By the number that was drawn, which an opposite record would make 1.002.
    plain = [
        found.model.gradient(start, inputs, targets, others, 1.0).total.double()
        for others in (torch.ones_like(rows, dtype=torch.bool), rows != one)
    ]
    inputs[0, rows[0] == one] *= -1
    opposite = found.model.gradient(
        start, inputs, targets, torch.ones_like(rows, dtype=torch.bool), 1.0
    ).total.double()
    assert (opposite - plain[1]).norm() > 1
    safe = found.model.gradient(
        start, inputs, targets, torch.ones_like(rows, dtype=torch.bool), 1.0, counts=RECORDS
    ).total.double()
    assert (safe - sums[1]).norm() <= 1
