"""10,000 nodes: nothing has a number for every pair of them, and sums and rates are right."""

import math
import tracemalloc
from contextlib import contextmanager

import networkx as nx
import numpy as np
import pytest
import torch

from tacit.communication.colours import Released
from tacit.communication.exchange import InProcessExchange
from tacit.errors import InputError
from tacit.topology import checks as checks_module
from tacit.topology.checks import (
    check_column_stochastic,
    check_doubly_stochastic,
    check_strongly_connected,
    contraction,
)
from tacit.topology.graphs import GraphSchedule, graph_of
from tacit.topology.mixing import build_mixing, server_averaging
from tacit.topology.own import build_schedule

NODES = 10_000
GRAPHS = {
    "exponential": {},
    "ring": {},
    "directed-ring": {},
    "k-regular": {"degree": 10},
    "torus": {"shape": (100, 100)},
    "erdos-renyi": {"probability": 0.002},
    "star": {},
}
# Edges of a period and, for each graph of it, what nodes keep.
ENTRIES = {
    "exponential": 14 * 2 * NODES,
    "ring": 3 * NODES,
    "directed-ring": 2 * NODES,
    "k-regular": 11 * NODES,
    "torus": 5 * NODES,
    "star": 2 * (NODES - 1) + NODES,
}


@contextmanager
def no_number_for_each_pair():
    """All that is allocated meanwhile is less than a byte for each pair of nodes."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < NODES**2


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_of_many_nodes_are_lists(name):
    with no_number_for_each_pair():
        schedule = build_schedule(name, NODES, **GRAPHS[name])
        check_strongly_connected(schedule)
        mixing = build_mixing(schedule)
        for weights in mixing.weights:
            check = check_column_stochastic if schedule.directed else check_doubly_stochastic
            check(weights)
        rate = contraction(mixing)
        exchange = InProcessExchange(
            mixing.weights, dtype=torch.float64, device=torch.device("cpu")
        )
    entries = sum(len(weights.values) for weights in mixing.weights)
    assert entries == ENTRIES.get(name, entries)
    # Two whole numbers of 8 bytes and a weight at most for each entry.
    arrays = [(one.starts, one.sources, one.values) for one in mixing.weights]
    assert sum(array.nbytes for one in arrays for array in one) <= 24 * entries
    assert rate is not None
    assert 0 < rate < 1
    x = torch.randn(NODES, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for k in range(schedule.period):
        (mixed,) = exchange.mix(k, Released(x))
        np.testing.assert_allclose(mixed.numpy(), mixed_by_hand(mixing, k, x.numpy()), atol=1e-12)
    degrees = sum(np.bincount(graph.sources, minlength=NODES) for graph in schedule.graphs)
    assert (exchange.bytes_sent == 3 * 8 * degrees).all()


def mixed_by_hand(mixing, k, x):
    """Sums along the edges of the graph, with weights as their formulas give them."""
    graph, found = mixing.schedule.at(k), np.zeros_like(x)
    degree = np.bincount(graph.sources, minlength=graph.nodes)
    if mixing.schedule.directed:
        shares = (1 / (degree + 1))[graph.sources]
        kept = 1 / (degree + 1)
    else:
        shares = 1 / (1 + np.maximum(degree[graph.sources], degree[graph.targets]))
        given = np.zeros(graph.nodes)
        np.add.at(given, graph.targets, shares)
        kept = 1 - given
    np.add.at(found, graph.targets, shares[:, None] * x[graph.sources])
    return found + kept[:, None] * x


def test_a_server_of_many_clients_needs_no_matrix():
    with no_number_for_each_pair():
        mixing = server_averaging(NODES)
        exchange = InProcessExchange(
            mixing.weights, dtype=torch.float64, device=torch.device("cpu")
        )
        assert contraction(mixing) == 0.0
    assert sum(len(weights.values) for weights in mixing.weights) == 0
    x = torch.randn(NODES, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (mean,) = exchange.average(0, Released(x))
    np.testing.assert_allclose(mean.numpy()[0], x.numpy().mean(axis=0), atol=1e-12)


@pytest.mark.parametrize(
    ("name", "nodes", "keys"),
    [
        ("complete", NODES, {}),
        ("k-regular", NODES, {"degree": 5000}),
        ("erdos-renyi", NODES, {"probability": 0.5}),
        ("erdos-renyi", 100_000, {"probability": 1e-4}),
    ],
)
def test_what_is_dense_is_refused_before_it_is_made(name, nodes, keys):
    with no_number_for_each_pair(), pytest.raises(InputError, match=f"'{name}'.*nodes") as refused:
        build_schedule(name, nodes, **keys)
    assert refused.value.where == "topology.graph"


@pytest.mark.parametrize("nodes", [600, 10_000])
def test_rates_of_many_nodes_in_closed_form(nodes):
    assert contraction(build_mixing(build_schedule("ring", nodes))) == pytest.approx(
        (1 + 2 * math.cos(2 * math.pi / nodes)) / 3, abs=1e-12
    )
    assert contraction(build_mixing(build_schedule("directed-ring", nodes))) == pytest.approx(
        math.cos(math.pi / nodes), abs=1e-12
    )
    assert contraction(build_mixing(build_schedule("star", nodes))) == pytest.approx(
        1 - 1 / nodes, abs=1e-9
    )


def test_the_rate_of_a_torus_of_many_nodes_in_closed_form():
    mixing = build_mixing(build_schedule("torus", NODES, shape=(100, 100)))
    assert contraction(mixing) == pytest.approx((3 + 2 * math.cos(2 * math.pi / 100)) / 5, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("exponential", {}),
        ("k-regular", {"degree": 6}),
        ("erdos-renyi", {"probability": 0.06}),
        ("torus", {"shape": (10, 30)}),
    ],
)
def test_the_ways_to_a_rate_agree(name, keys, monkeypatch):
    mixing = build_mixing(build_schedule(name, 300, seed=2, **keys))
    few = contraction(mixing)
    monkeypatch.setattr(checks_module, "_FEW_NODES", 10)
    assert contraction(mixing) == pytest.approx(few, abs=1e-6)
    monkeypatch.setattr(checks_module, "is_circulant", lambda weights: False)
    assert contraction(mixing) == pytest.approx(few, abs=1e-6)


def test_a_rate_that_is_not_found_is_none():
    # A chain of 3,000 nodes: its eigenvalues lie within a millionth of each other near 1.
    chain = graph_of(3000, ((i, i + 1) for i in range(2999)), both_ways=True)
    mixing = build_mixing(GraphSchedule("given", (chain,)))
    assert contraction(mixing) is None


def test_a_drawn_graph_of_many_nodes_is_one_of_its_kind():
    graph = build_schedule("erdos-renyi", 3000, probability=0.004, seed=3).at(0)
    drawn = nx.Graph(list(graph.edges))
    assert graph.symmetric
    assert nx.is_connected(drawn)
    pairs = 3000 * 2999 / 2
    assert drawn.number_of_edges() == pytest.approx(0.004 * pairs, abs=6 * math.sqrt(0.004 * pairs))
