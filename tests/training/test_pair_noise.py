"""Noise of pairs, as it is planned: partners, budgets, colluders, and what is refused."""

import math

import numpy as np
import pytest

from planning_cases import plan_of
from tacit import privacy
from tacit.errors import BudgetError, InputError
from tacit.training.budget import epsilon_by_colluders

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
