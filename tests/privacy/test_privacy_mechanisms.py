"""Mechanisms as data: what is refused, what is equal, and what a statement keeps."""

import json
import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import InputError
from tacit.privacy import mechanisms as m

SCHEDULE = [1.5, 1.5, 0.7, 1.5, 2.25]
MECHANISMS: list[m.Mechanism] = [
    m.Gaussian(1.1),
    m.Gaussian(SCHEDULE, relation=m.REPLACE_ONE),
    m.SampledGaussian(1 / 3000, 0.1 + 0.2, 1000),
    m.SampledGaussian(1, SCHEDULE, 5, relation=m.REPLACE_ONE),
    m.FixedBatchGaussian(1, 3000, 0.45, 1000),
    m.FixedBatchGaussian(7, 7, SCHEDULE),
]
MAKERS: list[Callable[..., m.Mechanism]] = [
    m.Gaussian,
    lambda *args, **kwargs: m.SampledGaussian(0.01, *args, **kwargs),
    lambda *args, **kwargs: m.FixedBatchGaussian(1, 100, *args, **kwargs),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_statement_survives_json(mechanism: m.Mechanism) -> None:
    statement = m.to_statement(mechanism)
    back = m.from_statement(json.loads(json.dumps(statement, allow_nan=False)))
    assert back == mechanism
    assert hash(back) == hash(mechanism)
    assert type(back) is type(mechanism)
    assert m.to_statement(back) == statement


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0.3, 1 / 3, 1.0, 1e-7, 4e9]), min_size=1, max_size=30))
def test_statement_keeps_the_order_of_the_steps(multipliers: list[float]) -> None:
    mechanism = m.SampledGaussian(0.01, multipliers)
    statement = m.to_statement(mechanism)
    runs = statement["noise_multiplier"]
    assert [value for value, count in runs for _ in range(count)] == multipliers
    assert all(one[0] != two[0] for one, two in pairwise(runs))
    assert m.schedule(m.from_statement(statement)) == tuple(multipliers)


def test_a_statement_says_everything() -> None:
    assert m.to_statement(m.FixedBatchGaussian(2, 50, [1.0, 1.0, 2.0])) == {
        "kind": "fixed-batch-gaussian",
        "version": 1,
        "batch": 2,
        "records": 50,
        "noise_multiplier": [[1.0, 2], [2.0, 1]],
        "steps": 3,
        "relation": "replace-one",
        "trust_model": "all-messages",
    }


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "laplace"},
        {"kind": None},
        {"kind": ["gaussian"]},
        {"version": 2},
        {"version": None},
        {"relation": "add-one"},
        {"trust_model": "secure-aggregation"},
        {"steps": 3},
        {"steps": "2"},
        {"noise_multiplier": []},
        {"noise_multiplier": 1.0},
        {"noise_multiplier": [1.0, 2.0]},
        {"noise_multiplier": [[1.0, 1.5]]},
        {"noise_multiplier": [["much", 2]]},
        {"noise_multiplier": [[-1.0, 2]]},
        {"sample_rate": 0.0},
        {"sample_rate": "half"},
        {"colour": "red"},
    ],
    ids=str,
)
def test_other_statements_are_refused(change: dict[str, Any]) -> None:
    statement = m.to_statement(m.SampledGaussian(0.5, 1.0, 2))
    with pytest.raises(InputError):
        m.from_statement({**statement, **change})


@pytest.mark.parametrize("missing", ["kind", "version", "noise_multiplier", "sample_rate"])
def test_statements_with_a_hole_are_refused(missing: str) -> None:
    statement = m.to_statement(m.SampledGaussian(0.5, 1.0, 2))
    del statement[missing]
    with pytest.raises(InputError):
        m.from_statement(statement)


@pytest.mark.parametrize("make", MAKERS)
def test_a_number_and_its_list_are_the_same_mechanism(make: Callable[..., m.Mechanism]) -> None:
    one, other = make(1.25, 4), make([1.25] * 4)
    assert one == other
    assert hash(one) == hash(other)
    assert make(2) == make([2.0]) == make((2,), 1)
    assert one != make(1.25, 5)
    assert one != make([1.25, 1.25, 1.25, 1.26])
    assert one.steps == 4


def test_kinds_differ() -> None:
    assert m.Gaussian(1.0, 3) != m.SampledGaussian(1.0, 1.0, 3)
    assert m.SampledGaussian(0.5, 1.0) != m.SampledGaussian(0.5, 1.0, relation=m.REPLACE_ONE)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
@pytest.mark.parametrize("field", ["noise_multiplier", "steps", "relation", "trust_model"])
def test_mechanisms_are_frozen(mechanism: m.Mechanism, field: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(mechanism, field, 1)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_noise_must_be_positive_and_finite(make: Callable[..., m.Mechanism], bad: float) -> None:
    for multipliers, steps in [(bad, None), (bad, 3), ([1.0, bad], None), ([bad, bad], 2)]:
        with pytest.raises(InputError) as caught:
            make(multipliers, steps)
        assert caught.value.where == "noise_multiplier"


@pytest.mark.parametrize("make", MAKERS)
def test_lengths_must_agree(make: Callable[..., m.Mechanism]) -> None:
    with pytest.raises(InputError, match="one number a step"):
        make([])
    for multipliers, steps in [([1.0, 1.0], 3), ([1.0], 0), (1.0, 0), (1.0, -2)]:
        with pytest.raises(InputError) as caught:
            make(multipliers, steps)
        assert caught.value.where == "steps"


@pytest.mark.parametrize("make", MAKERS)
def test_unknown_words_are_refused(make: Callable[..., m.Mechanism]) -> None:
    with pytest.raises(InputError) as caught:
        make(1.0, relation="substitute")
    assert caught.value.where == "relation"
    with pytest.raises(InputError) as caught:
        make(1.0, trust_model="none")
    assert caught.value.where == "trust_model"


def test_a_fixed_batch_is_accounted_under_replace_one_only() -> None:
    with pytest.raises(InputError, match="another record") as caught:
        m.FixedBatchGaussian(1, 100, 1.0, relation=m.ADD_OR_REMOVE_ONE)
    assert caught.value.where == "relation"


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0000001, math.nan, math.inf])
def test_rates_lie_in_the_unit_interval(rate: float) -> None:
    with pytest.raises(InputError) as caught:
        m.SampledGaussian(rate, 1.0)
    assert caught.value.where == "sample_rate"


@pytest.mark.parametrize(("batch", "records"), [(0, 10), (11, 10), (-1, 10), (1, 0)])
def test_a_batch_has_some_of_the_records(batch: int, records: int) -> None:
    with pytest.raises(InputError) as caught:
        m.FixedBatchGaussian(batch, records, 1.0)
    assert caught.value.where == "batch"


def test_rates() -> None:
    assert m.Gaussian(1.0).rate == 1
    assert m.SampledGaussian(0.25, 1.0).rate == 0.25
    assert m.FixedBatchGaussian(3, 12, 1.0).rate == 0.25


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.5]), min_size=1, max_size=20), st.randoms())
def test_levels_count_the_steps_in_any_order(multipliers: list[float], random: Any) -> None:
    shuffled = list(multipliers)
    random.shuffle(shuffled)
    found = m.levels(m.Gaussian(shuffled))
    assert found == m.levels(m.Gaussian(multipliers))
    assert dict(found) == {value: multipliers.count(value) for value in multipliers}
    assert [value for value, _ in found] == sorted(set(multipliers))
