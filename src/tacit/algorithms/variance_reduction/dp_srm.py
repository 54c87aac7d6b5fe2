"""DP-SRM: stochastic recursive momentum, each client's part with noise; the server averages and
steps (Wang, Jayaraman, Evans and Gu, UAI 2023).

The distributed form of *Efficient Privacy-Preserving Stochastic Nonconvex Optimization* that the
comparison tables of SoteriaFL name: each client adds its own noise before it sends, so that the
server need not be trusted.

| paper | here |
|---|---|
| x_t | server's model, `state.x`; x_{t-1} is `state.point` |
| v_t, recursive momentum | `state.direction`, of the server |
| B_0, the large first batch | every record of a client |
| B_t, later batches | a client's batch, of expected size qJ |
| beta; 1 - beta is kept of v_{t-1} | `gradient_share` |
| step size | `learning_rate` |

With v_0 the mean of the clients' noised gradients at x_0, over all their records,

    v_t = (1 - beta) v_{t-1} + mean over clients of D_{i,t},
    D_{i,t} = sum_{B_{i,t}} (grad f(x_t) - (1 - beta) grad f(x_{t-1})) / (q J_i) + noise,
    x_{t+1} = prox_{eta R}(x_t - eta v_t).

That is grad f_B(x_t) + (1 - beta) (v_{t-1} - grad f_B(x_{t-1})), of means over batches. D is sent.

*Clipping.* The paper takes the loss to be Lipschitz and smooth; here gradients are clipped, and
the terms of D are written beta g_t + (1 - beta) (g_t - g_{t-1}), g the clipped gradients of one
record. `clip_difference` is in the place of smoothness: it bounds the last bracket.

*Not from the paper*, of which the full text could not be had: the step size is the learning rate by
its schedule, whatever rule the paper has for it; the last model is what is trained, and not one
that is drawn among all; the split of the budget between v_0 and the rest is `anchor_share`; R,
`clients_per_round` and secure sums are tacit's. The paper's formula for the noise is not restated:
no claim.

Mechanism: `server_means`, with share beta, a refresh in round 0 and none later. Momentum costs
nothing: (1 - beta) v_{t-1} is a function of what was sent. With `gradient_share = 1` the rounds
after the first are those of DP-SGD.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from tacit.algorithms.options import Idle, Schedules, Share, Size
from tacit.algorithms.variance_reduction.ldp_prox import LDP_SPIDER
from tacit.algorithms.variance_reduction.server_means import ServerAnchorOptions, anchor_schedules


class RecursiveMomentumOptions(ServerAnchorOptions):
    """Options of DP-SRM."""

    gradient_share: Share = 0.1
    clip_difference: Annotated[
        Size | None,
        Idle(
            lambda options: options.gradient_share == 1,
            "is about differences of gradients, and with gradient_share = 1 there are none: leave "
            "it out",
        ),
    ] = None

    @property
    def new_share(self) -> float:
        """Beta."""
        return self.gradient_share

    def refreshes(self, k: int) -> bool:
        """In the first round alone."""
        return k == 0


def schedules(options: RecursiveMomentumOptions, clip: float | None, steps: int) -> Schedules:
    """Noise of round k is in all later directions, with powers of 1 - beta."""
    lasting, weight = [], 0.0
    for _ in range(steps):
        weight = 1 + (1 - options.gradient_share) * weight
        lasting.append(weight)
    return anchor_schedules(options, clip, lasting[::-1])


DP_SRM = replace(
    LDP_SPIDER,
    name="dp-srm",
    title="DP-SRM",
    documentation=__doc__,
    options=RecursiveMomentumOptions,
    schedules=schedules,
)
