"""Worst-case data: nodes whose records have the gradients that an accountant fears most.

The model is linear in a few weights and the loss is its output, so that a record's gradient is
its feature vector, at every step and wherever the model is. Direction `CANARY` is used by the
canary, `CROWD` by the other records, those of `BARE` by nobody: there an observer sees the noise
alone.

The canary's feature is a million times the clipping bound, so that clipping is put to the test.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tacit import gradients
from tacit.data import StackedData
from tacit.gradients import Loss, StackedModel

__all__ = [
    "ALONE",
    "BARE",
    "CANARY",
    "CROWD",
    "HUGE",
    "OPPOSED",
    "REPLACED",
    "REPLACED_IN_BATCH",
    "WIDTH",
    "Problem",
    "linear_model",
    "stack_records",
]

CANARY, CROWD = 0, 1
BARE = slice(2, 16)
WIDTH = 16
HUGE = 1e6

Vector = tuple[float, float]


@dataclass(frozen=True)
class Problem:
    """A pair of neighbouring data sets, gradients along `CANARY` and `CROWD`.

    In units of the largest clipping bound of the schedule.

    Args:
        others: the gradient of every other record.
        canary: the gradient of the canary in D.
        instead: what stands in its place in D'; None: nothing does, and J, the sampling rate and
            the denominator stay as they were (zero-out).
    """

    others: Vector
    canary: Vector
    instead: Vector | None


ALONE = Problem(others=(0, 1), canary=(HUGE, 0), instead=None)
"""Add-or-remove-one: nobody else works along the canary's direction."""

OPPOSED = Problem(others=(0, 1), canary=(0, -HUGE), instead=None)
"""Add-or-remove-one: against all the others, so that a changing denominator counts double."""

REPLACED = Problem(others=(0, 1), canary=(HUGE, 0), instead=(-HUGE, 0))
"""Replace-one: opposite contributions."""

REPLACED_IN_BATCH = Problem(others=(-1, 0), canary=(HUGE, 0), instead=(-1, 0))
"""Replace-one with a batch of fixed size: whoever the canary displaces is its opposite."""


def _output(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.reshape(-1)


def _anything(outputs: Tensor, targets: Tensor) -> None:
    """Any targets will do: the loss does not read them."""


LINEAR = Loss("linear", _output, None, _anything)


def linear_model(dtype: torch.dtype, device: torch.device) -> StackedModel:
    """The linear model, its weights at 0, under the product's own gradient engine."""
    module = nn.Linear(WIDTH, 1, bias=False)
    nn.init.zeros_(module.weight)
    return gradients.build(
        module, LINEAR, torch.eye(WIDTH), torch.zeros(WIDTH, 1), dtype=dtype, device=device
    )


def stack_records(
    problem: Problem,
    records: list[int],
    inserted: Tensor,
    clip: float,
    dtype: torch.dtype,
    device: torch.device,
) -> StackedData:
    """The records of all nodes; the canary, or what stands for it, is a node's last one.

    Args:
        problem: the pair.
        records: J of each node.
        inserted: bool `[nodes]`, True where the node holds D.
        clip: the unit of the problem's gradients.
        dtype: of the records.
        device: of the records.

    A record's target, which the loss does not read, is its number in the stack: it says who was
    drawn. In a node that holds D' of a zero-out problem the last row is still in the stack, but is
    none of the node's records, and the node's plan must not count it either.
    """
    sizes = torch.tensor(records, dtype=torch.int64, device=device)
    ends = sizes.cumsum(0)
    inputs = torch.zeros(int(ends[-1]), WIDTH, dtype=dtype, device=device)
    inputs[:, : BARE.start] = torch.tensor(problem.others, dtype=dtype, device=device)
    instead = problem.others if problem.instead is None else problem.instead
    choice = torch.tensor([instead, problem.canary], dtype=dtype, device=device)
    inputs[ends - 1, : BARE.start] = choice[inserted.to(device).long()]
    inputs *= clip
    absent = torch.zeros_like(sizes)
    if problem.instead is None:
        absent = (~inserted.to(device)).long()
    return StackedData(inputs, torch.arange(len(inputs)).to(device), ends - sizes, sizes - absent)
