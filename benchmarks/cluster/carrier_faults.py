"""What faults cost frames on their way: `python benchmarks/cluster/carrier_faults.py`.

| row | what |
|---|---|
| relay | killed and started again after 1, 3 and 10 s: frames lost, and when the next one comes |
| stopped | a site is stopped for 10 s: how long another one waits for its frames |
| line | 20 MB to a site behind a line of 1 MB/s: when they come, and how long another site waits |
| garbage | strangers who send garbage to the relay: how long until a site can connect |

Every 50 ms a site sends a frame of 100,000 bytes to each of two others; all is on loopback.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path

from carriers import RUN, WAIT, carrier_echo, free_address, relay, spawn

from tacit.communication.secure.carrier import Carrier
from tacit.identities.consortium import approve
from tacit.identities.site import Site, create_site, join

FRAME = 100_000  # bytes
EVERY = 0.05  # seconds
NAMES = ("north", "south", "east", "relay")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=sorted(ROWS), help="of the rows")
    for name in parser.parse_args(arguments).only or ROWS:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            for line in ROWS[name](consortium(Path(folder)), stack):
                print(f"{name}: {line}", flush=True)
    return 0


def consortium(folder: Path) -> dict[str, Site]:
    """Three sites and a relay."""
    requests = [create_site(folder / name, name) for name in NAMES[:3]]
    address = free_address()
    requests.append(create_site(folder / "relay", "relay", "relay", (address,)))
    bundle = approve(folder / "consortium", requests).path
    return {name: join(folder / name, bundle) for name in NAMES}


def took(condition: Callable[[], bool]) -> float:
    """Seconds until something is so."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > WAIT:
            raise TimeoutError
        time.sleep(0.005)
    return time.monotonic() - begun


class Sender:
    """North, which sends to the others; and when each of its frames came back from them."""

    def __init__(self, site: Site, stack: ExitStack) -> None:
        self.sent: dict[int, float] = {}
        self.came: dict[int, dict[int, float]] = {1: {}, 2: {}}
        self.carrier: Carrier = Carrier(site, RUN, self._receive, timeout=WAIT)
        stack.callback(self.carrier.close)
        took(lambda: self.carrier.reaches(1) and self.carrier.reaches(2))
        self._stop = threading.Event()
        thread = threading.Thread(target=self._send, daemon=True)
        thread.start()
        stack.callback(thread.join, WAIT)
        stack.callback(self._stop.set)
        time.sleep(2)

    def _receive(self, frame: bytes) -> None:
        rank, number = frame[0], int.from_bytes(frame[1:9], "big")
        self.came[rank][number] = time.monotonic()

    def _send(self) -> None:
        number = 0
        while not self._stop.wait(EVERY):
            number += 1
            self.sent[number] = time.monotonic()
            for rank in (1, 2):
                frame = bytes([rank]) + number.to_bytes(8, "big") + bytes(FRAME)
                self.carrier.publish(rank, frame)

    def gap(self, rank: int, since: float) -> float:
        """The longest time without a frame from a site."""
        times = [since, *(moment for moment in self.came[rank].values() if moment > since)]
        return max(later - earlier for earlier, later in pairwise(times))

    def lost(self, rank: int, since: float, until: float) -> int:
        sent = [number for number, moment in self.sent.items() if since < moment < until]
        return len([number for number in sent if number not in self.came[rank]])


def echoes(made: dict[str, Site], stack: ExitStack) -> list[BaseProcess]:
    return [spawn(stack, carrier_echo, made[name].folder) for name in ("south", "east")]


def killed_relay(made: dict[str, Site], stack: ExitStack) -> Iterator[str]:
    process = spawn(stack, relay, made["relay"].folder)
    echoes(made, stack)
    sender = Sender(made["north"], stack)
    for away in (1, 3, 10):
        begun = time.monotonic()
        process.kill()
        process.join(WAIT)
        time.sleep(away)
        process = spawn(stack, relay, made["relay"].folder)
        restarted = time.monotonic()
        next_one = took(lambda: max(sender.came[1].values()) > restarted)  # noqa: B023
        time.sleep(3)
        ended = time.monotonic() - 1
        sent = len([moment for moment in sender.sent.values() if begun < moment < ended])
        yield (
            f"away for {away} s: the next frame {next_one:.1f} s after it was started again (its "
            f"own start included); {sender.lost(1, begun, ended)} of {sent} frames lost"
        )


def stopped_site(made: dict[str, Site], stack: ExitStack) -> Iterator[str]:
    spawn(stack, relay, made["relay"].folder)
    _, east = echoes(made, stack)
    sender = Sender(made["north"], stack)
    begun = time.monotonic()
    assert east.pid is not None
    os.kill(east.pid, signal.SIGSTOP)
    time.sleep(10)
    os.kill(east.pid, signal.SIGCONT)
    resumed = time.monotonic()
    back = took(lambda: any(moment > resumed + 0.5 for moment in sender.came[2].values()))
    time.sleep(3)
    ended = time.monotonic() - 1
    yield (
        f"for 10 s: the other site waited {sender.gap(1, begun):.1f} s at most and lost "
        f"{sender.lost(1, begun, ended)} frames; the stopped one lost "
        f"{sender.lost(2, begun, ended)} and had frames again {back:.1f} s after it went on"
    )


def slow_line(made: dict[str, Site], stack: ExitStack) -> Iterator[str]:
    rate, size = 1e6, 20_000_000
    spawn(stack, relay, made["relay"].folder)
    narrow = free_address()
    stack.enter_context(forwarding(narrow, made["relay"].own.addresses[0], rate))
    came: list[float] = []
    east = made["east"]
    members = [
        replace(member, addresses=(narrow,)) if member.role == "relay" else member
        for member in east.bundle.members
    ]
    behind = replace(east, bundle=replace(east.bundle, members=tuple(members)))

    def receive(frame: bytes) -> None:
        if len(frame) == size:
            came.append(time.monotonic())

    carrier = Carrier(behind, RUN, receive, timeout=WAIT)
    stack.callback(carrier.close)
    spawn(stack, carrier_echo, made["south"].folder)
    times: list[float] = []
    north = Carrier(made["north"], RUN, lambda frame: times.append(time.monotonic()), timeout=WAIT)
    stack.callback(north.close)
    took(lambda: north.reaches(1) and north.reaches(2))
    begun = time.monotonic()
    threading.Thread(target=north.publish, args=(2, bytes(size)), daemon=True).start()
    while not came and time.monotonic() - begun < WAIT:
        north.publish(1, bytes(1000))
        time.sleep(EVERY)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    arrived = f"after {came[0] - begun:.1f} s" if came else f"not within {WAIT:g} s"
    yield f"{size:,} bytes at 1 MB/s came {arrived}; another site waited {max(gaps):.1f} s at most"


@contextmanager
def forwarding(outside: str, inside: str, rate: float) -> Iterator[None]:
    """Connections to one address are passed on to another one, each way at so many bytes/s."""

    def pair(address: str) -> tuple[str, int]:
        host, _, port = address.rpartition(":")
        return host, int(port)

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(2**14):
                sink.sendall(data)
                time.sleep(len(data) / rate)

    def work(listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.socket()
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
            try:
                far.connect(pair(inside))
            except OSError:  # nobody listens there yet
                near.close()
                continue
            for ends in ((near, far), (far, near)):
                threading.Thread(target=pump, args=ends, daemon=True).start()

    with socket.create_server(pair(outside)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        threading.Thread(target=work, args=(listener,), daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)


def garbage(made: dict[str, Site], stack: ExitStack) -> Iterator[str]:
    spawn(stack, relay, made["relay"].folder)
    host, _, port = made["relay"].own.addresses[0].rpartition(":")
    Carrier(made["north"], RUN, print, timeout=WAIT).close()
    for strangers, words in ((0, b""), (100, os.urandom(5000)), (1000, b"")):
        dials = [
            socket.create_connection((host, int(port)), timeout=WAIT) for _ in range(strangers)
        ]
        for dial in dials:
            with suppress(OSError):
                dial.sendall(words)
        begun = time.monotonic()
        Carrier(made["north"], RUN, print, timeout=WAIT).close()
        seconds = time.monotonic() - begun
        for dial in dials:
            dial.close()
        what = f"{len(words)} bytes of garbage" if words else "nothing"
        yield f"{strangers} strangers who send {what}: a site connects after {seconds:.2f} s"


ROWS: dict[str, Callable[[dict[str, Site], ExitStack], Iterator[str]]] = {
    "relay": killed_relay,
    "stopped": stopped_site,
    "line": slow_line,
    "garbage": garbage,
}

if __name__ == "__main__":
    sys.exit(main())
