"""Who takes part in this attempt: a name for it that every rank agrees on and no earlier one had.

torchrun's agents keep their store when they restart the workers, and their counts of restarts
differ between machines: an agent counts only what its own workers failed. So the processes that
are alive now agree on a token that nobody can have used before, and all keys begin with it.
"""

from __future__ import annotations

import hashlib
import secrets
import time

from tacit.communication.cluster.store import KeyValueStore
from tacit.communication.received import TOKEN, TOKENS
from tacit.errors import PeerError

__all__ = ["meet"]


def meet(store: KeyValueStore, rank: int, processes: int, limit: float, pause: float = 0.05) -> str:
    """Agree on the token of this attempt; returns when every rank of it has come.

    Each rank writes a fresh random number. Rank 0 reads them all, those of an earlier attempt
    among them where a rank has not come yet, and writes the list; a rank that finds its own number
    there answers with the list's digest, the token. When all answers are the digest of the list
    as it is now, every number in it is of a process that lives, and rank 0 says so.

    Args:
        store: a connection to the store, which may hold what earlier attempts left.
        rank: of this process.
        processes: how many there are.
        limit: seconds to wait for the others.
        pause: seconds between looks.

    Raises:
        PeerError: not all ranks came in time; names those that are missing.
    """
    own = secrets.token_hex(8)
    store.set(f"hello/{rank}", TOKEN.write(own))
    others = range(1, processes)
    turn = _Turn(store, rank, own, [f"hello/{one}" for one in range(processes)])
    deadline = time.monotonic() + limit
    while True:
        token = turn.lead() if rank == 0 else turn.follow()
        if token:
            return token
        if time.monotonic() > deadline:
            missing = [one for one in others if turn.answers.get(one) != turn.token]
            raise PeerError(_late(missing if rank == 0 else [0], limit))
        time.sleep(pause)


class _Turn:
    """One rank's part in the rendezvous."""

    def __init__(self, store: KeyValueStore, rank: int, own: str, hellos: list[str]) -> None:
        self._store, self._rank, self._own, self._hellos = store, rank, own, hellos
        self.token = ""
        self.answers: dict[int, str | None] = {}

    def lead(self) -> str:
        """Rank 0: the token if all have answered, else nothing."""
        others = range(1, len(self._hellos))
        self.answers = {one: self._store.get(f"answer/{one}") for one in others}
        if not self._store.has(self._hellos):
            return ""
        texts = self._store.get_all(self._hellos)
        numbers = [TOKEN.read(text, rank, "number") for rank, text in enumerate(texts)]
        if _digest(numbers) != self.token:
            self.token = _digest(numbers)
            self._store.set("list", TOKENS.write(numbers))
        if any(answer != self.token for answer in self.answers.values()):
            return ""
        self._store.set("go", self.token)
        return self.token

    def follow(self) -> str:
        """Another rank: the token if rank 0 says that all have answered, else nothing."""
        text = self._store.get("list")
        numbers = [] if text is None else TOKENS.read(text, 0, "list of all numbers")
        if len(numbers) != len(self._hellos) or numbers[self._rank] != self._own:
            return ""
        if _digest(numbers) != self.token:
            self.token = _digest(numbers)
            self._store.set(f"answer/{self._rank}", self.token)
        return self.token if self._store.get("go") == self.token else ""


def _digest(numbers: list[str]) -> str:
    return hashlib.sha256("\n".join(numbers).encode()).hexdigest()[:32]


def _late(ranks: list[int], limit: float) -> str:
    named = ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
    return f"{named} did not come to the rendezvous within {limit:g} s"
