"""LSTM, GRU and RNN record by record: torch's numbers, and plain autograd's gradients.

That one record moves a sum by C at most is in `test_gradients_sensitivity.py`.
"""

import pytest
import torch
from gradient_problems import FLOAT64, assert_equal, problem
from torch import nn

from tacit.errors import InputError
from tacit.gradients import Recurrent

KINDS = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "RNN, tanh": nn.RNN,
    "RNN, relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
OPTIONS = {
    "one layer": {"batch_first": True},
    "steps first, without bias": {"bias": False},
    "two layers, both ways": {"batch_first": True, "num_layers": 2, "bidirectional": True},
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def made(kind, options):
    torch.manual_seed(3)
    return KINDS[kind](3, 4, **options).double()


def equal(found, right):
    pairs = zip(found, right, strict=True) if isinstance(right, tuple) else [(found, right)]
    for one, other in pairs:
        if isinstance(other, tuple):
            equal(one, other)
        else:
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@EVERY_KIND
@pytest.mark.parametrize("case", OPTIONS)
def test_it_computes_what_torch_does(kind, case):
    like = made(kind, OPTIONS[case])
    found = Recurrent(like)
    inputs = torch.randn(5, 5, 3, dtype=FLOAT64)
    right = like(inputs)
    equal(found(inputs), right)
    equal(found(inputs, right[1]), like(inputs, right[1]))  # from a given state
    equal(found(inputs[0]), like(inputs[0]))  # one sequence without a batch


def test_projections_are_those_of_torch():
    like = made("LSTM", {"proj_size": 2, "num_layers": 2, "batch_first": True})
    inputs = torch.randn(2, 4, 3, dtype=FLOAT64)
    equal(Recurrent(like)(inputs), like(inputs))


@EVERY_KIND
def test_weights_go_both_ways_by_the_same_names(kind):
    options = OPTIONS["two layers, both ways"]
    like = made(kind, options)
    found = Recurrent(like)
    assert list(found.state_dict()) == list(like.state_dict())
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.mul_(0.5)
    inputs = torch.randn(2, 4, 3, dtype=FLOAT64)
    before = like(inputs)[0]
    like.load_state_dict(found.state_dict())
    assert not torch.allclose(like(inputs)[0], before)
    equal(found(inputs), like(inputs))


def test_what_is_frozen_stays_frozen():
    like = made("GRU", {})
    like.weight_ih_l0.requires_grad_(False)
    assert [p.requires_grad for p in Recurrent(like).parameters()] == [False, True, True, True]


def test_packed_sequences_are_refused():
    packed = nn.utils.rnn.pack_sequence([torch.zeros(2, 3), torch.zeros(1, 3)])
    with pytest.raises(InputError, match="padded tensor"):
        Recurrent(nn.LSTM(3, 4))(packed)


class Last(nn.Module):
    """A score of a sequence from the last output."""

    def __init__(self, inner, width):
        super().__init__()
        self.inner, self.head = inner, nn.Linear(width, 3)

    def forward(self, inputs):
        return self.head(self.inner(inputs)[0][:, -1])


def tagger(kind, **options):
    options = {"batch_first": True, **options}
    width = 4 * (1 + options.get("bidirectional", False))
    return lambda: Last(Recurrent(KINDS[kind](3, 4, **options)), width)


@EVERY_KIND
@pytest.mark.parametrize("clip", [None, 0.2])
def test_sums_are_those_of_plain_autograd(kind, clip, oracle):
    case = problem(tagger(kind), (5, 3))
    assert case.stacked.path == "taps"
    assert_equal(case.gradient(clip), case.expected(oracle, clip), clip)


def test_sums_of_two_layers_both_ways_are_those_of_plain_autograd(oracle):
    case = problem(tagger("LSTM", num_layers=2, bidirectional=True), (4, 3))
    assert_equal(case.gradient(0.3), case.expected(oracle, 0.3), 0.3)


class Twice(nn.Module):
    """Goes through a sequence twice, the second time from where the first one ended."""

    def __init__(self, trained=True):
        super().__init__()
        self.inner, self.head = Recurrent(nn.LSTM(3, 4, 1, batch_first=True)), nn.Linear(4, 3)
        self.inner.weight_hh_l0.requires_grad_(trained)

    def forward(self, inputs):
        _, state = self.inner(inputs)
        return self.head(self.inner(inputs.flip(1), state)[0].mean(1))


@pytest.mark.parametrize(("trained", "path"), [(True, "taps"), (False, "functional")])
def test_a_layer_that_is_called_twice_or_trained_in_part(trained, path, oracle):
    case = problem(lambda: Twice(trained), (4, 3))
    assert case.stacked.path == path
    assert_equal(case.gradient(0.2), case.expected(oracle, 0.2), 0.2)


def test_projections_and_short_memory_give_the_same_sums(oracle):
    def make():
        return Last(Recurrent(nn.LSTM(3, 5, 2, batch_first=True, proj_size=2)), 2)

    case = problem(make, (4, 3), memory_bytes=4_000)
    assert case.stacked.path == "taps"
    assert_equal(case.gradient(0.2), case.expected(oracle, 0.2), 0.2)


def test_a_frozen_layer_is_used_and_not_trained(oracle):
    def make():
        module = tagger("GRU")()
        module.inner.requires_grad_(False)  # type: ignore[union-attr]
        return module

    case = problem(make, (4, 3))
    assert (case.stacked.path, case.stacked.parameters_count) == ("taps", 15)
    assert_equal(case.gradient(0.2), case.expected(oracle, 0.2), 0.2)
