"""Links to measure on: loopback, or network namespaces whose links are shaped."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

SWITCH = Path(__file__).with_name("switch.py")
_LIMIT = 20  # seconds for any one command
_MTU = 9000


@dataclass(frozen=True)
class Link:
    """What a link is shaped to.

    Args:
        bandwidth: bits a second, each way; None: as fast as it goes.
        latency: seconds one way.
    """

    bandwidth: float | None = None
    latency: float = 0.0

    @property
    def name(self) -> str:
        """For people."""
        if self.bandwidth is None:
            return "loopback"
        return f"{self.bandwidth / 1e6:g} Mbit/s, {self.latency * 1e3:g} ms"


LOOPBACK = Link()


@dataclass(frozen=True)
class Hosts:
    """Where processes run, and how they are reached.

    Args:
        namespaces: of each host; empty: all on this one.
        addresses: of each host.
        interfaces: the device of each that has the address.
    """

    namespaces: tuple[str, ...]
    addresses: tuple[str, ...]
    interfaces: tuple[str, ...]

    def command(self, host: int, arguments: Sequence[str]) -> list[str]:
        """What runs something on a host."""
        if not self.namespaces:
            return list(arguments)
        return ["ip", "netns", "exec", self.namespaces[host], *arguments]


@contextmanager
def shaped(hosts: int, link: Link) -> Iterator[Hosts]:
    """Hosts with links between them; namespaces and devices are removed whatever happens.

    Each namespace has a network of its own, so that neither addresses nor ports can collide.
    """
    if link.bandwidth is None:
        yield Hosts((), ("127.0.0.1",) * hosts, ("lo",) * hosts)
        return
    names = [f"tacit-{os.getpid()}-{host}" for host in range(hosts)]
    devices = [f"tct{os.getpid() % 10**7}x{host}" for host in range(hosts)]
    addresses = tuple(f"10.213.0.{host + 1}" for host in range(hosts))
    with ExitStack() as after:
        for name in names:
            _ip("netns", "add", name)
            after.callback(_ip, "netns", "delete", name, checked=False)
        switch = after.enter_context(
            subprocess.Popen(
                [sys.executable, str(SWITCH), str(link.bandwidth), str(link.latency), *devices],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
        after.callback(switch.kill)
        assert switch.stdout is not None
        if switch.stdout.readline() != b"ready\n":
            raise RuntimeError("the switch did not start")
        for name, device, address in zip(names, devices, addresses, strict=True):
            _ip("link", "set", device, "netns", name)
            _ip("-n", name, "link", "set", device, "mtu", str(_MTU), "txqueuelen", "5000", "up")
            _ip("-n", name, "address", "add", f"{address}/24", "dev", device)
            _ip("-n", name, "link", "set", "lo", "up")
        yield Hosts(tuple(names), addresses, tuple(devices))


def why_not_shaped() -> str | None:
    """Why links cannot be shaped on this machine; None if they can."""
    try:
        with shaped(2, Link(1e9, 1e-4)) as hosts:
            found = subprocess.run(
                hosts.command(0, [sys.executable, "-c", _REACH.format(hosts.addresses[1])]),
                capture_output=True,
                text=True,
                timeout=_LIMIT,
                check=False,
            )
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return f"no network namespaces here: {error}"
    return None if found.returncode == 0 else f"namespaces do not reach each other: {found.stderr}"


# To be refused by the other host takes a way there and a way back.
_REACH = """
import socket
try:
    socket.create_connection(("{}", 9), 5).close()
except ConnectionRefusedError:
    pass
"""


def _ip(*arguments: str, checked: bool = True) -> None:
    done = subprocess.run(
        ["ip", *arguments], capture_output=True, text=True, timeout=_LIMIT, check=False
    )
    if checked and done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
