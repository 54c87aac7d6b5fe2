"""Every planted bug does something: a bug that changes nothing would be a test of nothing."""

import audit_cases
import pytest
import torch
from bug_table import BUGS
from planting import planted

from tacit.analysis.audit.recorder import run_traced, seeded
from tacit.communication.exchange import InProcessExchange
from tacit.errors import InputError
from tacit.training.stacked_context import StackedContext


def traced(job, context):
    plan = seeded(job.plan, 5)
    exchange = InProcessExchange(
        plan.mixing.weights, dtype=job.dtype, device=job.device, active=plan.release.active
    )
    return run_traced(plan, job.model, job.train, exchange, context=context, steps=plan.steps)


@pytest.mark.parametrize(
    ("bug", "case"),
    [
        pytest.param(bug, case, id=f"{bug.name}, {case}")
        for bug in BUGS.values()
        for case in bug.cases
        if bug.sent
    ],
)
def test_what_is_sent_is_not_what_was(bug, case):
    with planted(bug, case) as job:
        wrong = traced(job, bug.context)
    right = traced(job, StackedContext)  # nothing stays behind
    assert not same(right, wrong)


def same(one, other):
    if len(one.sent) != len(other.sent):
        return False
    return all(
        torch.equal(a, b)
        for mine, yours in zip(one.sent, other.sent, strict=True)
        for a, b in zip(mine.values, yours.values, strict=True)
    )


def test_a_record_that_cancels_moves_the_sum_further_than_the_clip():
    first, second = (
        1e8 * torch.randn(32, generator=torch.Generator().manual_seed(s)) for s in (1, 2)
    )
    record = torch.stack([first, second, -first, -second])[None, None]
    target, mask = torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1, dtype=torch.bool)
    moved = {}
    with planted(BUGS["the clip bypass"], "positions") as job:
        at = job.model.start(1, job.dtype, job.device)
        moved["bug"] = job.model.gradient(at, record, target, mask, 1.0).total.norm()
    moved["none"] = job.model.gradient(at, record, target, mask, 1.0).total.norm()
    assert moved["none"] <= 1.0
    assert moved["bug"] > 1.5


def test_scores_of_local_models_are_told():
    bug, case = BUGS["scores of local models"], "fedspd-dp"
    with planted(bug, case) as job:
        assert job.config.algorithm.definition.releases.models
    assert not job.config.algorithm.definition.releases.models


def test_the_largest_label_decides_how_many_outputs_there_are():
    with pytest.raises(InputError, match=r"task\.outputs"):
        audit_cases.job(model=None)
    with planted(BUGS["outputs counted from labels"], "logistic") as job:
        assert job.outputs == 3


@pytest.mark.parametrize("name", ["a replaced record counted once", "one step accounted"])
def test_less_noise_is_certified_to_hold_the_same_epsilon(name):
    right = BUGS[name].cases["replace-one"]().plan.nodes[0]
    with planted(BUGS[name], "replace-one") as job:
        wrong = job.plan.nodes[0]
    assert wrong.noise_scale < 0.85 * right.noise_scale
    assert wrong.epsilon == pytest.approx(right.epsilon, rel=1e-2)
    assert BUGS[name].cases["replace-one"]().plan.nodes[0].noise_scale == right.noise_scale
