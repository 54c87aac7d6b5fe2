"""Crews for tests: threads, or turns of one thread, stand for processes, and memory for a link."""

import threading
from collections import defaultdict, deque

import torch

from communication.cluster.ranks import Hub, ThreadChannel
from tacit.communication.crew import Crew
from tacit.communication.marks import Gatherer
from tacit.communication.peers import PeerState
from tacit.communication.reports import read_report, write_report
from tacit.config import load_config
from tacit.errors import PeerError
from tacit.training.loop import execute
from tacit.training.prepare import prepare


class LateError(PeerError):
    """A rank would wait here, or has waited for too long."""


class Board:
    """What all ranks have stated, by key and rank; and parts of marks on their way, by rank."""

    def __init__(self, **texts):
        self.texts = {(key.replace("_", " "), 1): text for key, text in texts.items()}
        self.changed, self.written = threading.Condition(), 0
        self.parts: dict[int, deque[torch.Tensor]] = defaultdict(deque)
        self.hub: Hub | None = None
        self.end: str | None = None  # why the run ends
        self.saved: dict[int, int] = {}
        self.turn = threading.Lock()  # of who prepares: torch has one generator for all threads


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
        self.prepares = False

    def state(self, key, text):
        with self.board.changed:
            self.board.written += 1
            stands = self.board.texts.setdefault((key, self.rank), text)
            self.board.changed.notify_all()
            return stands

    def at(self, step):
        self.step = step

    def check(self):
        if self.board.end is not None:
            raise read_report(self.board.end)

    def report(self, error):
        with self.board.changed:
            self.board.end = self.board.end or write_report(error, self.rank)
            self.board.changed.notify_all()

    def saved(self, step):
        self.board.saved[self.rank] = step
        return min(self.board.saved.values()) if len(self.board.saved) == self.processes else 0

    def seen(self):
        return [PeerState(rank, name, "connected") for rank, name in enumerate(self.names)]

    def prepared(self, config):
        """A job; one process at a time prepares, but where it waits for others."""
        with self.board.turn:
            self.prepares = True
            try:
                return prepare(config, peers=self)
            finally:
                self.prepares = False

    def collect(self, key, ranks, what, *, loading=False):
        if not self.prepares:
            return self._collected(key, ranks, what)
        self.board.turn.release()
        try:
            return self._collected(key, ranks, what)
        finally:
            self.board.turn.acquire()

    def _collected(self, key, ranks, what):
        texts, asked = self.board.texts, list(ranks)

        def missing():
            return [r for r in asked if (key, r) not in texts and r not in self.gone]

        with self.board.changed:
            board = self.board
            board.changed.wait_for(lambda: board.end is not None or not missing(), self.limit)
            if late := missing():
                self.check()
                raise LateError(f"rank {late[0]} did not send the {what}")
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


def at_once(work, ranks, limit=150.0):
    """What each rank's work returns, or the exception that it raises, in the order of ranks."""
    results = {}

    def one(rank):
        try:
            results[rank] = work(rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return [results[rank] for rank in ranks]


def train(files, out, *, resume=False, asked=None):
    """The results, or errors, of all processes of a run, in threads; each has a file of its own.

    Args:
        asked: by rank, what says after each step whether it was asked to stop.
    """
    crew = crew_of(len(files), limit=120.0)

    def run(rank):
        more = {} if asked is None else {"should_stop": asked[rank]}
        try:
            job = crew[rank].prepared(load_config(files[rank]))
            return execute(job, out=out, resume=resume, cluster=crew[rank], **more)
        except Exception as error:
            crew[rank].report(error)
            raise

    return at_once(run, range(len(files)))
