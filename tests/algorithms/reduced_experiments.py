"""Experiments with `privsgp-vr`."""

from __future__ import annotations

from typing import Any

STEPS, RATE, CLIP = 7, 0.3, 0.4
PRIVATE = {"state": "private"}


def experiment(options, **sections):
    made: dict[str, dict[str, Any]] = {
        "task": {"loss": "logistic"},
        "topology": {"graph": "exponential"},
        "algorithm": {"name": "privsgp-vr", "learning_rate": RATE, **options},
        "privacy": {"epsilon": "none"},
        "train": {"steps": STEPS, "batch": 2, "dtype": "float64", "seed": 3},
    }
    for name, keys in sections.items():
        made[name] = keys if name == "privacy" else {**made[name], **keys}  # type: ignore[assignment]
    return made


def least_epsilon(delta_at, delta):
    low, high = 0.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high
