"""What would buy what: one more node, twice the records, half the epsilon, steps, batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tacit.analysis.optimise.bound import BoundConstants, convergence_bound
from tacit.analysis.optimise.noise import OptimiseSetting, adapted, changed, setting_of
from tacit.training.plan import Plan
from tacit.training.planner import build_plan

__all__ = ["Sensitivity", "sensitivity_analysis"]


@dataclass(frozen=True)
class Sensitivity:
    """A change of the experiment, all else equal, and what it gives.

    Args:
        change: in words.
        setting: the changed run with its certified noise.
        bound: Theorem 1 for it, at its own number of steps.
    """

    change: str
    setting: OptimiseSetting
    bound: float


def sensitivity_analysis(
    plan: Plan, own: OptimiseSetting, constants: BoundConstants
) -> tuple[Sensitivity, ...]:
    """The experiment as it stands and changed in one thing at a time.

    The constants are kept, which is the simplest assumption: a new node is like the average one,
    new records are like the old.

    Args:
        plan: of the experiment, calibrated.
        own: its setting.
        constants: of the bound.
    """
    return tuple(
        Sensitivity(change, setting, convergence_bound(constants, setting.variances, setting.steps))
        for change, setting in _changes(plan, own)
    )


def _changes(plan: Plan, own: OptimiseSetting) -> Iterator[tuple[str, OptimiseSetting]]:
    config, parameters = plan.config, plan.parameters
    records = [node.records for node in plan.nodes]
    yield "as it stands", own
    yield "one more node", _one_more_node(own)
    twice = build_plan(config, [2 * count for count in records], parameters)
    yield "twice the records", setting_of(twice)
    halves = tuple(epsilon / 2 for epsilon in config.per_node(_given(config.privacy.budget)))
    half = changed(config, privacy={"epsilon": halves})
    yield "half the epsilon", setting_of(build_plan(half, records, parameters))
    yield "twice the steps", adapted(config, records, parameters, 2 * own.steps, own.batch)
    if own.batch != "all" and own.batch < max(records):
        larger = min(4 * own.batch, max(records))
        words = "four times the batch" if larger == 4 * own.batch else "every record a step"
        yield words, adapted(config, records, parameters, own.steps, larger)


def _given(epsilon: float | tuple[float, ...] | None) -> float | tuple[float, ...]:
    assert epsilon is not None  # a plan without a budget gets no advice
    return epsilon


def _one_more_node(own: OptimiseSetting) -> OptimiseSetting:
    """With a node whose noise is the others' average: nobody else's noise changes."""
    nodes = len(own.variances)
    variances = (*own.variances, math.fsum(own.variances) / nodes)
    return replace(
        own,
        variances=variances,
        accumulated=own.accumulated * math.sqrt(nodes / (nodes + 1)),
        floor=own.floor * math.sqrt(nodes / (nodes + 1)),
    )
