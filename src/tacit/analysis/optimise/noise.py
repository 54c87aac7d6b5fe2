"""The noise that a budget really needs, for any number of steps and any batch: sparsely calibrated.

Each point is a plan of its own (`build_plan`), so that what is minimised is the mechanism that
would run: its sampler, relation, schedules and every node's own budget. Points are few; between
them the logarithm of the noise is interpolated in that of the steps, to find where the next point
is worth its cost. What is reported is always a calibrated point, never an interpolated one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.interpolate import PchipInterpolator

from tacit import privacy
from tacit.analysis.promise import noise_variances
from tacit.config import Config
from tacit.training.plan import Plan
from tacit.training.planner import build_plan
from tacit.training.release import NodePlan

Batch = int | Literal["all"]


@dataclass(frozen=True)
class OptimiseSetting:
    """A run of K steps, and the certified noise that its nodes' budgets need.

    `batch` is the expected records of a step, or `all`, and `clip` the clipping bound at the first
    step. `noise_multiplier` is the root mean square over nodes and steps of noise standard
    deviation over the clipping bound, for the sum over a batch; `variances` `[nodes]` are the noise
    variance of one coordinate of the batch mean, mean over steps. `accumulated` is the noise
    standard deviation in the mean over nodes and steps, and `floor` the least that these budgets
    allow (`least_noise`). `record_gradients` are the expected gradients of a record that a node
    computes in all, the most.
    """

    steps: int
    batch: Batch
    clip: float
    noise_multiplier: float
    variances: tuple[float, ...]
    accumulated: float
    floor: float
    record_gradients: float

    @property
    def noise_std(self) -> float:
        """Root mean square over the nodes of the noise in one coordinate of the batch mean."""
        return math.sqrt(math.fsum(self.variances) / len(self.variances))

    @property
    def waste(self) -> float:
        """Accumulated noise over the least that the budgets allow: at least about 1."""
        return self.accumulated / self.floor

    def scaled(self, clip: float) -> OptimiseSetting:
        """The same with another clipping bound: the multiplier stays, the noise follows it."""
        factor = clip / self.clip
        return replace(
            self,
            clip=clip,
            variances=tuple(variance * factor**2 for variance in self.variances),
            accumulated=self.accumulated * factor,
            floor=self.floor * factor,
        )


def adapted(
    config: Config, records: Sequence[int], parameters: int, steps: int, batch: Batch
) -> OptimiseSetting:
    """The setting of an experiment, with a budget for every node, in other steps and batches.

    Raises:
        InputError: the experiment cannot run like that.
        BudgetError: no noise meets a budget.
    """
    changed = config.with_keys(train={"steps": steps, "batch": batch})
    return setting_of(build_plan(changed, records, parameters))


def setting_of(plan: Plan) -> OptimiseSetting:
    """What a calibrated plan says of its noise."""
    unit, variances = replace(plan.nodes[0], noise_scale=1.0), noise_variances(plan)
    clip = plan.release.clip.bounds or (1.0,) * plan.steps
    shapes = [plan.release.noise_multiplier(unit, k) for k in range(plan.steps)]
    shape = math.fsum(value * value for value in shapes) / plan.steps
    scales = math.fsum(node.noise_scale**2 for node in plan.nodes) / len(plan.nodes)
    return OptimiseSetting(
        steps=plan.steps,
        batch=plan.config.train.settled_batch,
        clip=clip[0],
        noise_multiplier=math.sqrt(scales * shape),
        variances=variances,
        accumulated=math.sqrt(math.fsum(variances) / plan.steps) / len(variances),
        floor=least_noise(plan.nodes, math.fsum(clip) / plan.steps, plan.config.privacy.relation),
        record_gradients=plan.steps * max(node.expected_batch for node in plan.nodes),
    )


def least_noise(nodes: Sequence[NodePlan], clip: float, relation: privacy.Relation) -> float:
    """The least noise standard deviation that budgets allow in the mean over nodes and steps.

    Every node noises for itself and every message is seen. Then node i's contribution to that mean
    is at best its mean clipped gradient over all its records, released once by a Gaussian:
    s C n p_i / (mu_i J_i), whatever K is, with s the sensitivity's factor of the relation (1, or 2
    under replace-one), C the mean clipping bound and n p_i its weight; with every record at every
    step it is attained.
    """
    units = {
        (node.budget, node.delta): privacy.calibrate(
            lambda scale: privacy.Gaussian(scale, 1, relation=relation),
            epsilon=node.budget or 0.0,
            delta=node.delta or 0.0,
        )
        for node in nodes
    }
    squares = (
        (clip * units[node.budget, node.delta] * node.weight / node.records) ** 2
        for node in nodes
        if node.records
    )
    return math.sqrt(math.fsum(squares)) / len(nodes)


def geometric_steps(low: float, high: float, points: int) -> list[int]:
    """About `points` whole numbers from low to high, evenly spaced in the logarithm."""
    raw = np.geomspace(max(1.0, low), max(1.0, high), points)
    return sorted({max(1, round(float(value))) for value in raw})


def interpolated_deviation(
    settings: Sequence[OptimiseSetting],
) -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """The noise in the batch mean as a function of K between calibrated settings of one batch.

    Monotone cubic in the logarithms; only to choose the next K to calibrate at.
    """
    ordered = sorted(settings, key=lambda setting: setting.steps)
    xs = np.log([setting.steps for setting in ordered])
    ys = np.log([setting.noise_std for setting in ordered])
    if len(xs) == 1:
        return lambda steps: np.full(len(steps), math.exp(ys[0]))
    curve = PchipInterpolator(xs, ys)
    return lambda steps: np.asarray(np.exp(curve(np.log(steps))))
