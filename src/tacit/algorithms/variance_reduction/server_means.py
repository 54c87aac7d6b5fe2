"""Server means of noised gradients and of noised differences, for methods with anchors.

A *refresh* is the server's mean of every record's clipped gradient; every other round is its mean,
over a batch, of each record's

    share * new + (1 - share) * clip_{C_d}(new - old),

where new and old are the record's clipped gradients at the server's model now and at an earlier
one. Both models are functions of released values. The server keeps the direction that it makes of
these means, so that a client keeps nothing from round to round, and may be away in any. A mean of
no message at all is zero: what was lost is then missing up to the next refresh.

Noise. That of round k is planned for a sum over a batch. A refresh is over all J records in place
of q J of them, and gets it over q: in its mean it is that of a batch's mean. How much more or less
noise a refresh has is a matter of the schedule (`anchor_schedules`).

Mechanism, of one record: with c = min(2, C_d / C), a refresh moves by C (1 + r), and another round
by

    C (share + (1 - share) c + r),    r = J 2^-48,

if it draws the record and not at all if it does not. What double precision adds is less than r C.
Gaussian for refreshes, sampled Gaussian for the rest, composed: `anchored_sums`. Relation: the
plan's. Trust model: the server sees each client's message, or, with secure sums, the sum of a
round's messages alone. Proof: `docs/proofs/server-differences.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated

from pydantic import Field
from torch import Tensor

from tacit import privacy
from tacit.algorithms.accounting import NodeRun
from tacit.algorithms.context import StepContext
from tacit.algorithms.federated import FederatedOptions, average_active, average_unseen
from tacit.algorithms.options import Schedules, step_size
from tacit.algorithms.parts import Regularisation, RegulariserName, prox
from tacit.algorithms.variance_reduction.estimators import (
    DifferenceOptions,
    anchors_and_others,
    difference_bound,
)
from tacit.communication.colours import Released

_ROUNDING = 2.0**-48
"""Of the clipping bound, for each record: what rounding in double precision may add to a move."""


class ServerAnchorOptions(FederatedOptions, DifferenceOptions):
    """Options of methods whose server keeps a direction that is refreshed."""

    anchor_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    regulariser: RegulariserName = "none"
    regularisation: Regularisation = 0.01


def mean_refresh(x: Tensor, k: int, context: StepContext) -> Tensor:
    """The server's mean `[1, d]` of the active clients' noised gradients of all their records.

    They are taken at the server's model x, `[1, d]`; `context` is that of all clients.
    """
    here = context.among(k)
    total = here.batch_gradient(x.repeat(len(here.nodes), 1), k, whole=True)
    return _noised_mean(total, k, context, here.rate)


def mean_difference(
    x: Tensor,
    before: Tensor,
    k: int,
    share: float,
    bound: float | None,
    context: StepContext,
) -> Tensor:
    """The server's mean `[1, d]` of share * new + (1 - share) * (new - old), over noised batches.

    New gradients are at the server's model x of now, old ones at `before`, `[1, d]` each. Each
    record's difference is clipped to C_d = `bound`; None leaves it. `context` is that of all
    clients.
    """
    here = context.among(k)
    clients = len(here.nodes)
    at, old = x.repeat(clients, 1), before.repeat(clients, 1)
    if share == 1:
        return _noised_mean(here.batch_gradient(at, k), k, context)
    total = here.batch_difference(at, old, k, bound)
    if share:
        total.mul_(1 - share).add_(here.batch_gradient(at, k).double(), alpha=share)
    return _noised_mean(total, k, context)


def _noised_mean(total: Tensor, k: int, context: StepContext, unit: Tensor | float = 1.0) -> Tensor:
    """The server's mean `[1, d]` of the active clients' sums, noised, over their batches.

    The sums are `[active, d]`; `unit`, a number or `[active, 1]`, is what a sum is multiplied by to
    be one over a batch. `context` is that of all clients.
    """
    here = context.among(k)
    if context.only_sums:
        return average_unseen(here.divide(total.double().mul_(unit)), k, context)
    kind = here.batch_size.dtype
    released = here.add_noise(total, k, scale=1 / unit).mul_(unit)
    return average_active(Released(here.divide(released).to(kind)), k, context)


def server_step(
    x: Tensor, direction: Tensor, k: int, options: ServerAnchorOptions, context: StepContext
) -> Tensor:
    """The server's next model `[1, d]`: prox_{eta R}(x - eta direction), of released values."""
    rate = step_size(options, k, context.steps)
    return prox(options.regulariser, x.sub(direction, alpha=rate), rate, options.regularisation)


def anchored_sums(
    run: NodeRun, is_anchor: Callable[[int], bool], share: float
) -> privacy.Mechanism:
    """What the messages leak of one record: see the docstring of the module.

    `is_anchor` says of a round's number whether it is a refresh; `share` is that of new gradients
    in other rounds.
    """
    rounding = run.records * _ROUNDING
    moved = _moved(share, difference_bound(run.options, run.clip[0])) + rounding
    pairs = list(zip(run.released, run.noise_multiplier, strict=True))
    anchors = [z / (run.rate * (1 + rounding)) for k, z in pairs if is_anchor(k)]
    others = [z / moved for k, z in pairs if not is_anchor(k)]
    return anchors_and_others(run, anchors, others)


def anchor_schedules(
    options: ServerAnchorOptions,
    clip: float | None,
    lasting: Sequence[float],
    is_anchor: Callable[[int], bool],
    share: float,
) -> Schedules:
    """The same clipping bound in every round, and one noise for refreshes and one for the rest.

    The refreshes have the share s of the sum over rounds of (sensitivity / noise)^2: s is
    `anchor_share`, or else what makes the noise in the sum of all directions least. With round k's
    noise in that sum `lasting[k]` times, that is s = W_a / (W_a + W_r), where W is the sensitivity
    times the root of the number of rounds and of the sum of their squares.

    `lasting`, `[steps]`, is of each round how many directions its noise is in, with their weights;
    `is_anchor` and `share` are as in `anchored_sums`.
    """
    steps = len(lasting)
    bounds = None if clip is None else (clip,) * steps
    anchors = [weight for k, weight in enumerate(lasting) if is_anchor(k)]
    others = [weight for k, weight in enumerate(lasting) if not is_anchor(k)]
    if not others:
        return Schedules(bounds, (1.0,) * steps)
    moved = _moved(share, difference_bound(options, clip))
    lengths = [math.sqrt(len(part)) * math.hypot(*part) for part in (anchors, others)]
    odds = lengths[0] / (moved * lengths[1])
    if options.anchor_share is not None:
        odds = options.anchor_share / (1 - options.anchor_share)
    ratio = math.sqrt(len(anchors) / (odds * len(others))) / moved
    return Schedules(bounds, tuple(ratio if is_anchor(k) else 1.0 for k in range(steps)))


def _moved(share: float, bound: float) -> float:
    """What a drawn record moves another round's sum by, over C: without rounding."""
    return share + (1 - share) * bound
