"""Predictions of new records: from a run folder, from a result, and by other programs."""

import csv
import io
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import softmax
from torch import nn

import tacit as library
from experiments import tacit, tree
from tacit.cli import predict as command
from tacit.data.tables import reading
from tacit.training.run_folder.predictor import load_predictor

COUNT = 90
KINDS = {
    "age": {"kind": "number", "low": 0, "high": 100, "missing": "indicator"},
    "sex": {"kind": "category", "values": ["f", "m"], "unknown": "other", "embed": 2},
    "seen": {"kind": "date", "low": "2020-01-01", "high": "2024-01-01", "parts": ["day", "month"]},
    "smokes": {"kind": "boolean"},
    "note": {"kind": "ignore"},
}
TARGETS = {
    "class": {"column": "ill", "kind": "class", "labels": ["no", "a, b", "yes"]},
    "number": {"column": "stay", "kind": "number", "low": 1, "high": 41},
}
CONFIG = {
    "task": {"model": "mlp"},
    "algorithm": {"name": "dyn-d2p", "learning_rate": 0.5},
    "privacy": {"epsilon": 3.0, "delta": 1e-4},
    "train": {"steps": 4, "batch": 16},
}


def schema(kind):
    return {"confirmed_public": True, "target": TARGETS[kind], "columns": KINDS}


def records(seed=0):
    draw = np.random.default_rng(seed)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(draw.integers(0, 1400, COUNT), "D")
    return pd.DataFrame(
        {
            "age": np.where(draw.random(COUNT) < 0.1, np.nan, draw.integers(-10, 120, COUNT)),
            "sex": draw.choice(["f", "m", "x"], COUNT),
            "seen": days.strftime("%Y-%m-%d"),
            "smokes": draw.choice([True, False], COUNT),
            "note": draw.choice(['say "so"', "a\nb", ""], COUNT),
            "ill": draw.choice(["no", "a, b", "yes"], COUNT),
            "stay": draw.integers(1, 41, COUNT),
        }
    )


def trained(kind, **more):
    nodes = [
        records(seed).drop(columns={"class": "stay", "number": "ill"}[kind]) for seed in (1, 2)
    ]
    return library.train(CONFIG, nodes=nodes, schema=schema(kind), **more)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each kind of target: one written as it went, one saved when it had ended."""
    folder = tmp_path_factory.mktemp("runs")
    results = {"class": trained("class", out=folder / "class"), "number": trained("number")}
    results["number"].save(folder / "number")
    return folder, results


@pytest.fixture
def table(tmp_path):
    """New records as CSV and as a folder of Parquet, with names of their own."""
    frame = records(7).assign(id=[f"00{place}" for place in range(COUNT)])
    frame.to_csv(tmp_path / "new.csv", index=False)
    (tmp_path / "parts").mkdir()
    frame[:50].to_parquet(tmp_path / "parts" / "1.parquet")
    frame[50:].to_parquet(tmp_path / "parts" / "2.parquet")
    return tmp_path / "new.csv"


@pytest.mark.parametrize("kind", TARGETS)
def test_every_way_gives_the_outputs_of_the_module(kind, runs, table, tmp_path, monkeypatch):
    """By hand, from the weights; whatever the form of the table, and how much is read at once."""
    folder, results = runs
    frame = pd.read_csv(table, dtype={"id": str}, keep_default_na=False, na_values={"age": [""]})
    columns = library.Schema.of(schema(kind)).inputs(frame)
    module, weights = results[kind].model(), load_file(folder / kind / "model.safetensors")
    with torch.no_grad():
        outputs = module(columns).double().numpy()
    if kind == "class":
        wanted = dict(zip(["no", "a, b", "yes"], softmax(outputs, 1).T, strict=True))
        wanted = {f"probability of {name}": column for name, column in wanted.items()}
        labels = np.array(["no", "a, b", "yes"])[outputs.argmax(1)]
    else:
        wanted = {"predicted stay": 1 + 40 * (np.clip(outputs[:, 0], -1, 1) + 1) / 2}
    fresh = nn.Sequential(*(type(part)(*_sizes(part)) for part in module.model))
    own = {name.removeprefix("model."): w for name, w in weights.items() if "model." in name}
    fresh.load_state_dict(own)

    monkeypatch.setattr(reading.read_parts, "__defaults__", (None, 7))
    for place, source in enumerate([table, table.with_name("parts")]):
        out = tmp_path / f"{place}.csv"
        answer = tacit(
            "predict",
            folder / kind,
            "--csv",
            source,
            "--out",
            out,
            "--keep",
            "id",
            "--keep",
            "note",
        )
        assert (answer.code, answer.out) == (0, f"wrote {out}: {COUNT} records\n")
        assert out.stat().st_mode & 0o777 == 0o600
        found = pd.read_csv(out, dtype={"id": str, "note": str}, keep_default_na=False)
        assert found[["id", "note"]].equals(frame[["id", "note"]])
        for name, column in wanted.items():
            np.testing.assert_allclose(found[name], column, rtol=1e-6, atol=1e-5)
        if kind == "class":
            assert (found["predicted ill"] == labels).all()
    for said in (results[kind].predict(frame), load_predictor(folder / kind).predict(table)):
        for name, column in wanted.items():
            np.testing.assert_allclose(said[name], column, rtol=1e-6, atol=1e-5)


def _sizes(part):
    return (part.in_features, part.out_features) if isinstance(part, nn.Linear) else ()


def test_a_saved_run_is_what_was_written_as_it_went(runs):
    folder, results = runs
    unaccounted = {"ledger.sqlite", "ledger.key", "status.json"}
    written = {name for name in tree(folder / "class") if not name.startswith("checkpoint")}
    assert tree(folder / "number") == written - unaccounted
    again = library.Schema.of(folder / "number" / "schema.toml")
    assert again.digest == library.Schema.of(schema("number")).digest
    for run in ("class", "number"):
        assert tacit("report", folder / run).code == 0
    with pytest.raises(library.InputError, match="exists already"):
        results["number"].save(folder / "number")


def test_arrays_are_predicted_without_a_schema(tmp_path):
    draw = np.random.default_rng(0)
    nodes = [(draw.random((40, 3), np.float32), draw.integers(0, 2, 40)) for _ in range(2)]
    module = nn.Linear(3, 2)
    task = {"task": {"outputs": 2}}
    result = library.train({**CONFIG, **task}, model=module, nodes=nodes)
    said = result.predict(nodes[0][0])
    assert list(said) == ["prediction", "probability of 0", "probability of 1"]
    with torch.no_grad():
        outputs = result.model()(torch.from_numpy(nodes[0][0])).double().numpy()
    np.testing.assert_allclose(said["probability of 1"], softmax(outputs, 1)[:, 1], rtol=1e-6)
    result.save(tmp_path / "run")
    module.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    assert torch.equal(module.weight, result.model().weight)
    answer = tacit("predict", tmp_path / "run", "--csv", "x.csv", "--out", tmp_path / "out.csv")
    assert answer.code == 2
    assert "passed as an object" in answer.err


HEAD = "age,sex,seen,smokes\n"
GOOD = "3,f,2021-02-03,yes\n"


@pytest.mark.parametrize(
    ("content", "more", "words"),
    [
        ("age,sex,seen\n3,f,2021-02-03\n", [], "lacks columns that the schema declares: smokes"),
        ("a,b\n1,2\n", [], "lacks columns that the schema declares: age, sex, seen, smokes"),
        (HEAD + GOOD * 5 + "x,f,2021-02-03,yes\n" + GOOD, [], "the first is row 6"),
        (HEAD + GOOD + "3,f,soon,yes\n", [], "must be dates"),
        (HEAD + GOOD + "3,f\n", [], "every line must have 4 fields"),
        (HEAD + GOOD + '3,"f" x,2021-02-03,yes\n', [], "cannot be read as CSV at line 3"),
        ("", [], "must begin with a line of names"),
        (HEAD + GOOD, ["--keep", "nr"], "--keep = 'nr': is no column of the table"),
        (HEAD + GOOD, ["--dialect", "none.toml"], "No such file"),
        (HEAD.replace(",", ";"), [], "lacks columns"),
    ],
)
def test_what_cannot_be_predicted_is_one_line(content, more, words, runs, tmp_path, monkeypatch):
    monkeypatch.setattr(reading.read_parts, "__defaults__", (None, 4))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.csv").write_text(content)
    answer = tacit("predict", runs[0] / "class", "--csv", "new.csv", "--out", "out.csv", *more)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert words in answer.err
    assert tree(tmp_path) == {"new.csv"}


def test_a_file_that_is_there_stays(runs, table, tmp_path):
    (tmp_path / "out.csv").write_text("mine")
    answer = tacit("predict", runs[0] / "class", "--csv", table, "--out", tmp_path / "out.csv")
    assert answer.code == 2
    assert (tmp_path / "out.csv").read_text() == "mine"


def test_it_stands_in_a_pipe(runs, table, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(table.read_bytes())))
    command.predict(runs[0] / "number", command._STANDARD, command._STANDARD)
    lines = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert lines[0] == ["predicted stay"]
    assert len(lines) == COUNT + 1
