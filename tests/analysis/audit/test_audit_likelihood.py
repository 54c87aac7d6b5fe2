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
    FLIPPED,
    FLIPPED_REPLACED,
    OUTVOTED,
    REPLACED,
    REPLACED_IN_BATCH,
    WIDTH,
    Problem,
    law_of,
    problem_of,
    set_up,
)
from tacit.analysis.audit.likelihood import Known, known_of, likelihood_ratio
from tacit.training.stacked_context import StackedContext

STEPS, NODES = 4, 6
RATE = 0.3
MU = np.array([0.5, 1.0, 2.0, 0.8])
SIGNS = np.array([1.0, -1.0, 1.0, -1.0])
OLDER = np.array([1.0, 1.0, -1.0, 1.0])
TIED = ("table", "carried")  # coins of several steps are, which the ratio leaves out

Outcomes = Iterator[tuple[float, np.ndarray]]
"""(chance, what is added to the releases `[steps]`) of every outcome of the coins."""


def released(y):
    whole = np.zeros((*y.shape, WIDTH))
    whole[:, :, 0] = y
    return whole


def coins(count=STEPS, rate=RATE):
    for pattern in itertools.product((0, 1), repeat=count):
        yield float(np.prod([rate if hit else 1 - rate for hit in pattern])), pattern


def log_mean(y, outcomes, density):
    """log of the density of y `[steps, nodes]`, over all outcomes."""
    total = sum(
        chance * np.prod(density(y - places[:, None]), axis=0) for chance, places in outcomes
    )
    return np.asarray(np.log(total))


def sampled(y_places):
    for chance, pattern in coins():
        yield chance, y_places(np.asarray(pattern, float))


def nothing():
    yield 1.0, np.zeros(STEPS)


def of_a_table(side, difference=2.0):
    """What a table of one record's gradient adds that was never drawn before the step."""
    moved = np.clip(SIGNS - OLDER, -difference, difference)
    return sampled(lambda hits: MU * side * (RATE * OLDER + moved * hits))


def of_anchors(side, kept):
    """Anchors at even steps (`kept` 0), or snapshots, whose share of a gradient is `kept`."""
    for chance, pattern in coins():
        places = []
        for k, hit in enumerate(pattern):
            at = SIGNS[k // 2 * 2]
            if k % 2 == 0:
                places.append(MU[k] * side * (kept * at if kept else at))
            else:
                places.append(MU[k] * side * (kept * at + hit * (SIGNS[k] - at)))
        yield chance, np.asarray(places)


def of_local_steps(side):
    """Two mini-batches a step that share no record, of sizes 1 and 1/2."""
    single = [(1 - 2 * RATE, 0.0), (RATE, 1.0), (RATE, 0.5)]
    for outcome in itertools.product(single, repeat=STEPS):
        chance = float(np.prod([each for each, _ in outcome]))
        yield chance, side * MU * np.asarray([size for _, size in outcome])


def of_changes(present):
    """One end where the canary is drawn, the other one else, or nothing if nobody is."""
    single = [(0.9, -1.0), (0.1, 0.0)]
    if present:
        single = [(RATE, 1.0), ((1 - RATE) * 0.9, -1.0), ((1 - RATE) * 0.1, 0.0)]
    for outcome in itertools.product(single, repeat=STEPS):
        chance = float(np.prod([each for each, _ in outcome]))
        yield chance, MU * np.asarray([size for _, size in outcome])


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
    known = Known(rate=1 / steps, batch=5.0, mu=MU, sizes=np.ones((STEPS, 1)), epoch=steps)
    wanted = log_mean(y, of_epochs(steps), norm.pdf) - log_mean(y, nothing(), norm.pdf)
    found = likelihood_ratio(ALONE)(released(y), known)
    assert found == pytest.approx(wanted, abs=1e-9)


def known(**more):
    return Known(
        rate=RATE, batch=2.0, mu=MU, **{"signs": SIGNS, "older": np.ones(STEPS), "every": 2, **more}
    )


LOCAL = {
    "law": "iterates",
    "draws": ((1 - 2 * RATE, (0, 0)), (RATE, (1, 0)), (RATE, (0, 1))),
    "sizes": np.tile([1.0, 0.5], (STEPS, 1)),
}
TABLE = {"law": "table", "older": OLDER, "every": STEPS}

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
        known(),
        lambda: sampled(lambda hits: MU * (2 * hits - 2)),
        lambda: iter([(1.0, -2 * MU)]),
    ),
    "local steps": (ALONE, known(**LOCAL), lambda: of_local_steps(1), nothing),
    "table": (FLIPPED, known(**TABLE), lambda: of_a_table(1), nothing),
    "table, clipped difference": (
        FLIPPED,
        known(**TABLE, difference=0.7),
        lambda: of_a_table(1, 0.7),
        nothing,
    ),
    "table, replaced": (
        FLIPPED_REPLACED,
        known(**TABLE),
        lambda: of_a_table(1),
        lambda: of_a_table(-1),
    ),
    "snapshot": (FLIPPED, known(law="snapshot"), lambda: of_anchors(1, RATE), nothing),
    "anchors": (FLIPPED, known(law="anchors"), lambda: of_anchors(1, 0.0), nothing),
    "anchors, replaced": (
        FLIPPED_REPLACED,
        known(law="anchors"),
        lambda: of_anchors(1, 0.0),
        lambda: of_anchors(-1, 0.0),
    ),
    "change": (
        OUTVOTED,
        known(law="change", nobody=0.1),
        lambda: of_changes(True),
        lambda: of_changes(False),
    ),
    "laplace": (ALONE, known(noise="laplace"), lambda: sampled(lambda hits: MU * hits), nothing),
}


@pytest.mark.parametrize("case", CASES)
def test_all_coins_are_summed_over(case):
    problem, beforehand, present, absent = CASES[case]
    y = np.random.default_rng(3).normal(scale=2.0, size=(STEPS, NODES))
    density = laplace.pdf if beforehand.noise == "laplace" else norm.pdf
    right = log_mean(y, present(), density) - log_mean(y, absent(), density)
    found = likelihood_ratio(problem)(released(y), beforehand)
    np.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", ["poisson", "table", "laplace"])
def test_what_was_not_seen_says_nothing(case):
    """A node that was silent in the last steps is one of fewer steps."""
    problem, beforehand, present, _ = CASES[case]
    y = np.random.default_rng(4).normal(size=(STEPS, NODES))
    hidden = y.copy()
    hidden[2:] = np.nan
    density = laplace.pdf if beforehand.noise == "laplace" else norm.pdf
    shorter = ((chance, places[:2]) for chance, places in present())
    right = log_mean(y[:2], shorter, density) - np.log(np.prod(density(y[:2]), axis=0))
    found = likelihood_ratio(problem)(released(hidden), beforehand)
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
    node = plan.nodes[0]
    in_batch = sampling == "fixed" and node.rate < 1
    problem = problem_of(law_of(plan), zero_out=sampling == "poisson", in_batch=in_batch)
    observed = set_up(plan, 4, 1024, StackedContext).observe(problem, 3)
    scores = likelihood_ratio(problem)(
        observed.y, known_of(plan, node, observed.deviations_of(range(len(plan.nodes))))
    )
    on, off = scores[observed.inserted], scores[~observed.inserted]
    for cut in () if law_of(plan) in TIED else (-2.0, -0.5, 0.5, 2.0):
        left, right = np.exp(np.minimum(off, cut)), np.exp(np.minimum(0.0, cut - on))
        spread = np.sqrt(left.var() / len(left) + right.var() / len(right))
        assert abs(left.mean() - right.mean()) < 5 * spread + 1e-6, cut
    # Whoever holds the canary is told from who does not.
    assert on.mean() - off.mean() > 5 * np.sqrt(on.var() / len(on) + off.var() / len(off))
