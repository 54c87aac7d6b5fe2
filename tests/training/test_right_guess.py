"""Runs whose budget is a right guess: it is kept in every way that one runs, or refused in a line.

Every record joins every step where nothing else is said. What one has paid is then a Gaussian's mu,
whose two closed forms, of a guess and of epsilon, have to agree with what is certified.
"""

import math
import re

import pytest
import torch
from scipy.stats import norm

from communication.memory import train as crew
from experiments import experiment, tacit, write_experiment
from tacit.config import load_config
from tacit.data import Dataset
from tacit.errors import BudgetError
from tacit.training.loop import execute
from tacit.training.prepare import prepare
from training.test_resume import cut_off

ASKED = {"noise_std": None, "guess": 0.6}
SECURE = {"noise": "independent", "aggregation": "secure-sum", "colluding": 1}
PAIRWISE = {"noise": "pairwise", "colluding": 1}


def asking(**changes):
    """An experiment on four nodes' made records, two of each of 24 persons at each node."""
    task = {"dataset": None, "outputs": 2, **changes.get("task", {})}
    privacy = {**ASKED, **changes.get("privacy", {})}
    train = {"steps": 8, **changes.get("train", {})}
    return experiment(**{**changes, "task": task, "privacy": privacy, "train": train})


def job_of(sections):
    generator = torch.Generator().manual_seed(6)
    nodes = []
    for node in range(5):  # the last are public
        ids = [f"{node} {person // 2}" for person in range(48)]
        inputs = torch.rand(48, 3, generator=generator)
        nodes.append(Dataset(inputs, (inputs.sum(dim=1) > 1.5).long(), ids))
    sections = {**sections, "nodes": {}}
    return prepare(load_config(sections, count=4), nodes=nodes[:4], test=nodes[4])


def of_gaussian(mu, delta=1e-5):
    """How often a guess is right, and what epsilon's delta is, of a Gaussian mechanism."""

    def delta_at(epsilon):
        low, high = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
        return float(norm.cdf(low) - math.exp(epsilon) * norm.cdf(high))

    return float(norm.cdf(mu / 2)), delta_at


def assert_kept(guesses, epsilons, asked):
    """Certified are at most what was asked, and hardly less, and the epsilon that goes with it."""
    for guess, epsilon, most in zip(guesses, epsilons, asked, strict=True):
        assert most - 1e-6 <= guess <= most
        right, delta_at = of_gaussian(2 * norm.ppf(guess))
        assert right == pytest.approx(guess, rel=1e-12)
        assert delta_at(epsilon) == pytest.approx(1e-5, rel=1e-3)


WAYS = {
    "whole batches": {},
    "one a node": {"privacy": {"guess": [0.55, 0.6, 0.7, 0.9]}},
    "of all methods with local steps": {"algorithm": {"name": "ddp-admm-gradient"}},
    "of a record that is replaced": {"privacy": {"relation": "replace-one"}},
    "noise of pairs": {"privacy": PAIRWISE},
    "secure sums": {"algorithm": {"name": "dp-sgd"}, "privacy": SECURE},
    "persons": {"privacy": {"unit": "column:person"}},
    "persons at two nodes": {"privacy": {"unit": "column:person", "unit_nodes": 2}},
    "sums over persons": {"privacy": {"unit": "column:person", "unit_gradient": "sum"}},
    "a private calibration": {"task": {"calibrate": "private"}},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_plan_keeps_what_was_asked(way):
    plan = job_of(asking(**WAYS[way])).plan
    guesses, epsilons, asked = zip(
        *((node.right_guess, node.epsilon, node.guess) for node in plan.nodes), strict=True
    )
    assert [node.budget for node in plan.nodes] == [None] * 4
    assert_kept(guesses, epsilons, asked)


@pytest.mark.parametrize("way", ["noise of pairs", "secure sums", "a private calibration"])
def test_a_run_that_was_killed_ends_where_its_guess_does(way, tmp_path):
    job, run = job_of(asking(**WAYS[way])), tmp_path / "run"
    cut_off(job, run, stopped=3, reserved=6)
    ended = execute(job, out=run, resume=True)
    assert (ended.status, ended.steps) == ("budget-exhausted", 5)
    assert "(guess 0.6) covers steps up to 5 of 8" in (ended.message or "")
    asked = [node.guess for node in job.plan.nodes]
    said = ended.document
    assert said.guess == tuple(asked)
    assert said.right_guess is not None
    assert_kept(said.right_guess, said.epsilon, asked)


def test_nothing_left_names_what_to_raise(tmp_path):
    job, run = job_of(asking()), tmp_path / "run"
    cut_off(job, run, stopped=3, reserved=8)
    for saved in run.glob("checkpoint-*"):
        saved.unlink()
    with pytest.raises(BudgetError, match=r"raise privacy\.guess in a new run"):
        execute(job, out=run, resume=True)


def test_every_process_certifies_the_guess(tmp_path):
    file = write_experiment(tmp_path, privacy=ASKED)
    for found in crew([file] * 2, tmp_path / "run"):
        said = found.document
        assert said.guess == (0.6,) * 4
        assert_kept(said.right_guess, said.epsilon, said.guess)


def test_a_guess_that_holds_on_average_alone_says_so():
    plan = job_of(asking(privacy={"noise_seed": None}, train={"batch": 6})).plan
    assert all(0.59 < node.right_guess <= 0.6 for node in plan.nodes)
    assert min(node.epsilon for node in plan.nodes) > 4.6  # worth a sure guess, by itself
    assert plan.warnings[0].startswith("privacy.guess holds on average, and epsilon is ")


TUNED = {"grid": {"algorithm.learning_rate": [0.1, 0.5]}}
CHANCE = "lower it, ask for privacy.epsilon"
REFUSED = {
    "few take part": (
        (),
        {"train": {"batch": 16, "steps": 1}},
        3,
        f"privacy.guess = 0.6 .*{CHANCE}",
    ),
    "nothing certified": (
        (),
        {"privacy": {"accounting": "none"}},
        2,
        "privacy.guess = 0.6: .*'none'",
    ),
    "by formulas": (
        (),
        {"privacy": {"accounting": "published"}},
        2,
        "privacy.guess = 0.6: .*'publ",
    ),
    "epsilon too": (
        (),
        {"privacy": {"epsilon": 1.0}},
        2,
        "privacy.guess = 0.6: .*privacy.epsilon:",
    ),
    "no noise": ((), {"algorithm": {"name": "sgp"}}, 2, "privacy.guess = 0.6: sgp adds no noise"),
    "too little": ((), {"privacy": {"noise_std": 1e-3}}, 3, "above the budget of 0.6: noise_std ="),
    "a new account": ((), {"privacy": {"ledger": "L"}}, 2, "privacy.ledger_epsilon = None"),
    "optimise": (("plan", "--optimise"), {}, 2, "privacy.guess = 0.6: .*privacy.epsilon"),
    "tune": (
        ("tune", "--out", "run"),
        {"tune": TUNED},
        2,
        "privacy.guess = 0.6: .*privacy.epsilon",
    ),
}


@pytest.mark.parametrize("way", REFUSED)
def test_what_cannot_be_kept_is_refused_in_a_line(way, tmp_path, monkeypatch):
    options, changes, code, words = REFUSED[way]
    monkeypatch.chdir(tmp_path)
    privacy = {**ASKED, "noise_seed": None, **changes.get("privacy", {})}
    file = write_experiment(tmp_path, **{**changes, "privacy": privacy})
    answer = tacit(*(options or ["train", "--out", "run"]), file)
    assert answer.code == code
    assert re.search(words, answer.refusal)
    assert not (tmp_path / "run").exists()
