"""What is claimed, certified and attacked, as documents: of `tacit privacy claims` and audits."""

from __future__ import annotations

from tacit.report.documents.base import Count, Document, Flag, Items, Number, OptionalNumber, Text
from tacit.report.documents.run import ClaimCondition

__all__ = ["AttackRow", "AuditDocument", "AuditedBound", "ClaimRow", "ClaimsDocument"]


class ClaimRow(Document):
    """One setting: what its paper claims, and what is proved.

    `mechanism` is one line, `noise_multiplier` `(first, last)`, `lower` a proved lower bound,
    `violated` the texts of the conditions that do not hold. An infinite number is null, with
    `claimed_infinite` or `certified_infinite` true.
    """

    paper: Text
    algorithm: Text
    experiment: Text
    reading: Text
    kindest: Flag
    relation: Text | None
    noise_multiplier: tuple[OptionalNumber, OptionalNumber] | None
    delta: OptionalNumber
    mechanism: Text | None
    claimed: OptionalNumber
    claimed_infinite: Flag
    certified: OptionalNumber
    certified_infinite: Flag
    lower: OptionalNumber
    conditions: Items[ClaimCondition]
    violated: Items[Text]
    verdict: Text
    missing: Text


class ClaimsDocument(Document):
    """Claimed and certified epsilon, row by row; `source` names the experiment, or the papers."""

    format_version: Count
    source: Text
    rows: Items[ClaimRow]


class AuditedBound(Document):
    """A lower bound beside the certificate, at one delta."""

    delta: Number
    epsilon: OptionalNumber
    certified: OptionalNumber


class AttackRow(Document):
    """One attack and the lower bound it gives; see `tacit.analysis.audit.report.Attack`."""

    name: Text
    statistic: Text
    method: Text
    epsilon: OptionalNumber
    hardest: AuditedBound
    confidence: Number
    repetitions: Count
    guesses: dict[str, Number]


class AuditDocument(Document):
    """What an audit found; see `tacit.analysis.audit.report.AuditReport`."""

    format_version: Count
    audited_epsilon: OptionalNumber
    certified_epsilon: OptionalNumber
    claimed_epsilon: OptionalNumber
    delta: Number
    confidence: Number
    certified_violated: Flag
    repeated_noises: Count
    defect: Flag
    claim_violated: Flag | None
    verdict: Text
    claim_verdict: Text
    algorithm: Text
    relation: Text
    mechanism: Text
    trust_model: Text
    nodes: Items[Count]
    steps: Count
    attacks: Items[AttackRow]
    seconds: Number
