"""What ledgers say, as a document: every epsilon recomputed from the files alone.

The document is complete in itself: whoever has it can recompute its figures (`confirm`) without
the files. Format, version 4:

- `files`: the ledgers it was read from: whose each is (`of`), its `head`, which stands for all that
  it says and is found again in every later state of it (`check_contained`), and its `public_key`;
- `mechanisms`: mechanisms as `tacit.privacy.to_statement` writes them;
- `runs`: each with its identity, the digest of its plan, and the version that entered it;
- `nodes`: a row for each account: of a run's ledger, one a node (`node`); of ledgers of data, one a
  source (`data`). Each with its budget, the certified epsilon of all that was released of its
  records, at `delta`, what that leaves of the budget, and `releases`: which mechanism (a place in
  `mechanisms`) of which run, at which node of it, the charged steps as `[first, until, times]`, and
  the epsilon of that release alone. Of what several nodes of a run released of a source, epsilon
  counts the worst, or all of it where the run is not `apart` (`tacit.privacy.ledger.spent`). None
  of this follows from a record, but what the owner of a ledger has declared;
- `trust`: of a run whose nodes hide behind each other, what its result says of that, with the
  epsilon of all that was charged against 0, 1, 2 ... colluders (`tacit.analysis.colluders`).

An epsilon is null where no finite one holds. `left` is a plain difference: epsilons of separate
runs do not add up, so that a further run may fit although its own epsilon is above it, or not fit.

What a guarantee says beside one epsilon, other deltas, errors of a test and a Gaussian mu
(`weakest_curve`), follows from points of the curve as `tacit.privacy.accounting.curve` says.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tacit import privacy
from tacit.analysis.colluders import epsilon_against
from tacit.base.plain_files import read_toml
from tacit.base.version import __version__
from tacit.errors import InputError
from tacit.privacy import from_statement
from tacit.privacy.accounting.curve import curve_points, gaussian_mu, least_misses, worst_epsilon
from tacit.privacy.ledger.file import fingerprint
from tacit.privacy.ledger.ledger import EnteredRun, Snapshot, StepRun, read_ledger, step_runs
from tacit.privacy.ledger.shared import account_files
from tacit.privacy.ledger.spent import alternatives, compositions, cost, released
from tacit.privacy.mechanisms.base import Mechanism
from tacit.report.documents.base import parse_file, plain_json, read
from tacit.report.documents.ledger import (
    LedgerAccount,
    LedgerFile,
    LedgerRelease,
    LedgerReport,
    LedgerRun,
    StatementCurve,
    StatementNode,
)
from tacit.report.documents.trust import TrustTerms
from tacit.report.documents.unit import UnitTerms
from tacit.report.wording import count_text, guess_bound, node_list

Figure = tuple[str, float | None, float]
"""What a figure is of, the figure, and the size of others that it may be a difference of."""
OTHER_DELTAS = (1e-4, 1e-6, 1e-8, 1e-10)
FALSE_POSITIVES = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5)
_SAME_VERSION = 1e-9  # relative: the same code on the same numbers
_OTHER_VERSION = 1e-2  # a later accountant may bound more tightly


def ledger_document(path: Path, run: str | None = None) -> LedgerReport:
    """Everything that ledgers say, recomputed, in the format that the module describes.

    `path` is a ledger's file, a folder with ledgers of data (`data-NAME.sqlite`, ...), or a run
    folder, also one with a ledger a process (`rank-0000/ledger.sqlite`, ...). With a ledger of
    data, those beside it are read too: they may be of its source. Of ledgers of data, only those
    that a `run` drew on, if one is named.

    Raises:
        InputError: there is no ledger, or one is damaged, edited, or in use by a run.
    """
    path = Path(path)
    snapshots = _snapshots(path)
    mechanisms: list[Mapping[str, Any]] = []
    if any(snapshot.data is not None for snapshot in snapshots.values()):
        beside = snapshots if path.is_dir() else _snapshots(path.parent)
        rows, used = _data_rows(path, snapshots, beside, mechanisms, run)
    else:
        rows, used = _node_rows(path, snapshots, mechanisms), snapshots
    released = {release.run for row in rows for release in row.releases}
    runs = tuple(row for row in _runs(used.values()) if row.run in released)
    figures = _figures(mechanisms, runs)
    document = LedgerReport(
        format_version=LedgerReport.version,
        tacit_version=__version__,
        path=str(path),
        files=tuple(
            LedgerFile(
                file=_name(path, file),
                of=_whose(snapshot),
                created=snapshot.created,
                tacit_version=snapshot.tacit_version,
                head=snapshot.head,
                public_key=snapshot.public_key,
            )
            for file, snapshot in used.items()
        ),
        runs=runs,
        mechanisms=tuple(dict(mechanism) for mechanism in mechanisms),
        nodes=tuple(figures(row) for row in rows),
    )
    terms = None if document.nodes[:1] and document.nodes[0].data is not None else _terms(path)
    if terms is None or len(terms.own) != len(document.nodes):
        return document
    against = {"epsilon_by_colluders": epsilon_against(document, terms)}
    return document.model_copy(update={"trust": terms.model_copy(update=against)})


def _terms(path: Path) -> TrustTerms | None:
    """What the result beside a run's ledgers says of whom its nodes rely on."""
    file = (path if path.is_dir() else path.parent) / "result.json"
    if not file.is_file():
        return None
    terms = parse_file(file).get("trust")
    return None if terms is None else read(TrustTerms, terms, f"{file}: trust")


def _snapshots(path: Path) -> dict[Path, Snapshot]:
    files = [path]
    if (path / "ledger.sqlite").is_file():
        files = [path / "ledger.sqlite"]
    elif path.is_dir():
        files = account_files(path) or sorted(path.glob("rank-*/ledger.sqlite"))
    if not files:
        expected = "a ledger, a folder with data-NAME.sqlite and so on, or a run folder"
        raise InputError("FILE", str(path), expected)
    return {file: read_ledger(file) for file in files}


def _name(path: Path, file: Path) -> str:
    """A ledger's file as seen from the folder that was asked for."""
    return str(file.relative_to(path)) if path in file.parents else file.name


def _whose(snapshot: Snapshot) -> str:
    if snapshot.data is not None:
        return f"data {snapshot.data.source}, from node {snapshot.data.first} on"
    nodes = node_list([account.node for account in snapshot.accounts])
    return f"run {snapshot.runs[0].run_id}, nodes {nodes}"


def _node_rows(
    path: Path, snapshots: Mapping[Path, Snapshot], mechanisms: list[Mapping[str, Any]]
) -> list[LedgerAccount]:
    """A row for each node of a run, without its figures."""
    experiment = (path if path.is_dir() else path.parent) / "config.toml"
    nodes: Mapping[str, Any] = {}  # as the experiment beside a run's ledgers has them
    if experiment.is_file():
        nodes = read_toml(experiment, "config.toml", "experiment").get("nodes", {})
    names = {number: {"name": name} for number, name in enumerate(nodes.get("names", ()))}
    rows = [
        LedgerAccount(
            node=account.node,
            file=_name(path, file),
            epsilon_budget=account.epsilon_budget,
            delta=account.delta,
            releases=tuple(_release(run, account.node, "", mechanisms) for run in snapshot.runs),
            **names.get(account.node, {}),
        )
        for file, snapshot in snapshots.items()
        for account in snapshot.accounts
    ]
    return sorted(rows, key=lambda row: row.node or 0)


def _data_rows(
    path: Path,
    requested: Mapping[Path, Snapshot],
    beside: Mapping[Path, Snapshot],
    mechanisms: list[Mapping[str, Any]],
    only: str | None,
) -> tuple[list[LedgerAccount], dict[Path, Snapshot]]:
    """A row, without its figures, for each source that is wanted, and all ledgers of these."""
    known: dict[str, dict[Path, Snapshot]] = {}
    for file, snapshot in beside.items():
        if snapshot.data is not None:
            known.setdefault(snapshot.data.source, {})[file] = snapshot
    wanted = {
        snapshot.data.source
        for snapshot in requested.values()
        if snapshot.data is not None and only in {None, *(run.run_id for run in snapshot.runs)}
    }
    entered: dict[str, tuple[str, int]] = {}  # a run enters one ledger after the other
    for ledger in (ledger for files in known.values() for ledger in files.values()):
        for place, run in enumerate(ledger.runs):  # which tells runs of one second apart
            when, last = entered.get(run.run_id, (run.created, place))
            entered[run.run_id] = min(run.created, when), max(place, last)
    order = {run: place for place, run in enumerate(sorted(entered, key=entered.__getitem__))}
    rows = []
    for source in wanted:
        files = known[source]
        accounts = [one.data for one in files.values() if one.data is not None]
        releases = [
            _release(run, node, source, mechanisms)
            for one in files.values()
            for run in one.runs
            for node in run.statements
        ]
        releases.sort(key=lambda release: (order[release.run], release.node))
        rows.append(
            LedgerAccount(
                data=source,
                file=", ".join(sorted(_name(path, file) for file in files)),
                epsilon_budget=min(account.epsilon_budget for account in accounts),
                delta=min(account.delta for account in accounts),
                releases=tuple(releases),
            )
        )
    used = {file: one for source in sorted(wanted) for file, one in known[source].items()}

    def first(row: LedgerAccount) -> tuple[int, int, str]:
        """By which the accounts of one run stand together, in the order of its nodes."""
        places = [(order[release.run], release.node) for release in row.releases[:1]]
        return (*(places[0] if places else (-1, 0)), row.data or "")

    return sorted(rows, key=first), used


def _release(
    run: EnteredRun, node: int, account: str, mechanisms: list[Mapping[str, Any]]
) -> LedgerRelease:
    """What a run released from an account; a new mechanism is added to the list."""
    statement = run.statements[node]
    if statement not in mechanisms:
        mechanisms.append(statement)
    return LedgerRelease(
        run=run.run_id,
        node=node,
        data=account,
        mechanism=mechanisms.index(statement),
        charged=tuple(
            (steps.first, steps.until, steps.times) for steps in step_runs(run.charged[node])
        ),
    )


def _runs(snapshots: Iterable[Snapshot]) -> list[LedgerRun]:
    """Each run once, in the order of time."""
    runs = {run.run_id: run for snapshot in snapshots for run in snapshot.runs}
    rows = []
    for run in sorted(runs.values(), key=lambda run: run.created):
        row = LedgerRun(
            run=run.run_id,
            created=run.created,
            tacit_version=run.tacit_version,
            plan_digest=run.digest,
        )
        more: dict[str, Any] = {} if run.unsent is None else {"unsent": tuple(run.unsent)}
        more |= {} if run.apart else {"apart": False}
        more |= {} if run.unit == "record" else {"unit": run.unit}
        rows.append(row.model_copy(update=more))
    return rows


def _figures(
    mechanisms: Sequence[Mapping[str, Any]], runs: Sequence[LedgerRun]
) -> Callable[[LedgerAccount], LedgerAccount]:
    """What completes the row of a node with its figures; nodes that agree share the work."""
    known = [from_statement(statement) for statement in mechanisms]
    costs = functools.cache(cost)

    def complete(row: LedgerAccount) -> LedgerAccount:
        delta, budget = row.delta, row.epsilon_budget
        mechanisms = _released(row, known)
        releases = []
        for release, mechanism in zip(row.releases, mechanisms, strict=True):
            figures = {
                "steps": sum((until - first) * times for first, until, times in release.charged),
                "epsilon": None if delta is None else plain_json(costs(mechanism, delta)),
            }
            releases.append(release.model_copy(update=figures))
        total = None
        if delta is not None:
            total = max(costs(way, delta) for way in _ways(row, mechanisms, runs))
        left = None if budget is None or total is None else max(0.0, budget - total)
        return row.model_copy(
            update={"epsilon": plain_json(total), "left": left, "releases": tuple(releases)}
        )

    return complete


def _released(row: LedgerAccount, known: Sequence[Mechanism]) -> list[Mechanism | None]:
    """What each release of an account comes to."""
    return [
        released(known[one.mechanism], [StepRun(*steps) for steps in one.charged])
        for one in row.releases
    ]


def _ways(
    row: LedgerAccount, mechanisms: Sequence[Mechanism | None], runs: Sequence[LedgerRun]
) -> tuple[Mechanism | None, ...]:
    apart = {run.run: run.apart for run in runs}
    charged: dict[str, list[Mechanism | None]] = {}
    for release, mechanism in zip(row.releases, mechanisms, strict=True):
        charged.setdefault(release.run, []).append(mechanism)
    possible = [alternatives(all_, apart=apart[run]) for run, all_ in charged.items()]
    return compositions(possible, row.delta or 0.0)


def possible_releases(document: LedgerReport, row: LedgerAccount) -> tuple[Mechanism | None, ...]:
    """What one record of an account may have been through: the worst of these bounds it."""
    known = [from_statement(statement) for statement in document.mechanisms]
    return _ways(row, _released(row, known), document.runs)


def confirm(document: LedgerReport) -> None:
    """Recompute every figure of a document from its mechanisms and charged steps.

    Raises:
        InputError: a figure is not what follows, or a place that is named is not there.
    """
    with whole("document", "ledger document", document.path):
        figures = _figures(document.mechanisms, document.runs)
        for row in document.nodes:
            confirm_figures(document, _account_figures(row), _account_figures(figures(row)))
        if document.trust is not None:
            recomputed = epsilon_against(document, document.trust)
            stated = _trust_figures(document.trust.epsilon_by_colluders)
            confirm_figures(document, stated, _trust_figures(recomputed))


def confirm_figures(
    document: LedgerReport, stated: Iterable[Figure], recomputed: Iterable[Figure]
) -> None:
    """Refuse figures that are not those that follow from a document.

    Two agree within a tolerance, relative to the larger of their sizes.
    """
    tolerance = _SAME_VERSION if document.tacit_version == __version__ else _OTHER_VERSION
    for (where, value, size), (_, again, _) in zip(stated, recomputed, strict=True):
        agree = value == again
        if value is not None and again is not None:
            agree = abs(value - again) <= tolerance * max(abs(again), size)
        if not agree:
            raise InputError(where, value, f"must be {again}, by its own mechanisms")


def confirm_person(document: LedgerReport, stated: UnitTerms, again: UnitTerms) -> None:
    """Refuse figures of a person that are not those that follow from a document."""
    for key in ("epsilon", "delta"):
        figures = (((f"{key} of a person", getattr(unit, key), 0.0),) for unit in (stated, again))
        confirm_figures(document, next(figures), next(figures))


@contextmanager
def whole(kind: str, name: str, where: str) -> Iterator[None]:
    """Within, what does not fit together is refused as no whole document of its kind."""
    try:
        yield
    except InputError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        expected = f"a whole {kind}: {type(error).__name__}: {error}"
        raise InputError(name, where, expected) from None


def _account_figures(row: LedgerAccount) -> Iterator[Figure]:
    whose = f"node {row.node}" if row.data is None else f"data {row.data}"
    budget = row.epsilon_budget or 0.0  # of which what is left is a difference
    yield f"epsilon of {whose}", row.epsilon, budget
    yield f"left of {whose}", row.left, budget
    for release in row.releases:
        where = f"run {release.run[:8]} at {whose}"
        yield f"epsilon of {where}", release.epsilon, 0.0
        yield f"steps of {where}", release.steps, 0.0


def _trust_figures(by_colluders: Sequence[Sequence[float | None]]) -> Iterator[Figure]:
    for colluding, row in enumerate(by_colluders):
        for node, epsilon in enumerate(row):
            yield f"epsilon of node {node} against {count_text(colluding, 'colluder')}", epsilon, 0


def check_contained(files: Sequence[LedgerFile], path: Path) -> list[str]:
    """Refuse ledgers that are older than what a document saw of them.

    `files` are those that the document lists; `path` says where the ledgers are now, as for
    `ledger_document`. Given are the files, as seen now, that contain what the document saw; none
    where the ledgers are of other runs or data altogether.

    Raises:
        InputError: a ledger is missing, damaged or in use, is signed with another key, or its chain
            lacks the head that the document has.
    """
    current = {
        _whose(snapshot): (file, snapshot) for file, snapshot in _snapshots(Path(path)).items()
    }
    stated = {file.of: file for file in files}
    missing = [owner for owner in stated if owner not in current]
    if len(missing) == len(stated):
        return []
    if missing and Path(path).is_dir():
        expected = f"the ledgers that were there: the one of {missing[0]} is missing"
        raise InputError("--ledger", str(path), expected)
    for owner, (file, snapshot) in current.items():
        if owner not in stated:
            continue
        head, key = stated[owner].head, stated[owner].public_key
        if snapshot.public_key != key:
            expected = f"a ledger with the key {fingerprint(key)}; it has another"
            raise InputError("--ledger", str(file), expected)
        if head not in snapshot.heads:
            expected = (
                f"a ledger that goes on from the head {head[:16]}: it does not contain it, so that "
                "it is an older copy, or was continued from one"
            )
            raise InputError("--ledger", str(file), expected)
    return [str(file) for owner, (file, _) in current.items() if owner in stated]


def weakest_curve(nodes: Sequence[StatementNode], run: str, ledger: LedgerReport) -> StatementCurve:
    """What the weakest guarantee of a run's nodes says, by the ledger of the run or of its data."""
    node = max(nodes, key=lambda row: guess_bound(row.epsilon, row.delta))
    row = max(_accounts(node.node, run, ledger), key=lambda row: row.epsilon or 0.0)
    ways = possible_releases(ledger, row)
    points = curve_points(ways, node.delta)
    return StatementCurve(
        node=node.node,
        right_guess=(1 + points[0][1]) / 2,
        epsilons=tuple((delta, worst_epsilon(ways, delta)) for delta in OTHER_DELTAS),
        errors=tuple((rate, least_misses(points, rate)) for rate in FALSE_POSITIVES),
        mu=gaussian_mu(points, node.delta),
    )


def right_guess(node: int, run: str, ledger: LedgerReport) -> float:
    """How often a guess about a record of a node is right at most, by the ledger of a run."""
    rows = _accounts(node, run, ledger)
    ways = [way for row in rows for way in possible_releases(ledger, row) if way is not None]
    return max(map(privacy.right_guess, ways), default=0.5)


def _accounts(node: int, run: str, ledger: LedgerReport) -> Iterator[LedgerAccount]:
    for row in ledger.nodes:
        if any((release.run, release.node) == (run, node) for release in row.releases):
            yield row


def curve_figures(curve: StatementCurve) -> Iterator[Figure]:
    """Its figures, to be compared with those of another."""
    yield "node of the curve", curve.node, 0.0
    yield "right guess", curve.right_guess, 0.0
    yield "mu", curve.mu, 0.0
    for delta, epsilon in curve.epsilons:
        yield f"epsilon at delta {delta:g}", epsilon, 0.0
    for false, missed in curve.errors:
        yield f"least misses at {false:g}", missed, 1.0
