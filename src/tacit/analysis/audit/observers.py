"""What an observer works out from messages: the noised sums of every private algorithm.

Trust model `all-messages` (for methods with a server: `server`): the observer knows the start, the
graph and its weights, the options, who is active, all public masks, and every message. For each
algorithm's step a function says what follows from these alone about what each node released. What
the algorithm does with a release later is post-processing, which is undone here.

Where a compressor keeps a part of a message back, a coordinate is known only when it is sent:

- a method that never sends what it left out shows nothing of it (SoteriaFL);
- in CPGT a sum is known when its coordinate of either of the two messages shows it;
- in DO-ADP what is left out is sent later, together with what came after it. The messages of a
  coordinate are then linear in the releases, with weights that are public, so that a Kalman filter
  turns them into independent readings of unit variance. Where everything is sent it returns the
  releases themselves. That a coordinate was among the largest (`top-k`) is not made use of.

An observer that knows less than is possible makes an audit weaker, never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.algorithms import (
    Algorithm,
    adp2_sgd,
    cpgt,
    do_adp,
    dp2_sgd,
    dp_dda,
    dp_fedavg,
    dp_sgd,
    dpdo,
    fedspd_dp,
    noised_moments,
    privsgp,
)
from tacit.algorithms.admm import ddp_admm, dp_admm, r_admm
from tacit.algorithms.admm.graph import weights_of
from tacit.algorithms.admm.parts import SUBGRADIENTS
from tacit.algorithms.base import step_size
from tacit.algorithms.variance_reduction import dp_srm, estimators, ldp_prox, soteriafl
from tacit.analysis.audit.trace import Sent
from tacit.communication.colours import Public, Released
from tacit.communication.compression import compress
from tacit.communication.exchange import Exchange
from tacit.communication.exchange.protocol import Message
from tacit.errors import InputError
from tacit.training.plan import Plan

ROUNDING = 1e-12
"""Of a variance: what is left below it is none."""

Law = Literal["sum", "table", "snapshot", "anchors", "steps", "change", "iterates", "carried"]
"""How a release depends on one record.

`sum`: by its clipped gradient where it is drawn. `table`, `snapshot`, `anchors`: see
`algorithms.variance_reduction.estimators`. `steps`: as `anchors`, but with differences to the point
of the step before. `change`: by the clipped change of a whole model. `iterates`: by local steps of
one round. `carried`: by those, and by what un-noised state carries on.
"""


@dataclass(frozen=True)
class Overheard:
    """Public values of a run.

    Args:
        plan: of all nodes, copies included; what is read of it is public.
        start: `[nodes, d]`, x^0.
        sent: every message, in order; the round of gossip after the last step included.
        exchange: the public mixing matrices and the server, to follow what becomes of messages.
        steps: how many were run.
    """

    plan: Plan
    start: Tensor
    sent: Sequence[Sent]
    exchange: Exchange
    steps: int

    @property
    def options(self) -> Any:
        """The algorithm's options."""
        return self.plan.config.algorithm.options

    @property
    def batch(self) -> Tensor:
        """Q J of each node, float64 `[nodes, 1]`."""
        return batch_of(self.plan).to(self.start.device)

    @property
    def rate(self) -> Tensor:
        """Q of each node, float64 `[nodes, 1]`."""
        return rate_of(self.plan).to(self.start.device)

    def step_size(self, k: int) -> float:
        """The learning rate of step k."""
        return step_size(self.options, k, self.plan.steps)

    def noise_std(self, k: int) -> Tensor:
        """Planned deviation of step k's noise in a sum, float64 `[nodes, 1]`."""
        return noise_of(self.plan, k).to(self.start.device)

    def active(self, k: int) -> Tensor:
        """Who takes part in step k, bool `[nodes, 1]`."""
        flags = self.plan.release.active(k)
        if flags is None:
            return torch.ones(len(self.start), 1, dtype=torch.bool, device=self.start.device)
        return torch.from_numpy(flags).to(self.start.device).unsqueeze(1)

    def of_active(self, k: int, values: Tensor) -> Tensor:
        """`values` `[nodes, d]` of those that take part in step k, NaN in other rows."""
        return torch.where(self.active(k), values, math.nan)

    def message(self, k: int, number: int = 0, of: int = 1) -> Sent:
        """A message of step k, where each step sends `of` of them before its further rounds.

        Those of the rounds follow, one each, and then the first of the next step.
        """
        return self.sent[k * (of + self.plan.rounds - 1) + number]

    def latest(self, k: int) -> Tensor:
        """Every client's latest message, `[nodes, d]`; NaN in rows that never send any."""
        (rows,) = self.message(k).values
        if self.options.participation != "same":
            return rows
        whole = rows.new_full((len(self.start), rows.shape[1]), math.nan)
        whole[self.active(k)[:, 0]] = rows
        return whole

    def server_mean(self, k: int, values: Tensor) -> Tensor:
        """What the server makes `[1, d]` of the clients' latest messages, `[nodes, d]`."""
        if self.options.participation == "same":
            (mean,) = self.exchange.average(k, Released(values[self.active(k)[:, 0]]))
            return mean
        (mean,) = self.exchange.average(k, Released(values), latest=True)
        return mean

    def mixed(self, k: int, *values: Message) -> tuple[Tensor, ...]:
        """What all gossip rounds of step k make of what was sent in it, values `[nodes, ...]`."""
        for extra in range(self.plan.rounds):
            received = self.exchange.mix(k, *values, extra=extra)
            values = (Released(received[0]), *map(Public, received[1:]))
        return received

    def shown(self, sent: Sent) -> Tensor:
        """Which coordinates of a message carry a value, bool `[nodes, d]`."""
        values, coding = sent.values[0], sent.coding
        if coding is None or coding.compressor == "none":
            return torch.ones_like(values, dtype=torch.bool)
        if coding.compressor == "top-k":
            return values != 0
        nodes = range(len(values))
        public = compress(
            torch.ones_like(values),
            compressor=coding.compressor,
            keep=coding.keep,
            seed=coding.seed,
            step=coding.step,
            nodes=nodes,
            part=coding.part,
        )
        return public.values != 0


def batch_of(plan: Plan) -> Tensor:
    """What sums of each node are divided by, float64 `[nodes, 1]`."""
    return _column(node.divisor for node in plan.nodes)


def rate_of(plan: Plan) -> Tensor:
    """Q of each node, float64 `[nodes, 1]`."""
    return _column(node.rate for node in plan.nodes)


def noise_of(plan: Plan, k: int) -> Tensor:
    """Planned deviation of step k's noise in a sum, float64 `[nodes, 1]`."""
    return _column(plan.release.noise_std(node, k) for node in plan.nodes)


def _column(values: Iterable[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64).unsqueeze(1)


@dataclass(frozen=True)
class StepReading:
    """What is known of the releases of one step once all messages are there.

    Args:
        release: float64 `[nodes, d]`, as it came out of the noise, with the sign of the gradients;
            NaN where nothing is known. Where `spans` is above 1 it is what stands for it: a sum of
            several releases, scaled so that its noise has the deviation of one.
        public: the part of it that no record of this step moves: a number, or `[nodes, d]`.
        spans: of how many releases it is a sum, `[nodes, d]`.
        gains: how far it moves, in deviations, if every release since the first one moves by one
            deviation, `[nodes, d]`; 1 where it is a release itself.
    """

    release: Tensor
    public: Tensor | float = 0.0
    spans: Tensor | int = 1
    gains: Tensor | float = 1.0


def _one(plan: Plan, k: int, coordinates: int) -> Tensor:
    return torch.ones(len(plan.nodes), 1, dtype=torch.float64)


def _always_sums(options: Any) -> Law:
    return "sum"


@dataclass(frozen=True)
class Observer:
    """One row of the table of observers.

    Args:
        readings: one a step, in order.
        scale: how far what is noised moves when the sum over a batch does by one: the deviation of
            the noise over the planned one of a sum, float64 `[nodes, 1]`; of the plan, step k and
            the number of coordinates.
        law: how a release depends on one record, from the options.
    """

    readings: Callable[[Overheard], Iterator[StepReading]]
    scale: Callable[[Plan, int, int], Tensor] = _one
    law: Callable[[Any], Law] = _always_sums


# Gossip.


def _push_sum(heard: Overheard) -> Iterator[StepReading]:
    """x_i^k is what node i received, so (x_i^k - x_i^{k+1/2}) / gamma is its direction."""
    x, batch = heard.start, heard.batch
    before = torch.zeros_like(x, dtype=torch.float64)
    for k in range(heard.steps):
        x_half, w = heard.message(k).values
        direction = (x.double() - x_half.double()) / heard.step_size(k)
        yield StepReading((direction - heard.options.momentum * before) * batch)
        before = direction
        x, _ = heard.mixed(k, Released(x_half), Public(w))


def _moments(heard: Overheard) -> Iterator[StepReading]:
    """What a node pushes in step 0 is what it released; later nobody releases anything."""
    pushed = heard.message(0).values[0]
    first = heard.of_active(0, (heard.start.double() - pushed.double()) * heard.batch)
    for k in range(heard.steps):
        yield StepReading(first if k == 0 else torch.full_like(first, math.nan))


def _gossip(heard: Overheard) -> Iterator[StepReading]:
    """x^{k+1} is W x^k less the step, and is sent in its turn."""
    for k in range(heard.steps):
        (x,), (following,) = heard.message(k).values, heard.message(k, 1).values
        (mixed,) = heard.exchange.mix(k, Released(x))
        yield StepReading((mixed.double() - following.double()) / heard.step_size(k) * heard.batch)


def _in_pairs(heard: Overheard) -> Iterator[StepReading]:
    """x^{k+1} is the mean of the pair less the step of who has finished."""
    activity = heard.plan.release.activity
    assert activity is not None
    assert activity.partner is not None
    for k in range(heard.steps):
        (x,), (following,) = heard.message(k).values, heard.message(k, 1).values
        partner = torch.from_numpy(activity.partner[k]).to(x.device)
        (other,) = heard.exchange.swap(k, partner, Released(x))
        averaged = x.add(other).div_(2).double()
        moved = (averaged - following.double()) / heard.step_size(k) * heard.batch
        yield StepReading(heard.of_active(k, moved))


def _dual_averaging(heard: Overheard) -> Iterator[StepReading]:
    """z^{k+1} is W z^k and the gradient of an active node, and is sent in its turn."""
    for k in range(heard.steps):
        (z,), (following,) = heard.message(k).values, heard.message(k, 1).values
        (mixed,) = heard.exchange.mix(k, Released(z))
        yield StepReading(heard.of_active(k, (following.double() - mixed.double()) * heard.batch))


def _laplace_step(heard: Overheard) -> Iterator[StepReading]:
    """Y is z less the noised step, which is what the noise was added to, in a unit of its own."""
    z = heard.start
    for k in range(heard.steps):
        (y,) = heard.message(k).values
        unit = heard.step_size(k) * heard.options.rate_decay**k / heard.batch
        yield StepReading((z.double() - y.double()) / unit)
        (z,) = heard.mixed(k, Released(y))


def _tracking(heard: Overheard) -> Iterator[StepReading]:
    """Y is the last noised gradient and public gossip; x moves along y.

    y_k = g_k + sum of the gossip of y before k, since it adds g_k - g_{k-1} at every step. It is
    known where its own message shows it, and where the messages of x show x before and after.
    """
    options = heard.options
    copies = [torch.zeros_like(heard.start) for _ in range(2)]
    near = [torch.zeros_like(heard.start) for _ in range(2)]
    gossip = torch.zeros_like(heard.start, dtype=torch.float64)
    before = torch.ones_like(gossip, dtype=torch.bool)  # where x is known
    x = heard.start.double()
    for k in range(heard.steps):
        shown = []
        for part in range(2):
            sent = heard.message(k, part, of=2)
            (moved,) = heard.exchange.mix(k, Released(sent.values[0]))
            copies[part] = copies[part] + sent.values[0]
            near[part] = near[part] + moved
            shown.append(heard.shown(sent))
        before = before | shown[0]
        x = torch.where(shown[0], copies[0].double(), x)
        pulled = x + options.consensus_step * (near[0].double() - copies[0].double())
        if k + 1 < heard.steps:
            following = heard.message(k + 1, of=2)
            after, arrived = copies[0] + following.values[0], heard.shown(following)
        else:  # the round of gossip shows the last models whole
            after = heard.message(k + 1, of=2).values[0]
            arrived = torch.ones_like(before)
        along = (pulled - after.double()) / heard.step_size(k)
        y = torch.where(before & arrived, along, math.nan)
        y = torch.where(shown[1], copies[1].double(), y)
        g = y - gossip
        if options.weight_decay:  # whose gradient is known where x is
            g = g - torch.where(before, options.weight_decay * x, math.nan)
        yield StepReading(g * heard.batch)
        gossip = gossip + options.tracking_step * (near[1].double() - copies[1].double())
        before = torch.zeros_like(before)


def _graph_admm(heard: Overheard) -> Iterator[StepReading]:
    """The models before and after a step show the pull between them; duals and spreads are public.

    An iteration that takes no gradient of its own reads nothing.
    """
    options = heard.options
    x = heard.start.double()
    spread, dual = torch.zeros_like(x), torch.zeros_like(x)
    for k in range(heard.steps):
        penalty, dual_step = weights_of(options, k)
        (sent,) = heard.message(k).values
        following = sent.double()
        pull = (x - following) * (1 / heard.step_size(k) + 2 * penalty)
        slope = options.regularisation * SUBGRADIENTS[options.regulariser](x)
        g = pull - slope - 2 * dual - penalty * spread
        yield StepReading(heard.of_active(k, g * heard.batch))
        (mixed,) = heard.exchange.mix(k, Released(sent))
        x, spread = following, following - mixed.double()
        dual = dual + dual_step / 2 * spread


def _compressed_gossip(heard: Overheard) -> Iterator[StepReading]:
    """A Kalman filter of every coordinate's momentum, from what its messages show.

    Let a be what noised gradients have moved x by since the coordinate was sent last. Active steps
    add alpha m to it, where m = beta m + g, and x less public gossip shows a when it is sent. The
    difference of a to what was expected, over its deviation, is the reading: independent of the
    earlier ones, of unit variance. Deviations depend on public masks, on activity and on the plan.
    """
    options, batch = heard.options, heard.batch
    copy, near = torch.zeros_like(heard.start), torch.zeros_like(heard.start)
    x = heard.start.double()
    zero = torch.zeros_like(x)
    m, a, shift_m, shift_a = zero, zero, zero, zero  # expected; and what a shift adds to the error
    var_m, var_a, covariance, spans = zero, zero, zero, zero
    for k in range(heard.steps):
        sent = heard.message(k)
        alpha, beta, active = heard.step_size(k), options.momentum, heard.active(k)
        sigma = torch.where(active, heard.noise_std(k) / batch, 0.0)
        weight, ridge = alpha * active.double(), options.weight_decay * active.double()
        # The gradient of the ridge term is that at x - a, the model before this step.
        m, shift_m = beta * m + ridge * (x - a), beta * shift_m - ridge * shift_a + sigma
        var_m = beta**2 * var_m - 2 * beta * ridge * covariance + ridge**2 * var_a + sigma**2
        covariance = beta * covariance - ridge * var_a
        x = x + options.consensus_step * (near.double() - copy.double())
        a, shift_a = a + weight * m, shift_a + weight * shift_m
        var_a = var_a + 2 * weight * covariance + weight**2 * var_m
        covariance = covariance + weight * var_m
        spans = spans + active

        copy = copy + sent.values[0]
        (moved,) = heard.exchange.mix(k, Released(sent.values[0]))
        near = near + moved
        shown = heard.shown(sent) & active & (var_a > 0)
        after = copy.double()
        deviation = var_a.sqrt().where(shown, 1.0)
        surprise = (x - after - a) / deviation
        std = heard.noise_std(k)
        yield StepReading(
            torch.where(shown, surprise * std, math.nan),
            spans=torch.where(shown, spans, 0.0).long(),
            gains=torch.where(shown, shift_a / deviation, 0.0),
        )
        learnt = torch.where(shown, covariance / deviation, 0.0)
        m, shift_m = m + learnt * surprise, shift_m - learnt * (shift_a / deviation)
        left = var_m - learnt**2
        var_m = torch.where(left > ROUNDING * var_m, left, 0.0)
        x = torch.where(shown, after, x)
        a, shift_a, var_a, covariance, spans = (
            torch.where(shown, 0.0, value) for value in (a, shift_a, var_a, covariance, spans)
        )


# Variance reduction.


def _relative_to_anchors(heard: Overheard, whole: Iterator[StepReading]) -> Iterator[StepReading]:
    """Other steps' releases are taken relative to the released anchor."""
    anchor = torch.zeros_like(heard.start, dtype=torch.float64)
    for k, reading in enumerate(whole):
        if k % heard.options.anchor_every == 0:
            anchor = reading.release
            yield StepReading(anchor / heard.rate)
        else:
            yield StepReading(reading.release - anchor)


def _push_sum_reduced(heard: Overheard) -> Iterator[StepReading]:
    whole = _push_sum(heard)
    return whole if heard.options.state == "private" else _relative_to_anchors(heard, whole)


def _shifted(heard: Overheard) -> Iterator[StepReading]:
    """A message is the kept part of the gradient less the public shift."""
    options = heard.options
    shift = torch.zeros_like(heard.start, dtype=torch.float64)
    factor, omega = soteriafl.scaling(options, heard.start.shape[1])
    gamma = soteriafl.shift_rate(options, omega)
    for k in range(heard.steps):
        sent = heard.message(k)
        kept = sent.values[0].double()
        yield StepReading(torch.where(heard.shown(sent), shift + kept, math.nan) * heard.batch)
        shift = shift + gamma * factor * kept


def _shifted_snapshots(heard: Overheard) -> Iterator[StepReading]:
    whole = _shifted(heard)
    return whole if heard.options.state == "private" else _relative_to_anchors(heard, whole)


def _anchor_scale(plan: Plan, k: int, coordinates: int) -> Tensor:
    options: Any = plan.config.algorithm.options
    if options.state == "private" or k % options.anchor_every:
        return _one(plan, k, coordinates)
    clip = plan.release.clip.bound(k)
    return estimators.anchor_ratio(options, plan.steps, clip) / rate_of(plan)


def _table_law(options: Any) -> Law:
    return "anchors" if options.state == "public" else "table"


def _snapshot_law(options: Any) -> Law:
    return "anchors" if options.state == "public" else "snapshot"


# Servers.


def _spread_out(heard: Overheard, k: int, rows: Tensor) -> Tensor:
    """Rows of the active nodes among those of all, float64 `[nodes, d]`; NaN elsewhere."""
    whole = torch.full((len(heard.start), rows.shape[1]), math.nan, dtype=torch.float64)
    whole = whole.to(rows.device)
    whole[heard.active(k)[:, 0]] = rows.double()
    return whole


def _to_server(heard: Overheard) -> Iterator[StepReading]:
    """Each active client sends its noised gradient."""
    for k in range(heard.steps):
        yield StepReading(_spread_out(heard, k, heard.message(k).values[0]) * heard.batch)


def _to_server_refreshed(
    is_anchor: Callable[[Any, int], bool],
) -> tuple[Callable[[Overheard], Iterator[StepReading]], Callable[[Plan, int, int], Tensor]]:
    """Readings and scale of methods whose refreshes are noised as sums over every record."""

    def heard_at(heard: Overheard) -> Iterator[StepReading]:
        for k, reading in enumerate(_to_server(heard)):
            unit = heard.rate if is_anchor(heard.options, k) else 1.0
            yield StepReading(reading.release / unit)

    def scale(plan: Plan, k: int, coordinates: int) -> Tensor:
        anchor = is_anchor(plan.config.algorithm.options, k)
        return 1 / rate_of(plan) if anchor else _one(plan, k, coordinates)

    return heard_at, scale


def _moments_to_server(heard: Overheard) -> Iterator[StepReading]:
    """Each client sends its noised gradient in step 0, and nothing later."""
    first = _spread_out(heard, 0, heard.message(0).values[0]) * heard.batch
    for k in range(heard.steps):
        yield StepReading(first if k == 0 else torch.full_like(first, math.nan))


def _changes(heard: Overheard) -> Iterator[StepReading]:
    """Each active client sends its noised change, which goes against the gradient."""
    for k in range(heard.steps):
        yield StepReading(-_spread_out(heard, k, heard.message(k).values[0]))


def _change_scale(plan: Plan, k: int, coordinates: int) -> Tensor:
    return 1 / batch_of(plan)


def _admm(heard: Overheard) -> Iterator[StepReading]:
    """Y = 2 x - x_0 - lambda / rho with public x_0 and lambda, and x is affine in the gradient."""
    options, rho = heard.options, heard.options.penalty
    last, dual = heard.start.double(), torch.zeros_like(heard.start, dtype=torch.float64)
    server = last[:1]
    for k in range(heard.steps):
        active, inverse = heard.active(k), 1 / heard.step_size(k)
        y = heard.latest(k)
        x = (y.double() + server + dual / rho) / 2
        slope = options.regularisation * SUBGRADIENTS[options.regulariser](last)
        g = rho * server + dual + inverse * last - (rho + inverse) * x - slope
        yield StepReading(heard.of_active(k, g * heard.batch))
        dual = torch.where(active, dual + rho * (server - x), dual)
        last = torch.where(active, x, last)
        server = heard.server_mean(k, y).double()


def _primal_dual(heard: Overheard) -> Iterator[StepReading]:
    """What is noised, as a change around x_0; without gradients it would be `public`.

    With a public state lambda is a function of what was released. With a private one both x and
    lambda are followed as they would be without gradients, and what records did to them is part of
    what is left.
    """
    options, rho = heard.options, heard.options.penalty
    public = options.state == "public"
    x_0 = heard.start[:1].double()
    dual = torch.zeros_like(heard.start, dtype=torch.float64)
    x = heard.start.double()
    for k in range(heard.steps):
        active = heard.active(k)
        gamma = inverse_steps(heard.plan, k, x.shape[1]).to(x.device)
        unit = 1 / (heard.batch * (gamma + rho))
        clip = heard.plan.release.clip.bound(k)
        radius = fedspd_dp.resolved_radius(unit, gamma, heard.plan.steps, clip, x_0, options)
        divisor = gamma + rho
        dual_now = fedspd_dp.within(dual, radius * divisor)
        at = torch.zeros_like(x) if public else fedspd_dp.within(x - x_0, radius)
        change = fedspd_dp.proximal_change(options.regulariser, 1 / divisor, options.regularisation)
        average = torch.zeros_like(x)
        for _ in range(options.local_steps):
            at = change(x_0, (dual_now + gamma * at) / divisor)
            average = average + at / options.local_steps
        message = heard.latest(k)
        sent = message.double() - x_0
        if public:
            release, quiet = (sent + dual_now / rho) / 2, average
            renewed = dual_now - rho * release
        else:
            release, quiet = sent, 2 * average - dual_now / rho
            renewed = dual_now - rho * average
        yield StepReading(-heard.of_active(k, release), public=-quiet)
        dual = torch.where(active, renewed, dual)
        x = torch.where(active, x_0 + at, x)
        x_0 = heard.server_mean(k, message).double()


def inverse_steps(plan: Plan, k: int, coordinates: int) -> Tensor:
    """FedSPD-DP's gamma of round k, float64 `[nodes, 1]`, for a model of so many coordinates."""
    options: Any = plan.config.algorithm.options
    gamma: Tensor = fedspd_dp.inverse_step(
        options,
        k,
        plan.steps,
        noise_std=noise_of(plan, k),
        batch=batch_of(plan),
        coordinates=coordinates,
        clients=plan.release.setup.nodes,
    )
    return gamma


def _iterate_scale(plan: Plan, k: int, coordinates: int) -> Tensor:
    options: Any = plan.config.algorithm.options
    unit: Tensor = 1 / (batch_of(plan) * (inverse_steps(plan, k, coordinates) + options.penalty))
    return unit if options.state == "public" else 2 * unit


def _iterate_law(options: Any) -> Law:
    return "iterates" if options.state == "public" else "carried"


def _is_refresh(options: Any, k: int) -> bool:
    return bool(k % options.anchor_every == 0)


OBSERVERS: dict[Callable[..., Any], Observer] = {
    dp_srm.step: Observer(
        *_to_server_refreshed(lambda options, k: k == 0), lambda options: "steps"
    ),
    ldp_prox.svrg_step: Observer(*_to_server_refreshed(_is_refresh), lambda options: "anchors"),
    ldp_prox.spider_step: Observer(*_to_server_refreshed(_is_refresh), lambda options: "steps"),
    noised_moments.step: Observer(_moments),
    noised_moments.server_step: Observer(_moments_to_server),
    privsgp.step: Observer(_push_sum),
    privsgp.reduced_step: Observer(_push_sum_reduced, _anchor_scale, _table_law),
    dp2_sgd.step: Observer(_gossip),
    adp2_sgd.step: Observer(_in_pairs),
    do_adp.step: Observer(_compressed_gossip),
    dp_dda.step: Observer(_dual_averaging),
    dpdo.step: Observer(_laplace_step),
    cpgt.step: Observer(_tracking),
    ddp_admm.step: Observer(_graph_admm),
    r_admm.step: Observer(_graph_admm),
    dp_sgd.step: Observer(_to_server),
    dp_fedavg.step: Observer(_changes, _change_scale, lambda options: "change"),
    dp_admm.step: Observer(_admm),
    fedspd_dp.step: Observer(_primal_dual, _iterate_scale, _iterate_law),
    soteriafl.saga_step: Observer(_shifted, law=lambda options: "table"),
    soteriafl.svrg_step: Observer(_shifted_snapshots, _anchor_scale, _snapshot_law),
}
"""A row for every step of an algorithm; an algorithm with a step of its own needs one."""


def observer_of(algorithm: Algorithm[Any, Any]) -> Observer:
    """The observer of an algorithm.

    Raises:
        InputError: nothing is known of what an observer learns from this algorithm.
    """
    if algorithm.step not in OBSERVERS:
        raise InputError(
            "algorithm.name",
            algorithm.name,
            "cannot be audited yet: add an Observer for its step to OBSERVERS of "
            "tacit.analysis.audit.observers, which says what follows from its messages",
        )
    return OBSERVERS[algorithm.step]


def readings(heard: Overheard) -> Iterator[tuple[StepReading, Tensor]]:
    """Every step's reading, and the planned deviation of its noise, float64 `[nodes, 1]`.

    Raises:
        InputError: as `observer_of`.
    """
    observer = observer_of(heard.plan.config.algorithm.definition)
    for k, reading in enumerate(observer.readings(heard)):
        scale = observer.scale(heard.plan, k, heard.start.shape[1])
        yield reading, scale.to(heard.start.device) * heard.noise_std(k)


@dataclass(frozen=True)
class Readings:
    """All readings in units of their noise.

    Args:
        y: float64 `[steps, nodes, d]`, less what is public; NaN where nothing is known.
        spans: of how many releases each is a sum, `[steps, nodes, d]`; see `StepReading`.
        gains: how far each moves by a move of one of every release, `[steps, nodes, d]`.
    """

    y: NDArray[np.float64]
    spans: NDArray[np.int64]
    gains: NDArray[np.float64]

    def of(self, nodes: NDArray[np.int64] | NDArray[np.bool_]) -> Readings:
        """The same of some nodes."""
        return Readings(self.y[:, nodes], self.spans[:, nodes], self.gains[:, nodes])

    def along(self, directions: NDArray[np.float64]) -> Readings:
        """The same along orthonormal directions, one a row; of whole readings only."""
        if np.array_equal(directions, np.eye(len(directions))):
            return self
        return replace(self, y=self.y @ directions.T)


def seen(heard: Overheard) -> Readings:
    """All that an observer works out of a run.

    Raises:
        InputError: as `observer_of`.
    """
    shape = (heard.steps, *heard.start.shape)
    y = np.empty(shape)
    spans: NDArray[np.int64] = np.broadcast_to(np.int64(1), shape)
    gains: NDArray[np.float64] = np.broadcast_to(np.float64(1.0), shape)
    for k, (reading, deviation) in enumerate(readings(heard)):
        y[k] = ((reading.release - reading.public) / deviation).cpu().numpy()
        if isinstance(reading.spans, Tensor) and isinstance(reading.gains, Tensor):
            if not spans.flags.writeable:
                spans, gains = spans.copy(), gains.copy()
            spans[k], gains[k] = reading.spans.cpu().numpy(), reading.gains.cpu().numpy()
    return Readings(y, spans, gains)
