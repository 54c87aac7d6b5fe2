"""What ledgers say, and the statement of a run, as documents that prove themselves.

Both may come from another party: keys that are not known are refused, but for what a statement
takes over from a result as it stands, and every figure is recomputed from what stands beside it
(`tacit.analysis.ledger_report.confirm`, `tacit.analysis.statement.check_statement`).
"""

from __future__ import annotations

from typing import Any, ClassVar

from tacit.report.documents.base import Count, Document, Items, Number, OptionalNumber, Text
from tacit.report.documents.run import AlgorithmNames, PublishedClaim, RunAudit, TaskNames
from tacit.report.documents.trust import TrustTerms
from tacit.report.documents.unit import UnitTerms


class LedgerFile(Document):
    """A ledger's file: whose it is, and its head, which stands for all that it says."""

    file: Text
    of: Text
    created: Text
    tacit_version: Text
    head: Text
    public_key: Text


class LedgerRun(Document):
    """A run in it: its identity, the digest of its plan, and the version that entered it.

    `apart` is false where several nodes of it may hold one record of a source. `unit` is what its
    epsilon was of in a ledger of data, as `privacy.unit` says; not given where each record was.
    `unsent` are the steps, `(first, until)`, that its last stop kept charged though they were not
    sent; not given where there are none.
    """

    run: Text
    created: Text
    tacit_version: Text
    plan_digest: Text
    apart: bool = True
    unit: Text = "record"
    unsent: tuple[Count, Count] | None = None


class LedgerRelease(Document):
    """What a run released from an account.

    `mechanism` is a place in the report's `mechanisms`, `charged` the steps as `(first, until,
    times)`. `steps` (their number) and `epsilon` (of this release alone) are figures that follow.
    """

    run: Text
    node: Count
    data: Text
    mechanism: Count
    charged: Items[tuple[Count, Count, Count]]
    steps: Count | None = None
    epsilon: OptionalNumber = None


class LedgerAccount(Document):
    """An account: of a node of a run (`node`), or of a source of records (`data`).

    `epsilon` (certified, of all that was released) and `left` of the budget are figures that
    follow. `name` is a node's, as the run's experiment says it, where it has one.
    """

    node: Count | None = None
    data: Text | None = None
    file: Text
    epsilon_budget: OptionalNumber
    delta: OptionalNumber
    releases: Items[LedgerRelease]
    epsilon: OptionalNumber = None
    left: OptionalNumber = None
    name: Text | None = None


class LedgerReport(Document):
    """What ledgers say; see `tacit.analysis.ledger_report`.

    `trust` is taken over from the result of a run whose nodes share noise; what it says of epsilon
    follows from the mechanisms (`tacit.analysis.colluders`). It is not given elsewhere.
    """

    version: ClassVar[int] = 4
    format_version: Count
    tacit_version: Text
    path: Text
    files: Items[LedgerFile]
    runs: Items[LedgerRun]
    mechanisms: Items[dict[str, Any]]
    nodes: Items[LedgerAccount]
    trust: TrustTerms | None = None

    def units(self, account: LedgerAccount) -> set[str]:
        """What epsilon was of in the runs that an account was charged for.

        Where a record is among them, what was spent bounds a row, and nobody who has several.
        """
        of = {run.run: run.unit for run in self.runs}
        return {of[release.run] for release in account.releases if release.charged}


class DefinedName(Document):
    """A name, and what it means in one sentence."""

    name: Text
    meaning: Text


class StatementUnit(UnitTerms):
    """Whom epsilon protects, and what that means in one sentence."""

    meaning: Text


class StatementRun(LedgerRun):
    """The run that a statement is of, and by which ledgers."""

    status: Text
    ledger_head: Text
    ledger_key: Text


class StatementTask(TaskNames):
    """What was learnt, and by how many parameters."""

    parameters: Count


class StatementNode(Document):
    """What holds for one node: `epsilon` is certified by its ledger. Some have a `name`.

    `signal_share` is how much its records count in the model, as the run's result says, and
    `right_guess`, of a run whose budget is a guess, certified by its ledger too.
    """

    node: Count
    records: Count
    signal_share: Number
    epsilon: Number
    delta: Number
    budget: OptionalNumber
    claimed: OptionalNumber
    audited: OptionalNumber
    name: Text | None = None
    organisation: Text | None = None
    right_guess: Number | None = None


class StatementCurve(Document):
    """What the weakest guarantee, that of `node`, says beside its epsilon.

    Args:
        right_guess: how often the best guess between two data sets is right at most, at even odds.
        epsilons: of other deltas, as (delta, epsilon).
        errors: of a test of whether a record was there, as (false accusations, least misses).
        mu: of a Gaussian that is as telling, but for events of the stated delta; None: no bound.
    """

    node: Count
    right_guess: Number
    epsilons: Items[tuple[Number, OptionalNumber]]
    errors: Items[tuple[Number, Number]]
    mu: OptionalNumber


class StatementSite(Document):
    """A site of the consortium, as its bundle says it: `fingerprint` is of its key."""

    name: Text
    rank: Count
    fingerprint: Text


class Statement(Document):
    """What a run guarantees; see `tacit.analysis.statement`. The digest is of all the rest.

    `choosing` says of a trial of a search that its epsilon is that of all trials; else it is left
    out. `declared` is what people say of the run in `[statement]`, word for word, and `curve` what
    the weakest guarantee says beside its epsilon. `software` is what wrote the statement, and
    `schema_digest` the SHA-256 of the run's schema.toml, where it has one. `sites` are given where
    a member of the consortium that ran wrote it.
    """

    version: ClassVar[int] = 7
    kind: Text
    format_version: Count
    date: Text
    tacit_version: Text
    run: StatementRun
    algorithm: AlgorithmNames
    task: StatementTask
    accounting: Text
    relation: DefinedName
    unit: StatementUnit
    trust_model: DefinedName
    epsilon_meaning: Text
    claim: PublishedClaim
    audit: RunAudit | None
    nodes: Items[StatementNode]
    mechanisms_in_words: Items[Text]
    ledger: LedgerReport
    data_ledger: LedgerReport | None
    assumptions: Items[Text]
    not_covered: Items[Text]
    curve: StatementCurve
    declared: dict[str, Text]
    software: dict[str, Text]
    schema_digest: Text | None = None
    consortium: Text | None = None
    sites: Items[StatementSite] = ()
    digest: Text | None = None
    choosing: Text | None = None


class ConfirmedStatement(Document):
    """What was confirmed of a statement: `nodes` counts them, epsilon and delta are the highest.

    `unit` is whom epsilon protects. `colluding` nodes may pool all that they know; None where each
    node relies on its own noise alone, and any number may. `data_epsilon` is that of all runs on
    the data; None without their ledger. `ledgers` are the files that contain what the statement
    saw; None where none was given. `audit_alarms` names what accused the program in an audit.
    """

    run: Text
    nodes: Count
    epsilon: Number
    delta: Number
    trust_model: Text
    unit: StatementUnit
    colluding: Count | None
    data_epsilon: OptionalNumber
    date: Text
    tacit_version: Text
    checked_by: Text
    ledgers: Items[Text] | None
    audit_alarms: Items[Text]
