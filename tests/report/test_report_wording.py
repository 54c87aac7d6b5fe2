import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.report.wording import (
    bytes_text,
    duration_text,
    epsilon_text,
    figure_down,
    figure_up,
    guess_bound,
    lower_text,
    number_text,
    percent_text,
    percent_up_text,
)


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_epsilon_is_rounded_up_by_less_than_one_in_its_third_digit(value):
    shown = Fraction(epsilon_text(value))
    exact = Fraction(repr(value))
    assert exact <= shown < exact * Fraction(101, 100)
    digits = epsilon_text(value).split("e")[0].replace(".", "").strip("0")
    assert len(digits) <= 3


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2.9901, "3.00"),
        (3.0, "3.00"),
        (0.1, "0.100"),
        (9.991, "10.0"),
        (4121.0, "4130"),
        (1e-5, "1e-5"),
        (1.001e-5, "1.01e-5"),
        (1_230_001.0, "1.24e6"),
        (0.0, "0"),
        (None, "–"),
    ],
)
def test_epsilon_text(value, shown):
    assert epsilon_text(value) == shown


def test_other_numbers_are_rounded_to_the_nearest():
    assert [number_text(value) for value in (2.9901, 2.9951, 0.061349)] == [
        "2.99",
        "3.00",
        "0.0613",
    ]


def test_percentages_have_one_decimal_and_bounds_round_up():
    assert percent_text(0.93149).replace("\u202f", " ") == "93.1 %"
    assert percent_up_text(0.93101).replace("\u202f", " ") == "93.2 %"
    assert percent_up_text(0.99999).replace("\u202f", " ") == "100.0 %"


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (999.7, "1.00 kB"),
        (1_234_567, "1.23 MB"),
        (999_600, "1.00 MB"),
        (3e18, "3000 PB"),
    ],
)
def test_bytes_are_readable(count, shown):
    assert bytes_text(count).replace("\u202f", " ") == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.2, "200 ms"), (59.9, "59.9 s"), (59.97, "1 min 00 s"), (3725, "1 h 02 min")],
)
def test_durations_are_readable(seconds, shown):
    assert duration_text(seconds).replace("\u202f", " ") == shown


def test_guess_bound_is_that_of_randomized_response():
    # Randomized response that tells the truth with probability 3/4 has epsilon = log 3.
    assert guess_bound(math.log(3), 0.0) == pytest.approx(0.75)
    assert guess_bound(0.0, 0.0) == 0.5
    assert guess_bound(5000.0, 1e-5) == 1.0


@given(st.floats(0.05, 6.0), st.floats(0.05, 6.0))
def test_guess_bound_holds_for_the_gaussian_mechanism(mu, epsilon):
    def below(x):
        return math.erfc(-x / math.sqrt(2)) / 2

    # Exact delta of a Gaussian pair (Balle and Wang, 2018), and its best guess.
    delta = below(mu / 2 - epsilon / mu) - math.exp(epsilon) * below(-mu / 2 - epsilon / mu)
    assert below(mu / 2) <= guess_bound(epsilon, max(delta, 0.0)) + 1e-9


@given(st.floats(1e-12, 1e12))
def test_a_lower_bound_is_never_rounded_up(value):
    shown = float(lower_text(value))
    assert value * 0.989 <= shown <= value


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_figures_enclose_the_value(value):
    assert figure_down(value) <= value <= figure_up(value)
    assert figure_up(value) - figure_down(value) <= 0.101 * value
    for figure in (figure_down(value), figure_up(value)):
        assert len(Decimal(repr(figure)).normalize().as_tuple().digits) <= 2


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [(0.9123, 0.91, 0.92), (0.999, 0.99, 1.0), (1.0, 1.0, 1.0), (123.0, 120.0, 130.0)],
)
def test_two_digits_of_figures_are_left(value, low, high):
    assert (figure_down(value), figure_up(value)) == (low, high)


@pytest.mark.parametrize("value", [0.0, math.inf])
def test_a_figure_without_digits_stays(value):
    assert (figure_down(value), figure_up(value)) == (value, value)
