"""What is released is stated once, before noise is calibrated, from what the run will do."""

import math
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from torch import nn

from planning_cases import DELTA, STEPS, plan_of
from tacit import privacy
from tacit.algorithms import Schedules
from tacit.algorithms.facets import Releases
from tacit.communication.exchange import InProcessExchange
from tacit.config import load_config
from tacit.errors import InputError
from tacit.privacy.noise.independent import LAPLACE
from tacit.training.budget import node_keys
from tacit.training.prepare import prepare
from tacit.training.release import NodePlan, make_release
from tacit.training.stacked_context import StackedContext


def release_of(row=None, **settings):
    """Of three nodes; `row` changes what the row of the algorithm says of releases."""
    planned = plan_of([50] * 3, epsilon=1.0, **settings).release
    schedules = Schedules((2.0,) * STEPS, tuple(1.0 + k for k in range(STEPS)))
    releases = replace(planned.algorithm.releases, **(row or {}))
    algorithm = replace(planned.algorithm, releases=releases)
    return make_release(algorithm, planned.setup, schedules, None, 1.0)


def test_a_mechanism_is_stated_before_there_is_a_plan():
    release = release_of()
    node = NodePlan(1, records=50, rate=1.0, expected_batch=50.0, noise_scale=3.0)
    stated = release.mechanism(node, [(1, 3)])
    assert stated == privacy.Gaussian([6.0, 9.0], coordinates=release.setup.parameters)
    assert [release.noise_std(node, k) for k in range(2)] == [6.0, 12.0]
    assert release.epsilon(replace(node, delta=DELTA), [(1, 3)]) == privacy.epsilon(
        stated, delta=DELTA
    )
    assert release.epsilon(node, [(1, 3)]) is None


@pytest.mark.parametrize("relation", ["add-or-remove-one", "replace-one"])
def test_what_is_accounted_is_the_sensitivity_of_the_clip_over_the_noise(relation):
    algorithm = {"name": "dyn-d2p", "clip": 2.0, "clip_decay": 3.0}
    plan = plan_of([50, 50], epsilon=1.0, relation=relation, algorithm=algorithm)
    node, release = plan.nodes[0], plan.release
    moved = release.clip.sensitivity(release.setup.relation)
    shifts = [moved[k] / release.noise_std(node, k) for k in range(STEPS)]
    mean = 1 / sum(shift**2 for shift in shifts) ** 0.5
    one = privacy.Gaussian(mean, 1, coordinates=release.setup.parameters * STEPS)
    assert privacy.epsilon(one, delta=DELTA) == pytest.approx(node.epsilon, rel=1e-6)


@pytest.mark.parametrize("norm", ["l2", "coordinate", "automatic"])
def test_a_row_that_is_wrong_of_its_noise_is_refused(norm):
    """Laplace noise hides shifts that are short in l1, whatever a row says."""
    with pytest.raises(InputError, match=rf"algorithm\.clip_norm = '{norm}': must be 'l1'"):
        release_of({"noise": LAPLACE}, algorithm={"clip_norm": norm})
    release_of({"noise": LAPLACE}, algorithm={"clip_norm": "l1"})


def test_a_row_that_says_nothing_of_clips_is_proved_for_l2_alone():
    default = {"clip_norms": Releases().clip_norms}
    assert release_of(default).clip.norm == "l2"
    with pytest.raises(InputError, match=r"algorithm\.clip_norm = 'l1': must be 'l2'"):
        release_of(default, algorithm={"clip_norm": "l1"})


def test_a_release_and_a_plan_are_finished():
    plan = plan_of([50, 50], epsilon=1.0)
    with pytest.raises(FrozenInstanceError):
        plan.release.noise_shape = ()  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        plan.nodes = ()  # type: ignore[misc]


def test_an_accounted_run_has_a_bound_whatever_a_row_schedules():
    """Noise is calibrated on the bound: without one it would be that of C = 1, and hide nothing."""
    planned = plan_of([50] * 3, epsilon=1.0).release
    unbounded = Schedules(None, (1.0,) * STEPS)
    with pytest.raises(InputError, match=r"algorithm\.clip = None: without a bound no epsilon"):
        make_release(planned.algorithm, planned.setup, unbounded, None, 1.0)
    free = replace(planned.setup, accounted=False)
    assert make_release(planned.algorithm, free, unbounded, None, 1.0).clip.bounds is None


# What a record is clipped to does not follow how many others are drawn.


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
