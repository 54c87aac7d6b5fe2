"""Train one model across parties who share no data, and say truthfully what was leaked."""

from __future__ import annotations

import os
from importlib import import_module

import tacit_dp.alone  # noqa: F401
from tacit.base.version import __version__

TYPE_CHECKING = False  # for type checkers: true; to load `typing` takes as long as all else here

if os.environ.get("WORLD_SIZE"):
    # A store that is lost makes torch print stack traces; we say it in one line. Torch reads this
    # when it is loaded.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")

if TYPE_CHECKING:
    from typing import Any

    from tacit import callbacks
    from tacit.analysis.compare.comparison import ManyRuns, compare
    from tacit.analysis.private_counts import LabelCounts, count_labels
    from tacit.analysis.session import SteppedRun, prepare
    from tacit.cli.tables import plan
    from tacit.config import Config, load_config
    from tacit.data import Dataset, Schema, TaskData
    from tacit.errors import (
        BudgetError,
        DivergenceError,
        InputError,
        NotPrivateWarning,
        PeerError,
        PrivateRecordsWarning,
        TacitError,
    )
    from tacit.estimators import TacitClassifier, TacitRegressor
    from tacit.gradients.dropout import Dropout
    from tacit.hosts.client import PrivateClient
    from tacit.models.fix import fix
    from tacit.training.api import train
    from tacit.training.run_folder.predictor import load_model
    from tacit.training.run_folder.result import Claim, Result

__all__ = [
    "BudgetError",
    "Claim",
    "Config",
    "Dataset",
    "DivergenceError",
    "Dropout",
    "InputError",
    "LabelCounts",
    "ManyRuns",
    "NotPrivateWarning",
    "PeerError",
    "PrivateClient",
    "PrivateRecordsWarning",
    "Result",
    "Schema",
    "SteppedRun",
    "TacitClassifier",
    "TacitError",
    "TacitRegressor",
    "TaskData",
    "__version__",
    "callbacks",
    "compare",
    "count_labels",
    "fix",
    "load_config",
    "load_model",
    "plan",
    "prepare",
    "train",
]

# Loaded on first use, so that `tacit --help` and `tacit.privacy` need not wait for torch.
_OFFERED = {
    "analysis.compare.comparison": ("ManyRuns", "compare"),
    "analysis.private_counts": ("LabelCounts", "count_labels"),
    "analysis.session": ("SteppedRun", "prepare"),
    "cli.tables": ("plan",),
    "config": ("Config", "load_config"),
    "data": ("Dataset", "Schema", "TaskData"),
    "errors": (
        "BudgetError",
        "DivergenceError",
        "InputError",
        "NotPrivateWarning",
        "PeerError",
        "PrivateRecordsWarning",
        "TacitError",
    ),
    "estimators": ("TacitClassifier", "TacitRegressor"),
    "gradients.dropout": ("Dropout",),
    "hosts.client": ("PrivateClient",),
    "models.fix": ("fix",),
    "training.api": ("train",),
    "training.run_folder.predictor": ("load_model",),
    "training.run_folder.result": ("Claim", "Result"),
}
_HOMES = {name: module for module, names in _OFFERED.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "callbacks":
        return import_module("tacit.callbacks")
    if name not in _HOMES:
        raise AttributeError(f"module 'tacit' has no attribute {name!r}")
    return getattr(import_module(f"tacit.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
