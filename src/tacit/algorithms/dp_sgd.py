"""DP-SGD: one clipped, noised gradient a client a round; the server averages and steps (Abadi et
al., CCS 2016).

Algorithm 1 of *Deep Learning with Differential Privacy*, where each active client adds its own
noise before it sends, so that the server need not be trusted.

| paper | here |
|---|---|
| theta_t | server's model, `state.x` |
| L_t, a lot of expected size L | a client's batch, of expected size qJ |
| C | `clip`; `"median"` is section 5.2's advice, from public records |
| g~_t, sum of clipped gradients plus noise, over L | what each active client sends |
| eta_t | `learning_rate` |
| K clients a round (not in the paper) | `clients_per_round`, `participation` |
| R, lambda_R (likewise) | `regulariser`, `regularisation` |

theta_{t+1} = prox_{eta_t R}(theta_t - eta_t mean over active i of g~_{i,t}).

The paper has no R; its proximal step is taken by the server, on released values. Nor has it
clients: they have equal weights, whatever their number of records.

Mechanism: each client's noised sums of clipped record gradients at a public model, in the rounds
in which it is active: Gaussian on every record, Poisson-sampled Gaussian (zero-out: sensitivity
C; replace-one: contributions of norm C) or, with batches of fixed size, replace-one with 2 C. Who
is active is public. Trust model: the server sees each client's message. The paper's moments
accountant is an upper bound by Renyi divergences; the privacy loss distribution is composed here
instead. It prints no closed formula to compare with: no claim.

With secure sums (`[privacy].aggregation`) the server sees the sum of g~_{i,t} over the round's
clients and none alone. theta_{t+1} is a function of that, and each gradient is taken at theta_t:
the mechanism is the same, with what the noise of the honest clients counts for together as
multiplier.
"""

from __future__ import annotations

from typing import ClassVar

from tacit.algorithms.base import Algorithm
from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import Participation, Releases, radial_clip
from tacit.algorithms.federated import (
    WITH_SERVER,
    FederatedOptions,
    ServerState,
    mean_gradient,
    participants,
    server_start,
)
from tacit.algorithms.options import step_size
from tacit.algorithms.parts import Regularisation, RegulariserName, prox


class ServerStepOptions(FederatedOptions):
    """Options of DP-SGD."""

    takes_median: ClassVar[bool] = True
    regulariser: RegulariserName = "none"
    regularisation: Regularisation = 0.01


def step(
    state: ServerState, k: int, options: ServerStepOptions, context: StepContext
) -> ServerState:
    """One round: every active client's noised gradient, then the server's step."""
    rate = step_size(options, k, context.steps)
    x = state.x.sub(mean_gradient(state.x, k, context), alpha=rate)
    return ServerState(prox(options.regulariser, x, rate, options.regularisation))


DP_SGD = Algorithm(
    name="dp-sgd",
    title="DP-SGD",
    documentation=__doc__,
    options=ServerStepOptions,
    start=server_start,
    step=step,
    steps_along="a server that averages noised gradients, and can do with their sum",
    graph=WITH_SERVER,
    releases=Releases(clip_norms=radial_clip, bound_is_tight=True, no_secure_sum=None),
    participation=Participation(activity=participants, stateless_clients=True),
)
