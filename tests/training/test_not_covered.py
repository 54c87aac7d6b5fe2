"""What epsilon does not cover follows from the settings of the experiment."""

from typing import Any

import pytest

from experiments import experiment
from tacit.algorithms import ALGORITHMS
from tacit.config import load_config
from tacit.report.documents.metrics import PrivateMeasurement
from tacit.report.documents.unit import RECORD
from tacit.training.plan import not_covered

CONVEX = {"nodes": {"count": 2}, "task": {"dataset": "digits", "model": "logistic"}}
DRAWING = {"noise_std": None, "noise_seed": None, "epsilon": 1.0}
ALWAYS = ("training loss", "checkpoints", "how many records", "refuses its own input")
# What a line says, and the settings with which it stands there, beside others without.
TABLE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("train.suboptimality", {**CONVEX, "train": {"suboptimality": True}}, CONVEX),
    (
        "a node does not take part",
        {"privacy": {**DRAWING, "ledger": "ledgers"}},
        {"privacy": DRAWING},
    ),
    (
        "un-noised gradients of state = 'private'",
        {"algorithm": {"name": "privsgp-vr", "state": "private"}},
        {"algorithm": {"name": "privsgp-vr", "state": "public"}},
    ),
    (
        "un-noised gradients of state = 'private'",
        {"algorithm": {"name": "soteriafl-svrg", "state": "private"}},
        {"algorithm": {"name": "soteriafl-svrg"}},
    ),
    (
        "un-noised gradients of state = 'private'",
        {"algorithm": {"name": "soteriafl-saga"}},
        {"algorithm": {"name": "dp-sgd"}},
    ),
    (
        "each client's own model",
        {"algorithm": {"name": "fedspd-dp"}},
        {"algorithm": {"name": "dp-fedavg"}},
    ),
    (
        "augmented Lagrangian",
        {"algorithm": {"name": "fedspd-dp"}},
        {"algorithm": {"name": "dp-fedavg"}},
    ),
]


# What a line calls each key that is measured on private records.
MEASURED = {
    "train_loss": "training loss",
    "gradient_norm": "gradient norms",
    "clip_rate": "share of clipped records",
    "records_left_out": "number of records left out",
    "augmented_lagrangian": "augmented Lagrangian",
    "suboptimality": "train.suboptimality",
}


def test_every_key_that_is_measured_on_private_records_is_named():
    sections: dict[str, Any] = {"algorithm": {"name": "fedspd-dp"}}
    config = load_config(experiment(**sections))
    train = config.train.model_copy(update={"suboptimality": True})
    (line, *_) = not_covered(config.model_copy(update={"train": train}), RECORD)
    assert "measured on private records" in line
    assert set(MEASURED) == set(PrivateMeasurement.model_fields) - {"step"}
    assert all(words in line for words in MEASURED.values())


def lines(sections):
    return not_covered(load_config(experiment(**sections)), RECORD)


@pytest.mark.parametrize(("words", "having", "lacking"), TABLE)
def test_a_line_stands_there_where_the_settings_ask_for_it(words, having, lacking):
    assert sum(words in line for line in lines(having)) == 1
    assert not any(words in line for line in lines(lacking))


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_what_never_is_covered_stands_there_for_every_method(name):
    config = load_config({"task": {"dataset": "digits"}, "algorithm": {"name": name}})
    said = " | ".join(not_covered(config, RECORD))
    assert all(words in said for words in ALWAYS)


def test_records_that_were_held_out_and_declared_public_stand_there():
    config = load_config(experiment())
    task = config.task.model_copy(update={"test_share": 0.2})
    with_share = config.model_copy(update={"task": task})
    added = set(not_covered(with_share, RECORD)) - set(not_covered(config, RECORD))
    assert len(added) == 1
    assert "share of 0.2" in added.pop()
