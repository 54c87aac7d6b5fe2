"""A step that is run twice: what both attempts together tell, and what lost messages change."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from tacit.communication.exchange import InProcessExchange
from tacit.communication.peers import ALONE
from tacit.config import load_config
from tacit.privacy import pairwise_multipliers
from tacit.training import stacked_context
from tacit.training.budget import node_keys, pair_keys
from tacit.training.prepare import prepare
from tacit.training.stacked_context import StackedContext

NODES, DRAWS = 5, 20_000
OWN = 1.5  # of a mean's noise, over the clipping bound
# A variance of so many draws is this close, relatively, but for a chance of 1e-6 or so.
CLOSE = 5 * (2 / DRAWS) ** 0.5


def experiment(**sections):
    return {
        "task": {"loss": "mse"},
        "topology": {"graph": "complete", "rounds": 1},
        "algorithm": {"name": "privsgp", "learning_rate": 0.1},
        "privacy": {"noise": "pairwise", "pair_noise": 4.0, "noise_std": OWN, "colluding": 1},
        "train": {"steps": 4, "batch": "all", "dtype": "float64"},
        **sections,
    }


@cache
def job():
    config = load_config(experiment(), count=NODES, given_model=True)
    nodes = [(torch.zeros(10, 2), torch.zeros(10, 1)) for _ in range(NODES)]
    return prepare(config, model=nn.Linear(2, 1), nodes=nodes)


def attempts(*, reused):
    """What the nodes release of the same sums at the same step, `[2, nodes, draws]`.

    Args:
        reused: whether the second attempt has the pair keys of the first: the mistake.
    """
    plan = job().plan
    sums = torch.arange(NODES * DRAWS, dtype=torch.float64).view(NODES, DRAWS) % 7
    kept = pair_keys(plan, job().placement, ALONE)
    found = []
    for fresh in (pair_keys(plan, job().placement, ALONE), None):
        exchange = InProcessExchange(plan.mixing.weights, dtype=job().dtype, device=job().device)
        keys = kept if reused or fresh is None else fresh
        context = StackedContext(
            plan, job().model, job().train, node_keys(plan), exchange, pair_keys=keys
        )
        found.append(context.add_noise(sums.clone(), 2).numpy())
    return np.stack(found)


def covariance():
    """Of one coordinate of all messages of an attempt."""
    plan = job().plan
    pairs = plan.release.pairs
    assert pairs is not None
    own = [plan.release.noise_std(node, 2) for node in plan.nodes]
    sigma = np.diag(np.square(own))
    for i, j in pairs.pairs:
        ends = np.zeros(NODES)
        ends[i], ends[j] = plan.nodes[i].divisor, -plan.nodes[j].divisor
        sigma += plan.release.pair_noise_std(2) ** 2 * np.outer(ends, ends)
    return sigma


def test_two_attempts_differ_by_two_independent_draws_of_all_noise():
    first, second = attempts(reused=False)
    sigma = 2 * covariance()
    found = np.cov(second - first)
    scale = np.sqrt(np.outer(np.diag(sigma), np.diag(sigma)))
    assert np.abs((found - sigma) / scale).max() < CLOSE


def test_the_best_estimate_of_both_attempts_is_no_better_than_two_charged_steps():
    both = attempts(reused=False).mean(axis=0)
    inverse = np.linalg.inv(covariance())
    sums = np.arange(NODES * DRAWS).reshape(NODES, DRAWS) % 7
    own = job().plan.release.noise_std(job().plan.nodes[0], 2)
    pairs = job().plan.release.pairs
    assert pairs is not None
    gains = pairwise_multipliers(pairs.own, dict.fromkeys(pairs.pairs, pairs.deviation), 0)
    for node in range(NODES):
        # All other sums are known: what is left of the messages, weighted best for this node's.
        left = both - sums
        left[node] = both[node]
        estimate = inverse[node] @ left / inverse[node, node]
        variance = (estimate - sums[node]).var()
        certified = (gains[node] / pairs.own[node] * own) ** 2
        assert abs(variance / (certified / 2) - 1) < CLOSE
        assert certified > 4 * own**2


def test_an_attempt_with_the_same_noise_of_pairs_would_show_all_but_the_own_noise():
    """The mistake, planted: the difference has nothing of the pairs left."""
    first, second = attempts(reused=True)
    own = job().plan.release.noise_std(job().plan.nodes[0], 2)
    assert np.abs((second - first).var(axis=1) / (2 * own**2) - 1).max() < CLOSE


@pytest.mark.parametrize("lost", [{"drop": 0.5}, {"drop_edges": [[0, 1, 0.9]]}])
def test_lost_messages_change_no_noise_of_pairs_and_are_told(lost, monkeypatch):
    drawn = stacked_context.pair_sums
    kept: list[torch.Tensor] = []

    def keep(*arguments):
        offsets = drawn(*arguments)
        kept.append(offsets.points)
        return offsets

    monkeypatch.setattr(stacked_context, "pair_sums", keep)
    nodes = [(torch.ones(10, 2), torch.ones(10, 1)) for _ in range(NODES)]
    results, noises = [], []
    for faults in ({}, lost):
        kept.clear()
        seeded = {**experiment()["privacy"], "noise_seed": 3}
        given = experiment(privacy=seeded, **({"faults": faults} if faults else {}))
        results.append(tacit.train(given, model=nn.Linear(2, 1), nodes=nodes))
        noises.append(torch.stack(kept))
    assert torch.equal(*noises)
    assert noises[0].bool().any(2).all()
    assert results[0].epsilon == results[1].epsilon
    assert not torch.equal(results[0].parameters, results[1].parameters)
    told = [any("lost message" in note for note in r.job.plan.notes) for r in results]
    assert told == [False, True]
