"""Steps of one's own that write into their state, or keep something outside of it."""

import sys
from dataclasses import replace
from pathlib import Path

import torch

from tacit.communication.colours import Released

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import own_algorithm

calls = []


def in_place(state, k, options, context):
    """The same step, which writes into its state and gives that back."""
    for value, new in zip(state, own_algorithm.step(state, k, options, context), strict=True):
        value.copy_(new)
    return state


def fickle(state, k, options, context):
    """Asks for a bare sum, which it forgets, and for noise when it is made again."""
    calls.append(k)
    x = state.x.clone()
    if len(calls) % 2:
        context.batch_gradient(x, k)
    else:
        x += context.add_noise(torch.zeros_like(x), k)
    (x,) = context.exchange.mix(k, Released(x))
    return state._replace(x=x)


IN_PLACE = replace(own_algorithm.ROW, step=in_place)
FICKLE = replace(own_algorithm.ROW, step=fickle)
