"""Gradients whose sign changes, directions that a clip leaves long, and what problem suits what."""

import numpy as np
import pytest
import torch
from audit_bugs import job_of

from tacit.analysis.audit.laboratory import (
    ALONE,
    CANARY,
    CROWD,
    FLIPPED,
    FLIPPED_REPLACED,
    HUGE,
    OUTVOTED,
    OUTVOTED_REPLACED,
    REPLACED,
    REPLACED_IN_BATCH,
    WIDTH,
    Slope,
    directions,
    linear_model,
    older_point,
    problem_of,
    sign_schedule,
    stack_records,
)

CPU = torch.device("cpu")


def plan_of(**algorithm):
    return job_of(algorithm=algorithm, nodes=2, records=40, batch=10, steps=6).plan


def records_of(problem):
    both = torch.tensor([True, False])
    return stack_records(problem, [3, 3], both, 1.0, torch.float64, CPU)


@pytest.mark.parametrize(
    ("law", "zero_out", "in_batch", "right"),
    [
        ("sum", True, False, ALONE),
        ("sum", False, False, REPLACED),
        ("iterates", False, True, REPLACED_IN_BATCH),
        ("carried", False, True, REPLACED),
        ("table", True, False, FLIPPED),
        ("anchors", False, True, FLIPPED_REPLACED),
        ("steps", True, False, FLIPPED),
        ("steps", False, True, FLIPPED_REPLACED),
        ("change", True, False, OUTVOTED),
        ("change", False, True, OUTVOTED_REPLACED),
    ],
)
def test_the_problem_suits_law_relation_and_sampler(law, zero_out, in_batch, right):
    assert problem_of(law, zero_out=zero_out, in_batch=in_batch) == right


def signs_of(steps, **algorithm):
    return tuple(each.tolist() for each in sign_schedule(plan_of(**algorithm), steps))


def test_a_table_is_filled_at_one_sign_and_met_at_the_other():
    signs, older = signs_of(12, name="privsgp-vr", state="private")
    # A record is drawn in one of four steps, about.
    assert signs == [1, *[-1] * 4, *[1] * 4, *[-1] * 3]
    assert older == [1, *[1] * 4, *[-1] * 4, *[1] * 3]
    anchors = signs_of(7, name="privsgp-vr", anchor_every=3)
    assert anchors == ([1, -1, -1, 1, -1, -1, 1], [1] * 7)


def test_where_differences_go_back_one_step_the_sign_changes_in_every_step():
    assert signs_of(5, name="ldp-spider") == ([1, -1, 1, -1, 1], [1, 1, -1, 1, -1])
    assert signs_of(4, name="dp-srm") == ([1, -1, 1, -1], [1, 1, -1, 1])
    assert signs_of(4, name="ldp-svrg", anchor_every=2) == ([1, -1, 1, -1], [1] * 4)
    assert older_point("steps") == "last step"
    assert older_point("anchors") == older_point("snapshot") == "anchor"
    assert older_point("table") == older_point("sum") == "none"


def test_gradients_keep_their_sign_at_the_older_point_alone():
    data, slope = records_of(ALONE), Slope([1.0, -1.0, 1.0], older="anchor")
    model = linear_model(torch.float64, CPU, slope)
    slope.begin(data)
    indices = torch.tensor([[0, 1, 2], [0, 1, 1]])
    inputs, targets = data.gather(indices)
    mask = torch.ones(2, 3, dtype=torch.bool)
    old = torch.full((2, WIDTH), 0.25, dtype=torch.float64)
    new = old + torch.linspace(0.1, 1.0, WIDTH, dtype=torch.float64)

    def gradient(at):
        return float(model.gradient(at, inputs, targets, mask, 1.0).total[0, CANARY])

    assert gradient(old) == pytest.approx(1.0)
    slope.after(1)
    assert gradient(new) == pytest.approx(-1.0)
    assert gradient(old) == pytest.approx(1.0)
    slope.after(2)
    assert gradient(new) == pytest.approx(1.0)


def test_gradients_of_the_last_step_have_the_sign_that_they_had_whoever_is_drawn():
    """Both ways, and of records that were not drawn then."""
    data, slope = records_of(ALONE), Slope([1.0, -1.0, 1.0], older="last step")
    model = linear_model(torch.float64, CPU, slope)
    slope.begin(data)
    inputs, targets = data.gather(torch.tensor([[0, 1, 2], [0, 1, 1]]))
    mask = torch.ones(2, 3, dtype=torch.bool)
    first = torch.full((1, WIDTH), 0.25, dtype=torch.float64)
    points = [first + k * torch.linspace(0.1, 1.0, WIDTH, dtype=torch.float64) for k in range(3)]

    def signs(at):
        total = model.gradient(at.repeat(2, 1), inputs, targets, mask, 1.0).total
        return total[0, [CANARY, CROWD]].sign().tolist()

    for k, sign in enumerate([1.0, -1.0, 1.0]):
        assert signs(points[k]) == [sign, sign]
        if k:
            assert signs(points[k - 1]) == [-sign, -sign]
        slope.after(k + 1, points[k])


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
