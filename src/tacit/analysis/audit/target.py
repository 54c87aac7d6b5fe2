"""What an audit attacks, and what it holds against it: the certificate, and the paper's claim."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from tacit import privacy
from tacit.analysis.audit.report import AuditOptions
from tacit.errors import InputError
from tacit.privacy import Relation
from tacit.training.plan import NodePlan, Plan

__all__ = ["Target", "choose_target"]

SMALLEST_DELTA = 1e-3  # by default: a smaller one takes more repetitions than people wait for
DELTAS = (0.02, 0.1, 0.3)  # where the certificate is put to the test as well


@dataclass(frozen=True)
class Target:
    """What is audited, and against what.

    Args:
        node: one of the most exposed nodes.
        nodes: all that share its mechanism.
        relation: of neighbouring data sets, as its mechanism states it.
        steps: that are run.
        delta: at which epsilon is stated.
        certificate: certified epsilon at this delta, which comes first, and at some others.
        claimed: epsilon by the paper's formula at this delta; None without a formula.
        confidence: of each attack.
    """

    node: NodePlan
    nodes: tuple[int, ...]
    relation: Relation
    steps: int
    delta: float
    certificate: Mapping[float, float]
    claimed: float | None
    confidence: float


def choose_target(plan: Plan, options: AuditOptions) -> Target:
    """The nodes that leak most: of the highest certified epsilon, or the least noise.

    Raises:
        InputError: the plan adds no noise or does not clip, has fewer steps than are to be run,
            or a node has but one record.
    """
    _check(plan, options)
    worst = max(plan.nodes, key=lambda node: (node.epsilon or 0.0, -node.noise_scale))
    same = [
        node.node
        for node in plan.nodes
        if (node.records, node.noise_scale) == (worst.records, worst.noise_scale)
    ]
    delta = options.delta
    if delta is None:
        delta = max(SMALLEST_DELTA, worst.delta or 0.0)
    steps = options.steps or plan.steps
    mechanism = plan.mechanism(worst, [(0, steps)])
    return Target(
        node=worst,
        nodes=tuple(same),
        relation=mechanism.relation,
        steps=steps,
        delta=delta,
        certificate={delta: privacy.epsilon(mechanism, delta=delta), **_elsewhere(mechanism)},
        claimed=plan.claimed(worst, steps, delta),
        confidence=options.confidence,
    )


def _elsewhere(mechanism: privacy.Mechanism) -> dict[float, float]:
    """Certified epsilon at `DELTAS`, as far as there is one: without, nothing is contradicted."""
    found = {}
    for at in DELTAS:
        with suppress(InputError):
            found[at] = privacy.epsilon(mechanism, delta=at)
    return found


def _check(plan: Plan, options: AuditOptions) -> None:
    if not plan.noisy:
        raise InputError("privacy.epsilon", "none", "no noise is added: there is nothing to audit")
    if plan.clip is None:
        raise InputError("algorithm.clip", None, "without a bound no epsilon holds: give a clip")
    if options.steps is not None and options.steps > plan.steps:
        raise InputError("steps", options.steps, f"the plan has {plan.steps}")
    if min(node.records for node in plan.nodes) < 2:
        raise InputError("nodes", 1, "every node needs two records or more to be audited")
