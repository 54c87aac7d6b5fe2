"""Parts that several algorithms are composed of: functions of tensors and the context, no more."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from torch import Tensor

from tacit.algorithms.base import Activity, Setup
from tacit.algorithms.context import StepContext
from tacit.communication import compression

__all__ = [
    "CompressorName",
    "compressed",
    "heavy_ball",
    "independent",
    "no_momentum",
    "noised_gradient",
    "public_draws",
]

CompressorName = Literal["none", "top-k", "rand-k", "bernoulli"]

_COINS = 2  # the purpose of the public draws


def noised_gradient(at: Tensor, k: int, context: StepContext) -> Tensor:
    """Each node's clipped, noised gradient at `at`, `[nodes, d]`: what an observer may learn.

    The sum over step k's batch of clipped record gradients, plus Gaussian noise of the planned
    standard deviation for that sum, over the **expected** batch size (the size that was drawn is
    a secret of the node).
    """
    total = context.batch_gradient(at, k)
    return context.divide(context.add_noise(total, k))


def no_momentum(x: Tensor, momentum: float) -> Tensor:
    """The momentum buffer before the first step: zeros `[nodes, d]`, or `[nodes, 0]` if unused."""
    return x.new_zeros(len(x), x.shape[1] if momentum else 0)


def heavy_ball(buffer: Tensor, gradient: Tensor, momentum: float) -> tuple[Tensor, Tensor]:
    """Heavy-ball momentum m = beta m + g of **noised** gradients: post-processing, free of cost.

    Returns the direction to step along, and the buffer to keep (`[nodes, d]` each).
    """
    if not momentum:
        return gradient, buffer
    buffer = buffer.mul(momentum).add_(gradient)
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
