"""What leaves a node has a colour, and the border asks for it."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch

import tacit
from experiments import experiment, write_experiment
from experiments import tacit as command
from mixings import weights_of
from tacit.algorithms import privsgp
from tacit.communication.colours import Masked, Private, Public, Released, Summand, opened
from tacit.communication.exchange import BetweenProcesses, Graphs, InProcessExchange
from tacit.errors import LeakError

CPU = torch.device("cpu")
VALUE = torch.ones(2, 3)


class Silent:
    """A channel of two processes over which nothing may go."""

    rank, processes, bytes_sent = 0, 2, 0

    def __getattr__(self, name):
        raise AssertionError(f"{name} was asked for")


def exchanges():
    both = weights_of(np.full((2, 2), 0.5))
    every = weights_of(np.full((4, 4), 0.25))
    graphs = Graphs(lambda k: every, 1, "doubly-stochastic")
    channel = Silent()
    return [
        InProcessExchange([both], dtype=torch.float32, device=CPU),
        BetweenProcesses(channel, [0, 0, 1, 1], graphs, dtype=torch.float32, device=CPU),
    ]


def test_public_and_released_values_are_opened():
    assert opened(Public(3), "a number") == 3
    assert opened(Released("text"), "a word") == "text"


@pytest.mark.parametrize(
    "value", [3, VALUE, Private(3), Summand(3), Masked(3), None, (Released(3),)]
)
def test_nothing_else_is(value):
    with pytest.raises(LeakError, match=f"a thing is a {type(value).__name__}, and only"):
        opened(value, "a thing")


@pytest.mark.parametrize("colour", [Public, Released, Private, Summand, Masked])
def test_colours_are_frozen(colour):
    with pytest.raises(FrozenInstanceError):
        colour(1).value = 2


@pytest.mark.parametrize("exchange", exchanges(), ids=["in-process", "between"])
@pytest.mark.parametrize(
    "send",
    [
        lambda exchange, value: exchange.mix(4, Released(VALUE), value),
        lambda exchange, value: exchange.swap(4, torch.tensor([1, 0]), value),
        lambda exchange, value: exchange.average(4, value),
        lambda exchange, value: exchange.average(4, value, latest=True),
    ],
    ids=["mix", "swap", "average", "latest"],
)
@pytest.mark.parametrize("value", [VALUE, Private(VALUE)], ids=["plain", "private"])
def test_an_exchange_sends_nothing_private(exchange, send, value):
    with pytest.raises(LeakError, match="was given at step 4 is a"):
        send(exchange, value)
    assert exchange.bytes_sent.tolist() == [0, 0]


def test_the_mean_of_all_models_is_of_released_ones():
    between = exchanges()[1]
    with pytest.raises(LeakError, match="mean_of_all"):
        between.mean_of_all(Private(VALUE))


def test_an_algorithm_that_hands_over_plain_tensors_is_a_defect(monkeypatch, tmp_path):
    def pushed(state, g, k, options, context):
        return context.exchange.mix(k, state.x)

    monkeypatch.setattr(privsgp, "pushed", pushed)
    with pytest.raises(LeakError, match=r"value 0 that exchange.mix was given at step 0"):
        tacit.train(experiment())
    file = write_experiment(tmp_path)
    answer = command("train", file, "--out", tmp_path / "run")
    assert answer.code == 1
    assert "this is a defect of the algorithm, and nothing was sent" in answer.err
