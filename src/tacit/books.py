"""What ledgers say, for people and as JSON: every epsilon recomputed from the files alone.

The document is complete in itself: whoever has it can recompute its figures (`confirm`) without
the files. Format, version 1:

- `files`: the ledgers it was read from, each with the digest of all its values;
- `mechanisms`: mechanisms as `tacit.privacy.to_statement` writes them;
- `runs`: each with its identity, the digest of its plan, and the version that entered it;
- `nodes`: each with its budget, the certified epsilon of all that was charged, at `delta`, what
  that leaves of the budget, and its `releases`: which mechanism (a place in `mechanisms`) of which
  run, the charged steps as `[first, until, times]`, and the epsilon of that release alone.

An epsilon is null where no finite one holds. `left` is a plain difference: epsilons of separate
runs do not add up, so that a further run may fit although its own epsilon is above it, or not fit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tacit import __version__
from tacit.errors import InputError
from tacit.metrics import finite_json
from tacit.privacy import Mechanism, from_statement
from tacit.privacy.ledger_records import BookedRun, Snapshot, StepRun, read_ledger, step_runs
from tacit.privacy.ledger_spent import combined, cost, released
from tacit.privacy.mechanisms import (
    CarriedState,
    ClientSampling,
    Composed,
    FixedBatchGaussian,
    Gaussian,
    Laplace,
    PrivateState,
    SampledGaussian,
)
from tacit.report.wording import epsilon_text, number_text

__all__ = ["confirm", "ledger_document", "ledger_table", "mechanism_words", "node_list"]

FORMAT_VERSION = 1
_SAME_VERSION = 1e-9  # relative: the same code on the same numbers
_OTHER_VERSION = 1e-2  # a later accountant may bound more tightly


def ledger_document(path: Path) -> dict[str, Any]:
    """Everything that ledgers say, recomputed.

    Args:
        path: a ledger's file, a folder with one a node (`node-0.sqlite`, ...), or a run folder,
            also one with a ledger a process (`rank-0000/ledger.sqlite`, ...).

    Returns:
        The document that the module describes, ready for JSON.

    Raises:
        InputError: there is no ledger, or one is damaged, edited, or in use by a run.
    """
    path = Path(path)
    snapshots = [(file, read_ledger(file)) for file in _files(path)]
    mechanisms: list[Mapping[str, Any]] = []
    rows = [
        _node(_name(path, file), snapshot, place, mechanisms)
        for file, snapshot in snapshots
        for place in range(len(snapshot.accounts))
    ]
    figures = _figures(mechanisms)
    nodes = [figures(row) for row in sorted(rows, key=lambda row: row["node"])]
    document = {
        "format_version": FORMAT_VERSION,
        "tacit_version": __version__,
        "path": str(path),
        "files": [
            {"file": _name(path, file), "created": one.created, "tacit_version": one.tacit_version}
            | {"digest": one.head}
            for file, one in snapshots
        ],
        "runs": _runs(one for _, one in snapshots),
        "mechanisms": mechanisms,
        "nodes": nodes,
    }
    plain: dict[str, Any] = finite_json(document)
    return plain


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if (path / "ledger.sqlite").is_file():
        return [path / "ledger.sqlite"]
    found = sorted(path.glob("node-*.sqlite"), key=lambda file: (len(file.name), file.name))
    found = found or sorted(path.glob("rank-*/ledger.sqlite"))
    if not found:
        expected = "a ledger, a folder with node-0.sqlite and so on, or a run folder"
        raise InputError("FILE", str(path), expected)
    return found


def _name(path: Path, file: Path) -> str:
    """A ledger's file as seen from the folder that was asked for."""
    return file.name if file == path else str(file.relative_to(path))


def _node(
    file: str, snapshot: Snapshot, place: int, mechanisms: list[Mapping[str, Any]]
) -> dict[str, Any]:
    """An account with what was released from it; new mechanisms are added to the list."""
    account = snapshot.accounts[place]
    return {
        "node": account.node,
        "file": file,
        "epsilon_budget": account.epsilon_budget,
        "delta": account.delta,
        "releases": [
            _release(run, account.node, mechanisms)
            for run in snapshot.runs
            if account.node in run.statements
        ],
    }


def _release(run: BookedRun, node: int, mechanisms: list[Mapping[str, Any]]) -> dict[str, Any]:
    statement = run.statements[node]
    if statement not in mechanisms:
        mechanisms.append(statement)
    charged = [list(steps) for steps in step_runs(run.charged[node])]
    return {"run": run.run_id, "mechanism": mechanisms.index(statement), "charged": charged}


def _runs(snapshots: Iterable[Snapshot]) -> list[dict[str, str]]:
    """Each run once, in the order of time."""
    runs = {run.run_id: run for snapshot in snapshots for run in snapshot.runs}
    return [
        {
            "run": run.run_id,
            "created": run.created,
            "tacit_version": run.tacit_version,
            "plan_digest": run.digest,
        }
        for run in sorted(runs.values(), key=lambda run: run.created)
    ]


def _figures(
    mechanisms: Sequence[Mapping[str, Any]],
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """What completes the row of a node with its figures; nodes that agree share the work."""
    known = [from_statement(statement) for statement in mechanisms]
    costs = functools.cache(cost)

    def complete(row: Mapping[str, Any]) -> dict[str, Any]:
        delta, budget = row["delta"], row["epsilon_budget"]
        releases = []
        made: list[Mechanism | None] = []
        for release in row["releases"]:
            steps = [StepRun(*run) for run in release["charged"]]
            made.append(released(known[release["mechanism"]], steps))
            epsilon = None if delta is None else costs(made[-1], delta)
            count = sum((until - first) * times for first, until, times in steps)
            releases.append({**release, "steps": count, "epsilon": epsilon})
        total = None if delta is None else costs(combined(made), delta)
        left = None if budget is None or total is None else max(0.0, budget - total)
        return {**row, "epsilon": total, "left": left, "releases": releases}

    return complete


def confirm(document: Mapping[str, Any]) -> None:
    """Recompute every figure of a document from its mechanisms and charged steps.

    Raises:
        InputError: a figure is not what follows, or something is missing.
    """
    same = document.get("tacit_version") == __version__
    tolerance = _SAME_VERSION if same else _OTHER_VERSION
    try:
        figures = _figures(document["mechanisms"])
        for row in document["nodes"]:
            _compare(row, finite_json(figures(row)), tolerance, f"node {row['node']}")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        expected = f"a whole document: {type(error).__name__}: {error}"
        raise InputError("ledger document", document.get("path"), expected) from None


def _compare(
    row: Mapping[str, Any], again: Mapping[str, Any], tolerance: float, where: str
) -> None:
    for key in ("epsilon", "left", "steps"):
        stated: Any = row.get(key)
        found: Any = again.get(key)
        # What is left is a difference of two larger figures.
        size = max(abs(found or 0.0), row.get("epsilon_budget") or 0.0)
        finite = stated is not None and found is not None
        if stated != found and not (finite and abs(stated - found) <= tolerance * size):
            raise InputError(f"{key} of {where}", stated, f"must be {found}, by its own mechanisms")
    for release, anew in zip(row.get("releases", ()), again.get("releases", ()), strict=True):
        _compare(release, anew, tolerance, f"run {release['run'][:8]} at {where}")


def ledger_table(document: Mapping[str, Any]) -> None:
    """Print a ledger document for people: what each node has spent, then the runs."""
    console = Console()
    nodes = Table(box=SIMPLE_HEAD, title=f"spent by {document['path']}", title_justify="left")
    for heading in ("nodes", "budget", "spent epsilon", "left", "delta", "runs", "steps"):
        nodes.add_column(heading, justify="left" if heading == "nodes" else "right")
    for numbers, cells in _grouped(document["nodes"]):
        nodes.add_row(node_list(numbers), *cells)
    console.print(nodes)
    for run in document["runs"]:
        entered = run["created"].replace("T", " ")
        console.print(
            f"run {run['run'][:8]}, entered {entered} by tacit {run['tacit_version']}, plan "
            f"{run['plan_digest'][:8]}: {'; '.join(_words_of(document, run['run']))}",
            highlight=False,
            style="dim",
        )
    console.print(
        "Spent is certified for all runs together, recomputed from the file. Left is the plain "
        "difference: epsilons of separate runs do not add up.",
        highlight=False,
    )


def _grouped(nodes: Sequence[Mapping[str, Any]]) -> list[tuple[list[int], tuple[str, ...]]]:
    """Neighbours of which the same is to be said, together."""
    cells = [(row["node"], _cells(row)) for row in nodes]
    groups = groupby(cells, key=lambda item: item[1])
    return [([node for node, _ in group], said) for said, group in groups]


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    spent = "infinite" if row["epsilon"] is None else epsilon_text(row["epsilon"])
    charged = [release["steps"] for release in row["releases"]]
    return (
        "-" if row["epsilon_budget"] is None else f"{row['epsilon_budget']:.6g}",
        spent if row["delta"] is not None else "-",
        "-" if row["left"] is None else f"{math.floor(1000 * row['left']) / 1000:g}",
        epsilon_text(row["delta"]),
        str(sum(1 for steps in charged if steps)),
        f"{sum(charged):,}",
    )


def node_list(numbers: Sequence[int]) -> str:
    """Node numbers, neighbours as a range.

    >>> node_list([0, 1, 2, 5])
    '0-2, 5'
    """
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def _words_of(document: Mapping[str, Any], run: str) -> list[str]:
    """The mechanisms of a run at its nodes, each once, in words."""
    used = {
        release["mechanism"]
        for row in document["nodes"]
        for release in row["releases"]
        if release["run"] == run
    }
    words = [mechanism_words(from_statement(document["mechanisms"][place])) for place in used]
    kinds = sorted(set(words))
    return kinds if len(kinds) < 3 else [*kinds[:2], f"and {len(kinds) - 2} more kinds"]


def mechanism_words(mechanism: Mechanism) -> str:
    """What is released, in words for someone who has to answer for it."""
    return _WORDS[type(mechanism)](mechanism)


def _noise(mechanism: Any) -> str:
    """The multipliers of a schedule and its length."""
    values = mechanism.noise_multiplier
    low, high = number_text(min(values)), number_text(max(values))
    size = low if low == high else f"{low} to {high}"
    steps = len(values)
    return f"noise multiplier {size}, {steps:,} step{'s' if steps > 1 else ''}"


_DRAWN = {
    "poisson": "Poisson sampling",
    "fixed": "batches of fixed size",
    "groups": "in groups, each by a coin",
}


def _private_state_words(mechanism: PrivateState) -> str:
    drawn = _DRAWN[mechanism.sampling]
    return (
        f"Gaussian noise on sums that private state carries on: a record is drawn with probability "
        f"{number_text(mechanism.sample_rate)} a step ({drawn}), contributes at most "
        f"{number_text(mechanism.hit)} clipping bounds then and {number_text(mechanism.miss)} at "
        f"any other step, {_noise(mechanism)}"
    )


_WORDS: Mapping[type, Callable[[Any], str]] = MappingProxyType(
    {
        Gaussian: lambda one: (
            f"Gaussian noise on the sum over every record at every step, {_noise(one)}"
        ),
        SampledGaussian: lambda one: (
            "Gaussian noise on the sum over a random batch, which each record joins with "
            f"probability {number_text(one.sample_rate)} (Poisson sampling), {_noise(one)}"
        ),
        FixedBatchGaussian: lambda one: (
            f"Gaussian noise on the sum over a random batch of {one.batch:,} of {one.records:,} "
            f"records, drawn without replacement, {_noise(one)}"
        ),
        Laplace: lambda one: (
            f"Laplace noise on the sum over a batch that each record joins with probability "
            f"{number_text(one.sample_rate)}, {_noise(one)}"
        ),
        PrivateState: _private_state_words,
        CarriedState: lambda one: (
            "Gaussian noise on what private state carries on: a record is drawn with probability "
            f"{number_text(one.sample_rate)} a step and then moves all later messages, "
            f"{_noise(one)}"
        ),
        Composed: lambda one: "; then ".join(dict.fromkeys(map(mechanism_words, one.parts))),
        ClientSampling: lambda one: (
            f"{one.rounds:,} rounds, in each of which a client takes part with probability "
            f"{number_text(one.rate)} and then releases: {mechanism_words(one.participation)}"
        ),
    }
)
