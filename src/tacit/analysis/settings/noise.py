"""The noise of a plan, in the mean over its steps."""

from __future__ import annotations

import math
from dataclasses import replace

from tacit.training.plan import Plan


def unit_noise(plan: Plan) -> tuple[float, ...]:
    """Of each step, the noise deviation in the sum over a batch of a node whose scale is 1."""
    unit = replace(plan.nodes[0], noise_scale=1.0)
    return tuple(plan.release.noise_std(unit, k) for k in range(plan.steps))


def noise_variances(plan: Plan) -> tuple[float, ...]:
    """Of each node's own noise in a coordinate of its batch mean, the mean over the steps."""
    unit = math.fsum(level * level for level in unit_noise(plan)) / plan.steps
    return tuple(unit * ((node.noise_scale or 0.0) / node.divisor) ** 2 for node in plan.nodes)
