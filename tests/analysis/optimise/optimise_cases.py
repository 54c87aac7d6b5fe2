"""Small experiments for tests of optimised plans, quick because every record joins every step."""

from __future__ import annotations

from typing import Any

from experiments import experiment
from tacit.config import Config, load_config
from tacit.report.documents.plan import OptimiseDocument

CONSTANTS = {"L": 2.0, "b2": 0.1, "F0": 2.0, "x0": 1.0}
"""Given by hand, so that no record is read."""


def config_of(
    *, overrides: tuple[str, ...] = (), count: int | None = None, **sections: dict[str, Any]
) -> Config:
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


def numerator(constants: dict[str, float] = CONSTANTS) -> float:
    """13 F0 + 6 L x0 + 18 L b2."""
    smooth = constants["L"]
    return 13 * constants["F0"] + 6 * smooth * constants["x0"] + 18 * smooth * constants["b2"]


def bound_of(
    variances: tuple[float, ...], steps: float, parameters: int, smoothness: float = 2.0
) -> float:
    """Theorem 1, written out."""
    nodes = len(variances)
    noise = 24 * smoothness * (parameters / nodes) * sum(variances)
    return float((numerator() + noise) / (nodes * steps) ** 0.5)


def words(plan: OptimiseDocument) -> str:
    """All advice in one line."""
    return " ".join(plan.advice)
