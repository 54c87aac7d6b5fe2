"""Small experiments for tests of optimised plans, quick because every record joins every step."""

from experiments import experiment
from tacit.config import load_config

CONSTANTS = {"L": 2.0, "b2": 0.1, "F0": 2.0, "x0": 1.0}
"""Given by hand, so that no record is read."""


def config_of(*, overrides=(), count=None, **sections):
    """The digits with logistic regression on four nodes, with a budget of (1, 1e-4) each.

    `count` is the number of nodes whose data are passed as objects.
    """
    privacy = {
        "noise_std": None,
        "noise_seed": None,
        "epsilon": 1.0,
        "delta": 1e-4,
        **sections.pop("privacy", {}),
    }
    return load_config(experiment(privacy=privacy, **sections), overrides=overrides, count=count)


def numerator(constants=CONSTANTS):
    """13 F0 + 6 L x0 + 18 L b2."""
    smooth = constants["L"]
    return 13 * constants["F0"] + 6 * smooth * constants["x0"] + 18 * smooth * constants["b2"]


def bound_of(variances, steps, parameters, smoothness=2.0):
    """Theorem 1, written out."""
    nodes = len(variances)
    noise = 24 * smoothness * (parameters / nodes) * sum(variances)
    return float((numerator() + noise) / (nodes * steps) ** 0.5)


def words(plan):
    """All advice in one line."""
    return " ".join(plan.advice)
