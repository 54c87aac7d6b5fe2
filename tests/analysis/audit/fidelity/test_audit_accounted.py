"""What a record may move, against the closed forms of each kind of mechanism."""

from __future__ import annotations

import math
from typing import Any

import pytest
from fidelity_jobs import FIXED, job_of

from tacit.analysis.audit.fidelity.accounted import Accounted, accounted


def of(case, step=1, **sections):
    """What is accounted for node 0; its planned noise over the clipping bound, and its rate."""
    plan = job_of(case, **sections).plan
    node = plan.nodes[0]
    found = accounted(plan, node, [step])[step]
    return found, plan.release.noise_multiplier(node, step), node.rate


@pytest.mark.parametrize(
    ("case", "sections", "alone"),
    [
        pytest.param("privsgp", {}, 1.0, id="sampled"),
        # Under replacement, the bound is around a run without the record.
        pytest.param("privsgp", {"privacy": {"relation": "replace-one"}}, 1.0, id="replaced"),
        # A batch of fixed size bounds replaced records alone.
        pytest.param("privsgp", FIXED, 2.0, id="fixed"),
        pytest.param("dpdo", {}, 1.0, id="laplace"),
    ],
)
def test_a_clipped_sum(case, sections, alone):
    found, z, _ = of(case, **sections)
    assert found == Accounted(1 / z, 0.0, alone, carried=False, keeps=False)


def test_kept_gradients_move_every_step():
    found, z, rate = of("privsgp-vr, private")
    assert found.drawn == pytest.approx((2 - rate) / z, rel=1e-12)
    assert found.undrawn == pytest.approx(rate / z, rel=1e-12)
    assert found.keeps


def test_a_clipped_change_is_that_of_the_mean():
    plan = job_of("dp-fedavg").plan
    node = plan.nodes[0]
    step = plan.release.active_steps(node)[0]
    found = accounted(plan, node, [step])[step]
    # The change is a sum over its expected size, and two of them are 2 C apart.
    z = plan.release.noise_multiplier(node, step) / node.expected_batch
    assert found.drawn == pytest.approx(2 / z, rel=1e-12)


def test_carried_state_is_bounded_over_all_rounds():
    plan = job_of("fedspd-dp, private").plan
    node = plan.nodes[0]
    steps = plan.release.active_steps(node)
    found = accounted(plan, node, steps)
    assert sorted(found) == steps
    assert all(one.carried and one.undrawn == 0 for one in found.values())
    multipliers: Any = plan.release.mechanism(node)
    for step, z in zip(steps, multipliers.noise_multiplier, strict=True):
        assert math.isclose(found[step].drawn, 1 / z)
