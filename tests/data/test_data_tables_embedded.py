"""`embed = 8` of a category: one code in a row, and an embedding beside the numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.data.tables import Schema
from tacit.errors import InputError

CODES = [f"C{number:03}" for number in range(900)]
COLUMN = {"kind": "category", "values": CODES, "unknown": "other", "embed": 8}
DECLARED = {
    "confirmed_public": True,
    "target": {"column": "died", "kind": "class", "labels": ["no", "yes"]},
    "node": {"column": "site", "values": ["north", "south"]},
    "columns": {
        "age": {"kind": "number", "low": 0, "high": 100, "missing": "indicator"},
        "main.code": COLUMN,
        "ward": {"kind": "category", "values": ["A", "B"]},
    },
}


def frame(records=400):
    draws = np.random.default_rng(0)
    codes = draws.integers(0, 900, records)
    return pd.DataFrame(
        {
            "site": np.where(np.arange(records) % 2, "north", "south"),
            "age": draws.integers(20, 90, records).astype(float),
            "main.code": np.array([*CODES, "elsewhere"])[np.where(codes == 5, 900, codes)],
            "ward": draws.choice(["A", "B"], records),
            "died": np.where(codes % 2, "yes", "no"),
        }
    )


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_a_table_is_trained_and_its_model_is_loaded(model, tmp_path):
    schema, table = Schema.of(DECLARED), frame()
    experiment = {
        "task": {"model": model, "dataset": "given"},
        "algorithm": {"name": "dp2-sgd", "learning_rate": 2.0, "clip": 1.0},
        "privacy": {"epsilon": "none"},
        "train": {"steps": 3, "batch": "all"},
    }
    out = tmp_path / "run"
    result = tacit.train(experiment, nodes=table, test=table, schema=schema, out=str(out))
    assert result.job.model.path == "taps"
    assert result.job.train.packed.words == "numbers floating [4], main.code integer []"
    with torch.no_grad():
        given = schema.inputs(table)
        assert given["main.code"].max() == 900
        made = result.model("consensus")(given)
        again = tacit.load_model(out)(given)
    assert torch.equal(made, again)
    share = float((made.argmax(1) == schema.dataset(table).targets).double().mean())
    assert result.metrics["test_accuracy"][-1]["consensus"] == pytest.approx(share)


def test_without_embed_nothing_of_a_schema_changes():
    plain = {**COLUMN, "embed": None}
    without = {key: value for key, value in COLUMN.items() if key != "embed"}
    digests = {
        Schema.of({**DECLARED, "columns": {"main.code": column}}).digest
        for column in (plain, without, COLUMN)
    }
    assert len(digests) == 2
    with pytest.raises(InputError, match="embed"):
        Schema.of({**DECLARED, "columns": {"main.code": {**COLUMN, "embed": 0}}})
