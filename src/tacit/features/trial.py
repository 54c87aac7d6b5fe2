"""Whether a user's feature map is a fixed function of each record alone: tried out, or refused.

A map is given made-up or public records, in blocks of the size in which it is given all others.
What it gives one of them must be the same, bit for bit, whoever stands in the other places:
other records, zeros, the largest and the smallest numbers there are, infinite ones, and no numbers.
Nothing less would do: in a map that adds 1e-6 times the mean of a block, one record decides about
all others as soon as it is large enough. It must be the same once more after all of that, so that
what a map keeps from call to call shows; and it must leave its argument and the generators of
random numbers as they were.

This is a trial and no proof: a map that mixes records for inputs alone that the trial does not have
would pass. So would one that reads a clock or a file. The assumption is stated in
docs/proofs/features.md.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from tacit.errors import InputError, describe

_WHERE = "task.features"
_SEED = 21

Function = Callable[[Tensor], Tensor]
"""Inputs `[block, ...]` to features `[block, ...]`."""


def try_out(name: str, function: Function, examples: Tensor, block: int) -> tuple[int, ...]:
    """The shape of a record's features, once the map has passed the trial.

    `examples` are public or made-up inputs `[few, ...]`, on the device of the run; `block` is how
    many records the map is given at a time.

    Raises:
        InputError: on `task.features`: it fails, gives no tensor of finite numbers with a row a
            record, changes its argument, draws random numbers, changes from call to call, or mixes
            records.
    """
    draws = torch.Generator().manual_seed(_SEED)
    rows = torch.arange(block) % len(examples)
    records = examples[rows.to(examples.device)]
    if records.is_floating_point():
        scales = 0.5 + torch.rand(records.shape, generator=draws)
        records = records * scales.to(records)
    states = _generators(records.device)
    first = _called(name, function, records)
    if states != _generators(records.device):
        raise _refusal(
            name,
            "it draws random numbers: a feature map is a fixed function (of a network, call "
            ".eval() first)",
        )
    if not bool(torch.isfinite(first).all()):
        raise _refusal(name, "its features of public or made-up records must be finite numbers")
    if not torch.equal(first, _called(name, function, records)):
        raise _refusal(name, "it must give the same for the same records, and does not")
    for others in _neighbours(records, draws):
        for place in (0, block // 2, block - 1):
            crowd = others.clone()
            crowd[place] = records[place]
            try:
                found = function(crowd.clone())
            except (Exception, SystemExit):  # it may refuse what is no number
                continue
            if not isinstance(found, Tensor) or found.shape != first.shape:
                raise _refusal(name, "the shape of what it returns depends on the records' numbers")
            if not torch.equal(found[place], first[place]):
                raise _refusal(
                    name,
                    "a record's features depend on the records beside it, and so would tell of "
                    "them: it must look at each record alone (of a network, call .eval() first)",
                )
    if not torch.equal(first, _called(name, function, records)):
        raise _refusal(name, "it changes from call to call: a feature map is a fixed function")
    return tuple(first.shape[1:])


def _called(name: str, function: Function, records: Tensor) -> Tensor:
    """What the map gives for records that are no private ones, if it can be used."""
    given = records.clone()
    try:
        with torch.no_grad():
            made: object = function(given)
    except (Exception, SystemExit) as error:  # whatever the user's function raises
        kind = f"records of shape {list(records.shape[1:])} and type {records.dtype}"
        raise _refusal(name, f"it must take {kind}; it raised {describe(error)}") from error
    if not isinstance(made, Tensor):
        found = type(made).__name__
        raise _refusal(name, f"it must return a tensor with a row a record; it returned a {found}")
    plain = made.layout == torch.strided and not (made.is_complex() or made.is_quantized)
    if not plain or made.dtype == torch.bool:
        raise _refusal(name, "it must return a plain tensor of real numbers")
    if made.ndim < 2 or len(made) != len(records) or not made.numel():
        raise _refusal(
            name,
            f"it must return a row a record, [{len(records)}, ...]; it returned {list(made.shape)}",
        )
    if not torch.equal(given, records):
        raise _refusal(name, "it changes the tensor that it is given: copy it first")
    return made.detach().clone()


def _neighbours(records: Tensor, draws: torch.Generator) -> Iterator[Tensor]:
    """What may stand beside a record."""
    yield records.flip(0)
    yield torch.zeros_like(records)
    if not records.is_floating_point():
        yield torch.randint(2, records.shape, generator=draws).to(records)
        yield torch.ones_like(records)
        return
    largest, smallest = torch.finfo(records.dtype).max, torch.finfo(records.dtype).tiny
    for size in (1e6, -1e30, largest, smallest, float("inf"), float("nan")):
        yield torch.full_like(records, size)
    yield torch.randn(records.shape, generator=draws).to(records) * 1e15


def _generators(device: torch.device) -> tuple[str, ...]:
    """The states of all global generators of random numbers."""
    states = [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()]  # noqa: NPY002
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device).tolist())
    with np.printoptions(threshold=sys.maxsize):
        return tuple(map(repr, states))


def _refusal(name: str, expected: str) -> InputError:
    return InputError(_WHERE, name, expected)
