"""Data sets and their columns: what is refused, what is derived.

What users give as a data set, and what is refused before training.

Inputs within a public bound, in exact arithmetic.

Stacked records against each node's own.
"""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

from tacit.data import (
    Dataset,
    TaskData,
    as_dataset,
    bounded_inputs,
    check_dataset,
    class_labels,
    stack,
    stack_parts,
)
from tacit.errors import InputError


@pytest.mark.parametrize(
    ("inputs", "targets", "words"),
    [
        (torch.zeros(3, 2), torch.zeros(2), "3 inputs, 2 targets"),
        (torch.tensor(1.0), torch.zeros(1), "first dimension"),
        (np.array([["a"], ["b"]]), torch.zeros(2), "must be an array of numbers"),
    ],
)
def test_a_data_set_refuses_what_is_none(inputs, targets, words):
    with pytest.raises(InputError, match=words):
        Dataset(inputs, targets)


def test_a_data_set_takes_arrays_as_a_pair_does():
    inputs, targets = np.arange(6.0).reshape(3, 2)[::-1], np.array([0, 1, 1], dtype=np.uint16)
    made, pair = Dataset(inputs, targets), as_dataset((inputs, targets), "here")
    for name in ("inputs", "targets"):
        assert getattr(made, name).equal(getattr(pair, name))
        assert getattr(made, name).dtype == getattr(pair, name).dtype
    given = torch.zeros(3, 2, requires_grad=True)
    assert Dataset(given, [0, 1, 1]).inputs is given


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


INPUTS = np.array([[1.5, 2.0], [3.0, 4.0], [5.0, 6.0]])
TARGETS = np.array([0, 2, 1])


class Squares(TorchDataset[tuple[np.ndarray, int]]):
    """Map-style, with no end of its own but its length."""

    def __init__(self, records):
        self.records = records

    def __len__(self):
        return self.records

    def __getitem__(self, index):
        return np.full((2, 2), index, dtype=np.uint8), index**2


class Stream(IterableDataset[object]):
    def __init__(self, items):
        self.items = items

    def __len__(self):
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
        ((1, 2, 3, 4), "'tuple'"),
        ((INPUTS, TARGETS[:2]), "3 inputs, 2 targets"),
        ((INPUTS, 4), "first dimension of records"),
        ((INPUTS, np.array(["a", "b", "c"])), "ndarray of <U1.*array of numbers"),
        ((np.array([None, {}, 2], dtype=object), TARGETS), "ndarray of object"),
        (([[1.0], [1.0, 2.0], [3.0]], TARGETS), r"1 of 3 records.*every input.*first, \[1\]"),
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


def data_set(*, inputs=INPUTS, targets=TARGETS):
    return Dataset(torch.tensor(inputs), torch.tensor(targets))


def with_value(value):
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


TINY, LARGE = 5e-324, 1.7e308


def square(record):
    return sum((Fraction(value) ** 2 for value in record.reshape(-1).tolist()), Fraction())


def numbers(width):
    return st.floats(allow_nan=False, allow_infinity=False, width=width)  # type: ignore[arg-type]


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 32), (torch.float64, 64)])
@settings(deadline=None)
@given(data=st.data(), bound=st.floats(1e-100, 1e100) | st.sampled_from([1.0, 3.0, 1e-40]))
def test_no_finite_record_is_longer(dtype, width, data, bound):
    length = data.draw(st.integers(1, 5))
    records = data.draw(
        st.lists(st.lists(numbers(width), min_size=length, max_size=length), min_size=1, max_size=4)
    )
    given_inputs = torch.tensor(records, dtype=dtype)
    found = bounded_inputs(given_inputs, bound)
    assert found.dtype == dtype
    limit = Fraction(bound) ** 2
    for before, after in zip(given_inputs, found, strict=True):
        assert square(after) <= limit
        if square(before) <= limit * Fraction(1 - 1e-13):
            assert torch.equal(before, after)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_records_keep_their_direction_and_reach_the_bound(dtype):
    largest = {torch.float32: 1e38, torch.float64: LARGE}[dtype]
    scales = torch.tensor([2.5, 1e10, 1e30, largest], dtype=torch.float64)
    direction = torch.from_numpy(np.random.default_rng(1).uniform(-1, 1, (4, 3, 8)))
    inputs = (direction * scales[:, None, None]).to(dtype)
    found = bounded_inputs(inputs, 2.0)
    assert found.shape == inputs.shape
    for before, after in zip(direction, found, strict=True):
        assert square(after) <= 4
        wanted = 2 * before / before.norm()
        torch.testing.assert_close(after.double(), wanted, rtol=1e-6, atol=0)


def test_what_is_short_stays_the_very_tensor():
    inputs = torch.tensor([[0.0, 0.0], [TINY, -TINY], [0.6, 0.7]], dtype=torch.float64)
    assert bounded_inputs(inputs, 1.0) is inputs
    assert bounded_inputs(torch.zeros(0, 3), 1.0).shape == (0, 3)


def test_each_record_is_bounded_alone(monkeypatch):
    inputs = torch.randn(50, 7, generator=torch.Generator().manual_seed(3))
    together = bounded_inputs(inputs, 2.0)
    assert not torch.equal(together, inputs)
    monkeypatch.setattr("tacit.data.datasets._AT_ONCE", 20)
    assert torch.equal(bounded_inputs(inputs, 2.0), together)
    alone = torch.cat([bounded_inputs(record[None], 2.0) for record in inputs])
    torch.testing.assert_close(alone, together, rtol=1e-15, atol=0)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_gather_reads_each_nodes_own_records(data):
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    record = tuple(data.draw(st.lists(st.integers(1, 3), max_size=3)))
    width = data.draw(st.integers(0, 4))
    target = data.draw(st.sampled_from([(), (2,)]))
    datasets = [Dataset(torch.randn(size, *record), torch.randn(size, *target)) for size in sizes]
    rows = [
        data.draw(st.lists(st.integers(0, n - 1), min_size=width, max_size=width)) for n in sizes
    ]
    indices = torch.tensor(rows, dtype=torch.int64).reshape(len(sizes), width)

    inputs, targets = stack(datasets, torch.float32, "cpu").gather(indices)
    assert inputs.shape == (len(sizes), width, *record)
    assert targets.shape == (len(sizes), width, *target)
    for node, dataset in enumerate(datasets):
        assert inputs[node].equal(dataset.inputs[indices[node]])
        assert targets[node].equal(dataset.targets[indices[node]])


def test_offsets_and_sizes():
    datasets = [Dataset(torch.zeros(size, 2), torch.zeros(size)) for size in (3, 1, 4)]
    stacked = stack(datasets, torch.float32, torch.device("cpu"))
    assert stacked.offsets.tolist() == [0, 3, 4]
    assert stacked.sizes.tolist() == [3, 1, 4]
    assert stacked.offsets.dtype == stacked.sizes.dtype == torch.int64
    assert stacked.inputs.shape == (8, 2)
    assert stacked.targets.shape == (8,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floating_numbers_are_cast_and_integers_stay(dtype):
    labels = Dataset(torch.ones(2, 3, dtype=torch.float16), torch.tensor([0, 1]))
    stacked = stack([labels], dtype, "cpu")
    assert stacked.inputs.dtype == dtype
    assert stacked.targets.dtype == torch.int64
    real = Dataset(torch.ones(2, 3, dtype=torch.int64), torch.ones(2, dtype=torch.float64))
    stacked = stack([real], dtype, "cpu")
    assert stacked.inputs.dtype == torch.int64
    assert stacked.targets.dtype == dtype


def test_everything_lies_on_the_device():
    stacked = stack([Dataset(torch.zeros(2, 3), torch.zeros(2))], torch.float32, "meta")
    inputs, targets = stacked.gather(torch.zeros(1, 4, dtype=torch.int64, device="meta"))
    assert {inputs.device.type, targets.device.type, stacked.sizes.device.type} == {"meta"}
    assert inputs.shape == (1, 4, 3)


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (Dataset(torch.zeros(2, 4), torch.zeros(2)), r"inputs \[4\].*node 0: inputs \[3\]"),
        (Dataset(torch.zeros(2, 3), torch.zeros(2, 1)), r"targets \[1\]"),
        (Dataset(torch.zeros(2, 3), torch.tensor([0, 1])), "integer targets"),
    ],
)
def test_a_node_that_differs_is_named(odd, words):
    like = Dataset(torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(InputError, match=words) as caught:
        stack([like, like, odd], torch.float32, "cpu")
    assert caught.value.where == "nodes[2]"


@pytest.mark.parametrize("sizes", [(0, 2, 3), (2, 0, 3), (2, 3, 0), (0, 5, 0), (0, 0)])
def test_nodes_without_records_are_read_as_nothing(sizes):
    values = torch.arange(15.0).reshape(5, 3)
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    whole = Dataset(values[: sum(sizes)], values[: sum(sizes), 0])
    nodes = [Dataset(values[part], values[part, 0]) for part in parts]
    for data in (
        stack(nodes, torch.float32, "cpu"),
        stack_parts(whole, parts, torch.float32, "cpu"),
    ):
        assert data.sizes.tolist() == list(sizes)
        assert data.first.inputs.shape == (min(1, sum(sizes)), 3)
        assert [len(rows) for rows in data.rows()] == list(sizes)
        if sum(sizes):  # a slot that a mask hides is read from where a record is
            inputs, _ = data.gather(torch.zeros(len(sizes), 1, dtype=torch.int64))
            assert inputs.shape == (len(sizes), 1, 3)
            for part, row in zip(parts, inputs[:, 0], strict=True):
                assert len(part) == 0 or torch.equal(row, values[part[0]])


def test_no_nodes_is_an_input_error():
    with pytest.raises(InputError, match="at least one data set"):
        stack([], torch.float32, "cpu")
