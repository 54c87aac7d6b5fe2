"""When a frame is sent again: after a time that acknowledgements have measured, as TCP does.

The engine carries frames over TCP. It loses one where a connection breaks, which the carrier sees,
and otherwise a receiver asks for what it lacks. What is left for a clock is a last frame that a
relay dropped. So the clock is slow: it gives every byte under way twice the time that the way was
seen to need, and never less than the engine gives a connection on which nothing comes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

LEAST = 10.0  # seconds: the engine's own, after which it gives up a connection that is silent
LONGEST = 120.0  # seconds to which doubling goes, unless the way itself needs more
SLOWEST = 12_000.0  # bytes a second of a way that no acknowledgement has measured
LARGE = 60 * 2**10  # bytes from which on a frame tells the rate of its way
_SLACK = 2.0
_MOST_ATTEMPTS = 20


@dataclass(frozen=True)
class Pace:
    """What acknowledgements have told of the way to a site.

    The smoothed time and its spread are those of RFC 6298, with its constants; frames that were
    sent more than once tell none (Karn's rule). `trip` is of seconds from when a frame is handed
    over until it is acknowledged, `rate` of bytes a second of large frames; None: there was none.
    `attempts` is how often frames were sent again for the clock, and none was acknowledged since.
    """

    trip: float | None = None
    spread: float = 0.0
    rate: float | None = None
    attempts: int = 0

    def wait(self, size: int) -> float:
        """Seconds after which a frame that is not acknowledged is sent again.

        `size` is in bytes: what is under way.
        """
        seen = 0.0 if self.trip is None else self.trip + 4 * self.spread
        measured = LEAST + seen + _SLACK * size / (self.rate or SLOWEST)
        return max(measured, min(measured * 2.0**self.attempts, LONGEST))

    def acknowledged(self, seconds: float, size: int) -> Pace:
        """After a frame that was sent once was acknowledged, `seconds` after it was handed over.

        `size` is in bytes: what was under way then, its own included.
        """
        rate = self.rate
        if size >= LARGE:
            seen = size / max(seconds, 1e-6)
            rate = seen if rate is None else 0.75 * rate + 0.25 * seen
        if self.trip is None:
            return Pace(seconds, seconds / 2, rate)
        spread = 0.75 * self.spread + 0.25 * abs(self.trip - seconds)
        return Pace(0.875 * self.trip + 0.125 * seconds, spread, rate)

    def unclear(self) -> Pace:
        """After one was acknowledged that was sent more than once: which of them tells nothing."""
        return replace(self, attempts=self.attempts // 2)

    def again(self) -> Pace:
        """After the clock has had frames sent again: the next wait is twice as long."""
        return replace(self, attempts=min(self.attempts + 1, _MOST_ATTEMPTS))
