"""A switch between network namespaces that shapes its links: `python switch.py RATE DELAY NAME...`.

One TUN device a host. Whatever a host sends takes its turn on the host's line out, travels for
DELAY seconds, and takes its turn on the receiver's line in, both of RATE bits a second. It does in
user space what `tc netem` does in kernels that have it; many containers' kernels have not. Packets
of a line that is behind by more than 2 s are lost.

Prints `ready` once the devices are there, and ends when its standard input does, which takes the
devices along. Needs nothing but Python, so that it starts at once.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import select
import struct
import sys
import time

_SET_DEVICE, _TUN, _PLAIN = 0x400454CA, 0x0001, 0x1000  # TUNSETIFF, IFF_TUN, IFF_NO_PI
_LARGEST = 65_536
_AT_ONCE = 32  # packets read of a device before others have their turn
_BEHIND = 2.0


class Lines:
    """The lines of some hosts: when a packet arrives that is sent now.

    Args:
        hosts: how many.
        rate: bits a second, of every host's line, each way.
        delay: seconds from host to host.
    """

    def __init__(self, hosts: int, rate: float, delay: float) -> None:
        self._rate, self._delay = rate, delay
        self._free_out, self._free_in = [0.0] * hosts, [0.0] * hosts

    def arrival(self, source: int, to: int, size: int, now: float) -> float | None:
        """When `size` bytes from a host are with another; None: they are lost."""
        takes = size * 8 / self._rate
        begins = max(now, self._free_out[source])
        if begins - now > _BEHIND:
            return None
        self._free_out[source] = begins + takes
        self._free_in[to] = max(begins + self._delay, self._free_in[to]) + takes
        return self._free_in[to]


def _device(name: str) -> int:
    """A new TUN device; it is gone when the descriptor is closed."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _SET_DEVICE, struct.pack("16sH", name.encode(), _TUN | _PLAIN))
    return descriptor


def main(rate: float, delay: float, names: list[str]) -> None:
    """Switch packets until standard input ends.

    Args:
        rate: bits a second, of every host's line, each way.
        delay: seconds from host to host.
        names: of the devices; host i has an address that ends in i + 1.
    """
    devices = [_device(name) for name in names]
    hosts = {descriptor: host for host, descriptor in enumerate(devices)}
    lines = Lines(len(names), rate, delay)
    waiting: list[tuple[float, int, int, bytes]] = []
    number = 0
    print("ready", flush=True)
    while True:
        left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable = select.select([*devices, 0], [], [], left)[0]
        if 0 in readable and not os.read(0, 1024):
            return
        for descriptor in readable:
            if descriptor not in hosts:
                continue
            source = hosts[descriptor]
            for _ in range(_AT_ONCE):
                try:
                    packet = os.read(descriptor, _LARGEST)
                except (BlockingIOError, OSError):
                    break  # nothing more, or the device is not up yet
                to = packet[19] - 1 if packet[0] >> 4 == 4 else -1
                if not 0 <= to < len(devices):
                    continue
                due = lines.arrival(source, to, len(packet), time.monotonic())
                if due is None:
                    continue
                number += 1
                heapq.heappush(waiting, (due, number, to, packet))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, to, packet = heapq.heappop(waiting)
            try:
                os.write(devices[to], packet)
            except OSError:
                continue  # its queue is full: lost, as on a real line


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
