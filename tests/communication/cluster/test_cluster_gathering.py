"""Metrics come together on rank 0, whoever is early or late, and a wrong part names its sender."""

from __future__ import annotations

import math
import struct
import threading
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue, TypeAdapter
from ranks import Hub, Outcome, ThreadChannel, lost, rendezvous, run_ranks, run_threads
from torch.distributed import TCPStore

from tacit.communication.cluster.gathering import Gatherer, LostError, open_gatherer
from tacit.communication.received import Form
from tacit.errors import PeerError, TacitError

ANYTHING = Form(TypeAdapter(JsonValue), 16 * 2**20)
DIMENSION = 1000
STEPS = [0, 10, 20, 30, 40, 50]


def document(rank, step):
    """Of another length on every rank and step."""
    return {"rank": rank, "losses": [step / 7] * (rank + step % 3), "text": "ü" * rank}


def vector(rank, step):
    return torch.arange(DIMENSION, dtype=torch.float64) / 3 + 1000 * rank + step


def run_through(seat, gatherer, pauses):
    """Every step, with a pause before each; what rank 0 was given, in order."""
    marks = []
    for step, pause in zip(STEPS, pauses, strict=True):
        time.sleep(pause)
        given_away = vector(seat.rank, step)
        gatherer.put(step, document(seat.rank, step), given_away)
        given_away.zero_()  # what was put has been copied
        marks += gatherer.ready()
    gatherer.finish(20.0)
    marks += gatherer.ready()
    return [
        [step, [part for part, _ in parts], [numbers.tolist() for _, numbers in parts]]
        for step, parts in marks
    ]


def right(processes):
    ranks = range(processes)
    return [
        [step, [document(r, step) for r in ranks], [vector(r, step).tolist() for r in ranks]]
        for step in STEPS
    ]


def over_processes(seat):
    """Rank 0 is late with the first half of the marks, and early with the second."""
    gatherer = open_gatherer(seat.store, seat.rank, seat.processes, ANYTHING, 10.0, lost)
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
        gatherer = Gatherer(seat.channel, ANYTHING, 10.0, lost)
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
    waiting = Gatherer(pair[rank], ANYTHING, 0.2, lost)
    for step in range(4):
        waiting.put(step, None, torch.zeros(3))
    assert waiting.ready() == []
    with pytest.raises(PeerError, match=rf"rank {1 - rank} was lost: its metrics .* in 0\.2 s"):
        waiting.put(4, None, torch.zeros(3))
    with pytest.raises(PeerError, match=rf"rank {1 - rank} was lost: its metrics .* in 0\.1 s"):
        waiting.finish(0.1)
    # It goes on as soon as the other does.
    waiting._timeout = 20.0
    other = Gatherer(pair[1 - rank], ANYTHING, 5.0, lost)
    for step in range(5):
        other.put(step, None, torch.ones(3))
        if step == 0:
            waiting.put(4, None, torch.zeros(3))
    waiting.finish(5.0)
    other.finish(5.0)
    marks = waiting.ready() + other.ready()
    assert [step for step, _ in marks] == [0, 1, 2, 3, 4]
    for gatherer in (waiting, other):
        gatherer.close()


def test_put_waits_until_the_first_mark_is_complete(pair):
    gatherer, other = (
        Gatherer(pair[0], ANYTHING, 10.0, lost),
        Gatherer(pair[1], ANYTHING, 10.0, lost),
    )
    for step in range(4):
        gatherer.put(step, None, torch.zeros(3))
    later = threading.Timer(0.1, other.put, (0, "late", torch.ones(3)))
    later.start()
    gatherer.put(4, None, torch.zeros(3))
    later.join(10)
    ((step, parts),) = gatherer.ready()
    assert (step, [text for text, _ in parts]) == (0, [None, "late"])
    other.close()


def test_a_lost_rank_is_named_where_the_run_asks(pair):
    gatherer = Gatherer(pair[0], ANYTHING, 10.0, lost)
    gatherer.put(0, None, torch.zeros(3))
    pair[1].close()
    with pytest.raises(PeerError, match="rank 1 was lost: its connection was closed"):
        gatherer.finish(10.0)
    for ask in (gatherer.ready, lambda: gatherer.put(1, None, torch.zeros(3))):
        with pytest.raises(PeerError, match="rank 1 was lost"):
            ask()
    gatherer.close()


@pytest.mark.parametrize(
    ("head", "body", "said"),
    [
        (struct.pack("<qqq", 8, 4, 3), b"", "rank 1 sent metrics of step 8, where 7 was due"),
        (struct.pack("<qqq", 7, 4, 2), b"", "rank 1 sent metrics of 2 parameters; rank 0 has 3"),
        (struct.pack("<qqq", 7, 4, -1), b"", "rank 1 sent metrics of -1 parameters"),
        (struct.pack("<qqq", 7, 2**24 + 1, 3), b"", "metrics of 16777217 bytes; at most"),
        (struct.pack("<qqq", 7, -8, 3), b"", "rank 1 sent metrics of -8 bytes"),
        (struct.pack("<qq", 7, 4), b"", "rank 1 sent 16 bytes of metrics, where 24 were due"),
        (struct.pack("<qqq", 7, 4, 3), b"null", "rank 1 sent 4 bytes of metrics, where 32 were"),
        (
            struct.pack("<qqq", 7, 4, 3),
            b"nil " + bytes(28),
            "sent a wrong document of metrics: Invalid JSON",
        ),
        (
            struct.pack("<qqq", 7, 4, 3),
            b"\xff\xfe\x00\xd8" + bytes(28),
            "sent a wrong document of metrics: Invalid JSON",
        ),
        (
            struct.pack("<qqq", 7, 8, 3),
            b"null    " + struct.pack("<3d", 1, math.inf, 2),
            "not finite",
        ),
        (
            struct.pack("<qqq", 7, 10**5, 3),
            b"[" * 10**5 + bytes(24),
            "sent a wrong document of metrics: Invalid JSON",
        ),
    ],
)
def test_a_wrong_part_names_its_sender(pair, head, body, said):
    for part in (head, body):
        if part:
            pair[1].send(0, torch.frombuffer(bytearray(part), dtype=torch.uint8))
    gatherer = Gatherer(pair[0], ANYTHING, 10.0, lost)
    gatherer.put(7, None, torch.zeros(3))
    with pytest.raises(PeerError, match=said):
        gatherer.finish(10.0)
    gatherer.close()


def test_what_cannot_be_a_part_is_refused_where_it_is_put(pair):
    gatherer = Gatherer(pair[1], replace(ANYTHING, longest=10), 10.0, lost)
    with pytest.raises(ValueError, match=r"a vector is \[d\]"):
        gatherer.put(0, None, torch.zeros(2, 2))
    with pytest.raises(TacitError, match="12 bytes are to be shared, and 10 can be"):
        gatherer.put(0, "0123456789", torch.zeros(2))
    gatherer.close()


def test_a_process_that_does_not_come_is_blamed():
    with rendezvous() as port:
        store = TCPStore("127.0.0.1", port, is_master=False)
        with pytest.raises(PeerError, match=r"rank 1 was lost: it did not come .* within 0\.1 s"):
            open_gatherer(store, 0, 2, ANYTHING, 0.1, lost)


def test_blame_is_left_to_whom_it_concerns(pair):
    blamed: list[tuple[str, int]] = []

    def diagnose(rank, reason):
        blamed.append((threading.current_thread().name, rank))
        return lost(rank, reason)

    gatherer = Gatherer(pair[1], ANYTHING, 10.0, diagnose)
    gatherer.put(0, None, torch.zeros(3))
    pair[0].close()
    gatherer._thread.join(10.0)
    assert blamed == []
    with pytest.raises(PeerError, match="rank 0 was lost: its connection was closed"):
        gatherer.finish(10.0)
    assert blamed == [(threading.current_thread().name, 0)]
    gatherer.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_vectors_come_as_float64(dtype):
    def gather(seat):
        gatherer = Gatherer(seat.channel, ANYTHING, 10.0, lost)
        gatherer.put(0, None, torch.arange(5, dtype=dtype) + seat.rank)
        gatherer.finish(10.0)
        gatherer.close()
        return [[v.dtype == torch.float64, v.tolist()] for _, ps in gatherer.ready() for _, v in ps]

    numbers = [0.0, 1.0, 2.0, 3.0, 4.0]
    assert run_threads(gather, 2)[0].value == [[True, numbers], [True, [v + 1 for v in numbers]]]
