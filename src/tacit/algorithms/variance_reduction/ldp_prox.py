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
from typing import Annotated, Any

from pydantic import Field

from tacit.algorithms.base import Algorithm
from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import Participation, Releases
from tacit.algorithms.federated import WITH_SERVER, participants
from tacit.algorithms.options import Idle, Schedules, Size
from tacit.algorithms.variance_reduction.server_means import (
    DirectedState,
    ServerAnchorOptions,
    anchor_schedules,
    anchored_sums,
    start,
    step,
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

    def refreshes(self, k: int) -> bool:
        """Every `anchor_every` rounds."""
        return k % self.anchor_every == 0


def svrg_step(
    state: DirectedState, k: int, options: RefreshedOptions, context: StepContext
) -> DirectedState:
    """One round of LDP-SVRG, whose anchor stays as it is from refresh to refresh."""
    after = step(state, k, options, context)
    return after if options.refreshes(k) else state._replace(x=after.x)


def svrg_schedules(options: RefreshedOptions, clip: float | None, steps: int) -> Schedules:
    """Noise of a refresh is in all directions up to the next, that of a difference in one."""
    lasting = [float(_left(k, options, steps) if options.refreshes(k) else 1) for k in range(steps)]
    return anchor_schedules(options, clip, lasting)


def spider_schedules(options: RefreshedOptions, clip: float | None, steps: int) -> Schedules:
    """Noise of every round is in all directions up to the next refresh."""
    return anchor_schedules(options, clip, [float(_left(k, options, steps)) for k in range(steps)])


def _left(k: int, options: RefreshedOptions, steps: int) -> int:
    """Rounds from k to the next refresh, or to the end."""
    every = options.anchor_every
    return min(every - k % every, steps - k)


LDP_SPIDER: Algorithm[DirectedState, Any] = Algorithm(
    name="ldp-spider",
    title="LDP-SPIDER",
    documentation=__doc__,
    options=RefreshedOptions,
    schedules=spider_schedules,
    start=start,
    step=step,
    differences=True,
    graph=WITH_SERVER,
    releases=Releases(
        mechanism=anchored_sums, cost_depends_on_step=lambda options: True, no_secure_sum=None
    ),
    participation=Participation(activity=participants),
)

LDP_SVRG = replace(
    LDP_SPIDER, name="ldp-svrg", title="LDP-SVRG", schedules=svrg_schedules, step=svrg_step
)
