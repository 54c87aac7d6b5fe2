"""Metrics come together on rank 0, whoever is early or late, and a wrong part names its sender."""

from __future__ import annotations

import math
import struct
import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import Hub, Outcome, ThreadChannel, lost, rendezvous, run_ranks, run_threads
from torch.distributed import TCPStore

from tacit.communication.cluster.gathering import Gatherer, LostError, open_gatherer
from tacit.errors import PeerError

NUMBERS = [1000, 1001, 0, 1003]  # by rank
THREE = [3, 3]
STEPS = [0, 10, 20, 30, 40, 50]


def part(rank, step):
    return torch.arange(NUMBERS[rank], dtype=torch.float64) / 3 + 1000 * rank + step


def three(value=0.0):
    return torch.full((3,), value, dtype=torch.float64)


def run_through(seat, gatherer, pauses):
    """Every step, with a pause before each; what rank 0 was given, in order."""
    marks = []
    for step, pause in zip(STEPS, pauses, strict=True):
        time.sleep(pause)
        gatherer.put(step, part(seat.rank, step))
        marks += gatherer.ready()
    gatherer.finish(20.0)
    marks += gatherer.ready()
    return [[step, [numbers.tolist() for numbers in parts]] for step, parts in marks]


def right(processes):
    return [[step, [part(rank, step).tolist() for rank in range(processes)]] for step in STEPS]


def over_processes(seat):
    """Rank 0 is late with the first half of the marks, and early with the second."""
    gatherer = open_gatherer(seat.store, seat.rank, seat.processes, NUMBERS, 10.0, lost)
    early, late = [0.0] * 3, [0.1] * 3
    found = run_through(seat, gatherer, late + early if seat.rank == 0 else early + late)
    gatherer.close()
    gatherer._thread.join(10.0)
    idle = not gatherer._thread.is_alive()
    return [idle, found]


@pytest.mark.process
def test_processes_gather_in_order_whoever_is_late():
    first, second, third = run_ranks(over_processes, 3)
    assert first == Outcome(0, [True, right(3)])
    assert second == third == Outcome(0, [True, []])


@settings(deadline=None, max_examples=10)
@given(
    st.lists(
        st.lists(st.sampled_from([0.0, 0.002, 0.01]), min_size=len(STEPS), max_size=len(STEPS)),
        min_size=1,
        max_size=4,
    )
)
def test_any_skew_gives_the_same_marks(pauses):
    def gather(seat):
        gatherer = Gatherer(seat.channel, NUMBERS, 10.0, lost)
        try:
            return run_through(seat, gatherer, pauses[seat.rank])
        finally:
            gatherer.close()

    outcomes = run_threads(gather, len(pauses))
    assert outcomes == [
        Outcome(0, right(len(pauses)) if rank == 0 else []) for rank in range(len(pauses))
    ]


@pytest.fixture
def pair():
    """Channels of two ranks, closed in the end so that no thread waits on."""
    hub = Hub(2)
    channels = [ThreadChannel(hub, rank, 20.0, LostError) for rank in (0, 1)]
    yield channels
    for channel in channels:
        channel.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_at_most_four_marks_are_under_way(pair, rank):
    waiting = Gatherer(pair[rank], THREE, 0.2, lost)
    for step in range(4):
        waiting.put(step, three())
    assert waiting.ready() == []
    with pytest.raises(PeerError, match=rf"rank {1 - rank} was lost: its metrics .* in 0\.2 s"):
        waiting.put(4, three())
    with pytest.raises(PeerError, match=rf"rank {1 - rank} was lost: its metrics .* in 0\.1 s"):
        waiting.finish(0.1)
    # It goes on as soon as the other does.
    waiting._timeout = 20.0
    other = Gatherer(pair[1 - rank], THREE, 5.0, lost)
    for step in range(5):
        other.put(step, three(1.0))
        if step == 0:
            waiting.put(4, three())
    waiting.finish(5.0)
    other.finish(5.0)
    marks = waiting.ready() + other.ready()
    assert [step for step, _ in marks] == [0, 1, 2, 3, 4]
    for gatherer in (waiting, other):
        gatherer.close()


def test_put_waits_until_the_first_mark_is_complete(pair):
    gatherer, other = (
        Gatherer(pair[0], THREE, 10.0, lost),
        Gatherer(pair[1], THREE, 10.0, lost),
    )
    for step in range(4):
        gatherer.put(step, three())
    later = threading.Timer(0.1, other.put, (0, three(1.0)))
    later.start()
    gatherer.put(4, three())
    later.join(10)
    ((step, parts),) = gatherer.ready()
    assert (step, [numbers.tolist() for numbers in parts]) == (0, [[0.0] * 3, [1.0] * 3])
    other.close()


def test_a_lost_rank_is_named_where_the_run_asks(pair):
    gatherer = Gatherer(pair[0], THREE, 10.0, lost)
    gatherer.put(0, three())
    pair[1].close()
    with pytest.raises(PeerError, match="rank 1 was lost: its connection was closed"):
        gatherer.finish(10.0)
    for ask in (gatherer.ready, lambda: gatherer.put(1, three())):
        with pytest.raises(PeerError, match="rank 1 was lost"):
            ask()
    gatherer.close()


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((8, 1, 2, 3), "rank 1 sent metrics of step 8, where 7 was due"),
        ((math.nan, 1, 2, 3), "rank 1 sent metrics of step nan, where 7 was due"),
        ((7, 1, 2), "rank 1 sent 24 bytes of metrics, where 32 were due"),
        ((), "rank 1 sent 0 bytes of metrics, where 32 were due"),
    ],
)
def test_a_wrong_part_names_its_sender(pair, numbers, said):
    body = struct.pack(f"<{len(numbers)}d", *numbers)
    pair[1].send(0, torch.tensor(list(body), dtype=torch.uint8))
    gatherer = Gatherer(pair[0], THREE, 10.0, lost)
    gatherer.put(7, three())
    with pytest.raises(PeerError, match=said):
        gatherer.finish(10.0)
    gatherer.close()


def test_a_process_that_does_not_come_is_blamed():
    with rendezvous() as port:
        store = TCPStore("127.0.0.1", port, is_master=False)
        with pytest.raises(PeerError, match=r"rank 1 was lost: it did not come .* within 0\.1 s"):
            open_gatherer(store, 0, 2, THREE, 0.1, lost)


def test_blame_is_left_to_whom_it_concerns(pair):
    blamed: list[tuple[str, int]] = []

    def diagnose(rank, reason):
        blamed.append((threading.current_thread().name, rank))
        return lost(rank, reason)

    gatherer = Gatherer(pair[1], THREE, 10.0, diagnose)
    gatherer.put(0, three())
    pair[0].close()
    gatherer._thread.join(10.0)
    assert blamed == []
    with pytest.raises(PeerError, match="rank 0 was lost: its connection was closed"):
        gatherer.finish(10.0)
    assert blamed == [(threading.current_thread().name, 0)]
    gatherer.close()
