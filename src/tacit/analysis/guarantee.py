"""What a guarantee says beside one epsilon: other deltas, errors of a test, a Gaussian mu.

How they follow from points of the curve: `tacit.privacy.accounting.curve`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tacit import privacy
from tacit.analysis.ledger_report import Figure, possible_releases
from tacit.privacy.accounting.curve import curve_points, gaussian_mu, least_misses, worst_epsilon
from tacit.report.documents.ledger import LedgerAccount, LedgerReport, StatementCurve
from tacit.report.documents.ledger import StatementNode as Node
from tacit.report.wording import guess_bound

OTHER_DELTAS = (1e-4, 1e-6, 1e-8, 1e-10)
FALSE_POSITIVES = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5)


def weakest_curve(nodes: Sequence[Node], run: str, ledger: LedgerReport) -> StatementCurve:
    """What the weakest guarantee of a run's nodes says, by the ledger of the run or of its data."""
    node = max(nodes, key=lambda row: guess_bound(row.epsilon, row.delta))
    row = max(_accounts(node.node, run, ledger), key=lambda row: row.epsilon or 0.0)
    ways = possible_releases(ledger, row)
    points = curve_points(ways, node.delta)
    return StatementCurve(
        node=node.node,
        right_guess=(1 + points[0][1]) / 2,
        epsilons=tuple((delta, worst_epsilon(ways, delta)) for delta in OTHER_DELTAS),
        errors=tuple((rate, least_misses(points, rate)) for rate in FALSE_POSITIVES),
        mu=gaussian_mu(points, node.delta),
    )


def right_guess(node: int, run: str, ledger: LedgerReport) -> float:
    """How often a guess about a record of a node is right at most, by the ledger of a run."""
    rows = _accounts(node, run, ledger)
    ways = [way for row in rows for way in possible_releases(ledger, row) if way is not None]
    return max(map(privacy.right_guess, ways), default=0.5)


def _accounts(node: int, run: str, ledger: LedgerReport) -> Iterator[LedgerAccount]:
    for row in ledger.nodes:
        if any((release.run, release.node) == (run, node) for release in row.releases):
            yield row


def curve_figures(curve: StatementCurve) -> Iterator[Figure]:
    """Its figures, to be compared with those of another."""
    yield "node of the curve", curve.node, 0.0
    yield "right guess", curve.right_guess, 0.0
    yield "mu", curve.mu, 0.0
    for delta, epsilon in curve.epsilons:
        yield f"epsilon at delta {delta:g}", epsilon, 0.0
    for false, missed in curve.errors:
        yield f"least misses at {false:g}", missed, 1.0
