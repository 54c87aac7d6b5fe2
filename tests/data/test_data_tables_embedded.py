"""`embed = 8` of a category: one code in a row, and an embedding beside the numbers."""

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.data.tables import Schema
from tacit.errors import InputError
from tacit.models.architectures import Embedded, tables_of

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


def test_columns_may_be_called_as_parts_of_modules_are():
    names = ("type", "items", "a.b", "a_b", "a%2Eb", "weight", "tables.x.weight", "of ", "größe")
    tables = {name: (4, width) for width, name in enumerate(names, 1)}
    model = Embedded(tables, torch.nn.Linear(1 + sum(range(len(names) + 1)), 2))
    record = {name: torch.tensor([row % 4]) for row, name in enumerate(names)}
    rows = [model.state_dict()[f"tables.{key}.weight"] for key in model.tables]
    looked_up = [table[row % 4] for row, table in enumerate(rows)]
    wanted = model.model(torch.cat([torch.ones(1), *looked_up]))
    assert model({"numbers": torch.ones(1, 1), **record})[0].allclose(wanted)
    assert tables_of(model.state_dict()) == tables
    columns = {**DECLARED["columns"], "numbers": COLUMN}
    with pytest.raises(InputError, match=r"schema\.columns\.numbers .*rename it"):
        Schema.of({**DECLARED, "columns": columns})
