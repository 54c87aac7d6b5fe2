"""Noise of pairs, as it is planned: partners, budgets, colluders, and what is refused."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from planning_cases import plan_of
from tacit import privacy
from tacit.communication.exchange import InProcessExchange
from tacit.communication.peers import ALONE
from tacit.config import load_config
from tacit.errors import BudgetError, InputError
from tacit.privacy import pairwise_multipliers
from tacit.privacy.noise.draws import seeded_keys
from tacit.privacy.noise.gaussian import spacing
from tacit.privacy.noise.pairwise import seeded_pair_keys
from tacit.training import stacked_context
from tacit.training.budget import epsilon_by_colluders, node_keys, pair_keys
from tacit.training.prepare import prepare
from tacit.training.stacked_context import StackedContext

NODES = 8


def pairwise(records=None, *, epsilon=2.0, settings=None, **sections):
    """A plan of eight nodes that share noise with their neighbours, unless said otherwise."""
    chosen = {"noise": "pairwise", "pair_noise": 4.0, **(settings or {})}
    return plan_of(records or [40] * NODES, epsilon=epsilon, **chosen, **sections)


def independent(records=None, *, epsilon=2.0, **sections):
    """The same without pairs."""
    return plan_of(records or [40] * NODES, epsilon=epsilon, **sections)


@pytest.mark.parametrize(
    ("topology", "degree"),
    [
        ({"graph": "ring"}, 2),
        ({"graph": "directed-ring"}, 2),
        ({"graph": "exponential"}, 5),  # 1, 2 and 4 ahead, and behind
        ({"graph": "ring", "partners": "complete"}, NODES - 1),
        ({"graph": "ring", "partners": "circulant:4"}, 4),
    ],
)
def test_every_node_has_its_partners(topology, degree):
    pairs = pairwise(topology=topology).release.pairs
    assert pairs is not None
    assert all(i < j for i, j in pairs.pairs)
    assert np.bincount(np.array(pairs.pairs).ravel()).tolist() == [degree] * NODES


def test_the_own_noise_falls_and_what_counts_stays():
    plan, alone = pairwise(), independent()
    for node, other in zip(plan.nodes, alone.nodes, strict=True):
        counted = plan.release.noise_multiplier(node, 0)
        assert counted == pytest.approx(alone.release.noise_multiplier(other, 0), rel=1e-4)
        assert plan.release.own_multiplier(node, 0) < 0.5 * counted
        assert node.epsilon is not None
        assert node.epsilon <= 2.0


def test_what_counts_is_what_a_set_of_colluders_leaves():
    """The oracle inverts the covariance of those who are left, for every set."""
    plan = pairwise([40, 40, 20, 20, 40, 40, 40, 40], train={"batch": "all"})
    pairs = plan.release.pairs
    assert pairs is not None
    assert pairs.colluding == 1
    sizes = [node.divisor for node in plan.nodes]
    for i, node in enumerate(plan.nodes):
        worst = math.inf
        for colluder in set(range(NODES)) - {i}:
            covariance = np.diag([plan.release.own_multiplier(n, 0) ** 2 for n in plan.nodes])
            for first, second in pairs.pairs:
                ends = np.zeros(NODES)
                ends[first], ends[second] = sizes[first], -sizes[second]  # of a sum over the batch
                if colluder not in (first, second):  # whose keys are known
                    covariance += pairs.deviation**2 * np.outer(ends, ends)
            left = [other for other in range(NODES) if other != colluder]
            inverse = np.linalg.inv(covariance[np.ix_(left, left)])
            worst = min(worst, float(inverse[left.index(i), left.index(i)] ** -0.5))
        counted = plan.release.noise_multiplier(node, 0)
        assert counted <= worst
        assert counted == pytest.approx(worst, rel=1e-9)


def test_more_colluders_learn_more():
    plan = pairwise(settings={"colluding": 2})
    rows = epsilon_by_colluders(plan)
    first = [row[0] for row in rows]
    assert len(rows) == 4
    assert first == sorted(first)
    assert rows[2] == tuple(node.epsilon for node in plan.nodes)
    alone = privacy.epsilon(
        plan.release.algorithm.releases.mechanism(
            plan.release.against(NODES).node_run(plan.nodes[0], range(plan.steps))
        ),
        delta=plan.nodes[0].delta or 0.0,
    )
    assert alone > max(first)


def test_without_pairs_there_is_nothing_to_tell():
    assert epsilon_by_colluders(independent()) == ()


def test_every_node_keeps_its_own_budget():
    budgets = [0.5, 0.5, 1.0, 2.0, 2.0, 2.0, 4.0, 4.0]
    plan = pairwise([40, 20, 40, 80, 40, 20, 40, 40], epsilon=budgets)
    for node, budget in zip(plan.nodes, budgets, strict=True):
        assert node.epsilon is not None
        assert node.epsilon <= budget


def test_pairs_are_those_of_active_nodes():
    topology = {"graph": "ring", "partners": "complete"}
    plan = pairwise(algorithm={"name": "adp2-sgd"}, topology=topology, train={"steps": 12})
    pairs, activity = plan.release.pairs, plan.release.activity
    assert pairs is not None
    assert activity is not None
    assert pairs.gains.shape == activity.active.shape
    for k, active in enumerate(activity.active):
        alone = active.sum() <= 1 + pairs.colluding
        for node in np.flatnonzero(active).tolist():
            assert (pairs.gain(node, k) == 1.0) == alone
    for node in plan.nodes:
        assert node.epsilon is not None
        assert node.epsilon <= 2.0


@pytest.mark.parametrize("name", ["privsgp", "privsgp-vr", "dyn-d2p", "const-d2p"])
def test_the_accounting_is_that_of_one_noised_sum(name):
    """The mechanism is the one of independent noise, with what counts in place of the own noise."""
    plan = pairwise(algorithm={"name": name})
    alone = independent(algorithm={"name": name})
    kinds = [type(other.release.mechanism(other.nodes[0])) for other in (plan, alone)]
    assert kinds[0] is kinds[1]
    assert plan.release.mechanism(plan.nodes[0]).trust_model == "pairwise, 1 colluding"
    assert plan.release.claimed(plan.nodes[0]) is None


def test_a_given_noise_is_the_own_one():
    given = {"noise_std": 0.05, "pair_noise": 2.0}
    plan = pairwise(epsilon=None, settings=given)
    for node in plan.nodes:
        assert plan.release.noise_std(node, 0) / node.divisor == pytest.approx(0.05)
    assert plan.release.pair_noise_std(0) == pytest.approx(0.1)
    with pytest.raises(BudgetError, match=r"privacy\.noise_std = 0\.05 costs epsilon"):
        pairwise(epsilon=0.01, settings=given)


def test_the_pairs_belong_to_the_identity_of_a_run():
    digests = {
        pairwise().digest(),
        pairwise(settings={"pair_noise": 5.0}).digest(),
        pairwise(settings={"colluding": 2}).digest(),
        pairwise(topology={"partners": "complete"}).digest(),
        independent().digest(),
    }
    assert len(digests) == 5


@pytest.mark.parametrize(
    ("sections", "where", "told"),
    [
        ({"settings": {"colluding": NODES}}, "privacy.colluding", "below the number of nodes"),
        ({"settings": {"colluding": -1}}, "privacy.colluding", "0 or more"),
        ({"settings": {"pair_noise": 0.0}}, "privacy.pair_noise", "above 0"),
        ({"settings": {"pair_noise": 1e5}}, "privacy.pair_noise", "at most"),
        ({"settings": {"accounting": "published"}}, "privacy.noise", "independent noise"),
        ({"topology": {"partners": "circulant:3"}}, "topology.partners", "even number"),
        ({"topology": {"partners": "circulant:8"}}, "topology.partners", "more nodes"),
        ({"topology": {"partners": "friends"}}, "topology.partners", "'graph'"),
        ({"algorithm": {"name": "dp-sgd"}}, "privacy.noise", "has a server"),
        ({"algorithm": {"name": "do-adp"}}, "privacy.noise", "compressed"),
        ({"algorithm": {"name": "cpgt"}}, "privacy.noise", "Laplace"),
        ({"algorithm": {"name": "sgp"}, "epsilon": None}, "privacy.noise", "adds no noise"),
        ({"epsilon": "none"}, "privacy.noise", "needs noise"),
    ],
)
def test_what_does_not_go_with_it_is_refused(sections, where, told):
    with pytest.raises(InputError, match=told) as caught:
        pairwise(**sections)
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("sections", "where"),
    [
        ({"colluding": 1}, "privacy.colluding"),
        ({"pair_noise": 4.0}, "privacy.pair_noise"),
        ({"topology": {"partners": "complete"}}, "topology.partners"),
    ],
)
def test_keys_of_pairs_do_nothing_without_them(sections, where):
    with pytest.raises(InputError, match="pairwise") as caught:
        plan_of([40] * NODES, **sections)
    assert caught.value.where == where


def test_no_round_costs_more_than_it_may_whoever_is_away():
    """In step 3 all nodes but one are away, so that nothing but its own noise hides it."""
    alone = {"down": [[node, 3, 4] for node in range(1, NODES)]}
    settings = {"epsilon_per_round": 0.3, "pair_noise": 3.0}
    topology = {"graph": "complete", "rounds": 1}
    algorithm = {"name": "dp2-sgd"}
    plan = pairwise(
        epsilon=None, settings=settings, topology=topology, algorithm=algorithm, faults=alone
    )
    for node in plan.nodes:
        for step in plan.release.active_steps(node):
            spent = plan.release.epsilon(node, [(step, step + 1)])
            assert spent is not None
            assert spent <= 0.3


def test_the_plan_keeps_to_the_noise_of_pairs_that_it_chooses():
    budgets = [0.01, 0.1, 1.0, 10.0, 100.0]
    plan = pairwise([40] * 5, epsilon=budgets, settings={"pair_noise": "auto"})
    pairs = plan.release.pairs
    assert pairs is not None
    assert pairs.ratio <= pairs.most * (1 + 1e-6)


# Real draws of pairwise noise against the covariance that proofs start from, entry by entry.


RECORDS = (24, 12, 36, 18, 30)
STEPS, DRAWS = 3, 20_000
COLLUDER = 4
SCALES = torch.tensor([[1.0], [1.0], [2.5], [1.0], [0.5]], dtype=torch.float64)
# Largest difference of an estimated entry, in deviations of the estimate; of 225 entries.
MOST = 5.0


@cache
def job_of(name):
    """Five unequal nodes, all of them partners, with batches and steps that differ."""
    steps = {"clip_decay": 3.0} if name == "dyn-d2p" else {}
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


# A step that is run twice: what both attempts together tell, and what lost messages change.


TWICE_NODES, TWICE_DRAWS = 5, 20_000
OWN = 1.5  # of a mean's noise, over the clipping bound
# A variance of so many draws is this close, relatively, but for a chance of 1e-6 or so.
CLOSE = 5 * (2 / TWICE_DRAWS) ** 0.5


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
    config = load_config(experiment(), count=TWICE_NODES, given_model=True)
    nodes = [(torch.zeros(10, 2), torch.zeros(10, 1)) for _ in range(TWICE_NODES)]
    return prepare(config, model=nn.Linear(2, 1), nodes=nodes)


def attempts(*, reused):
    """What the nodes release of the same sums at the same step, `[2, nodes, draws]`.

    Args:
        reused: whether the second attempt has the pair keys of the first: the mistake.
    """
    plan = job().plan
    sums = (
        torch.arange(TWICE_NODES * TWICE_DRAWS, dtype=torch.float64).view(TWICE_NODES, TWICE_DRAWS)
        % 7
    )
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


def twice_covariance():
    """Of one coordinate of all messages of an attempt."""
    plan = job().plan
    pairs = plan.release.pairs
    assert pairs is not None
    own = [plan.release.noise_std(node, 2) for node in plan.nodes]
    sigma = np.diag(np.square(own))
    for i, j in pairs.pairs:
        ends = np.zeros(TWICE_NODES)
        ends[i], ends[j] = plan.nodes[i].divisor, -plan.nodes[j].divisor
        sigma += plan.release.pair_noise_std(2) ** 2 * np.outer(ends, ends)
    return sigma


def test_two_attempts_differ_by_two_independent_draws_of_all_noise():
    first, second = attempts(reused=False)
    sigma = 2 * twice_covariance()
    found = np.cov(second - first)
    scale = np.sqrt(np.outer(np.diag(sigma), np.diag(sigma)))
    assert np.abs((found - sigma) / scale).max() < CLOSE


def test_the_best_estimate_of_both_attempts_is_no_better_than_two_charged_steps():
    both = attempts(reused=False).mean(axis=0)
    inverse = np.linalg.inv(twice_covariance())
    sums = np.arange(TWICE_NODES * TWICE_DRAWS).reshape(TWICE_NODES, TWICE_DRAWS) % 7
    own = job().plan.release.noise_std(job().plan.nodes[0], 2)
    pairs = job().plan.release.pairs
    assert pairs is not None
    gains = pairwise_multipliers(pairs.own, dict.fromkeys(pairs.pairs, pairs.deviation), 0)
    for node in range(TWICE_NODES):
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
    kept = []

    def keep(*arguments):
        offsets = drawn(*arguments)
        kept.append(offsets.points)
        return offsets

    monkeypatch.setattr(stacked_context, "pair_sums", keep)
    nodes = [(torch.ones(10, 2), torch.ones(10, 1)) for _ in range(TWICE_NODES)]
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
