"""Whom a failed wait is put down to, from what heartbeats say."""

import pytest

from tacit.communication.cluster.watch import Heartbeat, Seen
from tacit.communication.received import HEARTBEAT
from tacit.communication.reports import awaited, describe_rank, first_failure

HOSTS = [[0, 1], [2, 3, 4], [5], [6, 8, 9]]


def seen(*waiting, done=None, dead=None):
    """Ranks that live, each at step 10 + rank, waiting for these; one is done, one is dead."""
    return [
        Seen(Heartbeat(99, 10 + rank, other, rank == done), missed=5 if rank == dead else 0)
        for rank, other in enumerate(waiting)
    ]


def blamed(rank, waiting_for, reason, ranks, hosts):
    progress = {number: one.progress for number, one in enumerate(ranks)}
    names = [describe_rank(number, hosts) for number in progress]
    return str(first_failure(awaited(rank, waiting_for, progress), reason, progress, names))


@pytest.mark.parametrize("rank", [0, 1])
def test_the_last_of_a_chain_is_blamed_by_all(rank):
    ranks = seen(1, 2, 3, None)
    line = blamed(rank, rank + 1, "nothing for 60 s", ranks, HOSTS)
    assert line.startswith("rank 3 (nodes 6, 8, 9) is alive at step 13, but has sent nothing")
    assert "rank 2 waits for it" in line
    assert "--resume" in line


def test_a_dead_rank_is_blamed_although_its_last_word_was_that_it_waits():
    line = blamed(0, 1, "connection closed", seen(1, 2, None, None, dead=1), HOSTS)
    assert line.startswith("rank 1 (nodes 2 to 4) was lost, last seen at step 11")
    assert "connection closed" in line


def test_a_dead_rank_within_the_chain_is_blamed():
    line = blamed(0, 1, "nothing for 60 s", seen(1, 2, 3, None, dead=2), HOSTS)
    assert line.startswith("rank 2 (node 5) was lost, last seen at step 12")


def test_a_rank_that_has_ended_is_not_called_lost():
    ranks = seen(1, None, None, done=1)
    ranks[1].missed = 50
    line = blamed(0, 1, "connection closed", ranks, ())
    assert line.startswith("rank 1 has ended at step 11, but rank 0 waits for it")


@pytest.mark.parametrize("waiting", [(1, 0), (1, 2, 0), (1, 2, 1)])
def test_a_circle_is_put_down_to_the_link(waiting):
    line = blamed(0, 1, "nothing for 60 s", seen(*waiting), HOSTS)
    assert line.startswith("rank 1 (nodes 2 to 4) is alive at step 11, but nothing comes")
    assert "to rank 0 (nodes 0 to 1) (nothing for 60 s)" in line


def test_a_rank_that_claims_to_wait_for_nobody_known_is_blamed_itself():
    line = blamed(0, 1, "nothing", seen(1, 77), HOSTS)
    assert line.startswith("rank 1 (nodes 2 to 4) is alive at step 11")


def test_a_rank_that_never_began_has_no_step():
    ranks = [Seen(Heartbeat(1)), Seen(Heartbeat(1))]
    assert blamed(0, 1, "nothing", ranks, ()).startswith("rank 1 is alive, but has sent")


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", "[1, 2, 3, 4, 5]", '["a", 1, 2, 3]', "[" * 10**5]
)
def test_a_heartbeat_that_cannot_be_read_is_none(text):
    assert Heartbeat.read(text, 1) == Heartbeat()


def test_a_heartbeat_comes_out_as_it_went_in():
    for heartbeat in (Heartbeat(), Heartbeat(3, 7, 2, True), Heartbeat(1, 0, None, False)):
        assert Heartbeat.read(HEARTBEAT.write(heartbeat), 1) == heartbeat
