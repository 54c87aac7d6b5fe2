"""The exchange of the simulator against dense products with the mixing matrices."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from few import few
from mixings import weights_of
from tacit.communication.colours import Public, Released
from tacit.communication.exchange import InProcessExchange
from tacit.topology.mixing import build_mixing
from tacit.topology.own import build_schedule

CPU = torch.device("cpu")
NAMED = [
    (graph, nodes, degree)
    for graph, degree in (
        ("exponential", None),
        ("ring", None),
        ("directed-ring", None),
        ("complete", None),
        ("star", None),
        ("k-regular", 2),
        ("k-regular", 4),
    )
    for nodes in (1, 2, 3, 5, 8, 20)
    if degree is None or degree < nodes
]


def exchange_of(matrices, dtype=torch.float64):
    return InProcessExchange([*map(weights_of, matrices)], dtype=dtype, device=CPU)


def named(graph, nodes, degree):
    return build_mixing(build_schedule(graph, nodes, degree=degree))


def matrices_of(mixing):
    return [weights.matrix() for weights in mixing.weights]


def values(nodes, dtype=torch.float64):
    """Parameters `[nodes, 6]` and weights `[nodes]`, as push-sum sends them."""
    draw = torch.Generator().manual_seed(nodes)
    return (
        torch.randn(nodes, 6, generator=draw, dtype=dtype),
        torch.rand(nodes, generator=draw, dtype=dtype) + 0.5,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("graph", "nodes", "degree"), NAMED)
def test_mixing_is_the_product_with_the_matrix_of_its_step(graph, nodes, degree, dtype):
    matrices = matrices_of(named(graph, nodes, degree))
    exchange = exchange_of(matrices, dtype)
    x, w = values(nodes, dtype)
    tolerance = 1e-14 if dtype == torch.float64 else 1e-6
    for k in range(2 * len(matrices) + 1):
        matrix = matrices[k % len(matrices)]
        before = x.clone(), w.clone()
        mixed_x, mixed_w = exchange.mix(k, Released(x), Public(w))
        np.testing.assert_allclose(mixed_x.numpy(), matrix @ x.numpy(), atol=5 * tolerance)
        np.testing.assert_allclose(mixed_w.numpy(), matrix @ w.numpy(), atol=5 * tolerance)
        assert mixed_x.dtype == mixed_w.dtype == dtype
        assert torch.equal(x, before[0])
        assert torch.equal(w, before[1])
        assert float(mixed_w.sum()) == pytest.approx(float(w.sum()), rel=10 * tolerance)


@st.composite
def digraph_matrices(draw):
    """One to three column-stochastic matrices of random directed graphs with unequal weights."""
    nodes = draw(st.integers(1, 9))
    count = draw(st.integers(1, 3))
    made = []
    for _ in range(count):
        probability = draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))
        seed = draw(st.integers(0, 10_000))
        graph = nx.gnp_random_graph(nodes, probability, seed=seed, directed=True)
        matrix = np.eye(nodes)
        generator = np.random.default_rng(seed)
        for source, target in graph.edges:
            matrix[target, source] = generator.uniform(0.1, 1.0)
        made.append(matrix / matrix.sum(axis=0))
    return made


@given(matrices=digraph_matrices())
@few(20, 60)
def test_random_digraphs(matrices):
    nodes = len(matrices[0])
    exchange = exchange_of(matrices)
    x, w = values(nodes)
    wide = torch.arange(nodes * 6.0, dtype=torch.float64).view(nodes, 2, 3)
    sent = np.zeros(nodes, dtype=np.int64)
    for k in range(len(matrices) + 1):
        matrix = matrices[k % len(matrices)]
        for value, found in zip(
            (x, w, wide), exchange.mix(k, *map(Released, (x, w, wide))), strict=True
        ):
            right = np.einsum("ij,j...->i...", matrix, value.numpy())
            np.testing.assert_allclose(found.numpy(), right, atol=1e-13)
            np.testing.assert_allclose(found.sum(0).numpy(), value.sum(0).numpy(), atol=1e-12)
        out_degrees = [(matrix[:, j] > 0).sum() - (matrix[j, j] > 0) for j in range(nodes)]
        sent += np.array(out_degrees) * (6 + 1 + 6) * 8
    assert exchange.bytes_sent.tolist() == sent.tolist()


@pytest.mark.parametrize("in_neighbours", range(1, 8))
def test_few_and_many_in_neighbours_agree(in_neighbours):
    """Around the number at which the way of computing changes, and with uneven rows."""
    nodes = 9
    generator = np.random.default_rng(in_neighbours)
    matrix = np.eye(nodes)
    for target in range(nodes):
        count = 1 + generator.integers(in_neighbours) if target else in_neighbours
        others = [node for node in range(nodes) if node != target]
        for source in generator.choice(others, count - 1, replace=False):
            matrix[target, source] = generator.uniform(0.1, 1.0)
    x, w = values(nodes)
    mixed_x, mixed_w = exchange_of([matrix]).mix(0, Released(x), Public(w))
    np.testing.assert_allclose(mixed_x.numpy(), matrix @ x.numpy(), atol=1e-13)
    np.testing.assert_allclose(mixed_w.numpy(), matrix @ w.numpy(), atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("graph", "nodes", "degree", "degrees"),
    [
        ("exponential", 8, None, [1] * 8),
        ("ring", 8, None, [2] * 8),
        ("ring", 2, None, [1] * 2),
        ("directed-ring", 5, None, [1] * 5),
        ("complete", 6, None, [5] * 6),
        ("star", 5, None, [4, 1, 1, 1, 1]),
        ("k-regular", 9, 4, [4] * 9),
        ("ring", 1, None, [0]),
    ],
)
def test_bytes_are_counted_for_every_out_neighbour(graph, nodes, degree, degrees, dtype):
    exchange = exchange_of(matrices_of(named(graph, nodes, degree)), dtype)
    assert exchange.bytes_sent.tolist() == [0] * nodes
    x, w = values(nodes, dtype)
    message = (6 + 1) * (4 if dtype == torch.float32 else 8)
    for k in range(1, 4):
        exchange.mix(k, Released(x), Public(w))
        assert exchange.bytes_sent.tolist() == [k * degree * message for degree in degrees]
    exchange.mix(4, Released(x))
    last = message - (4 if dtype == torch.float32 else 8)
    assert exchange.bytes_sent.tolist() == [(3 * message + last) * degree for degree in degrees]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_weights_that_are_read_only_are_taken_over_without_a_warning(graph):
    (weights,) = named(graph, 8, None).weights
    exchange = InProcessExchange([weights], dtype=torch.float64, device=CPU)
    x, _ = values(8)
    (mixed,) = exchange.mix(0, Released(x))
    np.testing.assert_allclose(mixed.numpy(), weights.matrix() @ x.numpy(), atol=1e-13)
