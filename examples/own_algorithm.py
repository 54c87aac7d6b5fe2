"""Add an algorithm of your own to the table, and run it like any other.

    python examples/own_algorithm.py

Gradient tracking: gossip along a running estimate of the mean of all gradients (Nedic, Olshevsky
and Shi, SIAM Journal on Optimization 2017).

| paper, equation (2)        | here                                          |
|----------------------------|-----------------------------------------------|
| x(k), y(k)                 | `State.x`, `tracker` of the next state        |
| gradient of f at x(k)      | `gradient`: clipped, noised, of a batch       |
| W(k), alpha                | `context.exchange.mix`, `step_size`           |

An algorithm is a pure pair, `start` and `step`, over an explicit state. Clipping, noise, batches
and messages are the context's. Whatever a step makes of the *noised* gradient is post-processing,
so that the mechanism, and with it the certified epsilon, are those of any noised sum: the row asks
for nothing there, and says only that a message holds two vectors. This file is all that there is.
CONTRIBUTING.md says what a published algorithm needs beside its file.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

from sklearn.datasets import load_digits
from torch import Tensor, zeros_like

import tacit
from tacit.algorithms import ALGORITHMS, Algorithm, Options, StepContext
from tacit.algorithms.facets import GraphNeeds
from tacit.algorithms.options import step_size
from tacit.algorithms.parts import noised_gradient
from tacit.communication.colours import Released


class State(NamedTuple):
    """Models x, what was last made of the trackers, and the last noised gradients, `[nodes, d]`."""

    x: Tensor
    tracker: Tensor
    gradient: Tensor


def start(x: Tensor, options: Options, context: StepContext) -> State:
    """Every node begins at the same model, and has tracked nothing."""
    return State(x, zeros_like(x), zeros_like(x))


def step(state: State, k: int, options: Options, context: StepContext) -> State:
    """y(k) = W y(k-1) + g(k) - g(k-1) and x(k+1) = W x(k) - alpha y(k).

    At every step the trackers' mean over nodes is that of the nodes' gradients.
    """
    gradient = noised_gradient(state.x, k, context)
    x, tracker = context.exchange.mix(k, Released(state.x), Released(state.tracker))
    tracker = tracker + gradient - state.gradient
    return State(x - step_size(options, k, context.steps) * tracker, tracker, gradient)


GRADIENT_TRACKING = Algorithm(
    name="gradient-tracking",
    title="Gradient tracking",
    documentation=__doc__,
    options=Options,
    start=start,
    step=step,
    graph=GraphNeeds(message_numbers=lambda options, parameters: 2 * parameters),
)


def main() -> None:
    """Train with it on the digits, four nodes on a ring."""
    # The table is only read from here on; a row that is added first is one like the others.
    cast("dict[str, Any]", ALGORITHMS)[GRADIENT_TRACKING.name] = GRADIENT_TRACKING

    images, labels = load_digits(return_X_y=True)
    images = images / 16
    result = tacit.train(
        {
            "task": {"model": "logistic", "outputs": 10},
            "algorithm": {
                "name": "gradient-tracking",
                "learning_rate": 0.6,
                "learning_rate_schedule": "linear",
                "clip": 0.5,
            },
            "privacy": {"epsilon": 3.0, "delta": 1e-4},
            "train": {"steps": 60, "batch": "all"},
        },
        nodes=[(images[node:1500:4], labels[node:1500:4]) for node in range(4)],
        test=(images[1500:], labels[1500:]),
    )

    assert result.test_accuracy is not None
    print(f"{result.plan.config.algorithm.definition.title}: {result.steps} steps")
    epsilon = max(value or 0.0 for value in result.epsilon)
    print(f"certified epsilon, most: {math.ceil(100 * epsilon) / 100:.2f} of 3")
    print(f"test accuracy, consensus model: {result.test_accuracy['consensus']:.1%}")


if __name__ == "__main__":
    main()
