"""Many Gaussian signals in one run: how much louder they are than the noise, by an exact test.

For messages that are noised sums. Each node holds so many canaries, each along a direction of its
own, and each is there by a fair coin; the laboratory's model makes its clipped gradient C long at
every step. (The noise has no direction of its own, so that coordinates serve as random ones.) One
run of the product's own code then releases, along each direction, one draw of what the mechanism
makes of a record, or of none: all of them independent, where draws and noise are.

Agrawal, Wei, Singh, Magdon-Ismail and Zikas, *Let's Ask Gauss: Improved One-Run Privacy Auditing*
(arXiv 2606.12733), look at the values of such signals in place of guesses, as Gaussian pairs in the
limit of many steps. Here nothing is asymptotic: see `loudness` and `docs/proofs/audits.md`,
*Signals*. What follows is of the planned mechanism with another amount of noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import nct

from tacit import privacy
from tacit.analysis.audit.attacks import ALARM_CONFIDENCE, Target
from tacit.analysis.audit.laboratory import ALONE, HUGE, linear_model, problem_of, rule_of
from tacit.analysis.audit.recorder import ContextFactory, Trace, run_traced, seeded
from tacit.communication.exchange import InProcessExchange
from tacit.communication.exchange.protocol import everybody
from tacit.data import StackedData
from tacit.errors import InputError
from tacit.report.documents.claims import Attack, Comparison
from tacit.training.job import DTYPES
from tacit.training.plan import Plan

Array = NDArray[np.float64]
LEAST, MOST_NUMBERS = 32, 4 * 10**7  # signals of a node; numbers of all noise: some ten seconds
DRAWN_SHARE = 0.1  # of the error: that more signals were drawn than `most_drawn` says


def signals_attack(
    plan: Plan,
    target: Target,
    signals: int,
    seed: int,
    context: ContextFactory,
    on_step: Callable[[int, int], None] = lambda done, total: None,
) -> Attack:
    """The lower bound that one run with about so many signals in all proves.

    Raises:
        InputError: on `signals`, for a mechanism that is not made of seen, sampled Gaussian sums.
    """
    mechanism = plan.release.assumed_mechanism(target.node, [(0, target.steps)])
    releases, clip = plan.config.algorithm.definition.releases, plan.release.clip
    fits = mechanism.kind in ("gaussian", "sampled-gaussian") and releases.bound_is_tight
    fits = fits and problem_of(plan, mechanism) == ALONE and clip.norm != "coordinate"
    if not (fits and clip.enforced and plan.release.pairs is None and rule_of(plan) is None):
        raise InputError(
            "signals",
            signals,
            "are for messages that are noised sums of single records' clipped gradients, by coins "
            "or of all, add-or-remove-one, under each node's own Gaussian noise: leave them out",
        )
    each = min(-(-signals // len(target.nodes)), MOST_NUMBERS // (target.steps * len(plan.nodes)))
    included = np.random.default_rng(seed).random((len(plan.nodes), max(LEAST, each))) < 0.5
    scores, drawn = _listened(plan, target, included, seed, context, on_step)
    counted = included[list(target.nodes)]
    rate = target.node.rate

    def bound(confidence: float) -> tuple[float, float | None]:
        alpha = 1 - confidence
        most = most_drawn(drawn, counted.sum(axis=1), rate, DRAWN_SHARE * alpha)
        rest = alpha if rate == 1 else (1 - DRAWN_SHARE) * alpha
        loud = loudness(scores[counted], scores[~counted], rest)
        if loud <= 0:
            return 0.0, None
        factor = most / loud
        node = replace(target.node, noise_scale=target.node.noise_scale * factor)
        quieter = plan.release.assumed_mechanism(node, [(0, target.steps)])
        return privacy.epsilon_bounds(quieter, delta=target.delta)[0], factor

    (epsilon, factor), (surely, _) = bound(target.confidence), bound(ALARM_CONFIDENCE)
    certified = target.certificate[target.delta]
    return Attack(
        name="Gaussian signals in one run",
        statistic="mean over deviation",
        method="gaussian-signals",
        epsilon=epsilon,
        hardest=Comparison(delta=target.delta, epsilon=epsilon, certified=certified),
        confidence=target.confidence,
        repetitions=counted.size,
        guesses={} if factor is None else {"noise less than": factor},
        alarm=surely > certified,
    )


def loudness(present: Array, absent: Array, alpha: float) -> float:
    """What the expected sum of `present` exceeds, over tau sqrt(its length), but for `alpha`; 0+.

    If absent scores are Normal(0, tau^2), and present ones so about means with the sum S, given the
    means, then sqrt(m) mean(present) / sqrt(mean(absent^2)) is noncentral t with as many degrees of
    freedom as there are absent ones, about S / (tau sqrt(m)). Returned is S / tau, at least.
    """
    deviation = math.sqrt(float(np.mean(absent**2)))
    found = float(present.sum()) / (math.sqrt(len(present)) * deviation)

    def excess(centre: float) -> float:
        return float(nct.sf(found, len(absent), centre)) - alpha

    if not excess(0.0) < 0:
        return 0.0
    centre = float(brentq(excess, 0.0, 2 * found + 10, xtol=1e-10))
    return centre * math.sqrt(len(present)) * (1 - 1e-9)


def most_drawn(moves: Sequence[Array], counts: Sequence[int], rate: float, alpha: float) -> float:
    """What the sum of all means does not exceed, but for `alpha`: Chernoff's bound; all at rate 1.

    `moves` are, of each node, what a draw adds to a score at each of its steps, and `counts` how
    many signals it has.
    """
    if rate == 1:
        return math.fsum(n * float(move.sum()) for n, move in zip(counts, moves, strict=True))

    def limit(log: float) -> float:
        tilt = math.exp(log)
        grown = (np.log1p(rate * np.expm1(tilt * move)).sum() for move in moves)
        total = math.fsum(n * float(g) for n, g in zip(counts, grown, strict=True))
        return (total - math.log(alpha)) / tilt

    largest = max(float(move.max()) for move in moves)
    bounds = (-12.0 - math.log(largest), 3.0 - math.log(largest))
    return float(minimize_scalar(limit, bounds=bounds, method="bounded").fun)


def _listened(
    plan: Plan,
    target: Target,
    included: NDArray[np.bool_],
    seed: int,
    context: ContextFactory,
    on_step: Callable[[int, int], None],
) -> tuple[Array, list[Array]]:
    """Scores `[audited nodes, signals]` of one run, and what a draw adds to them at each step.

    A score is the sum over steps of what was released along a signal, in units of its planned
    noise, with weights that are best where the noise is small beside no step, and of square 1.
    """
    width, train = included.shape[1], plan.config.train
    sizes = torch.from_numpy(included.sum(axis=1))
    dtype, device = DTYPES[train.dtype], torch.device(train.device)
    length = HUGE * max(map(plan.release.clip.attacked, range(target.steps)))
    inputs = length * torch.eye(width, dtype=dtype)[torch.from_numpy(included.nonzero()[1])]
    offsets = sizes.cumsum(0) - sizes
    held = [one.to(device) for one in (inputs, torch.arange(len(inputs)), offsets, sizes)]
    data = StackedData(held[0], held[1], held[2], held[3])
    here = tuple(
        replace(node, records=int(size)) for node, size in zip(plan.nodes, sizes, strict=True)
    )
    moves = np.array(
        [
            [1 / plan.release.own_multiplier(plan.nodes[node], k) for k in range(target.steps)]
            for node in target.nodes
        ]
    )
    for row, node in enumerate(target.nodes):
        active = set(plan.release.active_steps(plan.nodes[node], [(0, target.steps)]))
        moves[row, [k for k in range(target.steps) if k not in active]] = 0.0
    weights = moves / np.sqrt((moves**2).sum(axis=1, keepdims=True))
    scores = np.zeros((len(target.nodes), width))

    def heard(k: int, points: torch.Tensor, trace: Trace) -> None:
        for release in trace.releases:
            values = release.after.double().cpu().numpy() / release.deviations[:, None]
            for row, node in enumerate(target.nodes):
                if node in release.nodes:
                    scores[row] += weights[row, k] * values[release.nodes.index(node)]
        trace.forget()
        on_step(k + 1, target.steps)

    exchange = InProcessExchange(
        plan.mixing.weights,
        dtype=dtype,
        device=device,
        active=everybody if plan.release.activity is None else plan.release.active,
        rounds=plan.rounds,
    )
    run_traced(
        seeded(replace(plan, nodes=here), seed),
        linear_model(dtype, device, width=width),
        data,
        exchange,
        context=context,
        steps=target.steps,
        on_step=heard,
    )
    falls = plan.config.algorithm.definition.releases.falls
    return (-scores if falls else scores), list(weights * moves)
