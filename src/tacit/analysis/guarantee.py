"""What a guarantee says beside one epsilon: other deltas, errors of a test, a Gaussian mu.

All follow from points (epsilon, delta) that hold, each an upper bound of the accountant for the
curve D(epsilon), the smallest delta that holds there. D falls, is convex in e^epsilon, and is that
of both directions: so between two points it lies below their chord.

- *Errors of a test* between two neighbouring data sets: with D, whoever accuses the innocent with
  probability a overlooks the guilty with at least the largest over epsilon of
  1 - D - a e^epsilon and (1 - D - a) e^-epsilon, and 0 (Wasserman and Zhou, 2010; Dong, Roth and
  Su, 2022, prop. 2.12). Some points in place of all give less, never more.
- *The best guess* at even odds is right with probability (1 + D(0)) / 2.
- *mu*: the smallest found with D(epsilon) <= G_mu(epsilon) + delta0 for every epsilon >= 0, where
  G_mu is the curve of one Gaussian at distance mu and delta0 the delta that is stated: what runs is
  no more telling than that, but for events of that weight. Beyond the stated epsilon D is below
  delta0. Before it, G_mu lies above its tangents, which are compared with the chords at the ends of
  short pieces; both are straight, so that the ends decide. Without delta0 sampled steps have no mu
  but that of steps on all records.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from scipy.special import ndtr

from tacit import privacy
from tacit.analysis.ledger_report import Figure, possible_releases
from tacit.privacy import Gaussian
from tacit.privacy import delta as delta_at
from tacit.privacy.accounting.gaussian import gaussian_delta
from tacit.privacy.ledger.spent import cost
from tacit.privacy.mechanisms.base import Mechanism
from tacit.privacy.mechanisms.steps import Scheduled, levels, schedule
from tacit.report.documents.ledger import LedgerAccount, LedgerReport, StatementCurve
from tacit.report.documents.ledger import StatementNode as Node
from tacit.report.wording import guess_bound

OTHER_DELTAS = (1e-4, 1e-6, 1e-8, 1e-10)
FALSE_POSITIVES = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5)
_POINTS, _CLOSED_POINTS = 7, 32  # before the stated epsilon; more where each takes no time
_LEVELS = 8  # of noise
_PIECES = 8  # of a chord
_FAR = 40.0  # an epsilon beyond which there is nothing left to bound

Points = Sequence[tuple[float, float]]


def weakest_curve(nodes: Sequence[Node], run: str, ledger: LedgerReport) -> StatementCurve:
    """What the weakest guarantee of a run's nodes says, by the ledger of the run or of its data."""
    node = max(nodes, key=lambda row: guess_bound(row.epsilon, row.delta))
    row = max(_accounts(node.node, run, ledger), key=lambda row: row.epsilon or 0.0)
    ways = possible_releases(ledger, row)
    points = curve_points(ways, node.delta)
    return StatementCurve(
        node=node.node,
        right_guess=(1 + points[0][1]) / 2,
        epsilons=tuple((delta, _cost(ways, delta)) for delta in OTHER_DELTAS),
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


def curve_points(ways: Sequence[Mechanism | None], delta: float) -> Points:
    """Points (epsilon, delta) of what holds for the worst of the ways, from 0 on, to delta."""
    known = [_few_levels(way) for way in ways if way is not None]
    last = _cost(ways, delta)
    # Closer together at first, where the curve bends most.
    count = _CLOSED_POINTS if all(isinstance(way, Gaussian) for way in known) else _POINTS
    within = [last * (point / count) ** 1.4 for point in range(count)] if last <= _FAR else [0.0]
    deltas = [max((delta_at(way, epsilon=at) for way in known), default=0.0) for at in within]
    return [*zip(within, deltas, strict=True), (last, delta)] if last > 0 else [(0.0, delta)]


def least_misses(points: Points, false_positives: float) -> float:
    """The least chance of overlooking the guilty, of whoever accuses so many innocent."""
    bounds = [0.0]
    for epsilon, delta in points:
        factor = math.exp(-epsilon)
        bounds.append((1 - delta - false_positives) * factor)
        if factor > 0:
            bounds.append(1 - delta - false_positives / factor)
    return max(bounds)


def gaussian_mu(points: Points, delta: float) -> float | None:
    """The mu that the module describes; None where epsilon is beyond all meaning at delta."""
    if len(points) == 1:
        return 0.0
    if points[-1][0] > _FAR:
        return None
    low, high = 0.0, 1.0
    while not _is_below(points, high, delta):
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _is_below(points, middle, delta) else (middle, high)
    return high


def _is_below(points: Points, mu: float, delta: float) -> bool:
    """Whether the curve through the points lies below that of a Gaussian, and delta."""
    for (left, above), (right, below) in pairwise(points):
        first, last = math.exp(left), math.exp(right)
        for piece in range(_PIECES):
            ends = [first + (last - first) * (piece + end) / _PIECES for end in (0, 0.5, 1)]
            at = math.log(ends[1])
            height = gaussian_delta(mu, at, upper=False) + delta
            slope = float(ndtr(-mu / 2 - at / mu))
            for end in (ends[0], ends[2]):
                chord = above + (below - above) * (end - first) / max(last - first, 1e-300)
                if height - slope * (end - ends[1]) < chord + 1e-13:
                    return False
    return True


def _few_levels(way: Mechanism) -> Mechanism:
    """The same with less noise at some steps, which reveals more, and takes no minute to bound."""
    if not isinstance(way, Scheduled) or len(levels(way)) <= _LEVELS or isinstance(way, Gaussian):
        return way
    noise = schedule(way)
    least, most = math.log(min(noise)), math.log(max(noise))
    wide = (most - least) / _LEVELS
    lower = (math.exp(least + wide * math.floor((math.log(z) - least) / wide)) for z in noise)
    return way.with_schedule([min(z, low) for z, low in zip(noise, lower, strict=True)])


def _cost(ways: Sequence[Mechanism | None], delta: float) -> float:
    return max(cost(way, delta) for way in ways)
