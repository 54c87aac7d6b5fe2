"""What is claimed, certified and attacked, as documents: of `tacit privacy claims` and audits."""

from __future__ import annotations

from tacit.report.documents.base import Count, Document, Flag, Items, Number, OptionalNumber, Text
from tacit.report.documents.run import ClaimCondition

__all__ = ["Attack", "AuditDocument", "ClaimRow", "ClaimsDocument", "Comparison"]


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


class Comparison(Document):
    """A lower bound beside the certificate, an upper bound, both at one delta."""

    delta: Number
    epsilon: Number
    certified: Number

    @property
    def violated(self) -> bool:
        """Whether more was extracted than is certified."""
        return self.epsilon > self.certified


class Attack(Document):
    """One attack and the lower bound it gives.

    Args:
        name: what was done.
        statistic: what its guesses rest on.
        method: how guesses became a bound: `clopper-pearson`, `gaussian-dp` or `one-run`.
        epsilon: the lower bound at the report's delta.
        hardest: where it speaks most against the certificate: the same error rates bound epsilon
            at every delta.
        confidence: of these bounds alone; the report's holds for all attacks together.
        repetitions: that were counted; for `one-run` canaries.
        guesses: what was counted, by name.
    """

    name: Text
    statistic: Text
    method: Text
    epsilon: Number
    hardest: Comparison
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
    attacks: Items[Attack]
    seconds: Number
