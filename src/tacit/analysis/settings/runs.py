"""Runs that are found again: how an experiment is known, and what a run of it came to."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

from tacit.config import Config, to_toml
from tacit.errors import InputError
from tacit.plain_files import read_plain
from tacit.report.documents.metrics import MOST_SERIES, Measurement, Scores, read_measurement
from tacit.report.documents.run import ResultDocument, read_result

FINAL = ("done", "budget-exhausted", "diverged")  # a run that ended so is not run again


def placeless(config: Config, ledger: str) -> str:
    """A resolved experiment without where its data and ledgers lie; `ledger` stands for these.

    Searches are known by it, and runs by `run_digest`: folders of earlier versions are found by it.
    """
    given = config.privacy.ledger and ledger
    return to_toml(config.with_keys(task={"data_dir": ""}, privacy={"ledger": given}))


def run_digest(config: Config) -> str:
    """Identifies a resolved experiment: keys that only say where and how are left out.

    What files and modules that it names contain is not part of it.
    """
    plain = config.with_keys(train={"device": "cpu", "checkpoint_every": None})
    return hashlib.blake2b(placeless(plain, "elsewhere").encode(), digest_size=6).hexdigest()


def read_ended(path: Path) -> ResultDocument | None:
    """`result.json` of a run folder; None where it is not there or not whole."""
    try:
        return read_result(path / "result.json")
    except InputError:
        return None


def read_final(path: Path) -> ResultDocument | None:
    """Likewise, of a run that is not run again; None of any other."""
    result = read_ended(path)
    return result if result is not None and result.status in FINAL else None


def read_rows(path: Path) -> list[Measurement]:
    """`metrics.jsonl` in the order of steps; of a step that stands twice the later counts."""
    try:
        lines = read_plain(path / "metrics.jsonl", MOST_SERIES).splitlines()
    except OSError:
        return []
    # The last line of a run that was killed is torn.
    rows = {row.step: row for row in filter(None, map(read_measurement, lines))}
    return [rows[step] for step in sorted(rows)]


def scores_of(result: ResultDocument, name: str) -> Scores | None:
    """What a run is judged by: a metric, "test_accuracy" or "test_loss"; None: it has none."""
    named = {"test_accuracy": result.test_accuracy, "test_loss": result.test_loss}
    return named.get(name, result.test_metrics.get(name))


def score_of(result: ResultDocument, name: str) -> float | None:
    """The mean over nodes; None of a run without a model, or where it is no number."""
    scores = None if result.status == "diverged" else scores_of(result, name)
    value = None if scores is None else scores.mean
    return value if value is not None and math.isfinite(value) else None
