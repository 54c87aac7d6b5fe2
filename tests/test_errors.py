"""What a message of an error may hold: one line, in which what the user wrote is cut short."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.algorithms import ALGORITHMS
from tacit.errors import InputError, is_meant, nearest
from tacit.report.measures import MEASURES

HOSTILE = st.recursive(
    st.text() | st.integers() | st.floats() | st.none() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(where=st.text(), value=HOSTILE, expected=st.text())
def test_a_message_is_one_line_that_can_be_printed(where, value, expected):
    error = InputError(where, value, expected)
    assert str(error).isprintable()
    assert (error.where, error.expected) == (where, expected)
    assert repr(error.value) == repr(value)


def test_a_short_value_is_quoted_as_it_is():
    assert str(InputError("train.steps", "ten", "a number")) == "train.steps = 'ten': a number"
    assert str(InputError("a", "b\x1b[31m\n", "c")) == r"a = 'b\x1b[31m\n': c"


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    ["/long" * 10_000 + "/name.toml", [1.0] * 100_000, 1 << 100_000, nested(100_000)],
    ids=["text", "list", "integer", "nested"],
)
def test_a_long_value_is_cut_short(value):
    assert sys.getrecursionlimit() < 100_000
    assert len(str(InputError("task.dataset", value, "name one"))) < 160


def test_the_end_of_a_long_path_can_still_be_read():
    assert "/name.toml'" in str(InputError("file", "/long" * 10_000 + "/name.toml", "give one"))
    assert len(str(InputError("k" * 10_000, 1, "e" * 10_000))) < 1300


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("AUROC", MEASURES, "auc"),
        ("roc_auc", MEASURES, "auc"),
        ("f1_score", MEASURES, "f1"),
        ("acc", MEASURES, "accuracy"),
        ("Balanced Accuracy", MEASURES, "balanced-accuracy"),
        ("privsgp_vr", ALGORITHMS, "privsgp-vr"),
        ("choco", ALGORITHMS, "choco-sgd"),
        ("fedprox", ALGORITHMS, None),
        ("fedadam", ALGORITHMS, None),
        ("scaffold", ALGORITHMS, None),
        ("log_loss", MEASURES, "log-loss"),
        ("perplexity", MEASURES, None),
    ],
)
def test_a_slip_is_recognised_and_another_word_is_not(word, known, meant):
    assert is_meant(word, known) == meant


def test_the_nearest_word_or_all():
    assert nearest("epsilo", ["epsilon", "delta"]) == "did you mean 'epsilon'?"
    assert nearest("x", ["epsilon", "delta"]) == "known are: delta, epsilon"
