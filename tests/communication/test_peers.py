"""Which process hosts which node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.communication.peers import Placement, place
from tacit.errors import InputError

SIZES = st.integers(1, 200).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count)))


@given(SIZES)
def test_blocks_are_neighbours_of_equal_size_as_can_be(sizes):
    count, processes = sizes
    placement = place(count, processes, "blocks")
    assert placement.processes == processes
    hosted = [placement.hosted(rank) for rank in range(processes)]
    assert [node for nodes in hosted for node in nodes] == list(range(count))
    lengths = [len(nodes) for nodes in hosted]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1
    assert lengths[-1] >= 1


@pytest.mark.parametrize(
    ("count", "processes", "ranks"),
    [
        (1, 1, (0,)),
        (4, 2, (0, 0, 1, 1)),
        (5, 2, (0, 0, 0, 1, 1)),
        (7, 3, (0, 0, 0, 1, 1, 2, 2)),
        (3, 3, (0, 1, 2)),
    ],
)
def test_blocks_by_hand(count, processes, ranks):
    assert place(count, processes) == Placement(ranks)


@given(
    st.integers(1, 8).flatmap(
        lambda processes: st.tuples(
            st.just(processes),
            st.lists(st.integers(0, processes - 1), max_size=20).flatmap(
                lambda more: st.permutations([*range(processes), *more])
            ),
        )
    )
)
def test_a_list_is_taken_as_it_is(case):
    processes, ranks = case
    placement = place(len(ranks), processes, tuple(ranks))
    assert placement.ranks == tuple(ranks)
    assert placement.processes == processes
    for rank in range(processes):
        nodes = placement.hosted(rank)
        assert nodes == tuple(sorted(nodes))
        assert all(ranks[node] == rank for node in nodes)
    assert sum(len(placement.hosted(rank)) for rank in range(processes)) == len(ranks)


def test_a_rank_that_does_not_exist_hosts_nothing():
    assert place(4, 2).hosted(2) == ()


@pytest.mark.parametrize("processes", [5, 0, -1])
@pytest.mark.parametrize("placement", ["blocks", (0, 1, 2, 3)])
def test_every_process_hosts_a_node(processes, placement):
    with pytest.raises(InputError) as caught:
        place(4, processes, placement)
    assert (caught.value.where, caught.value.value) == ("--processes", processes)
    assert "must be 1 to 4" in str(caught.value)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ((0, 1), "one rank for each of the 4 nodes; it names 2"),
        ((0, 1, 0, 1, 0), "one rank for each of the 4 nodes; it names 5"),
        ((), "one rank for each of the 4 nodes; it names 0"),
        ((0, 1, 3, 2), "node 2 is on rank 3, and 3 processes have ranks 0 to 2"),
        ((0, 1, 2, -1), "node 3 is on rank -1, and 3 processes have ranks 0 to 2"),
        (
            (0, 0, 2, 2),
            "rank 1 hosts no node: name every rank from 0 to 2, or start fewer processes",
        ),
        (
            (2, 2, 2, 2),
            "rank 0 hosts no node: name every rank from 0 to 2, or start fewer processes",
        ),
    ],
)
def test_a_list_that_is_wrong_says_why(ranks, expected):
    with pytest.raises(InputError) as caught:
        place(4, 3, ranks)
    assert (caught.value.where, caught.value.value) == ("nodes.placement", list(ranks))
    assert expected in str(caught.value)
