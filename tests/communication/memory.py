"""Crews for tests: threads, or turns of one thread, stand for processes, and memory for a link."""

from __future__ import annotations

import threading
from collections import defaultdict, deque

import torch

from communication.cluster.ranks import Hub, ThreadChannel
from tacit.communication.crew import Crew
from tacit.communication.marks import Gatherer
from tacit.errors import PeerError


class LateError(PeerError):
    """A rank would wait here, or has waited for too long."""


class Board:
    """What all ranks have stated, by key and rank; and parts of marks on their way, by rank."""

    def __init__(self, **texts):
        self.texts = {(key.replace("_", " "), 1): text for key, text in texts.items()}
        self.changed, self.written = threading.Condition(), 0
        self.parts: dict[int, deque[torch.Tensor]] = defaultdict(deque)
        self.hub: Hub | None = None


class MemoryCrew(Crew):
    """A process whose link to the others is a board.

    Args:
        limit: seconds that a wait may take; 0: none is waited for.
        returns: whether processes come back, so that what was stated has to stay.
        gone: without whom the run goes on, from now on.
    """

    authenticated = False

    def __init__(self, rank, processes, board, *, limit=0.0, returns=False):
        super().__init__(rank, [f"rank {other}" for other in range(processes)])
        self.board, self.limit, self.returns = board, limit, returns
        self.gone: set[int] = set()

    def state(self, key, text):
        with self.board.changed:
            self.board.written += 1
            stands = self.board.texts.setdefault((key, self.rank), text)
            self.board.changed.notify_all()
            return stands

    def collect(self, key, ranks, what, *, loading=False):
        texts, asked = self.board.texts, list(ranks)

        def missing():
            return [r for r in asked if (key, r) not in texts and r not in self.gone]

        with self.board.changed:
            if not self.board.changed.wait_for(lambda: not missing(), self.limit):
                raise LateError(f"rank {missing()[0]} did not send the {what}")
            return {r: texts[key, r] for r in asked if (key, r) in texts}

    def forget(self, keys):
        for key in () if self.returns else keys:
            self.board.texts.pop((key, self.rank), None)

    def connect(self, device, numbers, added, stack):
        with self.board.changed:
            self.board.hub = hub = self.board.hub or Hub(self.processes)
        channel = ThreadChannel(hub, self.rank, self.limit)
        stack.callback(channel.close)
        return channel, MemoryGatherer(self, numbers)


class MemoryGatherer(Gatherer):
    """Over the board of a crew."""

    def __init__(self, crew, numbers):
        super().__init__(crew.rank, crew.names, numbers)
        self.board, self.limit = crew.board, crew.limit

    def send(self, message):
        with self.board.changed:
            self.board.parts[self.rank].append(message)
            self.board.changed.notify_all()

    def is_here(self, rank, step):
        return bool(self.board.parts[rank])

    def take(self, rank):
        parts = self.board.parts[rank]
        with self.board.changed:
            if not self.board.changed.wait_for(lambda: bool(parts), self.limit):
                raise LateError(f"rank {rank} sent no metrics")
            return parts.popleft()


def crew_of(processes, **more):
    """All processes of a crew that have one board."""
    board = Board()
    return [MemoryCrew(rank, processes, board, **more) for rank in range(processes)]
