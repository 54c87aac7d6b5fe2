"""A call in a thread of its own, that stands still in its middle until it may go on."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Generic, TypeVar, cast

from tacit.errors import PeerError

T = TypeVar("T")
PATIENCE = 10.0  # seconds for the end of a call whose holder is gone


class StandingCall(Generic[T]):
    """A call of `work`, which is given what it stands still with: a function of what to say then.

    Calling that, `work` waits, and raises `PeerError` there where the call is ended. It must hold
    no reference to whoever holds this, who would never be collected then.
    """

    def __init__(self, work: Callable[[Callable[[T], None]], T]) -> None:
        self._may_go_on = SimpleQueue[bool]()
        self._stands = SimpleQueue[tuple[T | None, BaseException | None]]()
        # Not one that the interpreter waits for: it would wait before anybody is told to end.
        self._thread = Thread(target=self._made, args=(work,), name="tacit-party", daemon=True)
        self._thread.start()

    def go_on(self) -> T:
        """What it says once it stands again, or gives at its end; or an error that it raises."""
        self._may_go_on.put(True)
        said, error = self._stands.get()
        if error is not None:
            raise error
        return cast(T, said)

    def end(self, patience: float | None = None) -> None:
        """End it where it stands, or will stand next, and wait for that, at most so many seconds.

        Who ends it while garbage is collected may hold a lock that it needs: it is to wait a while,
        and not for ever.
        """
        self._may_go_on.put(False)
        self._thread.join(patience)

    def _made(self, work: Callable[[Callable[[T], None]], T]) -> None:
        try:
            self._check()
            self._stands.put((work(self._stand), None))
        except BaseException as error:
            self._stands.put((None, error))

    def _stand(self, said: T) -> None:
        self._stands.put((said, None))
        self._check()

    def _check(self) -> None:
        if not self._may_go_on.get():
            raise PeerError("this party's run is closed; whoever opens it goes on")
