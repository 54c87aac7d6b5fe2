"""Plans of small experiments, and the closed form of the Gaussian mechanism, for tests of plans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from scipy.optimize import brentq
from scipy.stats import norm

from tacit.config import Config, load_config
from tacit.training.plan import Plan
from tacit.training.planner import build_plan

DELTA = 1e-4
STEPS = 6


def config_of(
    nodes: int,
    *,
    algorithm: dict[str, Any] | None = None,
    topology: dict[str, Any] | None = None,
    train: dict[str, Any] | None = None,
    faults: dict[str, Any] | None = None,
    **settings: Any,
) -> Config:
    return load_config(
        {
            "topology": topology or {"graph": "exponential"},
            "algorithm": {"name": "privsgp", **(algorithm or {})},
            "privacy": {"delta": DELTA, **settings},
            "train": {"steps": STEPS, "batch": "all", **(train or {})},
            "faults": faults or {},
        },
        count=nodes,
    )


def plan_of(records: Sequence[int], *, parameters: int = 10, **settings: Any) -> Plan:
    return build_plan(config_of(len(records), **settings), records, parameters)


def epsilons(plan: Plan) -> list[float]:
    found = [node.epsilon for node in plan.nodes]
    assert None not in found
    return [value for value in found if value is not None]


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)."""
    below = norm.cdf(-epsilon / mu - mu / 2)
    return float(norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * below)


def gaussian_mu(epsilon: float, delta: float) -> float:
    return float(brentq(lambda mu: gaussian_delta(mu, epsilon) - delta, 1e-3, 50.0))
