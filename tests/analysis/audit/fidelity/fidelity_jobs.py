"""Small jobs of every private algorithm, on records that were drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from algorithms.battery_table import ROWS
from tacit.algorithms import ALGORITHMS
from tacit.config import load_config
from tacit.training.prepare import prepare

STEPS, SIZES, CLASSES = 3, (7, 5, 6, 8), 3
PRIVATE = [case for case, row in ROWS.items() if ALGORITHMS[row.name].private]
UNDER_REPLACEMENT = [  # sampled Laplace noise is accounted under add-or-remove-one alone
    case for case in PRIVATE if ALGORITHMS[ROWS[case].name].releases.noise.norm == "l2"
]
FIXED: Mapping[str, Any] = {
    "train": {"sampling": "fixed"},
    "privacy": {"relation": "replace-one"},
}
_SCHEDULES: Mapping[str, Any] = {
    "clip_decay": 3.0,
    "budget_growth": 4.0,
    "clip_schedule": [2.0 / (1 + k) for k in range(STEPS)],
    "noise_schedule": [1.0 + k % 3 for k in range(STEPS)],
}


def records(seed, size, width=6):
    """Numbers and labels."""
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, width, generator=draw)
    return inputs, torch.randint(CLASSES, (size,), generator=draw)


def nodes():
    """Of four nodes."""
    return [records(node, size) for node, size in enumerate(SIZES)]


def config_of(case, **sections):
    """The settings of a row of the battery's table, so that all of its state matters."""
    row = ROWS[case]
    fields = ALGORITHMS[row.name].options.model_fields
    schedules = {key: value for key, value in _SCHEDULES.items() if key in fields}
    options = {**schedules, **row.options, **row.resumed}
    given: dict[str, dict[str, Any]] = {
        "task": {"model": "logistic", "outputs": CLASSES},
        "algorithm": {"name": row.name, "learning_rate": 0.1, **options},
        "privacy": {"noise_std": 5.0, "delta": 1e-3},
        "train": {"steps": STEPS, "batch": 2},
    }
    merged = {key: {**given.get(key, {}), **sections.get(key, {})} for key in {*given, *sections}}
    return load_config(merged, count=len(SIZES))


def job_of(case, **sections):
    """The job of such settings."""
    return prepare(config_of(case, **sections), nodes=nodes())
