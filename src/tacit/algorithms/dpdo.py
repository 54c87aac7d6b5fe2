"""DPDO: projected gradient and gossip of models with decaying Laplace noise (Huang, Mitra and
Vaidya, ICDCN 2015).

| paper | here |
|---|---|
| y_i^t, what is sent | the message |
| z_i^t = sum_j a_ij y_j^t | `state.z`, `[nodes, d]` |
| a_ij, symmetric doubly stochastic | mixing matrix |
| gamma_t = c q^{t-1} | `learning_rate` (c), `rate_decay` (q) |
| M_t, proportional to p^t | scale of the Laplace noise; `noise_decay` (p), q < p < 1 |
| X | `regulariser` = "box": every coordinate within `regularisation`; "none": everything |
| C_2, bound of a gradient's l2 norm | `clip` bounds every record's gradient in **l1**, enforced |

Step k (t = k + 1): x_i = Proj_X[z_i - gamma_t grad f_i(z_i)], y_i = x_i + Laplace(M_t), z_i = sum_j
a_ij y_j. Read from z^0 = x^0 on, which is public, so that the last models are noised as well: the
paper writes the same loop from y_i on.

Mechanism: given the public z, the release y_i is a mean of clipped gradients times gamma_t,
projected, plus Laplace noise. A projection on a box moves no coordinates apart, so leaving out a
record moves x_i by at most gamma_t C / (q J) in l1 (replacing it, by twice that): the Laplace
mechanism with multiplier m_t = M_t q J / (gamma_t C) = m_1 (p / q)^{t-1}, composed. Relation: the
plan's; trust model: `all-messages`. No claim is printed in the papers compared here. Proof, and the
paper's constant: `docs/proofs/noised-gradients.md`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from tacit.algorithms.base import Algorithm
from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import LAPLACE_SUMS, GraphNeeds, PaperClaims, Participation, Setup
from tacit.algorithms.options import Options, Schedules, step_size
from tacit.algorithms.parts import Regularisation
from tacit.communication.colours import Released
from tacit.errors import InputError
from tacit.privacy.mechanisms.clipping import ClipRule

Decay = Annotated[float, Field(ge=1e-3, le=1)]


class LaplaceOptions(Options):
    """Options of DPDO."""

    clip_norm: ClipRule = "l1"
    rate_decay: Decay = 0.99
    noise_decay: Decay = 0.995
    regulariser: Literal["none", "box"] = "none"
    regularisation: Regularisation = 1.0


class DpdoState(NamedTuple):
    """z `[nodes, d]`."""

    z: Tensor


def schedules(options: LaplaceOptions, clip: float | None, steps: int) -> Schedules:
    """Noise multipliers m_t / m_1 = (p / q)^{t-1}."""
    ratio = options.noise_decay / options.rate_decay
    shape = tuple(ratio**k for k in range(steps))
    return Schedules(None if clip is None else (clip,) * steps, shape)


def start(x: Tensor, options: LaplaceOptions, context: StepContext) -> DpdoState:
    """z_i^0 = x^0."""
    return DpdoState(x)


def step(state: DpdoState, k: int, options: LaplaceOptions, context: StepContext) -> DpdoState:
    """A projected gradient step, Laplace noise, gossip."""
    unit = (
        step_size(options, k, context.steps) * options.rate_decay**k / context.batch_size.double()
    )
    total = _kept_inside(context.batch_gradient(state.z, k).neg_(), state.z, unit, options)
    y = state.z + (unit * context.add_noise(total, k)).to(state.z.dtype)
    (z,) = context.exchange.mix(k, Released(y))
    return DpdoState(z)


def _kept_inside(total: Tensor, z: Tensor, unit: Tensor, options: LaplaceOptions) -> Tensor:
    """`total` as far as z + unit total stays in the box, in place.

    Proj_X[z + u] = z + clamp(u, -b - z, b - z). What is noised is the sum of gradients and not the
    model: however small `unit` and whatever the rounding of the public limits, the l1 sensitivity
    is that of the sum.
    """
    if options.regulariser == "none":
        return total
    room = torch.stack([-options.regularisation - z.double(), options.regularisation - z.double()])
    low, high = (room / unit).nan_to_num().to(total.dtype)
    return total.clamp_(low, high)


def mix(
    state: DpdoState, k: int, options: LaplaceOptions, context: StepContext, extra: int
) -> DpdoState:
    """One round of gossip alone."""
    (z,) = context.exchange.mix(k, Released(state.z), extra=extra)
    return DpdoState(z)


def check(setup: Setup) -> tuple[str, ...]:
    """Refuse p < q, with which the noise multiplier would fall from step to step."""
    options = setup.options
    if options.noise_decay < options.rate_decay:
        raise InputError(
            "algorithm.noise_decay",
            options.noise_decay,
            f"must be at least algorithm.rate_decay = {options.rate_decay:g}: noise that falls "
            "faster than the steps leaks more with each of them",
        )
    return ()


DPDO = Algorithm(
    name="dpdo",
    title="DPDO",
    documentation=__doc__,
    options=LaplaceOptions,
    schedules=schedules,
    start=start,
    step=step,
    models=lambda state: state.z,
    check=check,
    default_clip=4.0,
    graph=GraphNeeds(gossip=mix),
    releases=replace(
        LAPLACE_SUMS,
        falls=True,
        apart=lambda options: "copies" if options.regulariser == "box" else "nodes",
    ),
    claims=PaperClaims(convex=True),
    participation=Participation(
        no_weights="bounds how far a step moves a model, by the same number for all nodes"
    ),
)
