"""Noised local steps: noised gradients from the model that came; a server averages (unpublished).

What `tacit.hosts.flower.private_mod` makes in place of a client's `fit`. Of every Q = `local_steps`
steps the first takes the server's model: x becomes the mean of what clients have, and then

    x <- x - learning_rate g,    g = (sum over the batch of clipped gradients + noise) / (q J).

Mechanism: one noised sum a step, at a model made of earlier ones and of what came from outside,
which may be anything; messages are models, functions of those sums. Trust model: the server sees
each client's model.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Field
from torch import Tensor

from tacit.algorithms import Algorithm, Options, StepContext
from tacit.algorithms.facets import GraphNeeds
from tacit.algorithms.options import step_size
from tacit.algorithms.parts import noised_gradient
from tacit.communication.colours import Released


class LocalStepOptions(Options):
    """How many steps a client makes from each model of the server."""

    local_steps: Annotated[int, Field(ge=1)] = 1


class State(NamedTuple):
    """Each client's model x, `[nodes, d]`."""

    x: Tensor


def start(x: Tensor, options: LocalStepOptions, context: StepContext) -> State:
    """Every client begins at the same model."""
    return State(x)


def step(state: State, k: int, options: LocalStepOptions, context: StepContext) -> State:
    """One local step; the first of a round starts from the server's model."""
    x = state.x
    if k % options.local_steps == 0:
        (x,) = context.exchange.average(k, Released(x))
    gradient = noised_gradient(x.expand_as(state.x), k, context)
    return State(x.sub(gradient, alpha=step_size(options, k, context.steps)))


ROW = Algorithm(
    name="noised-local-steps",
    title="Noised local steps",
    documentation=__doc__,
    options=LocalStepOptions,
    start=start,
    step=step,
    graph=GraphNeeds(weights="server"),
)
