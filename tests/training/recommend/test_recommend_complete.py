"""One set of defaults: what an experiment leaves open is the same behind every door."""

import tomllib
from pathlib import Path

import numpy as np
import pandas
import pytest
import tomli_w
import torch
from torch import nn

import tacit
from experiments import tacit as command
from patient_tables import write_tables
from tacit.analysis.recommend import recommend
from tacit.config import Config, load_config, to_toml
from tacit.training.prepare import prepare

CHOSEN = ("algorithm", "train", "topology", "privacy")
BUDGET = {"epsilon": 3.0, "delta": 1e-4}
EXPERIMENTS = {
    "images": {"task": {"dataset": "digits"}},
    "a model": {"task": {"dataset": "digits", "model": "mlp"}},
    "a server": {"task": {"dataset": "digits"}, "privacy": {"aggregation": "secure-sum"}},
    "pairs": {"task": {"dataset": "digits"}, "privacy": {"noise": "pairwise"}},
    "own clip": {"task": {"dataset": "digits"}, "algorithm": {"clip": 2.0, "momentum": 0.5}},
    "own steps": {"task": {"dataset": "digits"}, "train": {"steps": 7, "batch": 30}},
}


def planned(sections):
    return prepare(load_config(sections)).plan


def with_budget(sections):
    privacy = {**BUDGET, **sections.get("privacy", {})}
    return {"nodes": {"count": 4}, **sections, "privacy": privacy}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_what_is_open_is_what_is_recommended(name):
    sections = with_budget(EXPERIMENTS[name])
    plan, wanted = planned(sections), recommend(sections)
    assert to_toml(plan.config) == to_toml(wanted.config)
    for section, values in sections.items():
        own = plan.config.algorithm.options if section == "algorithm" else None
        for key, value in values.items():
            assert getattr(own or getattr(plan.config, section), key) == value
    (told,) = [note for note in plan.notes if note.startswith("no algorithm is named")]
    assert all(choice.name in told for choice in wanted.choices if choice.section in CHOSEN)


def test_nothing_is_chosen_for_who_names_an_algorithm():
    sections = with_budget({"task": {"dataset": "digits"}, "algorithm": {"name": "privsgp"}})
    config = load_config(sections)
    assert config.given is None
    plan = planned(sections)
    assert plan.config.train.steps == Config().train.steps == 500
    assert plan.config.algorithm.options.learning_rate == 0.05
    assert not [note for note in plan.notes if note.startswith("no algorithm is named")]


def test_an_open_experiment_stays_open_until_it_is_planned(tmp_path):
    sections = with_budget(EXPERIMENTS["own clip"])
    config = load_config(sections)
    assert load_config(config) == config
    (tmp_path / "written.toml").write_text(to_toml(config), encoding="utf-8")
    assert load_config(tmp_path / "written.toml") == config
    other = config.model_copy(update={"train": config.train.model_copy(update={"seed": 5})})
    assert load_config(to_toml_sections(other)) == other
    assert (other.given or {})["train"] == {"seed": 5}
    closed = prepare(config).config
    assert closed.given is None
    assert load_config(closed) == closed
    assert planned(sections).digest(range(4)) == prepare(closed).plan.digest(range(4))


def to_toml_sections(config):
    return tomllib.loads(to_toml(config))


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path, 1200)
    return tmp_path


def sections_of(config):
    return {name: getattr(config, name) for name in CHOSEN} | {
        "model": config.task.model,
        "weights": config.weights,
    }


@pytest.mark.slow
def test_a_table_gets_one_model_by_every_door(tables):
    """The README's Python, the command line, the file of `tacit init`, and `--recommend`."""
    task = {"dataset": "csv:patients.csv", "test": "csv:sample.csv", "metric": ["auc"]}
    text = tomli_w.dumps({"task": task, "privacy": {"epsilon": 2.0, "delta": 1e-5}})
    Path("patients.toml").write_text(text, encoding="utf-8")
    python = tacit.train(
        {"privacy": {"epsilon": 2.0, "delta": 1e-5}},
        nodes=pandas.read_csv("patients.csv"),
        schema="patients.schema.toml",
        test=pandas.read_csv("sample.csv"),
        metric="auc",
    )
    wanted = sections_of(python.plan.config)
    assert command("train", "patients.toml", "--quiet", "--out", "run").code == 0
    assert sections_of(load_config(Path("run/config.toml"), saved=True)) == wanted
    assert sections_of(recommend("patients.toml").config) == wanted
    words = ("init", "--csv", "patients.csv", "--public-csv", "sample.csv", "--epsilon", "2")
    found = ("--target", "readmitted", "--node", "hospital", "--out", "own.toml")
    Path("patients.schema.toml").rename("kept.schema.toml")
    assert command(*words, *found).code == 0
    Path("kept.schema.toml").rename("patients.schema.toml")
    own = planned({"task": task, "privacy": {"epsilon": 2.0, "delta": 1e-5}})
    assert sections_of(own.config) == wanted
    file = load_config("own.toml", overrides=["task.metric=auc"])
    assert sections_of(prepare(file).config) == wanted


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_estimators_choose_as_an_experiment_does(kind):
    draw = np.random.default_rng(3)
    inputs = draw.normal(size=(300, 5))
    labels = (inputs[:, 0] + draw.normal(size=300) > 0).astype(int)
    nodes = draw.integers(0, 3, size=300)
    if kind == "classes":
        chosen = tacit.TacitClassifier(classes=[0, 1], input_bound=3.0)
        task = {"loss": "cross-entropy", "outputs": 2}
        targets = torch.tensor(labels)
    else:
        chosen, task = tacit.TacitRegressor(input_bound=3.0), {"loss": "mse"}
        targets = torch.tensor(labels, dtype=torch.float64)
    estimator = chosen.fit(inputs, labels, nodes=nodes)
    records = [(torch.tensor(inputs[nodes == k]), targets[nodes == k]) for k in range(3)]
    sections = {"task": {**task, "input_bound": 3.0}, "privacy": {"epsilon": 3.0, "delta": 1e-5}}
    same = tacit.train(sections, nodes=records)
    assert sections_of(estimator.result_.plan.config) == sections_of(same.plan.config)


def test_a_module_of_ones_own_gets_rate_and_clip_too():
    draw = torch.Generator().manual_seed(2)
    inputs = torch.randn(200, 4, generator=draw)
    nodes = [(inputs[k::4], (inputs[k::4, 0] > 0).long()) for k in range(4)]
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    found = tacit.train({"privacy": BUDGET}, model=model, nodes=nodes).plan
    assert found.config.task.model == "given"
    assert found.config.algorithm.options.clip == pytest.approx(0.2 * 5**0.5, rel=0.05)
    assert found.config.train.steps == 100
