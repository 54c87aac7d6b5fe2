"""What processes that agree need of what joins them: texts that each of them states to all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class Link(Protocol):
    """What a process states under a key stays, also when it comes back and would state another.

    Attributes:
        names: of all processes, for messages, by rank.
    """

    rank: int
    names: Sequence[str]

    def state(self, key: str, text: str) -> str:
        """State a text to all; the one that stands, which may be of this process's last start."""

    def collect(
        self, key: str, ranks: Iterable[int], what: str, *, loading: bool = False
    ) -> dict[int, str]:
        """What these other ranks have stated under a key, once all have; `what` it is, in words.

        A rank without which the run goes on is not waited for, and may lack. `loading` says that
        ranks may still be about to load data and models.

        Raises:
            PeerError: a rank was lost, or has not come further in time.
            TacitError: what another rank reported.
        """

    def forget(self, keys: Iterable[str]) -> None:
        """Let go of texts that this process does not ask for, nor others for its own, any more."""
