"""What an audit found, beside what is certified and what is claimed: data, JSON and a table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table

from tacit.analysis.audit.fidelity.finding import ALARM_RATE, POWER
from tacit.errors import InputError
from tacit.report.documents.claims import (
    Attack,
    AuditDocument,
    AuditedModel,
    Comparison,
    FidelityTest,
)
from tacit.report.documents.run import AuditFailure
from tacit.report.protection import epsilon_words, lower_words, upper_words
from tacit.report.terminal import print_table, table_of
from tacit.report.wording import count_text, lower_text, one_in_text

_NAMED = 3  # of what accuses the program, in one line besides the first


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
            "seed": (0 <= self.seed < 2**31, "must lie in 0..2^31 - 1"),
            "colluding": (self.colluding is None or self.colluding >= 0, "must be 0 or more"),
            "seconds": (self.seconds is None or self.seconds > 0, "must be positive"),
        }
        for name, (right, expected) in checks.items():
            if not right:
                raise InputError(name, getattr(self, name), expected)


@dataclass(frozen=True)
class AuditReport:
    """What an audit found.

    Args:
        algorithm: its name.
        relation: of neighbouring data sets.
        mechanism: what was attacked, in one line.
        nodes: those that were attacked: all that share the mechanism of the most exposed one.
        steps: that were run.
        delta: at which all epsilons are stated.
        confidence: that all bounds hold together, if repetitions are independent.
        claimed: by the paper's formula at `delta`; None without a claim.
        certified: the upper bound that the plan's mechanism has at `delta`.
        attacks: what was tried.
        seconds: it took.
        fidelity: what the tests of fidelity found.
        smallest_excess: the epsilon from which weaker noise would have been found, with the chance
            `fidelity.finding.POWER`; None if no test says so.
        tested: the models whose training was audited.
        alarm_rate: the chance, at most, that all tests and attacks together accuse a correct
            program.
        colluding: how many nodes pooled what they know in all attacks. `certified` is the bound
            against so many. None where no noise of pairs cancels.
        tolerated: how many the plan's guarantee is about; likewise.
        guaranteed: the upper bound against so many, at `delta`; likewise.
        trust_model: of the plan's guarantee.
        hides: whether messages hold back a part of the releases that attacks look at. A claim about
            messages is not refuted then.
    """

    algorithm: str
    relation: str
    mechanism: str
    nodes: tuple[int, ...]
    steps: int
    delta: float
    confidence: float
    claimed: float | None
    certified: float
    attacks: tuple[Attack, ...]
    seconds: float
    fidelity: tuple[FidelityTest, ...] = ()
    smallest_excess: float | None = None
    tested: tuple[AuditedModel, ...] = ()
    alarm_rate: float = ALARM_RATE
    colluding: int | None = None
    tolerated: int | None = None
    guaranteed: float | None = None
    trust_model: str = "all-messages"
    hides: bool = False

    @property
    def epsilon(self) -> float:
        """The largest lower bound: with the stated confidence, epsilon is at least this."""
        return max((attack.epsilon for attack in self.attacks), default=0.0)

    @property
    def certified_violated(self) -> bool:
        """Whether a lower bound lies above the certificate, at any delta, at `confidence`.

        Of a correct program that happens in a share 1 - `confidence` of all audits, at most.
        """
        return any(attack.hardest.violated for attack in self.attacks)

    @property
    def failures(self) -> tuple[AuditFailure, ...]:
        """What accuses the program, and what it saw: tests, then attacks."""
        failed = [
            AuditFailure(name=finding.name, saw=finding.saw)
            for finding in sorted(self.fidelity, key=lambda finding: finding.p_value)
            if not finding.passed
        ]
        failed.extend(
            AuditFailure(
                name=f"attack: {attack.name} ({attack.method})", saw=_violation(attack.hardest)
            )
            for attack in self.attacks
            if attack.alarm
        )
        return tuple(failed)

    @property
    def defect(self) -> bool:
        """Whether what runs is not what was certified: an alarm, but for `alarm_rate`."""
        return bool(self.failures)

    @property
    def claim_violated(self) -> bool | None:
        """Whether more was extracted than the paper claims; None: no claim, or it is not judged."""
        if self.claimed is None:
            return None
        exceeded = self.epsilon > self.claimed
        return None if exceeded and self.hides else exceeded

    @property
    def verdict(self) -> str:
        """In one line."""
        return self._verdict + self._of_more_colluders

    @property
    def _of_more_colluders(self) -> str:
        """What is shown beyond the guarantee, where more colluders attacked than it is about."""
        if self.colluding is None or self.tolerated is None or self.guaranteed is None:
            return ""
        more = self.colluding - self.tolerated
        if more <= 0:
            return ""
        against = "nobody" if not self.tolerated else str(self.tolerated)
        shown = f"At least {lower_text(self.epsilon)} was shown"
        if self.epsilon <= self.guaranteed:
            shown += ", no more than that"
        return (
            f". The guarantee, epsilon {self.guaranteed:.4g}, is about {against} who pool what "
            f"they know; here {self.colluding} did. {shown}: this is what "
            f"{'one more' if more == 1 else f'{more} more'} would learn, and no defect"
        )

    @property
    def _verdict(self) -> str:
        level = f"{100 * self.confidence:g} % confidence"
        passed = f"all {len(self.fidelity)} fidelity tests passed; " if self.fidelity else ""
        failures = self.failures
        if failures:
            first, *others = failures
            names = [failure.name for failure in others[:_NAMED]]
            if len(others) > _NAMED:
                names.append(f"{len(others) - _NAMED} more")
            more = f" (so do: {', '.join(names)})" if others else ""
            return f"ALARM, a defect: '{first.name}' accuses the program{more}. {first.saw}"
        hardest = [attack.hardest for attack in self.attacks if attack.hardest.violated]
        if hardest:
            worst = max(hardest, key=lambda comparison: comparison.epsilon - comparison.certified)
            return (
                f"no alarm; {passed}within chance. {_violation(worst)} Of a correct program, "
                f"{one_in_text(1 - self.confidence)} shows as much, at {level}: audit again with "
                "another seed and more repetitions"
            )
        return f"no alarm; {passed}certified not exceeded at {level}"

    @property
    def claim_verdict(self) -> str:
        """Of the published formula, in one line."""
        return claim_verdict(self.claimed, self.epsilon, self.confidence, self.hides)


def claim_verdict(
    claimed: float | None, epsilon: float, confidence: float, hides: bool = False
) -> str:
    """Of the published formula, in one line.

    Args:
        claimed: by the formula; None: infinite, or there is none.
        epsilon: that attacks extracted.
        confidence: with which.
        hides: whether messages, which the formula is about, hold back a part of what was attacked.
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


def audit_document(report: AuditReport) -> AuditDocument:
    """The report as a document; a bound that is infinite is null in its JSON."""
    failures = report.failures
    return AuditDocument(
        format_version=1,
        verdict=report.verdict,
        claim_verdict=report.claim_verdict,
        defect=report.defect,
        alarms=tuple(failure.name for failure in failures),
        alarm_rate=report.alarm_rate,
        failures=failures,
        audited_epsilon=report.epsilon,
        certified_epsilon=report.certified,
        claimed_epsilon=report.claimed,
        smallest_excess=report.smallest_excess,
        power=POWER,
        delta=report.delta,
        confidence=report.confidence,
        certified_violated=report.certified_violated,
        claim_violated=report.claim_violated,
        fidelity_tests=len(report.fidelity),
        fidelity_passed=sum(finding.passed for finding in report.fidelity),
        algorithm=report.algorithm,
        relation=report.relation,
        mechanism=report.mechanism,
        trust_model=report.trust_model,
        colluding=report.colluding,
        tolerated=report.tolerated,
        guaranteed_epsilon=report.guaranteed,
        nodes=report.nodes,
        steps=report.steps,
        tested=report.tested,
        fidelity=report.fidelity,
        attacks=report.attacks,
        seconds=report.seconds,
    )


def audit_table(report: AuditReport, *, details: bool = False) -> None:
    """The report for people, on standard output: one table, its verdict below it.

    Args:
        report: what was found.
        details: whether every test and every attack is shown above the table.
    """
    console = Console(highlight=False)
    console.print(f"{report.algorithm}, {report.steps} steps, {report.relation}")
    console.print(report.mechanism, markup=False)
    if details:
        if report.fidelity:
            print_table(console, _test_table(report.fidelity))
        print_table(console, _attack_table(report.attacks))
    print_table(console, _summary_table(report))
    style = "bold red" if report.defect else None
    console.print(report.verdict, style=style, markup=False)


def _summary_table(report: AuditReport) -> Table:
    """What everybody should know of an audit; what accuses the program comes first."""
    table = table_of((f"at delta {report.delta:g}", "result", "how sure, and of what"))
    for failure in report.failures:
        table.add_row(escape(failure.name), "ALARM", escape(failure.saw))
    table.add_row("certified epsilon", upper_words(report.certified), "proved for the plan")
    if report.colluding is not None:
        table.add_row(
            "colluders",
            str(report.colluding),
            "pool what they know: what is certified and audited here is against so many",
        )
    if report.guaranteed is not None and report.colluding != report.tolerated:
        table.add_row(
            "guaranteed epsilon",
            upper_words(report.guaranteed),
            f"proved for the plan, against {report.tolerated}",
        )
    best = max(report.attacks, key=lambda attack: attack.epsilon, default=None)
    by = "no attack" if best is None else f"{best.name}, by {best.statistic}"
    table.add_row(
        "audited epsilon",
        f"at least {lower_words(report.epsilon)}",
        f"{100 * report.confidence:g} % confidence; the best of "
        f"{count_text(len(report.attacks), 'attack')}: {escape(by)}",
    )
    claimed = "none" if report.claimed is None else epsilon_words(report.claimed)
    table.add_row("claimed epsilon", claimed, report.claim_verdict)
    passed = sum(finding.passed for finding in report.fidelity)
    table.add_row(
        "fidelity tests",
        f"{passed} of {len(report.fidelity)} passed" if report.fidelity else "none made",
        "whether the code does in a run what the plan states"
        if report.fidelity
        else "the program was attacked, but not looked into",
    )
    if report.smallest_excess is not None:
        table.add_row(
            "smallest excess",
            epsilon_words(report.smallest_excess),
            f"{100 * POWER:g} % chance to find noise that is weaker at every step and allows this",
        )
    table.add_row(
        "false alarm", one_in_text(report.alarm_rate), "of a correct program raises one, at most"
    )
    for model in report.tested:
        table.add_row(
            escape(model.place),
            count_text(model.parameters, "parameter"),
            escape(f"{model.model}; gradients by {model.gradient_path}"),
        )
    return table


def _test_table(findings: tuple[FidelityTest, ...]) -> Table:
    rows = [
        (
            escape(finding.name),
            "passed" if finding.passed else "FAILED",
            f"{'' if finding.exact else '<= '}{finding.p_value:.3g}",
            escape(finding.saw),
            escape(finding.power),
        )
        for finding in findings
    ]
    return table_of(("fidelity test", "result", "p", "what was seen", "what would be found"), rows)


def _attack_table(attacks: tuple[Attack, ...]) -> Table:
    rows = [
        (
            escape(attack.name),
            escape(attack.statistic),
            attack.method,
            f"{attack.repetitions:,}",
            _right(attack.guesses),
            f">= {lower_text(attack.epsilon)}",
        )
        for attack in attacks
    ]
    numbers = ("counted", "right", "epsilon")
    return table_of(("attack", "by", "bound", *numbers), rows, right=numbers)


def _right(guesses: dict[str, float]) -> str:
    """Rates of true and false positives, or right guesses of all."""
    if "TPR" in guesses:
        return f"TPR {guesses['TPR']:.4g}, FPR {guesses['FPR']:.4g}"
    if "correct" in guesses:
        return f"{guesses['correct']:g} of {guesses['guessed']:g}"
    return ", ".join(f"{name} {value:.4g}" for name, value in guesses.items())


@contextmanager
def audit_progress() -> Iterator[Callable[[str, int, int], None]]:
    """What is being done, on standard error: yields what `audit` tells.

    A terminal shows a bar; anything else gets a line whenever something new is begun.

    Example:
        `with audit_progress() as progress: audit_file(file, progress=progress)`
    """
    if not sys.stderr.isatty():
        yield _line_a_stage()
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


def _line_a_stage() -> Callable[[str, int, int], None]:
    """Writes a line on standard error when another thing is begun."""
    begun: list[str] = []

    def tell(what: str, done: int, total: int) -> None:
        if what not in begun[-1:]:
            begun.append(what)
            print(f"audit: {what}", file=sys.stderr, flush=True)

    return tell
