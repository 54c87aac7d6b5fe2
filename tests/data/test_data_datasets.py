"""Data sets and their columns: what is refused, what is derived."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tacit.data import Dataset, TaskData, class_labels
from tacit.errors import InputError


@pytest.mark.parametrize(
    ("inputs", "targets", "words"),
    [
        (torch.zeros(3, 2), torch.zeros(2), "3 inputs, 2 targets"),
        (torch.zeros(3, 2), torch.zeros(3, 2, 2), "shape"),
        (torch.tensor(1.0), torch.zeros(1), "first dimension"),
        (np.zeros((3, 2)), torch.zeros(3), "must be a torch tensor"),
    ],
)
def test_a_data_set_refuses_what_is_none(inputs, targets, words):
    with pytest.raises(InputError, match=words):
        Dataset(inputs, targets)


def test_the_length_is_the_number_of_records():
    assert len(Dataset(torch.zeros(3, 2), torch.zeros(3, 4))) == 3


@pytest.mark.parametrize(
    ("targets", "labels"),
    [
        (torch.tensor([0, 2, 1]), [0, 2, 1]),
        (torch.tensor([[0], [2], [1]], dtype=torch.uint8), [0, 2, 1]),
        (torch.tensor([-1, 1, 1]), [-1, 1, 1]),
        (torch.tensor([0.0, 1.0, 1.0]), None),
        (torch.zeros(3, 2, dtype=torch.int64), None),
    ],
)
def test_labels_are_integer_targets(targets, labels):
    dataset = Dataset(torch.zeros(3, 2), targets)
    found = class_labels(dataset)
    assert (None if found is None else found.tolist()) == labels
    data = TaskData("some", dataset)
    assert list(data.columns) == ([] if labels is None else ["label"])
    assert data.classes is None  # declared, never counted


def test_a_column_of_the_user_stays():
    train = Dataset(torch.zeros(2, 1), torch.tensor([0, 1]))
    data = TaskData("some", train, columns={"label": np.array([7, 8])})
    assert data.columns["label"].tolist() == [7, 8]


def test_a_column_of_another_length_is_refused():
    train = Dataset(torch.zeros(2, 1), torch.tensor([0, 1]))
    with pytest.raises(InputError, match=r"columns\.site = \(3,\).*\(2,\)"):
        TaskData("some", train, columns={"site": np.arange(3)})


@pytest.mark.parametrize(
    "test",
    [
        Dataset(torch.zeros(2, 3), torch.tensor([0, 1])),
        Dataset(torch.zeros(2, 1), torch.tensor([[0], [1]])),
    ],
)
def test_halves_of_different_shape_are_refused(test):
    train = Dataset(torch.zeros(2, 1), torch.tensor([0, 1]))
    with pytest.raises(InputError, match="as in the training data"):
        TaskData("some", train, test)
