"""Bad lines on loopback: a proxy that is slow, or late, and neither loses nor reorders a byte."""

import queue
import random
import socket
import threading
import time
from contextlib import suppress

from ports import host_and_port

_CHUNK = 2**13  # bytes that are passed on together
_WAITING = 16  # chunks that wait on a line without delay: what does not fit stays with the sender
_BUFFER = 2**15  # bytes that the kernel may hold at each end, as far as it can be told


class Line:
    """Stands between members and a relay; every connection has a line of its own, both ways alike.

    Args:
        listen: HOST:PORT where members connect.
        to: HOST:PORT where the relay listens.
        rate: bytes a second, one way; None: as many as there are.
        delay: seconds that each byte is under way.
        late: the share of chunks that take longer, and how many seconds longer.
        seed: of which they are.
    """

    def __init__(self, listen, to, *, rate=None, delay=0.0, late=(0.0, 0.0), seed=0):
        self._to, self._rate, self._delay, self._late = host_and_port(to), rate, delay, late
        self._draws, self._lock = random.Random(seed), threading.Lock()
        self._server = socket.create_server(host_and_port(listen))
        self._server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        self.carried = 0  # bytes, both ways
        self._start(self._accept)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _start(self, work, *arguments):
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.socket()
                for end in (near, far):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    far.connect(self._to)
                except OSError:  # nobody listens there yet
                    near.close()
                    far.close()
                    continue
                for pair in ((near, far), (far, near)):
                    # What is under way does not hold up what follows: only the rate does.
                    waiting = 0 if self._delay or self._late[0] else _WAITING
                    held = queue.Queue(waiting)
                    self._start(self._take, pair[0], held)
                    self._start(self._give, pair[1], held)

    def _take(self, source, held):
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                with self._lock:
                    self.carried += len(data)
                    share, seconds = self._late
                    later = seconds if self._draws.random() < share else 0.0
                held.put((time.monotonic() + self._delay + later, data))
        held.put((0.0, b""))

    def _give(self, sink, held):
        free = 0.0  # when the line has passed on what it has taken
        with suppress(OSError):
            while True:
                due, data = held.get()
                if not data:
                    break
                free = max(free, time.monotonic()) + (len(data) / self._rate if self._rate else 0.0)
                time.sleep(max(0.0, max(due, free) - time.monotonic()))
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        while data:  # the other end is gone: its sender must not wait for room here
            _, data = held.get()
