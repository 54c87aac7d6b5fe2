"""Puts what an audit found beside the run whose experiment was audited."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.errors import InputError
from tacit.report import write_report
from tacit.training.run_folder.folder import RunFolder

__all__ = ["record_audit", "run_experiment"]

_KEPT = ("delta", "confidence", "certified_epsilon", "claimed_epsilon", "verdict", "claim_verdict")


def run_experiment(run: Path) -> Path:
    """The experiment file of a finished run.

    Raises:
        InputError: it is not the folder of a run with a result.
    """
    for name in ("config.toml", "result.json"):
        if not (run / name).is_file():
            raise InputError("FILE", str(run), f"is a folder without {name}: name a finished run")
    return run / "config.toml"


def record_audit(run: Path, document: Mapping[str, Any]) -> Path:
    """Write an audit's document into a run folder, its figure into result.json and the report.

    An audit is of an experiment's mechanism, at a delta of its own. Earlier audits are kept:
    `audit.json`, then `audit-2.json` and so on; the result shows the last.

    Raises:
        InputError: the run's result cannot be read.
    """
    names = ["audit.json", *(f"audit-{number}.json" for number in range(2, 1000))]
    name = next(name for name in names if not (run / name).exists())
    try:
        result = json.loads((run / "result.json").read_text(encoding="utf-8"))
        result["audited_epsilon"] = document["audited_epsilon"]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            "FILE", str(run), f"has a result.json that cannot be read: {error}"
        ) from None
    result["audit"] = {key: document[key] for key in _KEPT}
    folder = RunFolder(run)
    folder.write_json(name, document)
    folder.write_json("result.json", result)
    write_report(run)
    return run / name
