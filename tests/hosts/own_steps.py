"""Steps of one's own that write into their state, or keep something outside of it."""

import runpy
from dataclasses import replace
from pathlib import Path

import torch

from tacit.communication.colours import Released

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_algorithm.py"
# Not imported: other tests ask who finds a module of that name.
ROW = runpy.run_path(str(EXAMPLE))["ROW"]

calls = []


def in_place(state, k, options, context):
    """The same step, which writes into its state and gives that back."""
    for value, new in zip(state, ROW.step(state, k, options, context), strict=True):
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


IN_PLACE = replace(ROW, step=in_place)
FICKLE = replace(ROW, step=fickle)
