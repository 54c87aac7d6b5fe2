"""Dropout whose masks are public: a function of the step and the record, and of nothing else.

`nn.Dropout` draws from a global generator, so what it does to one record depends on how many came
before. `Dropout` computes its mask from the record's *coin*, a number that everyone can work out:
`record_coins` makes it of the public seed, the step, the node, and the number that the record has
at its node. Two records of a batch do not share a mask, and a record has the same mask whoever
else is in the batch, wherever it stands there, and whichever process computes it.

So, given the public coins, a record's gradient is a function of that record and the weights alone,
and the bound on clipped sums holds as it does without dropout (`docs/proofs/clipped-sums.md`). No
privacy is gained by dropout: the coins are no secret.

The generator is counter-based: value i of layer l is kept if the mixed bits of (coin, l, i) are
above p. The mixing is that of SplitMix64 (Steele, Lea and Flood 2014).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.errors import InputError


class Dropout(nn.Module):
    """Sets each number of a record to zero with chance `p`, and scales the others by 1 / (1 - p).

    `tacit.train` gives it the coins of the records; in evaluation it does nothing. Used alone, in
    training, it is torch's own dropout.

    Args:
        p: chance of each number, 0 or more and below 1.
        whole_channels: drop all numbers of a channel together, as `nn.Dropout2d` does; the channels
            are the second axis.

    Raises:
        InputError: on `p`.
    """

    coins: Tensor | None

    def __init__(self, p: float = 0.5, *, whole_channels: bool = False) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise InputError("p", p, "must be a chance of 0 or more and below 1")
        self.p = float(p)
        self.whole_channels = whole_channels
        self.coins = None

    def extra_repr(self) -> str:
        """What a printed model says of it."""
        return f"p={self.p:g}" + ", whole_channels=True" * self.whole_channels

    def forward(self, inputs: Tensor) -> Tensor:
        """The records `[records, ...]` with some numbers set to zero, in training.

        Raises:
            InputError: on `task.model` if the first axis is not that of the records.
        """
        if not self.training or self.p == 0:
            return inputs
        if self.coins is None:
            alone = torch.feature_dropout if self.whole_channels else functional.dropout
            return alone(inputs, self.p, True)
        if inputs.ndim < 1 or inputs.shape[0] != self.coins.shape[0]:
            raise InputError(
                "task.model",
                f"Dropout of a tensor of shape {list(inputs.shape)}",
                f"the first axis must be the {self.coins.shape[0]} records",
            )
        shape = inputs.shape[1:2] if self.whole_channels else inputs.shape[1:]
        count = math.prod(shape)
        kept = _kept(self.coins, count, self.p).view(-1, *shape)
        kept = kept.view(*kept.shape, *(1,) * (inputs.ndim - kept.ndim))
        return torch.where(kept, inputs / (1 - self.p), 0.0)


def drops(module: nn.Module) -> bool:
    """Whether a module needs coins: it holds a `Dropout` whose chance is not zero."""
    return any(isinstance(part, Dropout) and part.p > 0 for part in module.modules())


@contextmanager
def dropping(module: nn.Module, coins: Tensor | None) -> Iterator[None]:
    """Within, every `Dropout` of `module` uses these coins, each in a way of its own.

    The module is called within on `[records, ...]`, and used by one thread. Coins are int64
    `[records]`; None where it drops nothing.
    """
    layers = [part for part in module.modules() if isinstance(part, Dropout)]
    try:
        for number, layer in enumerate(layers):
            layer.coins = None if coins is None else _mixed(coins + _wrapped(number * _LAYER))
        yield
    finally:
        for layer in layers:
            layer.coins = None


def record_coins(seed: int, k: int, part: int, nodes: Tensor, records: Tensor) -> Tensor:
    """The public coin of each record at one step, int64 `[nodes, b]`.

    Args:
        seed: the public one.
        k: the step.
        part: number of the mini-batch, where a step draws several.
        nodes: int64 `[nodes]`, numbers of the nodes.
        records: int64 `[nodes, b]`, number of each record *at its node*: where a record stands in
            its batch must not count, since that tells which others were drawn.
    """
    name = f"dropout {seed} {k} {part}".encode()
    start = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little", signed=True)
    own = _mixed(nodes.to(records) * _GAMMA + start)
    return _mixed(own.unsqueeze(1) + records * _GAMMA)


def view_coins(coins: Tensor, views: int) -> Tensor:
    """The coins of the views of records, int64 `[..., b * views]`, a record's one after the other.

    Those of the records are int64 `[..., b]`.
    """
    counters = torch.arange(1, views + 1, device=coins.device) * _VIEW
    return _mixed(coins.unsqueeze(-1) + counters).flatten(-2)


def drawn_coins(coins: Tensor) -> Tensor:
    """What an augmentation draws from, of the same shape: no mask of a layer has the same bits.

    Numbers of 63 bits, and so not negative.
    """
    return _shifted(_mixed(coins + _AUGMENTATION), 1)


def _wrapped(value: int) -> int:
    """The same 64 bits as a signed integer."""
    return (value + 2**63) % 2**64 - 2**63


_GAMMA = _wrapped(0x9E3779B97F4A7C15)
_LAYER = _wrapped(0xD1B54A32D192ED03)
_VIEW = _wrapped(0x8CB92BA72F3D8DD7)
_AUGMENTATION = _wrapped(0xA0761D6478BD642F)
_FIRST, _SECOND = _wrapped(0xBF58476D1CE4E5B9), _wrapped(0x94D049BB133111EB)


def _mixed(bits: Tensor) -> Tensor:
    """SplitMix64's permutation of 64 bits; int64 products wrap around."""
    bits = (bits ^ _shifted(bits, 30)) * _FIRST
    bits = (bits ^ _shifted(bits, 27)) * _SECOND
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, places: int) -> Tensor:
    """Shifted to the right, with zeros from the left."""
    return (bits >> places) & ((1 << (64 - places)) - 1)


def _kept(coins: Tensor, count: int, p: float) -> Tensor:
    """Which of `count` numbers each record keeps, bool `[records, count]`."""
    counters = torch.arange(1, count + 1, device=coins.device) * _GAMMA
    words = _shifted(_mixed(coins.unsqueeze(1) + counters), 32)
    return words >= math.ceil(p * 2**32)
