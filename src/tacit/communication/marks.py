"""Marks: what all processes measured after a step comes together at rank 0.

A process's part of a mark is one vector. On its way the step stands before the numbers, and all are
float64. What the numbers say, `tacit.training.evaluation` knows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from tacit.errors import PeerError


def written(step: int, part: Tensor) -> Tensor:
    """A part as it is sent, uint8."""
    return torch.cat([torch.tensor([step], dtype=torch.float64), part]).view(torch.uint8)


def message_bytes(numbers: int) -> int:
    """How long it is."""
    return 8 * (1 + numbers)


def read(message: Tensor, step: int, numbers: int, who: str) -> Tensor:
    """The numbers in a message that `who` sent; a PeerError where its length or step is another."""
    due = message_bytes(numbers)
    if len(message) != due:
        raise PeerError(f"{who} sent {len(message)} bytes of metrics, where {due} were due")
    values = message.clone().view(torch.float64)
    if float(values[0]) != step:
        found = f"{float(values[0]):.15g}"
        raise PeerError(f"{who} sent metrics of step {found}, where {step} was due")
    return values[1:]


class Gatherer(ABC):
    """Gathers marks at rank 0; every process puts its parts of the same marks, in order.

    `names` are of all processes by rank, for messages, and `numbers` how many each part has.
    """

    def __init__(self, rank: int, names: Sequence[str], numbers: Sequence[int]) -> None:
        self.rank, self.others = rank, range(1, len(names))
        self._names, self._numbers = names, numbers
        self._own: deque[tuple[int, Tensor]] = deque()
        self._complete: list[tuple[int, list[Tensor]]] = []

    @abstractmethod
    def send(self, message: Tensor) -> None:
        """Hand over a message for rank 0, in order, and go on; elsewhere than there."""

    @abstractmethod
    def is_here(self, rank: int, step: int) -> bool:
        """Whether nothing has to be waited for in the next message of a rank, of this step."""

    @abstractmethod
    def take(self, rank: int) -> Tensor:
        """The next message of a rank, waiting for it within limits."""

    def put(self, step: int, part: Tensor) -> None:
        """This process's part of the next mark, which is not changed afterwards.

        Raises:
            PeerError: nothing moves within the limits, or a part that came was wrong.
            TacitError: why the run ends.
        """
        if self.rank:
            self.send(written(step, part))
        else:
            self._own.append((step, part))

    def ready(self) -> list[tuple[int, list[Tensor]]]:
        """The marks that are complete since it was last asked, in order; at rank 0.

        Each is a step and the vectors in the order of ranks. Of a process that is gone stands its
        last part without the sum of its models, and nothing where there was none. A part that came
        wrong is a PeerError.
        """
        while self._own and all(self.is_here(rank, self._own[0][0]) for rank in self.others):
            self._finish_one()
        complete, self._complete = self._complete, []
        return complete

    def finish(self) -> None:
        """At rank 0, wait until the parts of all that was put have come; `ready` hands them out.

        Errors are those of `put`.
        """
        while self._own:
            self._finish_one()

    def _finish_one(self) -> None:
        step, own = self._own.popleft()
        self._complete.append((step, [own, *(self.part_of(rank, step) for rank in self.others)]))

    def part_of(self, rank: int, step: int) -> Tensor:
        """The next part of a rank, due of this step."""
        return read(self.take(rank), step, self._numbers[rank], self._names[rank])
