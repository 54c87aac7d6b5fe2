"""DP-ADMM: consensus ADMM with a linearised, noised local step and a dual variable a client (Huang,
Hu, Guo, Chan-Tin and Gong, IEEE TIFS 2019).

*DP-ADMM: ADMM-Based Distributed Learning With Differential Privacy*, IEEE Transactions on
Information Forensics and Security; in the form in which FedSPD-DP is compared with it.

minimise sum_i F_i(x_i) subject to x_i = x_0, F_i = f_i + R, by the augmented Lagrangian

    sum_i F_i(x_i) - <lambda_i, x_i - x_0> + rho |x_i - x_0|^2 / 2,

whose F_i is replaced by its linear approximation at the last x~_i and |x - x~_i|^2 / (2 eta_t).

| paper | here |
|---|---|
| x~_i^t, released model of client i | `state.x`, `[nodes, d]` |
| lambda_i^t, dual variable | `state.dual`, `[nodes, d]` |
| x_0, server's model | `state.server`, `[nodes, d]`, equal rows |
| rho, penalty of the augmented Lagrangian | `penalty` |
| eta_t, step size | `learning_rate` with `learning_rate_schedule` |
| G, bound of a record's gradient | `clip` (C), enforced |
| R, lambda_R | `regulariser`, `regularisation`; by its subgradient |
| s, noise in the mean of clipped gradients | so that the noise in x~_i is s / (rho + 1/eta_t) |

Round t, for the active clients, with g the mean of clipped gradients at x~_i^{t-1}:

    x~_i^t = (rho x_0 + lambda_i - g - dR(x~_i^{t-1}) - noise + x~_i^{t-1}/eta_t) / (rho + 1/eta_t)
    lambda_i^t = lambda_i^{t-1} + rho (x_0 - x~_i^t)
    y_i^t = x~_i^t - lambda_i^t / rho, which is sent;  x_0 = mean over all i of the latest y_i.

The paper leaves eta_t and the variance's schedule open in this form: a constant eta_t serves where
noise is small; `learning_rate_schedule = "inverse-sqrt"` is the one with a rate for any convex
loss. The multiplier, and so the privacy loss, is the same in every round.

Mechanism: the state is public. x_i^{t-1} is the *released* x~_i^{t-1} and lambda_i is computed from
released values, so that each x~_i^t is a public affine function of one noised sum of clipped
gradients at a public point: Gaussian on every record (the paper's full batch), or its sampled kinds
for mini-batches, composed over the rounds in which the client is active. Relation: the plan's;
trust model: the server sees each y_i, from which it can compute that sum: the bound is tight. No
formula of this form is printed: no claim. Signs, step sizes and proof: `docs/proofs/dp-admm.md`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tacit.algorithms.base import Algorithm
from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import PaperClaims, Participation, Releases, radial_clip
from tacit.algorithms.federated import (
    OWN_MESSAGES,
    WITH_CLIENTS,
    FederatedOptions,
    augmented_lagrangian,
    average_latest,
    participants,
)
from tacit.algorithms.options import Size, step_size
from tacit.algorithms.parts import SUBGRADIENTS, Regularisation, Subgradient, noised_gradient
from tacit.communication.colours import Released


class AdmmOptions(FederatedOptions):
    """Options of DP-ADMM."""

    penalty: Size = 20.0
    regulariser: Subgradient = "none"
    regularisation: Regularisation = 0.01


class AdmmState(NamedTuple):
    """The clients' released models x~_i, dual variables, the server's model: all public.

    `[nodes, d]`, but the server's `[1, d]`.
    """

    x: Tensor
    dual: Tensor
    server: Tensor


def start(x: Tensor, options: AdmmOptions, context: StepContext) -> AdmmState:
    """x~_i^0 = x_0 = x^0, lambda_i^0 = 0."""
    return AdmmState(x, torch.zeros_like(x), x[:1].clone())


def step(state: AdmmState, k: int, options: AdmmOptions, context: StepContext) -> AdmmState:
    """Round t = k + 1: the active clients' updates, then the server's average."""
    here, rho = context.among(k), options.penalty
    inverse = 1 / step_size(options, k, context.steps)
    last, dual = here.take(state.x), here.take(state.dual)
    g = noised_gradient(last, k, here)
    g = g.add_(SUBGRADIENTS[options.regulariser](last), alpha=options.regularisation)
    x = (rho * state.server + dual - g + inverse * last) / (rho + inverse)
    dual = dual + rho * (state.server - x)
    models, duals = here.put(state.x, x), here.put(state.dual, dual)
    server = average_latest(Released(models - duals / rho), k, options, context)
    return AdmmState(models, duals, server)


DP_ADMM = Algorithm(
    name="dp-admm",
    title="DP-ADMM",
    documentation=__doc__,
    options=AdmmOptions,
    start=start,
    step=step,
    primal_dual=lambda state, options: augmented_lagrangian(state.x, state, options),
    graph=WITH_CLIENTS,
    releases=Releases(clip_norms=radial_clip, bound_is_tight=True, no_secure_sum=OWN_MESSAGES),
    claims=PaperClaims(convex=True),
    participation=Participation(
        no_weights="pulls clients together by one penalty, beside which weighed losses need others",
        activity=participants,
    ),
)
