"""What a run guarantees, to be handed over and signed: a JSON that proves itself, and a page.

Every epsilon in a statement is that of the ledger: of the steps that were charged, a killed
session's included. Mechanisms and charged steps stand in it, so that everything is recomputed from
the JSON alone (`check_statement`). Its digest tells damage and careless edits; it has no secret, so
it does not tell who wrote the statement: a signature does. The heads of the ledgers stand in it:
whoever keeps it can tell whether a ledger that is shown later is an older copy.

Format, version 2: `run`, `algorithm`, `task`, `relation`, `unit` and `trust_model` each with its
meaning, `nodes` (certified, claimed and audited epsilon, one a node), `ledger`
(`tacit.analysis.ledger_report`), `mechanisms_in_words` in its order, `data_ledger` (of all runs on
the same data; null without `[privacy].ledger`), `assumptions`, `not_covered`, `digest`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tacit import __version__
from tacit.analysis.ledger_report import check_contained, confirm, ledger_document
from tacit.errors import InputError
from tacit.privacy import from_statement
from tacit.privacy.ledger.file import fingerprint
from tacit.privacy.ledger.ledger import lacking_steps
from tacit.private_files import plain_errors, write_private
from tacit.report.statement_page import statement_page
from tacit.report.wording import number_text
from tacit.training.run_folder.folder import read_config
from tacit.training.run_folder.result import FORMAT_VERSION as RESULT_VERSION

__all__ = ["check_statement", "statement_document", "write_statement"]

FORMAT_VERSION = 2
KIND = "tacit privacy statement"

RELATIONS = {
    "add-or-remove-one": "two data sets of a node are neighbours if they differ in whether one "
    "record contributes at all; the number of records is public",
    "replace-one": "two data sets of a node are neighbours if one record has another value in the "
    "second",
}
UNITS = {
    "record": "one record of one node; a person with k records is protected k times less in "
    "epsilon, and by more than that in delta",
    "client": "all the data of one node",
}
TRUST_MODELS = {
    "all-messages": "the observer sees every message of every node at every step, the graph, the "
    "mixing weights, the start, who takes part, and all settings; it may be all the other nodes "
    "together, and knows everything else about the data",
    "server": "the observer is the server, or whoever it talks to: it sees every message of every "
    "client in every round, who takes part, and all settings, and knows everything else about the "
    "data; clients see only what the server sends them",
}
EPSILON_MEANING = (
    "Whatever an observer does with what it sees: every event has probabilities p and p' under two "
    "neighbouring data sets of a node with p <= e^epsilon p' + delta, and the other way round. "
    "Delta is the weight of events that the factor e^epsilon need not hold for; it must be far "
    "below 1 divided by the number of records. Epsilon bounds what taking part reveals, not what "
    "the data of others tell about a person."
)
_ASSUMPTIONS = (
    "What ran is what is stated: every record's contribution was clipped to its bound before it "
    "was added, the noise was added before the sum left the node, and sums were divided by the "
    "expected batch size, not by the number of records drawn. The software does so and is tested "
    "for it; this statement cannot show that it was not altered.",
    "The keys of the nodes were drawn from the operating system's random source, were kept secret, "
    "and are gone: noise and sampling coins are stretches of an AES-256 keystream, taken to be "
    "indistinguishable from random by anyone without the key. Privacy is computational to that "
    "extent.",
    "What is released is rounded to a public lattice, and what finite arithmetic adds to epsilon "
    "is part of the figures, as the documentation of tacit.privacy.noise.slack proves and assumes. "
    "That no record moves a sum by more than its bound, rounding included, is proved in "
    "docs/proofs/clipped-sums.md, for batches of the same records but one.",
    "Which records joined a step stays secret; the rates, batch sizes, clipping bounds, noise "
    "levels and the number of records J are public and were chosen without looking at the private "
    "records.",
    "The settings were fixed before the run began. If it ended before its planned steps, that was "
    "not decided by what it had released by then: the epsilon of fewer steps does not cover a stop "
    "that someone chose by looking at the models.",
    "Records are those of one node alone: a record that is held by several nodes is released by "
    "each of them.",
    "The ledger that this rests on is the run's own and only one: it was neither replaced nor "
    "copied and continued elsewhere. Its key was kept secret: who has it can write another.",
)
_ONE_PROCESS = (
    "All nodes ran in one process of one machine, whose owner can see everything: the trust model "
    "holds for those who see the messages, not for that machine."
)
_PROCESSES = (
    "The nodes ran in {processes} processes. Who runs a process can see everything of its nodes: "
    "the trust model holds for those who see their messages. The ledgers of all processes were "
    "brought to one place for this statement."
)
_ALL_RUNS = (
    "The figure for all runs on the same data is that of their composition with settings that do "
    "not depend on what earlier runs released. Where every record joins every step (Gaussian "
    "differential privacy) it also holds for settings chosen by looking (Smith and Thakurta, 2022, "
    "arXiv 2210.17520); for sampled batches that is not proved. It counts the runs in the ledger "
    "only: whatever else was released from the same records comes on top. Records are known by "
    "their inputs: those that were scaled or changed between two runs count as others, and of "
    "records with equal inputs a node is taken to keep its own while all its data stay the same."
)


def write_statement(
    run: Path, out: Path | None = None, ledger: Path | None = None
) -> tuple[Path, Path]:
    """Write `statement.json` and `statement.html` of a run.

    Files that say the same are left as they are, with their date; others are never overwritten.

    Args:
        run: a run folder.
        out: the folder to write to, made if missing; by default the run's.
        ledger: the folder of the ledgers of its data, where they have moved since it ran.

    Returns:
        The paths of the JSON and of the page.

    Raises:
        InputError: the run is not private or not accounted, its ledger is in use or damaged, no
            finite epsilon holds, or other files are in the place of the statement.
    """
    run, folder = Path(run), Path(run if out is None else out)
    document = statement_document(run, ledger)
    paths = folder / "statement.json", folder / "statement.html"
    statement = _earlier_statement(paths[0], document)
    if statement is None:
        statement = {**document, "digest": _digest(document)}
    contents = (
        json.dumps(statement, indent=2, allow_nan=False).encode(),
        statement_page(statement).encode(),
    )
    for path, content in zip(paths, contents, strict=True):
        if path.exists() and path.read_bytes() != content:
            expected = "is there and says something else: move it away, or choose another --out"
            raise InputError("statement", str(path), expected)
    with plain_errors("statement", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in zip(paths, contents, strict=True):
            if not path.exists():
                write_private(path, content)
    return paths


def _earlier_statement(path: Path, document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The statement that is there already, if it differs in its date alone."""
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
        same = {**earlier, "date": ""} == {**document, "date": "", "digest": earlier["digest"]}
        return earlier if same and earlier["digest"] == _digest(earlier) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def statement_document(run: Path, books: Path | None = None) -> dict[str, Any]:
    """The statement of a run as data, but for its digest.

    Raises:
        InputError: as for `write_statement`.
    """
    result = _result(run)
    config = read_config(run)
    # The folder that it happened to be read from is not part of what is stated.
    in_one_process = (run / "ledger.sqlite").exists() or not any(run.glob("rank-*"))
    ledger = {
        **ledger_document(run / "ledger.sqlite" if in_one_process else run),
        "path": "ledger.sqlite" if in_one_process else "rank-*/ledger.sqlite",
    }
    nodes = _nodes(run, result, ledger)
    _check_charged(run, result, ledger, ledger)
    first = from_statement(ledger["mechanisms"][0])
    (entered,) = ledger["runs"]
    data_ledger = None
    if config.privacy.ledger is not None:
        folder = Path(config.privacy.ledger if books is None else books)
        data_ledger = {**ledger_document(folder, entered["run"]), "path": folder.name}
        if not data_ledger["nodes"]:
            expected = f"the ledger of the data of {run}, which is not entered in it"
            raise InputError("privacy.ledger", str(folder), expected)
        _check_charged(folder, result, ledger, data_ledger)
    return {
        "kind": KIND,
        "format_version": FORMAT_VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "tacit_version": __version__,
        "run": {
            **entered,
            "status": result["status"],
            "ledger_head": ", ".join(file["head"] for file in ledger["files"]),
            "ledger_key": ", ".join(fingerprint(file["public_key"]) for file in ledger["files"]),
        },
        "algorithm": result["algorithm"],
        "task": {**result["task"], "parameters": result["parameters"]},
        "accounting": result["accounting"],
        "relation": {"name": first.relation, "meaning": RELATIONS[first.relation]},
        "unit": {"name": first.unit, "meaning": UNITS[first.unit]},
        "trust_model": {"name": first.trust_model, "meaning": TRUST_MODELS[first.trust_model]},
        "epsilon_meaning": EPSILON_MEANING,
        "claim": result["claim"],
        "nodes": nodes,
        "mechanisms_in_words": [
            from_statement(statement).explain(number_text) for statement in ledger["mechanisms"]
        ],
        "ledger": ledger,
        "data_ledger": data_ledger,
        "assumptions": [
            *_ASSUMPTIONS,
            _ONE_PROCESS if in_one_process else _PROCESSES.format(processes=len(ledger["files"])),
            *([] if data_ledger is None else [_ALL_RUNS]),
        ],
        "not_covered": result["not_covered"],
    }


def _result(run: Path) -> dict[str, Any]:
    """The result of a private, accounted run."""
    path = run / "result.json"
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version, private = result["format_version"], result["private"]
    except OSError:
        expected = "has no result.json: name a run folder, or let the run come to a stop (--resume)"
        raise InputError("RUN", str(run), expected) from None
    except (ValueError, KeyError, TypeError):
        raise InputError("RUN", str(path), "a result that is whole") from None
    if version != RESULT_VERSION:
        expected = f"a result of format {RESULT_VERSION}; this is {version}"
        raise InputError("RUN", str(path), expected)
    if not private:
        reason = result["not_private_reason"]
        raise InputError("RUN", str(run), f"is not private, so nothing can be stated: {reason}")
    return result


def _nodes(run: Path, result: Mapping[str, Any], ledger: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a node: certified by the ledger, the rest by the result."""
    rows = ledger["nodes"]
    if len(rows) != result["nodes"]:
        expected = f"the ledger of {result['nodes']} nodes; it has {len(rows)}"
        raise InputError("RUN", str(run), expected)
    if any(row["epsilon"] is None or row["delta"] is None for row in rows):
        raise InputError("RUN", str(run), "has no finite epsilon, so nothing can be stated")
    return [
        {
            "node": row["node"],
            "records": result["records"][place],
            "epsilon": row["epsilon"],
            "delta": row["delta"],
            "budget": row["epsilon_budget"],
            "claimed": result["claimed_epsilon"][place],
            "audited": result["audited_epsilon"],
        }
        for place, row in enumerate(rows)
    ]


def _check_charged(
    where: Path, result: Mapping[str, Any], own: Mapping[str, Any], ledger: Mapping[str, Any]
) -> None:
    """Refuse a ledger, of the run itself or of its data, that lacks steps which the run has made.

    Args:
        where: it lies.
        result: of the run.
        own: the run's ledgers as a document.
        ledger: what is checked, likewise.
    """
    several = len(own["files"]) > 1
    if several and result["status"] == "diverged":
        return  # where one process's nodes diverged, those of another may have been behind
    (entered,) = own["runs"]
    # The ledgers of other processes' data may lie elsewhere.
    charged: dict[int, list[tuple[int, int]]] = {}
    if not several:
        charged = {row["node"]: [] for row in own["nodes"]}
    for row in ledger["nodes"]:
        for release in row["releases"]:
            if release["run"] == entered["run"]:
                steps = [(first, until) for first, until, _ in release["charged"]]
                charged.setdefault(release["node"], []).extend(steps)
    for node, intervals in charged.items():
        if count := lacking_steps(intervals, result["steps"]):
            expected = (
                f"the ledger as the run left it: {count} of its {result['steps']} steps are not "
                f"charged to node {node}, so that it is an older copy"
            )
            raise InputError("ledger", str(where), expected)


def check_statement(path: Path, ledger: Path | None = None) -> dict[str, Any]:
    """Recompute every epsilon of a statement from its JSON alone.

    Args:
        path: of the statement's JSON.
        ledger: a ledger of its run or of its data, or a folder with all of them, as it is now:
            whether it contains what the statement saw is checked as well.

    Returns:
        What was confirmed: `run`, `nodes` (how many), `epsilon` and `delta` (the highest),
        `data_epsilon` (the highest of all runs on the data, or None), `date`, `tacit_version`,
        `checked_by`, and `ledgers` (the files that contain what it saw; None where not asked).

    Raises:
        InputError: the file is no statement, was changed, or a figure does not follow; or the
            ledger is older than the statement, or another.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InputError("statement", str(path), f"a statement.json ({error})") from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise InputError("statement", str(path), f"a JSON of the kind {KIND!r}")
    if document.get("format_version") != FORMAT_VERSION:
        version = document.get("format_version")
        expected = f"a statement of format {FORMAT_VERSION}; this is {version}"
        raise InputError("statement", str(path), expected)
    try:
        confirmed = _checked(path, document)
        return {**confirmed, "ledgers": None if ledger is None else _contained(document, ledger)}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        expected = f"a whole statement: {type(error).__name__}: {error}"
        raise InputError("statement", str(path), expected) from None


def _checked(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    ledger, data_ledger = document["ledger"], document["data_ledger"]
    confirm(ledger)
    for row, booked in zip(document["nodes"], ledger["nodes"], strict=True):
        for key in ("node", "epsilon", "delta"):
            if row[key] != booked[key]:
                where = f"{key} of node {booked['node']}"
                raise InputError(where, row[key], f"must be {booked[key]}, by its own ledger")
    for statement in ledger["mechanisms"]:
        mechanism = from_statement(statement)
        for key in ("relation", "unit", "trust_model"):
            if document[key]["name"] != getattr(mechanism, key):
                expected = f"must be {getattr(mechanism, key)!r}, by its own mechanisms"
                raise InputError(key, document[key]["name"], expected)
    if data_ledger is not None:
        confirm(data_ledger)
    if document["digest"] != _digest(document):
        raise InputError("statement", str(path), "an unedited statement: its digest does not match")
    return {
        "run": document["run"]["run"],
        "nodes": len(document["nodes"]),
        "epsilon": max(row["epsilon"] for row in document["nodes"]),
        "delta": max(row["delta"] for row in document["nodes"]),
        "data_epsilon": data_ledger and max(row["epsilon"] for row in data_ledger["nodes"]),
        "date": document["date"],
        "tacit_version": document["tacit_version"],
        "checked_by": __version__,
    }


def _contained(document: Mapping[str, Any], ledger: Path) -> list[str]:
    """The ledgers that contain what the statement saw of them."""
    for stated in (document["ledger"], document["data_ledger"]):
        files = [] if stated is None else check_contained(stated["files"], ledger)
        if files:
            return files
    expected = "a ledger of the run of this statement, or of its data; it is neither"
    raise InputError("--ledger", str(ledger), expected)


def _digest(document: Mapping[str, Any]) -> str:
    """Of everything but the digest itself, whatever the layout of the file."""
    content = {key: value for key, value in document.items() if key != "digest"}
    text = json.dumps(content, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()
