"""What an audit found, in words that need no mathematics: the same on every page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tacit.report.documents.run import AuditFailure, RunAudit
from tacit.report.protection import epsilon_words, lower_words
from tacit.report.view import Banner, Block, Items, texts
from tacit.report.wording import count_text, one_in_text, percent_text

_LIMITS = (
    "An audit is no proof. It finds defects of the kinds that its tests and attacks look for, and "
    "of the size that is stated; smaller ones and others may be there. A better attack may extract "
    "more.",
    "It runs the program again, with keys and records of its own. It says nothing of what happened "
    "in this run alone: of the keys that the operating system gave, of software that somebody "
    "altered, or of a machine that was broken into.",
    "It looks at what is sent. It does not look at what else a machine shows, such as time, memory "
    "or power.",
)


@dataclass(frozen=True)
class AuditWords:
    """What a page says of an audit.

    Args:
        alarm: to be shown first; None without an alarm.
        failures: what accuses the program, and what it saw.
        texts: what was done and what was found, a paragraph each.
        questions: that the tests asked.
        limits: what an audit does not show.
    """

    alarm: Banner | None
    failures: Sequence[AuditFailure]
    texts: Sequence[str]
    questions: Sequence[str]
    limits: Sequence[str] = _LIMITS

    def blocks(self) -> list[Block]:
        """What accuses the program, then what was done and found."""
        saw = [f": {failure.saw}" for failure in self.failures]
        names = [failure.name for failure in self.failures]
        failures = [Items(saw, "failures", names=names)] if saw else []
        return [*failures, *texts(self.texts)]


def audit_words(audit: RunAudit, epsilon: float | None) -> AuditWords:
    """Say what an audit found.

    Args:
        audit: as it is recorded in a result.
        epsilon: that the attacks extracted; None: infinite.
    """
    texts = [_what_was_done(audit), _tests(audit), _attacks(audit, epsilon)]
    if audit.smallest_excess is not None and audit.power is not None:
        texts.append(
            "The tests would have found noise that is weaker than planned at every step with a "
            f"probability of {percent_text(audit.power)}, if it were so weak that epsilon is "
            f"{epsilon_words(audit.smallest_excess)} or more in place of the certified "
            f"{epsilon_words(audit.certified_epsilon)}. Other defects have other sizes at which "
            "they are found: audit.json has them, test by test."
        )
    return AuditWords(_alarm(audit), audit.failures, texts, tuple(dict.fromkeys(audit.questions)))


def in_doubt(sentence: str) -> str:
    """A verdict on a guarantee that an alarm has put in doubt."""
    return f"Only if the program is correct: {sentence[0].lower()}{sentence[1:]}"


def _alarm(audit: RunAudit) -> Banner | None:
    """What must be read before all else."""
    if audit.failures:
        first, *others = audit.failures
        more = f" {count_text(len(others), 'other')} accuse it, too." if len(others) > 1 else ""
        more = " One other accuses it, too." if len(others) == 1 else more
        headline = "the program does not do what its certificate assumes"
        detail = f"The test or attack “{first.name}” accuses it. {first.saw}{more}"
    elif audit.earlier_alarms:
        headline = "an earlier audit of this run accused the program"
        detail = (
            f"{count_text(audit.earlier_alarms, 'earlier audit')} of this run raised an alarm. The "
            "last one did not, which does not undo it: the files audit.json beside the run say "
            "what was seen."
        )
    else:
        return None
    detail += " Do not rely on the certified epsilon before this is explained."
    return Banner("bad", f"AUDIT ALARM: {headline}", [detail])


def _what_was_done(audit: RunAudit) -> str:
    models = f" It trained these models: {'; '.join(audit.tested)}." if audit.tested else ""
    return (
        "An audit ran the program of this run again, as often as it needed, to see whether it does "
        f"what the certificate assumes.{models}"
    )


def _tests(audit: RunAudit) -> str:
    if not audit.fidelity_tests:
        return "No test looked inside the program: it was only attacked from outside."
    failed = audit.fidelity_tests - audit.fidelity_passed
    passed = f"All {audit.fidelity_tests} passed." if not failed else f"{failed} of them failed."
    rate = audit.alarm_rate
    often = f" A correct program is accused in {one_in_text(rate)} at most." if rate else ""
    return (
        f"{count_text(audit.fidelity_tests, 'test')} looked inside the program, to see whether it "
        "adds the noise, draws the records and sends the messages that the certificate assumes. "
        f"{passed}{often}"
    )


def _attacks(audit: RunAudit, epsilon: float | None) -> str:
    if not audit.attacks:
        return "No attack on made records was possible for this experiment, so none is stated here."
    level = "" if audit.confidence is None else f", with {100 * audit.confidence:g} % confidence"
    extracted = "infinite" if epsilon is None else lower_words(epsilon)
    told = (
        f"Attacks on all that is sent show that epsilon is at least {extracted} at delta "
        f"{audit.delta:g}{level}."
    )
    certified = audit.certified_epsilon
    if certified is None:
        return told
    told += f" There, the certificate says {epsilon_words(certified)} at most."
    if audit.certified_violated and not audit.failures:
        share = "" if audit.confidence is None else f": {one_in_text(1 - audit.confidence)} does so"
        told += f" An attack exceeded it, as one of a correct program may by chance{share}."
    return told
