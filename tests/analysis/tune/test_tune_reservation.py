"""Hidden trials in the ledger of the data: one entry of the whole, before the first, and once."""

import json

import pytest
import tomli_w
import torch

from experiments import experiment, tacit
from tacit.analysis.settings.processes import Monitor
from tacit.analysis.tune.costs import plan_search
from tacit.analysis.tune.search import load_search
from tacit.analysis.tune.trials import SearchFolder, run_search
from tacit.data import Dataset, TaskData
from tacit.errors import BudgetError
from tacit.privacy.ledger.ledger import read_ledger
from tacit.privacy.ledger.shared import account_files

PRIVATE = {"noise_std": None, "noise_seed": None, "epsilon": 1.0, "delta": 1e-5}
HIDDEN = {
    "grid": {"algorithm.clip": [0.5, 1.0]},
    "cost": "random-stopping",
    "distribution": "poisson",
    "expected_trials": 2,
}


def written(folder, tune=HIDDEN, **privacy):
    path = folder / "search.toml"
    own = {**PRIVATE, "ledger": "ledgers", **privacy}
    sections = experiment(nodes={"count": 1}, privacy=own, train={"steps": 3})
    path.write_text(tomli_w.dumps({**sections, "tune": tune}), encoding="utf-8")
    return path


def account(folder):
    (file,) = account_files(folder / "ledgers")
    return read_ledger(file)


@pytest.mark.slow
def test_the_total_is_reserved_before_the_first_trial_and_once(tmp_path):
    search = load_search(written(tmp_path))
    plan, out = plan_search(search), tmp_path / "out"
    assert plan.winner is not None
    seen = []

    def stop():  # asked before the first trial, and by it
        seen.append(len(account(tmp_path).runs))
        return True

    with SearchFolder.begin(out, search.digest(), plan.epsilon) as folder:
        folder.keep_draws([0, 1])
        assert run_search(plan, folder, Monitor(should_stop=stop)) is None
    (run,) = account(tmp_path).runs
    assert seen == [1]
    assert (list(run.charged.values()), run.statements[0]["kind"]) == ([((0, 1),)], "known")
    # It goes on where it was: with what it began with, and is charged no more.
    known = SearchFolder.known(out, search.digest(), resume=True)
    assert known is not None
    again = plan_search(search, known.epsilon)
    with SearchFolder.begin(out, search.digest(), again.epsilon) as folder:
        document = run_search(again, folder, Monitor())
    assert document is not None
    assert len(list((out / "private" / "trials").iterdir())) == 2
    assert account(tmp_path).runs == (run,)
    spent = tacit("privacy", "ledger", tmp_path / "ledgers", "--json").json["nodes"][0]
    assert spent["epsilon"] == pytest.approx(plan.total[0]) == pytest.approx(document.epsilon[0])
    assert "ledger" not in (out / "winner" / "config.toml").read_text(encoding="utf-8")
    assert "ledger" in (out / "winner.toml").read_text(encoding="utf-8")


def test_what_does_not_fit_is_refused_before_any_trial(tmp_path):
    file = written(tmp_path, ledger_epsilon=1.5)
    assert tacit("tune", file, "--out", tmp_path / "first").code == 0
    answer = tacit("tune", file, "--out", tmp_path / "second")
    assert answer.code == BudgetError.exit_code == 3
    assert "no trial was run" in answer.err
    assert len(account(tmp_path).runs) == 1
    assert not (tmp_path / "second" / "private").exists()


def test_other_runs_on_the_data_see_what_a_search_has_spent(tmp_path):
    search = load_search(written(tmp_path, ledger_epsilon=1.5))
    plan = plan_search(search)
    with SearchFolder.begin(tmp_path / "out", search.digest(), plan.epsilon) as folder:
        folder.keep_draws([1])  # none may be drawn as well, and no trial has no winner
        assert run_search(plan, folder, Monitor()) is not None
    winner = tmp_path / "out" / "winner.toml"
    refused = tacit("train", winner, "--set", "privacy.epsilon=1.0", "--out", tmp_path / "run")
    assert refused.code == 3, refused.err
    fits = tacit("train", winner, "--set", "privacy.epsilon=0.1", "--out", tmp_path / "run")
    assert fits.code == 0, fits.err
    spent = tacit("privacy", "ledger", tmp_path / "ledgers", "--json").json["nodes"][0]
    assert 1.0 < spent["epsilon"] <= 1.5
    assert len(json.dumps(spent["releases"])) > 2
    assert {release["steps"] for release in spent["releases"]} == {1, 3}


PUBLIC = {"grid": HIDDEN["grid"], "cost": "public", "set": {"task.dataset": f"{__name__}:made"}}
COMPOSED = {"grid": HIDDEN["grid"], "cost": "composed"}


@pytest.mark.parametrize(("named", "releases"), [(HIDDEN, 1), (PUBLIC, 1), (COMPOSED, 2)])
def test_a_search_of_another_sources_records_is_refused_before_any_trial(named, releases, tmp_path):
    """Whichever way its choice is paid for; and named as they are, all of them draw on it."""
    limits = {"ledger_epsilon": 4.0}
    assert tacit("tune", written(tmp_path, **limits), "--out", tmp_path / "first").code == 0
    for tune in (HIDDEN, PUBLIC, COMPOSED):
        other = written(tmp_path, tune, ledger_source="other", **limits)
        out = tmp_path / str(tune["cost"])
        refused = tacit("tune", other, "--out", out)
        assert refused.code == 3
        assert "privacy.ledger_source = 'digits' at this node names them all" in refused.err
        assert len(account(tmp_path).runs) == 1
        assert not list(out.glob("*/*"))
    both = {"ledger_source": "digits + new", **limits}
    answer = tacit("tune", written(tmp_path, named, **both), "--out", tmp_path / "named")
    assert answer.code == 0, answer.err
    document = tacit("privacy", "ledger", tmp_path / "ledgers", "--json").json
    spent = {row["data"]: len(row["releases"]) for row in document["nodes"]}
    assert spent == {"digits": 1 + releases, "new": releases}


def test_why_a_trial_is_lost_stands_on_the_own_screen_alone(tmp_path):
    file = written(tmp_path, COMPOSED, ledger_epsilon=1.0)
    assert tacit("tune", file, "--out", tmp_path / "first").code == 0
    again = tacit("tune", file, "--out", tmp_path / "second")
    assert (again.code, again.err.count(": lost: node 0: the budget of its data")) == (0, 2)
    for path in (tmp_path / "second").rglob("*"):
        assert path.is_dir() or b"is spent" not in path.read_bytes()


def made():
    """Public records that are nobody's."""
    coins = torch.Generator().manual_seed(3)
    inputs = torch.randn(200, 64, generator=coins)
    records = Dataset(inputs, inputs[:, :10].argmax(1))
    return TaskData("made", records, records, 10)
