"""What is said of ledgers: spending, runs, and mechanisms in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tacit.privacy import from_statement
from tacit.privacy.ledger.file import fingerprint
from tacit.privacy.mechanisms.base import Mechanism, observer
from tacit.report.documents.ledger import LedgerAccount, LedgerReport
from tacit.report.protection import colluders_table
from tacit.report.trust_words import TRUST_MODELS
from tacit.report.view import Block, Table, Text
from tacit.report.wording import alike, epsilon_text, node_list, number_text

_FILES = 6  # of which heads are printed
_NAMES = 3  # of data in one cell


def ledger_blocks(document: LedgerReport) -> list[Block]:
    """A ledger document for people: what was spent, then the runs, then the heads."""
    of_data = any(row.data is not None for row in document.nodes)
    columns = ("data" if of_data else "nodes", "budget", "spent epsilon", "left", "delta", "runs")
    groups = alike((_cells(row), row) for row in document.nodes)
    rows = [(_named(rows), *cells) for cells, rows in groups.items()]
    title, trust = f"spent by {document.path}", document.trust
    blocks: list[Block] = [Table((*columns, "steps"), rows, title=title, left=columns[:1])]
    if trust is not None:
        by_colluders, deltas = trust.epsilon_by_colluders, [row.delta for row in document.nodes]
        blocks.append(
            colluders_table(by_colluders, deltas, trust.colluding, epsilon="spent epsilon")
        )
    models = sorted({mechanism.trust_model for mechanism in _mechanisms(document)})
    more = " What a run releases of some records of a source is charged to all of them."
    return [
        *blocks,
        *(Text(f"trust model {name}: {TRUST_MODELS[observer(name)]}") for name in models),
        *map(Text, _whom(document)),
        *(Text(line, style="dim") for line in _lines(document)),
        Text(
            "Spent is certified for all runs together, recomputed from the file. Left is the plain "
            f"difference: epsilons of separate runs do not add up.{more if of_data else ''}"
        ),
    ]


def _whom(document: LedgerReport) -> Iterator[str]:
    """Whom what was spent of a source is of, where not every run was by record."""
    for row in document.nodes:
        by = sorted(document.units(row) - {"record"})
        if by and "record" in document.units(row):
            yield (
                f"{row.data}: runs by record and by {' and '.join(by)} have drawn on it: spent is "
                "of a row, and bounds nothing of whoever has several"
            )
        elif by:
            yield f"{row.data}: spent is of all rows of one id together (by {by[0]})"


def _lines(document: LedgerReport) -> Iterator[str]:
    for run in document.runs:
        entered = run.created.replace("T", " ")
        yield (
            f"run {run.run[:8]}, entered {entered} by tacit {run.tacit_version}, plan "
            f"{run.plan_digest[:8]}: {'; '.join(_words_of(document, run.run))}"
        )
        if run.unsent is not None:
            sent, every = run.unsent
            yield (
                f"run {run.run[:8]} was stopped after step {sent}, maybe by what it had released, "
                f"which only the epsilon of the whole plan covers: all {every} steps are charged"
            )
    for file in document.files[:_FILES]:
        yield f"{file.file}: head {file.head}, key {fingerprint(file.public_key)}"
    if len(document.files) > _FILES:
        yield f"and {len(document.files) - _FILES} more files: --json lists them"


def _mechanisms(document: LedgerReport) -> list[Mechanism]:
    return [from_statement(mechanism) for mechanism in document.mechanisms]


def _named(rows: Sequence[LedgerAccount]) -> str:
    numbers = [row.node for row in rows if row.node is not None]
    if numbers:
        return node_list(numbers, [row.name for row in rows])
    names = [row.data for row in rows if row.data]
    more = len(names) - _NAMES
    return "\n".join([*names[:_NAMES], *([f"and {more} more"] if more > 0 else [])])


def _cells(row: LedgerAccount) -> tuple[str, ...]:
    spent = "infinite" if row.epsilon is None else epsilon_text(row.epsilon)
    charged: dict[str, int] = {}
    for release in row.releases:
        # Of a run that shares records at several nodes, a record was at one of them.
        steps = max(charged.get(release.run, 0), release.steps or 0)
        charged[release.run] = steps
    return (
        "-" if row.epsilon_budget is None else f"{row.epsilon_budget:.6g}",
        spent if row.delta is not None else "-",
        "-" if row.left is None else f"{math.floor(1000 * row.left) / 1000:g}",
        epsilon_text(row.delta),
        str(sum(1 for steps in charged.values() if steps)),
        f"{sum(charged.values()):,}",
    )


def _words_of(document: LedgerReport, run: str) -> list[str]:
    """The mechanisms of a run at its nodes, each once, in words."""
    accounts = (row.releases for row in document.nodes)
    used = {release.mechanism for own in accounts for release in own if release.run == run}
    mechanisms = _mechanisms(document)
    kinds = sorted({mechanisms[place].explain(number_text) for place in used})
    return kinds if len(kinds) < 3 else [*kinds[:2], f"and {len(kinds) - 2} more kinds"]
