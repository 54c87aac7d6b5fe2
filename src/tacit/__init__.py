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
    from tacit.analysis.label_counts import LabelCounts, count_labels
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
_HOMES = {
    "BudgetError": "errors",
    "Claim": "training.run_folder.result",
    "Config": "config",
    "Dataset": "data",
    "DivergenceError": "errors",
    "Dropout": "gradients.dropout",
    "InputError": "errors",
    "LabelCounts": "analysis.label_counts",
    "ManyRuns": "analysis.compare.comparison",
    "NotPrivateWarning": "errors",
    "PeerError": "errors",
    "PrivateClient": "hosts.client",
    "PrivateRecordsWarning": "errors",
    "Result": "training.run_folder.result",
    "Schema": "data",
    "SteppedRun": "analysis.session",
    "TacitClassifier": "estimators",
    "TacitError": "errors",
    "TacitRegressor": "estimators",
    "TaskData": "data",
    "fix": "models.fix",
    "compare": "analysis.compare.comparison",
    "count_labels": "analysis.label_counts",
    "load_config": "config",
    "load_model": "training.run_folder.predictor",
    "plan": "cli.tables",
    "prepare": "analysis.session",
    "train": "training.api",
}


def __getattr__(name: str) -> Any:
    if name == "callbacks":
        return import_module("tacit.callbacks")
    if name not in _HOMES:
        raise AttributeError(f"module 'tacit' has no attribute {name!r}")
    return getattr(import_module(f"tacit.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
