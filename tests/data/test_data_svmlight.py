"""Files of svmlight and LIBSVM against a reader of a few lines and against damaged files."""

from __future__ import annotations

import bz2
import gzip
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tacit
from tacit.data import load
from tacit.data.formats import svmlight
from tacit.errors import InputError

TRAIN = "+1 1:0.5 3:2\n-1 2:1 # a comment\n\n-1 5:-1e-3\n"
TEST = "-1 1:4\n+1 4:0.25\n"
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": lambda content: content,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
}


def write(folder: Path, **files: str) -> Path:
    """Files in a folder, by name with `_` for the dot; gives the folder."""
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_text(content)
    return folder


def dense(text: str, features: int, first: int) -> list[list[float]]:
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


def test_train_and_test_lie_side_by_side(tmp_path: Path) -> None:
    data = load("svmlight:a9a", data_dir=write(tmp_path, a9a=TRAIN, a9a_t=TEST))
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


def test_a_file_alone_has_no_test_records(tmp_path: Path) -> None:
    data = load("svmlight:alone", data_dir=write(tmp_path, alone=TRAIN))
    assert data.test is None
    assert data.train.inputs.shape == (3, 5)


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("test_ending", PACK)
def test_files_may_be_packed(tmp_path: Path, ending: str, test_ending: str) -> None:
    (tmp_path / f"set{ending}").write_bytes(PACK[ending](TRAIN.encode()))
    (tmp_path / f"set.t{test_ending}").write_bytes(PACK[test_ending](TEST.encode()))
    data = load(f"svmlight:set{ending}", data_dir=tmp_path)
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (3, 2)


def test_the_data_folder_comes_before_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    write(here, both="1 1:1\n-1 1:2\n", only="1 1:5\n")
    write(there, both="1 1:3\n")
    monkeypatch.chdir(here)
    assert len(load("svmlight:both", data_dir=there).train) == 1
    assert len(load("svmlight:only", data_dir=there).train) == 1
    assert len(load(f"svmlight:{here / 'both'}", data_dir=there).train) == 2
    monkeypatch.setenv("HOME", str(here))
    assert len(load("svmlight:~/both", data_dir=there).train) == 2


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    data=st.data(),
    first=st.sampled_from([0, 1]),
    width=st.integers(1, 6),
    halves=st.tuples(st.integers(1, 5), st.integers(0, 4)),
)
def test_reads_what_was_written(
    data: st.DataObject, first: int, width: int, halves: tuple[int, int]
) -> None:
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
            # The first record names every index, zeros too, so that the width is known.
            kept = [
                f"{column + first}:{value!r}"
                for column, value in enumerate(row)
                if value or (record == 0 and count == halves[0])
            ]
            lines.append(" ".join([str(record % 2 * 2 - 1), *kept]))
        tables.append(rows)
        texts.append("\n".join(lines))
    with tempfile.TemporaryDirectory() as name:
        folder = write(Path(name), set=texts[0])
        if halves[1]:
            write(folder, set_t=texts[1])
        read = load("svmlight:set", data_dir=folder)
    np.testing.assert_array_equal(read.train.inputs, np.array(tables[0], np.float32))
    assert (read.test is not None) == (halves[1] > 0)
    if read.test is not None:
        np.testing.assert_array_equal(read.test.inputs, np.array(tables[1], np.float32))


def test_one_index_0_in_either_file_shifts_both(tmp_path: Path) -> None:
    data = load("svmlight:set", data_dir=write(tmp_path, set="1 1:7 2:8\n", set_t="-1 0:9\n"))
    assert data.test is not None
    assert data.train.inputs.tolist() == [[0, 7, 8]]
    assert data.test.inputs.tolist() == [[9, 0, 0]]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("+1 -1 1", [1, -1, 1]),
        ("1 1 1", [1, 1, 1]),
        ("0 1 0", [0, 1, 0]),
        ("1 2 1", [0, 1, 0]),
        ("3 1 2", [2, 0, 1]),
        ("0 4 2", [0, 4, 2]),
        ("1.0 2.0 2.0", [0, 1, 1]),
    ],
)
def test_whole_targets_are_class_labels(tmp_path: Path, labels: str, expected: list[int]) -> None:
    text = "".join(f"{label} 1:1\n" for label in labels.split())
    data = load("svmlight:set", data_dir=write(tmp_path, set=text))
    assert data.train.targets.dtype == torch.int64
    assert data.train.targets.tolist() == expected
    assert data.classes is None  # how many there are is not counted


@pytest.mark.parametrize("labels", ["0.5 1 2", "2 3 4", "-1 0 1", "-2 1 1", "1e12 0 0"])
def test_other_targets_are_numbers(tmp_path: Path, labels: str) -> None:
    text = "".join(f"{label} 1:1\n" for label in labels.split())
    data = load("svmlight:set", data_dir=write(tmp_path, set=text))
    assert data.train.targets.dtype == torch.float32
    assert data.train.targets.tolist() == [float(np.float32(label)) for label in labels.split()]
    assert data.classes is None


def test_labels_count_from_the_lowest_of_both_files(tmp_path: Path) -> None:
    data = load("svmlight:set", data_dir=write(tmp_path, set="2 1:1\n3 1:1\n", set_t="1 1:1\n"))
    assert data.test is not None
    assert data.train.targets.tolist() == [1, 2]
    assert data.test.targets.tolist() == [0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "holds no record"),
        ("# only a comment\n", "holds no record"),
        ("1\n-1\n", "no record has a feature"),
        ("hello context\n", "must hold lines such as '1 1:0.5 3:2'"),
        ("1 1:2 x:3\n", "must hold lines"),
        ("1 1 2 3\n", "must hold lines"),
        ("1,2 1:1\n", "must hold lines"),
        ("1 3:1 2:1\n", "line 1 cannot be read (ValueError)"),
        ("1 -3:1\n", "with ascending indices"),
        ("1 99999999999:1\n", "OverflowError"),
        ("1 2000000000:1\n", "would take 8 GB, and 4.29 GB of memory are free"),
        ("nan 1:1\n", "1 of 1 records': targets must be finite"),
        ("1 1:1\n1 1:1e39\n", "1 of 2 records': inputs must be finite"),
    ],
)
def test_what_is_no_such_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, words: str
) -> None:
    monkeypatch.setattr(svmlight, "host_bytes", lambda: 2**32)
    with pytest.raises(InputError) as refused:
        load("svmlight:set", data_dir=write(tmp_path, set=content))
    assert refused.value.where == "task.dataset"
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("ending", [".gz", ".bz2"])
@pytest.mark.parametrize("damage", [lambda packed: packed[:-9], lambda _: b"no archive"])
def test_a_damaged_archive_is_refused(
    tmp_path: Path, ending: str, damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"set{ending}"
    path.write_bytes(damage(PACK[ending](TRAIN.encode() * 50)))
    with pytest.raises(InputError, match="must hold lines") as refused:
        load(f"svmlight:set{ending}", data_dir=tmp_path)
    assert refused.value.value == str(path)


def test_test_records_may_not_have_more_features(tmp_path: Path) -> None:
    write(tmp_path, set="1 1:1 2:1\n", set_t="1 4:1\n")
    with pytest.raises(InputError, match=r"have 4 features.*of set 2: write '4:0' at") as refused:
        load("svmlight:set", data_dir=tmp_path)
    assert refused.value.value == str(tmp_path / "set.t")
    # What the message says helps.
    write(tmp_path, set="1 1:1 2:1 4:0\n")
    data = load("svmlight:set", data_dir=tmp_path)
    assert data.train.inputs.tolist() == [[1, 1, 0, 0]]


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
def test_a_missing_file_is_told_where_it_was_looked_for(
    tmp_path: Path, name: str, words: str
) -> None:
    with pytest.raises(InputError, match=words) as refused:
        load(name, data_dir=tmp_path)
    assert refused.value.where == "task.dataset"


def test_training_on_a_file(tmp_path: Path) -> None:
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
