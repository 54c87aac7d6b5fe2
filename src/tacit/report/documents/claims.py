"""What is claimed, certified and attacked, as documents: of `tacit privacy claims` and audits."""

from __future__ import annotations

from tacit.report.documents.base import Count, Document, Flag, Items, Number, OptionalNumber, Text
from tacit.report.documents.run import AuditFailure, ClaimCondition


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
    """One attack, which guesses by a `statistic`, and its lower bound at the report's delta.

    Args:
        method: how guesses became a bound: `clopper-pearson`, `gaussian-dp` or `one-run`.
        hardest: where it speaks most against the certificate: the same error rates bound epsilon
            at every delta.
        confidence: of these bounds alone; the report's holds for all attacks together.
        repetitions: that were counted; for `one-run` canaries.
        alarm: whether the bound lies above the certificate even at a confidence that a correct
            program spoils in fewer than one audit of a million, all attacks and tests together.
    """

    name: Text
    statistic: Text
    method: Text
    epsilon: Number
    hardest: Comparison
    confidence: Number
    repetitions: Count
    guesses: dict[str, Number]
    alarm: Flag


class FidelityTest(Document):
    """What one test of fidelity found.

    Args:
        question: what it asks, for people: `Is the noise as large as planned?`
        passed: whether a correct program shows as much often enough.
        statistic: null where it is no number.
        meaning: what the statistic is, with its unit.
        p_value: how likely a correct program shows as much; 0 or 1 for tests that no correct
            program fails.
        exact: whether the p-value is; if not, it is an upper bound.
        saw: one sentence.
        power: the smallest defect that it finds with the audit's `power`, one sentence.
        noise_factor: that defect as a factor of the noise's standard deviation, below 1, where it
            is one: from it follows the epsilon that could hide; null: it is not of that kind.
    """

    name: Text
    question: Text
    passed: Flag
    statistic: OptionalNumber
    meaning: Text
    p_value: Number
    exact: Flag
    saw: Text
    power: Text
    noise_factor: OptionalNumber


class AuditedModel(Document):
    """A model whose training was audited.

    Its `place` is `laboratory`, where worst-case gradients are made, or `own model`.
    `gradient_path` says in words how the clipped sums of its records are computed.
    """

    place: Text
    model: Text
    parameters: Count
    gradient_path: Text


class PlantedAuditDocument(Document):
    """What a real run gave away of planted canaries; see `tacit.analysis.audit.deployed`.

    Args:
        audited_epsilon: that the run refutes whatever its mechanism is; 0: none.
        audited_epsilon_of_plan: that it refutes if what ran is the plan with another amount of
            noise; 0: none. None where the mechanism of the run cannot be scaled.
        noise_less_than: the amount of noise that is refuted, over the planned one; None: none.
        certified_epsilon: the largest of these nodes.
        confidence: of the bounds, together.
        nodes: that hold canaries.
        guessed: how many coins were guessed, and `correct` how many rightly.
        chance_if_certified: of as many right guesses, at most, if the certificate holds.
        refuted: whether the run contradicts its certificate, at the confidence.
        defect: whether it does so beyond what a correct run shows once in a million audits.
    """

    format_version: Count
    audited_epsilon: Number
    audited_epsilon_of_plan: OptionalNumber
    noise_less_than: OptionalNumber
    certified_epsilon: OptionalNumber
    delta: Number
    confidence: Number
    relation: Text
    nodes: Items[Count]
    canaries: Count
    guessed: Count
    correct: Count
    chance_if_certified: Number
    refuted: Flag
    defect: Flag
    verdict: Text


class AuditDocument(Document):
    """What an audit found, at one `delta`; docs/how-to/audit.md has the keys one by one.

    Args:
        defect: whether what runs is not what was certified: an alarm, but for `alarm_rate`.
        alarm_rate: the chance, at most, that all tests and attacks together accuse a correct
            program.
        audited_epsilon: the largest lower bound: with `confidence`, epsilon is at least this.
        certified_epsilon: the upper bound that the plan's mechanism has. Where noise of pairs
            cancels, against `colluding` nodes.
        smallest_excess: the epsilon from which weaker noise would have been found, with the chance
            `power`; null if no test says so.
        confidence: that all bounds hold together, if repetitions are independent.
        certified_violated: whether a lower bound lies above the certificate, at any delta, at
            `confidence`. Of a correct program that happens in a share 1 - `confidence` of all
            audits, at most.
        claim_violated: whether more was extracted than the paper claims; null: no claim, or it is
            not judged.
        colluding: how many nodes pooled what they know in all attacks, and `tolerated`, how many
            the plan's guarantee is about; null where no noise of pairs cancels.
        guaranteed_epsilon: the upper bound against so many; likewise.
        nodes: those that were attacked: all that share the mechanism of the most exposed one.
    """

    format_version: Count
    verdict: Text
    claim_verdict: Text
    defect: Flag
    alarms: Items[Text]
    alarm_rate: Number
    failures: Items[AuditFailure]
    audited_epsilon: OptionalNumber
    certified_epsilon: OptionalNumber
    claimed_epsilon: OptionalNumber
    smallest_excess: OptionalNumber
    power: Number
    delta: Number
    confidence: Number
    certified_violated: Flag
    claim_violated: Flag | None
    fidelity_tests: Count
    fidelity_passed: Count
    algorithm: Text
    relation: Text
    mechanism: Text
    trust_model: Text
    colluding: Count | None
    tolerated: Count | None
    guaranteed_epsilon: OptionalNumber
    nodes: Items[Count]
    steps: Count
    tested: Items[AuditedModel]
    fidelity: Items[FidelityTest]
    attacks: Items[Attack]
    seconds: Number
