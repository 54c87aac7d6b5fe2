"""The epsilon that weaker noise would allow, and from which a test of fidelity finds it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tacit import privacy
from tacit.analysis.audit.fidelity.finding import Finding
from tacit.errors import InputError
from tacit.training.plan import NodePlan, Plan


def epsilon_of_weaker_noise(
    plan: Plan, node: NodePlan, steps: int, *, factor: float, delta: float
) -> float:
    """Epsilon of a node's first steps if all of its noise were smaller than planned.

    It is certified as that of the plan is, for the same mechanism with another noise, and so
    rounded up; infinite where nothing is certified.

    Args:
        plan: of the experiment.
        node: one of its nodes, which adds noise.
        steps: how many of them.
        factor: of the noise's standard deviation.
        delta: at which epsilon is stated.
    """
    if factor <= 0:
        return math.inf
    weaker = replace(node, noise_scale=node.noise_scale * factor)
    try:
        return privacy.epsilon(plan.release.mechanism(weaker, [(0, steps)]), delta=delta)
    except InputError:  # no certificate is finite
        return math.inf


def smallest_excess(
    findings: Sequence[Finding], plan: Plan, node: NodePlan, steps: int, *, delta: float
) -> float | None:
    """The epsilon from which weaker noise is found with the chance `fidelity.finding.POWER`.

    Of all tests that state such a defect, the one that finds the smallest counts: another test
    need not find it, since one that fails is enough.

    Args:
        findings: of the tests that were made.
        plan: of the experiment.
        node: the most exposed node.
        steps: that were audited.
        delta: at which epsilon is stated.

    Returns:
        None if no test states how much weaker the noise may be.
    """
    factors = [finding.noise_factor for finding in findings if finding.noise_factor is not None]
    if not factors:
        return None
    return epsilon_of_weaker_noise(plan, node, steps, factor=max(factors), delta=delta)
