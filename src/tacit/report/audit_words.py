"""What an audit found: in words that need no mathematics, the same on every page, and in tables."""

from __future__ import annotations

from tacit.report.documents.claims import AuditDocument
from tacit.report.documents.run import RunAudit
from tacit.report.protection import epsilon_words, lower_words, upper_words
from tacit.report.view import Banner, Block, Items, Table, Text, texts
from tacit.report.wording import count_text, lower_text, one_in_text, percent_text

NOT_SHOWN = (
    "An audit is no proof. It finds defects of the kinds that its tests and attacks look for, and "
    "of the size that is stated; smaller ones and others may be there. A better attack may extract "
    "more.",
    "It runs the program again, with keys and records of its own. It says nothing of what happened "
    "in this run alone: of the keys that the operating system gave, of software that somebody "
    "altered, or of a machine that was broken into.",
    "It looks at what is sent. It does not look at what else a machine shows, such as time, memory "
    "or power.",
)


def found_blocks(audit: RunAudit, epsilon: float | None) -> list[Block]:
    """What accuses the program, then what was done and found, a paragraph each.

    The attacks extracted this `epsilon`; None: infinite.
    """
    models = f" It trained these models: {'; '.join(audit.tested)}." if audit.tested else ""
    told = [
        "An audit ran the program of this run again, as often as it needed, to see whether it does "
        f"what the certificate assumes.{models}",
        _tests(audit),
        _attacks(audit, epsilon),
    ]
    if audit.smallest_excess is not None and audit.power is not None:
        told.append(
            "The tests would have found noise that is weaker than planned at every step with a "
            f"probability of {percent_text(audit.power)}, if it were so weak that epsilon is "
            f"{epsilon_words(audit.smallest_excess)} or more in place of the certified "
            f"{epsilon_words(audit.certified_epsilon)}. Other defects have other sizes at which "
            "they are found: audit.json has them, test by test."
        )
    saw = [f": {failure.saw}" for failure in audit.failures]
    names = [failure.name for failure in audit.failures]
    return [*([Items(saw, "failures", names=names)] if saw else []), *texts(told)]


def audit_alarm(audit: RunAudit | None) -> Banner | None:
    """What is to be shown first, where this audit or an earlier one accused the program."""
    if audit is None:
        return None
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


def audit_blocks(found: AuditDocument, *, details: bool = False) -> list[Block]:
    """One table and its verdict; with `details` every test and every attack above it."""
    blocks: list[Block] = [
        Text(f"{found.algorithm}, {found.steps} steps, {found.relation}"),
        Text(found.mechanism),
    ]
    if details and found.fidelity:
        tests = [
            (
                finding.name,
                "passed" if finding.passed else "FAILED",
                f"{'' if finding.exact else '<= '}{finding.p_value:.3g}",
                finding.saw,
                finding.power,
            )
            for finding in found.fidelity
        ]
        columns = ("fidelity test", "result", "p", "what was seen", "what would be found")
        blocks.append(Table(columns, tests, left=columns))
    if details:
        attacks = [
            (
                attack.name,
                attack.statistic,
                attack.method,
                f"{attack.repetitions:,}",
                _right(attack.guesses),
                f">= {lower_text(attack.epsilon)}",
            )
            for attack in found.attacks
        ]
        words = ("attack", "by", "bound")
        blocks.append(Table((*words, "counted", "right", "epsilon"), attacks, left=words))
    verdict = Text(found.verdict, style="bold red" if found.defect else "")
    return [*blocks, _summary_table(found), verdict]


def _summary_table(found: AuditDocument) -> Table:
    """What everybody should know of an audit; what accuses the program comes first."""
    rows = [(failure.name, "ALARM", failure.saw) for failure in found.failures]
    certified = upper_words(found.certified_epsilon)
    rows.append(("certified epsilon", certified, "proved for the plan"))
    if found.colluding is not None:
        told = "pool what they know: what is certified and audited here is against so many"
        rows.append(("colluders", str(found.colluding), told))
    if found.guaranteed_epsilon is not None and found.colluding != found.tolerated:
        guaranteed = upper_words(found.guaranteed_epsilon)
        told = f"proved for the plan, against {found.tolerated}"
        rows.append(("guaranteed epsilon", guaranteed, told))
    best = max(found.attacks, key=lambda attack: attack.epsilon, default=None)
    by = "no attack" if best is None else f"{best.name}, by {best.statistic}"
    rows.append(
        (
            "audited epsilon",
            f"at least {lower_words(found.audited_epsilon)}",
            f"{100 * found.confidence:g} % confidence; the best of "
            f"{count_text(len(found.attacks), 'attack')}: {by}",
        )
    )
    claimed = "none" if found.claimed_epsilon is None else epsilon_words(found.claimed_epsilon)
    rows.append(("claimed epsilon", claimed, found.claim_verdict))
    passed, asked = "none made", "the program was attacked, but not looked into"
    if found.fidelity:
        passed = f"{found.fidelity_passed} of {found.fidelity_tests} passed"
        asked = "whether the code does in a run what the plan states"
    rows.append(("fidelity tests", passed, asked))
    if found.smallest_excess is not None:
        power = f"{100 * found.power:g} % chance to find noise that is weaker at every step"
        excess = epsilon_words(found.smallest_excess)
        rows.append(("smallest excess", excess, f"{power} and allows this"))
    rate = one_in_text(found.alarm_rate)
    rows.append(("false alarm", rate, "of a correct program raises one, at most"))
    rows += [
        (
            model.place,
            count_text(model.parameters, "parameter"),
            f"{model.model}; gradients by {model.gradient_path}",
        )
        for model in found.tested
    ]
    columns = (f"at delta {found.delta:g}", "result", "how sure, and of what")
    return Table(columns, rows, left=columns)


def _right(guesses: dict[str, float]) -> str:
    if "TPR" in guesses:
        return f"TPR {guesses['TPR']:.4g}, FPR {guesses['FPR']:.4g}"
    if "correct" in guesses:
        return f"{guesses['correct']:g} of {guesses['guessed']:g}"
    return ", ".join(f"{name} {value:.4g}" for name, value in guesses.items())
