"""What epsilon does not cover: it follows from the experiment, and from nothing that was run."""

from __future__ import annotations

from tacit.config import GIVEN, Config
from tacit.report.documents.unit import UnitTerms


def not_covered(config: Config, unit: UnitTerms) -> tuple[str, ...]:
    """What is seen of private records, or known of them, beside what epsilon is about.

    The experiment is one whose epsilon is accounted for, and protects that `unit`. Each entry is in
    words for people, as a result and a statement have them.
    """
    task, algorithm = config.task, config.algorithm
    measured = [
        "training loss",
        "gradient norms",
        unit.said("share of clipped records"),
        unit.said("number of records left out"),
    ]
    if algorithm.definition.primal_dual is not None:
        measured.append("augmented Lagrangian")
    if config.train.suboptimality:
        measured.append("f(x) - f* of all private records together (train.suboptimality)")
    lines = [
        f"{', '.join(measured)}: measured on private records, for the eyes of their node only",
        "checkpoints: a node's own, never to be shared",
        unit.said("how many records a node holds: public by the relation"),
        "that a node refuses its own input or fails, and how long its steps take",
    ]
    if config.privacy.ledger is not None:
        lines.append(
            "that a node does not take part: it does not where it holds a record of a source that "
            "privacy.ledger_source does not name; others hear only that its budget forbids the run"
        )
    if task.test_share is not None:
        lines.append(
            f"the share of {task.test_share:g} of the records that was held out for testing and "
            "declared public (task.test_share), and all scores on it"
        )
    given = task.dataset == GIVEN or config.nodes.data == "by-rank"
    if not given and config.nodes.partition in ("dirichlet", "shards"):
        lines.append(
            f"who holds which record: nodes.partition = '{config.nodes.partition}' divides one "
            "data set by the labels of all its records, and epsilon is of each node's as they are "
            "divided"
        )
    return (*lines, *algorithm.definition.releases.not_covered(algorithm.options))
