"""Weights against their formulas written as loops, and what follows from them."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from few import few
from tacit.errors import InputError
from tacit.topology.graphs import GRAPHS, GraphSchedule, graph_of
from tacit.topology.mixing import WEIGHTS, build_mixing
from tacit.topology.own import build_schedule


def matrices_of(mixing):
    return [weights.matrix() for weights in mixing.weights]


PROPERTY = few(20, 60)


@st.composite
def undirected(draw):
    n = draw(st.integers(1, 9))
    possible = [(a, b) for a in range(n) for b in range(a)]
    graph = nx.empty_graph(n)
    graph.add_edges_from(draw(st.sets(st.sampled_from(possible))) if possible else [])
    return graph


def as_schedule(graph):
    edges = frozenset(pair for a, b in graph.edges for pair in ((a, b), (b, a)))
    return GraphSchedule("given", (graph_of(graph.number_of_nodes(), edges),))


@st.composite
def connected_digraphs(draw):
    """Digraphs whose union holds a cycle through every node, edge by edge in any of them."""
    n, period = draw(st.integers(2, 8)), draw(st.integers(1, 3))
    order = draw(st.permutations(range(n)))
    edges = [set() for _ in range(period)]
    node, turn = st.integers(0, n - 1), st.integers(0, period - 1)
    for i in range(n):
        edges[draw(turn)].add((order[i], order[(i + 1) % n]))
    for source, target, k in draw(st.lists(st.tuples(node, node, turn), max_size=10)):
        if source != target:
            edges[k].add((source, target))
    return GraphSchedule("given", tuple(graph_of(n, frozenset(some)) for some in edges))


@pytest.mark.parametrize(
    "name", sorted(name for name in GRAPHS if not GRAPHS[name].takes and name != "hypercube")
)
@pytest.mark.parametrize("n", range(1, 41))
def test_named_graphs_have_stochastic_weights(name, n):
    schedule = build_schedule(name, n)
    mixing = build_mixing(schedule)
    expected = "column-stochastic" if schedule.directed else "doubly-stochastic"
    assert mixing.kind == expected
    assert len(matrices_of(mixing)) == schedule.period
    for k, matrix in enumerate(matrices_of(mixing)):
        assert matrix.dtype == np.float64
        assert matrix.shape == (n, n)
        assert np.abs(matrix.sum(axis=0) - 1).max() <= 1e-12
        assert matrix.diagonal().min() > 0
        assert matrix.min() >= 0
        linked = {(int(j), int(i)) for i, j in np.argwhere(matrix) if i != j}
        assert linked == schedule.at(k).edges
        if not schedule.directed:
            assert np.array_equal(matrix, matrix.T)


@PROPERTY
@given(data=st.data(), n=st.integers(3, 40), weights=st.sampled_from(sorted(WEIGHTS)))
def test_all_weights_of_a_regular_graph_are_the_same(data, n, weights):
    degree = 2 * data.draw(st.integers(1, (n - 1) // 2))
    mixing = build_mixing(build_schedule("k-regular", n, degree=degree), weights)
    (matrix,) = matrices_of(mixing)
    assert mixing.kind == "doubly-stochastic"
    assert np.count_nonzero(matrix) == n * (degree + 1)
    np.testing.assert_allclose(matrix[matrix > 0], 1 / (degree + 1), rtol=1e-12)


@PROPERTY
@given(undirected())
def test_metropolis_weights(graph):
    n = graph.number_of_nodes()
    expected = np.zeros((n, n))
    for a, b in graph.edges:
        expected[a, b] = expected[b, a] = min(1 / (1 + graph.degree[a]), 1 / (1 + graph.degree[b]))
    for a in range(n):
        expected[a, a] = 1 - sum(expected[a, b] for b in graph[a])
    for weights in ("metropolis", None):
        (matrix,) = matrices_of(build_mixing(as_schedule(graph), weights))
        np.testing.assert_allclose(matrix, expected, rtol=0, atol=1e-14)
        assert np.array_equal(matrix, matrix.T)


@PROPERTY
@given(undirected())
def test_laplacian_weights(graph):
    largest = max(degree for _, degree in graph.degree)
    laplacian = nx.laplacian_matrix(graph, nodelist=range(len(graph))).toarray()
    expected = np.eye(len(graph)) - laplacian / (largest + 1)
    (matrix,) = matrices_of(build_mixing(as_schedule(graph), "laplacian"))
    np.testing.assert_allclose(matrix, expected, rtol=0, atol=1e-14)
    assert np.array_equal(matrix, matrix.T)


@PROPERTY
@given(undirected())
def test_uniform_weights_are_for_regular_graphs(graph):
    schedule = as_schedule(graph)
    if nx.is_regular(graph):
        (matrix,) = matrices_of(build_mixing(schedule, "uniform"))
        share = 1 / (graph.degree[0] + 1)
        np.testing.assert_allclose(matrix[matrix > 0], share, rtol=1e-12)
        return
    with pytest.raises(InputError) as refused:
        build_mixing(schedule, "uniform")
    assert refused.value.where == "topology.mixing"


def test_uniform_weights_name_two_nodes_of_different_degree():
    with pytest.raises(InputError, match=r"node 0.*node [123]|node [123].*node 0"):
        build_mixing(build_schedule("star", 4), "uniform")


@PROPERTY
@given(connected_digraphs())
def test_directed_graphs_split_equally(schedule):
    mixing = build_mixing(schedule)
    if not schedule.directed:
        assert mixing.kind == "doubly-stochastic"
        return
    assert mixing.kind == "column-stochastic"
    for graph, matrix in zip(schedule.graphs, matrices_of(mixing), strict=True):
        for j in range(graph.nodes):
            receivers = {j} | {target for source, target in graph.edges if source == j}
            for i in range(graph.nodes):
                expected = 1 / len(receivers) if i in receivers else 0.0
                assert matrix[i, j] == expected


def test_matrices_and_degrees_follow_the_step():
    schedule = GraphSchedule(
        "given", (graph_of(3, frozenset({(0, 1), (0, 2)})), graph_of(3, frozenset({(2, 0)})))
    )
    mixing = build_mixing(schedule)
    for k in range(5):
        assert np.array_equal(mixing.at(k).matrix(), matrices_of(mixing)[k % 2])
        assert np.array_equal(mixing.out_degrees(k), [[2, 0, 0], [0, 0, 1]][k % 2])
        assert np.issubdtype(mixing.out_degrees(k).dtype, np.integer)
    assert np.array_equal(mixing.at(0).matrix(), [[1 / 3, 0, 0], [1 / 3, 1, 0], [1 / 3, 0, 1]])


@pytest.mark.parametrize("name", ["ring", "exponential"])
def test_weights_are_read_only(name):
    for weights in build_mixing(build_schedule(name, 6)).weights:
        for array in (weights.starts, weights.sources, weights.values):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1


@pytest.mark.parametrize("power", range(7))
def test_an_exponential_period_averages_exactly_for_powers_of_two(power):
    n = 2**power
    product = np.eye(n)
    for matrix in matrices_of(build_mixing(build_schedule("exponential", n))):
        product = matrix @ product
    assert np.array_equal(product, np.full((n, n), 1 / n))


@pytest.mark.slow
@few(12, 40)
@given(schedule=connected_digraphs(), seed=st.integers(0, 2**16))
def test_push_sum_converges_to_the_mean(schedule, seed):
    mixing = build_mixing(schedule)
    values = np.random.default_rng(seed).normal(size=(schedule.nodes, 3))
    x, w = values, np.ones(schedule.nodes)
    for k in range(700 * schedule.period):
        x, w = mixing.at(k).matrix() @ x, mixing.at(k).matrix() @ w
    np.testing.assert_allclose(x / w[:, None], np.tile(values.mean(axis=0), (len(w), 1)), atol=1e-9)


@pytest.mark.parametrize("weights", sorted(WEIGHTS))
def test_directed_graphs_take_no_weights(weights):
    with pytest.raises(InputError, match=r"directed-ring.*leave it out") as refused:
        build_mixing(build_schedule("directed-ring", 5), weights)
    assert refused.value.where == "topology.mixing"
    assert refused.value.value == weights


@pytest.mark.parametrize("name", ["ring", "exponential"])
def test_unknown_weights_are_told_the_nearest(name):
    with pytest.raises(InputError, match="did you mean 'metropolis'") as refused:
        build_mixing(build_schedule(name, 5), "metropolitan")
    assert refused.value.where == "topology.mixing"
