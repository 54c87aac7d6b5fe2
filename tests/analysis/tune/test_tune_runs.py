"""Searches that run: totals by the ledgers, what is hidden, what is resumed."""

import json
import shutil
import stat
from pathlib import Path

import pytest
import tomli_w

from experiments import Answer, experiment, tacit, write_module
from tacit import privacy
from tacit.analysis.settings.processes import Monitor
from tacit.analysis.tune.costs import plan_search
from tacit.analysis.tune.search import load_search
from tacit.analysis.tune.trials import SearchFolder, run_search
from tacit.errors import BudgetError, InputError
from tacit.privacy.ledger.ledger import read_ledger
from tacit.privacy.ledger.spent import combined, run_mechanism
from tacit.report.documents.metrics import PrivateMeasurement

PRIVATE = {"noise_std": None, "noise_seed": None, "epsilon": 1.0, "delta": 1e-5}
GRID = {"algorithm.learning_rate": [0.2, 0.5], "algorithm.clip": [0.5, 1.0]}
HIDDEN = {"grid": GRID, "cost": "random-stopping", "expected_trials": 3}


def written(folder, tune, **changes):
    path = folder / "search.toml"
    sections = experiment(**{"privacy": PRIVATE, **changes})
    path.write_text(tomli_w.dumps({**sections, "tune": tune}), encoding="utf-8")
    return path


Made = tuple[Path, Path, Answer]


def searched(folder, *found, **changes):
    """The file of a search, its folder, and what the command said."""
    file, out = written(folder, *found, **changes), folder / "out"
    answer = tacit("tune", file, "--out", out)
    assert answer.code == 0, answer.err
    return file, out, answer


@pytest.fixture(scope="module")
def composed(tmp_path_factory):
    """A search that is done, whose trials may be seen: for reading alone."""
    return searched(tmp_path_factory.mktemp("composed"), {"grid": GRID})


@pytest.fixture(scope="module")
def hidden(tmp_path_factory):
    """Likewise one of hidden trials."""
    return searched(tmp_path_factory.mktemp("hidden"), HIDDEN, nodes={"count": 1})


def copied(made, folder):
    """The folder of a search, to be written."""
    return shutil.copytree(made[1], folder / "copy")


def told(out):
    """What it came to."""
    return json.loads((out / "tune.json").read_text())


def spent(paths, node, delta=1e-5):
    """Composed anew from the runs' own ledgers."""
    runs = [read_ledger(path / "ledger.sqlite").runs[0] for path in paths]
    whole = combined(run_mechanism(run, node) for run in runs)
    assert whole is not None
    return privacy.epsilon(whole, delta=delta)


def test_all_trials_keep_one_budget_and_use_it_up(composed):
    _, out, _ = composed
    document = told(out)
    trials = sorted((out / "trials").iterdir())
    assert [trial["folder"] for trial in document["trials"]] == [
        f"trials/{path.name}" for path in trials
    ]
    for node in range(4):
        assert 0.99 < spent(trials, node) <= 1.0
        assert document["epsilon"][node] == pytest.approx(spent(trials, node))
    # Not just a fourth each: composition lets a trial have more.
    assert min(trial["epsilon"] for trial in document["trials"]) > 0.4
    scores = [trial["score"] for trial in document["trials"]]
    best = scores.index(max(scores))
    assert document["score"] == max(scores)
    assert document["winner"] == document["trials"][best]["choice"]
    assert document["folder"] == document["trials"][best]["folder"]


def test_what_is_said_of_the_winner_has_the_cost_of_choosing(composed, tmp_path):
    out = copied(composed, tmp_path)
    document = told(out)
    winner = out / document["folder"]
    result = json.loads((winner / "result.json").read_text())
    assert "with the cost of choosing, epsilon is 1" in result["choosing"]
    assert any("with the cost of choosing, epsilon is 1" in line for line in result["warnings"])
    assert "with the cost of choosing, epsilon is 1" in (winner / "report.html").read_text()
    assert tacit("privacy", "statement", winner).code == 0
    statement = json.loads((winner / "statement.json").read_text())
    assert [row["epsilon"] for row in statement["nodes"]] == pytest.approx(document["epsilon"])
    checked = tacit("privacy", "check", winner / "statement.json")
    assert checked.code == 0, checked.err
    # Whoever writes the trial's own epsilon in its place is found out.
    statement["nodes"][0]["epsilon"] = result["epsilon"][0]
    (winner / "statement.json").write_text(json.dumps(statement))
    assert "must be" in tacit("privacy", "check", winner / "statement.json").refusal
    # So is every other trial's, and the winner's experiment is a plain one without a search.
    for trial in document["trials"]:
        assert (out / trial["folder"] / "trial.json").is_file()
    assert "[tune]" not in (out / "winner.toml").read_text()
    # What was spent is spent: running it again on the same ledger is refused.
    again = tacit("train", out / "winner.toml", "--out", tmp_path / "again")
    assert again.code == 3


def test_trials_of_different_lengths_share_the_budget(tmp_path):
    file = written(tmp_path, {"grid": {"train.steps": [2, 8, 20]}}, nodes={"count": 2})
    plan = plan_search(load_search(file))
    assert 0.99 < plan.total[0] <= 1.0
    whole = privacy.Composed(
        [
            privacy.Gaussian(noise, steps)
            for noise, steps in zip(plan.noise, plan.steps, strict=True)
        ]
    )
    assert privacy.epsilon(whole, delta=1e-5) == pytest.approx(plan.total[0], rel=1e-3)


def test_nodes_with_budgets_of_their_own_keep_them(tmp_path):
    file = written(
        tmp_path,
        {"grid": GRID},
        nodes={"count": 3},
        privacy={**PRIVATE, "epsilon": [0.5, 1.0, 2.0]},
    )
    plan = plan_search(load_search(file))
    for total, budget in zip(plan.total, (0.5, 1.0, 2.0), strict=True):
        assert 0.99 * budget < total <= budget


@pytest.mark.parametrize(
    "changes",
    [
        {"privacy": {**PRIVATE, "noise": "pairwise"}},
        {
            "algorithm": {"name": "dp-fedavg", "learning_rate": None, "clip": None},
            "privacy": {**PRIVATE, "aggregation": "secure-sum"},
        },
        {"train": {"batch": 40, "steps": 4}},
    ],
)
def test_other_trust_models_and_sampled_batches(tmp_path, changes):
    file = written(tmp_path, {"grid": {"train.dtype": ["float32", "float64"]}}, **changes)
    plan = plan_search(load_search(file))
    assert all(0.97 < total <= 1.0 for total in plan.total)
    own = [max(row) for row in plan.epsilon]
    assert max(own) < 0.9


def test_of_hidden_trials_nothing_is_shown(hidden):
    _, out, answer = hidden
    said = answer.out + answer.err
    drawn = json.loads((out / "private" / "draws.json").read_text())["settings"]
    trials = sorted((out / "private" / "trials").iterdir())
    assert len(trials) == len(drawn)
    assert "trial 1" not in said
    document = told(out)
    assert document["trials"] == []
    assert 0.97 < document["epsilon"][0] <= 1.0
    # Only its owner can read what is private.
    for path in (out / "private").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    shown = [path for path in out.rglob("*") if "private" not in path.parts and path.is_file()]
    names = {str(path.relative_to(out)) for path in shown}
    assert names == {
        "lock",
        "search.json",
        "tune.json",
        "winner.toml",
        "winner/config.toml",
        "winner/metrics.jsonl",
        "winner/model.safetensors",
        "winner/report.html",
        "winner/result.json",
        "winner/trial.json",
    }
    result = json.loads((out / "winner" / "result.json").read_text())
    assert result["epsilon"] == document["epsilon"]
    assert result["seconds"] is None
    rows = [json.loads(line) for line in (out / "winner" / "metrics.jsonl").open()]
    for row in rows:
        for key in {*PrivateMeasurement.model_fields, "seconds", "epsilon"} - {"step"}:
            assert row[key] is None
    # No other trial's run, score or date is in any shown file.
    runs = [read_ledger(path / "ledger.sqlite").runs[0] for path in trials]
    content = b"".join(path.read_bytes() for path in shown)
    for run in runs:
        assert run.run_id.encode() not in content
        assert run.created[:19].encode() not in content
    assert "secret number" in tacit("privacy", "statement", out / "winner").refusal


def test_the_noise_of_hidden_trials_is_what_the_theorem_asks(tmp_path):
    search = load_search(written(tmp_path, HIDDEN, nodes={"count": 1}))
    plan = plan_search(search)
    assert search.law is not None
    bound = privacy.choosing_epsilon(privacy.Gaussian(min(plan.noise), 6), search.law, delta=1e-5)
    assert 0.98 < bound <= 1.0
    composed = plan_search(load_search(written(tmp_path, {"grid": GRID}, nodes={"count": 1})))
    assert max(composed.noise) > min(plan.noise) > 0


def test_a_poisson_number_of_trials_may_be_none(tmp_path):
    tune = {"grid": GRID, "cost": "random-stopping", "distribution": "poisson"}
    file = written(tmp_path, {**tune, "expected_trials": 1e-9}, nodes={"count": 1})
    out = tmp_path / "out"
    answer = tacit("tune", file, "--out", out)
    assert answer.code == 0, answer.err
    assert "there is no winner" in answer.out
    assert not (out / "winner").exists()
    assert not (out / "winner.toml").exists()


def test_a_search_on_public_records_costs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = write_module(
        tmp_path,
        """
        def noise():
            made = torch.Generator().manual_seed(3)
            inputs = torch.randn(400, 64, generator=made)
            records = Dataset(inputs, (inputs[:, :10]).argmax(1))
            return TaskData("noise", records, records, 10)
        """,
    )
    tune = {"grid": GRID, "cost": "public", "set": {"task.dataset": f"{module}:noise"}}
    file = written(tmp_path, tune, privacy={**PRIVATE, "ledger": "kept"})
    out = tmp_path / "out"
    answer = tacit("tune", file, "--out", out, "--json")
    assert answer.code == 0, answer.err
    document = answer.json
    assert document["folder"] == "winner"
    # The winner had the whole budget, and the ledger of the private records knows it alone.
    assert 0.99 < document["epsilon"][0] <= 1.0
    assert document["epsilon"][0] == pytest.approx(spent([out / "winner"], 0))
    report = tacit("privacy", "ledger", tmp_path / "kept", "--json").json
    assert len(report["runs"]) == 1
    assert "ledger" not in (out / "trials" / "0001" / "config.toml").read_text().split("[train]")[0]
    assert document["trials"][0]["score"] is not None


def test_a_stopped_search_goes_on_and_runs_nothing_twice(tmp_path):
    file, out = written(tmp_path, {"grid": GRID}), tmp_path / "out"
    search = load_search(file)
    plan = plan_search(search)
    begun = []
    steps = []
    monitor = Monitor(
        start=lambda trial: begun.append(trial.name),
        step=lambda trial, share: steps.append(trial.name),
        should_stop=lambda: len(set(steps)) == 2,
    )
    with SearchFolder.begin(out, search.digest(), plan.epsilon) as folder:
        assert run_search(plan, folder, monitor) is None
    assert [name.partition(":")[0] for name in begun] == ["trial 1 of 4", "trial 2 of 4"]
    first = (out / "trials" / "0001" / "result.json").read_bytes()
    document = tacit("tune", file, "--out", out, "--resume", "--json").json
    assert (out / "trials" / "0001" / "result.json").read_bytes() == first
    trials = [out / trial["folder"] for trial in document["trials"]]
    assert len(trials) == 4
    assert 0.9 < spent(trials, 0) <= 1.0
    assert document["epsilon"][0] == pytest.approx(spent(trials, 0))
    # A search that is done says the same again, and runs nothing.
    again = tacit("tune", file, "--out", out, "--resume", "--json").json
    assert again == document


def test_trials_of_an_executor_take_turns_and_hidden_ones_stay_here(tmp_path, monkeypatch):
    (tmp_path / "workers.py").write_text(
        "from concurrent.futures import ThreadPoolExecutor\n\n\n"
        "def threads():\n    return ThreadPoolExecutor(2)\n"
    )
    monkeypatch.chdir(tmp_path)
    file = written(tmp_path, {"grid": {"algorithm.clip": [0.5, 1.0]}})
    answer = tacit("tune", file, "--out", "out", "--executor", "workers:threads")
    assert answer.code == 0, answer.err
    assert [trial["status"] for trial in told(tmp_path / "out")["trials"]] == ["done", "done"]
    file = written(tmp_path, HIDDEN, nodes={"count": 1})
    refused = tacit("tune", file, "--out", "hidden", "--executor", "workers:threads")
    assert "hidden trials" in refused.refusal


def test_a_folder_is_of_one_search(composed, tmp_path):
    file, out, _ = composed
    assert "exists already" in tacit("tune", file, "--out", out).refusal
    other = written(tmp_path, {"grid": {"algorithm.clip": [0.1]}})
    assert "another search" in tacit("tune", other, "--out", out, "--resume").refusal
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert "holds no search" in tacit("tune", other, "--out", tmp_path / "full", "--resume").refusal


def test_a_trial_that_diverges_loses(tmp_path):
    grid = {"algorithm.learning_rate": [0.5, 1e30]}
    out = tmp_path / "out"
    document = tacit("tune", written(tmp_path, {"grid": grid}), "--out", out, "--json").json
    assert [trial["status"] for trial in document["trials"]] == ["done", "diverged"]
    assert document["winner"] == {"algorithm.learning_rate": 0.5}
    assert 0.99 < document["epsilon"][0] <= 1.0  # what it sent was sent


@pytest.mark.slow
def test_a_ledger_of_ones_own_has_the_last_word(tmp_path):
    """Where earlier runs have spent of it, trials get what is left, and never more."""
    kept = {**PRIVATE, "ledger": "kept", "ledger_epsilon": 1.1}
    plain = tmp_path / "first.toml"
    plain.write_text(tomli_w.dumps(experiment(privacy={**kept, "epsilon": 0.7})), encoding="utf-8")
    assert tacit("train", plain, "--out", tmp_path / "first").code == 0
    file = written(tmp_path, {"grid": GRID}, privacy=kept)
    answer = tacit("tune", file, "--out", tmp_path / "out", "--json")
    assert answer.code == 0, answer.err
    trials = [tmp_path / "out" / trial["folder"] for trial in answer.json["trials"]]
    there = [path for path in trials if path.is_dir()]
    assert spent([tmp_path / "first", *there], 0) <= 1.1
    report = tacit("privacy", "ledger", tmp_path / "kept", "--json").json
    assert max(row["epsilon"] for row in report["nodes"]) <= 1.1


def test_without_public_test_records_nothing_is_chosen(tmp_path):
    table = tmp_path / "t.csv"
    lines = ["a,b,y"] + [f"{i % 7},{i % 5},{i % 2}" for i in range(60)]
    table.write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "t.schema.toml").write_text(
        '[target]\nname = "y"\ntype = "category"\nvalues = ["0", "1"]\n'
        '[columns.a]\ntype = "number"\nlow = 0\nhigh = 6\n'
        '[columns.b]\ntype = "number"\nlow = 0\nhigh = 4\n',
        encoding="utf-8",
    )
    task = {"dataset": f"csv:{table}", "schema": str(tmp_path / "t.schema.toml")}
    file = written(tmp_path, {"grid": GRID}, task=task, nodes={"count": 2})
    with pytest.raises(InputError, match=r"task\.test|schema"):
        plan_search(load_search(file))


def test_a_budget_that_cannot_be_kept_is_refused(tmp_path):
    file = written(tmp_path, {"grid": GRID}, privacy={**PRIVATE, "epsilon": 1e-9, "delta": 1e-90})
    with pytest.raises((BudgetError, InputError)):
        plan_search(load_search(file))


def test_a_plan_runs_nothing(tmp_path):
    file = written(tmp_path, {"grid": GRID})
    answer = tacit("tune", file, "--plan", "--out", tmp_path / "out", "--json")
    assert [trial["steps"] for trial in answer.json["trials"]] == [6] * 4
    assert answer.json["epsilon"][0] <= 1.0
    assert not (tmp_path / "out").exists()
    assert "all of it may cost" in tacit("tune", file, "--plan").out


def test_seeded_noise_is_not_private_and_says_so(tmp_path):
    for tune, count in (({"grid": GRID}, 2), (HIDDEN, 1)):
        file = written(tmp_path, tune, privacy={**PRIVATE, "noise_seed": 3}, nodes={"count": count})
        out = tmp_path / f"out-{count}"
        document = tacit("tune", file, "--out", out, "--json").json
        assert document["private"] is False
        assert set(document["epsilon"]) == {None}
        assert "NOT PRIVATE" in document["sentences"][0]


def test_a_hidden_winner_can_be_scored_and_its_page_written_again(hidden, tmp_path):
    out = copied(hidden, tmp_path)
    document = told(out)
    score = tacit("evaluate", out / "winner", "--json").json
    assert score["accuracy"] == pytest.approx(document["score"])
    assert tacit("report", out / "winner").code == 0
    page = (out / "winner" / "report.html").read_text()
    assert "with the cost of choosing" in page


def test_damaged_files_of_a_search_are_named(hidden, tmp_path):
    file, out = hidden[0], copied(hidden, tmp_path)
    (out / "tune.json").unlink()
    draws = out / "private" / "draws.json"
    draws.write_text('{"format_version": 1, "settings": [99]}')
    assert "draws.json" in tacit("tune", file, "--out", out, "--resume", "--json").refusal
    draws.write_text("{")
    assert "draws.json" in tacit("tune", file, "--out", out, "--resume", "--json").refusal
    (out / "search.json").write_text("[]")
    assert "search.json" in tacit("tune", file, "--out", out, "--resume").refusal
