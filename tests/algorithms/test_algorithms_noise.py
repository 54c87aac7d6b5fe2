"""The noise of every private algorithm, where it enters.

Gradients that are exactly zero leave nothing else to see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from battery_experiments import (
    DECAY,
    DELTA,
    GROWTH,
    PRIVATE,
    bounds,
    experiment,
    levels,
    schedule_options,
)
from scipy.optimize import brentq
from scipy.stats import norm

import tacit
from tacit.algorithms import ALGORITHMS
from tacit.config import load_config
from tacit.exchange import InProcessExchange
from tacit.prepare import Job, prepare
from tacit.spending import node_keys
from tacit.world import StackedWorld

STEPS = 3
INPUTS = 4000
RECORDS = (2, 3, 5)
CLIP = 0.5

CLIPS: dict[str, Callable[[int], float]] = {
    "dyn-c": lambda k: CLIP * DECAY ** (-k / STEPS),
    "dyn-d2p": lambda k: CLIP * DECAY ** (-k / STEPS),
    "dyn-general": lambda k: bounds(STEPS)[k],
}
RELATIVE_NOISE: dict[str, Callable[[int], float]] = {
    "dyn-c": lambda k: DECAY ** (-k / STEPS),
    "dyn-mu": lambda k: GROWTH ** (-k / STEPS),
    "dyn-d2p": lambda k: (DECAY * GROWTH) ** (-k / STEPS),
    "dyn-general": lambda k: levels(STEPS)[k],
}
"""Standard deviation of step k's noise over that of step 0; 1 for all others."""


def still_records() -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(2)
    return [
        (torch.randn(count, INPUTS, generator=draw), torch.zeros(count, 1)) for count in RECORDS
    ]


def still(name: str, privacy: Mapping[str, Any]) -> Job:
    """A linear model that is zero, and targets that are zero: no gradient at the start."""
    config = experiment(
        name,
        loss="mse",
        model="linear",
        steps=STEPS,
        options={"clip": CLIP, "learning_rate": 1.0, **schedule_options(name, STEPS)},
        privacy={"noise_seed": 3, "delta": DELTA, **privacy},
    )
    return prepare(load_config(config, count=len(RECORDS)), nodes=still_records())


def injected(job: Job, k: int) -> np.ndarray:
    """Each node's noise of step k in the batch mean, `[nodes, d]`: the step alone, un-mixed."""
    algorithm, options = job.config.algorithm.definition, job.config.algorithm.options
    plan = job.plan
    exchange = InProcessExchange(plan.mixing.matrices, dtype=job.dtype, device=job.device)
    world = StackedWorld(plan, job.model, job.train, node_keys(plan), exchange)
    state = algorithm.start(job.model.start(len(plan.nodes), job.dtype, job.device), options)
    moved = -algorithm.step(state, k, options, world).x.numpy()
    if algorithm.weights == "doubly-stochastic":
        return np.asarray(moved)  # the noise is added after the mixing
    return np.linalg.solve(plan.mixing.matrix(k), moved)


def assert_deviations(noise: np.ndarray, expected: list[float]) -> None:
    """Within 4 standard errors of each node's planned standard deviation, and without a mean."""
    count = noise.shape[1]
    for row, std in zip(noise, expected, strict=True):
        assert row.std() == pytest.approx(std, rel=4 / math.sqrt(2 * count))
        assert abs(row.mean()) < 4 * std / math.sqrt(count)


def gaussian_mu(epsilon: float) -> float:
    """mu with delta = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)."""

    def excess(mu: float) -> float:
        first = norm.cdf(-epsilon / mu + mu / 2)
        return float(first - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2) - DELTA)

    return float(brentq(excess, 1e-3, 50.0))


@pytest.mark.parametrize("name", PRIVATE)
def test_noise_std_is_that_of_the_batch_mean_at_the_first_step(name: str) -> None:
    job = still(name, {"noise_std": 0.05})
    relative = RELATIVE_NOISE.get(name, lambda k: 1.0)
    for k in range(STEPS):
        expected = 0.05 * relative(k) / relative(0)
        assert_deviations(injected(job, k), [expected] * len(RECORDS))


@pytest.mark.parametrize("name", PRIVATE)
def test_each_nodes_budget_sets_its_noise(name: str) -> None:
    budgets = [0.5, 1.0, 3.0]
    job = still(name, {"epsilon": budgets})
    relative = [RELATIVE_NOISE.get(name, lambda k: 1.0)(k) for k in range(STEPS)]
    clips = [CLIPS.get(name, lambda k: CLIP)(k) for k in range(STEPS)]
    # mu of step k is C_k over the noise in the sum; squares add up.
    root = math.sqrt(sum((c / r) ** 2 for c, r in zip(clips, relative, strict=True)))
    units = [
        root / gaussian_mu(budget) / count for budget, count in zip(budgets, RECORDS, strict=True)
    ]
    for k in range(STEPS):
        noise = injected(job, k)
        assert_deviations(noise, [unit * relative[k] for unit in units])
        planned = [job.plan.noise_std(node, k) / node.records for node in job.plan.nodes]
        assert planned == pytest.approx([unit * relative[k] for unit in units], rel=2e-3)


@pytest.mark.parametrize("name", PRIVATE)
def test_a_trained_step_holds_that_noise(name: str) -> None:
    job = still(name, {"noise_std": 0.05})
    options = {"clip": CLIP, "learning_rate": 1.0}
    config = experiment(
        name,
        loss="mse",
        model="linear",
        steps=1,
        graph="complete",
        options=options,
        privacy={"noise_seed": 3, "noise_std": 0.05, "delta": DELTA},
    )
    found = tacit.train(config, nodes=still_records()).parameters.numpy()
    drawn = injected(job, 0)
    if ALGORITHMS[name].weights == "column-stochastic":
        drawn = np.tile(drawn.mean(axis=0), (len(RECORDS), 1))
    np.testing.assert_allclose(found, -drawn, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", PRIVATE)
def test_noise_of_nodes_and_steps_is_uncorrelated(name: str) -> None:
    job = still(name, {"noise_std": 0.05})
    rows = np.concatenate([injected(job, k) for k in range(STEPS)])
    correlations = np.corrcoef(rows)[np.triu_indices(len(rows), 1)]
    assert len(correlations) == 36
    assert np.abs(correlations).max() < 4.5 / math.sqrt(rows.shape[1])
