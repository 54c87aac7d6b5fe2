"""The processes of a run as one of them holds them, whatever joins them; and their metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

import torch
from torch import Tensor

from tacit.communication.exchange.protocol import Channel
from tacit.communication.peers import Peers


class Marks(Protocol):
    """Gathers what processes measured at rank 0; see `tacit.communication.cluster.gathering`."""

    def put(self, step: int, part: Tensor) -> None:
        """This process's part of the next mark, one vector."""

    def ready(self) -> list[tuple[int, list[Tensor]]]:
        """The marks that are complete, at rank 0.

        Of a process that is gone stands its last part without the sum of its models, and nothing
        where there was none.
        """

    def finish(self, limit: float) -> None:
        """Wait until all that was put is safe with rank 0."""


class Crew(Peers, Protocol):
    """The processes of a run as one of them holds them: in one rack, or at several sites.

    Attributes:
        hosts: of each rank, the nodes that it hosts; to be set when known.
        meets_again: whether the run has stopped so that all meet again, and go on.
        stopped: whether it has stopped before its end, and can be gone on with.
    """

    hosts: Sequence[Sequence[int]]
    meets_again: bool
    stopped: bool

    def expect(self, *, steps: int, largest: int) -> None:
        """Say what the plan says; before anybody can send a message of the exchange.

        The largest of these messages has at most `largest` bytes.
        """

    def connect(
        self, device: torch.device, numbers: Sequence[int], added: int, stack: ExitStack
    ) -> tuple[Channel, Marks]:
        """Open what the exchange and the metrics go through; `stack` closes it.

        A part of a mark has so many `numbers` by rank, the last `added` of which are a sum of
        models.
        """

    def let_leave(
        self, goes_on: Callable[[frozenset[int]], bool] | None, *, takes_back: bool
    ) -> Callable[[int], frozenset[int]]:
        """Let the run go on without processes that are away for too long, where they may be.

        `goes_on` says whether it can go on without these ranks (None: without nobody), `takes_back`
        whether one that comes back later can go on with the server's model. What is returned gives
        the ranks that are left out of a step.
        """

    def note(self, name: str, text: str) -> None:
        """Leave a text that later attempts of the same launcher's run will find."""

    def noted(self, name: str) -> str | None:
        """The text left under a name; None without one."""
