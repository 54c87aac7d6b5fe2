"""Relays that are killed, sites that are stopped, slow lines, garbage: everybody else goes on."""

import os
import queue
import signal
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial

import pytest
from ways import LIMIT, RUN, all_reach_all, awaited, ends, forwarding, members, relaying

from ports import free_address

pytestmark = pytest.mark.process

# A site in a process of its own, which sends everything back to site 0.
ECHO = """
import queue, sys
from tacit.communication.secure.carrier import Carrier
from tacit.identities.site import load_site
frames = queue.Queue()
carrier = Carrier(load_site(sys.argv[1]), sys.argv[2], frames.put, timeout=30)
print("open", flush=True)
while True:
    carrier.publish(0, frames.get())
"""


@contextmanager
def started(*command):
    """A process of this Python that has printed its first line."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT)


def relay_process(site):
    return ["-m", "tacit", "relay", "--site", str(site.folder)]


def arrives(sender, receiver, frame):
    """A frame is sent until it arrives: a connection on which nothing moves is given up with it."""

    def came():
        sender.send(receiver, frame)
        with suppress(queue.Empty):
            return receiver.frames.get(timeout=20.0) == frame
        return False

    awaited(came, "a frame")


def comes_back(end, rank, frame):
    """A frame is sent to an echo until it comes back: some are lost while connections break."""

    def came():
        end.carrier.publish(rank, frame)
        with suppress(Exception):
            return end.frames.get(timeout=0.2) == frame
        return False

    awaited(came, "a frame there and back")


def test_a_relay_that_is_killed_and_started_again(tmp_path):
    made = members(tmp_path)
    with ExitStack() as stack:
        with started(*relay_process(made["relay-0"])):
            found = stack.enter_context(ends(*(made[f"site-{i}"] for i in range(3))))
            all_reach_all(found)
        awaited(lambda: not any(end.carrier.connected() for end in found), "the lost relay")
        with started(*relay_process(made["relay-0"])):
            all_reach_all(found)


def test_a_site_that_is_killed_and_started_again(tmp_path):
    made = members(tmp_path)
    command = ["-c", ECHO, str(made["site-2"].folder), RUN]
    with relaying(made["relay-0"]), ends(made["site-0"], made["site-1"]) as found:
        for number in (b"1", b"2", b"3"):
            with started(*command):
                comes_back(found[0], 2, number)
            awaited(lambda: not found[0].carrier.reaches(2), "the lost site")
            while not found[0].frames.empty():  # one that was sent twice comes back twice
                found[0].frames.get()
            all_reach_all(found)


def test_a_site_that_is_stopped_holds_the_others_up_for_seconds_alone(tmp_path):
    made = members(tmp_path)
    frame = os.urandom(400_000)
    with (
        started(*relay_process(made["relay-0"])),
        ends(made["site-0"], made["site-1"]) as found,
        started("-c", ECHO, str(made["site-2"].folder), RUN) as third,
    ):
        comes_back(found[0], 2, b"before")
        os.kill(third.pid, signal.SIGSTOP)
        for _ in range(40):  # more than all buffers on the way to it hold
            found[0].carrier.publish(2, frame)
        for _ in range(3):
            arrives(*found, frame)
        os.kill(third.pid, signal.SIGCONT)
        comes_back(found[0], 2, b"after")


def test_a_slow_line_carries_a_frame_that_takes_longer_than_a_stall(tmp_path):
    """8 MB at 1 MB/s; the engine alone gives up a message after five seconds."""
    made = members(tmp_path)
    relay = made["relay-0"]
    narrow = free_address()
    slow = replace(
        made["site-1"],
        bundle=replace(
            made["site-1"].bundle,
            members=tuple(
                replace(member, addresses=(narrow,)) if member.role == "relay" else member
                for member in made["site-1"].bundle.members
            ),
        ),
    )
    frame = os.urandom(8_000_000)
    with (
        relaying(relay),
        forwarding(narrow, relay.own.addresses[0], rate=1e6),
        ends(made["site-0"], slow) as found,
    ):
        found[0].send(found[1], frame)
        assert found[1].take() == frame
        found[1].send(found[0], frame)
        assert found[0].take() == frame


def dialled(address, words, context):
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=LIMIT)
    with suppress(OSError):
        if context is not None:
            connection = context.wrap_socket(connection, server_hostname=host)
        connection.sendall(words)
    return connection


@pytest.mark.parametrize(
    ("words", "inside"),
    [
        (b"", False),  # half open
        (os.urandom(5000), False),
        (b"GET / HTTP/1.1\r\n\r\n", False),
        (b"\x16\x03\x01\x02\x00\x01", False),  # the beginning of a greeting
        (b"", True),  # a member who says nothing
        (os.urandom(5000), True),  # and one who says anything, inside TLS
        (b"\xff\xff" + bytes(65_535), True),
    ],
)
def test_garbage_at_the_port(tmp_path, words, inside):
    made = members(tmp_path)
    with relaying(made["relay-0"]), ends(made["site-0"], made["site-1"]) as found:
        context = None
        if inside:
            liar = made["site-2"]
            context = ssl.create_default_context(cafile=str(liar.authority_file))
            context.load_cert_chain(str(liar.certificate_file), str(liar.key_file))
        address = made["relay-0"].own.addresses[0]
        dials = [dialled(address, words, context) for _ in range(20)]
        try:
            all_reach_all(found)
            with ends(made["site-2"]) as (late,):
                all_reach_all([*found, late])
        finally:
            for dial in dials:
                dial.close()


def test_frames_under_way_while_the_relay_is_killed_again_and_again(tmp_path):
    """What comes is what was sent, whole; what is sent once nobody kills any more comes."""
    made = members(tmp_path)
    sent = [bytes([i]) * 300_000 for i in range(256)]
    with ends_through_kills(made) as found:
        stop = threading.Event()

        def send():
            while not stop.is_set():
                for frame in sent:
                    found[0].carrier.publish(1, frame)
                    if stop.wait(0.01):
                        return

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        for _ in range(3):
            with started(*relay_process(made["relay-0"])):
                enough = found[1].frames.qsize() + 5
                awaited(partial(has_more_than, found[1], enough), "frames again")
        stop.set()
        thread.join(LIMIT)
        assert not thread.is_alive()
        came = [found[1].frames.get_nowait() for _ in range(found[1].frames.qsize())]
        assert came
        assert all(len(set(frame)) == 1 and len(frame) == 300_000 for frame in came)


def has_more_than(end, frames):
    return end.frames.qsize() > frames


@contextmanager
def ends_through_kills(made):
    """Two sites that have met at a relay which is gone."""
    with ExitStack() as stack:
        with started(*relay_process(made["relay-0"])):
            found = stack.enter_context(ends(made["site-0"], made["site-1"]))
        yield found
