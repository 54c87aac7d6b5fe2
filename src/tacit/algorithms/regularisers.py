"""Regularisers R by name, each with its value and its proximal operator.

With lambda = `regularisation` >= 0 and x in R^d:

| `regulariser` | R(x) | prox_{s R}(x), coordinate by coordinate |
|---|---|---|
| `none` | 0 | x |
| `l1` | lambda |x|_1 | sign(x) max(|x| - s lambda, 0) |
| `l2` | lambda |x|_2^2 / 2 | x / (1 + s lambda) |
| `elastic-net` | lambda (|x|_1 + |x|_2^2 / 2) | the one of `l1`, then the one of `l2` |
| `box` | 0 where every |x_j| <= lambda, else infinity | min(max(x, -lambda), lambda) |

prox_{s R}(x) = argmin_u R(u) + |u - x|_2^2 / (2 s). All five R are sums over coordinates, so that
their operators are non-expansive in l2 and, coordinate by coordinate, Lipschitz with constant 1:
in l1 and in every other norm too (Parikh and Boyd, *Proximal Algorithms*, 2014, sections 2.1, 2.3
and 6.5). They read no records: applied to released values they are post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from tacit.errors import InputError, nearest

__all__ = ["REGULARISERS", "Regularisation", "Regulariser", "RegulariserName", "prox", "value"]

RegulariserName = Literal["none", "l1", "l2", "elastic-net", "box"]
Regularisation = Annotated[float, Field(ge=0, le=1e38, allow_inf_nan=False)]
"""lambda, as an option of an algorithm."""


@dataclass(frozen=True)
class Regulariser:
    """A regulariser.

    Args:
        prox: of (x `[nodes, d]`, step, regularisation), `[nodes, d]`; step is a tensor that
            broadcasts with x.
        value: of (x, regularisation), `[nodes]`.
        smooth: whether it has a gradient everywhere, so that methods without a proximal operator
            may use it as a part of the loss.
    """

    prox: Callable[[Tensor, Tensor, float], Tensor]
    value: Callable[[Tensor, float], Tensor]
    smooth: bool


def prox(name: str, x: Tensor, step: float | Tensor, regularisation: float) -> Tensor:
    """Proximal operator: argmin_u R(u) + |u - x|^2 / (2 step), a new tensor `[nodes, d]`.

    Args:
        name: of the regulariser.
        x: `[nodes, d]`.
        step: above 0; a number, or a tensor that broadcasts with x (`[nodes, 1]`: one a node).
        regularisation: lambda, 0 or more.

    Raises:
        InputError: an unknown name, a step that is not above 0, or an unusable lambda.
    """
    chosen = _regulariser(name, regularisation)
    steps = torch.as_tensor(step, dtype=x.dtype, device=x.device)
    if not bool((steps > 0).all()):
        raise InputError("step of a proximal operator", step, "a number above 0")
    return chosen.prox(x, steps, regularisation)


def value(name: str, x: Tensor, regularisation: float) -> Tensor:
    """R of every row: `[nodes]`.

    Raises:
        InputError: an unknown name, or an unusable lambda.
    """
    return _regulariser(name, regularisation).value(x, regularisation)


def _regulariser(name: str, regularisation: float) -> Regulariser:
    if name not in REGULARISERS:
        raise InputError("algorithm.regulariser", name, nearest(str(name), REGULARISERS))
    if not 0.0 <= regularisation < math.inf:
        raise InputError("algorithm.regularisation", regularisation, "a number, 0 or more")
    return REGULARISERS[name]


def _shrink(x: Tensor, step: Tensor, regularisation: float) -> Tensor:
    threshold = step * regularisation
    return x - torch.clamp(x, -threshold, threshold)  # exactly 0 below the threshold


def _scale(x: Tensor, step: Tensor, regularisation: float) -> Tensor:
    return x / (1.0 + step * regularisation)


def _half_square(x: Tensor) -> Tensor:
    return x.square().sum(1) / 2.0


def _outside(x: Tensor, bound: float) -> Tensor:
    """Return 0 for rows within the bound, infinity for others (NaN included)."""
    inside = (x.abs() <= bound).all(1)
    return torch.where(inside, 0.0, math.inf).to(x.dtype)


REGULARISERS: Mapping[str, Regulariser] = MappingProxyType(
    {
        "none": Regulariser(
            lambda x, step, lam: x.clone(), lambda x, lam: x.new_zeros(len(x)), True
        ),
        "l1": Regulariser(_shrink, lambda x, lam: lam * x.abs().sum(1), smooth=False),
        "l2": Regulariser(_scale, lambda x, lam: lam * _half_square(x), smooth=True),
        "elastic-net": Regulariser(
            lambda x, step, lam: _scale(_shrink(x, step, lam), step, lam),
            lambda x, lam: lam * (x.abs().sum(1) + _half_square(x)),
            smooth=False,
        ),
        "box": Regulariser(lambda x, step, lam: x.clamp(-lam, lam), _outside, smooth=False),
    }
)
