"""What each record's gradient is clipped to, and how far one record can then move their sum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from tacit.errors import InputError
from tacit.privacy.mechanisms.base import REPLACE_ONE, Relation

ClipNorm = Literal["l2", "coordinate", "l1", "automatic"]
CLIP_NORMS: tuple[ClipNorm, ...] = get_args(ClipNorm)

ASSUMED: Literal["assumed"] = "assumed"
ClipRule = ClipNorm | Literal["assumed"]
"""What `[algorithm].clip_norm` may be: how gradients are clipped, or that a bound is assumed."""

_BEYOND = 8.0

NoiseNorm = Literal["l2", "l1"]
"""The norm of a shift that decides what noise hides: l2 for Gaussian noise, l1 for Laplace."""


@dataclass(frozen=True)
class Clipping:
    """How the gradients of records are clipped before they are summed, step by step."""

    # What the bound is one of: `l2`, the l2 norm; `l1`, the l1 norm, and with it the l2 norm, which
    # is never above it; `coordinate`, sqrt(d) times the largest of the d coordinates, and with it
    # the l2 norm; `automatic`, the l2 norm of what each gradient is scaled to, shorter ones too.
    # What becomes of a gradient that is longer is in `tacit.gradients.clipping`.
    norm: ClipNorm
    # C_k, in units of the gradient, `[steps]`; None: nothing is clipped.
    bounds: tuple[float, ...] | None
    # Whether gradients are clipped to it. If not, a paper's formula takes it for a bound of all
    # gradients, noise is in its units, and nothing keeps a gradient to it.
    enforced: bool = True

    def bound(self, k: int) -> float | None:
        """The bound of step k that noise is in units of; None: there is none."""
        return None if self.bounds is None else self.bounds[k]

    def applied(self, k: int) -> float | None:
        """What gradients are clipped to in step k; None: nothing is clipped."""
        return self.bound(k) if self.enforced else None

    def attacked(self, k: int) -> float:
        """How long the gradients are that an audit attacks with in step k: as long as they may be.

        Where the bound is assumed there is no longest one: an audit takes eight times the bound.
        Without one, the unit of gradients is 1.
        """
        return (self.bound(k) or 1.0) * (1.0 if self.enforced else _BEYOND)

    def sensitivity(self, relation: Relation, norm: NoiseNorm = "l2") -> tuple[float, ...]:
        """How far one record moves the sum of a batch that holds it, at most, `[steps]`.

        `C_k` under `add-or-remove-one`: the sum moves by that record's clipped gradient. `2 C_k`
        under `replace-one`: by the difference of two of them (triangle inequality). Both hold for
        the sum that the machine returns: `docs/proofs/clipped-sums.md`.

        `norm` is that in which the distance is measured, that of the noise. In l2 every clip has a
        bound; in l1 only that of the l1 norm: the others allow sqrt(d) C_k, for which no noise is
        calibrated here.

        Returns:
            The distances, in units of the gradient: infinite where the bound is assumed.

        Raises:
            InputError: nothing is clipped, or the clip has no bound in that norm.
        """
        if self.bounds is None:
            raise InputError(
                "algorithm.clip", None, "without a bound no epsilon holds: give a clip"
            )
        if norm == "l1" and self.norm != "l1":
            raise InputError("algorithm.clip_norm", self.norm, "must be 'l1' for Laplace noise")
        if not self.enforced:
            return (math.inf,) * len(self.bounds)
        gradients = 2 if relation == REPLACE_ONE else 1
        return tuple(gradients * bound for bound in self.bounds)
