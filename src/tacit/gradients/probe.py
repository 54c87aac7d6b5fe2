"""Proof, on a few records, that a gradient path computes what autograd computes for each alone.

The test is exact in kind and cheap: two nodes with different weights, a few records each, float64:
three, and of models with more than a million parameters two, since each costs such a model a
quarter of a second. Two suffice for all that is listed here: whatever one record does to another,
or one node to another, shows in values, and no two weights, inputs or norms are equal.

It finds whatever a static look at a module cannot: records that mix, a layer called twice, a
parameter used outside its layer, a view that assumes the batch size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tacit.gradients.clipping import Clip, ClipNorm
from tacit.gradients.contributions import Contribution
from tacit.gradients.layout import Layout
from tacit.gradients.losses import Loss

__all__ = ["GradientPath", "Probe", "mismatch", "probe_of"]

_NODES = 2
_RECORDS = 3
_LARGE = 1_000_000  # parameters
_RECORDS_OF_LARGE = 2
_SPREAD = 0.05
_TOLERANCE = 1e-8


class GradientPath(Protocol):
    """One way to compute clipped sums; what `StackedModel` is built on."""

    def accumulate(
        self,
        parameters: Tensor,
        inputs: Tensor,
        targets: Tensor,
        mask: Tensor,
        clip: Clip | None,
        total: Tensor,
        beta: int,
        norm: ClipNorm = "l2",
    ) -> tuple[Tensor, Tensor]:
        """Scale `total` by beta and add the sum of (clipped) gradients over unmasked records.

        Args:
            parameters: `[nodes, d]`.
            inputs: `[nodes, b, ...]`, valid in masked slots too.
            targets: `[nodes, b, ...]`, valid in masked slots too.
            mask: `[nodes, b]`, True for records.
            clip: bound on each record's norm, or None.
            total: `[nodes, d]`, changed in place.
            beta: 1, or 0 to overwrite whatever `total` holds.
            norm: which norm is bounded, and how; see `clipping`.

        Returns:
            norms `[nodes, b]` (`[nodes, 0]` where clip is None) and losses `[nodes, b]`, both 0
            where masked.
        """

    def contributions(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor, norms: bool
    ) -> tuple[list[Contribution], Tensor]:
        """Each record's gradient, not clipped, one part a parameter; and the masked losses.

        `norms`: whether norms will be asked for, which decides the form of the parts. Masked slots
        hold whatever their inputs give.
        """

    def evaluate(self, module: nn.Module, weights: dict[str, Tensor], inputs: Tensor) -> Tensor:
        """The outputs `[records, ...]` of `module` with these weights."""


@dataclass(frozen=True)
class Probe:
    """A small batch and what is right for it, in float64."""

    parameters: Tensor
    inputs: Tensor
    targets: Tensor
    clip: float
    total: Tensor
    norms: Tensor
    losses: Tensor

    @property
    def mask(self) -> Tensor:
        """All True, `[nodes, b]`."""
        return torch.ones_like(self.norms, dtype=torch.bool)


def probe_of(
    module: nn.Module, loss: Loss, layout: Layout, inputs: Tensor, targets: Tensor
) -> Probe:
    """Two nodes' batch from examples `[few, ...]`, solved one record at a time by plain autograd.

    `module` is in float64. Weights and inputs are perturbed, so that neither equal weights nor
    equal records hide a mistake; each input is scaled, which keeps signs and zeros.
    """
    device = inputs.device
    generator = torch.Generator().manual_seed(20)
    many = _RECORDS_OF_LARGE if layout.size > _LARGE else _RECORDS
    count = _NODES * many
    order = torch.arange(count, device=device) % inputs.shape[0]
    records, labels = inputs[order], targets[order]
    if records.is_floating_point():
        scales = 0.5 + torch.rand(records.shape, generator=generator, dtype=torch.float64)
        records = records.double() * scales.to(device)
    if labels.is_floating_point():
        labels = labels.double()
    # Uniform, since 22 million normals take as long as a whole backward pass of ResNet-18.
    noise = torch.rand(_NODES, layout.size, generator=generator, dtype=torch.float64)
    parameters = noise.to(device).sub_(0.5).mul_(math.sqrt(12) * _SPREAD)
    parameters += layout.flatten(module)
    records = records.view(_NODES, many, *records.shape[1:])
    labels = labels.view(_NODES, many, *labels.shape[1:])

    # Kept as autograd gives them: for large models a copy is what takes the time.
    gradients: dict[tuple[int, int], tuple[Tensor, ...]] = {}
    norms = torch.zeros(_NODES, many, dtype=torch.float64, device=device)
    losses = torch.zeros(_NODES, many, dtype=torch.float64, device=device)
    for node in range(_NODES):
        weights = {
            slot.name: slot.view(parameters)[node].detach().requires_grad_()
            for slot in layout.slots
        }
        for record in range(many):
            with torch.enable_grad():
                outputs = functional_call(module, weights, (records[node, record].unsqueeze(0),))
                value = loss.per_record(outputs, labels[node, record].unsqueeze(0))[0]
                found = torch.autograd.grad(
                    value, list(weights.values()), allow_unused=True, materialize_grads=True
                )
            losses[node, record] = value.detach()
            gradients[node, record] = found
            norms[node, record] = torch.stack([part.norm() for part in found]).norm()

    finite = norms[torch.isfinite(norms) & (norms > 0)]
    clip = finite.median().item() if finite.numel() else 1.0
    total = torch.zeros_like(parameters)
    for node, record in torch.isfinite(norms).nonzero().tolist():
        factor = clip / max(norms[node, record].item(), clip)
        for slot, part in zip(layout.slots, gradients[node, record], strict=True):
            total[node, slot.start : slot.stop].add_(part.reshape(-1), alpha=factor)
    return Probe(parameters, records, labels, clip, total, norms, losses)


def mismatch(path: GradientPath, probe: Probe) -> str | None:
    """In what `path` differs from the truth of `probe`, or None if in nothing.

    Whatever `path` raises passes through.
    """
    total = torch.empty_like(probe.total)
    norms, losses = path.accumulate(
        probe.parameters, probe.inputs, probe.targets, probe.mask, probe.clip, total, 0
    )
    for what, found, right in (
        ("losses", losses, probe.losses),
        ("norms", norms, probe.norms),
        ("clipped sums", total, probe.total),
    ):
        if not _close(found, right):
            return f"its {what} for a batch differ from those of its records alone"
    return None


def _close(found: Tensor, right: Tensor) -> bool:
    # Without NaN and infinity, in two passes: for ResNet-18, `allclose` and what it needs took a
    # third of the whole proof.
    if right.numel():
        scale = max(bound.abs().item() for bound in torch.aminmax(right))
        furthest = (found - right).abs_().max().item()
        if math.isfinite(scale) and math.isfinite(furthest):
            return furthest <= _TOLERANCE * scale + 1e-300
    sizes = torch.nan_to_num(right, nan=0.0, posinf=0.0, neginf=0.0).abs_()
    scale = sizes.max().item() if right.numel() else 0.0
    return torch.allclose(
        found, right, rtol=_TOLERANCE, atol=_TOLERANCE * scale + 1e-300, equal_nan=True
    )
