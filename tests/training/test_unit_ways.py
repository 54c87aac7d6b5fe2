"""However records and the ids of their persons come in, the same persons train the same models."""

import types
from functools import cache

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch

import tacit
from tacit import Dataset, TaskData
from tacit.errors import InputError, RecordsError
from tacit.estimators import TacitClassifier

HOSPITALS = ("north", "south")
SCHEMA = {
    "confirmed_public": True,
    "target": {"column": "sick", "kind": "class", "labels": ["0", "1"]},
    "node": {"column": "hospital", "values": list(HOSPITALS)},
    "unit": {"column": "person"},
    "columns": {
        "age": {"kind": "number", "low": 0, "high": 100},
        "dose": {"kind": "number", "low": -4, "high": 4},
    },
}
KEYS = {
    "task": {"model": "logistic", "outputs": 2, "loss": "cross-entropy"},
    "algorithm": {"name": "privsgp", "learning_rate": 0.5, "clip": 0.5},
    "privacy": {"epsilon": 2.0, "noise_seed": 3, "unit": "column:person"},
    "train": {"steps": 3, "batch": 4, "seed": 1},
}


def people(seed):
    """A frame of 24 persons at two hospitals, with one to twenty rows each, in any order."""
    rng = np.random.default_rng(seed)
    rows = np.append(rng.integers(1, 5, 23), 20)  # of the last one, some are left out
    whose = rng.permutation(np.repeat(np.arange(24), rows))
    return pd.DataFrame(
        {
            "person": (whose + 90).astype(int),
            "hospital": np.array(HOSPITALS)[whose % 2],
            "age": rng.integers(0, 100, len(whose)),
            "dose": rng.normal(size=len(whose)),
            "sick": rng.integers(0, 2, len(whose)),
        }
    )


def arrays(frame):
    """Inputs, labels and ids of each node."""
    parts = [frame[frame["hospital"] == name] for name in HOSPITALS]
    schema = tacit.Schema.of(SCHEMA)
    return [
        (schema.inputs(part), part["sick"].to_numpy(), part["person"].to_numpy()) for part in parts
    ]


def trained(keys=None, **given):
    sections = {**KEYS, **(keys or {})}
    merged = {name: {**KEYS.get(name, {}), **part} for name, part in sections.items()}
    result = tacit.train(merged, **given)
    assert [node.records for node in result.job.plan.nodes] == [12, 12]
    return result.parameters


def from_table(frame, folder, kind):
    write = {"csv": frame.to_csv, "parquet": frame.to_parquet}[kind]
    write(folder / f"people.{kind}", index=False)
    source = f"{kind}:{folder / f'people.{kind}'}"
    return trained({"task": {"dataset": source, "schema": str(schema_file(folder))}})


def schema_file(folder):
    import tomli_w

    path = folder / "people.schema.toml"
    path.write_text(tomli_w.dumps(SCHEMA))
    return path


def from_parquet(frame, folder):
    return from_table(frame, folder, "parquet")


def from_files(frame, folder, ending):
    for node, (inputs, labels, ids) in enumerate(arrays(frame)):
        path = folder / f"{node}.{ending}"
        tensors = [inputs, torch.tensor(labels), torch.tensor(ids)]
        named = dict(zip(("inputs", "targets", "units"), tensors, strict=True))
        if ending == "npz":
            np.savez(path, **{name: values.numpy() for name, values in named.items()})
        else:
            safetensors.torch.save_file(named, path)
    own = {"count": 2, "data": "by-rank", "source": str(folder / f"{{node}}.{ending}")}
    return trained({"nodes": own})


def from_function(frame, monkeypatch):
    parts = arrays(frame)
    inputs = torch.cat([part[0] for part in parts])
    labels, ids = (np.concatenate([part[place] for part in parts]) for place in (1, 2))
    where = np.repeat(HOSPITALS, [len(part[2]) for part in parts])
    module = types.ModuleType("ward_round")
    columns, values = {"hospital": where}, {"hospital": HOSPITALS}
    module.load = lambda: TaskData(
        "ward", Dataset(inputs, labels), columns=columns, values=values, units=ids
    )
    monkeypatch.setitem(__import__("sys").modules, "ward_round", module)
    nodes = {"count": 2, "partition": "by:hospital"}
    return trained({"task": {"dataset": "ward_round:load"}, "nodes": nodes})


def from_estimator(frame):
    fitted = TacitClassifier(
        epsilon=2.0,
        algorithm="privsgp",
        model="logistic",
        steps=3,
        batch=4,
        learning_rate=0.5,
        clip=0.5,
        seed=1,
        noise_seed=3,
        classes=[0, 1],
    )
    inputs = tacit.Schema.of(SCHEMA).inputs(frame).numpy()
    columns = [frame[name].to_numpy() for name in ("sick", "hospital", "person")]
    labels, nodes, ids = columns
    return fitted.fit(inputs, labels, nodes=nodes, units=ids).result_.parameters


WAYS = {
    "frame": lambda frame, *_: trained(nodes=frame, schema=SCHEMA),
    "csv": lambda frame, folder, _: from_table(frame, folder, "csv"),
    "parquet": lambda frame, folder, _: from_parquet(frame, folder),
    "names": lambda frame, *_: trained(
        nodes={name: part[:2] for name, part in zip(HOSPITALS, arrays(frame), strict=True)},
        units={name: part[2] for name, part in zip(HOSPITALS, arrays(frame), strict=True)},
    ),
    "texts": lambda frame, *_: trained(
        nodes=[part[:2] for part in arrays(frame)],
        units=[list(map(str, part[2])) for part in arrays(frame)],
    ),
    "datasets": lambda frame, *_: trained(
        nodes=[Dataset(*part[:2], units=part[2].astype(float)) for part in arrays(frame)]
    ),
    "npz": lambda frame, folder, _: from_files(frame, folder, "npz"),
    "safetensors": lambda frame, folder, _: from_files(frame, folder, "safetensors"),
    "function": lambda frame, _, monkeypatch: from_function(frame, monkeypatch),
    "estimator": lambda frame, *_: from_estimator(frame),
}


@cache
def listed(seed):
    parts = arrays(people(seed))
    return trained(nodes=[part[:2] for part in parts], units=[part[2] for part in parts])


@pytest.mark.filterwarnings("ignore::tacit.errors.NotPrivateWarning")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_trains_the_same_models(way, seed, tmp_path, monkeypatch):
    assert torch.equal(WAYS[way](people(seed), tmp_path, monkeypatch), listed(seed))


PAIRS = [(np.zeros((3, 2)), np.zeros(3, int)), (np.ones((2, 2)), np.ones(2, int))]
FITTING = [[1, 2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("units", "kind", "words"),
    [
        ([[1, 2, 3], [4]], InputError, r"units\[1\] = \(1,\): must be one id a record.*\(2,\)"),
        ([[1, 2, None], [4, 5]], RecordsError, r"units\[0\] = '1 of 3 records'.*missing"),
        ([["a", "b", float("nan")], [4, 5]], RecordsError, r"units\[0\] = '1 of 3 records'"),
        ([["a", "b", " "], [4, 5]], RecordsError, r"units\[0\] = '1 of 3 records'"),
        ([[1.0, 2.0, 3.5], [4, 5]], RecordsError, r"units\[0\] = '1 of 3 records'.*whole"),
        ([[1, 2, 3], [2.0**60, 5]], RecordsError, r"units\[1\] = '1 of 2 records'"),
        ([np.ma.array([1, 2, 3], mask=[0, 0, 1]), [4, 5]], RecordsError, r"units\[0\] = '1 of 3"),
        ([[1, 2, 3]], InputError, "units = 'list': must be a list of 2, as nodes"),
        ({"a": [1, 2, 3], "b": [4, 5]}, InputError, "units = 'dict': must be a list of 2"),
        ([1, 2, 3, 4, 5], InputError, "units = 'list': must be a list of 2"),
        (None, InputError, r"privacy.unit = 'column:person': nodes\[0\] does not say whose"),
        ([[1, 2, 3], [3, 5]], RecordsError, "privacy.unit_nodes = '1 of 4 units'"),
    ],
)
def test_wrong_ids_are_refused_in_a_line_that_quotes_none(units, kind, words):
    with pytest.raises(kind, match=words) as caught:
        tacit.train(KEYS, nodes=PAIRS, units=units)
    assert "\n" not in str(caught.value)
    assert "3.5" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"nodes": people(0), "schema": SCHEMA, "units": FITTING}, r"units = 'list'.*\[unit\]"),
        ({"units": FITTING}, r"units = 'list'.*TaskData\(units=\)"),
        (
            {"nodes": [Dataset(*pair, ids) for pair, ids in zip(PAIRS, FITTING, strict=True)]},
            r"units\[0\].*give them once",
        ),
    ],
)
def test_ids_come_once(given, words):
    with pytest.raises(InputError, match=words):
        tacit.train(KEYS, **{"units": FITTING, **given})


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"unit": {"column": "sick"}}, "schema.unit.column = 'sick': is the target's column"),
        ({"unit": {"column": "hospital"}}, "schema.unit.column = 'hospital': is the node's"),
        ({"unit": {"column": "age"}}, "schema.columns.age = 'age': is the unit's column"),
        ({"unit": {"column": "ward"}}, "privacy.unit = 'column:person'.*column = 'ward'"),
        ({"unit": None}, r"privacy.unit = 'column:person'.*it has no \[unit\]"),
    ],
)
def test_a_unit_has_a_column_of_its_own(schema, words):
    ignored = {"person": {"kind": "ignore"}}
    columns = {**SCHEMA["columns"], **({} if "age" in words else ignored)}
    with pytest.raises(InputError, match=words):
        tacit.train(KEYS, nodes=people(0), schema={**SCHEMA, "columns": columns, **schema})


def test_an_id_that_is_ignored_becomes_the_unit_by_two_lines():
    columns = {**SCHEMA["columns"], "person": {"kind": "ignore"}}
    known, alone = tacit.Schema.of({**SCHEMA, "columns": columns}), tacit.Schema.of(SCHEMA)
    frame = people(0)
    assert torch.equal(known.inputs(frame), alone.inputs(frame))
    assert (known.dataset(frame).units == alone.dataset(frame).units).all()


def test_a_table_of_a_site_without_the_column_or_with_missing_ids_is_refused(tmp_path):
    frame = people(0)
    for value, words in ((None, "has no such column"), ("NA", "1 of .* records.*whose each")):
        for node, name in enumerate(HOSPITALS):
            part = frame[frame["hospital"] == name].astype(object)
            if value is None:
                part = part.drop(columns="person")
            else:
                part.iloc[0, 0] = value
            part.to_csv(tmp_path / f"{node}.csv", index=False)
        own = {"count": 2, "data": "by-rank", "source": str(tmp_path / "{node}.csv")}
        task = {**KEYS["task"], "schema": str(schema_file(tmp_path))}
        with pytest.raises(InputError, match=words):
            tacit.train({**KEYS, "task": task, "nodes": own})


def test_a_data_set_without_ids_says_what_to_do():
    with pytest.raises(InputError, match=r"digits does not say whose.*or units= in Python"):
        tacit.train({**KEYS, "task": {"dataset": "digits"}})
