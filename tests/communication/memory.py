"""Crews for tests: threads, or turns of one thread, stand for processes, and memory for a link."""

from __future__ import annotations

import threading

from tacit.communication.crew import Crew
from tacit.errors import PeerError


class LateError(PeerError):
    """A rank would wait here, or has waited for too long."""


class Board:
    """What all ranks have stated, by key and rank."""

    def __init__(self, **texts):
        self.texts = {(key.replace("_", " "), 1): text for key, text in texts.items()}
        self.changed, self.written = threading.Condition(), 0


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


def crew_of(processes, **more):
    """All processes of a crew that have one board."""
    board = Board()
    return [MemoryCrew(rank, processes, board, **more) for rank in range(processes)]
