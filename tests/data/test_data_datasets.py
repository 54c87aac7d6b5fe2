"""Data sets and their columns: what is refused, what is derived."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tacit.data import Dataset, TaskData, class_labels, count_classes
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
    ("targets", "labels", "classes"),
    [
        (torch.tensor([0, 2, 1]), [0, 2, 1], 3),
        (torch.tensor([[0], [2], [1]], dtype=torch.uint8), [0, 2, 1], 3),
        (torch.tensor([-1, 1, 1]), [-1, 1, 1], None),
        (torch.tensor([0.0, 1.0, 1.0]), None, None),
        (torch.zeros(3, 2, dtype=torch.int64), None, None),
    ],
)
def test_labels_are_integer_targets(targets, labels, classes):
    dataset = Dataset(torch.zeros(3, 2), targets)
    found = class_labels(dataset)
    assert (None if found is None else found.tolist()) == labels
    assert count_classes(dataset) == classes
    assert list(TaskData("some", dataset).columns) == ([] if labels is None else ["label"])


def test_classes_are_counted_over_both_halves():
    train = Dataset(torch.zeros(2, 1), torch.tensor([0, 1]))
    test = Dataset(torch.zeros(2, 1), torch.tensor([4, 1]))
    real = Dataset(torch.zeros(2, 1), torch.tensor([0.5, 1.0]))
    assert count_classes(train, None) == 2
    assert count_classes(train, test) == 5
    assert count_classes(train, real) is None


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
