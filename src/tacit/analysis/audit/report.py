"""What an audit found, beside what is certified and what is claimed: data, JSON and a table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table

from tacit.errors import InputError
from tacit.report.documents.claims import Attack, AuditDocument
from tacit.report.terminal import print_table
from tacit.report.wording import epsilon_text, lower_text

__all__ = [
    "AuditOptions",
    "AuditReport",
    "audit_document",
    "audit_progress",
    "audit_table",
]


@dataclass(frozen=True)
class AuditOptions:
    """How hard to look.

    Args:
        repetitions: nodes run for each pair of worst-case data sets, half on D, half on D'.
        steps: only the first so many steps of the plan; None runs all. Certified and claimed are
            then those of these steps.
        confidence: of all bounds together.
        delta: at which epsilon is stated; None takes 1e-3, or the plan's if that is larger. A
            smaller delta needs more repetitions than 1 / delta to show.
        canaries: mislabelled records in the one full training; 0 leaves it out.
        seed: of the auditor's coins, and of noise and sampling.

    Raises:
        InputError: a number is outside its range.
    """

    repetitions: int = 10_000
    steps: int | None = None
    confidence: float = 0.95
    delta: float | None = None
    canaries: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        checks: dict[str, tuple[bool, str]] = {
            "repetitions": (self.repetitions >= 100, "must be 100 or more"),
            "steps": (self.steps is None or self.steps >= 1, "must be 1 or more"),
            "confidence": (0.5 <= self.confidence < 1, "must lie in [0.5, 1)"),
            "delta": (
                self.delta is None or 0 < self.delta < 1,
                "must lie strictly between 0 and 1",
            ),
            "canaries": (self.canaries >= 0, "must be 0 or more"),
            "seed": (0 <= self.seed < 2**31, "must lie in 0..2^31 - 1"),
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
        repeated_noises: messages whose noise was met before, in another step or node; a correct
            run has none.
        seconds: it took.
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
    repeated_noises: int
    seconds: float

    @property
    def epsilon(self) -> float:
        """The largest lower bound: with the stated confidence, epsilon is at least this."""
        return max((attack.epsilon for attack in self.attacks), default=0.0)

    @property
    def certified_violated(self) -> bool:
        """Whether more was extracted than is certified, at any delta: then there is a defect."""
        return any(attack.hardest.violated for attack in self.attacks)

    @property
    def defect(self) -> bool:
        """Whether what runs is not what was certified."""
        return self.certified_violated or self.repeated_noises > 0

    @property
    def claim_violated(self) -> bool | None:
        """Whether more was extracted than the paper claims; None without a claim."""
        return None if self.claimed is None else self.epsilon > self.claimed

    @property
    def verdict(self) -> str:
        """In one line."""
        level = f"{100 * self.confidence:g} % confidence"
        if self.repeated_noises:
            return f"NOISE USED TWICE, in {self.repeated_noises} messages: a defect"
        worst = max(
            (attack.hardest for attack in self.attacks),
            key=lambda comparison: comparison.epsilon - comparison.certified,
            default=None,
        )
        if worst is not None and worst.violated:
            return (
                f"certified VIOLATED at {level}: a defect. At delta {worst.delta:g} epsilon is at "
                f"least {worst.epsilon:.4g} where {worst.certified:.4g} is certified"
            )
        return f"certified not exceeded at {level}"

    @property
    def claim_verdict(self) -> str:
        """Of the published formula, in one line."""
        if self.claim_violated is None:
            return "no claim"
        level = f"{100 * self.confidence:g} % confidence"
        return f"claim VIOLATED at {level}" if self.claim_violated else "claim not exceeded"


def audit_document(report: AuditReport) -> AuditDocument:
    """The report as a document; a bound that is infinite is null in its JSON."""
    return AuditDocument(
        format_version=1,
        audited_epsilon=report.epsilon,
        certified_epsilon=report.certified,
        claimed_epsilon=report.claimed,
        delta=report.delta,
        confidence=report.confidence,
        certified_violated=report.certified_violated,
        repeated_noises=report.repeated_noises,
        defect=report.defect,
        claim_violated=report.claim_violated,
        verdict=report.verdict,
        claim_verdict=report.claim_verdict,
        algorithm=report.algorithm,
        relation=report.relation,
        mechanism=report.mechanism,
        trust_model="all-messages",
        nodes=report.nodes,
        steps=report.steps,
        attacks=report.attacks,
        seconds=report.seconds,
    )


def audit_table(report: AuditReport) -> None:
    """The report for people, on standard output."""
    table = Table(box=SIMPLE_HEAD)
    for heading in ("attack", "by", "bound"):
        table.add_column(heading)
    for heading in ("counted", "right", "epsilon"):
        table.add_column(heading, justify="right")
    for attack in report.attacks:
        table.add_row(
            attack.name,
            attack.statistic,
            attack.method,
            f"{attack.repetitions:,}",
            _right(attack.guesses),
            f">= {lower_text(attack.epsilon)}",
        )
    console = Console(highlight=False)
    console.print(f"{report.algorithm}, {report.steps} steps, {report.relation}")
    console.print(report.mechanism)
    print_table(console, table)
    claimed = "no claim" if report.claimed is None else f"{report.claimed:.4g}"
    console.print(
        f"epsilon at delta {report.delta:g}: audited at least {lower_text(report.epsilon)}, "
        f"certified at most {epsilon_text(report.certified)}, claimed {claimed}"
    )
    console.print(f"{report.verdict}; {report.claim_verdict}")


def _right(guesses: dict[str, float]) -> str:
    """Rates of true and false positives, or right guesses of all."""
    if "TPR" in guesses:
        return f"TPR {guesses['TPR']:.4g}, FPR {guesses['FPR']:.4g}"
    return f"{guesses['correct']:g} of {guesses['guessed']:g}"


@contextmanager
def audit_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress line on standard error, if that is a terminal: yields what `audit` tells.

    Example:
        `with audit_progress() as progress: audit_file(file, progress=progress)`
    """
    bar = ProgressBar(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task("preparing", total=None)

        def tell(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield tell
