"""Experiments with `privsgp-vr`, a context to run its steps in, and other accountants."""

from __future__ import annotations

from typing import Any

from dp_accounting.pld import PLDAccountant

from tacit.communication.exchange import InProcessExchange
from tacit.training.budget import node_keys
from tacit.training.stacked_context import StackedContext

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


def context_of(job):
    exchange = InProcessExchange(job.plan.mixing.weights, dtype=job.dtype, device=job.device)
    return StackedContext(job.plan, job.model, job.train, node_keys(job.plan), exchange)


def least_epsilon(delta_at, delta):
    low, high = 0.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high


def pld(*events, delta=1e-4):
    accountant = PLDAccountant(value_discretization_interval=3e-3)
    for event, count in events:
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))
