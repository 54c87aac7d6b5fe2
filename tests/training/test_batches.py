"""What a batch that is left open comes to, and that a run writes it down and goes on with it."""

from typing import Any

import pytest

import tacit
from experiments import experiment
from planning_cases import config_of
from tacit.training.planner import build_plan
from tacit.training.settled import automatic_batch

RECORDS = [3000, 100, 20]
OTHERS: dict[str, dict[str, Any]] = {
    "no noise": {"epsilon": "none"},
    "a given noise": {"epsilon": None, "noise_std": 0.1},
    "a published noise": {"accounting": "published"},
    "fixed batches": {"train": {"sampling": "fixed"}, "relation": "replace-one"},
    "epochs": {"train": {"sampling": "allocation"}},
    "a gradient table": {"algorithm": {"name": "privsgp-vr", "state": "private"}},
    "anchors": {"algorithm": {"name": "privsgp-vr"}},
    "local steps": {
        "algorithm": {"name": "dp-fedavg", "local_steps": 3},
        "topology": {"graph": "star"},
    },
    "Laplace noise": {"algorithm": {"name": "dpdo"}, "topology": {"graph": "ring"}},
}


def settled(linear, records, **settings):
    train = {"batch": "auto", **settings.pop("train", {})}
    config = config_of(len(records), train=train, **settings)
    assert config.train.batch == "auto"
    found = automatic_batch(config, records, linear)
    plan = build_plan(config, records, 10, linear=linear)
    assert plan.config.train.batch == found[0]
    assert [note for note in plan.notes if "by default" in note] == [n for n in found[1:] if n]
    return found


def test_a_linear_layer_takes_all_records_and_other_models_a_tenth():
    private: dict[str, Any] = {"epsilon": 1.0, "algorithm": {"name": "privsgp"}}
    assert settled(True, RECORDS, **private)[0] == "all"
    batch, reason = settled(False, RECORDS, **private)
    assert batch == 300
    assert reason is not None
    assert reason.startswith("train.batch = 300, by default: a tenth of the largest node's 3,000")
    assert settled(False, [601, 5, 5], **private)[0] == 64
    assert settled(False, [641, 5, 5], **private)[0] == 65
    assert settled(False, [30, 5, 5], **private)[0] == 30


@pytest.mark.parametrize("name", ["noised-moments", "noised-moments-server"])
def test_what_reads_records_once_reads_all_of_them(name):
    graph = "star" if name.endswith("server") else "exponential"
    given: dict[str, Any] = {"algorithm": {"name": name}, "topology": {"graph": graph}}
    assert settled(False, RECORDS, epsilon=1.0, **given)[0] == "all"


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.parametrize("linear", [True, False])
def test_elsewhere_it_is_64(case, linear):
    given: dict[str, Any] = {"epsilon": 1.0, "algorithm": {"name": "privsgp"}, **OTHERS[case]}
    given = {key: value for key, value in given.items() if value is not None}
    assert settled(linear, RECORDS, **given) == (64, None)


@pytest.mark.parametrize(("model", "batch"), [("logistic", "all"), ("mlp", 64)])
def test_a_run_writes_down_what_it_came_to_and_goes_on_with_it(model, batch, tmp_path):
    given = experiment(
        task={"model": model},
        nodes={"count": 3},
        privacy={"noise_std": None, "epsilon": 2.0},
        train={"steps": 2, "batch": None},
    )
    first = tacit.train(given, out=tmp_path / "run")
    assert first.plan.config.train.batch == batch
    written = (tmp_path / "run" / "config.toml").read_text()
    assert f"batch = {batch!r}".replace("'", '"') in written
    again = tacit.train(tmp_path / "run" / "config.toml")
    assert again.parameters.equal(first.parameters)
