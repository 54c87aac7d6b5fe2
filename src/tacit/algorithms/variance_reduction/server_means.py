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
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from pydantic import Field
from torch import Tensor

from tacit import privacy
from tacit.algorithms.accounting import NodeRun
from tacit.algorithms.context import StepContext
from tacit.algorithms.federated import FederatedOptions, mean_gradient, noised_mean
from tacit.algorithms.options import Schedules, step_size
from tacit.algorithms.parts import Regularisation, RegulariserName, prox
from tacit.algorithms.variance_reduction.estimators import (
    DifferenceOptions,
    anchors_and_others,
    difference_bound,
)

_ROUNDING = 2.0**-48
"""Of the clipping bound, for each record: what rounding in double precision may add to a move."""


class ServerAnchorOptions(FederatedOptions, DifferenceOptions):
    """Options of methods whose server keeps a direction that is refreshed."""

    anchor_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    regulariser: RegulariserName = "none"
    regularisation: Regularisation = 0.01

    @property
    def new_share(self) -> float:
        """The share of new gradients in what is sent between refreshes."""
        return 0.0

    @abstractmethod
    def refreshes(self, k: int) -> bool:
        """Whether the direction of round k is made anew."""


class DirectedState(NamedTuple):
    """The server's model, its direction, and where differences start: `[1, d]`, all released."""

    x: Tensor
    direction: Tensor
    point: Tensor


def start(x: Tensor, options: ServerAnchorOptions, context: StepContext) -> DirectedState:
    """x^0, and no direction yet."""
    x = x[:1].clone()
    return DirectedState(x, x.new_zeros(x.shape), x.clone())


def step(
    state: DirectedState, k: int, options: ServerAnchorOptions, context: StepContext
) -> DirectedState:
    """A round whose direction is refreshed, or carried on with differences to the round before.

    The server steps to prox_{eta R}(x - eta direction), of released values.
    """
    if options.refreshes(k):
        direction = mean_gradient(state.x, k, context, whole=True)
    else:
        here, share = context.among(k), options.new_share
        at, old = (x.repeat(len(here.nodes), 1) for x in (state.x, state.point))
        if share == 1:
            total = here.batch_gradient(at, k)
        else:
            total = here.batch_difference(at, old, k, options.clip_difference)
            if share:
                total.mul_(1 - share).add_(here.batch_gradient(at, k).double(), alpha=share)
        direction = noised_mean(total, k, context)
        direction = direction.add(state.direction, alpha=1 - share)
    rate = step_size(options, k, context.steps)
    x = state.x.sub(direction, alpha=rate)
    x = prox(options.regulariser, x, rate, options.regularisation)
    return DirectedState(x, direction, state.x)


def anchored_sums(run: NodeRun) -> privacy.Mechanism:
    """What the messages leak of one record: see the docstring of the module."""
    options: ServerAnchorOptions = run.options
    rounding = run.records * _ROUNDING
    moved = _moved(options, run.clip[0]) + rounding
    pairs = list(zip(run.released, run.noise_multiplier, strict=True))
    anchors = [z / (run.rate * (1 + rounding)) for k, z in pairs if options.refreshes(k)]
    others = [z / moved for k, z in pairs if not options.refreshes(k)]
    return anchors_and_others(run, anchors, others)


def anchor_schedules(
    options: ServerAnchorOptions, clip: float | None, lasting: Sequence[float]
) -> Schedules:
    """The same clipping bound in every round, and one noise for refreshes and one for the rest.

    The refreshes have the share s of the sum over rounds of (sensitivity / noise)^2: s is
    `anchor_share`, or else what makes the noise in the sum of all directions least. With round k's
    noise in that sum `lasting[k]` times, that is s = W_a / (W_a + W_r), where W is the sensitivity
    times the root of the number of rounds and of the sum of their squares.

    `lasting`, `[steps]`, is of each round how many directions its noise is in, with their weights.
    """
    steps = len(lasting)
    bounds = None if clip is None else (clip,) * steps
    anchors = [weight for k, weight in enumerate(lasting) if options.refreshes(k)]
    others = [weight for k, weight in enumerate(lasting) if not options.refreshes(k)]
    if not others:
        return Schedules(bounds, (1.0,) * steps)
    moved = _moved(options, clip)
    lengths = [math.sqrt(len(part)) * math.hypot(*part) for part in (anchors, others)]
    odds = lengths[0] / (moved * lengths[1])
    if options.anchor_share is not None:
        odds = options.anchor_share / (1 - options.anchor_share)
    ratio = math.sqrt(len(anchors) / (odds * len(others))) / moved
    return Schedules(bounds, tuple(ratio if options.refreshes(k) else 1.0 for k in range(steps)))


def _moved(options: ServerAnchorOptions, clip: float | None) -> float:
    """What a drawn record moves another round's sum by, over C: without rounding."""
    share = options.new_share
    return share + (1 - share) * difference_bound(options, clip)
