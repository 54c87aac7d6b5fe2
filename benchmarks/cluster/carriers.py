"""Frames there and back between two processes on loopback: `python benchmarks/cluster/carriers.py`.

The contenders take turns in every round: gloo in clear, zenoh with mutual TLS directly, and zenoh
with mutual TLS through a relay in a third process. A time is that of a frame to the other process
and back; MB/s count both ways. Prints the median over rounds, and the least and the most.
"""

from __future__ import annotations

import argparse
import multiprocessing
import queue
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist

from tacit.communication.secure.carrier import Carrier
from tacit.communication.secure.sessions import run_relay
from tacit.identities.consortium import approve
from tacit.identities.site import create_site, join, load_site

RUN = "0" * 32
SIZES = (2**16, 400_000, 4_000_000, 40_000_000)  # bytes
REPEATED = (200, 50, 10, 3)  # times a round
WAIT = 60.0  # seconds for anything
Exchange = Callable[[int, int], float]
_KEPT: list[socket.socket] = []  # bound, so that the system gives their ports to nobody else


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="in which each takes its turn")
    rounds = parser.parse_args(arguments).rounds
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        contenders = started(Path(folder), stack)
        print("| bytes | contender | ms there and back (least to most) | MB/s | times gloo |")
        print("|---|---|---|---|---|")
        for size, repeated in zip(SIZES, REPEATED, strict=True):
            times: dict[str, list[float]] = {name: [] for name in contenders}
            for exchange in contenders.values():
                exchange(size, 2)  # the first of a size allocates
            for _ in range(rounds):
                for name, exchange in contenders.items():
                    times[name].append(exchange(size, repeated))
            for name, found in times.items():
                middle = statistics.median(found)
                ratio = statistics.median(
                    mine / gloo for mine, gloo in zip(found, times["gloo"], strict=True)
                )
                print(
                    f"| {size:,} | {name} | {1e3 * middle:.2f} ({1e3 * min(found):.2f} to "
                    f"{1e3 * max(found):.2f}) | {2 * size / middle / 1e6:.0f} | {ratio:.2f} |",
                    flush=True,
                )
    return 0


def started(folder: Path, stack: ExitStack) -> dict[str, Exchange]:
    """The contenders, each with its other process."""
    port = free_port()
    spawn(stack, gloo_echo, port)
    return {
        "gloo": gloo(port),
        "TLS, direct": carried(folder / "direct", stack, through_relay=False),
        "TLS, relay": carried(folder / "relayed", stack, through_relay=True),
    }


def spawn(stack: ExitStack, work: Callable[..., None], *arguments: object) -> BaseProcess:
    """A process that is ended with the stack."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments, daemon=True)
    process.start()
    stack.callback(process.join, WAIT)
    stack.callback(process.kill)
    return process


def free_port() -> int:
    """A port of loopback at which nobody listens, for a listener with `SO_REUSEADDR`."""
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    _KEPT.append(kept)
    return int(kept.getsockname()[1])


def free_address() -> str:
    """The same as HOST:PORT."""
    return f"127.0.0.1:{free_port()}"


def join_gloo(rank: int, port: int) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)


def gloo(port: int) -> Exchange:
    join_gloo(0, port)

    def exchange(size: int, repeated: int) -> float:
        dist.send(torch.tensor([size, repeated]), 1)
        sent, back = torch.ones(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)
        begun = time.perf_counter()
        for _ in range(repeated):
            dist.send(sent, 1)
            dist.recv(back, 1)
        return (time.perf_counter() - begun) / repeated

    return exchange


def gloo_echo(port: int) -> None:
    torch.set_num_threads(1)
    join_gloo(1, port)
    told = torch.empty(2, dtype=torch.int64)
    while True:
        dist.recv(told, 0)
        size, repeated = map(int, told)
        frame = torch.empty(size, dtype=torch.uint8)
        for _ in range(repeated):
            dist.recv(frame, 0)
            dist.send(frame, 0)


def carried(folder: Path, stack: ExitStack, *, through_relay: bool) -> Exchange:
    here = free_address()
    listening = () if through_relay else (here,)
    requests = [create_site(folder / "north", "north", "site", listening)]
    requests.append(create_site(folder / "south", "south"))
    if through_relay:
        requests.append(create_site(folder / "relay", "relay", "relay", (here,)))
    bundle = approve(folder / "consortium", requests).path
    for name in ("north", "south", "relay")[: len(requests)]:
        join(folder / name, bundle)
    if through_relay:
        spawn(stack, relay, folder / "relay")
    spawn(stack, carrier_echo, folder / "south")
    frames: queue.Queue[bytes] = queue.Queue()
    carrier = Carrier(load_site(folder / "north"), RUN, frames.put, timeout=WAIT)
    stack.callback(carrier.close)
    deadline = time.monotonic() + WAIT
    while not carrier.reaches(1):
        if time.monotonic() > deadline:
            raise TimeoutError("the other site")
        time.sleep(0.05)

    def exchange(size: int, repeated: int) -> float:
        frame = bytes(size)
        begun = time.perf_counter()
        for _ in range(repeated):
            carrier.publish(1, frame)
            frames.get(timeout=WAIT)
        return (time.perf_counter() - begun) / repeated

    return exchange


def relay(folder: Path) -> None:
    site = load_site(folder)
    run_relay(site, site.own.addresses, lambda: False)


def carrier_echo(folder: Path) -> None:
    frames: queue.Queue[bytes] = queue.Queue()
    carrier = Carrier(load_site(folder), RUN, frames.put, timeout=WAIT)
    while True:
        carrier.publish(0, frames.get())


if __name__ == "__main__":
    sys.exit(main())
