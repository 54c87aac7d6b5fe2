"""A process of the pool: `python -m tacit.analysis.compare.worker`, driven by `work`."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from dataclasses import asdict
from typing import TextIO

from tacit.analysis.compare.work import Task, perform

__all__ = ["main"]

_EVERY = 0.5  # seconds between two reports
_LEFT = 130  # exit code of one that was asked to stop before its run began


def main() -> None:
    """Read tasks from standard input until it ends, and answer each on standard output."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a user's module prints must not be taken for an answer
    tasks: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    ended, running = threading.Event(), threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            tasks.put(line)
        ended.set()
        tasks.put(None)
        if not running.is_set():  # nothing was sent or booked: preparing may take minutes
            os._exit(_LEFT)

    def should_stop() -> bool:  # first asked when all is prepared
        running.set()
        return ended.is_set()

    threading.Thread(target=listen, daemon=True).start()
    while (line := tasks.get()) is not None:
        outcome = perform(Task(**json.loads(line)), _Reports(answers).show, should_stop)
        running.clear()
        _say(answers, asdict(outcome))


class _Reports:
    """Says now and then how far a run is."""

    def __init__(self, answers: TextIO) -> None:
        self._answers, self._last = answers, 0.0

    def show(self, share: float) -> None:
        if time.monotonic() >= self._last + _EVERY:
            self._last = time.monotonic()
            _say(self._answers, {"share": share})


def _say(answers: TextIO, content: object) -> None:
    try:
        answers.write(json.dumps(content) + "\n")
        answers.flush()
    except BrokenPipeError:  # the parent is gone: the run is to be stopped cleanly all the same
        return


if __name__ == "__main__":
    main()
