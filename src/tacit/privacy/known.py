"""Mechanisms from what others know: laws, losses, curves, and events of dp_accounting.

Each gives a mechanism of `tacit.privacy`; `**which` are its `steps`, `relation`, `trust_model` and
`unit`. Sensitivities and curves are those between neighbours of that relation. Proofs:
`docs/proofs/curves.md`.

*Two meanings of replace-one.* Here a noise multiplier is over the clipping bound C, and a replaced
record moves the sum by up to 2 C. dp_accounting's `PLDAccountant` means the same; its
`RdpAccountant` means noise over what a replaced record moves: z there is 2 z here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from tacit.errors import InputError
from tacit.privacy.mechanisms import base
from tacit.privacy.mechanisms.base import ADD_OR_REMOVE_ONE, REPLACE_ONE, Mechanism, Relation
from tacit.privacy.mechanisms.composed import Composed, compose
from tacit.privacy.mechanisms.known import KnownRelease, numbers
from tacit.privacy.mechanisms.steps import FixedBatchGaussian, Gaussian, Laplace, SampledGaussian

_SAFE = 1 + 1e-15
_CLOSER = np.linspace(1.0, 0.0, 512) ** 2


def gaussian_dp(mu: float, **which: Any) -> Gaussian:
    """A release that is mu-GDP in both directions: as Gaussian noise on every record."""
    moved = 2.0 if which.get("relation") == REPLACE_ONE else 1.0
    return Gaussian(math.nextafter(moved / base.positive("mu", mu), 0.0), **which)


def discrete_gaussian(scale: float, sensitivity: int = 1, **which: Any) -> KnownRelease:
    """Discrete Gaussian noise on a whole number that neighbours change by at most `sensitivity`.

    Masses are in proportion to e^(-x^2 / (2 scale^2)). The profile is exact at all its corners
    (Canonne, Kamath and Steinke, *The discrete Gaussian for differential privacy*, 2020, Thm. 7).
    """
    shift, scale = base.whole("sensitivity", sensitivity), base.positive("scale", scale)
    reach = math.ceil(39 * scale)  # beyond it there is less than 1e-300
    if not scale >= 0.05 or 2 * reach + shift > 1 << 13:
        expected = "must be 0.05 to some 100; above, `KnownRelease` of rho (shift / scale)^2 / 2"
        raise InputError("scale", scale, expected)
    x = np.arange(-reach, shift + reach + 1.0)
    masses = np.exp(-(((x - shift) / scale) ** 2) / 2)
    losses = shift * (2 * x - shift) / (2 * scale**2)
    masses, kept = masses / math.fsum(masses), np.abs(losses) < 650
    points = _profile(losses[kept], masses[kept], 1e-280 + float(masses[~kept].sum()))
    words = f"discrete Gaussian noise of scale {scale:g}, sensitivity {shift}"
    return KnownRelease(points, rho=(shift / scale) ** 2 / 2 * _SAFE, words=words, **which)


def report_noisy_max(
    scale: float,
    sensitivity: float = 1.0,
    *,
    noise: Literal["gumbel", "laplace", "exponential"] = "gumbel",
    monotone: bool = False,
    **which: Any,
) -> KnownRelease:
    """The candidate of the largest score, each with noise of that scale added; nothing else.

    Let e = 2 sensitivity / scale, or half of that where all scores of a neighbour move the same way
    (`monotone`, not under `replace-one`). Gumbel noise is the exponential mechanism: its losses lie
    within a range of e, which allows no profile above (1 - e^((x - e) / 2))^2 / (1 - e^-e) (Dong,
    Durfee and Rogers, *Optimal differential privacy composition for exponential mechanisms*, 2020).
    Laplace and exponential noise (permute-and-flip) are e-DP.
    """
    base.word("noise", noise, ("gumbel", "laplace", "exponential"))
    if monotone and which.get("relation") == REPLACE_ONE:
        raise InputError("monotone", monotone, "must be False under 'replace-one'")
    widest = base.positive("sensitivity", sensitivity) / base.positive("scale", scale)
    e = widest * (1 if monotone else 2) * _SAFE
    at = e * (1 - (_CLOSER if noise == "gumbel" else np.zeros(1)))
    short = np.expm1((at - e) / 2)
    deltas = short * (short / -math.expm1(-e))  # whose square alone may underflow
    rho = e * e / (8 if noise == "gumbel" else 2) * _SAFE
    words = f"the largest of scores with {noise} noise of scale {scale:g}"
    points = list(zip(at.tolist(), deltas.tolist(), strict=True))
    return KnownRelease(points, rho=rho, words=words, **which)


def exponential_mechanism(epsilon: float, *, monotone: bool = False, **which: Any) -> KnownRelease:
    """A choice with chances in proportion to e^(epsilon score / (2 sensitivity)); monotone: / 1."""
    scale = (1 if monotone else 2) / base.positive("epsilon", epsilon) / _SAFE  # over sensitivity
    return report_noisy_max(scale, 1.0, noise="gumbel", monotone=monotone, **which)


def from_losses(
    losses: Sequence[float], masses: Sequence[float], infinite: float = 0.0, **which: Any
) -> KnownRelease:
    """A release with a dominating pair (P, Q) of these losses log(dP/dQ), each with its mass of P.

    What the masses of P lack of 1 by more than rounding, or `infinite`, has infinite loss; so has
    in the other direction what those of Q lack, which are e^-loss times those of P. The larger
    profile of both directions is what is composed.
    """
    at, p = np.asarray(numbers("losses", losses)), np.asarray(numbers("masses", masses))
    if len(at) != len(p) or not len(at) or p.min() < 0 or np.abs(at).max() > 650:
        raise InputError("masses", masses, "must be one of 0 or more for each loss within +-650")
    return KnownRelease(_profile(at, p, base.number("infinite", infinite)), **which)


def _profile(losses: Any, p: Any, infinite: float) -> list[tuple[float, float]]:
    """The larger of both directions' profiles, at its corners at 0 and above."""
    corners = np.unique(np.append(0.0, np.abs(losses)))
    most = np.zeros(len(corners))
    for name, at, mass in (("masses", losses, p), ("losses", -losses, p * np.exp(-losses))):
        lack = 1 - math.fsum(mass)
        if lack < -1e-8:
            expected = "must be a pair's: masses, and e^-loss times masses, add up to 1 at most"
            raise InputError(name, 1 - lack, expected)
        rounding = (8 + 4 * float(corners[-1])) * 2.0**-53
        lost = max(infinite, lack if lack > rounding else 0.0)
        deltas = [float(mass[at > e] @ -np.expm1(e - at[at > e])) for e in corners.tolist()]
        most = np.maximum(most, np.asarray(deltas) * (1 + 1e-10) + lost)
    above = (corners * _SAFE).tolist()  # a loss may be rounded down
    return list(zip(above, np.minimum(most, 1.0).tolist(), strict=True))


def from_trade_off(alphas: Sequence[float], betas: Sequence[float], **which: Any) -> KnownRelease:
    """A release on which no test errs less than a convex polyline from alpha 0 to 1 says."""
    first, second = np.asarray(numbers("alphas", alphas)), np.asarray(numbers("betas", betas))
    if len(first) != len(second) or len(first) < 2 or tuple(first[[0, -1]]) != (0.0, 1.0):
        raise InputError("alphas", alphas, "must ascend from 0 to 1, with as many betas")
    falls = (np.diff(first) > 0).all() and (np.diff(second) <= 0).all()
    if not falls or second[-1] < 0 or second[0] > 1:
        raise InputError("betas", betas, "must not rise, within 0..1, over ascending alphas")
    ways = [(first, second), (second[::-1], first[::-1])]
    with np.errstate(divide="ignore"):
        slopes = np.concatenate([-np.diff(missed) / np.diff(at) for at, missed in ways])
    ratios = np.unique(np.append(1.0, slopes[(slopes >= 1) & (slopes < 1e300)]))
    deltas = np.max([(1 - missed - ratios[:, None] * at).max(1) for at, missed in ways], axis=0)
    most = np.clip(deltas + 1e-15, 0.0, 1.0).tolist()
    above = (np.log(ratios) * _SAFE).tolist()  # as in `_profile`
    return KnownRelease(list(zip(above, most, strict=True)), **which)


def from_dp_event(event: Any, relation: Relation = ADD_OR_REMOVE_ONE) -> Mechanism:
    """The mechanism of a `DpEvent` of dp_accounting, with noise multipliers over the bound C."""
    kind = type(event).__name__.removesuffix("DpEvent")
    words: dict[str, Any] = {"relation": relation}
    inner = type(getattr(event, "event", None)).__name__.removesuffix("DpEvent")
    if kind == "Gaussian":
        return Gaussian(event.noise_multiplier, **words)
    if kind == "Laplace":
        return Laplace(event.noise_multiplier, **words)
    if kind == "PoissonSampled" and inner == "Gaussian":
        noise = event.event.noise_multiplier
        return SampledGaussian(event.sampling_probability, noise, **words)
    if kind == "PoissonSampled" and inner == "Laplace":
        noise, rate = event.event.noise_multiplier, event.sampling_probability
        return Laplace(noise, sample_rate=rate, **words)
    if kind == "SampledWithoutReplacement" and inner == "Gaussian":
        size, noise = event.source_dataset_size, event.event.noise_multiplier
        return FixedBatchGaussian(event.sample_size, size, noise, **words)
    if kind == "SelfComposed":
        return compose(from_dp_event(event.event, relation), event.count)
    if kind == "Composed":
        return Composed([from_dp_event(each, relation) for each in event.events])
    if kind in ("NoOp", "NonPrivate"):
        return KnownRelease([(0.0, float(kind == "NonPrivate"))], **words)
    if kind == "ZC" and event.xi == 0:
        return KnownRelease(rho=event.rho, **words)
    if kind == "DiscreteLaplace":  # whose sensitivity is the bound on a contribution as well
        moved = event.sensitivity * (2 if relation == REPLACE_ONE else 1)
        return KnownRelease([(event.noise_parameter * moved * _SAFE, 0.0)], **words)
    of = f" of {inner}DpEvent" if inner != "NoneType" else ""
    raise InputError("event", f"{kind}DpEvent{of}", "is no event that has a mechanism here")
