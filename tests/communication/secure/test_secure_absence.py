"""Sites that leave: for a while, for too long, with and without a word."""

import resource
import shutil
import signal
from collections import Counter

import numpy as np
import pytest
from sklearn.datasets import load_digits

from communication.cluster.crew import charged, result_of, simulated
from communication.cluster.test_cluster_runs import assert_same_run
from communication.secure.sites import NAMES, consortium, gated, gathered, status_of
from experiments import write_experiment
from tacit.privacy.ledger.ledger import read_ledger, step_runs
from tacit.privacy.ledger.shared import account_files
from tacit.training.run_folder.checkpoint import file_of

pytestmark = pytest.mark.process

STEPS, HELD = 12, 6


def written(folder, *, own=False, noise_seed=7, **changes):
    """A run of a few steps, with a checkpoint at every fourth; of each site's own files or not."""
    train = {
        "steps": STEPS, "batch": 16, "dtype": "float64", "evaluate_every": 2,
        "checkpoint_every": 4, "patience": 200.0, **changes,
    }  # fmt: skip
    if not own:
        return write_experiment(folder, nodes={"count": 3}, train=train)
    return write_experiment(
        folder,
        task={"dataset": None, "outputs": 10},
        nodes={"count": 3, "data": "by-rank", "source": "own-{node}.npz"},
        privacy={"noise_seed": noise_seed},
        train=train,
    )


def held(group, file, gate, step=HELD, **options):
    """Start all sites, which wait before a step until the gate is opened."""
    gate.write_text(str(step))
    group.relay()
    group.train_all(file, tamper=gated(gate), **options)
    group.until_step(step)


def assert_right(group, file, folder):
    """The run ended as the simulator's does, with each step charged once."""
    run = gathered(group, folder / "gathered")
    assert_same_run(run, simulated(file, folder / "alone"))
    assert {times for one in charged(run).values() for times in one.values()} == {1}


def test_a_site_that_is_away_for_too_long_is_named_and_all_go_on_later(tmp_path):
    file, gate = written(tmp_path, patience=8.0), tmp_path / "gate"
    with consortium(tmp_path) as group:
        held(group, file, gate)
        group.running["west"].kill()
        gate.write_text(str(STEPS))
        for name in ("north", "south"):
            answer = group.running[name].end()
            assert answer.code == 4, answer
            assert "west was lost" in answer.refusal  # found, or told
            assert "--resume" in answer.refusal
            status = status_of(group.rank_folder(name))
            assert status["state"] == "failed"
            assert "west" in status["last_error"]
        group.train_all(file, resume=True)
        answers = group.ends()
        assert [answer.code for answer in answers] == [0] * 3, answers
        assert_right(group, file, tmp_path)


def test_a_site_whose_system_goes_down_is_waited_for(tmp_path):
    file, gate = written(tmp_path), tmp_path / "gate"
    with consortium(tmp_path) as group:
        held(group, file, gate)
        group.running["north"].send(signal.SIGTERM)
        assert group.running["north"].end().code == -signal.SIGTERM
        gate.write_text(str(STEPS))
        south = group.rank_folder("south")
        group.until(lambda: status_of(south).get("waiting_for") in ([0], ["north"]))
        group.until(lambda: status_of(south)["state"] == "waiting")
        group.train("north", file, resume=True)
        answers = group.ends()
        assert [answer.code for answer in answers] == [0] * 3, answers
        assert_right(group, file, tmp_path)


def test_a_stop_at_one_site_stops_all_at_one_step_and_they_go_on(tmp_path):
    steps = 100  # the later, the longer apart are the votes on whether to stop
    file, gate = written(tmp_path, steps=steps), tmp_path / "gate"
    with consortium(tmp_path) as group:
        held(group, file, gate)
        group.running["west"].send(signal.SIGINT)
        gate.write_text(str(steps))
        answers = group.ends()
        assert [answer.code for answer in answers] == [0] * 3, answers
        (stopped,) = {status_of(group.rank_folder(name))["step"] for name in NAMES}
        assert {status_of(group.rank_folder(name))["state"] for name in NAMES} == {"stopped"}
        assert result_of(group.run_folder("north"))["status"] == "stopped"
        assert HELD <= stopped < steps
        assert not group.session("west").exists()
        group.train_all(file, resume=True)
        answers = group.ends()
        assert [answer.code for answer in answers] == [0] * 3, answers
        run = gathered(group, tmp_path / "gathered")
        # The first session's stop keeps all planned steps charged, and going on costs no more.
        assert charged(run) == charged(simulated(file, tmp_path / "alone"))
        assert result_of(run)["status"] == "done"


@pytest.mark.parametrize("lost", ["session", "run folder"])
def test_a_site_that_lost_its_own_cannot_come_back_as_if_nothing_were(lost, tmp_path):
    file, gate = written(tmp_path, patience=8.0), tmp_path / "gate"
    with consortium(tmp_path) as group:
        held(group, file, gate, step=10)  # the second checkpoint: what came before is forgotten
        group.running["west"].kill()
        session = group.session("west")
        shutil.rmtree(session if lost == "session" else group.run_folder("west"))
        answer = group.train("west", file, resume=True).end()
        gate.write_text(str(STEPS))  # only now do the others begin to wait for it
        assert answer.code == 2, answer
        if lost == "session":
            assert "an earlier session of this site, of which nothing is here" in answer.refusal
        else:
            assert "has no checkpoint of step" in answer.refusal
        for name in ("north", "south"):  # they wait for as long as they said, and no longer
            answer = group.running[name].end()
            assert (answer.code, "west" in answer.refusal) == (4, True)


@pytest.mark.parametrize("lost", ["run folder", "last checkpoint"])
def test_a_site_that_lost_what_its_session_still_reaches_makes_more_steps_again(lost, tmp_path):
    file, gate = written(tmp_path), tmp_path / "gate"
    with consortium(tmp_path) as group:
        held(group, file, gate, step=HELD if lost == "run folder" else 10)
        group.running["west"].kill()
        if lost == "run folder":  # at the first checkpoint a session still holds the beginning
            shutil.rmtree(group.run_folder("west"))
        else:
            damaged = file_of(group.rank_folder("west"), 8)
            damaged.write_bytes(damaged.read_bytes()[:-100])
        gate.write_text(str(STEPS))
        group.train("west", file, resume=True)
        answers = group.ends()
        assert [answer.code for answer in answers] == [0] * 3, answers
        assert_right(group, file, tmp_path)


def test_ledgers_of_the_data_charge_a_step_once_that_is_made_again(tmp_path):
    file, gate = written(tmp_path, own=True, noise_seed=None), tmp_path / "gate"
    with consortium(tmp_path) as group:
        more = {}
        for rank, name in enumerate(NAMES):
            write_records(group.home(name) / f"own-{rank}.npz", rank)
            ledger = f"privacy.ledger={tmp_path / 'ledgers' / name}"
            more[name] = ("--set", ledger, "--set", "privacy.ledger_epsilon=10000")
        gate.write_text(str(HELD))
        group.relay()
        for name in NAMES:
            group.train(name, file, *more[name], tamper=gated(gate))
        group.until_step(HELD)
        for name in ("north", "west"):
            group.running[name].kill()
            group.train(name, file, *more[name], resume=True, tamper=gated(gate))
        gate.write_text(str(STEPS))
        answers = group.ends()
        assert [answer.code for answer in answers] == [0] * 3, answers
        once = {rank: Counter(range(STEPS)) for rank in range(3)}
        assert charged(gathered(group, tmp_path / "gathered")) == once
        for name in NAMES:
            (ledger,) = account_files(tmp_path / "ledgers" / name)
            (run,) = read_ledger(ledger).runs
            (intervals,) = run.charged.values()
            assert step_runs(intervals) == ((0, STEPS, 1),)


def test_records_that_were_changed_are_not_sent_and_the_others_wait_for_the_right_ones(tmp_path):
    file, gate = written(tmp_path, own=True), tmp_path / "gate"
    with consortium(tmp_path) as group:
        for rank, name in enumerate(NAMES):
            write_records(group.home(name) / f"own-{rank}.npz", rank)
        held(group, file, gate)
        group.running["west"].kill()
        write_records(group.home("west") / "own-2.npz", 2, corrected=True)
        answer = group.train("west", file, resume=True).end()
        assert answer.code == 2, answer  # a service does not start it again
        assert "differs from the one that was sent before this process came back" in answer.refusal
        gate.write_text(str(STEPS))
        write_records(group.home("west") / "own-2.npz", 2)
        group.train("west", file, resume=True)
        answers = group.ends()
        assert [answer.code for answer in answers] == [0] * 3, answers
        once = {rank: Counter(range(STEPS)) for rank in range(3)}
        assert charged(gathered(group, tmp_path / "gathered")) == once


def test_a_session_that_finds_no_room_is_charged_for_what_was_sent_alone(tmp_path):
    file = written(tmp_path, steps=300, checkpoint_every=300)
    with consortium(tmp_path) as group:
        group.relay()
        for name in ("north", "south"):
            group.train(name, file)
        answer = group.train("west", file, tamper=_small_files).end()
        assert answer.code == 2, answer
        assert "tacit: session = 'runs/.run.session-0002'" in answer.refusal
        assert "when there is room to write, go on with --resume" in answer.refusal
        (run,) = read_ledger(group.rank_folder("west") / "ledger.sqlite").runs
        (intervals,) = run.charged.values()
        assert step_runs(intervals)[-1][1] < 300
        group.train("west", file, resume=True)
        answers = group.ends()
        assert [answer.code for answer in answers] == [0] * 3, answers
        once = {rank: Counter(range(300)) for rank in range(3)}
        assert charged(gathered(group, tmp_path / "gathered")) == once


def _small_files():
    """No file grows beyond what a session needs for some steps."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))


def write_records(file, rank, *, corrected=False):
    """A site's own records: some digits, of which one may have been corrected since."""
    digits = load_digits()
    inputs = digits.data[rank::3].astype(np.float32) / 16
    if corrected:
        inputs[:, 0] += 0.25
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, inputs=inputs, targets=digits.target[rank::3])
