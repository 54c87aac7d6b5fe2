"""Runs that go on without a site that is away for too long."""

import re
import shutil
import signal
import time
from contextlib import closing

import pytest
import torch
from safetensors.torch import load_file

from communication.cluster.crew import EXACT, charged, nodes_of, result_of, simulated
from communication.cluster.test_cluster_runs import KINDS
from communication.secure.sites import LIMIT, NAMES, consortium, gated, gathered, status_of
from experiments import write_experiment
from tacit.communication.secure.journal import Journal, Session
from tacit.communication.secure.streams import AWAY
from tacit.privacy.ledger.ledger import Ledger
from tacit.training import prepare

pytestmark = pytest.mark.process

STEPS, HELD = 24, 6
TRAIN = {
    "steps": STEPS, "batch": 16, "dtype": "float64", "evaluate_every": 2, "checkpoint_every": 4,
    "patience": 10.0,
}  # fmt: skip
SECTIONS = {
    "push-sum": {},
    "pairs of nodes": {"algorithm": {"name": "adp2-sgd", "stragglers": 0.3}},
    "server": KINDS["server"],
}
LATER = 16  # a step after the last that knew of the lost site


def written(folder, kind="push-sum", **changes):
    """A run that goes on without a site after a few seconds."""
    sections = {"faults": {"tolerate": True}, "train": TRAIN, **changes}
    folder.mkdir(exist_ok=True)
    sections = {"nodes": {"count": 3}, **sections}
    return write_experiment(folder, **SECTIONS[kind], **sections)


def lost(group, file, gate, until=STEPS):
    """Start all sites, kill one before a step, and let the others go on up to another."""
    gate.write_text(str(HELD))
    group.relay()
    group.train_all(file, tamper=gated(gate))
    group.until_step(HELD)
    group.running["west"].kill()
    gate.write_text(str(until))


def said_of_west(group):
    """How the others see it."""
    states = [status_of(group.rank_folder(name))["sites"][2] for name in ("north", "south")]
    return [site["state"] for site in states]


def test_clients_go_on_as_if_the_lost_one_were_away(tmp_path):
    file, gate = written(tmp_path, "server"), tmp_path / "gate"
    with consortium(tmp_path) as group:
        lost(group, file, gate, until=LATER)
        group.until_step(LATER, "north", "south")
        group.until(lambda: said_of_west(group) == ["gone", "gone"])
        gate.write_text(str(STEPS))
        answers = [group.running[name].end() for name in ("north", "south")]
        assert [answer.code for answer in answers] == [0, 0], answers
        run = gathered(group, tmp_path / "gathered")
    away = written(tmp_path / "away", "server", faults={"down": [[2, HELD, STEPS]]})
    alone = simulated(away, tmp_path / "alone")
    found, right = result_of(run), result_of(alone)
    assert found["status"] == "done"
    assert any(note.startswith("west was left out") for note in found["notes"])
    assert_near(found["test_loss"]["consensus"], right["test_loss"]["consensus"])
    assert_near(models_of(run), nodes_of(alone)[:2])
    assert found["epsilon_source"][2] == "rank 2, left out: as if it had gone on"
    assert all(charged(run)[2][step] == 1 for step in range(HELD))
    assert charged(run)[0] == charged(alone)[0]


def test_one_that_is_silent_as_its_patience_for_another_ends_is_waited_for(tmp_path):
    """South has waited for north as long as north for west, and that is not held against north."""
    file, gate = written(tmp_path, "server"), tmp_path / "gate"
    with consortium(tmp_path) as group:
        lost(group, file, gate, until=LATER)
        time.sleep(TRAIN["patience"] - 2.0)
        group.running["north"].send(signal.SIGSTOP)
        time.sleep(AWAY + 1.0)
        group.running["north"].send(signal.SIGCONT)
        group.until_step(LATER, "north", "south")
        group.until(lambda: said_of_west(group) == ["gone", "gone"])
        gate.write_text(str(STEPS))
        assert [group.running[name].end().code for name in ("north", "south")] == [0, 0]


def test_a_client_that_was_left_out_comes_back_with_the_model_of_the_server(tmp_path):
    steps = 60
    train = {**TRAIN, "steps": steps, "average": "exponential:0.9"}
    file, gate = written(tmp_path, "server", train=train), tmp_path / "gate"
    with consortium(tmp_path) as group:
        lost(group, file, gate, until=LATER)
        group.until_step(LATER, "north", "south")
        group.until(lambda: said_of_west(group) == ["gone", "gone"])
        west = group.train("west", file, resume=True)
        group.until(lambda: waits(group, "west"))
        west.kill()
        west = group.train("west", file, resume=True)
        until_it_is_in("west", group, gate, LATER, LATER + 1, steps)
        for victim in group.names:  # and who comes back to that session is no other
            group.running[victim].kill()
            group.train(victim, file, resume=True, tamper=gated(gate))
        gate.write_text(str(steps))
        answers = group.ends()
        assert [answer.code for answer in answers] == [0, 0, 0], [one.err for one in answers]
        run = gathered(group, tmp_path / "gathered")
    found = result_of(run)
    assert found["status"] == "done"
    notes = "; ".join(found["notes"])
    said = re.search(r"west was left out of steps before (\d+), and came back", notes)
    assert said, notes
    begun = int(said[1])
    assert LATER < begun < steps
    away = {"down": [[2, HELD, begun]]}
    alone = simulated(
        written(tmp_path / "away", "server", train=train, faults=away), tmp_path / "a"
    )
    right = result_of(alone)
    assert_near(found["test_loss"]["consensus"], right["test_loss"]["consensus"])
    assert_near(models_of(run, (0, 1, 2)), nodes_of(alone))
    # Nobody is charged twice, and the one that was away for what it did not send as well.
    assert charged(run) == dict.fromkeys(range(3), dict.fromkeys(range(steps), 1))


@pytest.mark.parametrize("epsilon", [None, 3.0])
def test_a_client_that_comes_after_the_others_began_takes_part_from_a_round_on(epsilon, tmp_path):
    """How many records it has, nobody knows before; they are other numbers than the others'."""
    steps = 60
    changes = {
        "train": {**TRAIN, "steps": steps, "average": "exponential:0.9"},
        "nodes": {"count": 3, "partition": "dirichlet", "alpha": 1.0},
    }
    if epsilon is not None:
        changes["privacy"] = {"noise_std": None, "epsilon": epsilon}
    else:  # by records, a simulation would know what west counts before it has come
        changes["nodes"]["weights"] = "equal"
    file, gate = written(tmp_path, "server", **changes), tmp_path / "gate"
    with consortium(tmp_path) as group:
        gate.write_text(str(HELD))
        group.relay()
        for name in ("north", "south"):
            group.train(name, file, tamper=gated(gate))
        group.until_step(HELD, "north", "south")
        group.until(lambda: said_of_west(group) == ["gone", "gone"])
        told = "west did not come within train.patience: the run begins without it"
        assert all(told in group.running[name].said("err") for name in ("north", "south"))
        for victim in ("north", "south"):  # who comes back knows without whom it began
            group.running[victim].kill()
            group.train(victim, file, resume=True, tamper=gated(gate))
        group.until_step(HELD, "north", "south")
        west = group.train("west", file)
        group.until(lambda: waits(group, "west"))
        group.until(lambda: "west came after the others had begun" in west.said("err"))
        west.kill()
        group.train("west", file)
        until_it_is_in("west", group, gate, HELD, HELD + 1, steps)
        gate.write_text(str(steps))
        answers = group.ends()
        assert [answer.code for answer in answers] == [0, 0, 0], [one.err for one in answers]
        run = gathered(group, tmp_path / "gathered")
    found = result_of(run)
    said = re.search(
        r"west was left out of steps before (\d+), and came", "; ".join(found["notes"])
    )
    assert found["status"] == "done"
    assert said, found["notes"]
    begun = int(said[1])
    assert HELD < begun < steps
    assert charged(run) == dict.fromkeys(range(3), dict.fromkeys(range(steps), 1))
    if epsilon is not None:  # a simulation would find out how little noise west needs in its steps
        return
    changes |= {"faults": {"down": [[2, 0, begun]]}}
    away = written(tmp_path / "away", "server", **changes)
    alone = simulated(away, tmp_path / "alone")
    right = result_of(alone)
    assert_near(found["test_loss"]["consensus"], right["test_loss"]["consensus"])
    assert_near(models_of(run, (0, 1, 2)), nodes_of(alone))


def test_one_that_comes_is_taken_in_while_another_is_still_away(tmp_path):
    steps, names = 60, ("north", "south", "centre", "west", "east")
    first = names[:3]
    changes = {
        # All the patience that the run has would be waited for east, each time that all meet.
        "train": {**TRAIN, "steps": steps, "patience": 15.0},
        "nodes": {"count": 5, "weights": "equal"},
    }
    file, gate = written(tmp_path, "server", **changes), tmp_path / "gate"
    with consortium(tmp_path, names) as group:
        gate.write_text(str(HELD))
        group.relay()
        for name in first:
            group.train(name, file, tamper=gated(gate))
        group.until_step(HELD, *first)
        group.train("west", file)
        group.until(lambda: waits(group, "west"))
        until_it_is_in("west", group, gate, HELD, HELD + 1, steps, first)
        reached = max(status_of(group.rank_folder(name))["step"] for name in first)
        group.train("east", file)
        group.until(lambda: waits(group, "east"))
        until_it_is_in("east", group, gate, reached, reached + 1, steps, first)
        gate.write_text(str(steps))
        answers = group.ends()
        assert [answer.code for answer in answers] == [0] * 5, [one.err for one in answers]
        assert answers[0].err.count("east did not come within train.patience") == 2
        run = gathered(group, tmp_path / "gathered")
    found = result_of(run)
    said = "; ".join(found["notes"])
    begun = [re.search(rf"{name} was left out of steps before (\d+), and", said) for name in names]
    assert begun[:3] == [None] * 3
    assert begun[3] is not None, said
    assert begun[4] is not None, said
    west, east = int(begun[3][1]), int(begun[4][1])
    assert HELD < west < east < steps
    changes["faults"] = {"down": [[3, 0, west], [4, 0, east]]}
    alone = simulated(written(tmp_path / "away", "server", **changes), tmp_path / "alone")
    assert_near(models_of(run, range(5)), nodes_of(alone))
    assert charged(run) == dict.fromkeys(range(5), dict.fromkeys(range(steps), 1))


def test_a_run_that_was_stopped_goes_on_without_the_one_that_it_had_lost(tmp_path):
    steps = 60
    train = {**TRAIN, "steps": steps}
    file, gate = written(tmp_path, "server", train=train), tmp_path / "gate"
    with consortium(tmp_path) as group:
        lost(group, file, gate, until=LATER)
        group.until_step(LATER, "north", "south")
        group.running["south"].send(signal.SIGINT)
        until_it_ends("north", group, gate, LATER + 1, steps, ("north", "south"))
        assert [group.running[name].end().code for name in ("north", "south")] == [0, 0]
        stopped = status_of(group.rank_folder("north"))["step"]
        gate.write_text(str(stopped + 1))
        for name in ("north", "south"):
            group.train(name, file, resume=True, tamper=gated(gate))
        group.until_step(stopped + 1, "north", "south")
        group.until(lambda: said_of_west(group) == ["gone", "gone"])
        group.train("west", file, resume=True)
        group.until(lambda: waits(group, "west"))
        until_it_is_in("west", group, gate, stopped, stopped + 2, steps)
        gate.write_text(str(steps))
        answers = group.ends()
        assert [answer.code for answer in answers] == [0, 0, 0], [one.err for one in answers]
        run = gathered(group, tmp_path / "gathered")
    found = result_of(run)
    said = re.search(r"west was left out of steps before (\d+), and", "; ".join(found["notes"]))
    assert found["status"] == "done"
    assert said, found["notes"]
    away = {"down": [[2, HELD, int(said[1])]]}
    alone = simulated(
        written(tmp_path / "away", "server", train=train, faults=away), tmp_path / "a"
    )
    assert_near(models_of(run, (0, 1, 2)), nodes_of(alone))
    assert charged(run) == dict.fromkeys(range(3), dict.fromkeys(range(steps), 1))


def test_a_late_client_with_another_file_is_refused_alone_and_comes_with_the_right_one(tmp_path):
    steps = 60
    train = {**TRAIN, "steps": steps}
    file, gate = written(tmp_path, "server", train=train), tmp_path / "gate"
    other = written(tmp_path / "other", "server", train={**train, "batch": 8})
    with consortium(tmp_path) as group:
        gate.write_text(str(HELD))
        group.relay()
        for name in ("north", "south"):
            group.train(name, file, tamper=gated(gate))
        group.until_step(HELD, "north", "south")
        group.train("west", other)
        group.until(lambda: waits(group, "west"))
        until_it_ends("west", group, gate, HELD + 1, steps, ("north", "south"))
        told = group.running["west"].end()
        assert told.code == 2, told
        assert "tacit: train.batch = 8: on west" in told.err
        group.train("west", file)
        group.until(lambda: waits(group, "west"))
        reached = status_of(group.rank_folder("north"))["step"]
        until_it_is_in("west", group, gate, reached, reached + 1, steps)
        gate.write_text(str(steps))
        answers = group.ends()
        assert [answer.code for answer in answers] == [0, 0, 0], [one.err for one in answers]
        assert all("west came back with another experiment" in one.err for one in answers[:2])
        run = gathered(group, tmp_path / "gathered")
    assert result_of(run)["status"] == "done"
    assert charged(run) == dict.fromkeys(range(3), dict.fromkeys(range(steps), 1))


def test_of_two_that_come_together_only_the_one_with_another_file_is_refused(tmp_path):
    steps, names = 60, ("north", "south", "centre", "west", "east")
    first = names[:3]
    changes = {"train": {**TRAIN, "steps": steps}, "nodes": {"count": 5}}
    file, gate = written(tmp_path, "server", **changes), tmp_path / "gate"
    changes["train"] = {**TRAIN, "steps": steps, "batch": 8}
    other = written(tmp_path / "other", "server", **changes)
    with consortium(tmp_path, names) as group:
        gate.write_text(str(HELD))
        group.relay()
        for name in first:
            group.train(name, file, tamper=gated(gate))
        group.until_step(HELD, *first)
        group.train("west", file)
        group.train("east", other)
        group.until(lambda: waits(group, "west") and waits(group, "east"))
        until_it_ends("east", group, gate, HELD + 1, steps, first)
        reached = status_of(group.rank_folder("north"))["step"]
        until_it_is_in("west", group, gate, reached, reached + 1, steps, first)
        assert group.running["east"].end().code == 2
        group.train("east", file)
        group.until(lambda: waits(group, "east"))
        reached = status_of(group.rank_folder("north"))["step"]
        until_it_is_in("east", group, gate, reached, reached + 1, steps, first)
        gate.write_text(str(steps))
        answers = group.ends()
        assert [answer.code for answer in answers] == [0] * 5, [one.err for one in answers]
        run = gathered(group, tmp_path / "gathered")
    assert result_of(run)["status"] == "done"
    assert charged(run) == dict.fromkeys(range(5), dict.fromkeys(range(steps), 1))


@pytest.mark.parametrize("times", [60, 5])
def test_one_whose_budget_is_used_up_does_not_come_back_and_the_others_go_on(times, tmp_path):
    """Also where it would reach for some more steps: the others do not end with it."""
    steps = 60
    changes = {
        "train": {**TRAIN, "steps": steps},
        "privacy": {"noise_std": None, "epsilon": 3.0},
    }
    file, gate = written(tmp_path, "server", **changes), tmp_path / "gate"
    with consortium(tmp_path) as group:
        lost(group, file, gate, until=LATER)
        group.until_step(LATER, "north", "south")
        with closing(
            Ledger.open(group.rank_folder("west") / "ledger.sqlite", digest=None)
        ) as ledger:
            for _ in range(times):
                ledger.reserve(0, HELD)
        for _ in range(2):  # whoever starts it again learns the same, and nobody else is stopped
            group.train("west", file, resume=True)
            group.until(lambda: waits(group, "west"))
            reached = status_of(group.rank_folder("north"))["step"]
            until_it_ends("west", group, gate, reached + 1, steps, ("north", "south"))
            told = group.running["west"].end()
            assert told.code == 3, told
            assert "this site cannot come back at step" in told.refusal
        group.until(lambda: said_of_west(group) == ["gone", "gone"])
        gate.write_text(str(steps))
        answers = [group.running[name].end() for name in ("north", "south")]
        assert [answer.code for answer in answers] == [0, 0], [one.err for one in answers]
        refusals = re.findall(
            "west: .* cannot come back at step .* go on without it", answers[0].err
        )
        assert len(refusals) == 2, answers[0].err
        run = gathered(group, tmp_path / "gathered")
    assert result_of(run)["status"] == "done"
    paid = charged(run)
    assert (paid[0], paid[1]) == (dict.fromkeys(range(steps), 1),) * 2


@pytest.mark.parametrize("damage", ["no ledger", "another site's folder"])
def test_one_whose_run_folder_is_wrong_does_not_come_back_and_the_others_go_on(damage, tmp_path):
    steps = 60
    changes = {
        "train": {**TRAIN, "steps": steps},
        "privacy": {"noise_std": None, "epsilon": 3.0},
    }
    file, gate = written(tmp_path, "server", **changes), tmp_path / "gate"
    with consortium(tmp_path) as group:
        lost(group, file, gate, until=LATER)
        group.until_step(LATER, "north", "south")
        own, kept = group.rank_folder("west"), tmp_path / "kept"
        shutil.copytree(own, kept)
        if damage == "no ledger":
            (own / "ledger.sqlite").unlink()
        else:
            shutil.rmtree(own)
            shutil.copytree(group.rank_folder("south"), own)
        group.train("west", file, resume=True)
        reached = status_of(group.rank_folder("north"))["step"]
        until_it_ends("west", group, gate, reached + 1, steps, ("north", "south"))
        told = group.running["west"].end()
        assert told.code == 2, told
        shutil.rmtree(own)
        shutil.copytree(kept, own)
        group.train("west", file, resume=True)
        group.until(lambda: waits(group, "west"))
        reached = status_of(group.rank_folder("north"))["step"]
        until_it_is_in("west", group, gate, reached, reached + 1, steps)
        gate.write_text(str(steps))
        answers = group.ends()
        assert [answer.code for answer in answers] == [0, 0, 0], [one.err for one in answers]
        run = gathered(group, tmp_path / "gathered")
    assert result_of(run)["status"] == "done"
    assert charged(run) == dict.fromkeys(range(3), dict.fromkeys(range(steps), 1))


def test_one_that_waited_to_be_taken_in_begins_with_the_others_if_they_begin_anew(tmp_path):
    file = written(tmp_path, "server")
    with consortium(tmp_path) as group:
        group.relay()
        session = group.session("west")  # of a beginning that was refused
        session.parent.mkdir(parents=True)
        Journal(session).write_session(Session.new(rejoins=0))
        group.train_all(file, "--resume-if-there")
        answers = group.ends()
        assert [answer.code for answer in answers] == [0, 0, 0], [one.err for one in answers]
        run = gathered(group, tmp_path / "gathered")
    assert charged(run) == dict.fromkeys(range(3), dict.fromkeys(range(STEPS), 1))
    assert_near(models_of(run, (0, 1, 2)), nodes_of(simulated(file, tmp_path / "alone")))


def test_sites_of_which_some_have_given_a_session_up_meet_anew(tmp_path):
    """West hung while it read its records, longer than the others had patience."""
    file = written(tmp_path, "server", faults={"tolerate": False})
    with consortium(tmp_path) as group:
        group.relay()
        for name in NAMES:
            group.train(name, file, tamper=_hang if name == "west" else None)
        answers = [group.running[name].end() for name in ("north", "south")]
        assert {answer.code for answer in answers} == {4}, [one.err for one in answers]
        group.running["west"].kill()
        session = Journal(group.session("west")).session()
        assert session is not None
        assert session.nonces is not None
        group.train_all(file, "--resume-if-there")
        answers = group.ends()
        assert [answer.code for answer in answers] == [0, 0, 0], [one.err for one in answers]


def _hang():
    """Nothing is ever said of the records."""
    prepare._agreed_records = lambda *_: time.sleep(LIMIT)  # type: ignore[assignment]


def test_one_with_a_state_of_its_own_is_told_that_it_was_left_out(tmp_path):
    file, gate = written(tmp_path), tmp_path / "gate"
    with consortium(tmp_path) as group:
        lost(group, file, gate, until=LATER)
        group.until_step(LATER, "north", "south")
        told = group.train("west", file, resume=True).end()
        assert told.code == 2, told  # a service does not start it again
        assert "--site = 'west': was left out, from step 10" in told.refusal


def test_one_that_was_not_heard_to_stop_is_taken_in_later_from_where_it_stopped(tmp_path):
    steps = 60
    changes = {"train": {**TRAIN, "steps": steps}}
    file, gate = written(tmp_path, "server", **changes), tmp_path / "gate"
    with consortium(tmp_path) as group:
        gate.write_text(str(HELD))
        group.relay()
        group.train_all(file, tamper=gated(gate))
        group.until_step(HELD)
        group.running["south"].send(signal.SIGINT)
        until_it_ends("north", group, gate, HELD + 1, steps, NAMES)
        assert [answer.code for answer in group.ends()] == [0, 0, 0]
        stopped = status_of(group.rank_folder("north"))["step"]
        journals = [Journal(group.session(name)) for name in group.names]
        sessions = [journal.session() for journal in journals]
        assert [one and (one.sent, one.without) for one in sessions] == [(stopped, ())] * 3
        assert sessions[0] is not None
        # As it is written where a cut fell on the last words of west.
        journals[0].write_session(sessions[0].model_copy(update={"without": (2,)}))
        for name in ("north", "south"):
            group.train(name, file, resume=True, tamper=gated(gate))
        gate.write_text(str(stopped + 1))
        group.until_step(stopped + 1, "north", "south")
        group.until(lambda: said_of_west(group) == ["gone", "gone"])
        group.train("west", file, resume=True)
        group.until(lambda: waits(group, "west"))
        until_it_is_in("west", group, gate, stopped, stopped + 2, steps)
        gate.write_text(str(steps))
        answers = group.ends()
        assert [answer.code for answer in answers] == [0, 0, 0], [one.err for one in answers]
        run = gathered(group, tmp_path / "gathered")
    found = result_of(run)
    said = re.search(r"west was left out of steps before (\d+), and", "; ".join(found["notes"]))
    assert found["status"] == "done"
    assert said, found["notes"]
    changes["faults"] = {"down": [[2, stopped, int(said[1])]]}
    alone = simulated(written(tmp_path / "away", "server", **changes), tmp_path / "a")
    assert_near(models_of(run, (0, 1, 2)), nodes_of(alone))
    assert charged(run) == dict.fromkeys(range(3), dict.fromkeys(range(steps), 1))


def until_it_is_in(name, group, gate, before, first, steps, others=("north", "south")):
    """Let the others go on, as slowly as those do whom a site comes back to, until it made a step.

    Args:
        name: of the site.
        group: of the sites.
        gate: see `gated`.
        before: a step that the site has not come beyond yet.
        first: the step that the others may make next.
        steps: of the run.
        others: who goes on.
    """
    for step in range(first, steps):
        gate.write_text(str(step))
        group.until_step(step, *others)
        if status_of(group.rank_folder(name)).get("step", 0) > before:
            return


def until_it_ends(name, group, gate, first, steps, others):
    """Let the others go on, step by step, until a site has ended; see `until_it_is_in`."""
    for step in range(first, steps):
        gate.write_text(str(step))
        group.until_step(step, *others)
        if not group.running[name].alive:
            return


def waits(group, name):
    """Whether a site has given its session up for one in which it is taken back."""
    session = Journal(group.session(name)).session()
    return session is not None and session.rejoins is not None and session.starts > 0


@pytest.mark.parametrize("kind", ["push-sum", "pairs of nodes"])
def test_those_that_go_on_outlive_their_own_kills_and_agree(kind, tmp_path):
    models = []
    for number, victims in enumerate([(), ("south", "north")]):
        folder = tmp_path / str(number)
        # Who comes back plans with what the lost one had stated: the noise rests on its records.
        nodes = {"count": 3, "partition": "dirichlet", "alpha": 0.5}
        privacy = {"noise_std": None, "epsilon": 3.0}
        changes = {"nodes": nodes, "privacy": privacy, "train": {**TRAIN, "seed": 1}}
        file, gate = written(folder, kind, **changes), folder / "gate"
        with consortium(folder) as group:
            lost(group, file, gate, until=LATER)
            group.until_step(LATER, "north", "south")
            for victim in victims:
                group.running[victim].kill()
                group.train(victim, file, resume=True, tamper=gated(gate))
                group.until_step(LATER, victim)
            gate.write_text(str(STEPS))
            answers = [group.running[name].end() for name in ("north", "south")]
            assert [answer.code for answer in answers] == [0, 0], [one.err for one in answers]
            run = gathered(group, folder / "gathered")
        models.append(models_of(run))
        # Those that are left still come together: their noised steps are apart, their mean is not.
        apart = (models[-1][0] - models[-1][1]).norm() / models[-1].norm()
        assert result_of(run)["steps"] == STEPS
        assert torch.isfinite(models[-1]).all()
        assert apart < 0.5
        assert charged(run)[1] == dict.fromkeys(range(STEPS), 1)
    assert torch.equal(models[0], models[1])


def test_a_run_whose_graph_falls_apart_without_a_site_ends(tmp_path):
    file = written(tmp_path, topology={"graph": "directed-ring"})
    gate = tmp_path / "gate"
    with consortium(tmp_path) as group:
        lost(group, file, gate)
        for name in ("north", "south"):
            answer = group.running[name].end()
            assert answer.code == 4, answer
            assert "west was lost" in answer.refusal


def models_of(run, ranks=(0, 1)):
    """The models of the sites that came to the end, `[sites, d]`."""
    folders = [run / f"rank-{rank:04d}" for rank in ranks]
    return torch.cat([load_file(one / "nodes.safetensors")["parameters"] for one in folders])


def assert_near(found, right):
    torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(right), **EXACT)
