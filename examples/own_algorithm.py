"""Add an algorithm of your own to the table, and run it like any other.

    python examples/own_algorithm.py

Normalised gossip: gossip SGD with steps of fixed length (an example, of no paper).

An algorithm is a pure pair, `start` and `step`, over an explicit state. Clipping, noise, batches
and messages are the context's. Whatever a step makes of the *noised* gradient is post-processing,
so that the mechanism, and with it the certified epsilon, are those of any noised sum.
CONTRIBUTING.md says what a published algorithm needs beside its file.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

from sklearn.datasets import load_digits
from torch import Tensor

import tacit
from tacit.algorithms import ALGORITHMS, Algorithm, Options, StepContext
from tacit.algorithms.options import step_size
from tacit.algorithms.parts import noised_gradient
from tacit.communication.colours import Released


class State(NamedTuple):
    """x `[nodes, d]`, the model of every node."""

    x: Tensor


def start(x: Tensor, options: Options, context: StepContext) -> State:
    """Every node begins at the same model."""
    return State(x)


def step(state: State, k: int, options: Options, context: StepContext) -> State:
    """Average with the neighbours, and go a way of fixed length along the own noised gradient."""
    gradient = noised_gradient(state.x, k, context)
    direction = gradient / gradient.norm(dim=1, keepdim=True).clamp_min(1e-12)
    (mixed,) = context.exchange.mix(k, Released(state.x))
    return State(mixed.sub_(direction, alpha=step_size(options, k, context.steps)))


NORMALISED_GOSSIP = Algorithm(
    name="normalised-gossip",
    title="Normalised gossip",
    documentation=__doc__,
    options=Options,
    start=start,
    step=step,
)


def main() -> None:
    """Train with it on the digits, four nodes on a ring."""
    # The table is only read from here on; a row that is added first is one like the others.
    cast("dict[str, Any]", ALGORITHMS)[NORMALISED_GOSSIP.name] = NORMALISED_GOSSIP

    images, labels = load_digits(return_X_y=True)
    images = images / 16
    result = tacit.train(
        {
            "task": {"model": "logistic", "outputs": 10},
            "algorithm": {
                "name": "normalised-gossip",
                "learning_rate": 0.3,
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
