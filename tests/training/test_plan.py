"""What a plan says of its steps, and by which digest it is known."""

from typing import Any

import pytest

from experiments import experiment
from planning_cases import STEPS, plan_of
from tacit.config import load_config
from tacit.training.planner import build_plan

# What a part of the steps costs


@pytest.mark.parametrize("batch", ["all", 10])
def test_epsilon_of_intervals(batch):
    plan = plan_of([50, 50], epsilon=1.0, train={"batch": batch})
    node = plan.nodes[0]
    assert plan.release.epsilon(node, []) == 0.0
    assert plan.release.epsilon(node, [(2, 2)]) == 0.0
    assert plan.release.epsilon(node, [(0, STEPS)]) == node.epsilon
    part = plan.release.epsilon(node, [(0, 3)])
    again = plan.release.epsilon(node, [(0, STEPS), (2, 4)])
    assert part is not None
    assert again is not None
    assert 0 < part < 1.0 < again


def test_a_mechanism_holds_the_multipliers_of_the_steps_it_is_asked_for():
    algorithm = {"name": "dyn-mu", "budget_growth": 4.0}
    plan = plan_of([50, 50], epsilon=1.0, algorithm=algorithm)
    node = plan.nodes[0]
    each = [node.noise_scale * 4.0 ** (-k / STEPS) for k in range(STEPS)]
    found = plan.release.mechanism(node, [(0, 2), (1, 4)])
    assert found.noise_multiplier == pytest.approx([each[k] for k in (0, 1, 1, 2, 3)])
    assert plan.release.mechanism(node).noise_multiplier == pytest.approx(each)


# Identity


def digest(tmp_path, **changes):
    records = changes.pop("records", [20, 30, 40])
    parameters = changes.pop("parameters", 10)
    edges = changes.pop("edges", "0 1\n1 2\n2 0\n")
    path = tmp_path / "graph.txt"
    path.write_text(edges)
    settings: dict[str, Any] = {"epsilon": 2.0, "topology": {"graph": f"file:{path}"}, **changes}
    return plan_of(records, parameters=parameters, **settings).digest()


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 2.1},
        {"epsilon": [2.0, 2.0, 2.1]},
        {"delta": 2e-4},
        {"noise_std": 5.0},
        {"relation": "replace-one"},
        {"accounting": "published"},
        {"noise_seed": 1},
        {"records": [20, 30, 41]},
        {"records": [30, 20, 40]},
        {"parameters": 11},
        {"train": {"steps": STEPS + 1}},
        {"train": {"batch": 40}},
        {"train": {"seed": 1}},
        {"train": {"dtype": "float64"}},
        {"algorithm": {"name": "const-d2p", "clip": 1.0}},
        {"algorithm": {"clip": 0.9}},
        {"algorithm": {"momentum": 0.5}},
        {"algorithm": {"learning_rate": 0.06}},
        {"topology": {"graph": "ring"}},
        {"edges": "0 1\n1 2\n2 0\n0 2\n"},
        {"edges": "0 1\n1 2\n2 0\n\n0 2\n"},
    ],
    ids=str,
)
def test_the_digest_changes_with_what_matters(changes, tmp_path):
    assert digest(tmp_path, **changes) != digest(tmp_path)


@pytest.mark.parametrize(
    "train", [{"evaluate_every": 2}, {"evaluate_records": 7}, {"checkpoint_every": 3}], ids=str
)
def test_the_digest_does_not_change_with_what_is_measured(train, tmp_path):
    assert digest(tmp_path, train=train) == digest(tmp_path)
    assert digest(tmp_path) == digest(tmp_path)


def test_a_plan_speaks_of_the_person_by_name():
    private = {"noise_std": None, "noise_seed": None, "epsilon": 60.0, "delta": 0.03}
    private |= {"unit": "column:customer"}
    changes = {"privacy": private, "train": {"sampling": "allocation", "batch": 10}}
    config = load_config(experiment(**changes))
    for person, name in ((None, "customer"), ("patient", "patient")):
        plan = build_plan(config, [50] * 4, 5, person=person)
        said = " ".join((*plan.notes, *plan.warnings))
        assert f"whether a {name} was there" in said
        assert f"each {name} takes part in one random step" in said
        assert f"publishing one {name} at random" in said
        assert "record" not in said
    by_row = load_config(experiment(**{**changes, "privacy": {**private, "unit": "record"}}))
    plan = build_plan(by_row, [50] * 4, 5, person="patient")
    assert (plan.unit.name, plan.unit.person) == ("record", "patient")
    assert "each record takes part" in " ".join(plan.notes)
