"""What an observer of all messages has, and the noised gradients it can work out from that.

Trust model `all-messages`: the observer knows the start, the graph and its weights, the learning
rate, and every message. For each algorithm's step a function says how the noised batch gradient
of every node follows from these alone: what the algorithm does with it later is post-processing
that the observer undoes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tacit.algorithms import Algorithm
from tacit.algorithms import dp2_sgd as gossip
from tacit.algorithms import privsgp as push_sum
from tacit.errors import InputError
from tacit.exchange import Exchange

__all__ = ["RecordingExchange", "Transcript", "noised_gradients"]


@dataclass
class RecordingExchange:
    """An exchange that keeps a copy of every message it moves.

    Args:
        inner: what moves them.

    Attributes:
        sent: (step, values) in the order they were sent.
    """

    inner: Exchange
    sent: list[tuple[int, tuple[Tensor, ...]]] = field(default_factory=list)

    def mix(self, k: int, *values: Tensor) -> tuple[Tensor, ...]:
        """Copies the message, then mixes; see `Exchange.mix`."""
        self.sent.append((k, tuple(value.clone() for value in values)))
        return self.inner.mix(k, *values)


@dataclass(frozen=True)
class Transcript:
    """Public values of a run.

    Args:
        start: `[nodes, d]`, x^0.
        sent: (step, message) in order, one a step and one after the last.
        options: the algorithm's options.
        exchange: the public mixing matrices, to follow what the nodes do with messages.
    """

    start: Tensor
    sent: list[tuple[int, tuple[Tensor, ...]]]
    options: Any
    exchange: Exchange


def _from_push_sum(seen: Transcript) -> Tensor:
    """x_i^k is what node i received, so (x_i^k - x_i^{k+1/2}) / gamma is its direction."""
    x, found = seen.start, []
    before: Tensor | None = None
    for k, message in seen.sent[:-1]:
        x_half, w = message
        direction = (x.double() - x_half.double()) / seen.options.learning_rate
        beta = seen.options.momentum
        found.append(direction if before is None else direction - beta * before)
        before = direction
        x, _ = seen.exchange.mix(k, x_half, w)
    return torch.stack(found)


def _from_gossip(seen: Transcript) -> Tensor:
    """x^{k+1} is W x^k less the step, and is sent in its turn."""
    found = []
    for (k, (x,)), (_, (following,)) in zip(seen.sent, seen.sent[1:], strict=False):
        (mixed,) = seen.exchange.mix(k, x)
        found.append((mixed.double() - following.double()) / seen.options.learning_rate)
    return torch.stack(found)


# An algorithm with a step of its own needs a row.
OBSERVERS: Mapping[Callable[..., Any], Callable[[Transcript], Tensor]] = {
    push_sum.step: _from_push_sum,
    gossip.step: _from_gossip,
}


def noised_gradients(algorithm: Algorithm[Any, Any], seen: Transcript) -> Tensor:
    """Every node's noised batch **mean** at every step, float64 `[steps, nodes, d]`.

    Raises:
        InputError: nothing is known yet of what an observer learns from this algorithm.
    """
    if algorithm.step not in OBSERVERS:
        raise InputError(
            "algorithm.name", algorithm.name, "cannot be audited yet: no observer is written for it"
        )
    return OBSERVERS[algorithm.step](seen)
