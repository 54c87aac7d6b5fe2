"""How well what was released agrees with each canary: the scores that coins are guessed from.

A canary has two forms, and a secret coin decided which of them is in the data. What a training
releases is, up to a factor, a sum of clipped gradients under noise. So the score is the inner
product of what was released with the difference of the two forms' clipped gradients, less what all
other records are expected to add: the slope of the log-likelihood at even odds, where the noise is
Gaussian. Nothing here knows a coin. Gradients are taken at points that were released themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.data import StackedData
from tacit.gradients import StackedModel, record_coins
from tacit.privacy.mechanisms.clipping import ClipNorm

__all__ = ["Alignment", "Forms"]

CHUNK = 2_000_000  # numbers of the canaries' gradients that are taken at a time
MOST_KNOWN = 1024  # other records of a node that stand for all of them
RIDGE = 0.1  # of the mean square of a canary's gradient


@dataclass(frozen=True)
class Forms:
    """The two forms of every canary; which of them is in the data is not here.

    Args:
        rows: int64 `[m]`, the canaries' rows in the stacked data.
        owners: int64 `[m]`, the nodes they belong to.
        inputs: `[m, ...]`, of the form that is in where the coin says so.
        targets: `[m]` or `[m, outputs]`, of that form.
        other_inputs: of the form that is in otherwise; None where no record is.
        other_targets: likewise.
    """

    rows: Tensor
    owners: Tensor
    inputs: Tensor
    targets: Tensor
    other_inputs: Tensor | None = None
    other_targets: Tensor | None = None


class Alignment:
    """Scores of canaries, added up release by release.

    Args:
        model: the gradient engine.
        data: every node's records; the rows of canaries are not looked at.
        forms: the canaries.
        clip_norm: in which gradients are clipped.
        sign: 1 where a release grows with the gradients, -1 where it falls.
        seed: the public one: of dropout, and of the records that stand for a node's others where
            it has many.
        joint: whether canaries are told apart together, by least squares: for few releases. Then
            `m^2` numbers are kept, and the gradients of all canaries at once.
    """

    def __init__(
        self,
        model: StackedModel,
        data: StackedData,
        forms: Forms,
        *,
        clip_norm: ClipNorm,
        sign: int = 1,
        seed: int = 0,
        joint: bool = False,
    ) -> None:
        self._model, self._forms, self._norm, self._sign = model, forms, clip_norm, sign
        self._device, self._seed = data.targets.device, seed
        self._numbers = forms.rows - data.offsets[forms.owners]
        count = len(forms.owners)
        zeros = torch.zeros(count, dtype=torch.float64, device=self._device)
        self._agreed, self._expected = zeros.clone(), zeros.clone()
        self._gram = torch.zeros(count, count, dtype=torch.float64) if joint else None
        self._crowd_agreed = self._crowd_square = 0.0
        self._indices, self._mask, self._factor = _known(data, forms.rows, seed)
        self._known = data.gather(self._indices)

    def add(
        self,
        points: Tensor,
        released: Tensor,
        precision: Tensor,
        clip: float | None,
        *,
        step: int = 0,
    ) -> None:
        """Take one release into account.

        Args:
            points: `[nodes, d]`, where gradients are taken: public.
            released: `[nodes, d]`; rows without precision are not looked at.
            precision: float64 `[nodes]`, one over the noise's variance; 0: nothing was released.
            clip: the clipping bound C.
            step: its number, by which dropout masks go.
        """
        owners, parts = self._forms.owners, self._parts()
        keep = self._gram is not None or len(parts) == 1
        whole = self._others(points, clip, step)
        kept = []
        for part in parts:
            own, other = self._both(points, part, clip, step)
            whole.index_add_(0, owners[part], (own + other) / 2)
            kept.append(own.sub_(other) if keep else None)
        heavy = precision[:, None] * whole
        self._crowd_agreed += float((heavy * released.double()).sum())
        self._crowd_square += float((heavy * whole).sum())
        for part, difference in zip(parts, kept, strict=True):
            if difference is None:
                own, other = self._both(points, part, clip, step)
                difference = own.sub_(other)
            node = owners[part]
            weighed = precision[node][:, None] * difference
            self._agreed[part] += (weighed * released[node].double()).sum(1)
            self._expected[part] += (weighed * whole[node]).sum(1)
        if self._gram is not None:
            together = torch.cat([difference for difference in kept if difference is not None])
            together *= precision[owners].sqrt()[:, None]
            same = owners[:, None] == owners
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
            ridge = RIDGE * float(self._gram.diagonal().mean()) + 1e-300
            matrix = self._gram + ridge * torch.eye(len(scores), dtype=torch.float64)
            scores = torch.linalg.solve(matrix, scores)
        found: NDArray[np.float64] = np.nan_to_num(scores.numpy())
        return found

    def _parts(self) -> list[Tensor]:
        count = len(self._forms.owners)
        width = 1 + CHUNK // self._model.parameters_count
        return list(torch.split(torch.arange(count, device=self._device), width))

    def _both(
        self, points: Tensor, part: Tensor, clip: float | None, step: int
    ) -> tuple[Tensor, Tensor]:
        """Clipped gradients of some canaries' two forms, float64 `[part, d]` each."""
        forms, node = self._forms, self._forms.owners[part]
        coins = self._coins(step, node, self._numbers[part][:, None])
        mask = torch.ones(len(part), 1, dtype=torch.bool, device=self._device)

        def each(inputs: Tensor, targets: Tensor) -> Tensor:
            found = self._model.gradient(
                points[node],
                inputs[part][:, None],
                targets[part][:, None],
                mask,
                clip,
                norm=self._norm,
                coins=coins,
            )
            return found.total.double()

        own = each(forms.inputs, forms.targets)
        if forms.other_inputs is None or forms.other_targets is None:
            return own, torch.zeros_like(own)
        return own, each(forms.other_inputs, forms.other_targets)

    def _others(self, points: Tensor, clip: float | None, step: int) -> Tensor:
        """Every node's sum of clipped gradients of the records that are no canaries."""
        inputs, targets = self._known
        nodes = torch.arange(len(points), device=self._device)
        coins = self._coins(step, nodes, self._indices)
        found = self._model.gradient(
            points, inputs, targets, self._mask, clip, norm=self._norm, coins=coins
        )
        return found.total.double() * self._factor[:, None]

    def _coins(self, step: int, nodes: Tensor, numbers: Tensor) -> Tensor | None:
        """The public coins of dropout, of the first mini-batch of a step."""
        if not self._model.drops:
            return None
        return record_coins(self._seed, step, 0, nodes, numbers)


def _known(data: StackedData, canaries: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Some of every node's records that are no canaries.

    Returns:
        Their numbers and which slots hold one, `[nodes, width]`, and what all of the node's are
        over these, `[nodes]`.
    """
    rng = np.random.default_rng(seed)
    taken = set(canaries.tolist())
    chosen, factors = [], []
    for offset, size in zip(data.offsets.tolist(), data.sizes.tolist(), strict=True):
        others = np.asarray([n for n in range(size) if offset + n not in taken], np.int64)
        few = np.sort(rng.permutation(others)[:MOST_KNOWN])
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
