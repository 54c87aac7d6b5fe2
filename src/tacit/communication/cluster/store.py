"""Small talk between processes: texts under keys, in a store that one of them or a launcher keeps.

The store is `torch.distributed.TCPStore`. A call on it can block for ever: where the process that
keeps it is stopped, the answer never comes, and its own limits do not cover every call. So a
thread of its own makes the calls, and whoever asks waits a limited time for the thread.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Any

from tacit.errors import InputError, PeerError

_CHUNK = 256  # keys asked for at once


class KeyValueStore:
    """A connection to the store, with a limit on every wait; use by several threads is allowed.

    `open_store` makes the connection, in the store's own thread, within `opening` seconds; a call
    may take `limit` seconds. The `place` of the store, `address:port`, and its `keeper` are for
    messages.

    Raises:
        PeerError: from every method, if the store has gone or does not answer in time. A store that
            was lost stays lost.
    """

    def __init__(
        self,
        open_store: Callable[[], Any],
        *,
        place: str,
        keeper: str,
        prefix: str = "",
        opening: float,
        limit: float,
    ) -> None:
        self._place, self._keeper = place, keeper
        self._prefix, self._limit = prefix, limit
        self._lost = False
        self._store: Any = None
        self._requests: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._serve, name="tacit-store", daemon=True).start()

        def begin() -> None:
            self._store = open_store()

        self._do(begin, opening)

    def put(self, key: str, text: str) -> str:
        """Write a text, over what was there; the text."""
        self._do(lambda: self._store.set(self._prefix + key, text))
        return text

    def first(self, key: str, text: str) -> str:
        """Write a text unless one that is not empty is there; the text that is there now."""
        answer = self._do(lambda: self._store.compare_set(self._prefix + key, "", text))
        return _text(answer)

    def has(self, keys: Sequence[str]) -> bool:
        """Whether every one of these keys has been written."""
        return all(self._do(partial(self._ask, "check", part)) for part in self._parts(keys))

    def get(self, key: str) -> str | None:
        """The text under a key; None without one."""
        return self.get_all([key])[0] if self.has([key]) else None

    def get_all(self, keys: Sequence[str]) -> list[str]:
        """The texts under keys that have all been written."""
        texts: list[str] = []
        for part in self._parts(keys):
            texts.extend(map(_text, self._do(partial(self._ask, "multi_get", part))))
        return texts

    def delete(self, key: str) -> None:
        """Take away a text, if there is one."""
        self._do(lambda: self._store.delete_key(self._prefix + key))

    def close(self) -> None:
        """Let the connection go, without waiting."""
        self._lost = True
        self._requests.put(None)

    def _ask(self, call: str, keys: list[str]) -> Any:
        return getattr(self._store, call)(keys)

    def _parts(self, keys: Sequence[str]) -> list[list[str]]:
        whole = [self._prefix + key for key in keys]
        return [whole[i : i + _CHUNK] for i in range(0, len(whole), _CHUNK)]

    def _do(self, action: Callable[[], Any], limit: float | None = None) -> Any:
        if self._lost:
            raise self._loss()
        answer: Future[Any] = Future()
        self._requests.put((answer, action))
        try:
            return answer.result(self._limit if limit is None else limit)
        except (TimeoutError, RuntimeError):
            self._lost = True
            raise self._loss() from None  # else thirty lines of C++ frames come before it

    def _loss(self) -> PeerError:
        return PeerError(
            f"the rendezvous at {self._place} was lost: {self._keeper}, which keeps it, "
            "has ended or does not answer"
        )

    def _serve(self) -> None:
        while (request := self._requests.get()) is not None:
            answer, action = request
            try:
                answer.set_result(action())
            except Exception as error:  # whatever it is belongs to whoever asked
                answer.set_exception(error)
        self._store = None


def open_store(address: str, port: int, limit: float) -> Any:
    """A connection to the store at this numeric address, of torch; `limit` is in seconds."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public all the same

    return TCPStore(
        address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=limit)
    )


def open_board(
    address: str, port: int, *, prefix: str, keeper: str, opening: float, limit: float
) -> KeyValueStore:
    """A connection to the store at this numeric address; messages name its `keeper`.

    `opening` is the seconds to wait for the store to be there (a PeerError says that nothing
    answers), `limit` those that a later call may take. The prefix is put before every key.
    """
    deadline = time.monotonic() + opening
    while not _answers(address, port):
        if time.monotonic() > deadline:
            raise PeerError(
                f"nothing answers at MASTER_ADDR:MASTER_PORT = {address}:{port} "
                f"after {opening:g} s: {keeper} should keep the rendezvous there"
            )
        time.sleep(0.1)

    return KeyValueStore(
        lambda: open_store(address, port, limit),
        place=f"{address}:{port}",
        keeper=keeper,
        prefix=prefix,
        opening=max(limit, 30.0),  # torch may have to be loaded first
        limit=limit,
    )


def host_store(address: str, port: int, limit: float) -> Any:
    """Keep a store at this numeric address, and at no other, as long as what is returned lives.

    It is an InputError where the address or port cannot be had.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public all the same

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
        except OSError as error:
            expected = f"rank 0 keeps the rendezvous there, but {error.strerror or error}"
            raise InputError("MASTER_PORT", f"{address}:{port}", expected) from error
        listener.listen()
        return TCPStore(
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=limit),
            master_listen_fd=os.dup(listener.fileno()),
        )


def _answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=2.0).close()
    except OSError:
        return False
    return True


def _text(answer: bytes) -> str:
    return answer.decode("utf-8", "replace")
