"""The section `[tune]`: what is searched, and what is refused before anything runs."""

from pathlib import Path

import pytest
import tomli_w

from experiments import experiment, tacit
from tacit.analysis.tune.search import load_search
from tacit.errors import InputError
from tacit.privacy import NegativeBinomialTrials, PoissonTrials

PRIVATE = {"noise_std": None, "noise_seed": None, "epsilon": 1.0}
GRID = {"algorithm.learning_rate": [0.2, 0.5], "algorithm.clip": [0.5, 1.0, 2.0]}


def written(folder, tune, **changes):
    path = folder / "search.toml"
    sections = experiment(**{"privacy": PRIVATE, **changes})
    path.write_text(tomli_w.dumps({**sections, "tune": tune}), encoding="utf-8")
    return path


def test_a_grid_is_every_combination(tmp_path):
    search = load_search(written(tmp_path, {"grid": GRID}))
    assert len(search.choices) == 6
    assert search.choices[1] == {"algorithm.learning_rate": 0.2, "algorithm.clip": 1.0}
    assert [run.algorithm.options.clip for run in search.trials[:3]] == [0.5, 1.0, 2.0]
    assert search.law is None
    assert (search.score, search.measure.name) == ("test_accuracy", "accuracy")


def test_a_setting_that_stands_twice_is_one(tmp_path):
    search = load_search(written(tmp_path, {"grid": {"algorithm.clip": [1.0, 1, 2.0]}}))
    assert [choice["algorithm.clip"] for choice in search.choices] == [1.0, 2.0]


def test_random_points_are_those_of_a_public_seed(tmp_path):
    tune = {
        "search": "random",
        "trials": 20,
        "seed": 3,
        "grid": {
            "algorithm.learning_rate": {"low": 0.01, "high": 1.0, "log": True},
            "train.steps": {"low": 5, "high": 9},
            "algorithm.clip": [0.5, 1.0],
        },
    }
    first, second = (load_search(written(tmp_path, tune)) for _ in range(2))
    assert first.choices == second.choices
    assert first.digest() == second.digest()
    rates = [choice["algorithm.learning_rate"] for choice in first.choices]
    assert min(rates) >= 0.01
    assert max(rates) <= 1.0
    assert sum(rate < 0.1 for rate in rates) > 4
    assert {choice["train.steps"] for choice in first.choices} <= set(range(5, 10))
    other = load_search(written(tmp_path, {**tune, "seed": 4}))
    assert other.choices != first.choices
    assert other.digest() != first.digest()


def test_loss_wins_by_being_small(tmp_path):
    search = load_search(written(tmp_path, {"grid": GRID, "score": "loss"}))
    assert (search.score, search.measure.name) == ("test_loss", "loss")


def test_laws_of_the_number_of_trials(tmp_path):
    one = {"nodes": {"count": 1}}
    tune = {"grid": GRID, "cost": "random-stopping"}
    law = load_search(written(tmp_path, tune, **one)).law
    assert isinstance(law, NegativeBinomialTrials)
    assert law.mean == pytest.approx(6)
    law = load_search(written(tmp_path, {**tune, "eta": 0.0, "gamma": 0.1}, **one)).law
    assert law == NegativeBinomialTrials(0.0, 0.1)
    asked = {**tune, "distribution": "poisson", "expected_trials": 9}
    assert load_search(written(tmp_path, asked, **one)).law == PoissonTrials(9.0)


ONE = {"nodes": {"count": 1}}
HIDDEN = {"grid": GRID, "cost": "random-stopping"}


@pytest.mark.parametrize(
    ("tune", "changes", "where"),
    [
        ({}, {}, r"tune\.grid"),
        ({"grid": {"clip": [1.0]}}, {}, r"tune\.grid\.clip"),
        ({"grid": {"algorithm.clip": []}}, {}, r"tune\.grid\.algorithm\.clip"),
        ({"grid": {"algorithm.clip": 1.0}}, {}, r"tune\.grid\.algorithm\.clip"),
        ({"grid": {"algorithm.clip": [-1.0]}}, {}, r"algorithm\.clip"),
        ({"grid": {"privacy.epsilon": [1.0, 2.0]}}, {}, r"tune\.grid\.privacy\.epsilon"),
        ({"grid": {"nodes.count": [1, 2]}}, {}, r"tune\.grid\.nodes\.count"),
        ({"grid": {"train.seed": [1, 2]}}, {}, r"tune\.grid\.train\.seed"),
        ({"grid": {"task.dataset": ["digits"]}}, {}, r"tune\.grid\.task\.dataset"),
        ({"grid": GRID, "grd": 1}, {}, r"tune\.grd"),
        ({"grid": GRID, "trials": 3}, {}, r"tune\.trials"),
        ({"grid": GRID, "search": "random"}, {}, r"tune\.trials"),
        ({"grid": GRID, "search": "random", "trials": 0}, {}, r"tune\.trials"),
        ({"grid": GRID, "score": "auc"}, {}, r"tune\.score"),
        (
            {"grid": {"task.class_weights": [[1.0] * 10, [2.0] * 10]}, "score": "loss"},
            {},
            r"tune\.grid\.task\.class_weights",
        ),
        ({"grid": GRID, "cost": "free"}, {}, r"tune\.cost"),
        ({"grid": GRID, "eta": 1.0}, {}, r"tune\.eta"),
        ({"grid": GRID, "set": {"task.dataset": "mnist"}}, {}, r"tune\.set"),
        ({"grid": GRID}, {"privacy": {**PRIVATE, "ledger": "there"}}, r"privacy\.ledger_epsilon"),
        (HIDDEN, {}, r"nodes\.count"),
        ({**HIDDEN, "eta": -1.0}, ONE, r"tune\.eta"),
        ({**HIDDEN, "gamma": 0.1, "expected_trials": 3.0}, ONE, r"tune\.gamma"),
        ({**HIDDEN, "distribution": "poisson", "eta": 1.0}, ONE, r"tune\.eta"),
        ({**HIDDEN, "expected_trials": 0.5}, ONE, r"expected_trials"),
        ({"grid": GRID}, {"privacy": {"noise_seed": None}}, r"privacy\.noise_std"),
        (
            {"grid": GRID},
            {"privacy": {"noise_std": None, "noise_seed": None, "epsilon": "none"}},
            r"privacy\.epsilon",
        ),
        (
            {"grid": {"algorithm.clip": {"low": 2, "high": 1}}, "search": "random", "trials": 2},
            {},
            r"tune\.grid\.algorithm\.clip",
        ),
        (
            {
                "grid": {"algorithm.clip": {"low": 0, "high": 1, "log": True}},
                "search": "random",
                "trials": 2,
            },
            {},
            r"tune\.grid\.algorithm\.clip",
        ),
    ],
)
def test_what_is_refused(tmp_path, tune, changes, where):
    with pytest.raises(InputError, match=where):
        load_search(written(tmp_path, tune, **changes))


@pytest.mark.parametrize("command", ["train", "plan", "compare"])
def test_other_commands_point_to_this_one(tmp_path: Path, command: str) -> None:
    said = tacit(command, written(tmp_path, {"grid": GRID})).refusal
    assert "tacit tune" in said


def test_a_file_without_a_search_is_refused(tmp_path):
    path = tmp_path / "plain.toml"
    path.write_text(tomli_w.dumps(experiment()), encoding="utf-8")
    assert "[tune]" in tacit("tune", path).refusal
    assert "No such file" in tacit("tune", tmp_path / "none.toml").refusal


def test_a_search_is_changed_in_its_file_and_runs_in_one_process(tmp_path, monkeypatch):
    file = written(tmp_path, {"grid": GRID})
    assert "--set" in tacit("tune", file, "--set", "tune.cost=public").refusal
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "one process" in tacit("tune", file, "--plan").refusal
