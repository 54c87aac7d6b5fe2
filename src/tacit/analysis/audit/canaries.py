"""Worst-case data: nodes whose records have the gradients that an accountant fears most.

The model is linear in a few weights and the loss is its output, so that a record's gradient is
its feature vector, at every step and wherever the model is. Direction `CANARY` is used by the
canary, `CROWD` by the other records, those of `BARE` by nobody: there an observer sees the noise
alone.

The canary's feature is a million times the clipping bound, so that clipping is put to the test.

Where old gradients are kept, or subtracted from new ones, a gradient that never changes shows
little. There all gradients change their sign between steps, on a schedule that everybody knows
(`sign_schedule`). The certificates hold for gradients that depend on the step in any way, since
they hold for every history. The schedule is not one of the model's positions, because nodes that
share a model would then depend on each other's messages, and would not be independent repetitions.

Where a model's change is clipped in place of gradients, the other records push the change to one
end, and the canary, who outweighs all of them, to the other (`OUTVOTED`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import hadamard
from torch import Tensor, nn

from tacit import gradients
from tacit.algorithms.facets import Law
from tacit.data import StackedData
from tacit.gradients import Loss, StackedModel
from tacit.training.plan import Plan

CANARY, CROWD = 0, 1
BARE = slice(2, 16)
WIDTH = 16
HUGE = 1e6
SAME_POINT = 1e-5
"""Outputs of one record that differ by less, as a share, are outputs at the same point."""

Vector = tuple[float, float]
Older = Literal["anchor", "last step", "none"]


@dataclass(frozen=True)
class Problem:
    """A pair of neighbouring data sets, gradients along `CANARY` and `CROWD`.

    In units of the largest clipping bound of the schedule.

    Args:
        others: the gradient of every other record.
        canary: the gradient of the canary in D.
        instead: what stands in its place in D'; None: nothing does, and J, the sampling rate and
            the denominator stay as they were (zero-out).
        flips: whether all gradients change their sign between steps, see `sign_schedule`.
    """

    others: Vector
    canary: Vector
    instead: Vector | None
    flips: bool = False


ALONE = Problem(others=(0, 1), canary=(HUGE, 0), instead=None)
"""Add-or-remove-one: nobody else works along the canary's direction."""

OPPOSED = Problem(others=(0, 1), canary=(0, -HUGE), instead=None)
"""Add-or-remove-one: against all the others, so that a changing denominator counts double."""

REPLACED = Problem(others=(0, 1), canary=(HUGE, 0), instead=(-HUGE, 0))
"""Replace-one: opposite contributions."""

REPLACED_IN_BATCH = Problem(others=(-1, 0), canary=(HUGE, 0), instead=(-1, 0))
"""Replace-one with a batch of fixed size: whoever the canary displaces is its opposite."""


FLIPPED = Problem(others=(0, 1), canary=(HUGE, 0), instead=None, flips=True)
"""Add-or-remove-one: old gradients are the opposite of new ones."""

FLIPPED_REPLACED = Problem(others=(0, 1), canary=(HUGE, 0), instead=(-HUGE, 0), flips=True)
"""Replace-one: the same, with opposite contributions."""

NOBODY = Problem(others=(0, 0), canary=(0, 0), instead=(0, 0))
"""No gradients at all: what is released then is public."""

OUTVOTED = Problem(others=(-HUGE, 0), canary=(HUGE**2, 0), instead=None)
"""Add-or-remove-one: one change of the model becomes its opposite, 2 C apart."""

OUTVOTED_REPLACED = Problem(others=(-HUGE, 0), canary=(HUGE**2, 0), instead=(-HUGE, 0))
"""Replace-one: the same, with one more of the others in D'."""


def problem_of(law: Law, *, zero_out: bool, in_batch: bool) -> Problem:
    """The pair of data sets that an observer can tell apart best.

    `zero_out` says that the relation is add-or-remove-one, and `in_batch` that batches are drawn of
    a fixed size.
    """
    if law == "change":
        return OUTVOTED if zero_out else OUTVOTED_REPLACED
    if law in ("table", "snapshot", "anchors", "steps"):
        return FLIPPED if zero_out else FLIPPED_REPLACED
    if zero_out:
        return ALONE
    return REPLACED_IN_BATCH if in_batch and law != "carried" else REPLACED


def law_of(plan: Plan) -> Law:
    """How a release of the plan's algorithm depends on one record."""
    return plan.config.algorithm.definition.releases.law(plan.config.algorithm.options)


def older_point(law: Law) -> Older:
    """Where an algorithm that releases differences takes the gradients that it subtracts."""
    if law == "steps":
        return "last step"
    return "anchor" if law in ("snapshot", "anchors") else "none"


def sign_schedule(plan: Plan, steps: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What a flipping problem's gradients are multiplied by at each step, `[steps]`; public.

    Anchors and snapshots are taken at one sign, and all other gradients have the other. A table is
    filled at the sign of step 0; then the sign changes as often as a record is drawn, about. Where
    differences are to the point of the step before, it changes in every step.

    Returns:
        These signs, and those of the older gradients that are met: what most of a table holds.
    """
    every, numbers = getattr(plan.config.algorithm.options, "anchor_every", 1), np.arange(steps)
    if law_of(plan) == "table":
        often = max(1, round(1 / max(node.rate for node in plan.nodes)))
        blocks = (numbers - 1) // often + 1  # the first one is step 0 alone
        return _turned(blocks), _turned(np.maximum(blocks - 1, 0))
    if law_of(plan) == "steps":
        return _turned(numbers), _turned(np.maximum(numbers - 1, 0))
    return np.where(numbers % every == 0, 1.0, -1.0), np.ones(steps)


def _turned(times: NDArray[np.int64]) -> NDArray[np.float64]:
    """A sign that was changed so often."""
    return np.where(times % 2 == 0, 1.0, -1.0)


def directions(plan: Plan) -> NDArray[np.float64]:
    """The orthonormal directions of a lab's gradients, one a row, `[WIDTH, WIDTH]`: `CANARY` first.

    They are the coordinates, but for a clip that bounds each coordinate: there a gradient is
    longest that has all of them.
    """
    if plan.release.clip.norm == "coordinate":
        return np.asarray(hadamard(WIDTH) / np.sqrt(WIDTH), np.float64)
    return np.eye(WIDTH)


class Slope:
    """The sign of gradients, one a step, which changes on a schedule.

    Where differences to a gradient at an older point are taken, the loss of every record has one
    sign at that point and the other one elsewhere. The point is told by the record's output there:
    of an anchor it is kept at every step with a positive sign, when all records are read; that of
    the last step is worked out from the server's model then.
    """

    def __init__(self, signs: Sequence[float] = (1.0,), *, older: Older = "none") -> None:
        self._signs, self._now, self._before, self._older = signs, signs[0], 1.0, older
        self._kept: Tensor | None = None
        self._inputs: Tensor | None = None

    def begin(self, data: StackedData) -> None:
        """A run on these records starts, whose targets are their numbers."""
        if self._older != "none":
            self._kept, self._inputs = torch.zeros_like(data.stored[:, 0]), data.stored

    def after(self, steps: int, point: Tensor | None = None) -> None:
        """So many steps are done, the last of them at the server's model `point`, `[1, d]`."""
        last = len(self._signs) - 1
        self._now = self._signs[min(steps, last)]
        if self._older == "last step" and self._inputs is not None and point is not None:
            self._before = self._signs[min(steps - 1, last)]
            self._kept = self._inputs @ point[0].to(self._inputs)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """A loss whose gradient is the feature vector times the sign."""
        values = outputs.reshape(-1)
        if self._kept is None:
            return values * self._now
        rows, now = targets.reshape(-1).long(), values.detach().to(self._kept.dtype)
        if self._now > 0 and self._older == "anchor":
            self._kept[rows] = now
            return values
        kept = self._kept[rows]
        same = (now - kept).abs() <= SAME_POINT * (now.abs() + kept.abs())
        return values * torch.where(same, self._before, self._now).to(values.dtype)


def _anything(outputs: Tensor, targets: Tensor) -> None:
    """Any targets will do: the loss does not read them."""


def linear_model(
    dtype: torch.dtype, device: torch.device, slope: Slope | None = None
) -> StackedModel:
    """The linear model, its weights at 0, under the product's own gradient engine."""
    module = nn.Linear(WIDTH, 1, bias=False)
    nn.init.zeros_(module.weight)
    loss = Loss("linear", (slope or Slope()).losses, None, _anything)
    return gradients.build(
        module, loss, torch.eye(WIDTH), torch.zeros(WIDTH, 1), dtype=dtype, device=device
    )


def stack_records(
    problem: Problem,
    records: list[int],
    inserted: Tensor,
    clip: float,
    dtype: torch.dtype,
    device: torch.device,
    basis: NDArray[np.float64] | None = None,
) -> StackedData:
    """The records of all nodes; the canary, or what stands for it, is a node's last one.

    `records` are J of each node, and `inserted`, bool `[nodes]`, is True where it holds D.
    Gradients are in units of `clip`, along the directions `basis`, one a row; see `directions`.
    None: the coordinates.

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
    if basis is not None:
        inputs = inputs @ torch.from_numpy(basis).to(inputs)
    absent = torch.zeros_like(sizes)
    if problem.instead is None:
        absent = (~inserted.to(device)).long()
    return StackedData(inputs, torch.arange(len(inputs)).to(device), ends - sizes, sizes - absent)
