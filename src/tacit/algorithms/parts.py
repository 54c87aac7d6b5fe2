"""Parts that several algorithms are composed of: functions of tensors and the context, no more."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import Activity, Setup
from tacit.algorithms.options import Idle, Share
from tacit.communication import compression
from tacit.errors import InputError, nearest

CompressorName = Annotated[
    Literal["none", "top-k", "rand-k", "bernoulli"],
    Idle(
        lambda options: "keep" not in options.model_fields_set,
        "sends everything until algorithm.keep says which share: set it below 1, or leave both out",
    ),
]
Keep = Annotated[
    Share,
    Idle(
        lambda options: options.compressor == "none",
        "needs a compressor: set compressor = 'top-k' ('rand-k', 'bernoulli'), or leave it out",
    ),
]
RegulariserName = Literal["none", "l1", "l2", "elastic-net", "box"]
Subgradient = Literal["none", "l1", "l2", "elastic-net"]
"""Regularisers with subgradients: a box has none that would keep x inside it."""
Regularisation = Annotated[
    float,
    Field(ge=0, le=1e38, allow_inf_nan=False),
    Idle(
        lambda options: options.regulariser == "none",
        "needs a regulariser: set algorithm.regulariser, or leave it out",
    ),
]

WeightDecay = Annotated[float, Field(ge=0, le=1e38, allow_inf_nan=False)]

_COINS = 2  # the purpose of the public draws


def noised_gradient(at: Tensor, k: int, context: StepContext) -> Tensor:
    """Each node's clipped, noised gradient at `at`, `[nodes, d]`: what an observer may learn.

    The sum over step k's batch of clipped record gradients, plus Gaussian noise of the planned
    standard deviation for that sum, over the **expected** batch size (the size that was drawn is
    a secret of the node).
    """
    total = context.batch_gradient(at, k)
    return context.divide(context.add_noise(total, k))


def with_weight_decay(gradient: Tensor, at: Tensor, weight_decay: float, active: Tensor) -> Tensor:
    """A noised gradient plus that of the ridge term weight_decay ||x||^2 / 2, `[nodes, d]`.

    The term reads no record: it is added after clipping and noise, to what an observer may learn,
    and costs nothing. The models x are `at`, `[nodes, d]`; `active`, bool `[nodes, 1]`, says whose
    gradients these are, and those of others stay as they are.
    """
    if not weight_decay:
        return gradient
    return torch.where(active, gradient.add(at, alpha=weight_decay), gradient)


def no_momentum(x: Tensor, momentum: float) -> Tensor:
    """The momentum buffer before the first step: zeros `[nodes, d]`, or `[nodes, 0]` if unused."""
    return x.new_zeros(len(x), x.shape[1] if momentum else 0)


def heavy_ball(buffer: Tensor, gradient: Tensor, momentum: float) -> tuple[Tensor, Tensor]:
    """Heavy-ball momentum m = beta m + g of **noised** gradients: post-processing, free of cost.

    Returns the direction to step along, and the buffer to keep (`[nodes, d]` each).
    """
    if not momentum:
        return gradient, buffer
    buffer = gradient.add(buffer, alpha=momentum)
    return buffer, buffer


def compressed(
    values: Tensor, k: int, options: Any, context: StepContext, part: int = 0
) -> compression.Compressed:
    """What of `values` `[nodes, d]` is sent at step k, by `options.compressor` and `options.keep`.

    Nothing is scaled. `part` numbers the messages of a node in one step: each has masks of its own,
    from the public seed.
    """
    return compression.compress(
        values,
        compressor=options.compressor,
        keep=options.keep,
        seed=context.seed,
        step=k,
        nodes=context.nodes,
        part=part,
    )


def keeps_back(options: Any) -> bool:
    """Whether `compressed` sends a part of the coordinates alone."""
    return bool(options.keep < 1)


def public_draws(seed: int, purpose: int) -> np.random.Generator:
    """Public random numbers: reproducible from the seed by everyone, and no secret."""
    return np.random.default_rng(np.random.SeedSequence([seed, 0x74616369, purpose]))


def independent(setup: Setup) -> Activity | None:
    """Every node at every step with chance `activation`, independently; None where that is 1."""
    chance = setup.options.activation
    if chance == 1:
        return None
    draws = public_draws(setup.seed, _COINS).random((setup.steps, setup.nodes))
    return Activity(draws < chance)


def prox(name: str, x: Tensor, step: float | Tensor, regularisation: float) -> Tensor:
    """Proximal operator of a regulariser R: argmin_u R(u) + |u - x|^2 / (2 step).

    `step` is above 0: a number, or a tensor that broadcasts with x (`[nodes, 1]`: one a node). x
    and the result, a new tensor, are `[nodes, d]`. With lambda = `regularisation`, 0 or more,
    coordinate by coordinate:

    | name | R(x) | operator of `step` R |
    |---|---|---|
    | `none` | 0 | x |
    | `l1` | lambda |x|_1 | sign(x) max(|x| - step lambda, 0) |
    | `l2` | lambda |x|_2^2 / 2 | x / (1 + step lambda) |
    | `elastic-net` | lambda (|x|_1 + |x|_2^2 / 2) | the one of `l1`, then the one of `l2` |
    | `box` | 0 where every |x_j| <= lambda, else infinity | min(max(x, -lambda), lambda) |

    All five R are sums over coordinates, so that their operators are non-expansive in l2 and,
    coordinate by coordinate, Lipschitz with constant 1: in l1 and in every other norm too (Parikh
    and Boyd, *Proximal Algorithms*, 2014, sections 2.1, 2.3 and 6.5). They read no records: applied
    to released values they are post-processing.

    Raises:
        InputError: an unknown name, a step that is not above 0, or an unusable lambda.
    """
    if not isinstance(step, Tensor):
        if not step > 0:
            raise InputError("step of a proximal operator", step, _STEP)
        step = x.new_full((), step)
    return proximal(name, step.to(x), regularisation)(x)


_STEP = "a number above 0"


def regulariser_value(name: str, x: Tensor, regularisation: float) -> float:
    """R(x), in float64, of the R whose operator `prox` is: see its table.

    R is summed over all coordinates of x, whatever its shape.

    Raises:
        InputError: an unknown name.
    """
    if name not in _VALUES:
        raise InputError("algorithm.regulariser", name, nearest(str(name), _VALUES))
    return _VALUES[name](x.double(), regularisation)


def proximal(name: str, step: Tensor, regularisation: float) -> Callable[[Tensor], Tensor]:
    """The same operator, checked once for many calls: x `[nodes, d]` -> a new tensor.

    Raises:
        InputError: as `prox`.
    """
    if name not in _OPERATORS:
        raise InputError("algorithm.regulariser", name, nearest(str(name), _OPERATORS))
    if not 0.0 <= regularisation < math.inf:
        raise InputError("algorithm.regularisation", regularisation, "a number, 0 or more")
    if step.device.type == "cpu" and not bool((step > 0).all()):  # a device would be waited for
        raise InputError("step of a proximal operator", step, _STEP)
    return _OPERATORS[name](step, regularisation)


def _shrink(step: Tensor, regularisation: float) -> Callable[[Tensor], Tensor]:
    threshold = step * regularisation
    lowest = -threshold
    return lambda x: x - torch.clamp(x, lowest, threshold)  # exactly 0 below the threshold


def _scale(step: Tensor, regularisation: float) -> Callable[[Tensor], Tensor]:
    divisor = 1.0 + step * regularisation
    return lambda x: x / divisor


def _shrink_and_scale(step: Tensor, regularisation: float) -> Callable[[Tensor], Tensor]:
    shrink, scale = _shrink(step, regularisation), _scale(step, regularisation)
    return lambda x: scale(shrink(x))


_OPERATORS: Mapping[str, Callable[[Tensor, float], Callable[[Tensor], Tensor]]] = MappingProxyType(
    {
        "none": lambda step, regularisation: torch.clone,
        "l1": _shrink,
        "l2": _scale,
        "elastic-net": _shrink_and_scale,
        "box": lambda step, regularisation: lambda x: x.clamp(-regularisation, regularisation),
    }
)

_VALUES: Mapping[str, Callable[[Tensor, float], float]] = MappingProxyType(
    {
        "none": lambda x, regularisation: 0.0,
        "l1": lambda x, regularisation: regularisation * float(x.abs().sum()),
        "l2": lambda x, regularisation: regularisation / 2 * float(x.square().sum()),
        "elastic-net": lambda x, regularisation: (
            regularisation * float(x.abs().sum() + x.square().sum() / 2)
        ),
        "box": lambda x, regularisation: (
            0.0 if bool((x.abs() <= regularisation).all()) else math.inf
        ),
    }
)

SUBGRADIENTS: Mapping[Subgradient, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "none": torch.zeros_like,
        "l1": torch.sign,
        "l2": torch.clone,
        "elastic-net": lambda x: x.sign().add_(x),
    }
)
"""Of R as `prox` defines it, without its factor lambda."""
