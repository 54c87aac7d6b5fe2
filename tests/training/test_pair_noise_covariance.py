"""Real draws of pairwise noise against the covariance that proofs start from, entry by entry."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tacit.communication.exchange import InProcessExchange
from tacit.config import load_config
from tacit.privacy.noise.draws import seeded_keys
from tacit.privacy.noise.gaussian import spacing
from tacit.privacy.noise.pairwise import seeded_pair_keys
from tacit.training.prepare import prepare
from tacit.training.stacked_context import StackedContext

RECORDS = (24, 12, 36, 18, 30)
STEPS, DRAWS = 3, 20_000
COLLUDER = 4
SCALES = torch.tensor([[1.0], [1.0], [2.5], [1.0], [0.5]], dtype=torch.float64)
# Largest difference of an estimated entry, in deviations of the estimate; of 225 entries.
MOST = 5.0


@cache
def job_of(name):
    """Five unequal nodes, all of them partners, with batches and steps that differ."""
    steps: dict[str, Any] = {"clip_decay": 3.0} if name == "dyn-d2p" else {}
    config = load_config(
        {
            "task": {"loss": "mse"},
            "topology": {"graph": "ring", "partners": "circulant:4"},
            "algorithm": {"name": name, **steps},
            "privacy": {"noise": "pairwise", "pair_noise": 3.0, "epsilon": 2.0, "delta": 1e-3},
            "train": {"steps": STEPS, "batch": "all", "dtype": "float64"},
        },
        count=len(RECORDS),
        given_model=True,
    )
    nodes = [(torch.zeros(count, 2), torch.zeros(count, 1)) for count in RECORDS]
    return prepare(config, model=nn.Linear(2, 1), nodes=nodes)


def messages(job, pairs):
    """What nodes release of sums that are zero, `[steps, nodes, draws]`, if these are the pairs."""
    noise = replace(noise_of(job), pairs=tuple(pairs)) if pairs else None
    plan = replace(job.plan, release=replace(job.plan.release, pairs=noise))
    keys, pair_keys = seeded_keys(3, range(len(RECORDS))), seeded_pair_keys(4, pairs)
    exchange = InProcessExchange(plan.mixing.weights, dtype=job.dtype, device=job.device)
    context = StackedContext(plan, job.model, job.train, keys, exchange, pair_keys=pair_keys)
    zeros = torch.zeros(len(RECORDS), DRAWS, dtype=torch.float64)
    return np.stack([context.add_noise(zeros.clone(), k, scale=SCALES) for k in range(STEPS)])


def noise_of(job):
    assert job.plan.release.pairs is not None
    return job.plan.release.pairs


def covariance(job, k, known=()):
    """Of one coordinate of step k's messages: own noise, and that of pairs which is not known."""
    release, nodes = job.plan.release, job.plan.nodes
    flags = release.active(k)
    active = [n.node for n in nodes if flags is None or flags[n.node % len(flags)]]
    scales = SCALES[:, 0].numpy()
    found = np.zeros((len(nodes), len(nodes)))
    for node in active:
        found[node, node] = (release.noise_std(nodes[node], k) * scales[node]) ** 2
    for i, j in noise_of(job).pairs:
        if i in active and j in active and not {i, j} & set(known):
            ends = np.zeros(len(nodes))
            ends[i] = scales[i] * nodes[i].divisor
            ends[j] = -scales[j] * nodes[j].divisor
            found += release.pair_noise_std(k) ** 2 * np.outer(ends, ends)
    return found


def assert_like(drawn, sigma):
    """The covariance of rows of draws, entry by entry."""
    estimated = drawn @ drawn.T / drawn.shape[1]
    variances = np.diag(sigma)
    # Lattices of spacing s add up to s^2 / 12 to a variance, 2^-12 / 12 of it, and nothing else.
    allowed = MOST * np.sqrt((np.outer(variances, variances) + sigma**2) / drawn.shape[1])
    assert (np.abs(estimated - sigma) <= allowed + 1e-4 * np.diag(variances)).all()


@pytest.mark.parametrize("name", ["dyn-d2p", "adp2-sgd"])
def test_messages_of_all_steps_have_the_covariance_of_the_theorem(name):
    job = job_of(name)
    drawn = messages(job, noise_of(job).pairs)
    sigma = np.zeros((STEPS, len(RECORDS), STEPS, len(RECORDS)))
    for k in range(STEPS):
        sigma[k, :, k] = covariance(job, k)
    assert sigma.min() < 0
    size = STEPS * len(RECORDS)
    assert_like(drawn.reshape(size, DRAWS), sigma.reshape(size, size))


def test_a_colluder_who_subtracts_what_it_knows_leaves_the_covariance_of_the_rest():
    job = job_of("dyn-d2p")
    pairs = noise_of(job).pairs
    known = messages(job, [pair for pair in pairs if COLLUDER in pair]) - messages(job, [])
    left = messages(job, pairs) - known
    for k in range(STEPS):
        assert_like(left[k, :COLLUDER], covariance(job, k, {COLLUDER})[:COLLUDER, :COLLUDER])


def test_in_the_mean_nothing_is_left_but_rounding():
    job = job_of("dyn-d2p")
    moved = messages(job, noise_of(job).pairs) - messages(job, [])
    units = SCALES[:, 0].numpy() * [node.divisor for node in job.plan.nodes]
    for k in range(STEPS):
        # Both releases of a node are rounded to its lattice.
        stds = [job.plan.release.noise_std(node, k) for node in job.plan.nodes]
        rounded = np.array(
            [spacing(std * float(scale)) for std, scale in zip(stds, SCALES, strict=True)]
        )
        means = moved[k] / units[:, None]
        assert np.abs(means.sum(0)).max() <= 1.01 * (rounded / units).sum()
        assert means.std(axis=1).min() > 20 * (rounded / units).sum()


def test_what_draws_leave_before_the_worst_colluder_is_what_is_certified():
    """The best linear estimate of a node's sum, from covariances of real draws, for each set."""
    job = job_of("dyn-d2p")
    release, nodes, pairs = job.plan.release, job.plan.nodes, noise_of(job).pairs
    assert noise_of(job).colluding == 1
    worst = np.full((STEPS, len(nodes)), np.inf)
    for colluder in range(len(nodes)):
        drawn = messages(job, [pair for pair in pairs if colluder not in pair])
        left = [node for node in range(len(nodes)) if node != colluder]
        for k in range(STEPS):
            inverse = np.linalg.inv(drawn[k, left] @ drawn[k, left].T / DRAWS)
            worst[k, left] = np.minimum(worst[k, left], np.diag(inverse) ** -0.5)
    for k in range(STEPS):
        certified = [
            release.noise_multiplier(node, k) * (release.clip.bound(k) or 1.0) * float(scale)
            for node, scale in zip(nodes, SCALES, strict=True)
        ]
        np.testing.assert_allclose(worst[k], certified, rtol=MOST / np.sqrt(2 * DRAWS))
        assert (np.array(certified) > 1.05 * np.sqrt(np.diag(covariance(job, k, range(5))))).all()
