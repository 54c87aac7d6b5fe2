"""The rules for clip and rate: monotone where they should be, and never out of bounds."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from few import few
from tacit.algorithms import ALGORITHMS
from tacit.algorithms.accounting import noised_sums
from tacit.algorithms.options import Options, constant, step_size
from tacit.config import Train
from tacit.training.recommend.rules import (
    CLIP_SHARE,
    LONGEST_SQUARED_STEP,
    MOST_TRAVEL,
    SQUARED_NOISE,
    averaging,
    output_noise,
    path,
    rounded,
    travel,
)

NOISES = st.floats(1e-8, 10.0)
NORMS = st.floats(1e-2, 1e4)
STEPS = st.integers(1, 2000)
MOMENTA = st.sampled_from([0.0, 0.5, 0.9])
SCHEDULES = st.sampled_from(["constant", "linear", "cosine", "inverse-sqrt"])


@settings(max_examples=200, deadline=None)
@given(noise=NOISES, factor=st.floats(1.0, 100.0), share=st.floats(1e-4, 10.0), beta=MOMENTA)
def test_more_noise_never_makes_the_way_longer(noise, factor, share, beta):
    assert travel(noise * factor, share, beta) <= travel(noise, share, beta) <= MOST_TRAVEL
    assert travel(noise, share, beta) * noise <= output_noise(share, beta) * (1 + 1e-12)


@given(share=st.floats(1e-4, 10.0), factor=st.floats(1.0, 100.0), beta=MOMENTA)
def test_a_longer_clip_never_allows_for_more_noise(share, factor, beta):
    assert output_noise(share * factor, beta) <= output_noise(share, beta)


@few(50, 200)
@given(noise=NOISES, norm=NORMS, steps=STEPS, beta=MOMENTA, schedule=SCHEDULES)
def test_the_path_is_as_long_as_its_steps(noise, norm, steps, beta, schedule):
    found = path(noise, norm, steps, beta, schedule)  # type: ignore[arg-type]
    options = Options(learning_rate=found.learning_rate, learning_rate_schedule=schedule)
    lengths = [step_size(options, k, steps) for k in range(steps)]
    gone = norm * found.clip * sum(lengths) / (1 - beta)
    assert found.travel == pytest.approx(gone)
    assert found.output_noise == pytest.approx(gone * noise)
    # Two digits of clip and rate.
    assert found.travel == pytest.approx(travel(noise, found.clip / norm, beta), rel=0.06)
    assert found.clip == pytest.approx(CLIP_SHARE * norm, rel=0.06)


@settings(max_examples=100, deadline=None)
@given(noise=NOISES, norm=NORMS, factor=st.floats(1.0, 50.0))
def test_longer_inputs_scale_the_clip_up_and_the_rate_down(noise, norm, factor):
    near, far = path(noise, norm, 100, 0.9), path(noise, norm * factor, 100, 0.9)
    assert far.clip >= near.clip
    assert far.learning_rate <= near.learning_rate * 1.06
    assert far.travel == pytest.approx(near.travel, rel=0.12)  # in units of an output


def test_what_is_given_stays():
    found = path(1e-3, 4.0, 100, 0.9, clip=1.0)
    assert found.clip == 1.0
    assert path(1e-3, 4.0, 100, 0.9, clip=1.0, learning_rate=0.3).learning_rate == 0.3
    assert found.output_noise < path(1e-3, 4.0, 100, 0.9).output_noise


@given(steps=st.integers(1, 10_000_000))
def test_the_average_is_one_that_an_experiment_takes(steps):
    assert Train(average=averaging(steps)).average == averaging(steps)


def test_the_average_is_of_a_tenth_of_the_steps():
    assert averaging(100) == "exponential:0.9"
    assert averaging(200) == "exponential:0.95"
    assert averaging(19) == "none"


@given(value=st.floats(1e-30, 1e30))
def test_two_digits(value):
    assert math.isclose(rounded(value), value, rel_tol=0.0501)
    assert float(f"{rounded(value):.1e}") == rounded(value)


@few(50, 200)
@given(
    noise=NOISES,
    norm=NORMS,
    steps=STEPS,
    beta=MOMENTA,
    schedule=SCHEDULES,
    share=st.none() | st.floats(0.01, 3),
    linear=st.booleans(),
)
def test_steps_of_squared_loss_come_to_rest(noise, norm, steps, beta, schedule, share, linear):
    """Also where the clip is set, and of a model that is not linear."""
    clip = None if share is None else share * norm
    kind = {"linear": linear, "whole": linear, "squared": True, "clip": clip}
    found = path(noise, norm, steps, beta, schedule, **kind)
    if linear and clip is None:
        assert found.clip == pytest.approx(norm, rel=0.06)
    assert found.output_noise <= SQUARED_NOISE * 1.06
    options = Options(learning_rate=found.learning_rate, learning_rate_schedule=schedule)
    lengths = [step_size(options, k, steps) for k in range(steps)]
    assert sum(lengths) / steps * norm**2 <= LONGEST_SQUARED_STEP * 1.13


def test_there_are_rules_for_methods_that_only_step_along_noised_gradients():
    """One made from such a row by `replace` would inherit them."""
    plain = [row for row in ALGORITHMS.values() if row.plain]
    assert {row.name for row in plain} == {"privsgp", "dp2-sgd", "dp-sgd"}
    for row in plain:
        assert row.releases.mechanism is noised_sums
        assert row.schedules is constant
        assert row.table(row.options()) is None
