"""Noised moments: every node releases the noised moments of its records once, and all solve a
linear model from their mean (Vu and Slavkovic, ICDM Workshops 2009).

*Differential privacy for clinical trial data: preliminary evaluations*. Perturbed sufficient
statistics are also the method of Foulds, Geumlek, Welling and Chaudhuri, *On the theory and
practice of privacy-preserving Bayesian data analysis* (UAI 2016), and of Wang, *Revisiting
differentially private linear regression: optimal and adaptive prediction and estimation in
unbounded domain* (UAI 2018), whose AdaSSP chooses the ridge by the noise. Here the statistics of
all nodes are averaged by push-sum.

| papers | here |
|---|---|
| X'X and X'y | M, `[p + outputs, p]`, one row of `state.x`; see `tacit.gradients.moments` |
| bounds of x and y | `[task].input_bound` (by default 1) and `target_bound`, enforced |
| noise | Gaussian on the sum of z = (a a', c a') / sqrt(2), whose norm is 1 at most |
| lambda, by the noise (AdaSSP) | `ridge = "auto"` |
| solution of the normal equations | `Moments.solved`, wherever a model is scored or written |

The steps are those of PrivSGP at learning rate 1 for the linear function -<M, z> of M, from M = 0:
each node adds its noised mean of z, and pushes. Nobody takes part in further steps: in them nodes
only push, which brings M closer to the mean and costs no privacy, as the rounds of
`[topology].rounds` and `final_mixing` do. A node that is away in step 0 (`[faults]`) has no part in
the model.

Mechanism: **one** Gaussian release (Poisson-sampled, where batches are drawn) of a clipped sum. z
is the gradient of that linear function, so that the sum moves by `clip` at most when a record is
left out, and by twice that when it is replaced, in the arithmetic that runs. Messages, weights and
models are functions of what was released and of public values: bounds, options, the plan's noise.
Relation: the plan's; trust model: `all-messages`. The papers have no formula for several nodes: no
claim. Proof: `docs/proofs/noised-moments.md`.

Noised moments with a server: the server averages the noised moments that its clients send once
(Foulds, Geumlek, Welling and Chaudhuri, UAI 2016). All clients send in step 0, and further steps
change nothing. Trust model: `server`; with secure sums the server sees the sum of all clients'
moments and none alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from torch import nn

from tacit.algorithms.base import Algorithm
from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import Activity, PaperClaims, Participation, Setup
from tacit.algorithms.federated import WITH_SERVER, ServerState, mean_gradient, server_start
from tacit.algorithms.options import Idle, Options, RateSchedule, Size, WarmUp
from tacit.algorithms.privsgp import PRIVSGP
from tacit.gradients import Loss, Moments, moments_of

BOUND = 1.0
"""Of the norm of a record's inputs, where `[task].input_bound` gives none."""

_ONE_STEP = Idle(lambda options: True, "moments are added as they are: leave it out")


class MomentOptions(Options):
    """Options of both rows."""

    learning_rate: Annotated[Size, _ONE_STEP] = 1.0
    learning_rate_schedule: Annotated[RateSchedule, _ONE_STEP] = "constant"
    warm_up: Annotated[WarmUp, _ONE_STEP] = 0
    ridge: Literal["auto"] | Size = "auto"
    target_bound: Size = 1.0


class PushedMomentOptions(MomentOptions):
    """Options without a server: those of PrivSGP, but that there is nothing to have momentum."""

    momentum: ClassVar[float] = 0.0
    final_mixing: Annotated[int, Field(ge=0, le=100_000)] = 0


def first_step(setup: Setup) -> Activity:
    """Everybody takes part in step 0, and nobody later."""
    return Activity((np.arange(setup.steps) == 0)[:, None].repeat(setup.nodes, axis=1))


def made(options: MomentOptions, model: nn.Module, loss: Loss, bound: float) -> Moments:
    """The moments of a linear model."""
    ridge = None if options.ridge == "auto" else options.ridge
    return moments_of(model, loss, bound=bound, target_bound=options.target_bound, ridge=ridge)


def server_step(
    state: ServerState, k: int, options: MomentOptions, context: StepContext
) -> ServerState:
    """The server's mean of the moments that clients release in step 0."""
    if k > 0:
        return state
    return ServerState(-mean_gradient(state.x, k, context))


NOISED_MOMENTS: Algorithm[Any, Any] = replace(
    PRIVSGP,
    name="noised-moments",
    title="Noised moments",
    documentation=__doc__,
    options=PushedMomentOptions,
    steps_along="",
    input_bound=lambda options: BOUND,
    moments=made,
    claims=PaperClaims(),
    participation=Participation(activity=first_step, one_pass=True),
)

SERVER_MOMENTS = replace(
    NOISED_MOMENTS,
    name="noised-moments-server",
    title="Noised moments with a server",
    options=MomentOptions,
    start=server_start,
    step=server_step,
    models=lambda state: state.x,
    graph=WITH_SERVER,
    releases=replace(NOISED_MOMENTS.releases, no_secure_sum=None),
)
