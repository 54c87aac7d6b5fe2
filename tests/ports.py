"""Ports of loopback that stay free until a test listens there, whatever else runs meanwhile.

A port that the system gave and took back may be given to the next who asks, and many tests run at a
time. So each one is kept bound, without listening, until this process ends: the system gives it to
nobody else, neither to who binds any port nor to who connects, and whoever listens there with
`SO_REUSEADDR`, as servers do, gets it all the same. Until then connections to it are refused.
"""

import socket

_KEPT = []


def free_port():
    """A port of 127.0.0.1 at which nobody listens."""
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    _KEPT.append(kept)
    return int(kept.getsockname()[1])


def free_address():
    """The same as HOST:PORT."""
    return f"127.0.0.1:{free_port()}"


def host_and_port(address):
    """Host and port of an address."""
    host, _, port = address.rpartition(":")
    return host, int(port)
