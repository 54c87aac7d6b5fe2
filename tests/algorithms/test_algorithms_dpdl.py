"""DPDL against a loop over edges: the equations of its summary, and what each round costs."""

import itertools
import math
from dataclasses import replace

import networkx
import numpy as np
import pytest
import recursion_oracle as oracle
from recursion_runs import EDGES, IRREGULAR, RATE, assert_same, on_graph, trained
from test_algorithms_adp2_sgd import setup

from tacit import privacy
from tacit.algorithms.dpdl import CrossOptions, matchings
from tacit.errors import InputError


def cross_gradients(run, similarity, momentum, edges):
    """x `[nodes, d]` after one round whose cross-gradients go along some edges alone, and v."""

    def go_on(x, v):
        count, near = len(x), [[] for _ in x]
        for i, j in edges:
            near[i].append(j)
            near[j].append(i)
        total = np.zeros_like(x)
        for i in range(count):
            own = run.mean_gradient(i, x[i], 0)
            left = 1 - sum(run.matrix(0)[i, j] for j in near[i])
            for j, w in [(i, left), *((j, run.matrix(0)[i, j]) for j in near[i])]:
                g = run.mean_gradient(j, x[i], 0)
                cosine = g @ own / np.linalg.norm(g) / np.linalg.norm(own)
                total[i] += g / (math.sqrt(w) * count)
                total[i] += similarity * w / (1 + math.exp(cosine)) * own
        v = momentum * v + total
        return run.matrix(0) @ (x - run.learning_rate * v), run.matrix(0) @ v

    return go_on


@pytest.mark.parametrize(("similarity", "momentum"), [(0.0, 0.0), (1.5, 0.7)])
@pytest.mark.parametrize("extra", [0, 2], ids=["whole", "begun"])
def test_recursion(similarity, momentum, extra, tmp_path):
    task = oracle.problem("logistic", 5)
    options = {"similarity": similarity, "momentum": momentum, "clip": 0.4}
    round_steps = 4  # of five edges, three at a node
    steps = 2 * round_steps + extra
    result = trained(task, on_graph(tmp_path, "dpdl", steps=steps, **options))
    run = oracle.Run(task, lambda k: IRREGULAR, 1, RATE, [0.4], equal=True)
    partner = result.plan.release.activity.partner
    assert result.plan.release.activity.notes == {"steps of a round": round_steps}
    x, v = np.tile(task.start, (5, 1)), np.zeros((5, len(task.start)))
    for first in range(0, steps, round_steps):
        rows = partner[first : min(first + round_steps, steps)]
        edges = [(i, int(j)) for row in rows for i, j in enumerate(row) if i < j]
        assert len(edges) == len(EDGES) or first == 2 * round_steps
        x, v = cross_gradients(run, similarity, momentum, edges)(x, v)
    assert_same(result.parameters, x)


GRAPHS = [networkx.cycle_graph(5), networkx.star_graph(4), networkx.complete_graph(6)]


@pytest.mark.parametrize(
    "graph", [*GRAPHS, networkx.barabasi_albert_graph(30, 2, seed=1), networkx.star_graph(500)]
)
def test_every_edge_has_its_turn_in_a_round(graph):
    nodes = len(graph)
    base = setup(nodes, 3 * nodes + 40, 0, CrossOptions())
    near = tuple(tuple(sorted(graph[node])) for node in range(nodes))
    found = matchings(replace(base, neighbours=near))
    length = found.notes["steps of a round"]
    assert 1 + max(map(len, near)) <= length <= 2 * max(map(len, near))
    own = np.arange(nodes)
    assert (found.partner[np.arange(base.steps)[:, None], found.partner] == own).all()
    assert found.active[::length].all()
    assert (found.partner[::length] == own).all()
    met = [(i, int(j)) for row in found.partner[:length] for i, j in enumerate(row) if i < j]
    assert sorted(met) == sorted(tuple(sorted(edge)) for edge in graph.edges)
    assert (found.active[:length].sum(axis=0) == 1 + np.array(list(map(len, near)))).all()


def test_a_node_pays_once_for_itself_and_once_for_each_neighbour(tmp_path):
    config = on_graph(tmp_path, "dpdl", steps=8, clip=0.4)
    config["privacy"] = {"noise_std": 0.5, "delta": 1e-4, "noise_seed": 1}
    result = trained(oracle.problem("logistic", 5), config)
    degrees = np.bincount(list(itertools.chain(*EDGES)))
    for node, epsilon in zip(result.plan.nodes, result.epsilon, strict=True):
        noise = 0.5 * node.expected_batch / 0.4
        mu = math.sqrt(2 * (1 + degrees[node.node])) / noise
        assert epsilon == pytest.approx(privacy.epsilon(privacy.Gaussian([1 / mu]), delta=1e-4))


def test_noise_of_pairs_that_would_not_cancel_is_refused(tmp_path):
    config = on_graph(tmp_path, "dpdl", steps=8, clip=0.4)
    config["privacy"] = {"epsilon": 3.0, "delta": 1e-4, "noise": "pairwise", "noise_seed": 1}
    with pytest.raises(InputError, match="a factor of its own"):
        trained(oracle.problem("logistic", 5), config)
