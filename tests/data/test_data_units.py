"""Whose rows are whose: whole persons to a node, to a test set, to a batch; and how many rows."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.data import PARTITIONS, Dataset, TaskData, partition, stack, stack_parts
from tacit.data.sources import hold_out
from tacit.data.units import UnitRule, check_nodes, own_units, unit_ids
from tacit.errors import InputError, RecordsError

RULE = UnitRule(most=3, gradient="mean", seed=0)


def people(ids, seed=0):
    """One record a given id; its input is its number, so that it is known again."""
    ids = np.asarray(ids)
    draws = np.random.default_rng(seed)
    inputs = np.stack([np.arange(len(ids)), draws.normal(size=len(ids))], axis=1)
    return Dataset(inputs.astype(np.float32), draws.integers(0, 3, len(ids)), ids)


IDS = st.lists(st.integers(0, 9), min_size=1, max_size=60)


@settings(deadline=None)
@given(ids=IDS, most=st.integers(1, 5), seed=st.integers(0, 3))
def test_every_person_has_its_own_rows_in_their_order_and_at_most_so_many(ids, most, seed):
    found = own_units(np.array(ids), UnitRule(most, "mean", seed), node=1)
    start = 0
    for name, count in zip(found.ids.tolist(), found.counts.tolist(), strict=True):
        rows = found.rows[start : start + count].tolist()
        start += count
        own = [row for row, one in enumerate(ids) if one == name]
        assert rows == sorted(rows)
        assert set(rows) <= set(own)
        assert count == min(most, len(own))
    assert start == len(found.rows)


def test_which_rows_are_kept_follows_from_the_person_alone():
    """Other persons' rows may be more, fewer or others: those that are kept stay."""
    ids = np.array([0] * 10 + [1] * 10 + [2] * 10)
    kept = own_units(ids, RULE, 0)
    fewer = own_units(np.concatenate([[0], ids[10:]]), RULE, 0)
    assert (kept.rows[3:] - 10).tolist() == (fewer.rows[1:] - 1).tolist()
    elsewhere = [own_units(ids, RULE, node).rows.tolist() for node in range(4)]
    seeds = [own_units(ids, UnitRule(3, "mean", seed), 0).rows.tolist() for seed in range(4)]
    assert len({tuple(rows) for rows in [*elsewhere, *seeds]}) > 5


@settings(deadline=None, max_examples=40)
@given(first=IDS, second=IDS, gradient=st.sampled_from(["mean", "sum"]))
def test_a_batch_reads_every_person_with_shares_that_add_up(first, second, gradient):
    rule = UnitRule(3, gradient, 0)
    sites = [people(first), people(second, seed=1)]
    data = stack(sites, torch.float64, "cpu", rule, hosted=[0, 1])
    assert data.counts.tolist() == [len(set(first)), len(set(second))]
    most = int(data.counts.max())
    indices = torch.arange(most).expand(2, -1) * (torch.arange(most) < data.counts[:, None])
    inputs, targets = data.gather(indices)
    shares = data.shares(indices)
    assert inputs.shape == (2, most, 3, 2)
    assert targets.shape == (2, most, 3)
    for node, (site, ids) in enumerate(zip(sites, (first, second), strict=True)):
        units = own_units(np.array(ids), rule, node)
        start = 0
        for number, count in enumerate(units.counts.tolist()):
            rows = units.rows[start : start + count]
            start += count
            there = shares[node, number] > 0
            assert there.tolist() == [place < count for place in range(3)]
            assert inputs[node, number, :count, 0].tolist() == rows.tolist()
            assert targets[node, number, :count].tolist() == site.targets[rows].tolist()
            total = 1.0 if gradient == "mean" else float(count)
            assert float(shares[node, number].sum()) == pytest.approx(total)


@pytest.mark.parametrize("kind", [kind for kind in PARTITIONS if kind != "by:COLUMN"])
def test_no_person_is_divided(kind):
    ids = np.random.default_rng(2).integers(0, 40, 200)
    options = {"dirichlet": {"alpha": 1.0}, "shards": {"per_node": 2}, "equal": {"per_node": 6}}
    parts = partition(kind, TaskData("people", people(ids)), 4, 0, **options.get(kind, {}))
    persons = [set(ids[part].tolist()) for part in parts]
    assert sum(map(len, persons)) == len(set.union(*persons))
    if kind != "equal":
        assert sorted(np.concatenate(parts).tolist()) == list(range(200))
    else:
        assert [len(own) for own in persons] == [6] * 4
        assert sum(map(len, parts)) == np.isin(ids, sorted(set.union(*persons))).sum()


def test_a_share_of_the_persons_is_held_out():
    ids = np.random.default_rng(2).integers(0, 40, 200)
    data = hold_out(TaskData("people", people(ids)), 0.25, seed=3)
    kept, out = set(data.train.units.tolist()), set(data.test.units.tolist())
    assert not kept & out
    assert len(out) == round(0.25 * len(set(ids)))
    assert len(data.train) + len(data.test) == 200
    assert "units" in data.notes[-1]


def test_units_of_a_task_are_those_of_its_training_records():
    plain = Dataset(torch.zeros(3, 2), torch.tensor([0, 1, 0]))
    data = TaskData("people", plain, units=["a", "b", "a"])
    assert data.train.units.tolist() == ["a", "b", "a"]
    parts = partition("iid", data, 2, 0)
    stacked = stack_parts(data.train, parts, torch.float32, "cpu", RULE, [0, 1])
    assert sorted(len(ids) for ids in stacked.units.ids) == [1, 1]


@pytest.mark.parametrize(
    ("given_ids", "words"),
    [
        ([1, 2], r"shape \(3,\)"),
        ([[1], [2], [3]], r"shape \(3,\)"),
        (["a", None, "b"], "1 of 3 records"),
        (["a", "", "b"], "1 of 3 records"),
        ([1.0, float("nan"), 2.0], "1 of 3 records"),
        ([1.5, 2.0, 3.0], "1 of 3 records"),
    ],
)
def test_ids_that_are_none(given_ids, words):
    with pytest.raises(InputError, match=words):
        Dataset(torch.zeros(3, 2), torch.zeros(3), given_ids)


def test_ids_are_texts_however_they_are_written():
    for same in ([1, 2, 2], [1.0, 2.0, 2.0], ["1", "2", "2"], np.array([1, 2, 2], np.int8)):
        assert unit_ids(same, 3, "units").tolist() == ["1", "2", "2"]
    mixed = np.array([1, "2", 2.0], dtype=object)
    assert unit_ids(mixed, 3, "units").tolist() == ["1", "2", "2"]


def test_a_person_at_two_nodes_is_found_where_both_are_here():
    data = stack([people([1, 1, 2]), people([2, 3])], torch.float32, "cpu", RULE, [0, 1])
    check_nodes(data.units, 2)
    with pytest.raises(RecordsError, match=r"1 of 3 units") as error:
        check_nodes(data.units, 1)
    assert "'2'" not in str(error.value)
    told = error.value.reported()  # to other processes: nothing that was counted
    assert set(re.findall(r"\d+", told)) == {"1"}
