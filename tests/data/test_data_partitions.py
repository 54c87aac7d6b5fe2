"""Partitions: properties that hold for every data set, and each kind's own promise."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.data import PARTITIONS, Dataset, TaskData, partition
from tacit.errors import InputError


def task(labels, classes=None, **columns):
    inputs, values = torch.zeros(len(labels), 1), {"site": ("c", "a", "b")}
    records = Dataset(inputs, torch.tensor(labels))
    return TaskData("some", records, None, classes, columns, values)


def class_counts(parts, labels):
    """Records of each class at each node, `[nodes, classes]`."""
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


@st.composite
def divisions(draw):
    """A kind, labels, a number of nodes and parameters that go together."""
    labels = np.array(draw(st.lists(st.integers(0, 4), min_size=1, max_size=60)))
    kind = draw(st.sampled_from(["iid", "equal", "dirichlet", "shards", "by:label"]))
    if kind == "by:label":
        labels = np.unique(labels, return_inverse=True)[1]
    nodes = labels.max() + 1 if kind == "by:label" else draw(st.integers(1, len(labels)))
    alphas = st.sampled_from([1e-300, 0.01, 0.5, 100.0, 1e300])
    parameters = {
        "dirichlet": st.fixed_dictionaries({"alpha": alphas}),
        "shards": st.fixed_dictionaries({"per_node": st.integers(1, len(labels) // nodes)}),
        "equal": st.fixed_dictionaries({"per_node": st.integers(1, len(labels) // nodes)}),
    }
    return kind, labels, nodes, draw(parameters.get(kind, st.just({})))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(division=divisions(), seed=st.integers(0, 2**40))
def test_every_partition_gives_each_record_to_one_node_and_none_is_empty(division, seed):
    kind, labels, nodes, parameters = division
    data = task(labels)
    parts = partition(kind, data, nodes, seed, **parameters)
    assert len(parts) == nodes
    assert all(len(part) > 0 for part in parts)
    assert all((np.diff(part) > 0).all() and part.dtype == np.int64 for part in parts)
    given = sorted(np.concatenate(parts).tolist())
    if kind == "equal":
        assert [len(part) for part in parts] == [parameters["per_node"]] * nodes
        assert len(set(given)) == len(given)
        assert set(given) <= set(range(len(labels)))
    else:
        assert given == list(range(len(labels)))
    again = partition(kind, data, nodes, seed, **parameters)
    assert [part.tolist() for part in again] == [part.tolist() for part in parts]
    if kind == "iid":
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [("iid", {}), ("dirichlet", {"alpha": 1.0}), ("shards", {"per_node": 2})],
)
def test_the_seed_changes_a_random_partition(kind, parameters):
    data = task(np.arange(200) % 10)
    one, two = (partition(kind, data, 4, seed, **parameters) for seed in (1, 2))
    assert [part.tolist() for part in one] != [part.tolist() for part in two]


def test_iid_mixes_the_classes():
    labels = np.repeat(np.arange(4), 500)
    counts = class_counts(partition("iid", task(labels), 4, 0), labels)
    # hypergeometric with mean 125 and standard deviation 8.4: five of them either way
    assert np.abs(counts - 125).max() < 42


def test_dirichlet_shares_follow_the_distribution():
    """Squared shares of a class have mean (alpha + 1) / (n (n alpha + 1)), summed over n nodes."""
    nodes, alpha, size = 5, 0.3, 400
    labels = np.repeat(np.arange(10), size)
    squares = [
        ((class_counts(partition("dirichlet", task(labels), nodes, seed, alpha=alpha), labels)
          / size) ** 2).sum(axis=0).mean()
        for seed in range(60)
    ]  # fmt: skip
    expected = (alpha + 1) / (nodes * alpha + 1)
    # 600 classes, each with a standard deviation below 0.25: four standard errors
    assert np.mean(squares) == pytest.approx(expected, abs=0.04)


def test_dirichlet_becomes_even_for_large_alpha():
    labels = np.repeat(np.arange(3), 400)
    counts = class_counts(partition("dirichlet", task(labels), 4, 0, alpha=1e8), labels)
    assert np.abs(counts - 100).max() <= 1


def test_dirichlet_moves_single_records_to_empty_nodes():
    """With a tiny alpha each class goes to one node whole, so most nodes stay empty by draw."""
    labels = np.repeat(np.arange(2), 50)
    for seed in range(5):
        parts = partition("dirichlet", task(labels), 10, seed, alpha=1e-9)
        # the classes went to two nodes, or both to one
        assert sorted(map(len, parts)) in ([1] * 8 + [46] * 2, [1] * 9 + [91])


def test_shards_are_runs_of_sorted_labels():
    """200 shards of 300 records, two a node: at most two classes a node (McMahan et al.)."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))
    counts = class_counts(partition("shards", task(labels), 10, 0, per_node=2), labels)
    assert set(counts.sum(axis=1).tolist()) == {600}
    assert set(np.unique(counts).tolist()) <= {0, 300, 600}
    assert (np.count_nonzero(counts, axis=1) <= 2).all()


def test_by_column_gives_one_declared_value_to_each_node():
    site = np.array(["b", "c", "a", "b", "a"])
    parts = partition("by:site", task(np.zeros(5, dtype=int), site=site), 3, 0)
    assert [part.tolist() for part in parts] == [[1], [2, 4], [0, 3]]


def test_labels_are_divided_as_they_are_declared():
    labels = np.array([1, 0, 1, 2])
    for classes in (3, None):
        parts = partition("by:label", task(labels, classes), 3, 0)
        assert [part.tolist() for part in parts] == [[1], [0, 2], [3]]
    parts = partition("by:label", task(labels, 4), 4, 0)
    assert [part.tolist() for part in parts] == [[1], [0, 2], [3], []]
    signs = TaskData(
        "some", Dataset(torch.zeros(3, 1), torch.tensor([1, -1, 1])), values={"label": (-1, 1)}
    )
    assert [part.tolist() for part in partition("by:label", signs, 2, 0)] == [[1], [0, 2]]


def test_negative_labels_can_be_divided():
    labels = np.array([-1, 1] * 10)
    parts = partition("shards", task(labels), 2, 0, per_node=1)
    assert [set(labels[part].tolist()) for part in parts] in ([{-1}, {1}], [{1}, {-1}])


REAL = TaskData("some", Dataset(torch.zeros(4, 1), torch.zeros(4)))
LABELS = task(np.array([0, 1, 0, 1]), mixed=np.array([1, "a", None, 2], dtype=object))
TWO = task(np.array([0, 1, 0, 1]), 2)
SITES = task(np.array([0, 1, 0, 1]), site=np.array(["a", "b", "a", "c"]))


@pytest.mark.parametrize(
    ("kind", "data", "nodes", "parameters", "where", "words"),
    [
        ("idd", LABELS, 2, {}, "nodes.partition", "did you mean 'iid'"),
        ("iid:3", LABELS, 2, {}, "nodes.partition", "did you mean 'iid'"),
        ("", LABELS, 2, {}, "nodes.partition", "known are: by:COLUMN, dirichlet, equal"),
        ("by:lable", LABELS, 2, {}, "nodes.partition", "did you mean 'by:label'"),
        ("by:label", REAL, 2, {}, "nodes.partition", "some has no columns"),
        ("by:mixed", LABELS, 2, {}, "nodes.partition", r"return TaskData\(values=\{'mixed': "),
        ("by:label", LABELS, 1, {}, "nodes.partition", "2 of 4 records.*must hold one of 0: other"),
        ("by:label", TWO, 3, {}, "nodes.count", "column 'label' has 2 declared values.*write 2"),
        ("by:label", TWO, 1, {}, "nodes.count", "column 'label' has 2 declared values.*write 2"),
        ("by:site", SITES, 2, {}, "nodes.count", "column 'site' has 3 declared values.*write 3"),
        ("iid", LABELS, 5, {}, "nodes.count", "must be 1 to 4"),
        ("iid", LABELS, 0, {}, "nodes.count", "must be 1 to 4"),
        ("dirichlet", LABELS, 5, {"alpha": 1.0}, "nodes.count", "must be 1 to 4"),
        ("dirichlet", LABELS, 2, {}, "nodes.alpha", "positive number"),
        ("dirichlet", LABELS, 2, {"alpha": 0.0}, "nodes.alpha", "positive number"),
        ("dirichlet", LABELS, 2, {"alpha": -1.0}, "nodes.alpha", "positive number"),
        ("dirichlet", LABELS, 2, {"alpha": float("nan")}, "nodes.alpha", "positive number"),
        ("dirichlet", LABELS, 2, {"alpha": float("inf")}, "nodes.alpha", "positive number"),
        ("dirichlet", REAL, 2, {"alpha": 1.0}, "nodes.partition", "targets of some are float32"),
        ("shards", REAL, 2, {"per_node": 1}, "nodes.partition", "targets of some are float32"),
        ("shards", LABELS, 2, {}, "nodes.per_node", "1 to 2 shards"),
        ("shards", LABELS, 2, {"per_node": 0}, "nodes.per_node", "1 to 2 shards"),
        ("equal", LABELS, 2, {}, "nodes.per_node", "needs 1 to"),
        ("equal", LABELS, 2, {"per_node": 3}, "nodes.per_node", "needs 1 to"),
        ("shards", LABELS, 2, {"per_node": 3}, "nodes.per_node", "1 to 2 shards"),
        ("iid", LABELS, 2, {"alpha": 1.0}, "nodes.alpha", "does not take it"),
        ("by:label", LABELS, 2, {"per_node": 1}, "nodes.per_node", "does not take it"),
        ("shards", LABELS, 2, {"per_node": 1, "alpha": 1.0}, "nodes.alpha", "does not take it"),
        ("dirichlet", LABELS, 2, {"per_node": 1}, "nodes.per_node", "does not take it"),
    ],
)
def test_wrong_input_is_named(kind, data, nodes, parameters, where, words):
    with pytest.raises(InputError, match=words) as caught:
        partition(kind, data, nodes, 0, **parameters)
    assert caught.value.where == where


def test_the_table_lists_the_kinds():
    assert set(PARTITIONS) == {"iid", "equal", "dirichlet", "shards", "by:COLUMN"}
