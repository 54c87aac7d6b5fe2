"""Runs on tables: from files, from frames, from each node's own file."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import tomli_w
import torch
from sklearn.metrics import mean_absolute_error, r2_score, roc_auc_score, root_mean_squared_error

import tacit
from experiments import tacit as command_line
from experiments import wait_tacit
from patient_tables import HOSPITALS, SCHEMA, write_tables
from tacit.config import load_config
from tacit.data import load_own
from tacit.errors import InputError, RecordsError
from tacit.training.prepare import prepare

SETTINGS = {
    "algorithm": {"name": "privsgp", "learning_rate": 0.5},
    "privacy": {"epsilon": 3.0, "noise_seed": 4},
    "train": {"steps": 3, "batch": "all"},
}
TASK = {"dataset": "csv:patients.csv", "model": "logistic"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(task, **given):
    return tacit.train({**SETTINGS, "task": task}, **given)


def frame():
    return pd.read_csv("patients.csv")


@pytest.mark.slow
def test_files_frames_and_parts_train_the_same_models(folder):
    wanted = trained(TASK).parameters
    model = {"model": "logistic"}
    assert wanted.shape == (5, 36)
    one = {"one frame": frame(), "polars": pl.from_pandas(frame())}
    for name, given in one.items():
        assert trained(model, nodes=given, schema=SCHEMA).parameters.equal(wanted), name
    parts = [frame()[frame()["hospital"] == name] for name in HOSPITALS]
    schema = tacit.Schema(**SCHEMA)
    assert trained(model, nodes=parts, schema=schema).parameters.equal(wanted)
    named = {**model, "schema": "patients.schema.toml"}
    assert trained(named, nodes=parts).parameters.equal(wanted)
    frame().to_parquet("patients.parquet")
    assert trained({**TASK, "dataset": "parquet:patients.parquet"}).parameters.equal(wanted)


@pytest.mark.slow
def test_paths_stand_for_the_tables_they_lead_to(folder):
    """One with all nodes, one a node, and one with test records; the schema lies beside it."""
    model = {"model": "logistic"}
    wanted = trained({**TASK, "test": "csv:sample.csv"})
    for given in ("patients.csv", folder / "patients.csv", "csv:patients.csv"):
        found = trained(model, nodes=given, test="csv:sample.csv")
        assert found.parameters.equal(wanted.parameters)
        assert found.test_loss == wanted.test_loss
    parts = [f"{number}.csv" for number in range(len(HOSPITALS))]
    for name, part in zip(HOSPITALS, parts, strict=True):
        frame()[frame()["hospital"] == name].to_csv(part, index=False)
    assert trained(model, nodes=parts, schema=SCHEMA).parameters.equal(wanted.parameters)
    wrong = {"nope.csv": "no such file", ".": "no such file", "0.csv": "there is no 0.schema.toml"}
    for nodes, said in (*wrong.items(), (parts, "needs schema=")):
        with pytest.raises(InputError, match=said):
            trained(model, nodes=nodes)
    with pytest.raises(InputError, match=r"test = '.*nope\.csv': there is no such file"):
        trained(model, nodes="patients.csv", test="nope.csv")
    trained(model, nodes="patients.csv", test=folder / "sample.csv")


def test_test_records_are_frames_files_or_a_share(folder):
    sample = pd.read_csv("sample.csv")
    by_file = trained({**TASK, "test": "csv:sample.csv"})
    by_frame = trained({"model": "logistic"}, nodes=frame(), schema=SCHEMA, test=sample)
    assert by_file.test_loss == by_frame.test_loss
    without_node = sample.drop(columns="hospital")
    again = trained({"model": "logistic"}, nodes=frame(), schema=SCHEMA, test=without_node)
    assert again.test_loss == by_file.test_loss
    named = {"model": "logistic", "test": "csv:sample.csv"}
    assert trained(named, nodes=frame(), schema=SCHEMA).test_loss == by_file.test_loss


def test_a_share_that_is_declared_public_is_said_to_be(folder):
    sections = {**SETTINGS, "task": {**TASK, "test_share": 0.2}, "privacy": {"epsilon": 3.0}}
    result = tacit.train(sections, out="run")
    assert result.test_accuracy is not None
    assert sum(node.records for node in result.plan.nodes) == 240
    assert any("held out and declared public" in note for note in result.plan.notes)
    document = json.loads(Path("run/result.json").read_text())
    assert any("task.test_share" in line for line in document["not_covered"])
    assert "declared public" in Path("run/report.html").read_text()
    answer = command_line("privacy", "statement", "run")
    assert answer.code == 0
    assert "task.test_share" in Path("run/statement.json").read_text()
    scored = command_line("evaluate", "run", "--json").json
    assert scored["records"] == 60
    assert scored["loss"] == pytest.approx(result.test_loss["consensus"], rel=1e-5)
    assert command_line("evaluate", "run", "--data", "csv:sample.csv", "--json").json[
        "records"
    ] == len(pd.read_csv("sample.csv"))


def test_a_score_names_the_file_of_its_records(folder):
    task = {**TASK, "test": "csv:sample.csv"}
    result = tacit.train({**SETTINGS, "task": task}, out="run")
    for more in ([], ["--data", task["dataset"]]):
        scored = command_line("evaluate", "run", *more, "--json").json
        assert scored["dataset"] == "csv:sample.csv"
        assert scored["loss"] == pytest.approx(result.test_loss["consensus"], rel=1e-5)
    missing = command_line("evaluate", "run", "--data", "csv:none.csv")
    assert missing.code == 2
    assert "--data = 'csv:none.csv'" in missing.err


def test_without_test_records_the_plan_says_what_to_do(folder):
    result = trained(TASK)
    assert result.test_accuracy is None
    (note,) = [note for note in result.plan.notes if note.startswith("no test records")]
    assert "task.test_share" in note


def test_each_node_reads_its_own_table(folder):
    for node, name in enumerate(HOSPITALS):
        part = frame()[frame()["hospital"] == name]
        part.drop(columns="hospital").to_csv(f"hospital-{node}.csv", index=False)
    own = {
        "nodes": {"count": 5, "data": "by-rank", "source": "hospital-{node}.csv"},
        "task": {"model": "logistic", "schema": "patients.schema.toml", "test": "csv:sample.csv"},
    }
    result = tacit.train({**SETTINGS, **own})
    wanted = trained({**TASK, "test": "csv:sample.csv"})
    assert result.parameters.equal(wanted.parameters)
    assert result.test_loss == wanted.test_loss
    Path("hospital-0.csv").unlink()
    schema = tacit.Schema.of("patients.schema.toml")
    (records,) = load_own("hospital-{node}.csv", [3], schema)  # and opens no other
    assert len(records) == int((frame()["hospital"] == "General").sum())
    shared = {**own, "task": {"model": "logistic", "schema": "patients.schema.toml"}}
    shared["task"]["test_share"] = 0.1
    with pytest.raises(InputError, match=r"task\.test_share .*each node has its own"):
        tacit.train({**SETTINGS, **shared})


def test_a_number_is_predicted(folder):
    columns = {key: kind for key, kind in SCHEMA["columns"].items() if key != "systolic"}
    columns["readmitted"] = {"kind": "boolean"}
    target = {"column": "systolic", "kind": "number", "low": 70, "high": 230}
    schema = {**SCHEMA, "target": target, "columns": columns}
    result = trained({"model": "linear"}, nodes=frame(), schema=schema)
    assert result.plan.config.task.loss == "mse"
    assert any("an error of 0.1 is 8" in note for note in result.plan.notes)
    module = result.model("consensus")
    assert module(tacit.Schema(**schema).inputs(frame())).shape == (300, 1)


def test_errors_of_a_number_are_in_its_unit(folder):
    columns = {key: kind for key, kind in SCHEMA["columns"].items() if key != "systolic"}
    columns["readmitted"] = {"kind": "boolean"}
    target = {"column": "systolic", "kind": "number", "low": 70, "high": 230, "scale": "log"}
    schema = {**SCHEMA, "target": {**target, "unit": "mmHg"}, "columns": columns}
    task = {"model": "linear", "loss": "huber", "metric": ["mae", "rmse", "r2"]}
    result = trained(task, nodes=frame(), schema=schema, test=frame())
    assert any("by log(1 + x - 70)" in note and "mmHg" in note for note in result.plan.notes)
    outputs = result.model("consensus")(tacit.Schema(**schema).inputs(frame())).detach()
    span = np.log1p(160)
    systolic = frame()["systolic"].clip(70, 230)
    found = (np.expm1((outputs[:, 0].double().numpy() + 1) / 2 * span) + 70).clip(70, 230)
    scaled = 2 * np.log1p(systolic - 70) / span - 1
    wanted = {
        "mae": mean_absolute_error(systolic, found),
        "rmse": root_mean_squared_error(systolic, found),
        "r2": r2_score(scaled, outputs[:, 0]),
    }
    scores = {name: one.consensus for name, one in result.test_metrics.items()}
    assert scores == pytest.approx(wanted, rel=1e-4)


def test_what_is_not_confirmed_is_not_trained_on(folder):
    write_tables(folder, confirmed_public=False)
    for run in (
        lambda: trained(TASK),
        lambda: trained(
            {"model": "logistic"}, nodes=frame(), schema={**SCHEMA, "confirmed_public": False}
        ),
    ):
        with pytest.raises(InputError, match=r"confirmed_public = False.*\[node\] hospital"):
            run()
    (folder / "experiment.toml").write_text("[task]\ndataset = 'csv:patients.csv'\n")
    assert "no epsilon covers" in command_line("train", "experiment.toml").refusal


def test_frames_need_a_schema(folder):
    for nodes in (frame(), [frame()], [pl.from_pandas(frame())]):
        with pytest.raises(InputError, match="needs schema="):
            trained({"model": "logistic"}, nodes=nodes)
    pair = (torch.zeros(3, 2), [0, 1, 0])
    with pytest.raises(InputError, match="must be a table"):
        trained({"model": "logistic"}, nodes={"Riverside": pair}, schema=SCHEMA)


def test_records_of_a_node_that_break_the_schema_are_counted(folder):
    table = frame().drop(columns="hospital")
    table["age"] = table["age"].astype(object)
    table.loc[:6, "age"] = "Vogelsang"
    with pytest.raises(RecordsError, match=r"column 'age' of .*'7 of 300 records ") as caught:
        trained({"model": "logistic"}, nodes={"Riverside": table}, schema=SCHEMA)
    assert "Vogelsang" not in str(caught.value)


def test_a_schema_that_has_changed_is_another_experiment(folder):
    def digest():
        return prepare(load_config({**SETTINGS, "task": TASK})).plan.digest()

    before = digest()
    assert digest() == before
    columns = {**SCHEMA["columns"], "age": {"kind": "number", "low": 18, "high": 99}}
    write_tables(folder, columns=columns)
    assert digest() != before


@pytest.mark.slow
def test_the_experiment_that_init_writes_learns_something(folder):
    """Of 5,000 patients, under epsilon 3: far above 0.5, which is what chance gives."""
    write_tables(folder, 5000)
    Path("patients.schema.toml").unlink()
    flags = ("--csv", "patients.csv", "--public-csv", "sample.csv", "--target", "readmitted")
    assert command_line("init", *flags, "--node", "hospital").code == 0
    config = load_config("patients.toml", overrides=["privacy.noise_seed=1"])
    result = tacit.train(config)
    assert max(value for value in result.epsilon if value is not None) <= 3
    schema = tacit.Schema.of("patients.schema.toml")
    sample = schema.dataset(pd.read_csv("sample.csv"))
    scores = result.model()(sample.inputs).softmax(1)[:, 1].detach().numpy()
    assert roc_auc_score(sample.targets.numpy(), scores) > 0.7


@pytest.mark.process
def test_each_process_reads_the_tables_of_its_own_nodes(folder):
    names = HOSPITALS[1:4:2]  # those of the schema's that take part
    for node, name in enumerate(names):
        frame()[frame()["hospital"] == name].to_csv(f"hospital-{node}.csv", index=False)
    sections = {
        **SETTINGS,
        "task": {"model": "logistic", "schema": "patients.schema.toml", "test": "csv:sample.csv"},
        "nodes": {"names": names, "data": "by-rank", "source": "hospital-{node}.csv"},
    }
    Path("sites.toml").write_text(tomli_w.dumps(sections))
    answer = wait_tacit("launch", "sites.toml", "--processes", "2", "--out", "run", "--json")
    assert answer.code == 0, answer.err
    alone = tacit.train(sections)
    assert answer.json["test_loss"]["mean"] == pytest.approx(alone.test_loss["mean"], rel=1e-5)
