"""Worst-case data: what problem suits what, old gradients that oppose new ones, long directions."""

import numpy as np
import pytest
import torch
from audit_bugs import job_of

from tacit.algorithms import ALGORITHMS
from tacit.analysis.audit.laboratory import (
    ALONE,
    CANARY,
    HUGE,
    OUTVOTED,
    OUTVOTED_REPLACED,
    REPLACED,
    REPLACED_IN_BATCH,
    WIDTH,
    directions,
    linear_model,
    problem_of,
    set_up,
    stack_records,
    table_signs,
)
from tacit.training.stacked_context import StackedContext

CPU = torch.device("cpu")


def plan_of(batch=10, privacy=None, sampling="poisson", **algorithm):
    gossip = ALGORITHMS[algorithm["name"]].graph.weights == "doubly-stochastic"
    return job_of(
        algorithm={"clip": 1.0, **algorithm},
        topology={"graph": "ring"} if gossip else {},
        privacy={"epsilon": None, "noise_std": 0.1, **(privacy or {})},
        sampling=sampling,
        nodes=4,
        records=40,
        batch=batch,
        steps=4,
    ).plan


@pytest.mark.parametrize(
    ("algorithm", "added", "fixed"),
    [
        ({"name": "privsgp"}, ALONE, REPLACED_IN_BATCH),
        ({"name": "fedspd-dp", "local_steps": 2}, ALONE, REPLACED),
        ({"name": "fedspd-dp", "state": "private"}, ALONE, REPLACED),
        ({"name": "privsgp-vr", "state": "private"}, ALONE, REPLACED),
        ({"name": "ldp-svrg", "anchor_every": 2}, ALONE, REPLACED),
        ({"name": "ldp-spider", "anchor_every": 3}, ALONE, REPLACED),
        ({"name": "dp-fedavg", "local_steps": 2}, OUTVOTED, OUTVOTED_REPLACED),
    ],
)
def test_the_problem_suits_row_relation_and_sampler(algorithm, added, fixed):
    for relation, sampling, right in (
        ("add-or-remove-one", "poisson", added),
        ("replace-one", "fixed", fixed),
    ):
        plan = plan_of(privacy={"relation": relation}, sampling=sampling, **algorithm)
        assert problem_of(plan, plan.release.mechanism(plan.nodes[0])) == right


def test_what_a_table_takes_up_changes_its_sign_as_often_as_a_record_is_drawn():
    plan = plan_of(name="privsgp-vr", state="private")  # in one of four steps, about
    assert table_signs(plan, 10).tolist() == [-1] * 4 + [1] * 4 + [-1] * 2
    assert table_signs(plan_of(name="privsgp-vr", anchor_every=3), 3).tolist() == [1] * 3


@pytest.mark.parametrize(
    ("algorithm", "moved"),
    [
        ({"name": "privsgp"}, [1, 1, 1, 1]),
        ({"name": "privsgp-vr", "anchor_every": 2}, [-1, 2, -1, 2]),
        ({"name": "privsgp-vr", "anchor_every": 2, "clip_difference": 0.4}, [-1, 0.4, -1, 0.4]),
        ({"name": "privsgp-vr", "state": "private"}, [-1, 1, -1, 1]),
        ({"name": "soteriafl-svrg", "state": "private", "anchor_every": 2}, [-1, 1, -1, 1]),
        ({"name": "ldp-svrg", "anchor_every": 2}, [-1, 2, -1, 2]),
        ({"name": "ldp-spider", "anchor_every": 3}, [-1, 2, 2, -1]),
        ({"name": "dp-srm", "gradient_share": 0.5}, [-1, 1.5, 1.5, 1.5]),
    ],
)
def test_old_gradients_are_the_opposite_of_new_ones(algorithm, moved):
    """With every record in every batch; a table and a snapshot give new gradients alone then.

    In a sum of 40 float32 gradients each is clipped to 2.5e-4 less than C (`clipping.aimed`).
    """
    observed = set_up(plan_of(batch="all", **algorithm), 4, 40, StackedContext).observe(ALONE, 1)
    for release in observed.trace.releases:
        along = release.before[observed.inserted, CANARY].double()
        np.testing.assert_allclose(along, moved[release.step], rtol=1e-3)
        assert not release.before[~observed.inserted, CANARY].any()


def test_a_clip_of_coordinates_leaves_a_gradient_that_has_all_of_them():
    """Along a single coordinate it would leave a quarter."""
    plan = plan_of(name="dp2-sgd", clip_norm="coordinate")
    basis = directions(plan)
    np.testing.assert_allclose(basis @ basis.T, np.eye(WIDTH), atol=1e-12)
    data = stack_records(ALONE, [2, 2], torch.tensor([True, False]), 1.0, torch.float64, CPU, basis)
    model = linear_model(torch.float64, CPU)
    inputs, targets = data.gather(torch.tensor([[1], [0]]))
    mask = torch.ones(2, 1, dtype=torch.bool)
    at = torch.zeros(2, WIDTH, dtype=torch.float64)
    found = model.gradient(at, inputs, targets, mask, 1.0, norm="coordinate").total.numpy()
    np.testing.assert_allclose(found @ basis.T, np.eye(WIDTH)[:2], atol=1e-6)
    assert np.array_equal(directions(plan_of(name="dp2-sgd")), np.eye(WIDTH))


def test_the_canary_outweighs_all_others():
    assert OUTVOTED.canary[0] / abs(OUTVOTED.others[0]) >= HUGE
    assert OUTVOTED_REPLACED.instead == OUTVOTED_REPLACED.others
