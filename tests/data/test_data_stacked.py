"""Stacked records against each node's own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.data import Dataset, stack
from tacit.errors import InputError


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
        (Dataset(torch.zeros(0, 3), torch.zeros(0)), "at least one record"),
    ],
)
def test_a_node_that_differs_is_named(odd, words):
    like = Dataset(torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(InputError, match=words) as caught:
        stack([like, like, odd], torch.float32, "cpu")
    assert caught.value.where == "nodes[2]"


def test_no_nodes_is_an_input_error():
    with pytest.raises(InputError, match="at least one data set"):
        stack([], torch.float32, "cpu")
