"""Which rows cross between processes: against a plain enumeration of edges."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.communication.exchange.routes import gossip_route, pair_route, server_route
from tacit.communication.exchange.rows import compile_rows
from tacit.topology import Weights

CPU = torch.device("cpu")


@st.composite
def placed_matrices(draw: st.DrawFn) -> tuple[np.ndarray, list[int]]:
    """A mixing matrix with any edges, and a process for each node, each process used."""
    nodes = draw(st.integers(1, 9))
    processes = draw(st.integers(1, nodes))
    ranks = [*range(processes), *draw(st.lists(st.integers(0, processes - 1), min_size=nodes))]
    seed = draw(st.integers(0, 10_000))
    generator = np.random.default_rng(seed)
    density = draw(st.sampled_from([0.0, 0.2, 0.6, 1.0]))
    matrix = generator.uniform(0.1, 1, (nodes, nodes)) * (
        generator.random((nodes, nodes)) < density
    )
    matrix += np.eye(nodes) * draw(st.sampled_from([0.0, 1.0]))
    return matrix, list(np.asarray(ranks[:nodes])[generator.permutation(nodes)])


@given(placed_matrices())
@settings(deadline=None)
def test_only_edges_that_cross_are_messages_and_a_row_goes_once(
    case: tuple[np.ndarray, list[int]],
) -> None:
    matrix, ranks = case
    edges = {(j, i) for i, j in zip(*np.nonzero(matrix), strict=True)}
    for rank in set(ranks):
        route = gossip_route(Weights.of_matrix(matrix), ranks, rank)
        leaves = {(ranks[i], j) for j, i in edges if ranks[j] == rank != ranks[i]}
        comes = {(ranks[j], j) for j, i in edges if ranks[i] == rank != ranks[j]}
        assert {(to, node) for to, rows in route.sends.items() for node in rows} == leaves
        assert {(of, node) for of, rows in route.receives.items() for node in rows} == comes
        assert all(list(rows) == sorted(rows) for rows in route.sends.values())
        for other in route.sends:
            assert (
                gossip_route(Weights.of_matrix(matrix), ranks, other).receives[rank]
                == route.sends[other]
            )


@given(placed_matrices())
@settings(deadline=None)
def test_the_rows_of_processes_are_those_of_the_whole_product(
    case: tuple[np.ndarray, list[int]],
) -> None:
    matrix, ranks = case
    values = torch.randn(len(ranks), 3, generator=torch.Generator().manual_seed(1)).double()
    whole = compile_rows(
        Weights.of_matrix(matrix), nodes=range(len(ranks)), dtype=torch.float64, device=CPU
    )
    right = whole.begin(values)
    np.testing.assert_allclose(right.numpy(), matrix @ values.numpy(), atol=1e-13)
    few = int(np.count_nonzero(matrix, axis=1).max()) <= 4
    for rank in set(ranks):
        own = [node for node, host in enumerate(ranks) if host == rank]
        others = gossip_route(Weights.of_matrix(matrix), ranks, rank).others
        mixer = compile_rows(
            Weights.of_matrix(matrix), nodes=own, others=others, dtype=torch.float64, device=CPU
        )
        begun = mixer.begin(values[own])
        found = mixer.finish(begun, values[own], values[list(others)])
        # Sums over few neighbours have one order, and so the same bits.
        torch.testing.assert_close(found, right[own], rtol=0, atol=0 if few else 1e-13)


def test_rows_of_silent_nodes_are_left_out() -> None:
    matrix = np.ones((4, 4))
    active = np.array([True, False, False, True])
    route = gossip_route(Weights.of_matrix(matrix), [0, 0, 1, 2], 0).only(active)
    assert route.sends == {1: (0,), 2: (0,)}
    assert route.receives == {2: (3,)}
    assert route.others == (3,)


def test_pairs_and_servers() -> None:
    ranks = [0, 0, 1, 1, 2]
    route = pair_route({0: 2, 1: 1}, ranks, 0)
    assert (route.sends, route.receives) == ({1: (0,)}, {1: (2,)})
    assert server_route([1, 2, 4], ranks, 0, 0).receives == {1: (2,), 2: (4,)}
    assert server_route([1, 2, 4], ranks, 1, 0).sends == {0: (2,)}
    assert server_route([1], ranks, 2, 0).sends == {}
