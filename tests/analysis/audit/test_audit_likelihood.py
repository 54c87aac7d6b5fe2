"""The likelihood ratio with secret coins marginalised, against sums over all coins."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from audit_bugs import job_of
from scipy.stats import laplace, norm

from tacit.algorithms import ALGORITHMS
from tacit.analysis.audit.laboratory import (
    ALONE,
    OUTVOTED,
    OUTVOTED_REPLACED,
    REPLACED,
    REPLACED_IN_BATCH,
    WIDTH,
    Problem,
    problem_of,
    set_up,
)
from tacit.analysis.audit.likelihood import Known, known_of, likelihood_ratio
from tacit.training.stacked_context import StackedContext

STEPS, NODES = 4, 6
RATE = 0.3
MU = np.array([0.5, 1.0, 2.0, 0.8])
SIGNS = np.array([1.0, -1.0, 1.0, -1.0])

Outcomes = Iterator[tuple[float, np.ndarray]]
"""(chance, what is added to the releases `[steps]`) of every outcome of the coins."""


def released(y):
    whole = np.zeros((*y.shape, WIDTH))
    whole[:, :, 0] = y
    return whole


def coins(rates):
    for pattern in itertools.product((0, 1), repeat=STEPS):
        pairs = zip(pattern, rates, strict=True)
        yield float(np.prod([rate if hit else 1 - rate for hit, rate in pairs])), pattern


def log_mean(y, outcomes, density):
    """log of the density of y `[steps, nodes]`, over all outcomes."""
    total = sum(
        chance * np.prod(density(y - places[:, None]), axis=0) for chance, places in outcomes
    )
    return np.asarray(np.log(total))


def sampled(y_places, rates=(RATE,) * STEPS):
    for chance, pattern in coins(rates):
        yield chance, y_places(np.asarray(pattern, float))


def nothing():
    yield 1.0, np.zeros(STEPS)


def kept(hits):
    """What a record moves by private state: one way where it is drawn, the other way elsewhere."""
    return SIGNS * MU * (1.7 * hits - 0.3 * (1 - hits))


def of_epochs(steps):
    """One step of each epoch draws the record; the last epoch may be cut off."""
    lengths = [min(steps, STEPS - first) for first in range(0, STEPS, steps)]
    for places in itertools.product(range(steps), repeat=len(lengths)):
        hits = np.zeros(STEPS)
        for epoch, place in enumerate(places):
            if place < lengths[epoch]:
                hits[epoch * steps + place] = 1.0
        yield steps ** -float(len(lengths)), MU * hits


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_one_step_of_each_epoch(steps):
    y = np.random.default_rng(steps).normal(size=(STEPS, NODES)) * 2
    beforehand = known(rate=np.full(STEPS, 1 / steps), epoch=steps)
    wanted = log_mean(y, of_epochs(steps), norm.pdf) - log_mean(y, nothing(), norm.pdf)
    found = likelihood_ratio(ALONE, released(y), beforehand)
    assert found == pytest.approx(wanted, abs=1e-9)


def known(**more):
    return Known(
        **{
            "rate": np.full(STEPS, RATE),
            "drawn": MU,
            "undrawn": np.zeros(STEPS),
            "signs": np.ones(STEPS),
            "batch": 2.0,
            **more,
        }
    )


STATE = {"drawn": 1.7 * MU, "undrawn": 0.3 * MU, "signs": SIGNS}
AT_TIMES = np.array([1.0, RATE, 1.0, RATE])  # anchors are of every record

CASES: Mapping[str, tuple[Problem, Known, Callable[[], Outcomes], Callable[[], Outcomes]]] = {
    "poisson": (ALONE, known(), lambda: sampled(lambda hits: MU * hits), nothing),
    "poisson, replaced": (
        REPLACED,
        known(),
        lambda: sampled(lambda hits: MU * hits),
        lambda: sampled(lambda hits: -MU * hits),
    ),
    "fixed batch": (
        REPLACED_IN_BATCH,
        known(alone=2.0),
        lambda: sampled(lambda hits: MU * (2 * hits - 2)),
        lambda: iter([(1.0, -2 * MU)]),
    ),
    "private state": (ALONE, known(**STATE), lambda: sampled(kept), nothing),
    "private state, replaced": (
        REPLACED,
        known(**STATE),
        lambda: sampled(kept),
        lambda: sampled(lambda hits: -kept(hits)),
    ),
    "anchors": (
        ALONE,
        known(rate=AT_TIMES, signs=-SIGNS),
        lambda: sampled(lambda hits: -SIGNS * MU * hits, AT_TIMES),
        nothing,
    ),
    "change": (
        OUTVOTED,
        known(drawn=2 * MU),
        lambda: sampled(lambda hits: MU * (2 * hits - 1)),
        lambda: iter([(1.0, -MU)]),
    ),
    "change, replaced": (
        OUTVOTED_REPLACED,
        known(alone=2.0),
        lambda: sampled(lambda hits: MU * (2 * hits - 1)),
        lambda: iter([(1.0, -MU)]),
    ),
    "laplace": (ALONE, known(noise="laplace"), lambda: sampled(lambda hits: MU * hits), nothing),
}


@pytest.mark.parametrize("case", CASES)
def test_all_coins_are_summed_over(case):
    problem, beforehand, present, absent = CASES[case]
    y = np.random.default_rng(3).normal(scale=2.0, size=(STEPS, NODES))
    density = laplace.pdf if beforehand.noise == "laplace" else norm.pdf
    right = log_mean(y, present(), density) - log_mean(y, absent(), density)
    found = likelihood_ratio(problem, released(y), beforehand)
    np.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", ["poisson", "private state", "laplace"])
def test_what_was_not_seen_says_nothing(case):
    """A node that was silent in the last steps is one of fewer steps."""
    problem, beforehand, present, _ = CASES[case]
    y = np.random.default_rng(4).normal(size=(STEPS, NODES))
    hidden = y.copy()
    hidden[2:] = np.nan
    density = laplace.pdf if beforehand.noise == "laplace" else norm.pdf
    shorter = ((chance, places[:2]) for chance, places in present())
    right = log_mean(y[:2], shorter, density) - np.log(np.prod(density(y[:2]), axis=0))
    found = likelihood_ratio(problem, released(hidden), beforehand)
    np.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-9)


# What really runs.

NOISE = 0.7  # over the clipping bound

RUNS: list[tuple[str, dict[str, Any], str, Any]] = [
    ("privsgp", {"momentum": 0.5}, "poisson", 10),
    ("privsgp", {}, "fixed", 10),
    ("dyn-d2p", {"clip_decay": 3.0}, "replaced", 10),
    ("dp2-sgd", {"clip_norm": "coordinate"}, "poisson", 10),
    ("privsgp-vr", {"state": "private"}, "poisson", 10),
    ("privsgp-vr", {"state": "private", "clip_difference": 0.4}, "replaced", 10),
    ("privsgp-vr", {"state": "private", "table_batch": 4}, "poisson", 10),
    ("privsgp-vr", {"state": "private"}, "fixed", 10),
    ("privsgp-vr", {"anchor_every": 2}, "poisson", 10),
    ("soteriafl-saga", {"compressor": "rand-k", "keep": 0.5}, "poisson", 10),
    ("soteriafl-svrg", {"state": "private", "anchor_every": 2}, "poisson", 10),
    ("soteriafl-svrg", {"anchor_every": 3}, "fixed", 10),
    ("dp-srm", {"gradient_share": 0.3}, "poisson", 10),
    ("dp-srm", {"clip_difference": 0.4}, "replaced", 10),
    ("ldp-svrg", {"anchor_every": 2}, "poisson", 10),
    ("ldp-spider", {"anchor_every": 3}, "poisson", 10),
    ("ldp-spider", {"anchor_every": 5, "clip_difference": 0.5}, "fixed", 10),
    ("do-adp", {"compressor": "rand-k", "keep": 0.5, "activation": 0.7}, "poisson", 10),
    ("do-adp", {"compressor": "rand-k", "keep": 0.5, "momentum": 0.5}, "poisson", "all"),
    ("dp-dda", {"activation": 0.6}, "poisson", 10),
    ("adp2-sgd", {}, "poisson", 10),
    ("dpdo", {}, "poisson", 10),
    ("cpgt", {"compressor": "rand-k", "keep": 0.5}, "replaced", "all"),
    ("ddp-admm-gradient", {"penalty": 3.0}, "fixed", 10),
    ("dp-madmm-gradient", {"penalty_growth": 1.2, "dual_step": 0.4}, "poisson", 10),
    ("dp-radmm-gradient", {}, "replaced", "all"),
    ("dp-sgd", {"clients_per_round": 2}, "poisson", 10),
    ("dp-admm", {}, "poisson", 10),
    ("dp-fedavg", {"local_steps": 2}, "poisson", 2),
    ("dp-fedavg", {"local_steps": 2, "sampling": "with-replacement"}, "fixed", 5),
    ("fedspd-dp", {"local_steps": 2}, "poisson", 10),
    ("fedspd-dp", {"local_steps": 2}, "fixed", 10),
    ("fedspd-dp", {"state": "private", "local_steps": 2}, "poisson", 10),
    ("fedspd-dp", {"state": "private"}, "replaced", "all"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "sampling", "batch"), RUNS)
def test_the_ratio_is_that_of_what_is_released(name, options, sampling, batch):
    """The mean of P / P' under P' is 1, and of P' / P under P, whatever the two are.

    Bounded, so that few samples show it: with r = log(P / P'), the mean under P' of min(e^r, c) is
    that under P of min(1, c e^-r), for every c.
    """
    gossip = ALGORITHMS[name].graph.weights == "doubly-stochastic"
    relation = "add-or-remove-one" if sampling == "poisson" else "replace-one"
    # A change of a model is noised itself, all else is a sum over a batch.
    divisor = 1 if name == "dp-fedavg" else 40 if batch == "all" else batch
    plan = job_of(
        algorithm={"name": name, "clip": 1.0, **options},
        topology={"graph": "ring"} if gossip else {},
        privacy={"epsilon": None, "noise_std": NOISE / divisor, "relation": relation},
        nodes=4,
        steps=4,
        batch=batch,
        sampling="fixed" if sampling == "fixed" else "poisson",
    ).plan
    mechanism = plan.release.mechanism(plan.nodes[0])
    problem = problem_of(plan, mechanism)
    observed = set_up(plan, 4, 1024, StackedContext).observe(problem, 3)
    beforehand = known_of(plan, plan.nodes[0], observed.whole)
    scores = likelihood_ratio(problem, observed.y, beforehand)
    on, off = scores[observed.inserted], scores[~observed.inserted]
    # A private state ties coins, its bounds are of all losses, and a batch of nobody moves nothing.
    other = mechanism.kind == "private-state" or name in ("fedspd-dp", "dp-fedavg")
    for cut in () if other else (-2.0, -0.5, 0.5, 2.0):
        left, right = np.exp(np.minimum(off, cut)), np.exp(np.minimum(0.0, cut - on))
        spread = np.sqrt(left.var() / len(left) + right.var() / len(right))
        assert abs(left.mean() - right.mean()) < 5 * spread + 1e-6, cut
    # Whoever holds the canary is told from who does not.
    assert on.mean() - off.mean() > 5 * np.sqrt(on.var() / len(on) + off.var() / len(off))
