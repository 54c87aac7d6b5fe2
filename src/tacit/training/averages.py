"""Averages of iterates: of each node's models over the steps, which become the run's models.

| `[train] average` | the average after step k of K |
|---|---|
| `tail:SHARE` | mean of the models after each of the last ceil(SHARE K) steps, as far as made |
| `exponential:DECAY` | a_k = DECAY a_{k-1} + (1 - DECAY) z_k, a_{-1} = 0, over 1 - DECAY^(k+1) |

Tail averages are those of Rakhlin, Shamir and Sridharan (*Making Gradient Descent Optimal for
Strongly Convex Stochastic Optimization*, ICML 2012: the suffix average), exponential ones those of
De, Berrada, Hayes, Smith and Balle (*Unlocking High-Accuracy Differentially Private Image
Classification through Scale*, 2022), divided by what their weights sum to, as in Adam.

*Mechanism.* None of their own. A node's average is a fixed function of its own models, and what an
observer may learn from a run is not more: averages of models that are functions of what was
released are too, and messages made of them afterwards (`GraphNeeds.restart`); averages of models
that are a node's own stay that. Proof: `docs/proofs/post-processing.md`.

*Arithmetic.* Both are one rule, a += weight (z - a) in float64, with a weight that depends on the
number of the step alone: a difference of equal numbers is exactly 0, so that the average of equal
models is that model, and each step rounds by a few units of float64 and no more.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tacit.config.values import average_rule
from tacit.training.plan import Plan
from tacit.training.rounds import final_rounds


class Averages(NamedTuple):
    """What the averages of a run have come to, in float64.

    Args:
        models: of this process's nodes, `[nodes, d]`, or `[1, d]` where all have the same.
        common: the common model's, `[d]`, where that is no mean of the nodes' models; else `[0]`.
    """

    models: Tensor
    common: Tensor


def step_weight(average: str, k: int, steps: int) -> float | None:
    """What the models after step k of K count for in the average so far, in (0, 1]; or None."""
    kind, share = average_rule(average)
    if kind == "none":
        return None
    if kind == "tail":
        made = k - (steps - math.ceil(share * steps)) + 1
        return 1 / made if made > 0 else None
    if k == 0:
        return 1.0
    decay = float(share)
    return min(1.0, (1 - decay) / -math.expm1((k + 1) * math.log(decay)))


def with_models(
    averages: Averages | None, models: Tensor, common: Tensor, weight: float
) -> Averages:
    """The averages with the models after one more step, which then have this `weight`, in place.

    Models are as in `Averages`, in the run's dtype. Before the first ones `averages` is None.
    """
    if averages is None:
        return Averages(models.to(torch.float64, copy=True), common.to(torch.float64, copy=True))
    for old, new in zip(averages, (models, common), strict=True):
        # Operation by operation, none of them fused: the same bits for a row in any stack.
        old += (new.double() - old).mul_(weight)
    return averages


def average_note(plan: Plan) -> str | None:
    """Which models a run's result are, one line for its plan; None: the last ones."""
    config = plan.config
    kind, share = average_rule(config.train.average)
    if kind == "none":
        return None
    mixed = " and then mixed" if final_rounds(plan) else ""
    if kind == "exponential":
        return (
            "scores and saved models are of exponential averages: each node's models, of which the "
            f"one after a step counts {float(share):g} times as much as the next{mixed}"
        )
    count = math.ceil(share * plan.steps)
    first = plan.steps - count + 1
    return (
        f"scores and saved models are of averages: each node's models after the last {count} of "
        f"{plan.steps} steps, with equal weights{mixed}"
        + (f"; scores before step {first} are of single models" if first > 1 else "")
    )
