"""What users give as a data set, and what is refused before training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

from tacit.data import Dataset, as_dataset, check_dataset
from tacit.errors import InputError

INPUTS = np.array([[1.5, 2.0], [3.0, 4.0], [5.0, 6.0]])
TARGETS = np.array([0, 2, 1])


class Squares(TorchDataset[tuple[np.ndarray, int]]):
    """Map-style, with no end of its own but its length."""

    def __init__(self, records: int) -> None:
        self.records = records

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return np.full((2, 2), index, dtype=np.uint8), index**2


class Stream(IterableDataset[object]):
    def __init__(self, items: list[object]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self):
        return iter(self.items)


@pytest.mark.parametrize(
    "value",
    [
        Dataset(torch.tensor(INPUTS), torch.tensor(TARGETS)),
        (torch.tensor(INPUTS), torch.tensor(TARGETS)),
        [INPUTS, TARGETS],
        (INPUTS.tolist(), TARGETS.tolist()),
        (INPUTS.astype(">f8"), TARGETS.astype(">u2")),
        (INPUTS[::-1][::-1], TARGETS.astype("i1")),
        TensorDataset(torch.tensor(INPUTS), torch.tensor(TARGETS)),
        Stream(list(zip(INPUTS, TARGETS, strict=True))),
    ],
    ids=["Dataset", "tensors", "arrays", "lists", "big-endian", "reversed", "torch", "stream"],
)
def test_every_form_gives_the_same_data_set(value):
    dataset = as_dataset(value, "nodes[0]")
    assert dataset.inputs.dtype == torch.float64
    assert dataset.targets.dtype == torch.int64
    np.testing.assert_array_equal(dataset.inputs.numpy(), INPUTS)
    np.testing.assert_array_equal(dataset.targets.numpy(), TARGETS)


def test_a_map_style_data_set_is_read_to_its_length():
    dataset = as_dataset(Squares(4), "nodes[0]")
    assert dataset.inputs.shape == (4, 2, 2)
    assert dataset.inputs.dtype == torch.uint8
    assert dataset.inputs[:, 0, 0].tolist() == [0, 1, 2, 3]
    assert dataset.targets.tolist() == [0, 1, 4, 9]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_floating_types_stay(dtype):
    dataset = as_dataset((torch.ones(2, 3, dtype=dtype), torch.ones(2, dtype=dtype)), "nodes[0]")
    assert dataset.inputs.dtype == dataset.targets.dtype == dtype


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (np.uint8, torch.uint8),
        (np.int32, torch.int32),
        (np.uint16, torch.int64),
        (np.bool_, torch.bool),
    ],
)
def test_integers_stay_inputs_and_become_int64_targets(dtype, kind):
    array = np.array([0, 1, 1], dtype=dtype)
    dataset = as_dataset((array.reshape(3, 1), array), "nodes[0]")
    assert dataset.inputs.dtype == kind
    assert dataset.targets.dtype == torch.int64
    assert dataset.inputs.flatten().tolist() == dataset.targets.tolist() == [0, 1, 1]


def test_read_only_memory_and_gradients_do_no_harm():
    fixed = INPUTS.copy()
    fixed.flags.writeable = False
    as_dataset((fixed, TARGETS), "nodes[0]").inputs.add_(1)
    np.testing.assert_array_equal(fixed, INPUTS)
    tracked = torch.ones(3, 2, requires_grad=True)
    for value in ((tracked, TARGETS), Dataset(tracked, torch.tensor(TARGETS))):
        assert not as_dataset(value, "nodes[0]").inputs.requires_grad


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (5, "'int'.*must be a Dataset, a pair"),
        (torch.ones(2, 3), "'Tensor'.*must be a Dataset"),
        ((1, 2, 3), "'tuple'"),
        ((INPUTS, TARGETS[:2]), "3 inputs, 2 targets"),
        ((INPUTS, 4), "first dimension of records"),
        ((INPUTS, np.array(["a", "b", "c"])), "ndarray of <U1.*array of numbers"),
        ((np.array([None, {}, 2], dtype=object), TARGETS), "ndarray of object"),
        (([[1.0], [1.0, 2.0], [3.0]], TARGETS), "list: ValueError.*must be readable"),
        ((INPUTS + 1j, TARGETS), "complex128"),
        ((torch.ones(3, dtype=torch.complex64), TARGETS), "complex numbers"),
        (Stream([(INPUTS[0], 1), INPUTS[1]]), r"'ndarray'.*\(input, target\) pair"),
        (Stream([(INPUTS[0], 1), (INPUTS, 1)]), r"1 of 2 records.*every input.*first, \[2\]"),
        (Stream([(INPUTS[0], 1), (INPUTS[0], [1])]), "1 of 2 records.*every target"),
        (Stream([]), "no records"),
        (TorchDataset(), "Dataset: TypeError.*must be readable"),
    ],
)
def test_anything_else_is_an_input_error(value, words):
    with pytest.raises(InputError, match=words) as caught:
        as_dataset(value, "nodes[2]")
    assert caught.value.where == "nodes[2]"
    assert "\n" not in str(caught.value)


def data_set(*, inputs=INPUTS, targets=TARGETS) -> Dataset:
    return Dataset(torch.tensor(inputs), torch.tensor(targets))


def with_value(value: float) -> np.ndarray:
    changed = INPUTS.copy()
    changed[1:, 1] = value
    return changed


@pytest.mark.parametrize(
    ("dataset", "classes", "words"),
    [
        (Dataset(torch.zeros(0, 2), torch.zeros(0)), None, "no records"),
        (data_set(inputs=with_value(np.nan)), None, "2 of 3 records.*inputs must be finite"),
        (data_set(inputs=with_value(-np.inf)), 3, "2 of 3 records.*inputs must be finite"),
        (data_set(targets=[0.0, 1.0, np.nan]), None, "1 of 3 records.*targets must be finite"),
        (data_set(targets=[[0.0, 1], [np.inf, 0], [0, 0]]), None, "1 of 3 records.*targets"),
        (data_set(), 2, r"1 of 3 records.*0 to 1 \(2 classes\)"),
        (data_set(targets=[0, 1, -1]), 2, "1 of 3 records"),
        (data_set(targets=[[0], [1], [5]]), 5, "1 of 3 records"),
    ],
)
def test_records_at_fault_are_counted_and_not_quoted(dataset, classes, words):
    with pytest.raises(InputError, match=words) as caught:
        check_dataset(dataset, "nodes[1]", classes)
    assert caught.value.where == "nodes[1]"


def test_a_right_data_set_passes():
    check_dataset(data_set(), "nodes[0]")
    check_dataset(data_set(), "nodes[0]", classes=3)
    check_dataset(data_set(targets=[-1, 1, 1]), "nodes[0]")
    check_dataset(data_set(targets=[0.5, 9.0, -3.0]), "nodes[0]", classes=2)
