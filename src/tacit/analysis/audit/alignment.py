"""How well what was released agrees with each canary: the scores that coins are guessed from.

A canary has two forms, and a secret coin decided which of them is in the data. What a training
releases is, up to a factor, a sum of clipped gradients under noise. So the score is the inner
product of what was released with the difference of the two forms' clipped gradients, less what all
other records are expected to add: the slope of the log-likelihood at even odds, where the noise is
Gaussian. Nothing here knows a coin. Gradients are taken at points that were released themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.data import StackedData
from tacit.gradients import StackedModel, record_coins
from tacit.privacy.mechanisms.clipping import ClipNorm

CHUNK = 2_000_000  # numbers of the canaries' gradients that are taken at a time
MOST_KNOWN = 1024  # other records of a node that stand for all of them,
MOST_KNOWN_TOGETHER = 8192  # but of all nodes together not many more than these
LEAST_KNOWN = 32
RIDGE = 0.1  # of the mean square of a canary's gradient


@dataclass(frozen=True, eq=False)
class Forms:
    """The two forms of every canary; which of them is in the data is not here.

    Args:
        nodes: int64 `[m]`, the nodes that hold them.
        inputs: `[m, ...]`, of the form that is in where the coin says so.
        targets: `[m]` or `[m, outputs]`, of that form.
        other_inputs: of the form that is in otherwise; None where no record is.
        other_targets: likewise.
    """

    nodes: Tensor
    inputs: Tensor
    targets: Tensor
    other_inputs: Tensor | None
    other_targets: Tensor | None

    @property
    def both(self) -> list[tuple[Tensor, Tensor]]:
        """Inputs and targets of each form that is a record."""
        if self.other_inputs is None or self.other_targets is None:
            return [(self.inputs, self.targets)]
        return [(self.inputs, self.targets), (self.other_inputs, self.other_targets)]


@dataclass(frozen=True, eq=False)
class Canaries(Forms):
    """Canaries and their secret coins: `included`, bool `[m]`."""

    included: Tensor


class Alignment:
    """Scores of canaries, added up release by release.

    Args:
        data: every node's records; the rows of canaries are not looked at.
        rows: int64 `[m]`, the canaries' rows in the stacked data, or rows after all of them.
        sign: 1 where a release grows with the gradients, -1 where it falls.
        seed: the public one: of dropout, and of the records that stand for a node's others where
            it has many.
        joint: whether canaries are told apart together, by least squares: for few releases. Then
            `m^2` numbers are kept, and the gradients of all canaries at once.
        crowd: whether the records that stand for a node's others are told apart with them.
        ridge: of least squares, in mean squares of what is told apart.
        most_known: records of a node that stand for all of its others.
    """

    def __init__(
        self,
        model: StackedModel,
        data: StackedData,
        rows: Tensor,
        forms: Forms,
        *,
        clip_norm: ClipNorm,
        sign: int = 1,
        seed: int = 0,
        joint: bool = False,
        crowd: bool = False,
        ridge: float = RIDGE,
        most_known: int = MOST_KNOWN,
    ) -> None:
        self._model, self._forms, self._norm, self._sign = model, forms, clip_norm, sign
        self._device, self._seed = data.targets.device, seed
        self._numbers, self._ridge = rows - data.offsets[forms.nodes], ridge
        self._indices, self._mask, self._factor = _known(data, rows, seed, most_known)
        self._known = data.gather(self._indices)
        self._slots, self._filled = _by_node(forms.nodes, len(data.sizes))
        self._apart = [(forms, self._numbers)]
        if crowd:
            nodes, slots = self._mask.nonzero(as_tuple=True)
            inputs, targets = (values[nodes, slots] for values in self._known)
            each = Forms(nodes, inputs, targets, None, None)
            self._apart.append((each, self._indices[nodes, slots]))
        self._owners = torch.cat([each.nodes for each, _ in self._apart])
        count = len(self._owners)
        zeros = torch.zeros(count, dtype=torch.float64, device=self._device)
        self._agreed, self._expected = zeros.clone(), zeros.clone()
        self._gram = torch.zeros(count, count, dtype=torch.float64) if joint else None
        self._crowd_agreed = self._crowd_square = 0.0

    def add(
        self,
        points: Sequence[Tensor],
        released: Tensor,
        precision: Tensor,
        clip: float | None,
        *,
        step: int = 0,
    ) -> None:
        """Take one release into account.

        Args:
            points: `[nodes, d]` each, where gradients are taken, and averaged: public.
            released: `[nodes, d]`; rows without precision are not looked at.
            precision: float64 `[nodes]`, one over the noise's variance; 0: nothing was released.
            clip: the clipping bound C.
            step: its number, by which dropout masks go.
        """
        whole = self._others(points, clip, step) + self._halves(points, clip, step)
        weighed = precision[:, None] * released.double()
        self._crowd_agreed += float((weighed * whole).sum())
        self._crowd_square += float((precision[:, None] * whole * whole).sum())
        # Scores need no more digits than gradients have, but numbers that do not overflow.
        wanted = torch.stack([weighed, precision[:, None] * whole], dim=2)
        size = wanted.abs().amax((0, 1)).clamp_min(1e-300)
        wanted, kept, start = (wanted / size).to(points[0].dtype), [], 0
        for forms, numbers in self._apart:
            for part in self._parts(len(numbers)):
                difference = self._difference(points, forms, numbers, part, clip, step)
                for node, rows in _runs(forms.nodes[part]):
                    agreed, expected = (difference[rows] @ wanted[node]).double().T * size[:, None]
                    self._agreed[start + part[rows]] += agreed
                    self._expected[start + part[rows]] += expected
                if self._gram is not None:
                    kept.append(difference.double())
            start += len(numbers)
        if self._gram is not None:
            together = torch.cat(kept) * precision[self._owners].sqrt()[:, None]
            same = self._owners[:, None] == self._owners
            self._gram += ((together @ together.T) * same).cpu()

    def scores(self) -> NDArray[np.float64]:
        """Float64 `[m]`, larger where what was released speaks for the canary.

        What the other records add is a multiple of their gradients that is fitted to the releases.
        """
        square = self._crowd_square
        multiple = self._crowd_agreed / square if square > 0 else 0.0
        multiple = self._sign * max(0.0, self._sign * multiple)
        scores = self._sign * (self._agreed - multiple * self._expected).cpu()
        if self._gram is not None:
            ridge = self._ridge * float(self._gram.diagonal().mean()) + 1e-300
            matrix = self._gram + ridge * torch.eye(len(scores), dtype=torch.float64)
            scores = torch.linalg.solve(matrix, scores)
        found: NDArray[np.float64] = np.nan_to_num(scores[: len(self._numbers)].numpy())
        return found

    def _parts(self, count: int) -> list[Tensor]:
        width = 1 + CHUNK // self._model.parameters_count
        return list(torch.split(torch.arange(count, device=self._device), width))

    def _difference(
        self,
        points: Sequence[Tensor],
        forms: Forms,
        numbers: Tensor,
        part: Tensor,
        clip: float | None,
        step: int,
    ) -> Tensor:
        """The clipped gradients of some records, one form less the other, `[part, d]`."""
        node = forms.nodes[part]
        coins = self._coins(step, node, numbers[part][:, None])
        mask = torch.ones(len(part), 1, dtype=torch.bool, device=self._device)
        there = [at[node] for at in points]
        own, *other = (
            self._gradient(there, inputs[part][:, None], targets[part][:, None], mask, clip, coins)
            for inputs, targets in forms.both
        )
        return own - other[0] if other else own

    def _halves(self, points: Sequence[Tensor], clip: float | None, step: int) -> Tensor:
        """What the canaries add on average: half of both forms of each, float64 `[nodes, d]`."""
        nodes = torch.arange(len(self._slots), device=self._device)
        coins = self._coins(step, nodes, self._numbers[self._slots])
        total = torch.zeros_like(points[0], dtype=torch.float64)
        for inputs, targets in self._apart[0][0].both:
            shown, wanted = inputs[self._slots], targets[self._slots]
            total += self._gradient(points, shown, wanted, self._filled, clip, coins) / 2
        return total

    def _others(self, points: Sequence[Tensor], clip: float | None, step: int) -> Tensor:
        """Every node's sum of clipped gradients of the records that are no canaries."""
        nodes = torch.arange(len(self._slots), device=self._device)
        coins = self._coins(step, nodes, self._indices)
        found = self._gradient(points, *self._known, self._mask, clip, coins)
        return found.double() * self._factor[:, None]

    def _gradient(
        self,
        points: Sequence[Tensor],
        inputs: Tensor,
        targets: Tensor,
        mask: Tensor,
        clip: float | None,
        coins: Tensor | None,
    ) -> Tensor:
        """Sums of clipped gradients, the mean over the points."""
        norm, of = self._norm, self._model.gradient
        found = [of(at, inputs, targets, mask, clip, norm=norm, coins=coins).total for at in points]
        return torch.stack(found).mean(0) if len(found) > 1 else found[0]

    def _coins(self, step: int, nodes: Tensor, numbers: Tensor) -> Tensor | None:
        """The public coins of masks and views, of the first mini-batch of a step."""
        if not self._model.needs_coins:
            return None
        return record_coins(self._seed, step, 0, nodes, numbers)


def _by_node(owners: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """The canaries of every node, and which slots hold one, `[nodes, width]`."""
    counts = torch.bincount(owners, minlength=nodes)
    width = max(1, int(counts.max()))
    filled = torch.arange(width, device=owners.device) < counts[:, None]
    slots = torch.zeros(nodes, width, dtype=torch.int64, device=owners.device)
    slots[filled] = torch.argsort(owners, stable=True)
    return slots, filled


def _runs(owners: Tensor) -> Iterator[tuple[int, slice]]:
    """Which node holds canaries that follow each other, and which these are."""
    nodes, counts = torch.unique_consecutive(owners, return_counts=True)
    start = 0
    for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
        yield node, slice(start, start + count)
        start += count


def _known(
    data: StackedData, canaries: Tensor, seed: int, most: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Some of every node's records that are no canaries.

    Returns:
        Their numbers and which slots hold one, `[nodes, width]`, and what all of the node's are
        over these, `[nodes]`.
    """
    rng = np.random.default_rng(seed)
    most = max(LEAST_KNOWN, min(most, MOST_KNOWN_TOGETHER // len(data.sizes)))
    taken = set(canaries.tolist())
    chosen, factors = [], []
    for offset, size in zip(data.offsets.tolist(), data.sizes.tolist(), strict=True):
        others = np.asarray([n for n in range(size) if offset + n not in taken], np.int64)
        few = np.sort(rng.permutation(others)[:most])
        chosen.append(few)
        factors.append(len(others) / max(1, len(few)))
    width = max(1, *(len(few) for few in chosen))
    device = data.targets.device
    indices = torch.zeros(len(chosen), width, dtype=torch.int64, device=device)
    mask = torch.zeros(len(chosen), width, dtype=torch.bool, device=device)
    for row, few in enumerate(chosen):
        indices[row, : len(few)] = torch.from_numpy(few).to(device)
        mask[row, : len(few)] = True
    return indices, mask, torch.tensor(factors, dtype=torch.float64, device=device)
