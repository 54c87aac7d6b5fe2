"""Runs whose records take part in one random step of each epoch: plan, ledger, going on."""

import pytest

from experiments import after, experiment
from tacit import privacy
from tacit.config import load_config
from tacit.privacy import RandomAllocationGaussian
from tacit.privacy.ledger.ledger import Ledger, read_ledger
from tacit.privacy.ledger.spent import run_mechanism
from tacit.privacy.mechanisms.steps import SILENT
from tacit.training.hooks import Callback
from tacit.training.loop import execute
from tacit.training.planner import build_plan
from tacit.training.prepare import prepare


def plan_of(*records, **sections):
    train = {"batch": 8, "steps": 14, "sampling": "allocation"} | sections.pop("train", {})
    settings = {"noise_std": None, "epsilon": 2.0} | sections.pop("privacy", {})
    found = experiment(train=train, privacy=settings, **sections)
    found["nodes"] = {"count": len(records)}
    found["topology"] = {"graph": "complete"}
    return build_plan(load_config(found), records, 3)


def test_a_plan_states_epochs_and_spends_its_budget():
    plan = plan_of(40, 30)
    assert [node.epoch_steps for node in plan.nodes] == [5, 4]
    assert [node.expected_batch for node in plan.nodes] == [8.0, 7.5]
    assert any("each epoch of 4 to 5 steps" in note and "7.5 to 8" in note for note in plan.notes)
    for node in plan.nodes:
        mechanism = plan.release.mechanism(node)
        scale = plan.release.noise_multiplier(node, 0)
        assert mechanism == RandomAllocationGaussian(
            node.epoch_steps, scale, 14, coordinates=plan.parameters
        )
        assert node.epsilon == privacy.epsilon(mechanism, delta=1e-5)
        assert 1.98 < node.epsilon <= 2.0


def test_the_expected_batch_may_be_all_of_a_small_node():
    plan = plan_of(40, 6)
    assert plan.nodes[1].rate == 1
    assert isinstance(plan.release.mechanism(plan.nodes[1]), privacy.Gaussian)


@pytest.mark.parametrize(
    ("first", "again"), [(0, ()), (20, ()), (21, ((20, 21),)), (12, ((10, 12),)), (19, ((15, 19),))]
)
def test_who_goes_on_in_the_middle_of_an_epoch_reserves_its_beginning(first, again):
    plan = plan_of(40, 30, train={"steps": 40})  # epochs of 5 and of 4 steps
    assert plan.release.drawn_again(plan.nodes, first) == again


def test_without_epochs_nothing_is_reserved_again():
    plan = plan_of(40, train={"sampling": "poisson"})
    assert plan.release.drawn_again(plan.nodes, 7) == ()


def test_intervals_of_a_ledger_and_of_a_plan_are_the_same_release():
    plan = plan_of(40)
    (node,) = plan.nodes
    planned = plan.release.ledger_mechanism(node)
    assert planned.steps == 14
    pairs = [(0, 7), (5, 7), (7, 12)]
    by_ledger = planned.of_steps([(0, 5, 1), (5, 7, 2), (7, 12, 1)])
    assert plan.release.mechanism(node, pairs) == by_ledger
    z = plan.release.noise_multiplier(node, 0)
    # The second epoch was begun twice, and of the third two steps are out.
    assert by_ledger == RandomAllocationGaussian(5, z, 17, coordinates=plan.parameters)


def test_a_node_that_is_away_releases_parts_of_epochs():
    plan = plan_of(
        40, 40, algorithm={"name": "dp-dda", "activation": 0.5}, train={"steps": 10, "seed": 3}
    )
    activity = plan.release.activity
    assert activity is not None
    for node in plan.nodes:
        taking_part = activity.active[:, node.node % activity.active.shape[1]]
        assert 0 < taking_part.sum() < 10
        z = plan.release.noise_multiplier(node, 0)
        stated = plan.release.ledger_mechanism(node)
        assert isinstance(stated, RandomAllocationGaussian)
        assert stated.noise_multiplier == tuple(z if part else SILENT for part in taking_part)
        released = plan.release.mechanism(node)
        assert isinstance(released, RandomAllocationGaussian)
        assert privacy.epsilon(released, delta=1e-5) <= 2.0


def job_of(steps=9, evaluate_every=None, **privacy):
    settings = {"batch": 60, "steps": steps, "sampling": "allocation", "checkpoint_every": 1}
    settings |= {} if evaluate_every is None else {"evaluate_every": evaluate_every}
    given = {"noise_std": None, "epsilon": 4.0} | privacy
    sections = experiment(train=settings, privacy=given, nodes={"count": 4})
    return prepare(load_config(sections))


def charged(run):
    with Ledger.open(run / "ledger.sqlite", digest=None) as ledger:
        return [(first, until) for first, until in ledger.charged()[0]]


def test_a_run_that_goes_on_pays_for_its_epoch_again(tmp_path):
    job, run = job_of(noise_std=0.05, epsilon=None), tmp_path / "run"
    (node, *_), z = job.plan.nodes, job.plan.release.noise_multiplier(job.plan.nodes[0], 0)
    assert [each.epoch_steps for each in job.plan.nodes] == [6] * 4
    execute(job, out=run, should_stop=after(8))
    assert (6, 8) not in charged(run)
    ended = execute(job, out=run, resume=True)
    assert ended.status == "done"
    assert (6, 8) in charged(run)
    d = job.plan.parameters
    # One epoch whole, and of the other the three steps that were released, for each process.
    paid = RandomAllocationGaussian(6, [z] * 9 + [SILENT] * 3 + [z] * 3, coordinates=d)
    assert job.plan.release.mechanism(node, charged(run)) == paid
    assert run_mechanism(read_ledger(run / "ledger.sqlite").runs[0], 0) == paid
    assert ended.epsilon[0] == privacy.epsilon(paid, delta=1e-5)


@pytest.mark.slow
def test_what_is_paid_again_is_part_of_the_budget(tmp_path):
    job, run = job_of(steps=18), tmp_path / "run"
    execute(job, out=run, should_stop=after(2))
    ended = execute(job, out=run, resume=True)
    assert ended.status == "budget-exhausted"
    assert 6 <= ended.steps < 18
    assert charged(run).count((0, 2)) == 1
    for node, spent in zip(job.plan.nodes, ended.epsilon, strict=True):
        assert spent is not None
        assert spent <= 4.0
        more = job.plan.release.epsilon(node, [*charged(run), (ended.steps, ended.steps + 1)])
        assert more is not None
        assert more > 4.0


@pytest.mark.slow
def test_at_the_end_of_an_epoch_nothing_is_paid_twice(tmp_path):
    job, run = job_of(), tmp_path / "run"
    execute(job, out=run, should_stop=after(job.plan.nodes[0].epoch_steps))
    ended = execute(job, out=run, resume=True)
    assert (ended.status, ended.steps) == ("done", 9)
    for node, spent in zip(job.plan.nodes, ended.epsilon, strict=True):
        assert spent == node.epsilon


@pytest.mark.slow
def test_a_stop_that_keeps_all_charged_leaves_no_budget_for_an_epoch_drawn_again(tmp_path):
    """What was released may have chosen such a stop, so that all steps stay charged."""

    class Stop(Callback):
        def on_metrics(self, metrics):
            return metrics.step >= 4

    job, run = job_of(evaluate_every=1), tmp_path / "run"
    stopped = execute(job, out=run, callbacks=[Stop()])
    assert (stopped.status, stopped.steps) == ("stopped", 4)
    assert "charged for it again" in (stopped.message or "")
    ended = execute(job, out=run, resume=True)
    assert (ended.status, ended.steps) == ("budget-exhausted", 4)
    for spent in ended.epsilon:
        assert spent is not None
        assert spent <= 4.0
