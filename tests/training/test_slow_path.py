"""What a plan says of a model that is differentiated one record at a time."""

import re

import pytest
import torch
from torch import nn

import tacit
from gradients.gradient_problems import OwnNorm
from tacit.training.slow_path import Cost, SlowPath


def plan_of(model, shape):
    draws = torch.Generator().manual_seed(1)
    nodes = [(torch.randn(6, *shape, generator=draws), torch.arange(6) % 2) for _ in range(2)]
    config = {
        "topology": {"graph": "complete"},
        "algorithm": {"name": "dp2-sgd", "learning_rate": 0.1, "clip": 1.0},
        "privacy": {"epsilon": 8.0, "delta": 1e-3},
        "train": {"steps": 1, "batch": "all"},
    }
    return tacit.train(config, model=model, nodes=nodes)


def test_a_fast_model_is_not_tried_out():
    plan = plan_of(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2)), (4,)).plan
    assert not any("one record at a time" in line for line in (*plan.notes, *plan.warnings))


def test_a_slow_one_says_why_and_what_can_be_done():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 40), OwnNorm(40), nn.Linear(40, 2))
    result = plan_of(module, (4,))
    assert result.job.model.path == "functional"
    (note,) = [line for line in result.plan.notes if "torch.func" in line]
    assert note.endswith("because 1 is a OwnNorm")
    slow = [line for line in result.plan.warnings if "on this machine" in line]
    for line in slow:  # by how much is the machine's to say
        numbers = re.search(r"about ([\d.e+-]+) s on this machine, ([\d.e+-]+) times", line)
        assert numbers is not None
        assert float(numbers[1]) > 0
        assert float(numbers[2]) >= 1.5
        assert "requires_grad = False" in line


COSTS = SlowPath("the reason", Cost(0.5, 0.01), Cost(0.1, 0.002), at_once=100)


@pytest.mark.parametrize(
    ("batches", "seconds"), [([10.0], 0.6), ([40.0, 60.0], 1.5), ([40.0, 61.0], 2.01)]
)
def test_calls_and_records_are_added_up(batches, seconds):
    assert COSTS.seconds(batches) == pytest.approx(seconds)
    plain = 0.1 * len(batches) + 0.002 * sum(batches)
    assert COSTS.ratio(batches) == pytest.approx(seconds / plain)


def test_a_step_of_several_batches_takes_as_many_times_as_long():
    warning = COSTS.warning([40.0, 60.0], times=3)
    assert warning is not None
    assert "about 4.5 s" in warning
    assert "3.8 times" in warning


def test_little_is_not_warned_of():
    assert SlowPath("", Cost(0.0, 0.01), Cost(0.0, 0.008), 100).warning([10.0]) is None
