"""A training loop that somebody else owns, let go by so many steps at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Gate:
    """Runs `loop` in a thread and holds it after every so many steps.

    The loop has to call `passed` after each step, and to end soon after it has seen `stopped`. The
    first call of `run` starts it, so that its own start-up falls into the warm-up.

    Args:
        loop: runs until `stopped`.
    """

    def __init__(self, loop: Callable[[], None]) -> None:
        self.stopped = False
        self._loop = loop
        self._allowed, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._left = 0
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, daemon=True)

    @property
    def untouched(self) -> bool:
        """Whether `run` was not called yet."""
        return self._thread.ident is None

    def run(self, steps: int) -> None:
        """Let so many steps pass, and wait for them; what the loop raises is raised here."""
        self._left = steps
        if self.untouched:
            self._thread.start()
        else:
            self._allowed.release()
        self._done.acquire()
        if self._failed is not None:
            raise self._failed

    def passed(self) -> None:
        """Called by the loop, in its thread, after a step."""
        self._left -= 1
        if self._left <= 0 and not self.stopped:
            self._done.release()
            self._allowed.acquire()

    def stop(self, seconds: float) -> None:
        """Ask the loop to end, and wait so long for it."""
        self.stopped = True
        self._allowed.release()
        if not self.untouched:
            self._thread.join(seconds)

    def _guarded(self) -> None:
        try:
            self._loop()
            if not self.stopped:
                raise RuntimeError("the loop ended before it was told to")
        except BaseException as error:
            self._failed = error
        self._done.release()
