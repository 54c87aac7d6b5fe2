"""`tacit tune` in processes of its own: killed at any moment, and resumed."""

import json
import signal
import time

import pytest
import tomli_w

from experiments import experiment, start_tacit, wait_tacit
from tacit import privacy
from tacit.privacy.ledger.ledger import read_ledger
from tacit.privacy.ledger.spent import combined, run_mechanism

pytestmark = pytest.mark.process

BUDGET = 1.0


def written(folder, tune, **changes):
    path = folder / "search.toml"
    private = {"noise_std": None, "noise_seed": None, "epsilon": BUDGET, "delta": 1e-5}
    sections = experiment(
        privacy=private,
        train={"steps": 60, "checkpoint_every": 7},
        algorithm={"learning_rate": 0.2},
        **changes,
    )
    path.write_text(tomli_w.dumps({**sections, "tune": tune}), encoding="utf-8")
    return path


def ended(process, when, how=signal.SIGKILL):
    """End it once something is so, and give what it said; it may have ended by itself."""
    end = time.monotonic() + 90
    while not when() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
    process.send_signal(how)
    return process.communicate(timeout=60)[1]


def spent(folder, node):
    """What the ledgers of all trials say, those that were cut off included."""
    runs = [
        run for path in folder.rglob("trials/*/ledger.sqlite") for run in read_ledger(path).runs
    ]
    whole = combined(run_mechanism(run, node) for run in runs)
    assert whole is not None
    return privacy.epsilon(whole, delta=1e-5)


def test_a_search_that_is_killed_again_and_again_keeps_its_budget(tmp_path):
    file = written(tmp_path, {"grid": {"algorithm.clip": [0.3, 0.6, 1.0]}}, nodes={"count": 2})
    out = tmp_path / "out"
    moments = [
        lambda: (out / "search.json").exists(),
        lambda: any((out / "trials" / "0001").glob("checkpoint-*")),
        lambda: (out / "trials" / "0002" / "ledger.sqlite").exists(),
        lambda: any((out / "trials" / "0002").glob("checkpoint-*")),
        lambda: any((out / "trials" / "0003").glob("checkpoint-*")),
        lambda: (out / "winner.toml").exists(),
    ]
    more = []
    for moment in moments:
        ended(start_tacit("tune", file, "--out", out, *more), moment)
        more = ["--resume"]
    answer = wait_tacit("tune", file, "--out", out, "--resume", "--json")
    assert answer.code == 0, answer.err
    document = json.loads(answer.out)
    assert [trial["status"] for trial in document["trials"]].count("lost") < 3
    for node in range(2):
        assert 0.5 < spent(out, node) <= BUDGET
        assert document["epsilon"][node] == pytest.approx(spent(out, node))
    report = wait_tacit("privacy", "ledger", out / "ledger", "--json").json
    for row in report["nodes"]:
        assert row["epsilon"] <= BUDGET
    # Steps that were made twice are charged twice, in the run's own ledger and in that of the data.
    charged = [
        until - first
        for path in sorted(out.glob("trials/*/ledger.sqlite"))
        for first, until in read_ledger(path).runs[0].charged[0]
    ]
    assert sum(charged) > 0


def test_hidden_trials_that_are_killed_leave_a_whole_winner(tmp_path):
    tune = {"grid": {"algorithm.clip": [0.3, 1.0]}, "cost": "random-stopping", "expected_trials": 3}
    file = written(tmp_path, tune, nodes={"count": 1})
    out = tmp_path / "out"
    trials = out / "private" / "trials"
    ended(start_tacit("tune", file, "--out", out), lambda: (out / "private/draws.json").exists())
    drawn = (out / "private" / "draws.json").read_bytes()
    ended(
        start_tacit("tune", file, "--out", out, "--resume"),
        lambda: any((trials / "0001").glob("checkpoint-*")),
    )
    ended(start_tacit("tune", file, "--out", out, "--resume"), lambda: (out / "winner").exists())
    answer = wait_tacit("tune", file, "--out", out, "--resume", "--json")
    assert answer.code == 0, answer.err
    # K is drawn once: another draw after a kill would be a choice of the best of two.
    assert (out / "private" / "draws.json").read_bytes() == drawn
    document = json.loads(answer.out)
    assert 0.97 < document["epsilon"][0] <= BUDGET
    # A trial that was cut off was begun anew: each one's ledger has each step once.
    for path in trials.glob("*/ledger.sqlite"):
        (charged,) = read_ledger(path).runs[0].charged.values()
        steps = [step for first, until in charged for step in range(first, until)]
        assert sorted(steps) == list(range(60))


def test_an_interrupt_ends_it_cleanly(tmp_path):
    file = written(tmp_path, {"grid": {"algorithm.clip": [0.3, 0.6, 1.0]}}, nodes={"count": 2})
    out = tmp_path / "out"
    process = start_tacit("tune", file, "--out", out)
    err = ended(process, lambda: any(out.glob("trials/0001/checkpoint-*")), signal.SIGINT)
    assert process.returncode == 0, err
    assert "--resume" in err or (out / "tune.json").exists()
    answer = wait_tacit("tune", file, "--out", out, "--resume", "--json")
    assert answer.code == 0, answer.err
    assert 0.97 < spent(out, 0) <= BUDGET
