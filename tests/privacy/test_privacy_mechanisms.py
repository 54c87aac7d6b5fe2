"""Mechanisms as data: what is refused, what is equal, and what becomes one."""

import math
from dataclasses import FrozenInstanceError
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from few import few
from tacit.errors import InputError
from tacit.privacy.mechanisms import steps as m
from tacit.privacy.mechanisms.allocation import RandomAllocationGaussian
from tacit.privacy.mechanisms.base import (
    ADD_OR_REMOVE_ONE,
    MOST_STEPS,
    REPLACE_ONE,
    TRUST_MODELS,
    against,
)
from tacit.privacy.mechanisms.clipping import CLIP_NORMS, Clipping
from tacit.privacy.mechanisms.composed import MECHANISMS as KINDS
from tacit.privacy.mechanisms.composed import ClientSampling, Composed, compose
from tacit.privacy.mechanisms.known import KnownRelease

SCHEDULE = [1.5, 1.5, 0.7, 1.5, 2.25]
MECHANISMS = [
    m.Gaussian(1.1),
    m.Gaussian(SCHEDULE, relation=REPLACE_ONE),
    m.SampledGaussian(1 / 3000, 0.1 + 0.2, 1000),
    m.SampledGaussian(1, SCHEDULE, 5, relation=REPLACE_ONE),
    m.FixedBatchGaussian(1, 3000, 0.45, 1000),
    m.FixedBatchGaussian(7, 7, SCHEDULE),
    RandomAllocationGaussian(5, SCHEDULE),
    m.Laplace(SCHEDULE, sample_rate=0.3, unit="client"),
    m.PrivateState(0.01, 1.99, 0.01, 2.0, 7),
]
MAKERS = [
    m.Gaussian,
    lambda *args, **kwargs: m.SampledGaussian(0.01, *args, **kwargs),
    lambda *args, **kwargs: m.FixedBatchGaussian(1, 100, *args, **kwargs),
    lambda *args, **kwargs: RandomAllocationGaussian(7, *args, **kwargs),
    m.Laplace,
    lambda *args, **kwargs: m.PrivateState(0.1, 1.9, 0.1, *args, **kwargs),
]


@pytest.mark.parametrize("make", MAKERS)
def test_a_number_and_its_list_are_the_same_mechanism(make):
    one, other = make(1.25, 4), make([1.25] * 4)
    assert one == other
    assert hash(one) == hash(other)
    assert make(2) == make([2.0]) == make((2,), 1)
    assert one != make(1.25, 5)
    assert one != make([1.25, 1.25, 1.25, 1.26])
    assert one.steps == 4


def test_kinds_differ():
    assert m.Gaussian(1.0, 3) != m.SampledGaussian(1.0, 1.0, 3)
    assert m.SampledGaussian(0.5, 1.0) != m.SampledGaussian(0.5, 1.0, relation=REPLACE_ONE)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
@pytest.mark.parametrize("field", ["noise_multiplier", "steps", "relation", "trust_model"])
def test_mechanisms_are_frozen(mechanism, field):
    with pytest.raises(FrozenInstanceError):
        setattr(mechanism, field, 1)


BAD_NOISE = [0.0, -1.0, math.nan, math.inf, -math.inf, True, "1.0", None, 1j, 10**400]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("bad", BAD_NOISE, ids=lambda bad: repr(bad)[:8])
def test_noise_must_be_positive_and_finite(make, bad):
    for multipliers, steps in [(bad, None), (bad, 3), ([1.0, bad], None), ([bad, bad], 2)]:
        with pytest.raises(InputError) as caught:
            make(multipliers, steps)
        assert caught.value.where == "noise_multiplier"


@pytest.mark.parametrize("make", MAKERS)
def test_lengths_must_agree(make):
    with pytest.raises(InputError, match="one number a step"):
        make([])
    for multipliers, steps in [([1.0, 1.0], 3), ([1.0], 0), (1.0, 0), (1.0, -2)]:
        with pytest.raises(InputError) as caught:
            make(multipliers, steps)
        assert caught.value.where == "steps"


@pytest.mark.parametrize("make", MAKERS)
def test_unknown_words_are_refused(make):
    with pytest.raises(InputError) as caught:
        make(1.0, relation="substitute")
    assert caught.value.where == "relation"
    with pytest.raises(InputError) as caught:
        make(1.0, trust_model="none")
    assert caught.value.where == "trust_model"
    with pytest.raises(InputError) as caught:
        make(1.0, unit="user")
    assert caught.value.where == "unit"


def test_a_fixed_batch_is_accounted_under_replace_one_only():
    with pytest.raises(InputError, match="another record") as caught:
        m.FixedBatchGaussian(1, 100, 1.0, relation=ADD_OR_REMOVE_ONE)
    assert caught.value.where == "relation"


BAD_RATES = [0.0, -0.1, 1.0000001, math.nan, math.inf, True, "0.5", None]


@pytest.mark.parametrize("rate", BAD_RATES)
def test_rates_lie_in_the_unit_interval(rate):
    for make in (
        lambda: m.SampledGaussian(rate, 1.0),
        lambda: m.Laplace(1.0, sample_rate=rate),
        lambda: m.PrivateState(rate, 1.0, 0.0, 1.0),
    ):
        with pytest.raises(InputError) as caught:
            make()
        assert caught.value.where == "sample_rate"
    with pytest.raises(InputError) as caught:
        ClientSampling(m.Gaussian(1.0), rate, 3)
    assert caught.value.where == "rate"


@pytest.mark.parametrize(
    ("batch", "records", "where"),
    [
        (0, 10, "batch"),
        (11, 10, "batch"),
        (-1, 10, "batch"),
        (True, 10, "batch"),
        (1.0, 10, "batch"),
        (1, 0, "records"),
        (1, "10", "records"),
    ],
)
def test_a_batch_has_some_of_the_records(batch, records, where):
    with pytest.raises(InputError) as caught:
        m.FixedBatchGaussian(batch, records, 1.0)
    assert caught.value.where == where


@pytest.mark.parametrize("bad", [{1.0: 2}, {1.0, 2.0}, b"12", "12", [[1.0], [2.0]], np.eye(2)])
def test_schedules_are_flat_lists_of_numbers(bad):
    with pytest.raises(InputError) as caught:
        m.Gaussian(bad)
    assert caught.value.where == "noise_multiplier"


@pytest.mark.parametrize("steps", [True, 2.0, "2", MOST_STEPS + 1, 10**30])
def test_steps_are_a_whole_number_that_fits(steps):
    with pytest.raises(InputError) as caught:
        m.Gaussian(1.0, steps)
    assert caught.value.where == "steps"


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"drawn_norm": 0.0}, "drawn_norm"),
        ({"drawn_norm": math.inf}, "drawn_norm"),
        ({"drawn_norm": True}, "drawn_norm"),
        ({"undrawn_norm": -0.1}, "undrawn_norm"),
        ({"undrawn_norm": 2.1}, "undrawn_norm"),
        ({"undrawn_norm": math.nan}, "undrawn_norm"),
        ({"sampling": "shuffled"}, "sampling"),
        ({"sampling": "fixed"}, "relation"),
    ],
    ids=str,
)
def test_private_state_has_bounds_in_order(changed, where):
    good = {"sample_rate": 0.1, "drawn_norm": 2.0, "undrawn_norm": 0.1, "noise_multiplier": 1.0}
    with pytest.raises(InputError) as caught:
        m.PrivateState(**{**good, **changed})
    assert caught.value.where == where


def test_sampled_laplace_noise_is_refused_under_replace_one():
    assert m.Laplace(1.0, relation=REPLACE_ONE).rate == 1
    with pytest.raises(InputError, match="add-or-remove-one"):
        m.Laplace(1.0, sample_rate=0.5, relation=REPLACE_ONE)


def test_numbers_of_any_kind_are_kept_as_plain_ones():
    plain = m.SampledGaussian(0.5, [1.0, 2.0], 2)
    for other in (
        m.SampledGaussian(np.float32(0.5), np.asarray([1, 2]), np.int64(2)),  # type: ignore[arg-type]
        m.SampledGaussian(Fraction(1, 2), (1, Fraction(2))),  # type: ignore[arg-type]
    ):
        assert other == plain
        assert hash(other) == hash(plain)
        assert type(other.sample_rate) is float
        assert type(other.steps) is int
        assert set(map(type, m.schedule(other))) == {float}


def test_rates():
    assert m.Gaussian(1.0).rate == 1
    assert m.SampledGaussian(0.25, 1.0).rate == 0.25
    assert m.FixedBatchGaussian(3, 12, 1.0).rate == 0.25


@few(20, 60)
@given(st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.5]), min_size=1, max_size=20), st.randoms())
def test_levels_count_the_steps_in_any_order(multipliers, random):
    shuffled = list(multipliers)
    random.shuffle(shuffled)
    counted = m.levels(m.Gaussian(shuffled))
    assert counted == m.levels(m.Gaussian(multipliers))
    assert dict(counted) == {value: multipliers.count(value) for value in multipliers}
    assert [value for value, _ in counted] == sorted(set(multipliers))


OTHERS = ("server", *(against(name, 1) for name in TRUST_MODELS[2:]))
GAUSSIAN, SAMPLED = m.Gaussian(1.0), m.SampledGaussian(0.1, [1.0, 2.0])
ROUNDS = ClientSampling(SAMPLED, 0.2, 5)


@pytest.mark.parametrize(
    "mechanism", [*MECHANISMS, ROUNDS, Composed((GAUSSIAN, SAMPLED, ROUNDS))], ids=repr
)
@pytest.mark.parametrize("times", [1, 2, 7])
def test_composing_is_the_same_as_releasing_again(mechanism, times):
    repeated = compose(mechanism, times)
    assert Composed((repeated,)) == Composed((mechanism,) * times)
    assert hash(Composed((repeated,))) == hash(Composed((mechanism,) * times))
    assert repeated.steps == times * (mechanism.steps or 0)
    assert compose(repeated, 3) == compose(mechanism, 3 * times)


def test_a_million_times_is_one_schedule():
    million = compose(SAMPLED, 1_000_000)
    assert type(million) is m.SampledGaussian
    assert m.levels(million) == ((1.0, 1_000_000), (2.0, 1_000_000))
    many = Composed((m.SampledGaussian(0.1, 1.0), m.SampledGaussian(0.1, 2.0)) * 100_000)
    assert many == Composed((compose(SAMPLED, 100_000),))


@pytest.mark.parametrize("times", [0, -1, True, 1.5, "2", MOST_STEPS])
def test_odd_or_endless_repetition_is_refused(times):
    with pytest.raises(InputError) as caught:
        compose(SAMPLED, times)
    assert caught.value.where == "times"


def test_compositions_are_flat_and_in_one_form():
    nested = Composed((GAUSSIAN, Composed([SAMPLED, Composed((GAUSSIAN,))]), ROUNDS, ROUNDS))
    assert nested.parts == (m.Gaussian(1.0, 2), SAMPLED, ClientSampling(SAMPLED, 0.2, 10))
    assert nested.steps == 2 + 2 + 20
    assert nested.rate == 1
    assert Composed(nested.parts) == nested


def test_what_differs_in_more_than_its_steps_stays_apart():
    parts = (
        m.SampledGaussian(0.1, 1.0),
        m.SampledGaussian(0.2, 1.0),
        m.FixedBatchGaussian(1, 5, 1.0, relation=REPLACE_ONE),
    )
    assert len(Composed(parts[:2]).parts) == 2
    with pytest.raises(InputError, match="agree in their relation"):
        Composed(parts)
    with pytest.raises(InputError, match="agree in their unit"):
        Composed((GAUSSIAN, m.Gaussian(1.0, unit="client")))
    for other in OTHERS:  # no observer sees, and no assumption covers, just the two
        with pytest.raises(InputError, match="agree in their trust_model"):
            Composed((GAUSSIAN, m.Gaussian(1.0, trust_model=other)))
    pair = [m.Gaussian(1.0, trust_model=f"pairwise, {number} colluding") for number in (1, 2)]
    with pytest.raises(InputError, match="agree in their trust_model"):  # of another adversary
        Composed(pair)


@pytest.mark.parametrize("named", ["pairwise", "pairwise, 01 colluding", "server, 1 colluding"])
def test_a_trust_model_says_how_many_collude_where_some_may(named):
    with pytest.raises(InputError, match="pairwise, 1 colluding") as caught:
        m.Gaussian(1.0, trust_model=named)
    assert caught.value.where == "trust_model"


@pytest.mark.parametrize("parts", [(), [], 5, None, ("gaussian",), (GAUSSIAN, 1.0)])
def test_compositions_are_of_mechanisms(parts):
    with pytest.raises(InputError) as caught:
        Composed(parts)
    assert caught.value.where == "parts"


def test_client_sampling_takes_after_its_participation():
    rounds = ClientSampling(Composed((GAUSSIAN, SAMPLED)), 0.25, 8)
    assert (rounds.relation, rounds.unit, rounds.trust_model) == (
        "add-or-remove-one",
        "record",
        "all-messages",
    )
    assert rounds.steps == 8 * 3
    for participation, count, where in [
        (None, 1, "participation"),
        (GAUSSIAN, 0, "rounds"),
        (GAUSSIAN, 1.0, "rounds"),
        (GAUSSIAN, 10**12, "rounds"),
    ]:
        with pytest.raises(InputError) as caught:
            ClientSampling(participation, 0.5, count)  # type: ignore[arg-type]
        assert caught.value.where == where


@pytest.mark.parametrize(
    ("mechanism", "line"),
    [
        (m.Gaussian(SCHEDULE), "Gaussian on every record, 5 steps"),
        (SAMPLED, "Poisson-sampled Gaussian, rate 0.1, 2 steps"),
        (m.FixedBatchGaussian(2, 5000, 1.25, 4), "Gaussian on 2 of 5000 records without "
         "replacement, 4 steps"),
        (RandomAllocationGaussian(100, 1.0, 7), "Gaussian in one random step of each epoch of "
         "100, 7 steps"),
        (m.Laplace(1.0, 2, sample_rate=0.3), "Laplace, rate 0.3, 2 steps"),
        (m.PrivateState(0.01, 1.99, 0.01, 2.0, 7), "Gaussian with private state, poisson sampling, "
         "rate 0.01, 1.99 C where drawn, 0.01 C elsewhere, 7 steps"),
        (m.PersistentState(0.1, 2.0), "Gaussian with private state that carries a drawn record to "
         "all later steps, rate 0.1, 1 steps"),
        (Composed((GAUSSIAN, SAMPLED)), "Gaussian on every record, 1 steps; then Poisson-sampled "
         "Gaussian, rate 0.1, 2 steps"),
        (ROUNDS, "Poisson-sampled Gaussian, rate 0.1, 2 steps in each of 5 rounds, active with "
         "chance 0.2"),
        (KnownRelease([(1.0, 1e-5)], steps=3), "a release known by what it guarantees, 3 steps"),
    ],
)  # fmt: skip
def test_every_mechanism_is_described_in_one_line(mechanism, line):
    assert mechanism.describe() == line


def test_every_kind_has_one_name():
    assert len({each.kind for each in KINDS}) == len(KINDS)


# How far a record moves a clipped sum, step by step; measured in `tests/gradients`.


@pytest.mark.parametrize("norm", CLIP_NORMS)
def test_a_record_moves_a_sum_by_its_bound_and_a_replaced_one_by_twice_that(norm):
    clip = Clipping(norm, (1.0, 0.25))
    assert clip.sensitivity(ADD_OR_REMOVE_ONE) == (1.0, 0.25)
    assert clip.sensitivity(REPLACE_ONE) == (2.0, 0.5)
    assert [clip.bound(k) for k in range(2)] == [1.0, 0.25]


def test_laplace_noise_needs_a_bound_in_l1():
    assert Clipping("l1", (3.0,)).sensitivity(REPLACE_ONE, "l1") == (6.0,)
    for norm in ("l2", "coordinate", "automatic"):
        with pytest.raises(InputError, match=rf"algorithm\.clip_norm = '{norm}': must be 'l1'"):
            Clipping(norm, (3.0,)).sensitivity(REPLACE_ONE, "l1")


def test_what_is_not_clipped_has_no_sensitivity():
    clip = Clipping("l2", None)
    assert clip.bound(7) is None
    with pytest.raises(InputError, match=r"algorithm\.clip = None: without a bound"):
        clip.sensitivity(ADD_OR_REMOVE_ONE)
