"""A run that is stepped by hand is the run that `tacit.train` makes, step by step."""

from operator import attrgetter

import numpy as np
import pytest
import torch

import tacit
from experiments import experiment, strict_json
from tacit.privacy.ledger.ledger import read_ledger
from tacit.training import loop
from tacit.training.hooks import Callback

BATCH = {"train": {"batch": 32, "steps": 4}}
KINDS = {
    "push-sum": BATCH,
    "gossip of pairs": {"algorithm": {"name": "adp2-sgd"}, **BATCH},
    "compressed": {"algorithm": {"name": "do-adp"}, **BATCH},
    "a table": {"algorithm": {"name": "privsgp-vr", "state": "private"}, **BATCH},
    "a server": {"algorithm": {"name": "dp-sgd"}, **BATCH},
    "rounds after the last, and averages": {
        "algorithm": {"name": "dyn-d2p", "final_mixing": 2},
        "train": {"steps": 4, "average": "tail:0.5"},
    },
}
SECRET = {"privacy": {"noise_std": None, "noise_seed": None, "epsilon": 2.0}}


def plain(result):
    """All that a result says but clocks."""
    rows = [row.model_copy(update={"seconds": None}) for row in result.rows]
    said = result.document.model_copy(update={"seconds": None, "steps_per_second": None})
    return rows, said


@pytest.mark.filterwarnings("ignore::tacit.NotPrivateWarning")
@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_a_session_comes_to_the_bits_of_train(changes):
    sections = experiment(**changes)
    expected, session = tacit.train(sections), tacit.prepare(sections)
    seen = []
    for k in range(expected.steps):
        before = session.models
        row = session.step()
        seen += [] if row is None else [row.step]
        assert session.step_number == k + 1 == session.evaluate().step
        assert {sent.step for sent in session.messages} == {k}
        assert session.drawn.keys() == set(np.flatnonzero(session.active).tolist())
        assert not torch.equal(session.models, before)
    session.evaluate()
    result = session.finish()
    assert torch.equal(result.parameters, expected.parameters)
    assert torch.equal(result.consensus, expected.consensus)
    assert plain(result) == plain(expected)
    assert seen == [row.step for row in expected.rows][1:-1]
    assert session.finish() is result
    with pytest.raises(tacit.InputError, match=r"session\.step = 4: has ended, of 4 steps"):
        session.step()


@pytest.mark.filterwarnings("ignore::tacit.NotPrivateWarning")
def test_a_step_can_be_made_again_from_what_a_session_shows():
    """Push-sum by hand: x - rate (sum + noise) / expected batch, mixed by the matrix."""
    session = tacit.prepare(experiment(train={"steps": 3, "batch": 32}))
    session.run(1)
    before, (matrix, rate) = session.state, (session.mixing_matrix(1), 0.5)
    session.step()
    (x, w), (noise,) = session.messages[0].values, session.noise
    torch.testing.assert_close(session.state.x, torch.tensor(matrix).float() @ x)
    torch.testing.assert_close(session.state.w, torch.tensor(matrix).float() @ w)
    assert session.spectral_gap == 1 - session.plan.contraction
    for node, added in noise.items():
        (planned,) = [one for one in session.plan.nodes if one.node == node]
        std = session.plan.release.noise_std(planned, 1)
        assert abs(added.std() / std - 1) < 0.1
        # What is left without the noise is a mean of clipped gradients: at most clip times count.
        moved = (before.x[node] - x[node]) / rate * planned.divisor / planned.weight
        sums = moved.double() - added
        assert sums.norm() <= len(session.drawn[node]) * session.plan.release.clip.applied(1) + 1e-3


@pytest.fixture
def started(tmp_path):
    session = tacit.prepare(experiment(**SECRET), out=tmp_path / "run")
    session.run(2)
    return session, tmp_path / "run"


def charged(run):
    """How many steps of the last run in a ledger are charged to each node."""
    (entered,) = read_ledger(run / "ledger.sqlite").runs
    return {sum(b - a for a, b in intervals) for intervals in entered.charged.values()}


def test_an_end_that_was_chosen_on_the_way_costs_the_whole_plan(started):
    session, run = started
    with pytest.raises(tacit.InputError, match=r"privacy\.noise_seed.*secret keys"):
        attrgetter("noise")(session)
    result = session.finish()
    assert (result.steps, result.status, charged(run)) == (2, "stopped", {6})
    assert result.epsilon == tuple(node.epsilon for node in result.plan.nodes)
    assert strict_json((run / "result.json").read_text())["charged_steps"] == 6
    again = tacit.prepare(experiment(**SECRET), out=run, resume=True)  # at no further cost
    again.run()
    assert (again.finish().epsilon, charged(run)) == (result.epsilon, {6})


def test_an_end_that_was_decided_beforehand_costs_the_steps_that_ran(started):
    session, run = started
    result = session.finish(decided_beforehand=True)
    assert (result.steps, charged(run)) == (2, {2})
    short = tacit.train(experiment(**SECRET), callbacks=[])
    assert max(result.epsilon) < max(short.epsilon)


def test_a_session_that_is_dropped_stays_charged_whole(tmp_path):
    run = tmp_path / "run"
    session = tacit.prepare(experiment(**SECRET), out=run)
    session.run(2)
    del session  # nothing refers to it in a circle
    assert charged(run) == {6}


def test_a_session_that_is_interrupted_in_a_step_stays_charged_whole(tmp_path, monkeypatch):
    run = tmp_path / "run"
    session = tacit.prepare(experiment(**SECRET, train={"steps": 60}), out=run)
    session.run(2)  # 3 of 60 steps are reserved at a time

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "advanced", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.step()
    assert charged(run) == {60}
    with pytest.raises(tacit.InputError, match="has no result"):
        session.finish()


def test_a_session_that_goes_on_ends_after_a_step_of_its_own(started):
    session, run = started
    session.finish(decided_beforehand=True)
    again = tacit.prepare(experiment(**SECRET), out=run, resume=True)
    with pytest.raises(tacit.InputError, match="has no result: no step"):
        again.finish(decided_beforehand=True)
    again.step()
    assert (again.step_number, again.finish(decided_beforehand=True).steps) == (3, 3)
    assert charged(run) == {3}


def test_what_cannot_be_stepped_is_one_line(tmp_path, monkeypatch):
    with pytest.raises(tacit.InputError, match="has no result: no step"):
        tacit.prepare(experiment(**SECRET)).finish()
    with pytest.raises(tacit.InputError, match=r"models.*did you mean 'model'"):
        tacit.prepare(experiment(**SECRET), models=None)
    (tmp_path / "run").mkdir()
    with pytest.raises(tacit.InputError, match="out"):
        tacit.prepare(experiment(**SECRET), out=tmp_path / "run")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(tacit.InputError, match=r"WORLD_SIZE.*one process"):
        tacit.prepare(experiment(**SECRET))


class _Stops(Callback):
    def on_metrics(self, metrics):
        return metrics.step == 2


def test_a_callback_ends_a_session_as_it_ends_a_run():
    session = tacit.prepare(experiment(**SECRET), callbacks=[_Stops()])
    with pytest.raises(tacit.InputError, match="has ended"):
        session.run()
    result = session.finish(decided_beforehand=True)
    assert (result.steps, "by a callback (_Stops)" in result.message) == (2, True)
    assert result.epsilon == tuple(node.epsilon for node in result.plan.nodes)


def test_a_plan_says_what_the_command_prints():
    planned = tacit.plan(experiment(**SECRET))
    assert planned.to_dict()["per_node"][0]["epsilon"] == pytest.approx(2.0, rel=1e-3)
    assert "noise multiplier" in repr(planned).partition("plan of PrivSGP")[2]
