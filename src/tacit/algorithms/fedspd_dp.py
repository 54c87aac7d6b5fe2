"""FedSPD-DP: federated primal-dual steps with a proximal regulariser, noised (Li, Wang, Chang and
Chi (FedSPD-DP)).

Server and N clients minimise sum_i f_i(x) + R(x). In round t the server broadcasts the mean of
every client's latest message to K of them; each makes Q proximal steps on mini-batches, updates its
dual variable, and sends a noised message.

| paper | here |
|---|---|
| x_0^t, broadcast | `State.server`, `[nodes, d]`, equal rows |
| x_i^{t,r}, inner iterate | `State.x`, `[nodes, d]`, the last one |
| x_i^t, mean of the Q inner iterates | `State.average`, the client's own model |
| lambda_i^t, dual variable | `State.dual` |
| y~_i^t, message | `State.message` |
| rho | `penalty` |
| gamma_i^t | `inverse_step`: a number, `"paper"`, or by default 1 / `learning_rate` |
| Q, b, K of N | `local_steps`, `[train].batch`, `clients_per_round` |
| R, lambda_R | `regulariser`, `regularisation`: R of every client |
| G, bound of a gradient's norm | `clip` (C), enforced record by record |
| d_X, d_lambda, phi | `diameter`, `dual_diameter`, `deviation`: of the schedule and the claim |
| t = 1..T | k = 0..K-1 |

For r = 1..Q, on mini-batch B_r, and then

    x <- prox_{R/(gamma+rho)}[(gamma x + rho x_0 + lambda_i - grad f_i(x; B_r)) / (gamma + rho)],
    lambda_i <- lambda_i + rho (x_0 - x_i^t),   y~_i = x_i^t - lambda_i / rho + noise.

The paper prints the inner indices as r = 0..Q-1 with x^{t,r-1} on the right; read here as Q
updates, averaged. Start, not printed: x_i = y~_i = x^0 un-noised, lambda_i = 0.

**`state = "private"`, as printed.** x starts from the client's own last inner iterate; neither it
nor lambda_i is ever noised. **`state = "public"`, repaired** (the default): x starts from x_0, what
is noised is x~_i = x_i^t + noise, and lambda_i <- lambda_i + rho (x_0 - x~_i),
y~_i = x~_i - lambda_i / rho are functions of what was released. The same noise on y~ is twice that
on x~, since y~_i = 2 x~_i - x_0 - lambda_i / rho with the old lambda_i.

**In the arithmetic that runs.** Local steps are in float64, and what they keep and what is noised
are *changes* around x_0, which is public: beside a model, what one record does would be lost to
rounding.

**Mini-batches.** `sampling = "disjoint"`: those of a round share no record. `"with-replacement"`:
each is drawn independently of the others; records *within* one are distinct in either case, while
the paper draws those one by one.

**Noise** is planned for the sum of clipped gradients over a mini-batch, standard deviation z C.
When that sum moves by one, the next iterate moves by unit = (1/b) / (gamma + rho); the noise is
z C unit on x~, and 2 z C unit on y~. z is the same in every round; so is the paper's epsilon a
round then, since its sigma_{i,t}, like unit, is inversely proportional to gamma_t + rho.

Mechanism (`fedspd_privacy`; proofs: `docs/proofs/primal-dual.md`), unit a record, trust model
`server`: with a public state a sampled Gaussian a round, of rate Q q or 1 - (1-q)^Q, on what Q
local steps make of one record; with a private state Bound B over all later rounds
(`PersistentState`).
The published accounting charges less, and misses what a private state carries.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tacit.algorithms.base import Algorithm
from tacit.algorithms.context import StepContext
from tacit.algorithms.federated import average_latest, local_schedules, participants
from tacit.algorithms.fedspd_privacy import (
    FedspdOptions,
    check,
    claimed_run,
    input_bound,
    inverse_step,
    mechanism,
    resolved_radius,
    within,
)
from tacit.algorithms.parts import prox
from tacit.communication.colours import Released
from tacit.privacy.published import FEDSPD_DP as PUBLISHED


class State(NamedTuple):
    """Last inner iterate x, mean of these, dual: float64 `[nodes, d]`.

    Message `[nodes, d]` and server's x_0 `[1, d]` are in the run's dtype.
    """

    x: Tensor
    average: Tensor
    dual: Tensor
    message: Tensor
    server: Tensor


def start(x: Tensor, options: FedspdOptions, context: StepContext) -> State:
    """x_i = y~_i = x_0 = x^0, lambda_i = 0."""
    exact = x.double()
    return State(exact, exact.clone(), torch.zeros_like(exact), x.clone(), x[:1].clone())


def step(state: State, k: int, options: FedspdOptions, context: StepContext) -> State:
    """Round t = k + 1; x, their mean and what is noised are changes around x_0."""
    here, rho, x_0 = context.among(k), options.penalty, state.server.double()
    batch = here.batch_size.double()
    gamma = inverse_step(
        options,
        k,
        context.steps,
        noise_std=here.noise_std(k),
        batch=batch,
        coordinates=x_0.shape[1],
        clients=context.count,
    )
    divisor = gamma + rho
    unit = 1 / (batch * divisor)
    radius = resolved_radius(unit, gamma, context.steps, here.clip(k), x_0, options)
    public = options.state == "public"
    x = within(here.take(torch.zeros_like(state.x) if public else state.x - x_0), radius)
    dual = within(here.take(state.dual), radius * divisor)
    average = torch.zeros_like(dual)
    for r in range(options.local_steps):
        g = here.batch_gradient(x_0 + x, k, part=r) / batch
        moved = (gamma * x + dual - g) / divisor
        x = proximal_change(options.regulariser, x_0, moved, 1 / divisor, options.regularisation)
        average.add_(x, alpha=1 / options.local_steps)
    if public:  # lambda_i and y~_i - x_0 from the noised x~_i - x_0
        noised = here.add_noise(average.clone(), k, scale=unit)
        dual = dual - rho * noised
        change = noised - dual / rho
    else:  # lambda_i un-noised, and the noised y~_i - x_0: it moves twice as far as x_i
        dual = dual - rho * average
        change = here.add_noise(average - dual / rho, k, scale=2 * unit)
    message = here.put(state.message, (x_0 + change).to(state.message.dtype))
    return State(
        here.put(state.x, x_0 + x),
        here.put(state.average, x_0 + average),
        here.put(state.dual, dual),
        message,
        average_latest(Released(message), k, context),
    )


def proximal_change(
    name: str, x_0: Tensor, moved: Tensor, step: Tensor, regularisation: float
) -> Tensor:
    """prox(x_0 + moved) - x_0, `[nodes, d]`; nothing is rounded beside x_0 if there is no R."""
    if name == "none":
        return moved
    return prox(name, x_0 + moved, step, regularisation).sub_(x_0)


def models(state: State) -> Tensor:
    """The clients' own x_i^t, `[nodes, d]`: private, neither they nor their scores are sent."""
    return state.average.to(state.message.dtype)


def server(models: Tensor, state: State) -> Tensor:
    """x_0, `[d]`."""
    return state.server[0].clone()


FEDSPD_DP = Algorithm(
    name="fedspd-dp",
    title="FedSPD-DP",
    documentation=__doc__,
    weights="server",
    options=FedspdOptions,
    schedules=local_schedules,
    start=start,
    step=step,
    models=models,
    released_models=False,
    consensus=server,
    mechanism=mechanism,
    formula=PUBLISHED,
    claimed_run=claimed_run,
    claimed_round=lambda run: run.round_epsilon,
    activity=participants,
    cost_depends_on_step=lambda options: options.state == "private",
    input_bound=input_bound,
    convex=True,
    check=check,
    not_covered=(
        "each client's own model and inner iterate: local, never noised; neither they nor their "
        "scores are sent, and loss and accuracy are those of the server's model",
    ),
)
