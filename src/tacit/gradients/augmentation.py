"""Several views of a record, whose gradients are averaged before the clip.

Hoffer et al. (2019, arXiv:1901.09335) show a network several augmented instances of each record of
a batch; De et al. (2022, arXiv:2204.13650) do so under differential privacy, and call it
augmentation multiplicity: the record's gradient is the mean over its K views, and *that* is
clipped. What a record adds is bounded as before, whatever K is, so views cost no privacy.

A view is a function of the record and of its *coin* alone, a number that everyone can work out: see
`dropout`. It is another one at every step. So, given the public coins, a record's gradient is a
function of that record and the weights alone, and the bound on clipped sums holds as it does
without (`docs/proofs/clipped-sums.md`). No privacy is gained by it: the coins are no secret.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tacit.errors import InputError, describe
from tacit.gradients.dropout import drawn_coins, view_coins

ViewFunction = Callable[[Tensor, Tensor], Tensor]
"""Of records `[r, ...]` and the coins of their views, int64 `[r]`: the views, of the same shape."""

MOST_SHIFT = 4
"""Pixels by which an image is shifted at most; of one below 32 pixels, an eighth of its side."""


@dataclass(frozen=True)
class Augmentation:
    """What the views of a record are, and how many it has.

    Attributes:
        name: as in `[task].augmentation`.
        function: what makes the views; row r may depend on row r of both arguments alone.
        views: how many of each record.
        alone: whether it is called for one view after the other, since nothing else shows that it
            does not mix records; `check_augmentation` sets it.
    """

    name: str
    function: ViewFunction
    views: int
    alone: bool = False

    def made(self, inputs: Tensor, coins: Tensor) -> tuple[Tensor, Tensor]:
        """The views of records `[nodes, b, ...]`, a record's one after the other.

        The records are left as they are. Their coins are int64 `[nodes, b]`.

        Returns:
            The views `[nodes, b * views, ...]`, and a coin of each, int64 `[nodes, b * views]`, for
            whatever else is drawn for it.
        """
        own = view_coins(coins, self.views)
        rows = inputs.repeat_interleave(self.views, dim=1)
        with torch.no_grad():
            found = self._of_rows(rows.flatten(0, 1), drawn_coins(own).flatten())
        return found.view(rows.shape), own

    def _of_rows(self, rows: Tensor, coins: Tensor) -> Tensor:
        """The views of copies of records `[r, ...]`, which may be written into."""
        if not self.alone:
            return _checked(self.function(rows, coins), rows)
        each = zip(torch.split(rows, 1), torch.split(coins, 1), strict=True)
        return torch.cat([_checked(self.function(row, coin), row) for row, coin in each])


def _checked(found: Tensor, rows: Tensor) -> Tensor:
    """What a function returned, if it is of the shape of its rows; no value of them is told."""
    if not isinstance(found, Tensor) or found.shape != rows.shape or found.dtype != rows.dtype:
        raise ValueError("a view must be a tensor of the shape and the type of its record")
    return found.contiguous()


def _flipped(images: Tensor, coins: Tensor) -> Tensor:
    """Each image mirrored left to right, or not, with chance 1/2."""
    mirrored = (coins & 1).bool().view(-1, 1, 1, 1)
    return torch.where(mirrored, images.flip(3), images)


def _shifted(images: Tensor, coins: Tensor) -> Tensor:
    """Each image moved by up to `MOST_SHIFT` pixels down or up, and right or left.

    All such moves are equally likely, to 2^-16; zeros come in from outside. Pixels are copied, and
    nothing is computed with them.
    """
    height, width = images.shape[2:]
    down, right = (min(MOST_SHIFT, max(1, side // 8)) for side in (height, width))
    padded = functional.pad(images, (right, right, down, down))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    top = ((coins >> 8) & _BITS) % (2 * down + 1)
    left = ((coins >> 32) & _BITS) % (2 * right + 1)
    return windows[torch.arange(len(images), device=images.device), :, top, left]


_BITS = (1 << 20) - 1

AUGMENTATIONS: Mapping[str, ViewFunction] = {
    "flip": _flipped,
    "shift": _shifted,
    "flip-shift": lambda images, coins: _shifted(_flipped(images, coins), coins),
}
"""Those that are built in, for images `[r, channels, height, width]`."""


def image_views(name: str, views: int, shape: tuple[int, ...], ids: bool) -> Augmentation:
    """One of `AUGMENTATIONS`, for records whose inputs are of this shape.

    `ids` says that the inputs are ids and no pixels.

    Raises:
        InputError: on `task.augmentation` if the records are no images.
    """
    if ids or len(shape) != 3:
        kind = "ids" if ids else "numbers"
        raise InputError(
            "task.augmentation",
            name,
            f"is for images [channels, height, width], and a record here is {kind} of shape "
            f"{list(shape)}: leave it out, or name a 'module:function' of your own",
        )
    return Augmentation(name, AUGMENTATIONS[name], views)


def check_augmentation(augmentation: Augmentation, examples: Tensor) -> Augmentation:
    """Try an augmentation out on examples `[few, ...]` that are not private, as modules are.

    Its views must be tensors of the shape, type and device of the records, finite where the records
    are; the same whenever it is called; and those of a record must be the same whoever else is in
    the batch, extreme records too. If the values of records decide what it computes, or
    `torch.func.vmap` cannot tell, what is returned is `alone`: called for one view after the other.

    Raises:
        InputError: on `task.augmentation`.
    """
    devices = [examples.device.index or 0] if examples.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.no_grad():
        problem = _fault(augmentation.function, examples)
        if problem:
            raise InputError("task.augmentation", augmentation.name, problem)
        if augmentation.function in AUGMENTATIONS.values():
            return augmentation
        coin = drawn_coins(torch.zeros(1, dtype=torch.int64, device=examples.device))

        def of_one(record: Tensor) -> Tensor:
            return augmentation.function(record.unsqueeze(0).clone(), coin)[0]

        alone = False
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.func.vmap(of_one)(examples)
        except Exception:  # it cannot follow the function
            alone = True
        return replace(augmentation, alone=alone)


def _fault(function: ViewFunction, examples: Tensor) -> str:
    """What is wrong with a function of views; empty if nothing is."""
    # Each record with several coins, which may decide whether a function mixes.
    order = torch.arange(_TRIED + 1, device=examples.device) % len(examples)
    rows = examples[order]
    coins = drawn_coins(torch.arange(len(rows), device=rows.device))

    def views(records: Tensor, own: Tensor) -> Any:
        return function(records.clone(), own.clone())

    try:
        found = views(rows, coins)
        if not isinstance(found, Tensor):
            return f"it must return one tensor of views, and returned a {type(found).__name__}"
        kind = found.shape, found.dtype, found.device
        if kind != (rows.shape, rows.dtype, rows.device):
            return (
                f"it must return views of the shape and the type of the records, "
                f"{list(rows.shape)} and {rows.dtype}; it returned {list(found.shape)} and "
                f"{found.dtype}"
            )
        if bool(torch.isfinite(rows).all()) and not bool(torch.isfinite(found).all()):
            return "its views of the first records must be finite numbers"
        torch.manual_seed(1)
        if not torch.equal(views(rows, coins), found):
            return (
                "it must make the same views of the same records and coins whenever it is called: "
                "whatever it draws, it must draw from the coins"
            )
        ones = zip(torch.split(rows, 1), torch.split(coins, 1), strict=True)
        if not _alike(torch.cat([views(row, coin) for row, coin in ones]), found):
            return "the views of a record must not depend on the other records of a batch"
        for extreme in _extremes(rows):
            beside = rows.clone()
            beside[0] = extreme
            if not _alike(views(beside, coins)[1:], found[1:]):
                return "an extreme record changes the views of other records"
    except Exception as error:
        return f"it failed on records of shape {list(rows.shape[1:])}: {describe(error)}"
    return ""


_TRIED = 32  # views, and one more


def _extremes(rows: Tensor) -> tuple[float, ...]:
    if rows.is_floating_point():
        return 1e30, -1e30, float("inf"), float("nan")
    return int(rows.min()), int(rows.max())


def _alike(found: Tensor, right: Tensor) -> bool:
    if not right.is_floating_point():
        return torch.equal(found, right)
    scale = float(right.abs().max()) if right.numel() else 0.0
    tolerance = 1e3 * torch.finfo(right.dtype).eps
    return torch.allclose(found, right, rtol=tolerance, atol=tolerance * scale)
