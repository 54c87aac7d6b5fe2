"""Parts of methods with a server: who takes part, local steps, and what the server averages.

In round k the server sends its model to the K of N clients that are active, they compute, and it
averages what they send back. Who is active is drawn before the run from the public seed, so it
earns no amplification. Only the active clients are computed: of 1,000 clients with 50 a round, that
is a twentieth of the work, and the server's model is kept once, not once a client.

Trust model: the server sees every client's messages, or, with secure sums, the sum over a round's
active clients alone; everyone sees the server's model.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from tacit.algorithms.accounting import NodeRun
from tacit.algorithms.base import PrimalDual
from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import Activity, GraphNeeds, Setup
from tacit.algorithms.options import Idle, Options, Schedules
from tacit.algorithms.parts import public_draws, regulariser_value
from tacit.communication.colours import Outgoing, Released
from tacit.errors import InputError

LocalSteps = Annotated[int, Field(ge=1, le=10_000)]
RoundSampling = Annotated[
    Literal["disjoint", "with-replacement"],
    Idle(
        lambda options: "local_steps" not in options.model_fields_set,
        "is about the mini-batches of a round: set algorithm.local_steps above 1, or leave it out",
    ),
]

_CLIENTS = 1  # the purpose of the public draws
_ROUNDING = 16  # units in the last place


class FederatedOptions(Options):
    """Options of every method with a server.

    `participation` says whether the K of N clients of a round are drawn anew in every round, or
    once, before the first.
    """

    clients_per_round: Annotated[int, Field(ge=1)] | None = None
    participation: Annotated[
        Literal["drawn", "same"],
        Idle(
            lambda options: options.clients_per_round is None,
            "is about who the clients of a round are: set algorithm.clients_per_round, or leave it "
            "out",
        ),
    ] = "drawn"


class ServerState(NamedTuple):
    """The server's model x, `[1, d]`: nothing else is kept."""

    x: Tensor


def participants(setup: Setup) -> Activity | None:
    """K of N clients, drawn without replacement; everyone without a K.

    They are drawn anew in every round, or once for all rounds (`participation = "same"`). Either
    way who is active is public and earns no amplification: a client's account is that of its own
    active rounds, which are K / N of all, or all of them, or none.

    Raises:
        InputError: on `algorithm.clients_per_round`, above the number of clients.
    """
    count = setup.options.clients_per_round
    if count is None or count == setup.nodes:
        return None
    if count > setup.nodes:
        raise InputError(
            "algorithm.clients_per_round", count, f"must be at most {setup.nodes}, the clients"
        )
    rounds = 1 if setup.options.participation == "same" else setup.steps
    order = public_draws(setup.seed, _CLIENTS).random((rounds, setup.nodes)).argsort(axis=1)
    active = np.zeros((rounds, setup.nodes), dtype=np.bool_)
    np.put_along_axis(active, order[:, :count], True, axis=1)
    return Activity(np.repeat(active, setup.steps // rounds, axis=0))


def local_schedules(options: Any, clip: float | None, steps: int) -> Schedules:
    """The same clipping bound and noise in every round, `local_steps` mini-batches each."""
    return Schedules(
        None if clip is None else (clip,) * steps,
        (1.0,) * steps,
        local_steps=options.local_steps,
        disjoint=options.sampling == "disjoint",
    )


def server_start(x: Tensor, options: Any, context: StepContext) -> ServerState:
    """The server begins with x^0."""
    return ServerState(x[:1].clone())


WITH_SERVER = GraphNeeds(weights="server", consensus=lambda models, state: models[0].clone())
"""Of methods whose only model is the server's."""
WITH_CLIENTS = GraphNeeds(weights="server", consensus=lambda models, state: state.server[0].clone())
"""Of methods whose clients keep models and dual variables, and whose server keeps another."""
OWN_MESSAGES = (
    "goes on at each client from what that client alone has sent: with sums only, that would be "
    "private state, of which nothing is proved"
)
"""Why some cannot do with the sums of messages, which follows "which"."""


def augmented_lagrangian(models: Tensor, state: Any, options: Any) -> PrimalDual:
    """The clients' `models` `[nodes, d]`, dual variables and x_0, as they stand after a round."""
    value = regulariser_value(options.regulariser, state.server, options.regularisation)
    return PrimalDual(models, state.dual, state.server, options.penalty, value)


def average_active(value: Outgoing[Tensor], k: int, context: StepContext) -> Tensor:
    """The server's mean `[1, d]` of what the active clients send, for everyone.

    What clients send, `[active, d]`, is weighed already (`StepContext.divide`,
    `StepContext.weight`). `context` is that of all clients.
    """
    (mean,) = context.exchange.average(k, value)
    return mean


def average_unseen(values: Tensor, k: int, context: StepContext) -> Tensor:
    """The mean `[1, d]` over the active clients of noised `values`, of which only the sum is seen.

    Each client adds its noise to its own, in whole numbers of a lattice that all share, and the
    server gets their sum (`StepContext.summand`, `Exchange.secure_sum`). `values` are float64
    `[active, d]`, in the units of `StepContext.divide`; `context` is that of all clients.
    """
    summand = context.among(k).summand(values, k)
    return context.mean_of_sum(context.exchange.secure_sum(k, summand), k)


def mean_gradient(x: Tensor, k: int, context: StepContext, *, whole: bool = False) -> Tensor:
    """The server's mean `[1, d]` of the active clients' noised gradients at its model x `[1, d]`.

    Of their batches, or of all their records where `whole` is true; `context` is that of all
    clients.
    """
    here = context.among(k)
    total = here.batch_gradient(x.repeat(len(here.nodes), 1), k, whole=whole)
    return noised_mean(total, k, context, whole=whole)


def noised_mean(total: Tensor, k: int, context: StepContext, *, whole: bool = False) -> Tensor:
    """The server's mean `[1, d]` of the active clients' sums, noised, over their batches.

    The sums are `[active, d]`, over batches or over the `whole` of the clients' records, which are
    then multiplied by the rate. `context` is that of all clients.
    """
    here = context.among(k)
    unit = here.rate if whole else 1.0
    if context.only_sums:
        return average_unseen(here.divide(total.double().mul_(unit)), k, context)
    kind = here.batch_size.dtype
    scale = 1 / here.on_host.rate if whole else 1.0
    released = here.add_noise(total, k, scale=scale).mul_(unit)
    return average_active(Released(here.divide(released).to(kind)), k, context)


def average_latest(
    value: Released[Tensor], k: int, options: FederatedOptions, context: StepContext
) -> Tensor:
    """The server's mean `[1, d]` of every client's latest message, for everyone.

    `value` is that of the clients of this process, `[clients, d]`.

    Only active clients send; the server keeps the last message of the others. Where all rounds
    have the same clients, the mean is over these: the others never send anything.
    """
    if options.participation == "same":
        return average_active(Released(context.among(k).take(value.value)), k, context)
    (mean,) = context.exchange.average(k, value, latest=True)
    return mean


def clipped_rows(values: Tensor, bound: float | None) -> Tensor:
    """Each row scaled down to l2 norm `bound` if it is longer, `[nodes, d]`; None leaves them.

    The norm is kept after rounding. A row that is not finite becomes zero: else one record could
    move what is released without any bound.
    """
    if bound is None:
        return values
    wide = values.double()
    norms = wide.square().sum(1, keepdim=True).sqrt()
    # The sum errs by a share of at most d u, u = 2^-53, in whatever order it is taken.
    share = _ROUNDING * torch.finfo(values.dtype).eps + values.shape[1] * 2.0**-53
    aim = bound * (1 - share)
    # In double precision: a factor may be too small for the dtype of the values.
    scaled = (wide * (aim / norms).clamp(max=1.0)).to(values.dtype)
    return torch.where(torch.isfinite(norms), scaled, 0.0)


def round_sampling(run: NodeRun) -> tuple[float, int]:
    """Chance that a round's Q mini-batches draw a given record, and how many records they draw.

    The number is meant for batches of fixed size. With q the rate of one mini-batch and b its size,
    both rounded up:

    - disjoint: a record is in one of them or in none, Q q and Q b;
    - independent: 1 - (1 - q)^Q; for batches of fixed size, the least whole number of J records
      whose share is at least that, J - floor(J (1 - b/J)^Q), in exact arithmetic.
    """
    batch, steps, records = int(run.expected_batch), run.local_steps, run.records
    if run.rate == 1:
        return 1.0, records
    if run.disjoint or steps == 1:
        return min(1.0, steps * run.rate), steps * batch
    rate = -math.expm1(steps * math.log1p(-run.rate)) * (1 + 1e-12)
    return min(1.0, rate), records - (records - batch) ** steps // records ** (steps - 1)
