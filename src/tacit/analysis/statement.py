"""What a run guarantees, to be handed over and signed: a JSON that proves itself, and a page.

Every epsilon in a statement is that of the ledger: of the steps that were charged, a killed
session's included. Mechanisms and charged steps stand in it, so that everything is recomputed from
the JSON alone (`check_statement`). Its digest tells damage and careless edits; it has no secret, so
it does not tell who wrote the statement: a signature does. The heads of the ledgers stand in it:
whoever keeps it can tell whether a ledger that is shown later is an older copy.

Its parts (`tacit.report.documents.ledger.Statement`): `run`, `algorithm`, `task`, `relation`,
`unit` and `trust_model` each with its meaning, `audit` (what the last one found; null without one),
`nodes` (certified, claimed and audited epsilon, one a node), `ledger`
(`tacit.analysis.ledger_report`), `mechanisms_in_words` in its order, `data_ledger` (of all runs on
the same data; null without `[privacy].ledger`), `assumptions`, `not_covered`, `curve`
(`tacit.analysis.ledger_report`), `declared` (of `[statement]`, word for word), `software`,
`schema_digest`, `sites`, `digest`. No digest of records stands in it: it would tell whoever has
guessed them that they guessed right.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import starmap
from pathlib import Path
from typing import Any

from tacit.analysis.ledger_report import (
    check_contained,
    confirm,
    confirm_figures,
    confirm_person,
    curve_figures,
    ledger_document,
    right_guess,
    weakest_curve,
    whole,
)
from tacit.base.plain_files import read_plain, read_toml
from tacit.base.private_files import plain_errors, write_private
from tacit.base.version import __version__
from tacit.config import Config, StatementSection
from tacit.errors import FormatError, InputError
from tacit.identities.bundle import Bundle
from tacit.privacy import from_statement
from tacit.privacy.ledger.file import fingerprint
from tacit.privacy.ledger.ledger import StepRun, lacking_steps
from tacit.privacy.ledger.spent import combined, released
from tacit.privacy.mechanisms.base import against, observer
from tacit.report.documents.base import as_dict, dump, load_file, parse_file, plain_json, read
from tacit.report.documents.ledger import (
    ConfirmedStatement,
    DefinedName,
    LedgerReport,
    Statement,
    StatementNode,
    StatementRun,
    StatementSite,
    StatementTask,
    StatementUnit,
)
from tacit.report.documents.run import LET_IT_END, NOT_THERE, OWN_LEDGER, ResultDocument
from tacit.report.documents.trust import TrustTerms
from tacit.report.documents.tune import TrialMark
from tacit.report.documents.unit import RECORD, UnitTerms
from tacit.report.statement_page import statement_page
from tacit.report.statement_words import nist_answers, registry_record
from tacit.report.trust_words import (
    COUNTING_ON_OTHERS,
    TRUST_MODELS,
    of_rows_text,
    relation_meaning,
    server_words,
    unit_meaning,
)
from tacit.report.wording import count_text, number_text, with_article
from tacit.training.budget import with_person
from tacit.training.run_folder.folder import read_config

KIND = "tacit privacy statement"

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
    "and are gone: noise and sampling coins are stretches of an AES-256 or ChaCha20 keystream, "
    "taken to be indistinguishable from random by anyone without the key. Privacy is computational "
    "to that extent.",
    "What is released is rounded to a public lattice, and what finite arithmetic adds to epsilon "
    "is part of the figures, as the documentation of tacit.privacy.noise.slack proves and assumes. "
    "That no record moves a sum by more than its bound, rounding included, is proved in "
    "docs/proofs/clipped-sums.md, for batches of the same records but one, and for a model that "
    "computes each row by itself. Of a module of one's own that was tried out, and not proved.",
    "Which records joined a step stays secret; the rates, batch sizes, clipping bounds, noise "
    "levels, the number J of records of each node and how much a node counts are public and were "
    "chosen without looking at private data.",
    "The ledger that this rests on is the run's own and only one: it was neither replaced nor "
    "copied and continued elsewhere. Its key was kept secret: who has it can write another.",
)
_ROWS = (
    "Records are those of one node alone: a record that is held by several nodes is released by "
    "each of them."
)
_PERSONS = (
    "Two data sets of a node are neighbours if all rows of {one} at that node are there, or none "
    "contributes (by the relation replace-one: are any others). Whose a row is, its id says: rows "
    "of {one} under several ids are those of several. Of more than {rows} of {one} at a node, "
    "public coins choose those that count."
)
_COMPARED = "Ids were compared over all nodes: no {name} has rows at more than {nodes}."
_PROMISED = (
    "That no {name} has rows at more than {nodes} is a promise of the consortium "
    "(privacy.unit_nodes): no process knows the ids of another's."
)
_GROUP = (
    "What is said of {one} rests on a promise, which nothing checked: that none has more than "
    "{rows} at a node (privacy.unit_rows), or rows at more than {nodes} (privacy.unit_nodes)."
)
_VIEWS = (
    "The gradient of a record was the mean over {views} of it (augmentation {name}), and that mean "
    "was clipped. A view is a function of the record, of its number and of public settings alone."
)
_OWN_VIEWS = " Of a function of one's own that was tried out, and not proved."
_PASSES = {
    precision: (
        f"Forward and backward passes were in {words}, and contributions were bounded in float32, "
        "whatever a pass gave. The bound is for batches of the same slots. Where batches vary in "
        "size, one record more may change what the others give by the rounding of such numbers, "
        f"one part in {parts}; how far that may move a sum is not proved.",
    )
    for precision, words, parts in (
        ("tf32", "TensorFloat-32, where they were on a CUDA device", "2,048"),
        ("bf16", "bfloat16", "256"),
    )
}
_FIXED_END = (
    "The settings were fixed before the run began. If it ended before its planned steps, that was "
    "not decided by what it had released by then: the epsilon of fewer steps does not cover a stop "
    "that someone chose by looking at the models."
)
_ANY_END = (
    "The settings were fixed before the run began. It ended after step {steps} of {planned}, and "
    "what it had released by then may have decided that: so all planned steps are charged, and "
    "epsilon is that of the whole plan, of which a run that is cut short is a function."
)
_ONE_PROCESS = (
    "All nodes ran in one process of one machine, whose owner can see everything: the trust model "
    "holds for those who see the messages, not for that machine."
)
_PROCESSES = (
    "The nodes ran in {processes} processes. Who runs a process can see everything of its nodes: "
    "the trust model holds for those who see their messages. The ledgers of all processes were "
    "brought to one place for this statement. If a process was lost, nobody had let it be lost at "
    "a step that they chose by what they had seen."
)
_PART = (
    "The nodes ran in several processes. This is the statement of one of them, of its own nodes by "
    "its own ledger; what others spent is theirs to state. Who runs a process can see everything "
    "of its nodes: the trust model holds for those who see their messages. If a process was lost, "
    "nobody had let it be lost at a step that they chose by what they had seen."
)
_HONEST = (
    "All nodes followed the protocol, and all but {colluding} kept to themselves what only a node "
    "may know: its noise, and the secrets that it shares with others. A node that leaves out its "
    "noise, or gives secrets away, counts as one of these. Nodes that send false numbers can spoil "
    "the model; no epsilon bounds that."
)
_KEYS = (
    "The secrets of two nodes came from keys of X25519 that their processes made at every start, "
    "by HKDF-SHA256. No certificate said whose a key was: whoever relayed the keys is trusted not "
    "to have put its own in their place."
)
_SIGNED_KEYS = (
    "The secrets of two nodes came from keys of X25519 that their sites made for this run, by "
    "HKDF-SHA256. Each public key was signed with the identity of its site, which the coordinator "
    "of the consortium vouched for."
)
_FEATURES = (
    "The model was trained on features of the records: on what the map '{}' makes of them. It was "
    "fixed without looking at the private records, and is a function of each record alone (proved "
    "for scattering; a function of one's own was tried out): so epsilon is that of the records "
    "that features are made of, as docs/proofs/features.md shows."
)
_ALL_RUNS = (
    "The figure for all runs on the same data is that of their composition with settings that do "
    "not depend on what earlier runs released. Where every record joins every step (Gaussian "
    "differential privacy) it also holds for settings chosen by looking (Smith and Thakurta, 2022, "
    "arXiv 2210.17520); for sampled batches that is not proved. It counts the runs in the ledger "
    "only: whatever else was released from the same records comes on top. A run counts for all "
    "records of a source that it drew on (docs/proofs/ledgers.md). That no source holds another's "
    "is known by their inputs: records that were scaled or changed between two runs are others."
)
_CHOSEN = (
    "The run is a trial of a search, whose best trial is used: every epsilon of a node here is "
    "that of all runs in the ledger of its data, all trials included, and not that of this run "
    "alone."
)

_SCHEMA = (
    "what the schema declares of the records: columns, ranges, categories, what is filled in for "
    "what is missing. It is public, and must not have been made by looking at private records"
)
_TRAINED_FEATURES = "the records that the map of features was trained on, if it was trained"
_END = "when a run ends, and how many steps it makes: chosen beforehand, or charged in full"
_MOST_SCHEMA = 2**26


def write_statement(
    run: Path,
    out: Path | None = None,
    ledger: Path | None = None,
    *,
    declared: Path | None = None,
    registry: Path | None = None,
    answers: str | None = None,
    bundle: Bundle | None = None,
) -> tuple[Path, ...]:
    """Write `statement.json` and `statement.html` of a run, and give their paths.

    They go to the folder `out`, made if missing; by default the run's. Files that say the same are
    left as they are, with their date; others are never overwritten. `ledger` is the folder of the
    ledgers of the run's data, where they have moved since it ran. `declared` is a file whose
    `[statement]` stands in place of the experiment's. `registry` is a file for the record of the
    deployments registry; `answers`, "nist", adds `statement-nist.md`; `bundle` says whose the keys
    of sites are.

    Raises:
        InputError: the run is not private or not accounted, its ledger is in use or damaged, no
            finite epsilon holds, a registry asks for what nobody declared, or other files are in
            the place of the statement.
    """
    if answers not in (None, "nist"):
        raise InputError("--answers", answers, "must be 'nist'")
    run, folder = Path(run), Path(run if out is None else out)
    document = statement_document(run, ledger, declared=declared, bundle=bundle)
    path = folder / "statement.json"
    statement = _earlier_statement(path, document)
    if statement is None:
        statement = document.model_copy(update={"digest": _digest(plain_json(document))})
    plain = plain_json(statement)
    contents = {
        path: dump(statement),
        folder / "statement.html": statement_page(plain),
        **({} if registry is None else {Path(registry): registry_record(plain)}),
        **({} if answers is None else {folder / "statement-nist.md": nist_answers(plain)}),
    }
    for path, content in contents.items():
        if path.exists() and not _says(path, content.encode()):
            expected = "is there and says something else: move it away, or choose another --out"
            raise InputError("statement", str(path), expected)
    with plain_errors("statement", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in contents.items():
            if not path.exists():
                write_private(path, content.encode())
    return tuple(contents)


def _says(path: Path, content: bytes) -> bool:
    with suppress(OSError):
        return read_plain(path, len(content)) == content
    return False


def _earlier_statement(path: Path, document: Statement) -> Statement | None:
    """The statement that is there already, if it differs in its date alone."""
    try:
        values = parse_file(path)
        earlier = read(Statement, values, str(path))
    except InputError:
        return None
    dated = document.model_copy(update={"date": earlier.date, "digest": earlier.digest})
    return earlier if earlier == dated and earlier.digest == _digest(values) else None


def statement_document(
    run: Path,
    ledgers: Path | None = None,
    *,
    declared: Path | None = None,
    bundle: Bundle | None = None,
) -> Statement:
    """The statement of a run, but for its digest; errors are as for `write_statement`."""
    mark = _trial_mark(run)
    result = _result(run)
    config = read_config(run)
    # The folder that it happened to be read from is not part of what is stated.
    in_one_process = (run / "ledger.sqlite").exists() or not any(run.glob("rank-*"))
    ledger = ledger_document(run / "ledger.sqlite" if in_one_process else run)
    where = "ledger.sqlite" if in_one_process else "rank-*/ledger.sqlite"
    ledger = ledger.model_copy(update={"path": where})
    hosted = [node for node, by in enumerate(result.epsilon_source or ()) if by == OWN_LEDGER]
    is_part = in_one_process and 0 < len(hosted) < result.node_count
    in_one_process = in_one_process and not is_part
    said = config.statement if declared is None else _declared(declared)
    count = len(hosted) if is_part else result.node_count
    nodes = _nodes(run, result, ledger, count, said.organisations or {})
    _check_charged(run, result, ledger, ledger)
    first = from_statement(ledger.mechanisms[0])
    (entered,) = ledger.runs
    data_ledger = of_rows = None
    if config.privacy.ledger is not None:
        folder = Path(config.privacy.ledger if ledgers is None else ledgers)
        data_ledger = ledger_document(folder, entered.run).model_copy(update={"path": folder.name})
        if not data_ledger.nodes:
            expected = f"the ledger of the data of {run}, which is not entered in it"
            raise InputError("privacy.ledger", str(folder), expected)
        _check_charged(folder, result, ledger, data_ledger)
        of = set().union(*map(data_ledger.units, data_ledger.nodes))
        of_rows = of_rows_text(result.unit, of)
    more: dict[str, Any] = {}
    if mark is not None:
        if data_ledger is None:
            expected = "is a trial of a search, and nothing says what all of its trials cost"
            raise InputError("RUN", str(run), expected)
        if of_rows is not None:
            raise InputError("privacy.ledger", str(run), f"cannot be stated. {of_rows}")
        totals = _totals(entered.run, data_ledger)
        nodes = tuple(row.model_copy(update={"epsilon": totals[row.node]}) for row in nodes)
        more["choosing"] = _CHOSEN
    charged = ledger if mark is None or data_ledger is None else data_ledger
    unit = _certified_unit(result.unit, charged)
    if (schema := run / "schema.toml").is_file():
        more["schema_digest"] = hashlib.sha256(read_plain(schema, _MOST_SCHEMA)).hexdigest()
    assumptions = [*_assumed(unit, in_one_process, config, result, ledger)]
    where = _ONE_PROCESS if in_one_process else _PROCESSES.format(processes=len(ledger.files))
    assumptions.append(_PART if is_part else where)
    assumptions += _trust_assumptions(ledger.trust, observer(first.trust_model))
    assumptions += [] if data_ledger is None else [_ALL_RUNS]
    assumptions += [] if of_rows is None else [of_rows]
    features = config.task.feature_map
    assumptions += [] if features is None else [_FEATURES.format(features)]
    assumptions += [] if mark is None else [_CHOSEN]
    sites = () if bundle is None else bundle.sites
    own = [site for site in sites if site.name in {node.name for node in nodes}]
    if bundle is not None and own:
        more["consortium"] = bundle.consortium
        more["sites"] = tuple(
            StatementSite(name=site.name, rank=site.rank or 0, fingerprint=site.fingerprint)
            for site in own
        )
    return Statement(
        **more,
        kind=KIND,
        format_version=Statement.version,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        tacit_version=__version__,
        run=StatementRun(
            **as_dict(entered),
            status=result.status,
            ledger_head=", ".join(file.head for file in ledger.files),
            ledger_key=", ".join(fingerprint(file.public_key) for file in ledger.files),
        ),
        algorithm=result.algorithm_names,
        task=StatementTask(**as_dict(result.task), parameters=result.parameters),
        accounting=result.accounting,
        relation=DefinedName(name=first.relation, meaning=relation_meaning(first.relation, unit)),
        unit=StatementUnit(**as_dict(unit), meaning=unit_meaning(unit)),
        trust_model=DefinedName(
            name=first.trust_model, meaning=TRUST_MODELS[observer(first.trust_model)]
        ),
        epsilon_meaning=unit.said(EPSILON_MEANING),
        claim=result.claim,
        audit=result.audit,
        nodes=nodes,
        mechanisms_in_words=tuple(
            unit.said(from_statement(statement).explain(number_text))
            for statement in ledger.mechanisms
        ),
        ledger=ledger,
        data_ledger=data_ledger,
        assumptions=tuple(assumptions),
        not_covered=(
            *result.not_covered,
            *((_SCHEMA,) if config.task.schema is not None else ()),
            *((_TRAINED_FEATURES,) if ":" in (config.task.feature_map or "") else ()),
            _END,
        ),
        curve=weakest_curve(nodes, entered.run, charged),
        declared=said.model_dump(exclude={"organisations"}, exclude_none=True),
        software=_software(),
    )


def _declared(path: Path) -> StatementSection:
    """The `[statement]` of a file, which may be an experiment."""
    values = read_toml(path, "--declared", "file with a section [statement]").get("statement")
    if not isinstance(values, Mapping):
        raise InputError("--declared", str(path), "must have a section [statement]")
    return StatementSection.model_validate(values)


@functools.cache
def _software() -> dict[str, str]:
    """What writes the statement: versions, and the SHA-256 of all source files of tacit in order.

    A file counts by its path within the package, a zero byte, its content and a zero byte.
    """
    digest, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(path.read_bytes() + b"\0")
    names = ("torch", "numpy", "scipy", "numba", "cryptography")
    return {
        "tacit": __version__,
        "tacit source (SHA-256)": digest.hexdigest(),
        "Python": platform.python_version(),
        "compiler of Python": platform.python_compiler(),
        **{name: version(name) for name in names},
        "processor": platform.processor() or platform.machine(),
        "system": platform.system(),
    }


def _certified_unit(unit: UnitTerms, ledger: LedgerReport | None) -> UnitTerms:
    """The terms with what is certified of a person, by all that a ledger has released."""
    if not unit.apart or ledger is None:
        return unit
    known = [from_statement(statement) for statement in ledger.mechanisms]
    accounts = (
        combined(released(known[one.mechanism], list(starmap(StepRun, one.charged))) for one in own)
        for own in (account.releases for account in ledger.nodes)
    )
    deltas = [account.delta for account in ledger.nodes if account.delta is not None]
    return with_person(unit, [one for one in accounts if one is not None], min(deltas))


def _unit_assumptions(unit: UnitTerms, in_one_process: bool) -> tuple[str, ...]:
    terms = {
        "name": unit.name,
        "one": with_article(unit.person or ""),
        "rows": count_text(unit.rows, "row"),
        "nodes": count_text(unit.nodes, "node"),
    }
    if unit.person is None:
        return (_ROWS,)
    if unit.gradient is None:
        return _ROWS, _GROUP.format(**terms)
    where = _COMPARED if in_one_process else _PROMISED
    return _PERSONS.format(**terms), where.format(**terms)


def _assumed(
    unit: UnitTerms,
    in_one_process: bool,
    config: Config,
    result: ResultDocument,
    ledger: LedgerReport,
) -> Iterator[str]:
    """What is assumed of what ran, of whose the records are, and of why the run ended."""
    yield from map(unit.said, _ASSUMPTIONS)
    yield from _unit_assumptions(unit, in_one_process)
    if (name := config.task.augmentation) is not None:
        views = _VIEWS.format(name=name, views=count_text(config.train.views or 1, "view"))
        yield views + _OWN_VIEWS if ":" in name else views
    yield from _PASSES.get(config.train.precision, ())
    charged = [
        [(first, until) for release in row.releases for first, until, _ in release.charged]
        for row in ledger.nodes
    ]
    early = result.steps < result.planned_steps
    # Where every planned step is charged, nothing is assumed of why it ended.
    if early and not any(lacking_steps(own, result.planned_steps) for own in charged):
        yield _ANY_END.format(steps=result.steps, planned=result.planned_steps)
    else:
        yield _FIXED_END


def _trial_mark(run: Path) -> TrialMark | None:
    """What a search says of its trial; None of a run that is none.

    Raises:
        InputError: it is the winner of a secret number of trials, which has no ledger of its own.
    """
    path = run / "trial.json"
    if not path.is_file():
        return None
    mark = load_file(TrialMark, path)
    if mark.cost == "random-stopping":
        expected = (
            "is the winner of a secret number of trials: what it costs is no composition of steps "
            "that a ledger holds; tune.json of the search states it, with its terms"
        )
        raise InputError("RUN", str(run), expected)
    return mark


def _totals(run: str, ledger: LedgerReport) -> dict[int, float]:
    """Of each node of a run, what all runs on its data cost."""
    totals: dict[int, float] = {}
    for row in ledger.nodes:
        for release in row.releases:
            if release.run == run and row.epsilon is not None:
                totals[release.node] = max(totals.get(release.node, 0.0), row.epsilon)
    return totals


def _trust_assumptions(terms: TrustTerms | None, model: str) -> tuple[str, ...]:
    if terms is None:
        return ()
    rule = _HONEST.format(colluding=count_text(terms.colluding, "node"))
    if terms.simulated:
        return (rule,)
    server = (server_words(terms),) if model == "secure-sum" else ()
    return (rule, *server, _SIGNED_KEYS if terms.keys_signed else _KEYS)


def _result(run: Path) -> ResultDocument:
    """The result of a private, accounted run."""
    path = run / "result.json"
    try:
        result = load_file(ResultDocument, path)
    except FormatError:
        raise
    except InputError as error:
        if not path.is_file():
            expected = f"has no result.json: {LET_IT_END}" if run.is_dir() else NOT_THERE
            raise InputError("RUN", str(run), expected) from None
        raise InputError("RUN", str(path), f"a result that is whole ({error})") from None
    if not result.private:
        reason = result.not_private_reason
        raise InputError("RUN", str(run), f"is not private, so nothing can be stated: {reason}")
    return result


def _nodes(
    run: Path,
    result: ResultDocument,
    ledger: LedgerReport,
    count: int,
    organisations: Mapping[str, str],
) -> tuple[StatementNode, ...]:
    """One row for each of `count` nodes: certified by the ledger, the rest by the result."""
    known = result.node_names or [str(node) for node in range(result.node_count)]
    for name in organisations:
        if name not in known:
            expected = f"must be by the nodes of the run: {', '.join(known)}"
            raise InputError("statement.organisations", name, expected)
    if len(ledger.nodes) != count:
        expected = f"the ledger of {count} nodes; it has {len(ledger.nodes)}"
        if (run / "rank-0000").exists():
            expected += f": bring those of all processes here, or state its own: {run}/rank-0000"
        raise InputError("RUN", str(run), expected)
    rows = []
    names = result.node_names
    for account in ledger.nodes:
        node = account.node
        if node is None or account.epsilon is None or account.delta is None:
            raise InputError("RUN", str(run), "has no finite epsilon, so nothing can be stated")
        key, more = known[node], dict[str, Any]()
        if names is not None:
            more["name"] = names[node]
        if key in organisations:
            more["organisation"] = organisations[key]
        if result.guess is not None:
            more["right_guess"] = right_guess(node, ledger.runs[0].run, ledger)
        rows.append(
            StatementNode(
                node=node,
                records=result.records[node],
                signal_share=result.signal_share[node],
                epsilon=account.epsilon,
                delta=account.delta,
                budget=account.epsilon_budget,
                claimed=result.claimed_epsilon[node],
                audited=result.audited_epsilon,
                **more,
            )
        )
    return tuple(rows)


def _check_charged(
    where: Path, result: ResultDocument, own: LedgerReport, ledger: LedgerReport
) -> None:
    """Refuse a ledger, of the run itself or of its data, that lacks steps which the run has made.

    `ledger`, which lies at `where`, is checked; `own` is that of the run itself.
    """
    several = len(own.files) > 1
    if several and result.status == "diverged":
        return  # where one process's nodes diverged, those of another may have been behind
    (entered,) = own.runs
    # The ledgers of other processes' data may lie elsewhere.
    charged: dict[int, list[tuple[int, int]]] = {}
    if not several:
        charged = {row.node: [] for row in own.nodes if row.node is not None}
    for row in ledger.nodes:
        for release in row.releases:
            if release.run == entered.run:
                steps = [(first, until) for first, until, _ in release.charged]
                charged.setdefault(release.node, []).extend(steps)
    for node, intervals in charged.items():
        if count := lacking_steps(intervals, result.steps):
            expected = (
                f"the ledger as the run left it: {count} of its {result.steps} steps are not "
                f"charged to node {node}, so that it is an older copy"
            )
            raise InputError("ledger", str(where), expected)


def check_statement(path: Path, ledger: Path | None = None) -> ConfirmedStatement:
    """Recompute every epsilon of a statement from its JSON alone.

    `ledger` is a ledger of its run or of its data, or a folder with all of them, as it is now:
    whether it contains what the statement saw is checked as well.

    Raises:
        InputError: the file is no statement, was changed, or a figure does not follow; or the
            ledger is older than the statement, or another.
    """
    values, statement = _read(path)
    with whole("statement", "statement", str(path)):
        return _confirmed(path, statement, _digest(values), ledger)


def signed_page(path: Path, signatures: Mapping[str, str]) -> str:
    """The page of a statement that lies at a path, with what was verified of each site's signature.

    Raises:
        InputError: the file is no statement, or was edited.
    """
    values, statement = _read(path)
    if statement.digest != _digest(values):
        raise InputError("statement", str(path), "an unedited statement: its digest does not match")
    return statement_page(values, signatures)


def _read(path: Path) -> tuple[Mapping[str, Any], Statement]:
    """What stands in a statement's file, and the statement; an InputError where it is none."""
    try:
        values = parse_file(path)
    except InputError as error:
        reason = error.expected
        expected = f"must be the statement.json that `tacit privacy statement` wrote ({reason})"
        raise InputError("statement", str(path), expected) from None
    if values.get("kind") != KIND:
        raise InputError("statement", str(path), f"a JSON of the kind {KIND!r}")
    try:
        return values, read(Statement, values, str(path))
    except FormatError:
        raise
    except InputError as error:
        raise InputError("statement", str(path), f"a whole statement: {error}") from None


def _confirmed(
    path: Path, statement: Statement, digest: str, ledger: Path | None
) -> ConfirmedStatement:
    """What holds of a statement at `path`; `digest` is of what stands in the file."""
    confirm(statement.ledger)
    totals: Mapping[int, float] = {}
    if statement.choosing is not None:
        if statement.data_ledger is None:
            raise ValueError("the ledger of all trials is missing")
        totals = _totals(statement.run.run, statement.data_ledger)
    for row, account in zip(statement.nodes, statement.ledger.nodes, strict=True):
        for key in ("node", "epsilon", "delta"):
            stated, reserved = getattr(row, key), getattr(account, key)
            if key == "epsilon" and statement.choosing is not None:
                reserved = totals[row.node]
            if stated != reserved:
                where = f"{key} of node {account.node}"
                raise InputError(where, stated, f"must be {reserved}, by its own ledger")
        if row.right_guess is not None:
            where = f"right guess of node {account.node}"
            anew = right_guess(row.node, statement.run.run, statement.ledger)
            pairs = ([(where, value, 0.0)] for value in (row.right_guess, anew))
            confirm_figures(statement.ledger, *pairs)
    for mechanism in map(from_statement, statement.ledger.mechanisms):
        for key in ("relation", "trust_model"):
            name, proper = getattr(statement, key).name, getattr(mechanism, key)
            if name != proper:
                raise InputError(key, name, f"must be {proper!r}, by its own mechanisms")
        # What a node counts is the mechanism's record, whatever it is called.
        name = statement.unit.name if statement.unit.gradient is None else "record"
        if name != mechanism.unit:
            raise InputError("unit", name, f"must be {mechanism.unit!r}, by its own mechanisms")
    charged = statement.ledger if statement.choosing is None else statement.data_ledger
    person = _certified_unit(statement.unit, charged) if statement.unit.apart else RECORD
    confirm_person(statement.ledger, statement.unit, person)
    _check_trust(statement)
    ledgers = statement.ledger if charged is None else charged
    again = weakest_curve(statement.nodes, statement.run.run, ledgers)
    confirm_figures(statement.ledger, curve_figures(statement.curve), curve_figures(again))
    of_data: list[float] = []
    if statement.data_ledger is not None:
        confirm(statement.data_ledger)
        of_data = [row.epsilon for row in statement.data_ledger.nodes if row.epsilon is not None]
        if len(of_data) < len(statement.data_ledger.nodes):
            raise ValueError("no finite epsilon holds for all runs on the data")
    if statement.digest is None:
        raise ValueError("the digest is missing")
    if statement.digest != digest:
        raise InputError("statement", str(path), "an unedited statement: its digest does not match")
    # What accused the program: of the last audit by name, of earlier ones how many.
    alarms, audit = list[str](), statement.audit
    if audit is not None:
        alarms = [failure.name for failure in audit.failures]
        earlier = audit.earlier_alarms
        alarms += [count_text(earlier, "earlier audit")] if earlier else []
    return ConfirmedStatement(
        run=statement.run.run,
        nodes=len(statement.nodes),
        epsilon=max(row.epsilon for row in statement.nodes),
        delta=max(row.delta for row in statement.nodes),
        trust_model=observer(statement.trust_model.name),
        unit=statement.unit,
        colluding=None if statement.ledger.trust is None else statement.ledger.trust.colluding,
        data_epsilon=max(of_data, default=None),
        date=statement.date,
        tacit_version=statement.tacit_version,
        checked_by=__version__,
        ledgers=None if ledger is None else tuple(_contained(statement, ledger)),
        audit_alarms=tuple(alarms),
    )


def _check_trust(statement: Statement) -> None:
    """Refuse a statement that lacks the terms of its trust model, or has those of another."""
    name, terms = statement.trust_model.name, statement.ledger.trust
    if (terms is None) == (observer(name) in COUNTING_ON_OTHERS):
        expected = "must stand in the ledger of" if terms is None else "must be null under"
        colluding = None if terms is None else terms.colluding
        raise InputError("trust", colluding, f"{expected} the trust model {name!r}")
    if terms is not None and name != against(observer(name), terms.colluding):
        raise InputError("trust", terms.colluding, f"is not that of the trust model {name!r}")


def _contained(statement: Statement, ledger: Path) -> list[str]:
    """The ledgers that contain what the statement saw of them."""
    for stated in (statement.ledger, statement.data_ledger):
        files = [] if stated is None else check_contained(stated.files, ledger)
        if files:
            return files
    expected = "a ledger of the run of this statement, or of its data; it is neither"
    raise InputError("--ledger", str(ledger), expected)


def _digest(document: Mapping[str, Any]) -> str:
    """Of everything but the digest itself, whatever the layout of the file."""
    rest = {key: value for key, value in document.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()
