"""Releases that are all alike, counted: noise on whole numbers, selections, and known curves.

Unit, trust model and relation are explained in `tacit.privacy.mechanisms.base`. What these protect
is stated by `relation`: sensitivities, divergences and losses are those between data sets that are
neighbours in that sense. Noise is ideal: of the laws as they stand, in exact arithmetic.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from tacit.errors import InputError
from tacit.privacy.mechanisms import base
from tacit.privacy.mechanisms.base import Mechanism, Relation, Unit

_MOST = 1 << 20  # numbers of a list
_NEAR = 1e-8  # of 1, for masses that add up to it


class Counted(Mechanism):
    """A release that is made `steps` times, each time alike."""

    rate = 1.0
    steps: int

    def __post_init__(self) -> None:
        base.check_fields(self)
        self._set(steps=base.whole("steps", self.steps))

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @abstractmethod
    def describe(self) -> str:
        """What is released, and how often."""

    def explain(self, number_text: Callable[[float], str]) -> str:
        """Likewise."""
        return self.describe()

    def released_values(self) -> int:
        """None on the lattice of tacit's own noise."""
        return 0

    def repeated(self, times: int) -> Self:
        """So many times over."""
        mechanism: Any = self
        repeated: Self = replace(mechanism, steps=self.steps * times)
        return repeated

    def merge_key(self) -> Self:
        """One release."""
        mechanism: Any = self
        once: Self = replace(mechanism, steps=1)
        return once

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """The releases of all parts."""
        return parts[0].merge_key().repeated(sum(part.steps for part in parts))


@dataclass(frozen=True)
class DiscreteGaussian(Counted):
    """Discrete Gaussian noise on a sum of whole numbers, one number a release.

    Its pair is (N_Z(s, scale^2), N_Z(0, scale^2)), s the sensitivity: likelihood ratios of this
    law's shifts rise with the output, so that a larger shift is worse in every event that decides
    (`docs/proofs/curves.md`; Canonne, Kamath and Steinke, *The discrete Gaussian for differential
    privacy*, 2020, Thm. 7, for its delta). Histograms with one change a bin compose bin by bin.

    Args:
        scale: sigma of the law with masses in proportion to e^(-x^2 / (2 sigma^2)).
        sensitivity: by how much the sum of neighbours differs at most, a whole number.
        steps: how many releases.
        relation: the neighbouring relation that `sensitivity` is for.
    """

    kind = "discrete-gaussian"
    scale: float
    sensitivity: int = 1
    steps: int = 1
    relation: Relation = base.ADD_OR_REMOVE_ONE
    trust_model: str = base.TRUST_MODEL
    unit: Unit = "record"

    def __post_init__(self) -> None:
        super().__post_init__()
        shift = base.whole("sensitivity", self.sensitivity)
        self._set(scale=base.positive("scale", self.scale), sensitivity=shift)
        if self.scale < 0.01 or 80 * self.scale + shift > _MOST:
            most = max(0.0, (_MOST - shift) / 80)
            expected = (
                f"must lie in 0.01..{most:.5g}; beyond, `from_zcdp` of (s / scale)^2 / 2 holds"
            )
            raise InputError("scale", self.scale, expected)

    def describe(self) -> str:
        """What is released, and how often."""
        return f"discrete Gaussian, sensitivity {self.sensitivity}, {self.steps} steps"


@dataclass(frozen=True)
class ReportNoisyMax(Counted):
    """The candidate whose noised score is the largest, and nothing else of the scores.

    With e = 2 sensitivity / scale, or half of that for monotone scores: Gumbel noise is the
    exponential mechanism, whose losses lie within a range of e (Durfee and Rogers, 2019); its
    profile is at most (1 - e^((x - e) / 2))^2 / (1 - e^-e), the largest of all with that range
    (Dong, Durfee and Rogers, *Optimal differential privacy composition for exponential mechanisms*,
    2020, by optimising t in their generalised randomised response). Laplace and exponential noise
    (permute-and-flip) are e-DP, accounted as randomised response. `docs/proofs/curves.md`.

    Args:
        scale: of the noise added to each score; the exponential mechanism's e^(score / scale).
        sensitivity: by how much a score of neighbours differs at most.
        noise: `gumbel`, `laplace` or `exponential`.
        monotone: whether neighbours' scores all move the same way: `add-or-remove-one` only.
        steps: how many releases.
        relation: the neighbouring relation that `sensitivity` is for.
    """

    kind = "report-noisy-max"
    scale: float
    sensitivity: float = 1.0
    noise: Literal["gumbel", "laplace", "exponential"] = "gumbel"
    monotone: bool = False
    steps: int = 1
    relation: Relation = base.ADD_OR_REMOVE_ONE
    trust_model: str = base.TRUST_MODEL
    unit: Unit = "record"

    def __post_init__(self) -> None:
        super().__post_init__()
        base.word("noise", self.noise, ("gumbel", "laplace", "exponential"))
        for name in ("scale", "sensitivity"):
            self._set(**{name: base.positive(name, getattr(self, name))})
        if not isinstance(self.monotone, bool) or (
            self.monotone and self.relation == base.REPLACE_ONE
        ):
            expected = "must be True or False, and under 'replace-one' False: scores move both ways"
            raise InputError("monotone", self.monotone, expected)

    @property
    def range(self) -> float:
        """The e of one release, rounded up."""
        return math.nextafter(self.sensitivity * (1 if self.monotone else 2) / self.scale, math.inf)

    def describe(self) -> str:
        """What is released, and how often."""
        return f"the largest of scores with {self.noise} noise, {self.steps} steps"


@dataclass(frozen=True)
class LossDistribution(Counted):
    """A release known by a pair (P, Q) that dominates it: losses log(dP/dQ), each with its mass.

    The bound is that of (P, Q) and of (Q, P), the larger of the two after composition, so the pair
    has to dominate one direction of the relation, and its reverse the other. Under Q the mass at a
    loss l is e^-l times that under P. `privacy.from_points` makes one of what holds both ways.

    Args:
        losses: finite, `[losses]`.
        masses: of P at each.
        infinite: mass of P whose loss is infinite; left out, what the masses lack.
        reverse_infinite: mass of Q whose loss is -infinite; left out, what the masses of Q lack.
        steps: how many releases.
        relation: the neighbouring relation that the pair is for.
    """

    kind = "loss-distribution"
    losses: Sequence[float]
    masses: Sequence[float]
    infinite: float | None = None
    reverse_infinite: float | None = None
    steps: int = 1
    relation: Relation = base.ADD_OR_REMOVE_ONE
    trust_model: str = base.TRUST_MODEL
    unit: Unit = "record"

    def __post_init__(self) -> None:
        super().__post_init__()
        losses, masses = (numbers(name, getattr(self, name)) for name in ("losses", "masses"))
        if len(losses) != len(masses) or min(masses) < 0:
            raise InputError("masses", masses, "must be one mass of 0 or more for each loss")
        pairs = sorted(zip(losses, masses, strict=True))
        if max(map(abs, losses)) > 700:
            raise InputError("losses", max(losses, key=abs), "must lie in -700..700")
        self._set(losses=tuple(loss for loss, _ in pairs), masses=tuple(mass for _, mass in pairs))
        self._set(infinite=self._beside("infinite", masses))
        seen = [mass * math.exp(-loss) for loss, mass in pairs]
        self._set(reverse_infinite=self._beside("reverse_infinite", seen))

    def _beside(self, name: str, masses: Sequence[float]) -> float:
        """The mass beside these, as given or as they lack of 1 by more than rounding."""
        lack = 1 - math.fsum(masses)
        beside = getattr(self, name)
        if beside is None:
            rounding = (len(masses) + 16 + 4 * max(map(abs, self.losses))) * 2.0**-53
            beside = lack if lack > rounding else 0.0
        beside = base.number(name, beside)
        if not 0 <= beside <= 1 or abs(lack - beside) > _NEAR:
            raise InputError(name, beside, f"must be {lack:.9g}, which the masses lack of 1")
        return beside

    def describe(self) -> str:
        """What is released, and how often."""
        return f"a release known by its {len(self.losses)} losses, {self.steps} steps"


@dataclass(frozen=True)
class RenyiDP(Counted):
    """A release that is known by bounds of its Renyi divergences, in both directions.

    Those of several add up before they are turned into a profile (`docs/proofs/curves.md`; Canonne,
    Kamath and Steinke, 2020, Prop. 12, for one order).

    Args:
        orders: above 1, ascending, `[orders]`; none where only rho is known.
        values: the divergence of each order is at most that, in nats, `[orders]`.
        rho: that of every order is at most rho times the order (rho-zCDP); None: not known.
        steps: how many releases.
        relation: the neighbouring relation that the divergences are for.
    """

    kind = "renyi-dp"
    orders: Sequence[float] = ()
    values: Sequence[float] = ()
    rho: float | None = None
    steps: int = 1
    relation: Relation = base.ADD_OR_REMOVE_ONE
    trust_model: str = base.TRUST_MODEL
    unit: Unit = "record"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rho is not None:
            self._set(rho=base.number("rho", self.rho))
        orders, values = (
            numbers(name, getattr(self, name), least=int(self.rho is None))
            for name in ("orders", "values")
        )
        if len(orders) != len(values) or min(values, default=0.0) < 0:
            raise InputError("values", values, "must be one divergence of 0 or more for each order")
        if list(orders) != sorted(set(orders)) or min(orders, default=2.0) <= 1:
            raise InputError("orders", orders, "must ascend, and be above 1")
        if self.rho is not None and self.rho < 0:
            raise InputError("rho", self.rho, "must be 0 or more")
        self._set(orders=orders, values=values)

    def describe(self) -> str:
        """What is released, and how often."""
        return f"a release known by its Renyi divergences, {self.steps} steps"


def numbers(where: str, values: object, *, least: int = 1) -> tuple[float, ...]:
    """A list of finite numbers; raises InputError on anything else."""
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise InputError(where, values, "must be a list of numbers")
    found = tuple(base.number(where, value) for value in values)
    if not least <= len(found) <= _MOST:
        raise InputError(where, values, f"must be {least} to {_MOST:,} numbers")
    return found
