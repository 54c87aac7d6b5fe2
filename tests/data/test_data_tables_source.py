"""Tables as data sets: found, divided by declared values, with public test records."""

import numpy as np
import pandas as pd
import pytest
import torch

from patient_tables import HOSPITALS, SCHEMA, write_tables
from tacit import Schema
from tacit.config import load_config
from tacit.data import load, partition
from tacit.data.formats.svmlight import Declared
from tacit.errors import InputError
from tacit.training.prepare import prepare

TABLE = "csv:patients.csv"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_table_is_divided_by_the_declared_nodes_in_their_order(folder):
    data = load(TABLE, data_dir=folder)
    frame = pd.read_csv(folder / "patients.csv")
    parts = partition("by:hospital", data, 5, 0)
    for name, part in zip(HOSPITALS, parts, strict=True):
        assert part.tolist() == np.flatnonzero(frame["hospital"] == name).tolist()
    kinds = partition("by:admission", data, 3, 0)
    assert [len(part) for part in kinds] == [
        int((frame["admission"] == kind).sum()) for kind in ("planned", "emergency", "transfer")
    ]
    assert data.classes == 2
    for count in (2, 6):  # hospitals are not merged without a word
        with pytest.raises(InputError, match=rf"nodes\.count = {count}: .* has 5 declared values"):
            partition("by:hospital", data, count, 0)


def test_a_declared_node_without_records_has_its_place(folder):
    frame = pd.read_csv(folder / "patients.csv")
    frame[frame["hospital"] != "General"].to_csv(folder / "patients.csv", index=False)
    data = load(TABLE, data_dir=folder)
    sizes = [len(part) for part in partition("by:hospital", data, 5, 0)]
    assert [place for place, size in enumerate(sizes) if size == 0] == [3]
    assert sum(sizes) == len(data.train)


def test_files_are_looked_for_here_and_then_in_the_data_folder(
    folder, tmp_path_factory, monkeypatch
):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert len(load(TABLE, data_dir=folder).train) == 300
    for wrong, words in (
        ("csv:nobody.csv", r"there is no file nobody\.csv or .*nobody\.csv"),
        ("csv:", "must name a file after the colon"),
        ("parquet:patients.csv", r"must be a file that ends in \.parquet"),
    ):
        with pytest.raises(InputError, match=words):
            load(wrong, data_dir=folder)
    (folder / "patients.schema.toml").unlink()
    with pytest.raises(InputError, match=r"task\.schema = 'patients\.schema\.toml': .*tacit init"):
        load(TABLE, data_dir=folder)


def test_test_records_are_another_table_or_a_share(folder):
    named = load(TABLE, data_dir=folder, test="csv:sample.csv")
    assert named.test is not None
    assert (len(named.train), len(named.test)) == (300, 100)
    shared = load(TABLE, data_dir=folder, test_share=0.2, seed=3)
    assert shared.test is not None
    assert (len(shared.train), len(shared.test)) == (240, 60)
    whole = load(TABLE, data_dir=folder)
    rows = [*shared.train.inputs.tolist(), *shared.test.inputs.tolist()]
    assert sorted(rows) == sorted(whole.train.inputs.tolist())
    assert len(shared.columns["hospital"]) == 240
    assert "60 of 300 records are held out and declared public" in shared.notes[-1]
    again, other = (load(TABLE, data_dir=folder, test_share=0.2, seed=s) for s in (3, 4))
    assert again.train.inputs.equal(shared.train.inputs)
    assert not other.train.inputs.equal(shared.train.inputs)


def test_test_records_that_do_not_go_with_the_data_are_refused(folder):
    cases = [
        (TABLE, {"test": "sample.csv"}, "task.test", "must name a table of public records"),
        (TABLE, {"test": "csv:no.csv"}, "task.test", "there is no file"),
        (TABLE, {"test": TABLE}, "task.test", "is the table that is trained on"),
        ("digits", {"test": "csv:sample.csv"}, "task.test", "goes with a table"),
        ("digits", {"test_share": 0.2}, "task.test_share", "has test records"),
        (TABLE, {"test_share": 0.0001}, "task.test_share", "at least one"),
    ]
    for dataset, given, where, words in cases:
        with pytest.raises(InputError, match=words) as caught:
            load(dataset, data_dir=folder, **given)
        assert caught.value.where == where


def test_a_share_may_be_held_out_of_any_data_set_without_test_records(folder):
    (folder / "some.svm").write_text("".join(f"{k % 2} 1:{k}\n" for k in range(20)))
    declared = Declared(features=1, outputs=2, loss="cross-entropy")
    data = load("svmlight:some.svm", data_dir=folder, test_share=0.25, declared=declared)
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (15, 5)


# What the schema says of the experiment.


def experiment(**task):
    return {"task": {"dataset": TABLE, **task}}


def test_nodes_loss_and_schema_follow_from_the_schema(folder):
    config = load_config(experiment())
    assert (config.nodes.count, config.nodes.partition) == (5, "by:hospital")
    assert (config.task.schema, config.task.loss) == ("patients.schema.toml", "cross-entropy")
    given = load_config({**experiment(), "nodes": {"count": 2, "partition": "iid"}})
    assert (given.nodes.count, given.nodes.partition) == (2, "iid")
    kinds = load_config({**experiment(), "nodes": {"partition": "by:admission"}})
    assert kinds.nodes.count == 3
    assert load_config(config) == config
    assert load_config({**experiment(), "nodes": {"partition": "iid"}}).nodes.count == 16


def test_a_number_to_predict_goes_with_squared_errors(folder):
    columns = {key: kind for key, kind in SCHEMA["columns"].items() if key != "systolic"}
    columns["readmitted"] = {"kind": "boolean"}
    target = {"column": "systolic", "kind": "number", "low": 70, "high": 230}
    write_tables(folder, target=target, columns=columns)
    assert load_config(experiment()).task.loss == "mse"
    assert load_config(experiment(loss="logistic")).task.loss == "logistic"


def test_a_finished_run_is_read_without_its_schema(folder):
    config = prepare(load_config(experiment())).config
    (folder / "patients.schema.toml").unlink()
    assert load_config(config, saved=True) == config
    with pytest.raises(InputError, match=r"task\.schema"):
        load_config(experiment())


def test_two_ways_to_test_are_refused(folder):
    with pytest.raises(InputError, match=r"task\.test_share .*give task\.test or"):
        load_config(experiment(test="csv:sample.csv", test_share=0.1))
    for share in (0, 1, "x"):
        with pytest.raises(InputError, match=r"task\.test_share"):
            load_config(experiment(test_share=share))


def test_a_schema_object_reads_what_its_file_reads(folder):
    read = Schema.of("patients.schema.toml").dataset(pd.read_csv("patients.csv"))
    loaded = load(TABLE, data_dir=folder).train
    assert torch.equal(read.inputs, loaded.inputs)
    assert torch.equal(read.targets, loaded.targets)
