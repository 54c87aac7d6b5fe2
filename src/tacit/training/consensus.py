"""What a plan says of how far its nodes' models will stand apart, and what it chooses for that.

Noise that cancels between pairs of nodes is in every node's own model until gossip has mixed it
away. So a plan that has more of it needs less noise in the mean, and more gossip rounds. The
forecast is that of `tacit.topology.consensus`: of noise alone, where gradients do not answer to it
and nothing is lost on the way. Gradients are taken at the nodes' own models, so that noise that is
not mixed costs twice: in the model at the end, and on the way there.

The mean of all models, left to its noise, would walk ever further away, beside which any distance
between nodes looks small after enough steps. Where the loss is curved, gradients pull it back. So
figures count the noise of the last `MEMORY` steps before the models that they are of. Distances,
which do not grow like that, count all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tacit.topology.consensus import NoiseFlow, spread
from tacit.topology.mixing import Mixing
from tacit.training.averages import step_weight
from tacit.training.plan import Plan
from tacit.training.release import Release
from tacit.training.shared_noise import PairNoise, root_mean_square

WARNED_ABOVE = 1.5
"""A node's own noise over that of the mean, from which on a plan warns."""
MEMORY = 100
"""Steps whose noise a figure counts."""
MOST_NODES = 200
MOST_STEPS = 1_000_000
_POINTS = 6  # at which gradients are taken, of a whole run
_RATIOS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
_FEW_RATIOS = (2.0, 4.0, 8.0)  # where what each of them is worth takes long to say
_FEW_NODES = 40
_SETS = 10  # of active nodes that a choice is made for
_WORTHWHILE = 1.05
_USUAL = 4.0


@dataclass(frozen=True)
class ConsensusForecast:
    """Each node's noise, of the `MEMORY` steps before, over that of the mean of all models.

    Args:
        worst: at the node where it is largest, at the end of the run; 1 is perfect mixing.
        typical: root mean square over nodes, likewise.
        worst_gradients: at the worst node over the whole run, where gradients are taken: root of
            the sum of its variances over that of the mean's.
        pair_noise: deviation of a pair's noise over the root mean square of the nodes' own.
    """

    worst: float
    typical: float
    worst_gradients: float
    pair_noise: float = 0.0

    @property
    def figure(self) -> float:
        """The larger one of the end and the whole run, at the worst node."""
        return max(self.worst, self.worst_gradients)

    def note(self) -> str:
        """One line for a plan."""
        return (
            f"forecast: the noise in a node's own model is {_times(self.worst)} times that of the "
            f"mean at the end of the run, and {_times(self.worst_gradients)} times where gradients "
            "are taken (1: nodes agree)"
        )


@dataclass(frozen=True)
class PairChoice:
    """Noise of pairs, over the root mean square of the nodes' own, and gossip rounds a step.

    The `reason` is one sentence; None where nothing was left to choose.
    """

    pair_noise: float
    rounds: int
    reason: str | None


def noise_flow(
    release: Release,
    own: Sequence[float],
    mixing: Mixing,
    rounds: int,
    pairs: Sequence[tuple[int, int]] = (),
) -> NoiseFlow | None:
    """How the noise of a release moves models; None where that is not linear, or too much work.

    `own` `[nodes]` is the deviation of each node's own noise in the mean over its batch, at noise
    shape 1 and clipping bound 1, of which the shape is enough for figures. `pairs` share noise.
    """
    path, options = release.algorithm.graph.noise_path, release.setup.options
    steps = release.setup.steps
    correlated = release.over_time is not None and release.over_time.bands != 1
    many = len(own) > MOST_NODES or steps > MOST_STEPS
    if path is None or correlated or many or not any(own):
        return None
    bounds = release.clip.bounds or (1.0,) * steps
    weights = [path.weight(options, k, steps, release.clip.bound(k)) for k in range(steps)]
    activity = release.activity
    return NoiseFlow(
        mixing=mixing,
        order=path.order,
        own=np.asarray(own, np.float64),
        rates=np.array([path.rate(options, k, steps) for k in range(steps)]),
        shape=np.array(bounds) * np.array(release.noise_shape) * np.array(weights),
        pairs=np.array(pairs, np.int64).reshape(-1, 2),
        rounds=rounds,
        momentum=getattr(options, "momentum", 0.0),
        final_rounds=release.algorithm.graph.final_rounds(options),
        held=path.held(options),
        active=None if activity is None else activity.active,
        partner=None if activity is None else activity.partner,
    )


def consensus_forecast(plan: Plan) -> ConsensusForecast | None:
    """What a plan's noise does to its nodes' models; None where it cannot be said.

    It cannot for methods whose models do not follow from noise by gossip alone (servers, public
    copies, projections), for more than 200 nodes or a million steps, for noise that is correlated
    over steps, and without noise.
    """
    flow = _flow_of(plan)
    return None if flow is None else _forecasts(flow, (_ratio(plan.release.pairs),))[0]


def consensus_distances(plan: Plan, steps: Sequence[int]) -> list[float | None]:
    """Forecast of `consensus_distance` after so many steps each, which a run measures.

    The expected root mean square over nodes of the distance in the l2 norm, over all coordinates,
    between a node's de-biased model and the mean of all: of noise alone. What nodes' different data
    do to their models comes on top of it, and is in what a run measures. Of a node's squared
    distance this is the mean over the noise; of d coordinates it is rarely off by more than a few
    times 1 / sqrt(d) of itself.

    Each of `steps` is from 0 to K. None where a distance cannot be said, see `consensus_forecast`,
    and of averages (`[train] average`), since the forecast is of single models.
    """
    flow, path = _flow_of(plan), plan.release.algorithm.graph.noise_path
    if flow is None or path is None:
        return [None] * len(steps)
    options, made = plan.release.setup.options, sorted({step for step in steps if step})
    apart = dict(zip(made, spread(flow, made).apart(_ratio(plan.release.pairs)), strict=True))
    unit = math.sqrt(plan.parameters)

    def distance(step: int) -> float | None:
        if not step:
            return 0.0
        if step_weight(plan.config.train.average, step - 1, plan.steps) is not None:
            return None
        return float(unit * apart[step] * path.scale(options, step))

    return [distance(step) for step in steps]


def consensus_warning(forecast: ConsensusForecast | None, rounds: int) -> str | None:
    """What a plan should say of models that stand far apart; None where they do not."""
    if forecast is None or forecast.figure <= WARNED_ABOVE:
        return None
    several = f"{rounds} gossip round" + ("s" if rounds > 1 else "")
    return (
        f"with {several} a step, a node's own model will carry {_times(forecast.figure)} times the "
        "noise of the mean, and gradients are taken there: raise topology.rounds, or choose a "
        "graph that mixes faster" + (", or lower privacy.pair_noise" if forecast.pair_noise else "")
    )


def choose(
    release: Release,
    own: Sequence[float],
    mixing: Mixing,
    *,
    pair_noise: float | None = None,
    rounds: int | None = None,
) -> PairChoice:
    """Noise of pairs and gossip rounds that together leave the least noise at a node.

    More noise of pairs needs less noise in the mean for the same epsilon (`PairNoise.gains`), and
    more rounds to mix it away. What is least is the product of the two: the noise in the mean, over
    that of independent noise, times `ConsensusForecast.figure`. Among choices within 5 % of the
    least, that of the fewest rounds is taken, which send the fewest bytes, and of these that with
    the least noise of pairs.

    Args:
        release: what nodes release, with its `pairs`; of their noise only who shares it is read.
        own: deviation of the noise that each node needs in its mean if it is independent, at noise
            shape 1 and clipping bound 1, `[nodes]`; only its shape counts.
        mixing: the weights.
        pair_noise: the ratio, where it is given; None: it is chosen.
        rounds: likewise; up to log2 of the nodes, rounded up, and 2 at least.
    """
    if pair_noise is not None and rounds is not None:
        return PairChoice(pair_noise, rounds, None)
    pairs = release.pairs
    assert pairs is not None
    if pairs.active is not None:  # who is active differs from step to step: of some of them
        chosen = np.unique(np.linspace(0, len(pairs.active) - 1, _SETS).round().astype(int))
        pairs = replace(pairs, active=pairs.active[chosen])
    pairs = replace(pairs, own=tuple(own))
    nodes = len(own)
    most = max(2, math.ceil(math.log2(max(nodes, 2))))
    ratios: tuple[float, ...] = _RATIOS if nodes <= _FEW_NODES else _FEW_RATIOS
    if pair_noise is None:
        ratios = tuple(ratio for ratio in ratios if ratio <= pairs.most) or (pairs.most,)
    else:
        ratios = (pair_noise,)
    every = range(1, most + 1) if rounds is None else (rounds,)
    flow = noise_flow(release, own, mixing, 1, pairs.pairs)
    if flow is None:
        return PairChoice(
            _USUAL if pair_noise is None else pair_noise,
            most if rounds is None else rounds,
            "nothing can be forecast for this method or so many nodes, so that pair_noise and "
            "rounds are the usual ones: 4, and log2 of the nodes",
        )
    usual, means = root_mean_square(pairs.own), []
    for ratio in ratios:  # the noise in the mean that keeps every budget, over independent noise
        needed = np.array(pairs.own) / replace(pairs, deviation=ratio * usual).typical_gains
        means.append(root_mean_square(needed.tolist()) / usual)
    found = []
    for each in every:
        for ratio, mean, forecast in zip(
            ratios, means, _forecasts(replace(flow, rounds=each), ratios), strict=True
        ):
            found.append((each, ratio, mean, forecast.figure))
    least = min(mean * figure for _, _, mean, figure in found)
    good = [row for row in found if row[2] * row[3] <= _WORTHWHILE * least]
    best, ratio, mean, figure = min(good)
    alone = next(row[3] for row in found if row[0] == every[0] and row[1] == ratio)
    reason = (
        f"pair_noise = {ratio:g} and rounds = {best}: the mean gets {mean:.2f} of the noise that "
        f"independent noise would need, and a node's own model {_times(figure)} times the noise of "
        "the mean"
    )
    if best > every[0]:
        reason += f" ({_times(alone)} times with one round)"
    return PairChoice(ratio, best, reason)


def _times(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _ratio(pairs: PairNoise | None) -> float:
    return 0.0 if pairs is None else pairs.ratio


def _flow_of(plan: Plan) -> NoiseFlow | None:
    if not plan.noisy:
        return None
    release = plan.release
    own = [node.noise_scale / node.divisor for node in plan.nodes]
    pairs = () if release.pairs is None else release.pairs.pairs
    return noise_flow(release, own, plan.mixing, plan.rounds, pairs)


def _forecasts(flow: NoiseFlow, ratios: Sequence[float]) -> list[ConsensusForecast]:
    """Of one flow with several ratios of pair noise, from the same sums."""
    period = math.lcm(len(flow.mixing.weights), flow.held)
    # Where the graphs are those of the end, so that sums of a constant schedule are shared; the
    # model at the end of step k is where the gradient of step k + 1 is taken.
    inner = [round(flow.steps * (place + 0.5) / _POINTS) for place in range(_POINTS)]
    aligned = [step - (step - flow.steps) % period for step in inner]
    points = sorted({step for step in aligned if 0 < step < flow.steps}) or [flow.steps]
    found = spread(flow, [*points, flow.steps], MEMORY)

    def forecast(ratio: float) -> ConsensusForecast:
        squares = found.figures(ratio) ** 2
        variances = squares[:-1] * found.mean[:-1, None]
        over: NDArray[np.float64] = variances.sum(0) / found.mean[:-1].sum()
        last = squares[-1]
        return ConsensusForecast(
            worst=math.sqrt(last.max()),
            typical=math.sqrt(last.mean()),
            worst_gradients=math.sqrt(over.max()),
            pair_noise=ratio,
        )

    return [forecast(ratio) for ratio in ratios]
