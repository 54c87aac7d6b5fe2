"""Data sets by name, against the real files and what is published of them."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from tacit.data import SOURCES, load
from tacit.data.files import MIRROR_VARIABLE, content_sha256
from tacit.data.formats.idx import FASHION_MNIST, FILES, MNIST
from tacit.errors import InputError

# Records of each digit in MNIST, as published with the data; Fashion-MNIST is balanced.
MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setenv(MIRROR_VARIABLE, "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("name", "train_counts", "test_counts", "mean"),
    [
        ("mnist", MNIST_TRAIN, MNIST_TEST, 0.1307),  # the mean that everybody normalises with
        ("fashion-mnist", [6000] * 10, [1000] * 10, 0.2860),
    ],
)
def test_real_images(data_dir, name, train_counts, test_counts, mean):
    data = load(name, data_dir=data_dir)
    assert data.name == name
    assert data.classes == 10
    assert data.test is not None
    for half, records, counts in (
        (data.train, 60_000, train_counts),
        (data.test, 10_000, test_counts),
    ):
        assert half.inputs.shape == (records, 1, 28, 28)
        assert half.inputs.dtype == torch.float32
        assert half.inputs.min() == 0
        assert half.inputs.max() == 1
        assert half.targets.dtype == torch.int64
        assert torch.bincount(half.targets).tolist() == counts
    assert data.train.inputs.mean().item() == pytest.approx(mean, abs=5e-5)
    np.testing.assert_array_equal(data.columns["label"], data.train.targets.numpy())


@pytest.mark.parametrize("source", [MNIST, FASHION_MNIST], ids=lambda source: source.name)
def test_registered_checksums_are_those_of_the_real_files(data_dir, source):
    folder = data_dir / source.name
    found = tuple(content_sha256(folder / f"{name}.gz") for name in FILES)
    assert found == source.sha256
    assert len(found) == 4


def test_real_images_in_the_folder_itself(data_dir):
    """Both data sets use the same file names: the folder's name decides whose they are."""
    data = load("fashion-mnist", data_dir=data_dir / "fashion-mnist")
    assert torch.bincount(data.train.targets).tolist() == [6000] * 10
    with pytest.raises(InputError, match="was not found"):
        load("fashion-mnist", data_dir=data_dir / "mnist")


def test_bare_files_are_mnist_unless_the_folder_says_otherwise(tmp_path, image_files, write_folder):
    files = image_files(train=7)
    bare, other = tmp_path / "bare", tmp_path / "fashion-mnist"
    write_folder(bare, {f"{name}.gz": content for name, content in files.items()})
    write_folder(other, files)
    write_folder(tmp_path / "empty", {})
    assert len(load("mnist", data_dir=bare).train) == 7
    assert len(load("fashion-mnist", data_dir=other).train) == 7
    for name, folder in (("fashion-mnist", bare), ("mnist", other), ("mnist", tmp_path / "empty")):
        with pytest.raises(InputError, match="was not found") as caught:
            load(name, data_dir=folder)
        assert caught.value.where == "task.data_dir"
        assert caught.value.value == str(folder)


def test_the_own_folder_goes_before_bare_files(tmp_path, image_files, write_folder):
    write_folder(tmp_path, image_files(train=7))
    write_folder(tmp_path / "mnist", image_files(train=8))
    assert len(load("mnist", data_dir=tmp_path).train) == 8


def test_a_label_out_of_range_is_refused(tmp_path, image_files, write_folder, idx_bytes):
    files = image_files(train=3)
    files["train-labels-idx1-ubyte"] = idx_bytes(np.array([1, 12, 3], dtype=np.uint8))
    write_folder(tmp_path / "mnist", files)
    with pytest.raises(InputError, match=r"1 of 3 records.*0 to 9"):
        load("mnist", data_dir=tmp_path)


def test_digits(tmp_path):
    data = load("digits", data_dir=tmp_path)
    pixels, labels = load_digits(return_X_y=True)
    assert data.test is not None
    assert data.train.inputs.shape == (1437, 1, 8, 8)
    assert data.test.inputs.shape == (360, 1, 8, 8)
    assert data.train.inputs.dtype == torch.float32
    assert data.train.targets.dtype == torch.int64
    assert data.classes == 10

    # Both halves together are the original records, each once.
    inputs = torch.cat([data.train.inputs, data.test.inputs]).reshape(-1, 64).double() * 16
    targets = torch.cat([data.train.targets, data.test.targets])
    rows = np.column_stack([inputs.numpy(), targets.numpy()])
    expected = np.column_stack([pixels, labels])
    np.testing.assert_array_equal(np.sort(rows, axis=0), np.sort(expected, axis=0))
    assert sorted(map(tuple, rows)) == sorted(map(tuple, expected))

    # Stratified: every class gives a fifth of its records to the test, up to one record.
    share = np.bincount(data.test.targets.numpy()) - 0.2 * np.bincount(labels)
    assert np.abs(share).max() <= 1


def test_the_digits_split_follows_the_seed(tmp_path):
    first, same, other = (load("digits", data_dir=tmp_path, seed=seed) for seed in (3, 3, 4))
    assert first.train.inputs.equal(same.train.inputs)
    assert not first.train.inputs.equal(other.train.inputs)
    with pytest.raises(InputError, match=r"train\.seed = -1"):
        load("digits", data_dir=tmp_path, seed=-1)


@pytest.mark.parametrize(
    ("name", "words"),
    [("digit", "did you mean 'digits'"), ("zzz", "known are: adult, cifar10, csv:PATH, digits")],
)
def test_an_unknown_name_is_an_input_error(tmp_path, name, words):
    with pytest.raises(InputError, match=words) as caught:
        load(name, data_dir=tmp_path)
    assert caught.value.where == "task.dataset"
    files = {"svmlight:PATH", "csv:PATH", "parquet:PATH"}
    listed = {"digits", "mnist", "fashion-mnist", "adult", "cifar10"} | files
    assert set(SOURCES) == listed
