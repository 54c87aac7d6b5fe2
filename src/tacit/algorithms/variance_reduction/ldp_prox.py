"""LDP-SVRG: proximal SVRG with noised gradients at anchors, and noised differences to them (Lowy,
Ghafelebashi and Razaviyayn, AISTATS 2023).

LDP-SPIDER: proximal SPIDER, FedProx-SPIDER, with noised differences to the model of the round
before.

*Private Non-Convex Federated Learning Without a Trusted Server*: each client (silo) adds its own
noise before it sends, which the paper calls ISRL-DP, and local (LDP) in its first version.

| paper | here |
|---|---|
| w_r, server's model | `state.x` |
| h_r, gradient estimator of the server | `state.direction` |
| q, rounds from refresh to refresh | `anchor_every` (here q is the sampling rate) |
| K_1, batch of a refresh | every record of a client |
| K_2, batch of a difference | a client's batch, of expected size qJ |
| snapshot of SVRG; w_{r-1} of SPIDER | `state.point` |
| M_r of the N silos | `clients_per_round` of N, a public choice |
| sigma_1, sigma_2 | one budget, divided by `anchor_share` |
| f^1, the non-smooth part of the loss | `regulariser`, `regularisation` |
| eta | `learning_rate` |

Every `anchor_every` rounds h_r is the mean over the active clients of their noised gradients at
w_r, over all their records. In all other rounds they send D_i, the mean over a batch of
grad f(w_r) - grad f(point), plus noise, and

| | h_r | point |
|---|---|---|
| LDP-SVRG | that of the last refresh + mean of D_i | the model of the last refresh |
| LDP-SPIDER | h_{r-1} + mean of D_i | w_{r-1} |

w_{r+1} = prox_{eta f^1}(w_r - eta h_r), by the server, on released values.

*Clipping.* The paper takes the loss to be Lipschitz; here gradients are clipped, so that a record
moves a sum of differences by up to 2 C. Smoothness, by which the differences of close models would
need less noise, is nothing that would be true of every record: `clip_difference` bounds each
record's difference instead.

*Not from the paper*, of which the full text could not be had; LDP-SPIDER was compared with what the
authors' public code does, which has no SVRG. LDP-SVRG, which SoteriaFL's tables name, is the
same with an anchor that stays, and its snapshot is the last model. A refresh reads all records, and
differences read batches without repeats; the last model is what is trained. The theorem on the
noise could not be read, and the code's constants differ from what its comments say: no claim.

Mechanism: `server_means`, with share 0 and a refresh every `anchor_every` rounds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, NamedTuple

from pydantic import Field
from torch import Tensor

from tacit import privacy
from tacit.algorithms.accounting import NodeRun
from tacit.algorithms.base import Algorithm
from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import Participation, Releases
from tacit.algorithms.federated import WITH_SERVER, participants
from tacit.algorithms.options import Idle, Schedules, Size
from tacit.algorithms.variance_reduction.server_means import (
    ServerAnchorOptions,
    anchor_schedules,
    anchored_sums,
    mean_difference,
    mean_refresh,
    server_step,
)

_DIFFERENCES = Idle(
    lambda options: options.anchor_every == 1,
    "is about the rounds between anchors, and with anchor_every = 1 there are none: leave it out",
)


class RefreshedOptions(ServerAnchorOptions):
    """Options of LDP-SVRG and LDP-SPIDER."""

    anchor_every: Annotated[int, Field(ge=1)] = 10
    clip_difference: Annotated[Size | None, _DIFFERENCES] = None
    anchor_share: Annotated[Annotated[float, Field(gt=0, lt=1)] | None, _DIFFERENCES] = None


class RefreshedState(NamedTuple):
    """The server's model, its direction, and where differences start: `[1, d]`, all released."""

    x: Tensor
    direction: Tensor
    point: Tensor


def start(x: Tensor, options: RefreshedOptions, context: StepContext) -> RefreshedState:
    """w_0, and no direction yet."""
    x = x[:1].clone()
    return RefreshedState(x, x.new_zeros(x.shape), x.clone())


def svrg_step(
    state: RefreshedState, k: int, options: RefreshedOptions, context: StepContext
) -> RefreshedState:
    """One round of LDP-SVRG, whose anchor stays as it is from refresh to refresh."""
    direction = _direction(state, k, options, context)
    x = server_step(state.x, direction, k, options, context)
    if k % options.anchor_every == 0:
        return RefreshedState(x, direction, state.x)
    return state._replace(x=x)


def spider_step(
    state: RefreshedState, k: int, options: RefreshedOptions, context: StepContext
) -> RefreshedState:
    """One round of LDP-SPIDER, whose direction is carried on."""
    direction = _direction(state, k, options, context)
    return RefreshedState(server_step(state.x, direction, k, options, context), direction, state.x)


def _direction(
    state: RefreshedState, k: int, options: RefreshedOptions, context: StepContext
) -> Tensor:
    """h_r `[1, d]`: refreshed, or what is kept and the mean of noised differences to `point`."""
    if k % options.anchor_every == 0:
        return mean_refresh(state.x, k, context)
    bound = options.clip_difference
    return state.direction + mean_difference(state.x, state.point, k, 0.0, bound, context)


def mechanism(run: NodeRun) -> privacy.Mechanism:
    """What the messages leak of one record."""
    every = run.options.anchor_every
    return anchored_sums(run, lambda k: k % every == 0, 0.0)


def svrg_schedules(options: RefreshedOptions, clip: float | None, steps: int) -> Schedules:
    """Noise of a refresh is in all directions up to the next, that of a difference in one."""
    every = options.anchor_every
    lasting = [float(_left(k, every, steps) if k % every == 0 else 1) for k in range(steps)]
    return anchor_schedules(options, clip, lasting, lambda k: k % every == 0, 0.0)


def spider_schedules(options: RefreshedOptions, clip: float | None, steps: int) -> Schedules:
    """Noise of every round is in all directions up to the next refresh."""
    every = options.anchor_every
    lasting = [float(_left(k, every, steps)) for k in range(steps)]
    return anchor_schedules(options, clip, lasting, lambda k: k % every == 0, 0.0)


def _left(k: int, every: int, steps: int) -> int:
    """Rounds from k to the next refresh, or to the end."""
    return min(every - k % every, steps - k)


LDP_SVRG = Algorithm(
    name="ldp-svrg",
    title="LDP-SVRG",
    documentation=__doc__,
    options=RefreshedOptions,
    schedules=svrg_schedules,
    start=start,
    step=svrg_step,
    graph=WITH_SERVER,
    releases=Releases(
        mechanism=mechanism,
        cost_depends_on_step=lambda options: True,
        no_secure_sum=None,
    ),
    participation=Participation(activity=participants),
)

LDP_SPIDER = replace(
    LDP_SVRG,
    name="ldp-spider",
    title="LDP-SPIDER",
    schedules=spider_schedules,
    step=spider_step,
)
