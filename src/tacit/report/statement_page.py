"""The page of a statement: what a data-protection officer reads, prints and signs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tacit.report.audit_words import AuditWords, audit_words, in_doubt
from tacit.report.documents.base import read
from tacit.report.documents.run import RunAudit
from tacit.report.documents.trust import TrustTerms
from tacit.report.protection import epsilon_words, lower_words, protection, size_note
from tacit.report.rendering import Table, render
from tacit.report.trust_words import SIMULATED, TrustWords, trust_words
from tacit.report.wording import (
    NOTHING,
    count_text,
    epsilon_text,
    guess_bound,
    node_list,
    percent_up_text,
)

_HEADS = 12  # that are printed
_NODE_COLUMNS = (
    "nodes",
    "records",
    "share of model",
    "right guess at most",
    "certified epsilon",
    "delta",
    "budget",
    "claimed by the paper",
    "audited (at least)",
)
_DATA_COLUMNS = ("nodes", "runs", "certified epsilon of all", "delta", "budget of the data")
_DIGESTS = (
    "Digest of the plan",
    "Head of the ledger",
    "Key of the ledger",
    "Digest of this statement",
)


def statement_page(document: Mapping[str, Any]) -> str:
    """Give the page of a statement, in HTML, from the statement's JSON alone.

    Args:
        document: the content of `statement.json`, its digest included.
    """
    run, task, rows = document["run"], document["task"], document["nodes"]
    algorithm, claim = document["algorithm"], document["claim"]
    names = {row["node"]: row.get("name") for row in rows}
    subject = f"{algorithm['title']} on {task['dataset']}, {count_text(len(rows), 'node')}"
    epsilon = epsilon_words(max(row["epsilon"] for row in rows))
    delta = epsilon_text(max(row["delta"] for row in rows))
    over = ", the highest of all nodes" if len(rows) > 1 else ""
    strength = protection((row["epsilon"], row["delta"]) for row in rows)
    infinite = claim.get("infinite", False)
    audit = _audit(document)
    alarmed = audit is not None and audit.alarm is not None
    trust = _trust(document)
    verdict = strength.sentence() if trust is None else strength.sentence(trust.observer)
    return render(
        "statement",
        title=f"Statement of privacy: {subject}",
        subject=subject,
        subtitle=f"Run {run['run']}, stated on {_day(document['date'])} by tacit "
        f"{document['tacit_version']}",
        kind="warn" if alarmed else strength.kind,
        verdict=in_doubt(verdict) if alarmed else verdict,
        certified=f"Certified: epsilon {epsilon} at delta {delta}{over}",
        relation=document["relation"],
        unit=document["unit"],
        trust_model=document["trust_model"],
        trust=trust,
        simulated=SIMULATED,
        right_guess=strength.right_guess,
        epsilon_meaning=document["epsilon_meaning"],
        nodes=_table(
            _NODE_COLUMNS, ((row["node"], _node_cells(row, infinite)) for row in rows), names
        ),
        formula=claim.get("formula") or "no claim",
        audit=audit,
        data=_data(document),
        releases=_table(
            ("nodes", "mechanism"),
            (
                (row["node"], (_release_text(row, document["mechanisms_in_words"]),))
                for row in document["ledger"]["nodes"]
            ),
            names,
        ),
        assumptions=document["assumptions"],
        not_covered=document["not_covered"],
        facts=[
            ("Algorithm", f"{algorithm['title']} ({algorithm['paper']})"),
            ("Task", f"{task['dataset']}, {task['model']}, {task['parameters']:,} parameters"),
            *([("Features", task["features"])] if task.get("features") else []),
            ("Run entered", f"{_day(run['created'])}, by tacit {run['tacit_version']}"),
            ("Status of the run", run["status"]),
            ("Accounting", document["accounting"]),
            ("Digest of the plan", run["plan_digest"]),
            ("Head of the ledger", run["ledger_head"]),
            ("Key of the ledger", run["ledger_key"]),
            ("Digest of this statement", document["digest"]),
        ],
        digests=_DIGESTS,
    )


def _table(
    columns: Sequence[str],
    cells_by_node: Iterable[tuple[int, tuple[str, ...]]],
    names: Mapping[int, str | None] | None = None,
) -> Table:
    """A table in which the nodes of which the same is said share a row."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for node, cells in cells_by_node:
        groups.setdefault(cells, []).append(node)
    rows = [
        (node_list(nodes, [(names or {}).get(node) for node in nodes]), *cells)
        for cells, nodes in groups.items()
    ]
    return Table(columns, rows, left=("nodes", "mechanism"), note=size_note(rows))


def _node_cells(row: Mapping[str, Any], infinite: bool) -> tuple[str, ...]:
    claimed = epsilon_words(row["claimed"])
    if row["claimed"] is None:
        claimed = "infinite" if infinite else "no claim"
    return (
        f"{row['records']:,}",
        f"{row['signal_share']:.1%}",
        percent_up_text(guess_bound(row["epsilon"], row["delta"])),
        epsilon_words(row["epsilon"]),
        epsilon_text(row["delta"]),
        NOTHING if row["budget"] is None else f"{row['budget']:.6g}",
        claimed,
        "not run" if row["audited"] is None else lower_words(row["audited"]),
    )


def _trust(document: Mapping[str, Any]) -> TrustWords | None:
    """Whom the nodes rely on; None where each relies on itself alone."""
    terms = document["ledger"].get("trust")
    if terms is None:
        return None
    deltas = [row["delta"] for row in document["nodes"]]
    return trust_words(document["trust_model"]["name"], read(TrustTerms, terms, "trust"), deltas)


def _audit(document: Mapping[str, Any]) -> AuditWords | None:
    """What the audit of the run found; None where none was recorded."""
    if document["audit"] is None:
        return None
    audit = read(RunAudit, document["audit"], "audit")
    return audit_words(audit, document["nodes"][0]["audited"])


def _data(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """What all runs on the same data come to; None where no ledger of the data was kept."""
    ledger = document["data_ledger"]
    if ledger is None:
        return None
    run = document["run"]["run"]
    heads = [
        f"{file['file']}: head {file['head']}, key {file['public_key']}" for file in ledger["files"]
    ]
    return {
        "nodes": _table(
            _DATA_COLUMNS, (pair for row in ledger["nodes"] for pair in _data_cells(row, run))
        ),
        "heads": heads[:_HEADS],
        "more": max(0, len(heads) - _HEADS),
    }


def _data_cells(row: Mapping[str, Any], run: str) -> list[tuple[int, tuple[str, ...]]]:
    """What is to be said of the nodes whose data an account is."""
    cells = (
        str(len({release["run"] for release in row["releases"] if release["steps"]})),
        epsilon_words(row["epsilon"]),
        epsilon_text(row["delta"]),
        f"{row['epsilon_budget']:.6g}",
    )
    return [
        (release["node"], cells)
        for release in row["releases"]
        if (release["run"], release["data"]) == (run, row["data"])
    ]


def _release_text(row: Mapping[str, Any], mechanisms: Sequence[str]) -> str:
    return "; ".join(
        f"{mechanisms[release['mechanism']]}; {release['steps']:,} steps charged"
        for release in row["releases"]
    )


def _day(stamp: str) -> str:
    """The date of a time stamp."""
    return stamp.partition("T")[0]
