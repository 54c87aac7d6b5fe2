"""Push-sum tracking: private gradient tracking on directed graphs (Nedic, Olshevsky, Shi, 2017).

    python examples/own_algorithm.py

An algorithm of your own is one file, and an experiment names it: `algorithm.name =
"own_algorithm:ROW"`, where this folder is the current one. All else is as for those that are there.

| paper (Push-DIGing), n nodes   | here                                         |
|--------------------------------|----------------------------------------------|
| u(k), v(k), x(k) = u(k) / v(k) | `State.x`, `w`, and `de_biased` of them      |
| y(k), tracks the mean gradient | `State.tracker`, from what neighbours sent   |
| gradient of f at x(k)          | `gradient`: clipped, noised, of a batch      |
| C(k), alpha                    | `context.exchange.mix`, `step_size`          |

It is a pure pair, `start` and `step`, over an explicit state. Clipping, noise, batches and messages
are the context's. Whatever a step makes of the *noised* gradient is post-processing: whoever sees
all messages sees each noised sum and nothing else of the records, which the row says as
`SEEN_SUMS`. Plan, accountant and audit read that, and `tacit plan --recommend` reads `steps_along`.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

from pydantic import Field
from sklearn.datasets import load_digits
from torch import Tensor, zeros_like

import tacit
from tacit.algorithms import Algorithm, Options, StepContext
from tacit.algorithms.facets import SEEN_SUMS, GraphNeeds
from tacit.algorithms.options import step_size
from tacit.algorithms.parts import noised_gradient
from tacit.communication.colours import Public, Released


class TrackingOptions(Options):
    """Its own option beside those of all: rounds of gossip alone after the last step."""

    final_mixing: Annotated[int, Field(ge=0, le=1000)] = 0


class State(NamedTuple):
    """x `[nodes, d]`, push-sum weights w `[nodes]`; tracker and last gradient, `[nodes, d]`."""

    x: Tensor
    w: Tensor
    tracker: Tensor
    gradient: Tensor


def start(x: Tensor, options: TrackingOptions, context: StepContext) -> State:
    """Every node begins at the same model, of weight 1, and has tracked nothing."""
    return State(x, x.new_ones(len(x)), zeros_like(x), zeros_like(x))


def de_biased(state: State) -> Tensor:
    """The nodes' models x / w, `[nodes, d]`."""
    return state.x / state.w[:, None]


def step(state: State, k: int, options: TrackingOptions, context: StepContext) -> State:
    """Of y = tracker + g(k) - g(k-1) the mean is that of all g(k); x - alpha y, y, w are mixed."""
    gradient = noised_gradient(de_biased(state), k, context)
    y = state.tracker + gradient - state.gradient
    moved = state.x - step_size(options, k, context.steps) * y
    x, tracker, w = context.exchange.mix(k, Released(moved), Released(y), Public(state.w))
    return State(x, w, tracker, gradient)


def mix(state: State, k: int, options: TrackingOptions, context: StepContext, extra: int) -> State:
    """One round of push-sum alone."""
    x, w = context.exchange.mix(k, Released(state.x), Public(state.w), extra=extra)
    return state._replace(x=x, w=w)


ROW = Algorithm(
    name="push-sum-tracking",
    title="Push-sum tracking",
    documentation=__doc__,
    options=TrackingOptions,
    start=start,
    step=step,
    models=de_biased,
    steps_along="push-sum steps along a tracked mean of noised gradients, over any graph",
    graph=GraphNeeds(
        weights="column-stochastic",
        gossip=mix,
        final_rounds=lambda options: options.final_mixing,
        message_numbers=lambda options, parameters: 2 * parameters + 1,
    ),
    releases=SEEN_SUMS,
)


def main() -> None:
    """Train with it, and with a method without trackers, on digits sorted by label."""
    images, labels = load_digits(return_X_y=True)
    images = images / 16
    order = labels[:1500].argsort(kind="stable")
    parts = [order[375 * node : 375 * (node + 1)] for node in range(4)]
    for name in ("own_algorithm:ROW", "privsgp"):
        result = tacit.train(
            {
                "task": {"model": "logistic", "outputs": 10},
                "algorithm": {"name": name, "learning_rate": 0.6, "clip": 0.5, "final_mixing": 0},
                "privacy": {"epsilon": 3.0, "delta": 1e-4},
                "train": {"steps": 60, "batch": "all"},
            },
            nodes=[(images[part], labels[part]) for part in parts],
            test=(images[1500:], labels[1500:]),
        )
        assert result.test_accuracy is not None
        print(f"{result.plan.config.algorithm.definition.title}: {result.steps} steps")
        epsilon = max(value or 0.0 for value in result.epsilon)
        print(f"certified epsilon, most: {math.ceil(100 * epsilon) / 100:.2f} of 3")
        print(f"test accuracy of the worst node: {result.test_accuracy['worst']:.1%}")


if __name__ == "__main__":
    main()
