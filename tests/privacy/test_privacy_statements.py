"""Statements: what a file keeps of a mechanism, and what is not read back."""

import copy
import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from few import few
from tacit.errors import InputError
from tacit.privacy.mechanisms import steps as m
from tacit.privacy.mechanisms.allocation import RandomAllocationGaussian
from tacit.privacy.mechanisms.base import ADD_OR_REMOVE_ONE, REPLACE_ONE
from tacit.privacy.mechanisms.composed import ClientSampling, Composed
from tacit.privacy.mechanisms.serialise import STATEMENT_VERSION, from_statement, to_statement

RATES = st.sampled_from([1e-9, 1 / 3000, 0.1 + 0.2, 1.0])
NOISES = st.lists(st.sampled_from([0.3, 1 / 3, 1.0, 1e-7, 4e9]), min_size=1, max_size=12)
RELATIONS = st.sampled_from([ADD_OR_REMOVE_ONE, REPLACE_ONE])


def mechanisms(relation, unit):
    """Any mechanism of a relation and a unit, nested ones included."""
    common = {"relation": st.just(relation), "unit": st.just(unit)}
    kinds = [
        st.builds(m.Gaussian, NOISES, **common),
        st.builds(m.SampledGaussian, RATES, NOISES, **common),
        st.builds(m.Laplace, NOISES, **common),
        st.builds(m.PrivateState, RATES, st.just(1.75), st.just(1 / 3), NOISES, **common),
    ]
    if relation == REPLACE_ONE:
        kinds.append(st.builds(m.FixedBatchGaussian, st.just(2), st.just(7), NOISES, **common))
    else:
        kinds.append(st.builds(RandomAllocationGaussian, st.just(3), NOISES, **common))
    return st.recursive(
        st.one_of(kinds),
        lambda parts: st.one_of(
            st.builds(Composed, st.lists(parts, min_size=1, max_size=3)),
            st.builds(ClientSampling, parts, RATES, st.integers(1, 10**6)),
        ),
        max_leaves=6,
    )


ANY = st.tuples(RELATIONS, st.sampled_from(["record", "client"])).flatmap(
    lambda words: mechanisms(*words)
)


@few(20, 80)
@given(ANY)
def test_statements_survive_json(mechanism):
    statement = to_statement(mechanism)
    back = from_statement(json.loads(json.dumps(statement, allow_nan=False)))
    assert back == mechanism
    assert hash(back) == hash(mechanism)
    assert type(back) is type(mechanism)
    assert to_statement(back) == statement


@settings(max_examples=60, deadline=None)
@given(NOISES)
def test_a_statement_keeps_the_order_of_the_steps(multipliers):
    statement = to_statement(m.SampledGaussian(0.01, multipliers))
    runs = statement["noise_multiplier"]
    assert [value for value, count in runs for _ in range(count)] == multipliers
    assert all(one[0] != two[0] for one, two in pairwise(runs))
    back = from_statement(statement)
    assert isinstance(back, m.SampledGaussian)
    assert m.schedule(back) == tuple(multipliers)


FIRST_VERSION = {
    "kind": "fixed-batch-gaussian",
    "version": 1,
    "batch": 2,
    "records": 50,
    "noise_multiplier": [[1.0, 2], [2.0, 1]],
    "steps": 3,
    "relation": "replace-one",
    "trust_model": "all-messages",
}


def test_a_statement_says_everything():
    fixed = m.FixedBatchGaussian(2, 50, [1.0, 1.0, 2.0])
    assert to_statement(fixed) == {
        **FIRST_VERSION,
        "version": 2,
        "unit": "record",
        "coordinates": 0,
    }
    rounds = to_statement(ClientSampling(Composed((fixed,)), 0.5, 9))
    assert rounds == {
        "kind": "client-sampling",
        "version": 2,
        "participation": {"kind": "composed", "version": 2, "parts": [to_statement(fixed)]},
        "rate": 0.5,
        "rounds": 9,
    }


def test_the_first_version_is_read():
    assert from_statement(FIRST_VERSION) == m.FixedBatchGaussian(2, 50, [1.0, 1.0, 2.0])
    with pytest.raises(InputError) as caught:
        from_statement({**FIRST_VERSION, "unit": "client"})
    assert "unit" in str(caught.value)
    laplace = {**to_statement(m.Laplace(1.0)), "version": 1}
    del laplace["unit"]
    with pytest.raises(InputError) as caught:
        from_statement(laplace)
    assert caught.value.where == "kind"


PRIVATE_STATE = (
    '{"kind": "private-state", "version": 2, "sample_rate": 0.01, "hit": 1.99, "miss": 0.01, '
    '"noise_multiplier": [[2.0, 7]], "steps": 7, "sampling": "poisson", '
    '"relation": "add-or-remove-one", "trust_model": "all-messages", "unit": "record", '
    '"coordinates": 12}'
)
PERSISTENT_STATE = (
    '{"kind": "carried-state", "version": 2, "sample_rate": 0.1, '
    '"noise_multiplier": [[2.0, 1], [3.0, 1]], "steps": 2, "relation": "add-or-remove-one", '
    '"trust_model": "server", "unit": "record", "coordinates": 0}'
)


@pytest.mark.parametrize(
    ("text", "mechanism"),
    [
        (PRIVATE_STATE, m.PrivateState(0.01, 1.99, 0.01, 2.0, 7, coordinates=12)),
        (PERSISTENT_STATE, m.PersistentState(0.1, [2.0, 3.0], trust_model="server")),
    ],
)
def test_statements_keep_the_words_that_ledgers_hold(text, mechanism):
    """As they were written before their classes and fields had the names of today."""
    assert from_statement(json.loads(text)) == mechanism
    assert json.dumps(to_statement(mechanism)) == text


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"hit": 0.0}, "hit"),
        ({"miss": 5.0}, "miss"),
        ({"miss": "none"}, "miss"),
        ({"drawn_norm": 1.99}, "mechanism"),
    ],
    ids=str,
)
def test_a_refused_statement_names_its_own_key(change, where):
    participation = {**json.loads(PRIVATE_STATE), **change}
    with pytest.raises(InputError) as caught:
        from_statement({**to_statement(ClientSampling(m.Gaussian(1.0), 0.5, 2)),
                        "participation": participation})  # fmt: skip
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"kind": "exponential"}, "kind"),
        ({"kind": None}, "kind"),
        ({"kind": ["gaussian"]}, "kind"),
        ({"version": 3}, "version"),
        ({"version": True}, "version"),
        ({"version": 2.0}, "version"),
        ({"version": None}, "version"),
        ({"relation": "add-one"}, "relation"),
        ({"relation": ["replace-one"]}, "relation"),
        ({"trust_model": "secure-aggregation"}, "trust_model"),
        ({"unit": "household"}, "unit"),
        ({"steps": 3}, "steps"),
        ({"steps": "2"}, "steps"),
        ({"noise_multiplier": []}, "noise_multiplier"),
        ({"noise_multiplier": 1.0}, "noise_multiplier"),
        ({"noise_multiplier": "12"}, "noise_multiplier"),
        ({"noise_multiplier": [1.0, 2.0]}, "noise_multiplier"),
        ({"noise_multiplier": ["12"]}, "noise_multiplier"),
        ({"noise_multiplier": [[1.0, 1.5]]}, "steps"),
        ({"noise_multiplier": [[1.0, True], [1.0, 1]]}, "steps"),
        ({"noise_multiplier": [[1.0, -2], [1.0, 4]]}, "steps"),
        ({"noise_multiplier": [[1.0, 10**15]]}, "noise_multiplier"),
        ({"noise_multiplier": [["1.0", 2]]}, "noise_multiplier"),
        ({"noise_multiplier": [[True, 2]]}, "noise_multiplier"),
        ({"noise_multiplier": [[-1.0, 2]]}, "noise_multiplier"),
        ({"noise_multiplier": [[float("nan"), 2]]}, "noise_multiplier"),
        ({"sample_rate": 0.0}, "sample_rate"),
        ({"sample_rate": "half"}, "sample_rate"),
        ({"colour": "red"}, "mechanism"),
    ],
    ids=str,
)
def test_other_statements_are_refused(change, where):
    statement = to_statement(m.SampledGaussian(0.5, 1.0, 2))
    with pytest.raises(InputError) as caught:
        from_statement({**statement, **change})
    assert caught.value.where == where


@pytest.mark.parametrize("missing", sorted(to_statement(m.SampledGaussian(0.5, 1.0, 2))))
def test_no_default_fills_a_hole(missing):
    statement = to_statement(m.SampledGaussian(0.5, 1.0, 2, relation=REPLACE_ONE))
    del statement[missing]
    with pytest.raises(InputError):
        from_statement(statement)


NESTED = to_statement(ClientSampling(Composed((m.Gaussian(1.0),)), 0.5, 2))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"participation": None}, "mechanism"),
        ({"participation": []}, "mechanism"),
        ({"participation": {"kind": "composed", "version": 2, "parts": []}}, "parts"),
        ({"participation": {"kind": "composed", "version": 2, "parts": {}}}, "parts"),
        ({"participation": {"kind": "composed", "version": 2, "parts": [1]}}, "mechanism"),
        ({"participation": {"kind": "composed", "version": 1, "parts": []}}, "kind"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": 1e3}, "rounds"),
        ({"rounds": 10**20}, "rounds"),
        ({"rate": 2}, "rate"),
    ],
    ids=str,
)
def test_nested_statements_are_checked_all_the_way(change, where):
    with pytest.raises(InputError) as caught:
        from_statement({**copy.deepcopy(NESTED), **change})
    assert caught.value.where == where


def test_statements_too_deep_are_refused_both_ways():
    mechanism = m.Gaussian(1.0)
    statement = to_statement(mechanism)
    for _ in range(16):
        mechanism = ClientSampling(mechanism, 0.5, 2)
    assert from_statement(to_statement(mechanism)) == mechanism
    with pytest.raises(InputError, match="deep"):
        to_statement(ClientSampling(mechanism, 0.5, 2))
    outer = {"kind": "client-sampling", "version": STATEMENT_VERSION, "rate": 0.5, "rounds": 2}
    for _ in range(5000):
        statement = {**outer, "participation": statement}
    with pytest.raises(InputError, match="deep"):
        from_statement(statement)


@pytest.mark.parametrize("other", [None, 3, "gaussian", [], {}])
def test_what_is_no_statement_is_refused(other):
    with pytest.raises(InputError):
        from_statement(other)
    with pytest.raises(InputError):
        to_statement(other)
