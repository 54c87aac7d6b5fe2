"""Torus and Erdos-Renyi graphs against networkx, closed forms and the law they are drawn from."""

import math
from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacit
from experiments import experiment
from few import few
from tacit.config import load_config, to_toml
from tacit.errors import InputError
from tacit.topology.checks import check_doubly_stochastic, check_strongly_connected, contraction
from tacit.topology.graphs import complete, erdos_renyi, ring, torus
from tacit.topology.mixing import build_mixing
from tacit.topology.own import build_schedule
from tacit.training.planner import build_plan

PROPERTY = few(13, 40)


def undirected(graph):
    drawn = nx.Graph(list(graph.edges))
    drawn.add_nodes_from(range(graph.nodes))
    return drawn


@PROPERTY
@given(rows=st.integers(2, 9), columns=st.integers(2, 9))
def test_a_torus_is_the_periodic_grid(rows, columns):
    graph = torus(rows * columns, (rows, columns))
    grid = nx.grid_2d_graph(rows, columns, periodic=True)
    numbered = {(r * columns + c, s * columns + d) for (r, c), (s, d) in grid.edges}
    assert graph.edges == {pair for a, b in numbered for pair in ((a, b), (b, a))}
    assert graph.symmetric
    assert set(graph.out_degrees) == {(1 if rows == 2 else 2) + (1 if columns == 2 else 2)}


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (4, 4), (3, 7), (5, 6)])
def test_a_torus_contracts_as_its_closed_form_says(rows, columns):
    mixing = build_mixing(
        build_schedule("torus", rows * columns, shape=(rows, columns)), weights="uniform"
    )
    eigenvalues = sorted(
        abs(1 + 2 * math.cos(2 * math.pi * a / rows) + 2 * math.cos(2 * math.pi * b / columns)) / 5
        for a in range(rows)
        for b in range(columns)
    )
    assert contraction(mixing) == pytest.approx(eigenvalues[-2], abs=1e-12)


def test_the_smallest_torus_is_a_ring_of_four():
    assert undirected(torus(4, (2, 2))).degree(0) == 2
    assert nx.is_isomorphic(undirected(torus(4, (2, 2))), undirected(ring(4)))


@pytest.mark.parametrize(
    ("nodes", "shape", "where", "words"),
    [
        (12, (3, 5), "topology.shape", r"product 12, as \[3, 4\]"),
        (12, (1, 12), "topology.shape", r"2 or more with product 12, as \[3, 4\]"),
        (16, (2, 4), "topology.shape", r"as \[4, 4\]"),
        (13, (1, 13), "topology.graph", "13 is no such product"),
        (2, (1, 2), "topology.graph", "2 is no such product"),
        (9, (-3, -3), "topology.shape", r"as \[3, 3\]"),
    ],
)
def test_a_shape_that_does_not_fit_is_told_one_that_does(nodes, shape, where, words):
    with pytest.raises(InputError, match=words) as refused:
        torus(nodes, shape)
    assert refused.value.where == where


@PROPERTY
@given(nodes=st.integers(1, 30), seed=st.integers(0, 2**63 - 1), share=st.floats(0.3, 1.0))
def test_a_drawn_graph_is_connected_symmetric_and_repeatable(nodes, seed, share):
    graph = erdos_renyi(nodes, share, seed)
    assert graph.nodes == nodes
    assert graph.symmetric
    assert nx.is_connected(undirected(graph))
    assert graph == erdos_renyi(nodes, share, seed)


def test_the_probability_1_gives_the_complete_graph():
    assert erdos_renyi(9, 1.0, seed=4) == complete(9)


def test_seeds_and_probabilities_draw_different_graphs():
    assert len({erdos_renyi(12, 0.4, seed).edges for seed in range(20)}) == 20
    assert len({erdos_renyi(12, share, 0).edges for share in (0.3, 0.4, 0.5)}) == 3


def test_links_are_as_frequent_as_asked():
    # At 40 nodes and p = 0.3 all but e^-14 of the graphs are connected: plain G(n, p).
    pairs, share, draws = math.comb(40, 2), 0.3, 50
    links = [len(erdos_renyi(40, share, seed).edges) // 2 for seed in range(draws)]
    deviation = math.sqrt(share * (1 - share) / (pairs * draws))
    assert sum(links) / (pairs * draws) == pytest.approx(share, abs=4 * deviation)


@pytest.mark.slow
def test_three_nodes_are_drawn_by_the_law_given_connectedness():
    # Connected on 3 nodes: three paths of p^2 (1 - p) each, and the triangle, p^3.
    share, draws = 0.4, 2000
    found = Counter(erdos_renyi(3, share, seed).edges for seed in range(draws))
    assert len(found) == 4
    path, triangle = share**2 * (1 - share), share**3
    total = 3 * path + triangle
    for edges, count in found.items():
        expected = (triangle if len(edges) == 6 else path) / total
        deviation = math.sqrt(expected * (1 - expected) / draws)
        assert count / draws == pytest.approx(expected, abs=4 * deviation)


def test_a_graph_that_never_connects_is_told_a_probability_that_does():
    with pytest.raises(InputError, match=r"none of 100 graphs.*try 0\.16 or more") as refused:
        erdos_renyi(50, 0.001, seed=0)
    assert refused.value.where == "topology.probability"
    assert refused.value.value == 0.001
    assert nx.is_connected(undirected(erdos_renyi(50, 0.16, seed=0)))


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01, math.nan])
def test_a_probability_out_of_range_is_refused(share):
    with pytest.raises(InputError, match="at most 1") as refused:
        erdos_renyi(5, share, seed=0)
    assert refused.value.where == "topology.probability"


@pytest.mark.parametrize(
    ("graph", "key", "value"), [("torus", "shape", None), ("erdos-renyi", "probability", None)]
)
def test_what_a_graph_needs_is_asked_for(graph, key, value):
    with pytest.raises(InputError, match=f"{graph} needs it") as refused:
        build_schedule(graph, 16)
    assert refused.value.where == f"topology.{key}"
    assert refused.value.value is value


@pytest.mark.parametrize(
    ("graph", "given_keys", "refused_key"),
    [
        ("ring", {"shape": (2, 2)}, "shape"),
        ("ring", {"probability": 0.5}, "probability"),
        ("torus", {"shape": (2, 2), "degree": 2}, "degree"),
        ("torus", {"shape": (2, 2), "probability": 0.5}, "probability"),
        ("erdos-renyi", {"probability": 0.5, "shape": (2, 2)}, "shape"),
        ("k-regular", {"degree": 2, "shape": (2, 2)}, "shape"),
        ("file:absent", {"probability": 0.5}, "probability"),
    ],
)
def test_what_a_graph_does_not_take_is_refused(graph, given_keys, refused_key):
    with pytest.raises(InputError, match=f"{graph} takes none: leave it out") as refused:
        build_schedule(graph, 4, **given_keys)  # type: ignore[arg-type]
    assert refused.value.where == f"topology.{refused_key}"


@pytest.mark.parametrize("weights", ["metropolis", "laplacian"])
@pytest.mark.parametrize(
    ("graph", "keys"), [("torus", {"shape": (2, 6)}), ("erdos-renyi", {"probability": 0.3})]
)
def test_both_have_symmetric_weights_that_average(graph, keys, weights):
    schedule = build_schedule(graph, 12, seed=5, **keys)  # type: ignore[arg-type]
    check_strongly_connected(schedule)
    mixing = build_mixing(schedule, weights)
    (weighed,) = mixing.weights
    assert mixing.kind == "doubly-stochastic"
    check_doubly_stochastic(weighed)
    np.testing.assert_array_equal(weighed.matrix(), weighed.matrix().T)
    assert contraction(mixing) < 1


def topology(**keys):
    return experiment(nodes={"count": 6}, topology=keys)


def test_an_experiment_file_holds_the_keys_of_graphs():
    config = load_config(topology(graph="torus", shape=[2, 3]))
    assert config.topology.shape == (2, 3)
    assert "shape = [" in to_toml(config)
    drawn = load_config(topology(graph="erdos-renyi", probability=1))
    assert drawn.topology.probability == 1.0
    assert drawn.topology.shape is None


@pytest.mark.parametrize("shape", [[4], [2, 3, 1], "23", 6, [1, 6], [2.0, 3], [True, 6], {"a": 2}])
def test_a_shape_is_two_lengths(shape):
    with pytest.raises(
        InputError, match=r"two whole numbers of 2 or more: \[rows, columns\]"
    ) as no:
        load_config(topology(graph="torus", shape=shape))
    assert no.value.where == "topology.shape"


@pytest.mark.parametrize("share", [0, -1, 1.5, math.inf, math.nan, "often"])
def test_a_probability_is_a_number_up_to_1(share):
    with pytest.raises(InputError) as refused:
        load_config(topology(graph="erdos-renyi", probability=share))
    assert refused.value.where == "topology.probability"


def test_the_public_seed_decides_which_graph_a_plan_has():
    def edges(seed):
        sections = topology(graph="erdos-renyi", probability=0.5)
        sections["train"]["seed"] = seed
        plan = build_plan(load_config(sections), [100] * 6, parameters=10)
        return plan.mixing.schedule.graphs[0].edges

    assert edges(1) == edges(1) == erdos_renyi(6, 0.5, 1).edges
    assert edges(1) != edges(2)


@pytest.mark.parametrize(
    "keys", [{"graph": "torus", "shape": [2, 3]}, {"graph": "erdos-renyi", "probability": 0.5}]
)
def test_training_runs_on_both(keys):
    sections = topology(**keys)
    sections["algorithm"] = {"name": "dp2-sgd"}
    sections["train"]["steps"] = 2
    result = tacit.train(sections)
    assert result.parameters.shape[0] == 6
    assert bool(result.parameters.isfinite().all())
