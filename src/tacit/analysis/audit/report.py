"""How hard an audit looks, its verdict on what it found, what it prints, and what a run keeps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar

from tacit.analysis.audit.fidelity.finding import ALARM_RATE, POWER
from tacit.errors import InputError
from tacit.report import write_report
from tacit.report.audit_words import audit_blocks
from tacit.report.documents.base import parse_file
from tacit.report.documents.claims import Attack, AuditDocument, Comparison, FidelityTest
from tacit.report.documents.run import LET_IT_END, AuditFailure, RunAudit, read_result
from tacit.report.terminal import terminal
from tacit.report.wording import lower_text, one_in_text
from tacit.training.run_folder.folder import RESULT, RunFolder, trusted_config

_NAMED = 3  # of what accuses the program, in one line besides the first
_OWN = "What it saw is in audit.json, which stays with the owner of the records."


@dataclass(frozen=True)
class AuditOptions:
    """How hard to look.

    Args:
        repetitions: nodes run for each pair of worst-case data sets, half on D, half on D'; None
            takes 2000, or fewer where a plan has so many steps or records that these take long.
        steps: only the first so many steps of the plan; None runs all. Certified and claimed are
            then those of these steps.
        confidence: of all bounds together.
        delta: at which epsilon is stated; None takes 1e-3, or the plan's if that is larger. A
            smaller delta needs more repetitions than 1 / delta to show.
        canaries: records that are planted in the one full training; 0 leaves it out.
        seed: of the auditor's coins, and of noise and sampling.
        colluding: how many nodes pool what they know, where the noise of pairs of nodes cancels;
            None takes as many as the plan's guarantee is about.
        seconds: that the search for worst-case records may take, but for its last run; None takes
            20, with which an audit of a model of 100,000 parameters ends within two minutes on two
            cores.
        signals: canaries of one run whose loudness is looked at (`signals_attack`); 0: none.

    Raises:
        InputError: a number is outside its range.
    """

    repetitions: int | None = None
    steps: int | None = None
    confidence: float = 0.95
    delta: float | None = None
    canaries: int = 1000
    seed: int = 0
    seconds: float | None = None
    colluding: int | None = None
    signals: int = 0

    def __post_init__(self) -> None:
        checks: dict[str, tuple[bool, str]] = {
            "repetitions": (
                self.repetitions is None or self.repetitions >= 100,
                "must be 100 or more",
            ),
            "steps": (self.steps is None or self.steps >= 1, "must be 1 or more"),
            "confidence": (0.5 <= self.confidence < 1, "must lie in [0.5, 1)"),
            "delta": (
                self.delta is None or 0 < self.delta < 1,
                "must lie strictly between 0 and 1",
            ),
            "canaries": (self.canaries >= 0, "must be 0 or more"),
            "signals": (self.signals >= 0, "must be 0 or more"),
            "seed": (0 <= self.seed < 2**31, "must lie in 0..2^31 - 1"),
            "colluding": (self.colluding is None or self.colluding >= 0, "must be 0 or more"),
            "seconds": (self.seconds is None or self.seconds > 0, "must be positive"),
        }
        for name, (right, expected) in checks.items():
            if not right:
                raise InputError(name, getattr(self, name), expected)


def audit_document(
    attacks: Sequence[Attack],
    fidelity: Sequence[FidelityTest],
    *,
    confidence: float,
    claimed: float | None,
    hides: bool,
    **facts: Any,
) -> AuditDocument:
    """What an audit found, and what follows from it.

    All bounds hold together with this confidence, if repetitions are independent. `claimed` is the
    epsilon by the paper's formula; None without a claim. Where messages hold back a part of the
    releases that attacks look at (`hides`), a claim about messages is not refuted. `facts` are the
    fields of the document that follow from nothing here.
    """
    epsilon = max((attack.epsilon for attack in attacks), default=0.0)
    tests = (
        AuditFailure(name=finding.name, saw=finding.saw)
        for finding in sorted(fidelity, key=lambda finding: finding.p_value)
        if not finding.passed
    )
    alarms = (
        AuditFailure(
            name=f"attack: {attack.name} ({attack.method})", saw=_violation(attack.hardest)
        )
        for attack in attacks
        if attack.alarm
    )
    failures = (*tests, *alarms)
    against = facts["colluding"], facts["tolerated"], facts["guaranteed_epsilon"]
    exceeded = None if claimed is None else epsilon > claimed
    return AuditDocument(
        format_version=1,
        verdict=_verdict(failures, attacks, len(fidelity), confidence)
        + _of_more_colluders(epsilon, *against),
        claim_verdict=claim_verdict(claimed, epsilon, confidence, hides),
        defect=bool(failures),
        alarms=tuple(failure.name for failure in failures),
        alarm_rate=ALARM_RATE,
        failures=failures,
        audited_epsilon=epsilon,
        claimed_epsilon=claimed,
        power=POWER,
        confidence=confidence,
        certified_violated=any(attack.hardest.violated for attack in attacks),
        claim_violated=None if exceeded and hides else exceeded,
        fidelity_tests=len(fidelity),
        fidelity_passed=sum(finding.passed for finding in fidelity),
        fidelity=tuple(fidelity),
        attacks=tuple(attacks),
        **facts,
    )


def _verdict(
    failures: Sequence[AuditFailure], attacks: Sequence[Attack], tests: int, confidence: float
) -> str:
    level = f"{100 * confidence:g} % confidence"
    passed = f"all {tests} fidelity tests passed; " if tests else ""
    if failures:
        first, *others = failures
        names = [failure.name for failure in others[:_NAMED]]
        if len(others) > _NAMED:
            names.append(f"{len(others) - _NAMED} more")
        more = f" (so do: {', '.join(names)})" if others else ""
        return f"ALARM, a defect: '{first.name}' accuses the program{more}. {first.saw}"
    hardest = [attack.hardest for attack in attacks if attack.hardest.violated]
    if hardest:
        worst = max(hardest, key=lambda comparison: comparison.epsilon - comparison.certified)
        return (
            f"no alarm; {passed}within chance. {_violation(worst)} Of a correct program, "
            f"{one_in_text(1 - confidence)} shows as much, at {level}: audit again with "
            "another seed and more repetitions"
        )
    return f"no alarm; {passed}certified not exceeded at {level}"


def _of_more_colluders(
    epsilon: float, colluding: int | None, tolerated: int | None, guaranteed: float | None
) -> str:
    """What is shown beyond the guarantee, where more colluders attacked than it is about."""
    if colluding is None or tolerated is None or guaranteed is None or colluding <= tolerated:
        return ""
    more = colluding - tolerated
    against = "nobody" if not tolerated else str(tolerated)
    shown = f"At least {lower_text(epsilon)} was shown"
    if epsilon <= guaranteed:
        shown += ", no more than that"
    return (
        f". The guarantee, epsilon {guaranteed:.4g}, is about {against} who pool what "
        f"they know; here {colluding} did. {shown}: this is what "
        f"{'one more' if more == 1 else f'{more} more'} would learn, and no defect"
    )


def claim_verdict(
    claimed: float | None, epsilon: float, confidence: float, hides: bool = False
) -> str:
    """Of the published formula, in one line.

    `claimed` is the epsilon by the formula; None where it is infinite, or there is none. Attacks
    extracted `epsilon` with this confidence. The formula is about messages, and `hides` says that
    these hold back a part of what was attacked.
    """
    if claimed is None:
        return "no claim"
    if epsilon <= claimed:
        return "claim not exceeded"
    if hides:
        return "claim not judged: messages hold back a part of what was attacked"
    return f"claim VIOLATED at {100 * confidence:g} % confidence"


def _violation(comparison: Comparison) -> str:
    """What an attack shows that extracts more than is certified."""
    return (
        f"At delta {comparison.delta:g} epsilon is at least {lower_text(comparison.epsilon)}, and "
        f"{comparison.certified:.4g} is certified."
    )


def audit_table(found: AuditDocument, *, details: bool = False) -> None:
    """An audit for people, on standard output: one table, its verdict below it.

    With `details`, every test and every attack is shown above the table.
    """
    terminal(audit_blocks(found, details=details))


@contextmanager
def audit_progress() -> Iterator[Callable[[str, int, int], None]]:
    """What is being done, on standard error: yields what `audit` tells.

    A terminal shows a bar; anything else gets a line whenever something new is begun.

    Example:
        `with audit_progress() as progress: audit(config, progress=progress)`
    """
    if not sys.stderr.isatty():
        begun: list[str] = []

        def line(what: str, done: int, total: int) -> None:
            if what not in begun[-1:]:
                begun.append(what)
                print(f"audit: {what}", file=sys.stderr, flush=True)

        yield line
        return
    bar = ProgressBar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("preparing", total=None)

        def tell(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield tell


# Beside the run whose experiment was audited.


def run_experiment(run: Path, trust: bool) -> Path:
    """The experiment file of a finished run, whose functions may then be imported and called.

    Raises:
        InputError: it is not the folder of a run with a result that can be read, or names functions
            that are not trusted; see `trusted_config`.
    """
    for name in ("config.toml", "result.json"):
        if not (run / name).is_file():
            raise InputError("FILE", str(run), f"is a folder without {name}: {LET_IT_END}")
    read_result(run / RESULT)
    trusted_config(run, trust)
    return run / "config.toml"


def record_audit(run: Path, document: AuditDocument) -> Path:
    """Write an audit's document into a run folder, its figures into result.json and the report.

    `audit.json` stays with the owner of the records: what is measured in runs on them is a function
    of them that no noise hides. The result, the report and a statement are for others. They get
    what the attacks on the laboratory extracted, whose records are made, and which tests passed; a
    correct program passes all of them, whatever its records are, but for `alarm_rate`.

    An audit is of an experiment's mechanism, at a delta of its own. Earlier audits are kept:
    `audit.json`, then `audit-2.json` and so on. The result shows the last, and how many of the
    earlier ones accused the program: another audit does not undo that.

    Raises:
        InputError: the run's result, or an earlier audit, cannot be read.
    """
    names = ["audit.json", *(f"audit-{number}.json" for number in range(2, 1000))]
    earlier = [run / name for name in names if (run / name).exists()]
    name = next(name for name in names if not (run / name).exists())
    try:
        result = read_result(run / RESULT)
        alarms = sum(bool(parse_file(file)["defect"]) for file in earlier)
    except (InputError, KeyError, OSError) as error:
        raise InputError(
            "FILE", str(run), f"has a result.json or an audit.json that cannot be read: {error}"
        ) from None
    # On records that the audit made, and not on the experiment's own.
    made = [attack for attack in document.attacks if not attack.method.startswith("one-run")]
    audited = max((attack.epsilon for attack in made), default=0.0)
    verdict = "no alarm"
    if document.alarms:
        verdict = f"ALARM, a defect: accused by {', '.join(document.alarms)}"
    elif document.fidelity_tests:
        verdict += f"; all {document.fidelity_tests} fidelity tests passed"
    own = {
        "attacks": len(made),
        "claim_verdict": claim_verdict(
            document.claimed_epsilon,
            audited,
            document.confidence,
            hides=document.claim_violated is None,  # though there is a claim
        ),
        "questions": [test.question for test in document.fidelity],
        "tested": [
            f"{own.place} ({own.model}, {own.parameters:,} parameters, {own.gradient_path})"
            for own in document.tested
        ],
        "earlier_alarms": alarms,
        "failures": [AuditFailure(name=one.name, saw=_OWN) for one in document.failures],
        "verdict": verdict,
        "certified_violated": any(attack.hardest.violated for attack in made),
    }
    same = {name: getattr(document, name) for name in RunAudit.model_fields if name not in own}
    audit = RunAudit.model_validate(same | own)
    shown = {"audited_epsilon": audited, "audit": audit}
    folder = RunFolder(run)
    folder.write_document(name, document)
    folder.write_document(RESULT, result.model_copy(update=shown))
    write_report(run)
    return run / name
