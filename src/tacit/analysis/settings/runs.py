"""Runs that are found again, and completed: each has a folder of its own, and none is made twice.

How an experiment is known, where its run lies, how those that are missing are made, and what a run
came to.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import unicodedata
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from tacit.analysis.settings.processes import (
    UNHEARD,
    Make,
    Monitor,
    Outcome,
    Processes,
    WantedRun,
    run_by_executor,
    run_in_turn,
)
from tacit.base.plain_files import read_plain
from tacit.config import Config, known_as, site_keys, to_toml
from tacit.errors import InputError
from tacit.report.documents.metrics import MOST_SERIES, Measurement, Scores, read_measurement
from tacit.report.documents.run import ResultDocument, read_result
from tacit.training.run_folder import checkpoint as checkpoints

FINAL = ("done", "budget-exhausted", "diverged")  # a run that ended so is not run again
_NAME = 60  # characters of a name in that of a folder


def placeless(config: Config, ledger: str) -> str:
    """A resolved experiment without where its things lie and how it computes.

    `ledger` stands for where ledgers lie. Searches are known by it, and runs by `run_digest`:
    folders of earlier versions are found by it.
    """
    given = config.privacy.ledger and ledger
    places = site_keys(config) - {"nodes.source"}  # which is what the data are
    return to_toml(known_as(config, places).with_keys(privacy={"ledger": given}))


def run_digest(config: Config) -> str:
    """Identifies a resolved experiment: keys that only say where and how are left out.

    What files and modules that it names contain is not part of it.
    """
    plain = placeless(config.with_keys(train={"checkpoint_every": None}), "elsewhere")
    return hashlib.blake2b(plain.encode(), digest_size=6).hexdigest()


def run_folders(folder: Path) -> list[Path]:
    """Every run folder in a folder, those of unfinished runs included."""
    return sorted(path for path in folder.iterdir() if path.is_dir())


def found_run(folder: Path, name: str, config: Config, digest: str) -> Path:
    """Where a run of this experiment has ended, else where one can go on, else a new place.

    It is called by the name, the seed and the `run_digest`; one of another name counts as well.
    """
    tries = sorted(
        (path for path in run_folders(folder) if re.search(rf"-{digest}(\.\d+)?$", path.name)),
        key=lambda path: (len(path.name), path.name),
    )
    ended = [(path, end) for path in tries if (end := read_final(path)) is not None]
    if ended:  # a whole run before one that a kill has shortened
        return max(ended, key=lambda run: run[1].status == "done")[0]
    for path in reversed(tries):
        if (path / "config.toml").is_file() and checkpoints.latest(path) is not None:
            return path
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:_NAME].strip("-") or "line"
    return fresh(folder / f"{slug}-seed{config.train.seed}-{digest}")


def fresh(path: Path) -> Path:
    """The path, or one like it with a number, that nothing has yet."""
    base = re.sub(r"\.\d+$", "", path.name)
    number = 1
    candidate = path.with_name(base)
    while os.path.lexists(candidate):
        number += 1
        candidate = path.with_name(f"{base}.{number}")
    return candidate


def complete(
    requests: Sequence[WantedRun],
    make: Make,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    turns: bool = False,
    monitor: Monitor = UNHEARD,
) -> list[Outcome]:
    """Make the runs that have not ended yet, and say how each has, in the same order.

    `make` makes one, or goes on with what is in its folder. They are made by an executor (see
    `run_by_executor`), with `jobs` above 1 by so many processes. Those that reserve in ledgers of
    the nodes' data take turns, and so do those that will say so when they are made (`turns`).
    """
    ended = {
        request.path: Outcome(request.path, "cached")
        for request in requests
        if read_final(request.path) is not None
    }
    missing = [request for request in requests if request.path not in ended]
    monitor.begin(len(requests), len(ended))
    turns |= any(request.config.privacy.ledger is not None for request in missing)
    jobs = 1 if turns else min(jobs, len(missing))
    if missing and executor is not None:
        made = run_by_executor(missing, make, executor, monitor, 1 if turns else None)
    elif jobs > 1:
        with Processes(jobs) as own:
            made = run_by_executor(missing, make, own, monitor, jobs)
    else:
        made = run_in_turn(missing, make, monitor)
    ended |= {request.path: outcome for request, outcome in zip(missing, made, strict=True)}
    return [ended[request.path] for request in requests]


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
