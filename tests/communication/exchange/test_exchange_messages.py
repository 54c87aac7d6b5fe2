"""What comes from another process is believed by nobody.

Which rows cross between processes: against a plain enumeration of edges.
"""

import math
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mixings import weights_of
from tacit.communication.exchange.messages import (
    HEADER_BYTES,
    Envelope,
    check,
    gossip_route,
    pair_route,
    read_header,
    server_route,
    unfinite,
    write_header,
)
from tacit.communication.exchange.rows import compile_rows
from tacit.errors import PeerError

SHAPES = (torch.Size([3]), torch.Size([]))
EXPECTED = Envelope(1, "mix", 7, 9, SHAPES, torch.float64, (2, 5))


def message(envelope, extra=0):
    content = write_header(envelope) + bytes(envelope.payload + extra)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def test_the_header_is_laid_out_as_documented():
    header = write_header(EXPECTED)
    assert len(header) == HEADER_BYTES == 64
    assert header[:8] == b"tacit\x00\x00\x01"
    assert struct.unpack("<II", header[8:16]) == (1, 1)
    assert struct.unpack("<qq", header[16:32]) == (7, 9)
    assert struct.unpack("<IIqq", header[32:56]) == (2, 2, 4, 2 * 4 * 8)
    assert header[56:] == bytes(8)
    assert EXPECTED.size == 64 + 64


def test_the_expected_message_passes():
    check(message(EXPECTED), EXPECTED)
    coded = replace(EXPECTED, sizes=(5, 0))
    assert coded.size == 64 + 5
    check(message(coded), coded)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (replace(EXPECTED, sender=2), "sender is 2 and must be 1"),
        (replace(EXPECTED, kind="swap"), "kind of exchange is 2 and must be 1"),
        (replace(EXPECTED, step=8), "step is 8 and must be 7"),
        (replace(EXPECTED, turn=10), "number of exchanges before is 10 and must be 9"),
        (replace(EXPECTED, dtype=torch.float32), "dtype is 1 and must be 2"),
        (replace(EXPECTED, nodes=(2,)), "rows is 1 and must be 2"),
        (replace(EXPECTED, shapes=(torch.Size([4]),) * 2), "numbers in a row is 8 and must be 4"),
        (replace(EXPECTED, sizes=(1, 2)), "bytes is 3 and must be 64"),
    ],
)
def test_a_header_that_says_something_else_is_refused(sent, said):
    with pytest.raises(PeerError, match="rank 1 sent a bad message at step 7") as refusal:
        check(message(sent), EXPECTED)
    assert said in str(refusal.value)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 127, 129])
def test_a_message_of_another_length_is_refused(length):
    whole = message(EXPECTED, extra=10)[:length]
    with pytest.raises(PeerError, match="rank 1 sent a bad message"):
        check(whole, EXPECTED)


@given(st.binary(max_size=200))
def test_no_bytes_but_a_header_of_ours_are_read(content):
    found = read_header(content)
    assert (found is None) == (not content.startswith(b"tacit\x00\x00\x01") or len(content) < 64)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rows_with_a_number_that_is_not_finite_are_found(bad):
    first, second = torch.zeros(4, 3), torch.zeros(4)
    assert unfinite([first, second]) == []
    first[2, 1] = bad
    assert unfinite([first, second]) == [2]
    second[0] = bad
    assert unfinite([first, second]) == [0, 2]


def test_finite_numbers_whose_sum_is_not_are_no_fault():
    large = torch.full((2, 3), torch.finfo(torch.float64).max, dtype=torch.float64)
    assert unfinite([large]) == []
    assert unfinite([torch.zeros(0, 3)]) == []


CPU = torch.device("cpu")


@st.composite
def placed_matrices(draw):
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
def test_only_edges_that_cross_are_messages_and_a_row_goes_once(case):
    matrix, ranks = case
    edges = {(j, i) for i, j in zip(*np.nonzero(matrix), strict=True)}
    for rank in set(ranks):
        route = gossip_route(weights_of(matrix), ranks, rank)
        leaves = {(ranks[i], j) for j, i in edges if ranks[j] == rank != ranks[i]}
        comes = {(ranks[j], j) for j, i in edges if ranks[i] == rank != ranks[j]}
        assert {(to, node) for to, rows in route.sends.items() for node in rows} == leaves
        assert {(of, node) for of, rows in route.receives.items() for node in rows} == comes
        assert all(list(rows) == sorted(rows) for rows in route.sends.values())
        for other in route.sends:
            assert (
                gossip_route(weights_of(matrix), ranks, other).receives[rank] == route.sends[other]
            )


@given(placed_matrices())
@settings(deadline=None)
def test_the_rows_of_processes_are_those_of_the_whole_product(case):
    matrix, ranks = case
    values = torch.randn(len(ranks), 3, generator=torch.Generator().manual_seed(1)).double()
    whole = compile_rows(
        weights_of(matrix), nodes=range(len(ranks)), dtype=torch.float64, device=CPU
    )
    right = whole.begin(values)
    np.testing.assert_allclose(right.numpy(), matrix @ values.numpy(), atol=1e-13)
    few = int(np.count_nonzero(matrix, axis=1).max()) <= 4
    for rank in set(ranks):
        own = [node for node, host in enumerate(ranks) if host == rank]
        others = gossip_route(weights_of(matrix), ranks, rank).others
        mixer = compile_rows(
            weights_of(matrix), nodes=own, others=others, dtype=torch.float64, device=CPU
        )
        begun = mixer.begin(values[own])
        found = mixer.finish(begun, values[own], values[list(others)])
        # Sums over few neighbours have one order, and so the same bits.
        torch.testing.assert_close(found, right[own], rtol=0, atol=0 if few else 1e-13)


def test_rows_of_silent_nodes_are_left_out():
    matrix = np.ones((4, 4))
    active = np.array([True, False, False, True])
    route = gossip_route(weights_of(matrix), [0, 0, 1, 2], 0).only(active)
    assert route.sends == {1: (0,), 2: (0,)}
    assert route.receives == {2: (3,)}
    assert route.others == (3,)


def test_pairs_and_servers():
    ranks = [0, 0, 1, 1, 2]
    route = pair_route({0: 2, 1: 1}, ranks, 0)
    assert (route.sends, route.receives) == ({1: (0,)}, {1: (2,)})
    assert server_route([1, 2, 4], ranks, 0, 0).receives == {1: (2,), 2: (4,)}
    assert server_route([1, 2, 4], ranks, 1, 0).sends == {0: (2,)}
    assert server_route([1], ranks, 2, 0).sends == {}
