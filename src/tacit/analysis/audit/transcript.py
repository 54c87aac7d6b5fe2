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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.algorithms import Algorithm
from tacit.algorithms import do_adp as compressed_gossip
from tacit.algorithms import dp2_sgd as gossip
from tacit.algorithms import privsgp as push_sum
from tacit.algorithms.base import step_size
from tacit.communication.colours import Public, Released
from tacit.communication.compression import Coding
from tacit.communication.exchange import Exchange
from tacit.communication.exchange.protocol import Message, message_values
from tacit.errors import InputError

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

    @property
    def bytes_sent(self) -> NDArray[np.int64]:
        """See `Exchange`."""
        return self.inner.bytes_sent

    @property
    def dropped(self) -> Mapping[int, int]:
        """See `Exchange`."""
        return self.inner.dropped

    def mix(self, k: int, *values: Message, coding: Coding | None = None) -> tuple[Tensor, ...]:
        """Copies the message, then mixes; see `Exchange.mix`."""
        self._keep(k, message_values("mix", k, values))
        return self.inner.mix(k, *values, coding=coding)

    def swap(self, k: int, partner: Tensor, *values: Message) -> tuple[Tensor, ...]:
        """Copies the message, then swaps; see `Exchange.swap`."""
        self._keep(k, message_values("swap", k, values))
        return self.inner.swap(k, partner, *values)

    def average(
        self, k: int, *values: Message, latest: bool = False, coding: Coding | None = None
    ) -> tuple[Tensor, ...]:
        """Copies the message, then averages; see `Exchange.average`."""
        self._keep(k, message_values("average", k, values))
        return self.inner.average(k, *values, latest=latest, coding=coding)

    def _keep(self, k: int, values: tuple[Tensor, ...]) -> None:
        self.sent.append((k, tuple(value.clone() for value in values)))


@dataclass(frozen=True)
class Transcript:
    """Public values of a run.

    Args:
        start: `[nodes, d]`, x^0.
        sent: (step, message) in order, one a step and one after the last.
        options: the algorithm's options.
        steps: K of the whole run.
        exchange: the public mixing matrices, to follow what the nodes do with messages.
    """

    start: Tensor
    sent: list[tuple[int, tuple[Tensor, ...]]]
    options: Any
    steps: int
    exchange: Exchange


def _from_push_sum(transcript: Transcript) -> Tensor:
    """x_i^k is what node i received, so (x_i^k - x_i^{k+1/2}) / gamma is its direction."""
    x, gradients = transcript.start, []
    before: Tensor | None = None
    for k, message in transcript.sent[:-1]:
        x_half, w = message
        direction = (x.double() - x_half.double()) / step_size(
            transcript.options, k, transcript.steps
        )
        beta = transcript.options.momentum
        gradients.append(direction if before is None else direction - beta * before)
        before = direction
        x, _ = transcript.exchange.mix(k, Released(x_half), Public(w))
    return torch.stack(gradients)


def _from_variance_reduction(transcript: Transcript) -> Tensor:
    """As push-sum; where anchors are released, what follows one is taken relative to it."""
    gradients = _from_push_sum(transcript)
    if transcript.options.state == "private":
        return gradients
    every = transcript.options.anchor_every
    anchors = gradients[torch.arange(len(gradients)) // every * every]
    released = torch.arange(len(gradients)) % every == 0
    return torch.where(released.to(gradients.device)[:, None, None], gradients, gradients - anchors)


def _from_gossip(transcript: Transcript) -> Tensor:
    """x^{k+1} is W x^k less the step, and is sent in its turn."""
    gradients = []
    for (k, (x,)), (_, (following,)) in zip(transcript.sent, transcript.sent[1:], strict=False):
        (mixed,) = transcript.exchange.mix(k, Released(x))
        gradients.append(
            (mixed.double() - following.double())
            / step_size(transcript.options, k, transcript.steps)
        )
    return torch.stack(gradients)


def _from_compressed_gossip(transcript: Transcript) -> Tensor:
    """Where everything is sent by everyone, the public copies are the models.

    Raises:
        InputError: messages are compressed, or nodes are inactive: the gradients of a step cannot
            be told from what was kept back.
    """
    options = transcript.options
    if options.compressor != "none":
        raise InputError(
            "algorithm.compressor", options.compressor, "must be 'none' in an audit: no observer "
            "is written yet for messages that hold a part of what a node has",
        )  # fmt: skip
    if getattr(options, "activation", 1.0) < 1:
        raise InputError(
            "algorithm.activation", options.activation, "must be 1 in an audit: no observer is "
            "written yet for nodes that are silent at times",
        )  # fmt: skip
    x, gradients = transcript.start, []
    copy, neighbours = torch.zeros_like(x), torch.zeros_like(x)
    before: Tensor | None = None
    for k, (s,) in transcript.sent[:-1]:
        pulled = x.double() + options.consensus_step * (neighbours.double() - copy.double())
        copy = copy + s
        (moved,) = transcript.exchange.mix(k, Released(s))
        x, neighbours = copy, neighbours + moved
        direction = (pulled - x.double()) / step_size(options, k, transcript.steps)
        gradients.append(direction if before is None else direction - options.momentum * before)
        before = direction
    return torch.stack(gradients)


# An algorithm with a step of its own needs a row.
OBSERVERS: Mapping[Callable[..., Any], Callable[[Transcript], Tensor]] = {
    push_sum.step: _from_push_sum,
    push_sum.reduced_step: _from_variance_reduction,
    gossip.step: _from_gossip,
    compressed_gossip.step: _from_compressed_gossip,
}


def noised_gradients(algorithm: Algorithm[Any, Any], transcript: Transcript) -> Tensor:
    """Every node's noised batch **mean** at every step, float64 `[steps, nodes, d]`.

    Raises:
        InputError: nothing is known yet of what an observer learns from this algorithm.
    """
    if algorithm.step not in OBSERVERS:
        raise InputError(
            "algorithm.name", algorithm.name, "cannot be audited yet: no observer is written for it"
        )
    return OBSERVERS[algorithm.step](transcript)
