"""The noise of every private algorithm, where it enters.

Gradients that are exactly zero leave nothing else to see.
"""

import functools
import math
from types import MappingProxyType

import numpy as np
import pytest
import torch
from battery_experiments import (
    DECAY,
    DELTA,
    GROWTH,
    active,
    bounds,
    clipped_schedules,
    experiment,
    levels,
    single_step,
)
from battery_table import NOISED, ROWS, Seen
from dp_accounting.pld.privacy_loss_distribution import from_laplace_mechanism
from scipy.optimize import brentq
from scipy.stats import kstest, laplace, norm
from torch import nn

import tacit
from tacit.algorithms import ALGORITHMS
from tacit.config import load_config
from tacit.privacy.noise.independent import LAPLACE
from tacit.training.prepare import prepare

STEPS = 3
INPUTS = 4000
FEW_INPUTS = 63
RECORDS = (2, 3, 5)
CLIP = 0.5

CLIPS = {
    "dyn-c": lambda k: CLIP * DECAY ** (-k / STEPS),
    "dyn-d2p": lambda k: CLIP * DECAY ** (-k / STEPS),
    "dyn-general": lambda k: bounds(STEPS)[k],
}


def after_refreshes(refreshed, others, moved):
    """Noise of other rounds over that of refreshes that leaves least in the sum of directions.

    For a v + b w to be least while r / v + s moved^2 / w is fixed, v and w the variances of r
    refreshes and of s other rounds, a and b how often they are in the sum: w / v is moved times
    the root of (s a) / (r b).

    Args:
        refreshed, others: how often the noise of each such round is in the sum.
        moved: how far a record moves another round, over a refresh.
    """
    a, b = (sum(weight**2 for weight in part) for part in (refreshed, others))
    return math.sqrt(moved * math.sqrt(len(others) * a / (len(refreshed) * b)))


RELATIVE_NOISE = {
    "dyn-c": lambda k: DECAY ** (-k / STEPS),
    "dyn-mu": lambda k: GROWTH ** (-k / STEPS),
    "dyn-d2p": lambda k: (DECAY * GROWTH) ** (-k / STEPS),
    "dyn-general": lambda k: levels(STEPS)[k],
    "dpdo": lambda k: (0.8 / 0.7) ** k,
    "dp-madmm-gradient": lambda k: 1.01**k,
    "dp-srm": lambda k: after_refreshes([2.71], [1.9, 1], 1.9) if k else 1.0,
    "ldp-svrg": lambda k: after_refreshes([2, 1], [1], 2) if k == 1 else 1.0,
    "ldp-spider": lambda k: after_refreshes([2, 1], [1], 2) if k == 1 else 1.0,
}
"""Planned standard deviation of step k's noise over that of step 0; 1 for all others."""

PARTLY = {"activation": 0.5, "clients_per_round": 2}
"""Options with which only some nodes take part in a step."""

LAPLACE = [case for case in NOISED if ALGORITHMS[ROWS[case].name].releases.noise is LAPLACE]


def still_module(case):
    """None: the linear model of the table. Moments are of as many numbers for fewer inputs."""
    return None if ROWS[case].trains else nn.Linear(FEW_INPUTS, 1, bias=False)


def still_records(case):
    if not ROWS[case].trains:  # moments of nothing but zeros
        return [(torch.zeros(count, FEW_INPUTS), torch.zeros(count, 1)) for count in RECORDS]
    draw = torch.Generator().manual_seed(2)
    return [
        (torch.randn(count, INPUTS, generator=draw), torch.zeros(count, 1)) for count in RECORDS
    ]


def still(case, privacy, steps=STEPS, options=MappingProxyType({})):
    """A linear model that is zero, and targets that are zero: no gradient at the start."""
    config = experiment(
        case,
        loss="mse",
        model="linear",
        steps=steps,
        graph="complete" if steps == 1 else None,
        options={"learning_rate": 1.0, **clipped_schedules(case, steps, CLIP), **options},
        privacy={"noise_seed": 3, "delta": DELTA, **privacy},
    )
    config["nodes"] = {"weights": "equal"}  # sizes are another test's: test_algorithms_weights.py
    settings = load_config(config, count=len(RECORDS))
    return prepare(settings, nodes=still_records(case), model=still_module(case))


def injected(case, job, k):
    """Each node's noise of step k in the batch mean, `[nodes, d]`: the step alone, un-mixed."""
    _, state, messages = single_step(job, k)
    noise = NOISED[case].noise(Seen(k, state, messages))
    return np.broadcast_to(noise, (len(RECORDS), noise.shape[1]))


def planned(case, job, k):
    """Its standard deviation (Laplace: its scale), as the plan and the row have it; 0: inactive."""
    relative = NOISED[case].relative(k, job.plan.steps)
    return [
        taking_part * relative * job.plan.release.noise_std(node, k) / node.records
        for taking_part, node in zip(active(job, k), job.plan.nodes, strict=True)
    ]


def assert_deviations(case, noise, expected):
    """Within 4 standard errors of each node's planned standard deviation, and without a mean."""
    count = noise.shape[1]
    # Of a standard deviation over itself: sqrt((kurtosis - 1) / 4n), the kurtosis being 3 or 6.
    wide, error = (math.sqrt(2), 1.25) if case in LAPLACE else (1.0, 0.5)
    for row, unit in zip(noise, expected, strict=True):
        std = wide * unit
        assert row.std() == pytest.approx(std, rel=4 * math.sqrt(error / count), abs=1e-15)
        assert abs(row.mean()) <= 4 * std / math.sqrt(count)


# What schedules of noise cost: oracles of their own. `shares` are shifts over noise, step by step.


def gaussian_delta(shares, epsilon):
    """Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2); squares add up to that of mu."""
    mu = math.sqrt(math.fsum(share**2 for share in shares))
    first = norm.cdf(-epsilon / mu + mu / 2)
    return float(first - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2))


def gaussian_cost(shares):
    return float(brentq(lambda epsilon: gaussian_delta(shares, epsilon) - DELTA, 1e-6, 50.0))


def laplace_cost(shares):
    parts = [from_laplace_mechanism(1 / share, use_connect_dots=True) for share in shares]
    whole = functools.reduce(lambda one, other: one.compose(other), parts)
    return float(whole.get_epsilon_for_delta(DELTA))


COSTS = {"gaussian": gaussian_cost, "laplace": laplace_cost}


@pytest.mark.parametrize("case", NOISED)
def test_noise_std_is_that_of_the_batch_mean_at_the_first_step(case):
    job = still(case, {"noise_std": 0.05})
    relative = RELATIVE_NOISE.get(case, lambda k: 1.0)
    for k in range(STEPS):
        unit = 0.05 * NOISED[case].relative(k, STEPS) * relative(k) / relative(0)
        expected = [unit * taking_part for taking_part in active(job, k)]
        assert planned(case, job, k) == pytest.approx(expected)
        assert_deviations(case, injected(case, job, k), expected)


@pytest.mark.parametrize("case", NOISED)
def test_each_nodes_budget_sets_its_noise(case):
    budgets = [0.5, 1.0, 3.0]
    job, release = still(case, {"epsilon": budgets}), NOISED[case]
    relative = RELATIVE_NOISE.get(case, lambda k: 1.0)
    clip = CLIPS.get(case, lambda k: CLIP)
    units = [planned(case, job, k) for k in range(STEPS)]
    for k in range(STEPS):
        assert_deviations(case, injected(case, job, k), units[k])
    for node, budget in zip(job.plan.nodes, budgets, strict=True):
        there = [k for k in range(STEPS) if units[k][node.node] > 0]
        assert node.epsilon is not None
        assert 0.995 * budget < node.epsilon <= budget if there else node.epsilon == 0
        found = [units[k][node.node] / release.relative(k, STEPS) / relative(k) for k in there]
        assert found == pytest.approx(found[:1] * len(there))
        if release.shift is None or not there:
            continue
        shares = [release.shift(node.records, k) * clip(k) / units[k][node.node] for k in there]
        cost = COSTS[ALGORITHMS[ROWS[case].name].releases.noise.name](shares)
        assert cost == pytest.approx(budget, rel=5e-3)
    assert sum(taking_part for k in range(STEPS) for taking_part in active(job, k)) >= STEPS


@pytest.mark.parametrize("case", NOISED)
def test_a_trained_step_holds_that_noise(case):
    job, release = still(case, {"noise_std": 0.05}, steps=1), NOISED[case]
    config = experiment(
        case,
        loss="mse",
        model="linear",
        steps=1,
        graph="complete",
        options={"learning_rate": 1.0, **clipped_schedules(case, 1, CLIP)},
        privacy={"noise_seed": 3, "noise_std": 0.05, "delta": DELTA},
    )
    config["nodes"] = {"weights": "equal"}
    found = tacit.train(config, nodes=still_records(case), model=still_module(case))
    drawn = injected(case, job, 0)
    models = release.models(drawn)
    common = models.mean(axis=0) if release.consensus is None else release.consensus(drawn)
    assert np.abs(common).max() > 1e-3
    np.testing.assert_allclose(found.parameters.numpy(), models, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.consensus.numpy(), common, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("case", NOISED)
def test_noise_of_nodes_and_steps_is_uncorrelated(case):
    job = still(case, {"noise_std": 0.05})
    rows = np.concatenate([injected(case, job, k)[active(job, k)] for k in range(STEPS)])
    correlations = np.corrcoef(rows)[np.triu_indices(len(rows), 1)]
    assert len(rows) == STEPS * len(RECORDS) or job.plan.release.activity is not None
    assert len(correlations) >= 3
    assert np.abs(correlations).max() < 4.5 / math.sqrt(rows.shape[1])


@pytest.mark.parametrize(
    ("case", "key"),
    [(case, key) for key in PARTLY for case in NOISED
     if key in ALGORITHMS[ROWS[case].name].options.model_fields],
)  # fmt: skip
def test_a_node_that_takes_no_part_releases_nothing_and_spends_nothing(case, key):
    budget = {"epsilon": 1.0}
    job = still(case, budget, options={key: PARTLY[key]})
    for k in range(STEPS):
        noise, flags = injected(case, job, k), active(job, k)
        assert_deviations(case, noise, planned(case, job, k))
        assert not noise[~flags].any()
        assert key == "activation" or flags.sum() == PARTLY[key]
    counts = np.sum([active(job, k) for k in range(STEPS)], axis=0)
    assert 0 < counts.sum() < STEPS * len(RECORDS)
    shift = NOISED[case].shift
    for node, count in zip(job.plan.nodes, counts, strict=True):
        # The fewer the steps, the less noise for the same budget.
        assert node.epsilon == pytest.approx(1.0 if count else 0.0, rel=5e-3)
        if not count or shift is None:
            continue
        if case in RELATIVE_NOISE:
            units = [planned(case, job, k)[node.node] for k in range(STEPS)]
            shares = [shift(node.records, k) * CLIP / unit for k, unit in enumerate(units) if unit]
            assert gaussian_cost(shares) == pytest.approx(1.0, rel=5e-3)
            continue
        same = still(case, budget, steps=int(count)).plan.nodes[node.node].noise_scale
        assert node.noise_scale == pytest.approx(same, rel=5e-3)


@pytest.mark.parametrize("case", NOISED)
def test_noise_has_the_law_that_is_accounted(case):
    job = still(case, {"noise_std": 0.05})
    law = laplace if case in LAPLACE else norm
    k = 1 if ROWS[case].trains else 0
    for node in np.flatnonzero(active(job, k)):
        noise, unit = injected(case, job, k)[node], planned(case, job, k)[node]
        assert kstest(noise, law(scale=unit).cdf).pvalue > 1e-4
