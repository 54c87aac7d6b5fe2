"""Renyi divergences of a mechanism, from above: an integral that the trapezoid rule nearly has.

For a step of Gaussian noise, E_P[e^(s L)] is the integral of phi(x) R(x)^a R(-x)^b, R the ratio of
P to noise around 0, a sum of w_j e^(m_j x - m_j^2 / 2). In the strip |Im x| < c it is analytic, and
at most e^(c^2 / 2) cos(c D / 2)^-n times its value at Re x, D the spread of the m_j and n what is
negative of a and b; so the rule with step h is off by at most 2 e^(c^2 / 2) cos(c D / 2)^-n /
(e^(2 pi c / h) - 1) of it. Proof: `docs/proofs/curves.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import logsumexp

from tacit.errors import InputError
from tacit.privacy.accounting.accounting import vectorised
from tacit.privacy.accounting.dominating_pairs import (
    GaussianPart,
    LaplacePart,
    NormalStep,
    Part,
    StepsPart,
    parts_of,
)
from tacit.privacy.accounting.listed import UNITS, listed, log_moments
from tacit.privacy.accounting.spectrum import UNIT
from tacit.privacy.accounting.tables import laplace_transform
from tacit.privacy.mechanisms.base import Mechanism
from tacit.privacy.mechanisms.composed import ClientSampling, Composed, Person
from tacit.privacy.mechanisms.known import KnownRelease
from tacit.privacy.mechanisms.steps import PersistentState

_MOST = 1 << 20  # places of the rule


@vectorised
def rdp(mechanism: Mechanism, orders: float) -> float:
    """At least the Renyi divergence of that order, in nats, in both directions; may be infinite.

    Orders are above 1. Noise is ideal: what states `coordinates` is refused, as is what no Renyi
    bound is known for.
    """
    if not 1 < orders < math.inf:
        raise InputError("orders", orders, "must be above 1, and finite")
    s = orders - 1
    ways = [_all_steps(mechanism, way, s) for way in (False, True)]
    return float(min(max(ways) / s * (1 + 1e-12), zcdp(mechanism) * orders))


@vectorised
def zcdp(mechanism: Mechanism) -> float:
    """A rho with which the mechanism is rho-zCDP: no divergence is above rho times its order."""
    return _all_steps(mechanism, False, None)


def _all_steps(mechanism: Mechanism, reverse: bool, s: float | None) -> float:
    """S times the divergence of order 1 + s, or rho where s is None."""
    if isinstance(mechanism, Composed):
        return math.fsum(_all_steps(part, reverse, s) for part in mechanism.parts)
    if isinstance(mechanism, ClientSampling):
        once, rate = _all_steps(mechanism.participation, reverse, s), mechanism.rate
        if s is not None and rate < 1:  # without cancellation: divergences may be tiny
            large = float(np.logaddexp(math.log(rate) + once, math.log1p(-rate)))
            once = math.log1p(rate * math.expm1(once)) if once < 1 else large
        return mechanism.rounds * once
    if isinstance(mechanism, KnownRelease):
        pure = min((loss for loss, spent in mechanism.points if spent == 0), default=math.inf)
        rho = min(pure**2 / 2, math.inf if mechanism.rho is None else mechanism.rho)
        if s is None:
            return rho * mechanism.steps
        pair = listed((mechanism,))
        error = UNIT * (len(pair.losses) + 2 * UNITS + 8 * s * float(pair.losses[-1]))
        exact = pair.count * (float(logsumexp(s * pair.losses, b=pair.masses)) + error) * (1 + 1e-9)
        own = math.inf if pair.lost or not mechanism.points else max(0.0, exact)
        return min(own, float(log_moments(mechanism, np.asarray([s]))[0]))
    fixed = getattr(mechanism, "sampling", "poisson") != "poisson"
    if mechanism.released_values() or fixed or isinstance(mechanism, Person | PersistentState):
        expected = "no Renyi divergence is known: state ideal noise, of a record, and Poisson"
        raise InputError("mechanism", mechanism.describe(), expected)
    above = (_ABOVE[type(part)](part, reverse, s) for part in parts_of(mechanism, upper=True))
    return math.fsum(above) * (1 + 1e-14)


def _laplace(level: float, s: float) -> float:
    most = level**2 / 2 * s * (s + 1)
    return min(most, float(laplace_transform(level, np.asarray(s))) + UNIT * (64 + 8 * s * level))


def _steps(part: StepsPart, reverse: bool, s: float | None) -> float:
    """As if nothing were drawn at random, unless more is known."""
    unit, total = part.unit, 0.0
    for level, count in part.levels.pairs():
        most = (unit.scaled(level).distance) ** 2 / 2 * (1 if s is None else s * (s + 1))
        if s is not None and isinstance(unit, NormalStep):
            most = min(most, _normal(unit.scaled(level), reverse, s))
        total += count * most
    return total


def _normal(step: NormalStep, reverse: bool, s: float) -> float:
    """Log E_P[e^(s loss)], by the rule of the module's docstring."""
    if step.symmetric:  # at most the moments of both directions, less 1
        ways = [_normal(replace(step, symmetric=False), way, s) for way in (False, True)]
        if max(ways) > 500:
            return max(ways) + math.log(2)
        return math.log1p(sum(map(math.expm1, ways))) * (1 + 1e-12)
    low, top = float(step.means[0]), float(step.means[-1])
    up, down = (-s, 0.0) if reverse and not step.opposite else (s + 1, -s if step.opposite else 0.0)
    falls = s if up < 0 or down < 0 else 0.0
    strip = min(3.0, 2 / (top - low) / math.sqrt(max(1.0, falls)))
    width = math.pi * strip / 30  # 2 pi strip / width = 60: off by less than 1e-22 of itself
    far = (up * top if up > 0 else 0.0) + falls * low
    rare = 2 * falls * (low * low / 2 - math.log(float(step.weights[0])))
    long, short = far + math.sqrt(far * far + rare + 100), top / 2 + 15
    first, last = (-long, short) if up < 0 else (-short, long)
    if (last - first) / width > _MOST:
        return math.inf
    x = np.arange(first, last + width, width)
    over, under = step.over_null(x), step.over_null(-x) if down else np.zeros(len(x))
    exponents = up * over + down * under - x * x / 2
    weights = np.exp(exponents - exponents.max())
    size = 8 * (step.rows + 10) * (1 + abs(up) + abs(down)) * top * (np.abs(x) + top) + 4 * x * x
    error = UNIT * (len(x) + 64 + float((weights * size).sum() / weights.sum()))
    whole = math.log(width / math.sqrt(2 * math.pi) * float(weights.sum()))
    return max(0.0, float(exponents.max()) + whole + 2 * error) if error < 0.01 else math.inf


_ABOVE: Mapping[type[Part], Callable[[Any, bool, float | None], float]] = {
    GaussianPart: lambda part, reverse, s: part.square / 2 * (1 if s is None else s * (s + 1)),
    LaplacePart: lambda part, reverse, s: sum(
        count * (level**2 / 2 if s is None else _laplace(level, s))
        for level, count in part.levels.pairs()
    ),
    StepsPart: _steps,
}
