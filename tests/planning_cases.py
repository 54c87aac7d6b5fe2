"""Plans of small experiments, and the closed form of the Gaussian mechanism, for tests of plans."""

import math

from scipy.optimize import brentq
from scipy.stats import norm

from tacit.config import load_config
from tacit.training.planner import build_plan

DELTA = 1e-4
STEPS = 6


def config_of(nodes, *, algorithm=None, topology=None, train=None, faults=None, **settings):
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


def plan_of(records, *, parameters=10, **settings):
    return build_plan(config_of(len(records), **settings), records, parameters)


def epsilons(plan):
    found = [node.epsilon for node in plan.nodes]
    assert None not in found
    return [value for value in found if value is not None]


def gaussian_delta(mu, epsilon):
    """Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)."""
    below = norm.cdf(-epsilon / mu - mu / 2)
    return float(norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * below)


def gaussian_mu(epsilon, delta):
    return float(brentq(lambda mu: gaussian_delta(mu, epsilon) - delta, 1e-3, 50.0))
