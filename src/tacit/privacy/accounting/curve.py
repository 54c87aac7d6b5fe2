"""What a mechanism says beside one epsilon: errors of a test, a Gaussian mu, what attacks gain.

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
- *Attacks*: a test that accuses the innocent with probability a finds the guilty with at most
  1 - T(a), T the bound on errors. What it gains over a (membership advantage), by what factor an
  accusation multiplies the odds, and how often a record is rebuilt that is guessed with probability
  a without the release (Hayes, Mahloujifar and Balle, arXiv 2302.07225, 2023, Thm. 2) follow
  from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.special import ndtr

from tacit.errors import InputError, optional
from tacit.privacy.accounting.accounting import delta as delta_at
from tacit.privacy.accounting.accounting import epsilon, right_guess, vectorised
from tacit.privacy.accounting.gaussian import gaussian_delta, least
from tacit.privacy.mechanisms.base import Mechanism
from tacit.privacy.mechanisms.steps import Gaussian, Scheduled, levels, schedule

_POINTS, _CLOSED_POINTS = 7, 32  # before the stated epsilon; more where each takes no time
_FINE, _CLOSED_FINE = 32, 512  # of a trade-off curve
_LEVELS = 8  # of noise
_PIECES = 8  # of a chord
_FAR = 40.0  # an epsilon beyond which there is nothing left to bound

Points = Sequence[tuple[float, float]]


@vectorised
def trade_off(mechanism: Mechanism, alpha: float) -> float:
    """How often the guilty are overlooked at least by who accuses a share `alpha` of the innocent.

    A lower bound, certified, for any test between neighbours, in either direction.
    """
    if not 0 <= alpha <= 1:
        raise InputError("alpha", alpha, "must lie in 0..1")
    return max(0.0, least_misses(_fine_points(mechanism), alpha) - 1e-15)


@lru_cache(maxsize=64)
def _fine_points(mechanism: Mechanism) -> Points:
    ends = ((spent, epsilon(mechanism, delta=spent)) for spent in (1e-12, 1e-6, 1e-3, 0.1))
    spent, last = next((end for end in ends if end[1] < 600), (1.0, 0.0))
    count = _CLOSED_FINE if isinstance(mechanism, Gaussian) else _FINE
    within = [last * (point / count) ** 1.4 for point in range(count)]
    return [*((at, delta_at(mechanism, epsilon=at)) for at in within), (last, spent)]


@vectorised
def mu(mechanism: Mechanism, *, delta: float) -> float:
    """The least mu found, so that the mechanism is mu-GDP but for events of weight `delta`."""
    found = gaussian_mu(curve_points([mechanism], delta), delta)
    return math.inf if found is None else found


@vectorised
def advantage(mechanism: Mechanism, false_positives: float) -> float:
    """By how much true positives exceed false ones at most, in inferring membership."""
    most = 2 * right_guess(mechanism) - 1
    return min(most, 1 - false_positives - trade_off(mechanism, false_positives) + 1e-15)


@vectorised
def reconstruction(mechanism: Mechanism, prior: float) -> float:
    """How often a record is rebuilt at most, whose best guess is right with chance `prior`."""
    return min(1.0, 1 - trade_off(mechanism, prior) + 1e-15)


@vectorised
def bayes_factor(mechanism: Mechanism, false_positives: float) -> float:
    """By what an accusation multiplies the odds at most, of a test with these false positives."""
    found = reconstruction(mechanism, false_positives)
    return found / false_positives * (1 + 1e-15) if false_positives else math.inf


def trade_off_figure(mechanisms: Mapping[str, Mechanism]) -> Any:
    """The trade-off curves of named mechanisms, as a Figure of matplotlib (extra `pictures`)."""
    optional("matplotlib")
    from matplotlib.figure import Figure

    figure, alphas = Figure(figsize=(4.5, 4), layout="constrained"), np.linspace(0, 1, 201)
    axes = figure.subplots()
    for name, mechanism in mechanisms.items():
        errors: Any = alphas
        axes.plot(alphas, trade_off(mechanism, errors), label=name)
    axes.plot([0, 1], [1, 0], ":", color="grey", label="a blind guess")
    axes.set(xlabel="false positives", ylabel="false negatives, at least", xlim=(0, 1), ylim=(0, 1))
    axes.legend()
    return figure


def curve_points(ways: Sequence[Mechanism | None], delta: float) -> Points:
    """Points (epsilon, delta) of what holds for the worst of the ways, from 0 on, to delta."""
    known = [_few_levels(way) for way in ways if way is not None]
    last = worst_epsilon(ways, delta)
    # Closer together at first, where the curve bends most.
    count = _CLOSED_POINTS if all(isinstance(way, Gaussian) for way in known) else _POINTS
    within = [last * (point / count) ** 1.4 for point in range(count)] if last <= _FAR else [0.0]
    deltas = [max((delta_at(way, epsilon=at) for way in known), default=0.0) for at in within]
    return [*zip(within, deltas, strict=True), (last, delta)] if last > 0 else [(0.0, delta)]


def least_misses(points: Points, false_positives: float) -> float:
    """The least chance of overlooking the guilty, of whoever accuses so many innocent."""
    bounds = [0.0]
    for at, delta in points:
        factor = math.exp(-at)
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
    most = 2 * _FAR  # where rounding alone decides
    found = least(lambda mu: _is_below(points, mu, delta), 1.0, tolerance=1e-6, most=most)
    return found if found < math.inf else None


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


def worst_epsilon(ways: Sequence[Mechanism | None], delta: float) -> float:
    """Of the worst of the ways; 0 for nothing."""
    return max(0.0 if way is None else epsilon(way, delta=delta) for way in ways)
