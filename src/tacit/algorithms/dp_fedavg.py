"""DP-FedAvg: local steps from the server's model; the clipped, noised change is averaged (McMahan,
Ramage, Talwar and Zhang, ICLR 2018).

*Learning Differentially Private Recurrent Language Models*, with record-level privacy and with the
noise added by each client, so that the server need not be trusted.

| paper | here |
|---|---|
| theta_t | server's model, `state.x` |
| local steps of UserUpdate, one mini-batch each | `local_steps` (Q) |
| eta | `learning_rate` |
| Delta_k = theta_k - theta_t | change of client k's model by its local steps |
| S, bound of Delta's l2 norm ("flat clipping") | `clip` (C): of the *change*, not of gradients |
| sigma | standard deviation of the noise in Delta_k |
| q, share of the clients in a round | `clients_per_round` of N, a public choice |
| R, lambda_R (not in the paper) | `regulariser`, `regularisation`: proximal local steps |

In round t every active client i computes, from x_0 = theta_t, for r = 1..Q

    x_r = prox_{eta R}(x_{r-1} - eta sum_{j in B_r} grad f_ij(x_{r-1}) / (q J_i)),

and sends Delta_i = clip_C(x_Q - x_0) + noise; theta_{t+1} = theta_t + mean over active i of
Delta_i. The gradients of local steps are not clipped: the change is. Mini-batches B_r are drawn
independently (`sampling = "with-replacement"`; records inside one are distinct) or share no
record (`"disjoint"`). A change that is not finite counts as zero.

*Noise* is planned in units of a sum over a batch: the change is that sum over its expected size
qJ, so that `noise_std` is the standard deviation in Delta_i. z below is noise over C, in Delta_i.

Mechanism, of a record: whatever the local steps do, two clipped changes are no further apart than
2C, and a record that no mini-batch draws has no part in them. Let p be the chance that one of the Q
mini-batches draws a given record: Qq if they are disjoint, 1 - (1-q)^Q if independent. A round is

| batches | mechanism | multiplier |
|---|---|---|
| every record in every round | `Gaussian` | z / 2; under replace-one, which doubles, z |
| Poisson | `SampledGaussian` of rate p | z / 2 under either relation |
| fixed size, replace-one | `FixedBatchGaussian` of share p | z |

and rounds compose over those in which the client is active, which are public. Trust model: the
server sees each client's message. Proof: `docs/proofs/local-steps.md`. The bound 2C does not shrink
with the number of records, so that much more noise is needed for one record than in `dp-sgd`. No
formula is printed for this setting: no claim.

With secure sums (`[privacy].aggregation`) the server sees the sum of a round's Delta_i and none
alone. Local steps start from theta_t, a function of earlier sums: the mechanism is the same, with
what the noise of the honest clients counts for together as multiplier.

FedAvg: local steps from the server's model, which becomes their mean, without noise (McMahan,
Moore, Ramage, Hampson and Aguera y Arcas, AISTATS 2017). *Communication-Efficient Learning of Deep
Networks from Decentralized Data*: the same with sigma = 0, the non-private baseline. `clip`, if one
is given, bounds the change of a client's model. The paper weighs clients by their numbers of
records; here they weigh alike, as they do in every other method, so that all minimise the same mean
of the clients' losses.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from tacit import privacy
from tacit.algorithms.accounting import NodeRun, released_sums
from tacit.algorithms.base import Algorithm
from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import Participation, Releases
from tacit.algorithms.federated import (
    WITH_SERVER,
    FederatedOptions,
    LocalSteps,
    RoundSampling,
    ServerState,
    average_active,
    average_unseen,
    clipped_rows,
    local_schedules,
    participants,
    round_sampling,
    server_start,
)
from tacit.algorithms.options import step_size
from tacit.algorithms.parts import Regularisation, RegulariserName, proximal
from tacit.communication.colours import Released


class LocalOptions(FederatedOptions):
    """Options of DP-FedAvg and FedAvg."""

    local_steps: LocalSteps = 1
    sampling: RoundSampling = "disjoint"
    regulariser: RegulariserName = "none"
    regularisation: Regularisation = 0.01


def local_steps(start: Tensor, k: int, options: LocalOptions, context: StepContext) -> Tensor:
    """Each active client's model after its Q local steps from the server's: private, `[active, d]`.

    `start` is the server's model, `[1, d]`, and `context` that of the active clients.
    """
    rate = step_size(options, k, context.steps)
    x = start.repeat(len(context.nodes), 1)
    near = proximal(options.regulariser, x.new_full((), rate), options.regularisation)
    for part in range(options.local_steps):
        total = context.batch_gradient(x, k, part=part, clipped=False)
        gradient = total.div_(context.batch_size)
        x = near(x.sub(gradient, alpha=rate))
    return x


def step(state: ServerState, k: int, options: LocalOptions, context: StepContext) -> ServerState:
    """One round: local steps, the clipped and noised change, the server's average."""
    here = context.among(k)
    change = local_steps(state.x, k, options, here).sub_(state.x)
    change = clipped_rows(change, here.clip(k))
    if context.only_sums:
        values = change.double().mul_(here.weight)
        return ServerState(state.x + average_unseen(values, k, context))
    released = here.add_noise(change, k, scale=1 / here.on_host.batch_size.double())
    weighed = Released(released.mul_(here.weight.to(released.dtype)))
    return ServerState(state.x + average_active(weighed, k, context))


def mechanism(run: NodeRun) -> privacy.Mechanism:
    """What a round's noised change leaks of one record; see the table of the module's docstring."""
    rate, batch = round_sampling(run)
    # Where the relation does not double the sensitivity, or draws records by coins: z / 2.
    halved = run.relation == privacy.ADD_OR_REMOVE_ONE or (rate < 1 and run.sampling == "poisson")
    share = 2 if halved else 1
    multipliers = [noise / (run.expected_batch * share) for noise in run.noise_multiplier]
    return released_sums(run, multipliers, rate, batch)


DP_FEDAVG: Algorithm[ServerState, LocalOptions] = Algorithm(
    name="dp-fedavg",
    title="DP-FedAvg",
    documentation=__doc__,
    options=LocalOptions,
    schedules=local_schedules,
    start=server_start,
    step=step,
    graph=WITH_SERVER,
    releases=Releases(mechanism=mechanism, clips="change", falls=True, no_secure_sum=None),
    participation=Participation(activity=participants, stateless_clients=True),
)

FEDAVG = replace(DP_FEDAVG, name="fedavg", title="FedAvg", private=False)
