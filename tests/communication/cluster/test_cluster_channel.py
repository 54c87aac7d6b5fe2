"""The channel: what was sent comes out, in order, and a lost peer is named in time."""

import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import (
    CPU,
    Hub,
    Outcome,
    ThreadChannel,
    lost,
    rendezvous,
    run_ranks,
    run_threads,
    started,
    take_seat,
)
from torch import Tensor

from tacit.communication.cluster import channel as module
from tacit.communication.cluster.channel import HEAD, RackGatherer, TorchChannel, open_channel
from tacit.errors import PeerError

pytestmark = pytest.mark.process

SIZES = [0, 1, 10**6, 17, 0, 4096]
LARGE = 30 * 10**6
NAMES = ("rank 0", "rank 1", "rank 2")
NUMBERS = [3, 3, 3]  # of a part of metrics, by rank


def bytes_of(label, size):
    """Bytes that no other message has."""
    return hashlib.shake_128(label.encode()).digest(size)


def message(label, size):
    return torch.frombuffer(bytearray(bytes_of(label, size) + b"."), dtype=torch.uint8)[:size]


def seen(arrived):
    """Length and digest."""
    return [len(arrived), hashlib.blake2b(arrived.numpy().tobytes()).hexdigest()]


def expected(label, size):
    return [size, hashlib.blake2b(bytes_of(label, size)).hexdigest()]


def talk(seat):
    """All that ranks in a ring say to each other when nobody is lost."""
    rank, channel, count = seat.rank, seat.channel, seat.processes
    after, before = (rank + 1) % count, (rank - 1) % count
    found = {}

    # One after another around the ring; the receives announce more than what comes.
    found["sizes"] = []
    for position, size in enumerate(SIZES):
        arrival = channel.receive(before, size + 1000 * (position % 2))
        channel.send(after, message(f"{rank} {position}", size))
        found["sizes"].append(seen(arrival()))
        assert arrival() is arrival()

    # Many to one process, who looks later.
    if rank == 0:
        for number in range(7):
            channel.send(1, message(f"order {number}", 1000 * (7 - number)))
    if rank == 1:
        time.sleep(0.05)
        arrivals = [channel.receive(0, 8000) for _ in range(7)]
        found["order"] = [seen(arrival()) for arrival in arrivals]

    # Both directions at once, to both neighbours, more than any buffer of the system holds.
    peers = [other for other in range(count) if other != rank]
    for peer in peers:
        channel.send(peer, torch.full((LARGE,), 16 * rank + peer, dtype=torch.uint8))
    large = [channel.receive(peer, LARGE) for peer in peers]
    found["large"] = [
        len(came) == LARGE and bool((came == 16 * peer + rank).all())
        for peer, came in zip(peers, (arrival() for arrival in large), strict=True)
    ]

    # One envelope for everybody, written as numbers of eight bytes, read as such.
    shared = channel.envelope(80)
    shared.view(torch.float64).copy_(torch.arange(10) + 100.0 * rank)
    for peer in peers:
        channel.send(peer, shared)
    found["shared"] = [channel.receive(peer, 80)().view(torch.float64).tolist() for peer in peers]
    channel.finish()
    found["sent"] = channel.bytes_sent
    found["waited"] = sorted({peer for peer in seat.waited if peer is not None})
    found["waits for nobody"] = seat.waited[-1:]

    # Rank 0 goes home; that is no concern of those who have nothing more to say to it.
    if rank == 0:
        return found
    time.sleep(0.3)
    other = 3 - rank
    channel.send(other, message("late", 5000))
    found["late"] = seen(channel.receive(other, 5000)())
    channel.finish()
    return found


def talk_together(seat):
    """Rounds whose messages begin in one batch, as over NCCL, both ways and of several lengths."""
    own = take_seat(
        seat.rank, seat.processes, seat.store.port, 10.0, name="batched", batched=True
    ).channel
    others = [other for other in range(own.processes) if other != own.rank]
    found = []
    for turn, size in enumerate((0, 1, LARGE, 17)):
        with own.together():
            arrivals = {other: own.receive(other, size + 100) for other in others}
            for other in others:
                own.send(other, message(f"{own.rank} {other} {turn}", size))
            assert [begun.work for begun in own._due] == [None] * 2 * len(others)
        found.append([seen(arrivals[other]()) for other in others])
    with own.together():  # a third to one process waits for the first, which then has to begin
        late = [own.receive(others[0], 10) for _ in range(3)] if own.rank < 2 else []
        for number in range(len(late)):
            own.send(others[0], message(f"{number}", 10))
    found.append([seen(arrival()) for arrival in late])
    own.finish()
    own.close()
    return found


def check_talk(outcomes, head):
    assert [outcome.code for outcome in outcomes] == [0, 0, 0], outcomes
    for rank, found in enumerate(outcome.value for outcome in outcomes):
        before = (rank - 1) % 3
        peers = [other for other in range(3) if other != rank]
        assert found["sizes"] == [
            expected(f"{before} {position}", size) for position, size in enumerate(SIZES)
        ]
        assert found["large"] == [True, True]
        assert found["shared"] == [[100.0 * peer + j for j in range(10)] for peer in peers]
        ordered = 1000 * 28 + 7 * head if rank == 0 else 0
        once = sum(size + head for size in SIZES)
        assert found["sent"] == once + ordered + 2 * (LARGE + head) + 2 * (80 + head)
    first, second, third = (outcome.value for outcome in outcomes)
    assert second["order"] == [expected(f"order {n}", 1000 * (7 - n)) for n in range(7)]
    assert second["late"] == third["late"] == expected("late", 5000)
    assert "late" not in first


def test_messages_that_begin_in_one_batch():
    outcomes = run_ranks(talk_together, 3)
    assert [outcome.code for outcome in outcomes] == [0, 0, 0], outcomes
    for rank, found in enumerate(outcome.value for outcome in outcomes):
        others = [other for other in range(3) if other != rank]
        for turn, size in enumerate((0, 1, LARGE, 17)):
            assert found[turn] == [expected(f"{other} {rank} {turn}", size) for other in others]
        if rank < 2:
            assert found[4] == [expected(f"{number}", 10) for number in range(3)]


def test_processes_get_what_was_sent_to_them():
    outcomes = run_ranks(talk, 3)
    check_talk(outcomes, HEAD)
    for rank, found in enumerate(outcome.value for outcome in outcomes):
        assert found["waited"] == [other for other in range(3) if other != rank]
        assert found["waits for nobody"] == [None]


def test_threads_that_stand_for_ranks_do_as_well():
    check_talk(run_threads(talk, 3), 0)


# What a survivor sees: one interpreter of its own, which must also end by itself.


def survive(port):
    """Rank 0, which loses rank 1 (killed) and then rank 2 (stopped), and ends with code 4."""
    killing = take_seat(0, 3, port, 30.0)
    stopping = take_seat(0, 3, port, 2.0, name="stopping")
    metrics = take_seat(0, 3, port, 2.0, name="gatherer")
    gatherer = RackGatherer(metrics.channel, NAMES, NUMBERS, lambda rank, step: False)
    gatherer.put(0, torch.zeros(3, dtype=torch.float64))

    def tell(action):
        try:
            action()
        except PeerError as error:
            print(json.dumps(str(error)), flush=True)

    killing.channel.send(1, torch.zeros(LARGE, dtype=torch.uint8))
    killing.store.set("sent", "")  # which rank 1 lives to see, however busy the machine
    tell(lambda: killing.channel.receive(1, LARGE)())
    tell(killing.channel.finish)
    tell(lambda: killing.channel.receive(1, 1)())
    for _ in range(2):
        stopping.channel.send(2, torch.zeros(LARGE, dtype=torch.uint8))
    arrival = stopping.channel.receive(2, LARGE)
    tell(lambda: stopping.channel.send(2, torch.zeros(1, dtype=torch.uint8)))
    tell(arrival)
    tell(gatherer.finish)
    print(json.dumps([stopping.waited, killing.waited]), flush=True)
    for thing in (stopping.channel, killing.channel, metrics.channel):
        thing.close()
    print(json.dumps("closed"), flush=True)
    with pytest.raises(ValueError, match="closed"):
        stopping.channel.send(1, torch.zeros(1, dtype=torch.uint8))
    sys.exit(4)


def be_lost(seat):
    """Ranks 1 and 2 of `survive`; they take nothing of what is sent to them."""
    again = take_seat(seat.rank, 3, seat.store.port, 30.0, name="stopping")
    metrics = take_seat(seat.rank, 3, seat.store.port, 30.0, name="gatherer")
    gatherer = RackGatherer(metrics.channel, NAMES, NUMBERS, lambda rank, step: False)
    if seat.rank == 1:
        gatherer.put(0, torch.zeros(3, dtype=torch.float64))
        gatherer.finish()
        seat.store.wait(["sent"])
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    assert again.rank == 2
    os.kill(os.getpid(), signal.SIGSTOP)


def test_a_lost_peer_is_named_in_time_and_the_process_ends_by_itself():
    here = Path(__file__).parent
    paths = os.pathsep.join(map(str, (here, here.parents[1])))  # of `ranks`, and what that imports
    code = "import sys, test_cluster_channel as t; t.survive(int(sys.argv[1]))"
    with rendezvous() as port, started(be_lost, [1, 2], 3, port, 30.0) as running:
        survivor = subprocess.Popen(
            [sys.executable, "-c", code, str(port)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )
        try:
            output, _ = survivor.communicate(timeout=90)
        finally:
            survivor.kill()
            survivor.wait(10)
        killed, stopped = (process for process, _ in running)
        killed.join(10)  # the server that forked it tells how it ended
        assert killed.exitcode == -signal.SIGKILL
        assert stopped.exitcode is None
    assert survivor.returncode == 4
    died, died_sending, later, silent, torn, gathered, waited, closed = map(
        json.loads, output.splitlines()
    )
    closed_text = "rank 1 was lost: its connection was closed"
    # A closed connection is noticed as such; one that is only silent at its timeout.
    assert died == died_sending == later == closed_text
    assert silent == "rank 2 was lost: nothing came to or from it within 2 s"
    assert torn.startswith("rank 2 was lost: ")
    assert gathered == silent
    assert 2 in waited[0]
    assert 1 in waited[1]
    assert waited[0][-1] is waited[1][-1] is None
    assert closed == "closed"


def test_a_process_that_does_not_come_is_named():
    with rendezvous() as port:
        store = module.dist.TCPStore("127.0.0.1", port, is_master=False)
        store.set("tacit-channel/here/1", "")
        with pytest.raises(PeerError, match=r"rank 2 was lost: it did not come .* within 0\.2 s"):
            open_channel(store, 0, 4, CPU, 0.2, lost, lambda _: None)


def test_threads_name_a_lost_rank():
    given_up = threading.Event()

    def silent(seat):
        if seat.rank:
            given_up.wait(20.0)
            return
        try:
            seat.channel.receive(1, 10)()
        finally:
            given_up.set()

    def leaves(seat):
        if seat.rank == 0:
            seat.channel.receive(1, 10)()

    assert run_threads(silent, 2, timeout=0.2)[0] == Outcome(
        4, "rank 1 was lost: nothing came from it"
    )
    assert run_threads(leaves, 2, timeout=20)[0] == Outcome(
        4, "rank 1 was lost: its connection was closed"
    )


# What goes on the wire, seen by a group that keeps it.


class Done:
    def wait(self, timeout):
        return True


class Wire:
    """A group of torch.distributed that keeps what is sent, and delivers what it is told to."""

    def __init__(self, delivered=b""):
        self.sent: list[Tensor] = []
        self.supports_coalescing = False
        self.delivered = delivered

    def send(self, tensors, rank, tag):
        self.sent.extend(tensors)
        return Done()

    def recv(self, tensors, rank, tag):
        came = torch.frombuffer(bytearray(self.delivered), dtype=torch.uint8)
        tensors[0][: len(came)] = came
        return Done()

    def abort(self):
        """Nothing is under way."""


def over(wire, waiting=lambda _: None):
    return TorchChannel(
        wire,
        rank=1,
        processes=3,
        device=CPU,
        timeout=1.0,
        diagnose=lost,
        waiting=waiting,
        batched=False,
    )


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_a_message_is_a_head_of_16_bytes_and_its_payload(payload):
    wire = Wire()
    content = torch.frombuffer(bytearray(payload + b"."), dtype=torch.uint8)[: len(payload)]
    over(wire).send(0, content)
    head = b"tacit\x00\x00\x01" + struct.pack("<Q", len(payload))
    assert wire.sent[0].numpy().tobytes() == head + payload
    assert over(Wire(head + payload)).receive(0, 200)().tolist() == list(payload)


def test_an_envelope_is_not_copied_and_anything_else_is():
    wire = Wire()
    channel = over(wire)
    envelope = channel.envelope(8)
    assert envelope.data_ptr() % 16 == 0
    envelope.zero_()
    channel.send(0, envelope)
    channel.send(2, envelope)
    other = torch.zeros(8, dtype=torch.uint8)
    channel.send(0, other)
    channel.send(2, envelope[:4])
    starts = [sent[HEAD:].data_ptr() for sent in wire.sent]
    assert starts[0] == starts[1] == envelope.data_ptr()
    assert starts[2] != other.data_ptr()
    assert starts[3] != envelope.data_ptr()
    assert [len(sent) for sent in wire.sent] == [24, 24, 24, 20]
    assert channel.bytes_sent == 92


@pytest.mark.parametrize(
    ("delivered", "said"),
    [
        (b"tacit\x00\x00\x01" + struct.pack("<Q", 9), "rank 2 sent a message of 9 bytes, where 8"),
        (b"tacit\x00\x00\x01" + b"\xff" * 8, "rank 2 sent a message of 18446744073709551615 bytes"),
        (b"tacit\x00\x00\x02" + struct.pack("<Q", 8), "rank 2 sent a message that is none of"),
        (b"\x00" * 24, "rank 2 sent a message that is none of"),
    ],
)
def test_a_wrong_head_names_the_sender(delivered, said):
    arrival = over(Wire(delivered)).receive(2, 8)
    with pytest.raises(PeerError, match=said):
        arrival()


@pytest.mark.parametrize("peer", [1, -1, 3])
def test_no_messages_to_oneself_or_to_nobody(peer):
    channel = over(Wire())
    with pytest.raises(ValueError, match="no channel to"):
        channel.send(peer, torch.zeros(1, dtype=torch.uint8))
    with pytest.raises(ValueError, match="no channel to"):
        channel.receive(peer, 1)


@pytest.mark.parametrize("wrong", [torch.zeros(3), torch.zeros(2, 2, dtype=torch.uint8)])
def test_a_message_is_bytes_in_a_row(wrong):
    with pytest.raises(ValueError, match="a message is uint8"):
        over(Wire()).send(0, wrong)


@pytest.mark.parametrize(
    ("thrown", "said"),
    [
        ("[pair.cc:553] Connection closed by peer [127.0.0.1]:1", "its connection was closed"),
        ("[pair.cc:1] Timed out waiting 1000ms for recv", "nothing came to or from it within 1 s"),
        ("Application timeout caused pair closure", "all connections were given up after a wait"),
        ("{an odd} one", "RuntimeError: {an odd} one"),
    ],
)
def test_what_gloo_throws_becomes_the_blame(thrown, said):
    def fail(*_):
        raise RuntimeError(thrown)

    wire, told = Wire(), []
    wire.send = wire.recv = fail  # type: ignore[method-assign]
    channel = over(wire, waiting=told.append)
    for action in (
        lambda: channel.receive(2, 1),
        lambda: channel.send(2, torch.zeros(1, dtype=torch.uint8)),
    ):
        with pytest.raises(PeerError) as caught:
            action()
        assert str(caught.value).startswith(f"rank 2 was lost: {said}")
    assert told == [2, None, 2, None]
    assert channel.bytes_sent == 0


def test_nothing_that_lay_in_memory_passes_for_a_message(monkeypatch):
    stale = torch.frombuffer(bytearray(b"tacit\0\0\1" + bytes(108)), dtype=torch.uint8)
    monkeypatch.setattr(module.torch, "empty", lambda size, **_: stale[:size])
    with pytest.raises(PeerError, match="none of tacit"):
        over(Wire(b"t")).receive(0, 100)()


def test_the_waits_of_threads_are_bounded_in_number():
    channel = ThreadChannel(Hub(2), 0, 0.05)
    channel.send(1, torch.zeros(1, dtype=torch.uint8))
    with pytest.raises(PeerError, match="rank 1 was lost"):
        channel.finish()


@pytest.mark.parametrize(
    ("devices", "nccl"),
    [(("GPU-1", "GPU-2"), 2), (("GPU-1", "GPU-1"), 0), (("GPU-1", ""), 0), (("", ""), 0)],
    ids=["one each", "one for both", "one has none", "none"],
)
def test_nccl_is_for_processes_with_a_device_each(monkeypatch, devices, nccl):
    """Which group is asked for, and that all ask for the same; gloo stands in its place."""
    words, asked, found = iter(devices), [], []
    monkeypatch.setattr(module, "_own_device", lambda device: next(words))

    def instead(*arguments):
        asked.append(arguments[1])
        return gloo(*arguments)

    gloo = module._gloo
    monkeypatch.setattr(module, "_nccl", instead)

    def connected(rank, port):
        channel = take_seat(rank, 2, port, 10.0).channel
        with channel.together():
            arrival = channel.receive(1 - rank, 10)
            channel.send(1 - rank, torch.full((10,), rank, dtype=torch.uint8))
        found.append(int(arrival().sum()) == 10 * (1 - rank))
        channel.finish()

    with rendezvous() as port:
        threads = [threading.Thread(target=connected, args=(rank, port)) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert found == [True, True]
    assert len(asked) == nccl
