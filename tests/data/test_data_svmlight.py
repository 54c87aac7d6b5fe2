"""Files of svmlight and LIBSVM against a reader of a few lines and against damaged files."""

import bz2
import gzip
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tacit
from tacit.config import load_config
from tacit.data import load
from tacit.data.formats import svmlight
from tacit.data.formats.svmlight import Declared
from tacit.errors import InputError, RecordsError
from tacit.training.prepare import prepare

TRAIN = "+1 1:0.5 3:2\n-1 2:1 # a comment\n\n-1 5:-1e-3\n"
TEST = "-1 1:4\n+1 4:0.25\n"
PACK = {
    "": lambda content: content,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
}


def read(folder, name="set", **declared):
    """A file, with what is declared of it: that its targets are -1 and 1 if nothing else is."""
    wanted = {} if {"labels", "outputs"} & declared.keys() else {"loss": "logistic"}
    wanted = {"loss": "cross-entropy", **wanted, **declared}
    return load(f"svmlight:{name}", data_dir=folder, declared=Declared(**wanted))


def write(folder, **files):
    """Files in a folder, by name with `_` for the dot; gives the folder."""
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_text(content)
    return folder


def dense(text, features, first):
    """The records of a file whose indices count from `first`, entry by entry."""
    rows = []
    for line in text.splitlines():
        entries = line.split("#")[0].split()[1:]
        if line.split("#")[0].strip():
            rows.append([0.0] * features)
            for entry in entries:
                index, value = entry.split(":")
                rows[-1][int(index) - first] = float(value)
    return rows


def test_train_and_test_lie_side_by_side(tmp_path):
    data = read(write(tmp_path, a9a=TRAIN, a9a_t=TEST), "a9a", features=5)
    assert data.name == "svmlight:a9a"
    assert data.test is not None
    assert data.train.inputs.dtype == torch.float32
    assert data.train.inputs.equal(torch.tensor(dense(TRAIN, 5, 1)))
    assert data.test.inputs.equal(torch.tensor(dense(TEST, 5, 1)))
    assert data.train.targets.dtype == torch.int64
    assert data.train.targets.tolist() == [1, -1, -1]
    assert data.test.targets.tolist() == [-1, 1]
    assert data.classes is None
    assert data.columns["label"].tolist() == [1, -1, -1]


def test_a_file_alone_has_no_test_records(tmp_path):
    data = read(write(tmp_path, alone=TRAIN), "alone", features=5)
    assert data.test is None
    assert data.train.inputs.shape == (3, 5)


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("test_ending", PACK)
def test_files_may_be_packed(tmp_path, ending, test_ending):
    (tmp_path / f"set{ending}").write_bytes(PACK[ending](TRAIN.encode()))
    (tmp_path / f"set.t{test_ending}").write_bytes(PACK[test_ending](TEST.encode()))
    data = read(tmp_path, f"set{ending}", features=5)
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (3, 2)


def test_the_data_folder_comes_before_the_current_one(tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    write(here, both="1 1:1\n-1 1:2\n", only="1 1:5\n")
    write(there, both="1 1:3\n")
    monkeypatch.chdir(here)
    assert len(read(there, "both", features=1).train) == 1
    assert len(read(there, "only", features=1).train) == 1
    assert len(read(there, str(here / "both"), features=1).train) == 2
    monkeypatch.setenv("HOME", str(here))
    assert len(read(there, "~/both", features=1).train) == 2


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    data=st.data(),
    first=st.sampled_from([0, 1]),
    width=st.integers(1, 6),
    halves=st.tuples(st.integers(1, 5), st.integers(0, 4)),
)
def test_reads_what_was_written(data, first, width, halves):
    number = st.floats(-1e6, 1e6, width=32)
    tables, texts = [], []
    for count in halves:
        rows = data.draw(
            st.lists(
                st.lists(number, min_size=width, max_size=width), min_size=count, max_size=count
            )
        )
        lines = []
        for record, row in enumerate(rows):
            kept = [f"{column + first}:{value!r}" for column, value in enumerate(row) if value]
            lines.append(" ".join([str(record % 2 * 2 - 1), *kept]))
        tables.append(rows)
        texts.append("\n".join(lines))
    with tempfile.TemporaryDirectory() as name:
        folder = write(Path(name), set=texts[0])
        if halves[1]:
            write(folder, set_t=texts[1])
        found = read(folder, features=width, index_base=first)
    np.testing.assert_array_equal(found.train.inputs, np.array(tables[0], np.float32))
    assert (found.test is not None) == (halves[1] > 0)
    if found.test is not None:
        np.testing.assert_array_equal(found.test.inputs, np.array(tables[1], np.float32))


def test_test_records_show_what_is_not_declared(tmp_path):
    test = "2 0:9 3:1\n4 1:1\n"
    data = read(write(tmp_path, set="4 1:7 2:8\n2 3:1\n", set_t=test), loss="cross-entropy")
    assert data.test is not None
    assert data.train.inputs.tolist() == [[0, 7, 8, 0], [0, 0, 0, 1]]
    assert data.test.inputs.tolist() == [[9, 0, 0, 1], [0, 1, 0, 0]]
    assert (data.train.targets.tolist(), data.test.targets.tolist()) == ([1, 0], [0, 1])
    assert data.classes == 2


@pytest.mark.parametrize(
    ("labels", "declared", "expected"),
    [
        ("+1 -1 1", {"loss": "logistic"}, [1, -1, 1]),
        ("+1 -1 1", {"labels": (-1, 1)}, [1, 0, 1]),
        ("0 1 0", {"loss": "logistic"}, [0, 1, 0]),
        ("2 4 2", {"loss": "logistic", "labels": (2, 4)}, [0, 1, 0]),
        ("1 1 1", {"labels": (1, 2)}, [0, 0, 0]),
        ("3 1 2", {"labels": (1, 2, 3)}, [2, 0, 1]),
        ("3 4 5", {"labels": (5, 3, 4)}, [1, 2, 0]),
        ("0 4 2", {"outputs": 5}, [0, 4, 2]),
        ("1.0 2.0 2.0", {"outputs": 3}, [1, 2, 2]),
    ],
)
def test_labels_are_what_is_declared(tmp_path, labels, declared, expected):
    text = "".join(f"{label} 1:1\n" for label in labels.split())
    data = read(write(tmp_path, set=text), features=1, **declared)
    assert data.train.targets.dtype == torch.int64
    assert data.train.targets.tolist() == expected
    named = declared.get("labels") or range(declared.get("outputs", 0))
    assert data.classes == (len(named) or None)


@pytest.mark.parametrize("loss", ["mse", "own:loss"])
@pytest.mark.parametrize("labels", ["0.5 1 2", "0 1 1", "-1 1 1", "1e12 0 0"])
def test_targets_of_other_losses_are_numbers(tmp_path, labels, loss):
    text = "".join(f"{label} 1:1\n" for label in labels.split())
    data = read(write(tmp_path, set=text), loss=loss, features=1)
    assert data.train.targets.dtype == torch.float32
    assert data.train.targets.tolist() == [float(np.float32(label)) for label in labels.split()]
    assert data.classes is None


SECRET = "86421"
FITS = "1 1:1\n0 2:1\n"
BOTH = {"features": 2, "outputs": 2}


@pytest.mark.parametrize(
    ("content", "test", "declared", "words"),
    [
        (FITS, None, {}, "write task.features (how many features a record has): what"),
        (FITS, None, {"loss": "cross-entropy"}, "task.features (how many features a record has), "),
        (FITS, None, {"loss": "cross-entropy", "features": 2}, "write task.labels (such as [1, 2,"),
        (FITS, None, {"outputs": 2}, "in set.t, which show it"),
        (FITS + f"1 {SECRET}:1\n", None, BOTH, "must have indices from 1 to 2 (task.index_base"),
        (FITS + "1 0:1\n", None, BOTH, "must have indices from 1 to 2 (task.index_base, task.f"),
        (FITS + f"{SECRET} 1:1\n", None, BOTH, "must have one of the labels 0, 1 (task.labels)"),
        (FITS + "-1 1:1\n", None, BOTH, "for labels of -1 and 1 set task.loss = 'logistic'"),
        (FITS + "2 1:1\n", None, {"features": 2}, "must have labels of -1 and 1, or of 0 and 1"),
        (FITS + "1 1:1 3:1\n", FITS, {"outputs": 2}, "not declared follows from set.t"),
        (FITS + "2 1:1\n", FITS, {"loss": "cross-entropy"}, "not declared follows from set.t"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_node(tmp_path, content, test, declared, words):
    write(tmp_path, set=content, **({} if test is None else {"set_t": test}))
    with pytest.raises(InputError) as refused:
        read(tmp_path, **declared)
    line = str(refused.value)
    assert words in line
    assert "\n" not in line
    assert SECRET not in line
    if content != FITS:
        assert isinstance(refused.value, RecordsError)
        assert "1 of 3 records" in line
        assert "1 of 3 records" not in refused.value.reported()


@pytest.mark.parametrize(
    ("test", "declared", "words"),
    [
        ("0 1:1\n1 1:1\n", {"labels": (1, 2)}, "test records do not fit: they must have one of"),
        ("1 4:1\n", {"labels": (1, 2), "features": 2}, "do not fit: they must have indices from"),
        ("1 1:1\n3 1:1\n", {"outputs": 3}, "set.t shows 2 labels: name all of them in task.lab"),
        ("-1 1:1\n1 1:1\n", {"loss": "cross-entropy"}, "set task.loss = 'logistic', or task.labe"),
        ("0.5 1:1\n1 1:1\n", {"loss": "cross-entropy"}, "are no labels of classes: set task.loss"),
    ],
)
def test_test_records_that_do_not_fit_are_named(tmp_path, test, declared, words):
    write(tmp_path, set="1 1:1\n2 2:1\n", set_t=test)
    with pytest.raises(InputError) as refused:
        read(tmp_path, **declared)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "holds no record"),
        ("# only a comment\n", "holds no record"),
        ("hello context\n", "must hold lines such as '1 1:0.5 3:2'"),
        ("1 1:2 x:3\n", "must hold lines"),
        ("1 1 2 3\n", "must hold lines"),
        ("1,2 1:1\n", "must hold lines"),
        ("1 3:1 2:1\n", "line 1 cannot be read (ValueError)"),
        ("1 -3:1\n", "with ascending indices"),
        ("1 99999999999:1\n", "OverflowError"),
        ("1 2000000000:1\n", "would take 8 GB, and 4.29 GB of memory are free"),
        ("nan 1:1\n", "line 1 cannot be read"),
        ("1 1:1\n1 1_0:1\n", "line 2 cannot be read"),
        ("1 1:1_5\n", "line 1 cannot be read"),
        ("1 1:inf\n", "line 1 cannot be read"),
        ("1 1:1e400\n", "1 of 1 records': inputs must be finite"),
        ("1 1:1\n1 1:1e39\n", "1 of 2 records': inputs must be finite"),
    ],
)
def test_what_is_no_such_text_is_refused(tmp_path, monkeypatch, content, words):
    monkeypatch.setattr(svmlight, "host_bytes", lambda: 2**32)
    with pytest.raises(InputError) as refused:
        read(write(tmp_path, set=content), features=2_000_000_000 if "2000000000" in content else 3)
    assert refused.value.where == "task.dataset"
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("ending", [".gz", ".bz2"])
@pytest.mark.parametrize("damage", [lambda packed: packed[:-9], lambda _: b"no archive"])
def test_a_damaged_archive_is_refused(tmp_path, ending, damage):
    path = tmp_path / f"set{ending}"
    path.write_bytes(damage(PACK[ending](TRAIN.encode() * 50)))
    with pytest.raises(InputError, match="must hold lines") as refused:
        read(tmp_path, f"set{ending}", features=5)
    assert refused.value.value == str(path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("svmlight:", "must name a file after the colon"),
        ("svmlight:absent", "there is no file .*absent or absent"),
        ("svmlight:/absent", "there is no file /absent$"),
        ("svmlight:~nobody/absent", "there is no file"),
        ("svmlight:a\0b", "there is no file"),
        ("svmlight:.", "there is no file"),
        ("svmlight", "did you mean 'svmlight:PATH'"),
        ("svnlight:a", "there is no module 'svnlight'"),
    ],
)
def test_a_missing_file_is_told_where_it_was_looked_for(tmp_path, name, words):
    with pytest.raises(InputError, match=words) as refused:
        load(name, data_dir=tmp_path)
    assert refused.value.where == "task.dataset"


def test_training_on_a_file(tmp_path):
    generator = np.random.default_rng(0)
    points = generator.standard_normal((120, 4))
    lines = [
        " ".join(
            [f"{1 if point[0] > 0 else -1:+d}", *(f"{i + 1}:{x:.6f}" for i, x in enumerate(point))]
        )
        for point in points
    ]
    write(tmp_path, toy="\n".join(lines[:80]), toy_t="\n".join(lines[80:]))
    task = {"dataset": "svmlight:toy", "model": "logistic", "loss": "logistic"}
    result = tacit.train(
        {
            "task": {**task, "data_dir": str(tmp_path)},
            "nodes": {"count": 2, "partition": "by:label"},
            "topology": {"graph": "complete"},
            "algorithm": {"name": "d-psgd", "learning_rate": 1.0},
            "train": {"steps": 50, "batch": "all"},
        }
    )
    assert result.test_accuracy is not None
    assert result.test_accuracy["consensus"] > 0.9


def test_more_records_change_neither_labels_nor_parameters(tmp_path):
    """One line more used to shift everybody's labels, and another to make 30 parameters of 27."""
    lines = [f"{1 + k % 3} {1 + k % 8}:{k}.5" for k in range(90)]
    task = {"dataset": "svmlight:set", "model": "logistic", "data_dir": str(tmp_path)}
    task |= {"features": 8, "labels": [0, 1, 2, 3]}

    def prepared():
        sections = {"task": task, "nodes": {"count": 1}, "algorithm": {"name": "dp-sgd"}}
        return prepare(load_config(sections))

    write(tmp_path, set="\n".join(lines))
    one = prepared()
    write(tmp_path, set="\n".join([*lines, "0 1:0.1"]))
    other = prepared()
    assert other.model.parameters_count == one.model.parameters_count == 36
    assert other.train.targets[:90].equal(one.train.targets)
    assert other.train.inputs[:90].equal(one.train.inputs)
    write(tmp_path, set="\n".join([*lines, "1 9:5"]))
    with pytest.raises(RecordsError, match=r"1 of 91 records.* indices from 1 to 8"):
        prepared()
