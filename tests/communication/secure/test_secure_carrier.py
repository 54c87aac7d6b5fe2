"""Frames between sites: through relays and directly, of any size, while connections come and go."""

import os
import socket
import struct
import threading
from contextlib import ExitStack

import pytest
import zenoh
from hypothesis import given, settings
from hypothesis import strategies as st
from ways import LIMIT, QUIET, RUN, all_reach_all, awaited, ends, forwarding, members, relaying

from ports import free_address
from tacit.communication.secure.carrier import Carrier
from tacit.communication.secure.sessions import run_relay
from tacit.errors import InputError

pytestmark = pytest.mark.process  # they wait for what does not come


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    return members(tmp_path_factory.mktemp("sites"))


@pytest.fixture(scope="module")
def three(sites):
    """Three sites through one relay."""
    with relaying(sites["relay-0"]), ends(*(sites[f"site-{i}"] for i in range(3))) as found:
        yield found


def test_every_site_reaches_every_other_through_a_relay(three):
    assert all(end.carrier.connected() for end in three)
    all_reach_all(three)


@pytest.mark.parametrize("direct", [(0,), (0, 1), (0, 1, 2)])
def test_sites_that_listen_are_reached_directly(tmp_path, direct):
    made = members(tmp_path, direct=direct)
    with relaying(made["relay-0"]), ends(*(made[f"site-{i}"] for i in range(3))) as found:
        all_reach_all(found)


def test_without_a_relay(tmp_path):
    made = members(tmp_path, relays=0, direct=(0, 1))
    with ends(*(made[f"site-{i}"] for i in range(3))) as found:
        all_reach_all(found)


def test_direct_connections_outlive_the_relay(tmp_path):
    made = members(tmp_path, direct=(0, 1))
    with ExitStack() as stack:
        with relaying(made["relay-0"]):
            found = stack.enter_context(ends(*(made[f"site-{i}"] for i in range(3))))
            all_reach_all(found)
        all_reach_all(found)


def test_a_second_relay_takes_over(tmp_path):
    made = members(tmp_path, relays=2)
    with relaying(made["relay-1"]), ExitStack() as stack:
        with relaying(made["relay-0"]):
            found = stack.enter_context(ends(*(made[f"site-{i}"] for i in range(3))))
            all_reach_all(found)
        all_reach_all(found)


def test_a_relay_that_starts_late_is_found(tmp_path):
    made = members(tmp_path)
    with ExitStack() as stack:
        opened = []
        thread = threading.Thread(
            target=lambda: opened.append(stack.enter_context(ends(made["site-0"], made["site-1"]))),
            daemon=True,
        )
        thread.start()
        thread.join(QUIET)
        assert thread.is_alive()
        stack.enter_context(relaying(made["relay-0"]))
        thread.join(LIMIT)
        all_reach_all(opened[0])


def test_a_relay_that_starts_again_is_found_again(tmp_path):
    made = members(tmp_path)
    with ExitStack() as stack:
        with relaying(made["relay-0"]):
            found = stack.enter_context(ends(made["site-0"], made["site-1"]))
            all_reach_all(found)
        awaited(lambda: not found[0].carrier.connected(), "the lost relay")
        found[0].carrier.publish(1, b"lost")  # goes nowhere, and does not wait
        with relaying(made["relay-0"]):
            all_reach_all(found)


def test_the_engine_waits_where_a_line_is_full_and_drops_nothing(three):
    """By default it drops: frames of 20 MB vanish on an idle loopback, and nothing says so."""
    for end in three:
        for way in end.carrier._ways:
            for publisher in (*way.publishers.values(), *way.urgent.values()):
                assert publisher.congestion_control == zenoh.CongestionControl.BLOCK
                assert publisher.reliability == zenoh.Reliability.RELIABLE


@settings(deadline=None, max_examples=30)
@given(size=st.integers(0, 300_000))
def test_frames_of_any_size_come_as_they_were(three, size):
    frame = os.urandom(size)
    three[0].send(three[1], frame)
    assert three[1].take() == frame


@pytest.mark.parametrize("size", [0, 1, 61_439, 61_440, 61_441, 122_880, 20_000_000])
def test_frames_of_these_sizes_come_as_they_were(three, size):
    frame = os.urandom(size)
    three[2].send(three[0], frame)
    assert three[0].take() == frame


def test_frames_of_several_threads_do_not_mix(three):
    frames = [bytes([i]) * (100_000 + i) for i in range(8)]
    senders = [
        threading.Thread(target=three[i % 2].send, args=(three[2], frame), daemon=True)
        for i, frame in enumerate(frames)
    ]
    for sender in senders:
        sender.start()
    assert sorted(three[2].take() for _ in frames) == frames
    for sender in senders:
        sender.join(LIMIT)


def test_frames_of_one_sender_come_in_order(three):
    sizes = [10, 200_000, 5, 70_000, 0, 61_440] * 5
    for number, size in enumerate(sizes):
        three[0].send(three[1], struct.pack(">I", number) + bytes(size))
    came = [three[1].take() for _ in sizes]
    assert [struct.unpack(">I", frame[:4])[0] for frame in came] == list(range(len(sizes)))


def test_frames_above_the_limit_of_the_receiver_are_dropped(tmp_path):
    made = members(tmp_path)
    with (
        relaying(made["relay-0"]),
        ends(made["site-0"]) as (sender,),
        ends(made["site-1"], begins=lambda piece: 200_000) as (receiver,),
    ):
        sender.send(receiver, bytes(900_000))
        sender.send(receiver, b"after")
        assert receiver.take() == b"after"


def test_another_run_gets_nothing(tmp_path):
    made = members(tmp_path)
    with (
        relaying(made["relay-0"]),
        ends(made["site-0"]) as (sender,),
        ends(made["site-1"], run="b" * 32) as (other,),
    ):
        assert not sender.carrier.reaches(1)
        sender.carrier.publish(1, b"for a")
        assert other.nothing_comes()


def test_a_receiver_that_fails_goes_on(tmp_path, caplog):
    made = members(tmp_path)
    came = []

    def receive(frame):
        came.append(frame)
        raise RuntimeError("a frame of garbage")

    with relaying(made["relay-0"]), ends(made["site-0"]) as (sender,):
        carrier = Carrier(made["site-1"], RUN, receive, timeout=LIMIT)
        try:
            awaited(lambda: sender.carrier.reaches(1), "the receiver")
            for frame in (b"1", b"2"):
                sender.carrier.publish(1, frame)
            awaited(lambda: len(came) == 2, "both frames")
        finally:
            carrier.close()
    assert came == [b"1", b"2"]
    assert "a frame of garbage" in caplog.text


def test_nothing_comes_and_nothing_fails_after_the_end(tmp_path):
    made = members(tmp_path)
    with relaying(made["relay-0"]):
        with ends(made["site-0"], made["site-1"]) as found:
            all_reach_all(found)
        assert not found[0].carrier.connected()
        found[0].carrier.publish(1, b"late")
        found[0].carrier.close()
        assert found[1].nothing_comes()


def test_the_end_can_come_from_the_receiver(tmp_path):
    made = members(tmp_path)
    ended = threading.Event()
    opened = []

    def receive(frame):
        opened[0].close()
        ended.set()

    with relaying(made["relay-0"]), ends(made["site-0"]) as (sender,):
        opened.append(Carrier(made["site-1"], RUN, receive, timeout=LIMIT))
        awaited(lambda: sender.carrier.reaches(1), "the receiver")
        sender.carrier.publish(1, b"end")
        assert ended.wait(LIMIT)
        awaited(lambda: not sender.carrier.reaches(1), "its end")


def test_a_folder_of_another_role_takes_no_part(sites):
    with pytest.raises(InputError, match="is a relay"):
        Carrier(sites["relay-0"], RUN, print, timeout=1)
    with pytest.raises(InputError, match="must be the folder of a relay"):
        run_relay(sites["site-0"], [free_address()], lambda: True)


def test_nobody_to_connect_to(tmp_path):
    made = members(tmp_path, relays=0)
    with pytest.raises(InputError, match="a consortium with a relay"):
        Carrier(made["site-0"], RUN, print, timeout=1)


def test_a_port_that_is_taken(tmp_path):
    made = members(tmp_path, direct=(0,))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match="must be a free HOST:PORT"):
            run_relay(made["relay-0"], [address], lambda: True)
        with pytest.raises(InputError, match="must be a free HOST:PORT"):
            Carrier(made["site-0"], RUN, print, timeout=1, listen=[address])


def test_the_port_can_be_another_than_the_one_called(tmp_path):
    """Behind a router that maps ports: here, what is called is a forwarder to where it listens."""
    made = members(tmp_path, relays=0, direct=(0,))
    inside = free_address()
    came = []
    opened = []

    def listen():
        opened.append(Carrier(made["site-0"], RUN, came.append, timeout=LIMIT, listen=[inside]))

    with forwarding(made["site-0"].own.addresses[0], inside):
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        with ends(made["site-1"]) as (calling,):
            thread.join(LIMIT)
            awaited(lambda: calling.carrier.reaches(0), "the mapped port")
            calling.carrier.publish(0, b"in")
            awaited(lambda: came == [b"in"], "the frame")
        opened[0].close()
