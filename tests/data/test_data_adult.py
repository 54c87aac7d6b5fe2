"""Adult: the real files against what is published of them, and small files made like them."""

import gzip
import hashlib
import math
from collections import Counter

import numpy as np
import pytest
import torch

import tacit
from tacit.data import load, partition
from tacit.data.files import MIRROR_VARIABLE, PublishedFile, content_sha256
from tacit.data.formats.adult import (
    CATEGORIES,
    COLUMNS,
    FEATURES,
    MISSING,
    MOST_FREQUENT,
    NUMBERS,
    TEST_FILE,
    TRAIN_FILE,
    load_adult,
    read_adult,
)
from tacit.errors import InputError

FIRST = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male,"
    " 2174, 0, 40, United-States, <=50K"
)
RICH = FIRST.replace("<=50K", ">50K")
NO_VALUES = (
    FIRST.replace("State-gov", "?").replace("Adm-clerical", "?").replace("United-States", "?")
)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setenv(MIRROR_VARIABLE, "http://127.0.0.1:1")


def changed(**fields):
    """The first line with some fields replaced."""
    content = dict(zip(COLUMNS, FIRST.split(", "), strict=True))
    content |= {name.replace("_", "-"): value for name, value in fields.items()}
    return ", ".join(content.values())


def test_lines(train):
    """The bytes of a test file: a comment first, a full stop after each label, an empty end."""
    return ("|1x3 Cross validator\n" + "".join(f"{line}.\n" for line in train) + "\n").encode()


test_lines.__test__ = False  # type: ignore[attr-defined]


def write(folder, train, test):
    """Both files in a new folder `adult` of a folder; gives the latter."""
    (folder / "adult").mkdir(parents=True)
    (folder / "adult" / "adult.data").write_text("\n".join(train) + "\n\n")
    (folder / "adult" / "adult.test").write_bytes(test_lines(test))
    return folder


def people(count, seed=0):
    """Made-up records, the income of which follows from education and hours."""
    generator = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        level, hours = int(generator.integers(1, 17)), int(generator.integers(1, 100))
        picked = {
            name: str(generator.choice(categories)) for name, categories in CATEGORIES.items()
        }
        numbers = {
            "age": int(generator.integers(17, 91)),
            "fnlwgt": int(generator.integers(12_285, 1_490_400)),
            "education-num": level,
            "capital-gain": int(generator.integers(0, 100_000)),
            "capital-loss": 0,
            "hours-per-week": hours,
        }
        income = ">50K" if level / 16 + hours / 99 > 1 else "<=50K"
        known = {**picked, **{name: str(value) for name, value in numbers.items()}}
        lines.append(", ".join([*(known[name] for name in COLUMNS[:-1]), income]))
    return lines


def encoded(line):
    """What a line should become, computed one field after the other."""
    fields = dict(zip(COLUMNS, line.split(", "), strict=True))
    age, weight, level, gain, loss, hours = (float(fields[name]) for name in NUMBERS)
    features = [
        (min(max(age, 17), 90) - 17) / 73,
        min(weight, 1.5e6) / 1.5e6,
        (min(max(level, 1), 16) - 1) / 15,
        math.log1p(min(gain, 99_999)) / math.log(100_000),
        math.log1p(min(loss, 99_999)) / math.log(100_000),
        (min(max(hours, 1), 99) - 1) / 98,
    ]
    for name, categories in CATEGORIES.items():
        value = MOST_FREQUENT[name] if fields[name] == MISSING else fields[name]
        features += [1.0 if value == category else 0.0 for category in categories]
    norm = math.sqrt(sum(value * value for value in features))
    return [value / norm for value in features]


@pytest.mark.slow
def test_the_real_files(adult_dir):
    data = load("adult", data_dir=adult_dir)
    assert data.test is not None
    for half, records, rich in ((data.train, 32_561, 7_841), (data.test, 16_281, 3_846)):
        assert half.inputs.shape == (records, 105)
        assert half.inputs.dtype == torch.float32
        assert half.targets.dtype == torch.int64
        assert half.targets.unique(return_counts=True)[1].tolist() == [records - rich, rich]
        assert half.inputs.min() == 0
        norms = half.inputs.double().norm(dim=1)
        assert norms.max() <= 1
        assert norms.min() >= 1 - 1e-6
    assert Counter(data.columns["sex"].tolist()) == {"Male": 21_790, "Female": 10_771}
    assert len(set(data.columns["native-country"].tolist())) == 41
    # The first record of the published file, by hand.
    torch.testing.assert_close(
        data.train.inputs[0].double(), torch.tensor(encoded(FIRST)).double(), atol=1e-6, rtol=0
    )


def test_what_is_written_down_agrees_with_the_real_files(adult_dir):
    for file in (TRAIN_FILE, TEST_FILE):
        assert content_sha256(adult_dir / "adult" / f"{file.name}.gz") == file.sha256
    text = gzip.decompress((adult_dir / "adult" / "adult.data.gz").read_bytes()).decode()
    rows = [line.split(", ") for line in text.splitlines() if line]
    for name, column in zip(COLUMNS, zip(*rows, strict=True), strict=True):
        if name in CATEGORIES:
            counts = Counter(column)
            missing = counts.pop(MISSING, 0)
            assert set(counts) == set(CATEGORIES[name])
            assert (name in MOST_FREQUENT) == (missing > 0)
            if missing:
                assert counts.most_common(1)[0][0] == MOST_FREQUENT[name]
        elif name in NUMBERS:
            low, high, _ = NUMBERS[name]
            assert low <= min(map(int, column))
            assert max(map(int, column)) <= high


def test_features_are_named():
    assert len(FEATURES) == len(set(FEATURES)) == 6 + 8 + 16 + 7 + 14 + 6 + 5 + 2 + 41 == 105
    assert FEATURES[:2] == ("age", "fnlwgt")
    assert FEATURES[-1] == "native-country=Holand-Netherlands"


def test_records_are_encoded_one_by_one(tmp_path):
    lines = [*people(40), FIRST, NO_VALUES, changed(age="120", fnlwgt="9000000", capital_gain="0")]
    data = load("adult", data_dir=write(tmp_path, lines, lines[:5]))
    assert data.test is not None
    expected = torch.tensor([encoded(line) for line in lines], dtype=torch.float64)
    torch.testing.assert_close(data.train.inputs.double(), expected, atol=1e-6, rtol=0)
    assert data.test.inputs.equal(data.train.inputs[:5])
    assert data.test.targets.equal(data.train.targets[:5])
    assert data.train.inputs.double().norm(dim=1).max() <= 1
    # A record's numbers do not depend on the other records: nothing is fitted to them.
    alone = load("adult", data_dir=write(tmp_path / "alone", lines[-1:], lines[:1]))
    assert alone.train.inputs.equal(data.train.inputs[-1:])


def test_missing_values_are_replaced_in_the_columns_too(tmp_path):
    data = load("adult", data_dir=write(tmp_path, [FIRST, NO_VALUES], [FIRST]))
    assert data.columns["workclass"].tolist() == ["State-gov", "Private"]
    assert data.columns["occupation"].tolist() == ["Adm-clerical", "Prof-specialty"]
    assert data.columns["native-country"].tolist() == ["United-States"] * 2
    assert set(data.columns) == {*CATEGORIES, "label"}


@pytest.mark.parametrize("column", [*CATEGORIES, "label"])
def test_records_are_divided_by_each_column(tmp_path, column):
    data = load("adult", data_dir=write(tmp_path, people(60), people(3)))
    declared = CATEGORIES.get(column, (0, 1))
    parts = partition(f"by:{column}", data, len(declared), seed=0)
    assert sorted(np.concatenate(parts).tolist()) == list(range(60))
    for value, part in zip(declared, parts, strict=True):
        found = set(data.columns[column].tolist())
        assert set(data.columns[column][part].tolist()) == {value} & found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (FIRST + ", more", "line 2 has 16 fields, not 15"),
        ("39", "line 2 has 1 fields"),
        (changed(education="Highschool"), "line 2: education 'Highschool' is no category"),
        (changed(sex="?"), r"line 2: sex '\?' is no category"),
        (changed(age="old"), "line 2: age 'old' is no number"),
        (changed(age="-3"), "line 2: age '-3' is no number"),
        (changed(age="1e3"), "line 2: age '1e3' is no number"),
        (changed(age="?"), r"line 2: age '\?' is no number"),
        (changed(income="50K"), "line 2: income '50K' is none of <=50K, >50K"),
        (changed(income="?"), "line 2: income"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, words):
    folder = write(tmp_path, [FIRST, line], [FIRST])
    with pytest.raises(InputError, match=words) as refused:
        load("adult", data_dir=folder)
    assert refused.value.where == "task.data_dir"
    assert refused.value.value == str(folder / "adult" / "adult.data")
    assert "\n" not in str(refused.value)


def test_lines_are_counted_as_an_editor_counts_them(tmp_path):
    path = tmp_path / "adult.test"
    path.write_bytes(test_lines([FIRST, RICH]) + b"\n39\n")
    with pytest.raises(InputError, match="line 6 has 1 fields"):
        read_adult(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no record"),
        (b"|only a comment\n\n", "holds no record"),
        (b"\xff\xfe39", "UnicodeDecodeError"),
        (gzip.compress(FIRST.encode(), mtime=0)[:-9], "EOFError"),
    ],
)
def test_what_is_no_text_of_adult_is_refused(tmp_path, content, words):
    path = tmp_path / "adult.data"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words) as refused:
        read_adult(path)
    assert refused.value.value == str(path)


def test_files_lie_in_a_folder_of_their_own_or_not_packed_or_not(tmp_path):
    (tmp_path / "adult.data.gz").write_bytes(gzip.compress(f"{FIRST}\n{RICH}\n".encode()))
    (tmp_path / "adult.test").write_bytes(test_lines([RICH]))
    data = load("adult", data_dir=tmp_path)
    assert data.train.targets.tolist() == [0, 1]
    assert data.test is not None
    assert data.test.targets.tolist() == [1]


def test_missing_files_are_downloaded_once(server, tmp_path, monkeypatch):
    train, test = f"{FIRST}\n".encode(), test_lines([RICH])
    server.files = {"/adult/adult.data": train, "/adult/adult.test": gzip.compress(test)}
    monkeypatch.setenv(MIRROR_VARIABLE, server.url)
    sums = [hashlib.sha256(content).hexdigest() for content in (train, test)]
    files = [
        PublishedFile("adult", file.url, sha256)
        for file, sha256 in zip((TRAIN_FILE, TEST_FILE), sums, strict=True)
    ]
    first = load_adult(tmp_path, *files)
    again = load_adult(tmp_path, *files)
    assert sorted(server.requests) == ["/adult/adult.data", "/adult/adult.test"]
    assert (tmp_path / "adult" / "adult.data").read_bytes() == train
    assert first.train.inputs.equal(again.train.inputs)
    # The checksums in the code are those of the real files: anything else is not kept.
    with pytest.raises(InputError, match="SHA-256") as refused:
        load("adult", data_dir=tmp_path / "other")
    assert "put adult.data and adult.test in" in refused.value.expected
    assert not (tmp_path / "other").exists()


def sections(folder, **task):
    return {
        "task": {"dataset": "adult", "model": "logistic", "data_dir": str(folder), **task},
        "nodes": {"count": 2, "partition": "by:sex"},
        "topology": {"graph": "complete"},
        "algorithm": {"name": "d-psgd", "learning_rate": 20.0},
        "train": {"steps": 300, "batch": "all"},
    }


@pytest.mark.slow
def test_training_on_it_with_the_logistic_loss(tmp_path):
    folder = write(tmp_path, people(400), people(200, seed=1))
    result = tacit.train(sections(folder, loss="logistic"))
    assert result.parameters.shape == (2, 106)
    assert result.test_accuracy is not None
    assert result.test_accuracy["consensus"] > 0.8


@pytest.mark.slow
def test_training_on_it_with_cross_entropy_is_the_same_model(tmp_path):
    folder = write(tmp_path, people(400), people(200, seed=1))
    exact = {"steps": 20, "batch": "all", "dtype": "float64"}
    one = tacit.train({**sections(folder, loss="logistic"), "train": exact})
    # Two outputs of opposite sign: their difference moves twice as far in a step.
    half = {"name": "d-psgd", "learning_rate": 10.0}
    two = tacit.train({**sections(folder), "algorithm": half, "train": exact})
    weights, bias = two.parameters[:, :210].reshape(2, 2, 105), two.parameters[:, 210:]
    single = torch.cat([weights[:, 1] - weights[:, 0], bias[:, 1:] - bias[:, :1]], dim=1)
    torch.testing.assert_close(single, one.parameters, atol=1e-9, rtol=0)
    assert two.test_accuracy == one.test_accuracy
