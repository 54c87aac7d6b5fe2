"""The 1,797 handwritten digits that lie inside scikit-learn, without loading scikit-learn.

Importing scikit-learn takes as long as planning a run. Its file of digits is read here instead, and
divided as its `train_test_split(stratify=labels)` divides, draw by draw: the records of a seed are
those that it gives, which a test compares.
"""

from __future__ import annotations

import gzip
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.data.datasets import Dataset, TaskData
from tacit.data.public_coins import TEST_SPLIT, public_generator

_CLASSES = 10
_TEST_SHARE = 0.2
_BRIGHTEST = 16.0
_FILE = Path("datasets", "data", "digits.csv.gz")


def load_digits(seed: int) -> TaskData:
    """Inputs float32 `[records, 1, 8, 8]` in [0, 1], targets int64; a fifth is the test set.

    The test set is drawn by the public seed.
    """
    pixels, labels = _read()
    generator = public_generator(seed, TEST_SPLIT)
    halves = stratified_split(labels, _TEST_SHARE, int(generator.integers(2**32)))
    inputs = torch.as_tensor(pixels / _BRIGHTEST, dtype=torch.float32).reshape(-1, 1, 8, 8)
    targets = torch.as_tensor(labels, dtype=torch.int64)
    train, test = (Dataset(inputs[half], targets[half]) for half in map(torch.from_numpy, halves))
    return TaskData("digits", train, test, classes=_CLASSES)


@cache
def _read() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Pixels 0 to 16 `[records, 64]` and labels `[records]`."""
    for folder in _package_folders():
        if (folder / _FILE).is_file():
            with gzip.open(folder / _FILE, "rt", encoding="utf-8") as file:
                table = np.loadtxt(file, delimiter=",", dtype=np.float64)
            return table[:, :-1], table[:, -1].astype(np.int64)
    # Should it lie elsewhere in some version.
    from sklearn import datasets

    pixels, labels = datasets.load_digits(return_X_y=True)
    return np.asarray(pixels), np.asarray(labels, np.int64)


def _package_folders() -> list[Path]:
    """Where scikit-learn lies, found without importing it."""
    found = find_spec("sklearn")
    return [] if found is None else list(map(Path, found.submodule_search_locations or ()))


def stratified_split(
    labels: NDArray[np.int64], test_share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers of the training and of the test records, in random order, classes in proportion.

    What scikit-learn's `train_test_split(test_size=test_share, stratify=labels, random_state=seed)`
    gives of labels `[records]`; the share is in (0, 1), and the seed below 2^32.
    """
    draw = np.random.RandomState(seed)
    tests = int(np.ceil(test_share * len(labels)))
    _, classes = np.unique(labels, return_inverse=True)
    sizes = np.bincount(classes)
    members = np.split(np.argsort(classes, kind="stable"), np.cumsum(sizes)[:-1])
    train_sizes = _in_proportion(sizes, len(labels) - tests, draw)
    test_sizes = _in_proportion(sizes - train_sizes, tests, draw)
    train, test = [], []
    for own, trained, tested in zip(members, train_sizes, test_sizes, strict=True):
        order = own[draw.permutation(len(own))]
        train.append(order[:trained])
        test.append(order[trained : trained + tested])
    return draw.permutation(np.concatenate(train)), draw.permutation(np.concatenate(test))


def _in_proportion(
    sizes: NDArray[np.int64], count: int, draw: np.random.RandomState
) -> NDArray[np.int64]:
    """How many of each class make up `count`: rounded down, the largest remainders up, by lot."""
    exact = sizes / sizes.sum() * count
    chosen = np.floor(exact)
    missing, remainders = int(count - chosen.sum()), exact - chosen
    for value in np.sort(np.unique(remainders))[::-1]:
        if missing == 0:
            break
        (near,) = np.nonzero(remainders == value)
        taken = draw.choice(near, size=min(len(near), missing), replace=False)
        chosen[taken] += 1
        missing -= len(taken)
    return np.asarray(chosen, dtype=np.int64)
