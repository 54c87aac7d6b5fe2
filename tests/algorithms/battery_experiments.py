"""Experiments for every algorithm of the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit.algorithms import ALGORITHMS

GRAPH = {"column-stochastic": "exponential", "doubly-stochastic": "ring"}
PRIVATE = [name for name, row in ALGORITHMS.items() if row.private]
DELTA = 1e-5
DECAY, GROWTH = 3.0, 4.0


def levels(steps: int) -> list[float]:
    """An uneven noise schedule for the general form."""
    return [1.0 + k % 3 for k in range(steps)]


def bounds(steps: int) -> list[float]:
    """An uneven clipping schedule for the general form."""
    return [2.0 / (1 + k) for k in range(steps)]


def schedule_options(name: str, steps: int) -> dict[str, Any]:
    """Schedules that vary, for the methods that have any."""
    known = {
        "clip_decay": DECAY,
        "budget_growth": GROWTH,
        "clip_schedule": bounds(steps),
        "noise_schedule": levels(steps),
    }
    return {key: known[key] for key in ALGORITHMS[name].options.model_fields if key in known}


def experiment(
    name: str,
    *,
    loss: str = "cross-entropy",
    model: str = "logistic",
    steps: int = 3,
    batch: int | str = "all",
    dtype: str = "float64",
    sampling: str = "poisson",
    graph: str | None = None,
    options: Mapping[str, Any] | None = None,
    privacy: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    given = {"epsilon": 3.0, "delta": DELTA, "noise_seed": 1} if privacy is None else privacy
    return {
        "task": {"loss": loss, "model": model},
        "topology": {"graph": graph or GRAPH[ALGORITHMS[name].weights]},
        "algorithm": {"name": name, "learning_rate": 0.1, **(options or {})},
        "privacy": given if ALGORITHMS[name].private else {},
        "train": {
            "steps": steps,
            "batch": batch,
            "dtype": dtype,
            "sampling": sampling,
            "evaluate_every": steps,
        },
    }
