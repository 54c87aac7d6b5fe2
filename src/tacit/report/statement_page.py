"""The page of a statement: what a data-protection officer reads, prints and signs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tacit.report.audit_words import NOT_SHOWN, audit_alarm, found_blocks
from tacit.report.documents.base import read
from tacit.report.documents.ledger import StatementUnit
from tacit.report.documents.run import RunAudit
from tacit.report.documents.trust import TrustTerms
from tacit.report.html import html
from tacit.report.protection import (
    LEVELS,
    colluders_table,
    epsilon_words,
    lower_words,
    protection,
    size_note,
)
from tacit.report.statement_words import (
    NOT_DECLARED,
    curve_facts,
    declared_pairs,
    error_rows,
    node_guess,
    plain_words,
)
from tacit.report.trust_words import (
    SIMULATED,
    observer_words,
    of_rows_text,
    person_text,
    trust_texts,
    verdict,
)
from tacit.report.view import (
    Block,
    Heading,
    Items,
    Pairs,
    Table,
    Text,
    Titled,
    texts,
)
from tacit.report.wording import (
    NOTHING,
    alike,
    count_text,
    epsilon_text,
    node_list,
    percent_up_text,
)

_HEADS = 12  # that are printed
_NODE_COLUMNS = (
    "nodes",
    "share of model",
    "right guess at most",
    "certified epsilon",
    "delta",
    "budget",
    "audited (at least)",
)
_DATA_COLUMNS = ("nodes", "runs", "certified epsilon of all", "delta", "budget of the data")
_DIGESTS = (
    "Digest of the plan",
    "Head of the ledger",
    "Key of the ledger",
    "Digest of the schema",
    "Digest of this statement",
)

_SOURCE = "tacit source (SHA-256)"
_SIGN = ("Name and office", "Organisation", "Place and date", "Signature")
_HALF = "50\u202f%"
_COLUMNS_MEAN = (
    "Certified is an upper bound that is proved for what was charged to the node. Audited is what "
    "an attack of ours extracted, at a delta of its own, and no part of the guarantee."
)
_DECLARED = "Said by people, word for word. The software checked none of it."
_ERRORS = (
    "Whoever tests whether one record was there, and accuses so many of those who were not, "
    "overlooks at least so many of those who were:"
)
_ERROR_COLUMNS = ("false accusations", "overlooked, at least")
_LAWYER = (
    "What these words mean for a person who has to answer for them: the page 'Epsilon for a "
    "lawyer', docs/concepts/epsilon-for-a-lawyer.md of tacit; what a statement is evidence for: "
    "'What a statement proves in law', docs/concepts/regulation.md."
)
_SOFTWARE = (
    "The software is that of the process which wrote this statement; by which version of tacit a "
    "run was entered stands above. No digest of records is given: it would tell whoever has "
    "guessed them that the guess is right."
)
_BY_COLLUDERS = (
    "The epsilon against each number of colluders is certified, like that of the run: for the "
    "worst set of so many nodes, and for what was charged."
)
_NO_AUDIT = (
    "No audit was made of this run: its program was neither tested nor attacked. The command "
    "'tacit audit' does so."
)
_ALL_RUNS = (
    "This run shares the budget of its data with others; together they come to the following, runs "
    "that had some of the same records at other nodes included:"
)
_RELEASED = (
    "Of each node an observer sees one noised sum of clipped contributions a step; everything else "
    "that is sent is computed from such sums. The noise multiplier is the standard deviation of "
    "the noise over the clipping bound of one contribution.{} A step that was repeated after a "
    "crash is charged as often as it may have been sent."
)
_RELEASED_BY_ALL = (
    " Here it is that of a single noised sum from which everything that the observer and the "
    "colluders see could be made: noise that others add, and that the colluders do not know, "
    "counts in it."
)
_HOW_TO_CHECK = (
    "statement.json, which belongs to this page, holds every mechanism and every charged step. The "
    "command 'tacit privacy check statement.json' recomputes each epsilon from that file alone; "
    "'tacit privacy ledger' does so from the ledger. With --ledger it tells as well whether a "
    "ledger that is shown later goes on from the head below, or is an older copy. The digest shows "
    "damage and careless edits, not who wrote the statement."
)


def statement_page(document: Mapping[str, Any], signatures: Mapping[str, str] | None = None) -> str:
    """Give the page of a statement, in HTML, from `statement.json` alone, its digest included.

    `signatures` says of each site whether it has signed, as that was verified; None: not asked.
    """
    run, rows = document["run"], document["nodes"]
    eyebrow, count = "Statement of privacy", count_text(len(rows), "node")
    subject = f"{document['algorithm']['title']} on {document['task']['dataset']}, {count}"
    made = f"Run {run['run']}, stated on {_day(document['date'])} by tacit "
    model, recorded = document["trust_model"]["name"], document["audit"]
    terms = document["ledger"].get("trust")
    audit = None if recorded is None else read(RunAudit, recorded, "audit")
    trust = None if terms is None else read(TrustTerms, terms, "trust")
    alarm = audit_alarm(audit)
    unit = read(StatementUnit, document["unit"], "unit")
    guarantees = [(row["epsilon"], row["delta"]) for row in rows]
    guesses = [*map(node_guess, rows)]
    right_guess = protection(guarantees, guesses).right_guess
    epsilon = epsilon_words(max(row["epsilon"] for row in rows))
    delta = epsilon_text(max(row["delta"] for row in rows))
    over = ", the highest of all nodes" if len(rows) > 1 else ""
    more = f" Besides: {person_text(unit)}." if unit.apart else ""
    certified = (
        f"Certified: epsilon {epsilon} at delta {delta}{over}. A blind guess is right with "
        f"{_HALF}. Relation {document['relation']['name']}, unit one {unit.name}, trust model "
        f"{model}.{more}"
    )
    observer = observer_words(model, trust)
    seen = "saw what the observer sees, knew everything else about the data"
    if trust is None:
        seen = "saw everything that the nodes sent, knew everything else"
    names = {row["node"]: row.get("name") for row in rows}
    words = document["mechanisms_in_words"]
    cells = ((row["node"], _node_cells(row)) for row in rows)
    accounts = document["ledger"]["nodes"]
    released = ((row["node"], (_release_text(row, words),)) for row in accounts)
    relied: list[Block] = []
    if trust is not None:
        deltas = [row["delta"] for row in rows]
        table = colluders_table(trust.epsilon_by_colluders, deltas, trust.colluding)
        relied = [*texts(trust_texts(model, trust)), table, Text(_BY_COLLUDERS)]
    found = texts([_NO_AUDIT])
    if audit is not None:
        asked = [Text("The tests asked:"), Items(audit.asked)] if audit.asked else []
        found = [*found_blocks(audit, rows[0]["audited"]), *asked]
        found += [Text("What an audit does not show:"), Items(NOT_SHOWN)]
    blocks: list[Block] = [
        Heading(eyebrow, subject, f"{made}{document['tacit_version']}"),
        *([] if alarm is None else [alarm]),
        *([SIMULATED] if trust is not None and trust.simulated else []),
        verdict(unit, guarantees, guesses).banner(observer, certified, in_doubt=alarm is not None),
        _card("In plain words", *texts(plain_words(document)), Text(_LAWYER)),
        *_parties(document),
        _card("Declared", Text(_DECLARED), Pairs(declared_pairs(document))),
        _card(
            "What is guaranteed (computed)",
            *texts(
                (
                    f"Suppose someone {seen}, and had to guess which of two neighbouring data sets "
                    f"a node had, at even odds. They would be right with probability "
                    f"{right_guess} at most, at the node with the weakest guarantee; a blind guess "
                    f"is right with {_HALF}.",
                    f"Unit of protection: {document['unit']['meaning']}.",
                    f"Neighbours: {document['relation']['meaning']}.",
                    f"Observer: {document['trust_model']['meaning']}.",
                    "This page calls the protection by how often that guess is right at most: "
                    f"{LEVELS}",
                    document["epsilon_meaning"],
                ),
            ),
        ),
        _card(
            "Each node",
            _table((_NODE_COLUMNS[0], unit.plural, *_NODE_COLUMNS[1:]), cells, names),
            Text(_COLUMNS_MEAN),
        ),
        *([_card("Whom this rests on", *relied)] if relied else []),
        _card("What an audit found", *found),
        *_data(document),
        _card("What is not covered", Items(document["not_covered"])),
        _card("What this rests on", Items(document["assumptions"], tag="ol")),
        _card(
            "Annex: the guarantee in figures",
            Pairs(curve_facts(document)),
            Text(_ERRORS),
            Table(_ERROR_COLUMNS, error_rows(document)),
        ),
        _card(
            "Annex: what was released",
            Text(_RELEASED.format("" if trust is None else _RELEASED_BY_ALL)),
            _table(("nodes", "mechanism"), released, names),
        ),
        _card(
            "Annex: how to check it",
            Text(_HOW_TO_CHECK),
            Pairs(_facts(document), _DIGESTS),
            Text(_SOFTWARE),
            Pairs(tuple(document["software"].items()), (_SOURCE,)),
        ),
        *_signatures(document, signatures),
    ]
    return html(blocks, title=f"{eyebrow}: {subject}", signed=True)


def _card(title: str, *blocks: Block) -> Titled:
    return Titled(title, blocks, "card")


def _facts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    run, task, algorithm = document["run"], document["task"], document["algorithm"]
    schema = document.get("schema_digest")
    return [
        ("Algorithm", f"{algorithm['title']} ({algorithm['paper']})"),
        ("Task", f"{task['dataset']}, {task['model']}, {task['parameters']:,} parameters"),
        *([("Features", task["features"])] if task.get("features") else []),
        ("Run entered", f"{_day(run['created'])}, by tacit {run['tacit_version']}"),
        ("Status of the run", run["status"]),
        ("Accounting", document["accounting"]),
        ("Digest of the plan", run["plan_digest"]),
        ("Head of the ledger", run["ledger_head"]),
        ("Key of the ledger", run["ledger_key"]),
        *([("Digest of the schema", schema)] if schema else []),
        ("Digest of this statement", document["digest"]),
    ]


def _table(
    columns: Sequence[str],
    cells_by_node: Iterable[tuple[int, tuple[str, ...]]],
    names: Mapping[int, str | None] | None = None,
) -> Table:
    """A table in which the nodes of which the same is said share a row."""
    groups = alike((cells, node) for node, cells in cells_by_node)
    rows = [
        (node_list(nodes, [(names or {}).get(node) for node in nodes]), *cells)
        for cells, nodes in groups.items()
    ]
    return Table(columns, rows, left=("nodes", "mechanism"), note=size_note(rows))


def _parties(document: Mapping[str, Any]) -> list[Block]:
    """Who takes part: declared organisations, and keys, where the consortium vouched for them."""
    keys = {site["name"]: site["fingerprint"] for site in document.get("sites", ())}
    rows = [
        (name, row.get("organisation", NOT_DECLARED), keys.get(name, NOTHING))
        for row in document["nodes"]
        if (name := row.get("name") or f"node {row['node']}") in keys or "organisation" in row
    ]
    if not rows:
        return []
    columns = ("node", "organisation (declared)", "fingerprint of its key")
    told = f"Keys are those of the consortium {document['consortium']}." if keys else ""
    return [_card("Who takes part", Table(columns, rows, left=columns), *texts([told]))]


def _signatures(
    document: Mapping[str, Any], signatures: Mapping[str, str] | None
) -> Iterator[Block]:
    """A block for each site to sign, or whoever signs; what was verified stands in its title."""
    names = signatures or {site["name"]: "" for site in document.get("sites", ())}
    for name, verified in names.items():
        yield _card(f"Signature of {name}", *texts([verified]), Items(_SIGN, "sign"))
    if not names:
        yield Items(_SIGN, "sign")


def _node_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f"{row['records']:,}",
        f"{row['signal_share']:.1%}",
        percent_up_text(node_guess(row)),
        epsilon_words(row["epsilon"]),
        epsilon_text(row["delta"]),
        NOTHING if row["budget"] is None else f"{row['budget']:.6g}",
        "not run" if row["audited"] is None else lower_words(row["audited"]),
    )


def _data(document: Mapping[str, Any]) -> list[Block]:
    """What all runs on the same data come to; nothing where no ledger of the data was kept."""
    ledger = document["data_ledger"]
    if ledger is None:
        return []
    run = document["run"]["run"]
    heads = [
        f"{file['file']}: head {file['head']}, key {file['public_key']}" for file in ledger["files"]
    ]
    cells = [
        (
            release["node"],
            (
                str(len({other["run"] for other in row["releases"] if other["steps"]})),
                epsilon_words(row["epsilon"]),
                epsilon_text(row["delta"]),
                f"{row['epsilon_budget']:.6g}",
            ),
        )
        for row in ledger["nodes"]
        for release in row["releases"]
        if (release["run"], release["data"]) == (run, row["data"])
    ]
    more, unit = len(heads) - _HEADS, read(StatementUnit, document["unit"], "unit")
    of_rows = of_rows_text(unit, {run.get("unit", "record") for run in ledger["runs"]})
    return [
        _card(
            "All runs on the same data",
            Text(_ALL_RUNS),
            _table(_DATA_COLUMNS, cells),
            *texts([] if of_rows is None else [of_rows]),
            Text("The ledgers of the data, as they were:"),
            Items(heads[:_HEADS]),
            *texts([f"and {more} more, in statement.json."] if more > 0 else []),
        )
    ]


def _release_text(row: Mapping[str, Any], mechanisms: Sequence[str]) -> str:
    return "; ".join(
        f"{mechanisms[release['mechanism']]}; {release['steps']:,} steps charged"
        for release in row["releases"]
    )


def _day(stamp: str) -> str:
    return stamp.partition("T")[0]
