"""Convolutions with weights for each node, and their gradients for each record.

On the CPU everything lies channels last, `[records, height, width, channels]`: rows of an unfolded
input are then runs of `kernel width * channels` numbers, which compiled loops copy
(`tacit.kernels.images`). Milliseconds for unfolding, and for adding patches back:

| images, kernel, stride; one thread, other work beside it | loops | PyTorch |
|---|---|---|
| 640 of (1, 28, 28), 8, 2 | 9.2 and 9.9 | 12.3 and 134 |
| 640 of (16, 13, 13), 4, 2 | 3.0 and 3.3 | 2.8 and 14 |
| 500 of (3, 32, 32), 3, 2 | 5.1 and 5.4 | 10.2 and 21 |
| 500 of (16, 16, 16), 3, 2 | 3.6 and 4.1 | 6.7 and 15 |

Patches are made whole, and kept. Copying them anew for every product, a block of nodes at a time,
was tried: steps of two networks took 1.2 and 1.5 times the processor time.

There a convolution is computed in one of two ways, by its geometry alone, so that a run is the same
on every machine and in any number of processes:

- *unfolded*: rows of patches times every node's kernels, as one batched product. The same patches
  then give the gradients, which need them in any case.
- *in a loop over nodes* where a record alone is enough work (`UNFOLDED_OPERATIONS`), and with
  groups. Milliseconds forward (with the patches, where unfolded) and backward by the input, two
  cores; a loop needs the patches for the gradients as well:

  | layer (in, side, out, kernel, stride), records | unfolded | loop | patches |
  |---|---|---|---|
  | 16, 13, 32, 4, 2: 20 nodes x 32 | 12.6 + 12.0 | 9.6 + 14.5 | 1.6 |
  | 16, 14, 32, 3, 2: 20 nodes x 32 | 7.6 + 16.4 | 17.0 + 16.7 | 9.7 |
  | 64, 32, 64, 3, 1: 2 nodes x 4 | 7.9 + 9.8 | 6.2 + 6.2 | 1.6 |
  | 256, 8, 256, 3, 1: 2 nodes x 4 | 7.5 + 7.4 | 7.1 + 6.9 | 0.8 |

One convolution in groups, a group a node, takes 4.5 to 6 forward in the first row, but on channels
of all nodes side by side, into which inputs and outputs would have to be brought: not used.

On another device images lie channels first (a step of a ResNet-18 was slower with them last, each
time that it was measured on an H200), and PyTorch's own convolution, cuDNN's, is forward and gives
the gradients by the images, too; see `way_of`. Patches, which norms need, are one strided copy, and
their entries are in the order of the kernel's. This has not run on a device.
"""

# ruff: noqa: D102 (what a method of a protocol does, the protocol says)

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.gradients.contributions import Contribution, Dense, Outer, Sizes, Slot, Slots, of_factors
from tacit.gradients.layers import processor
from tacit.gradients.precision import operands, widened

UNFOLDED_OPERATIONS = 8_000_000
"""Multiplications and additions a record, up to which a convolution is unfolded."""

GROUPED_OPERATIONS = 4_000_000
"""Of a node's batch, below which a device takes all nodes together."""

_STREAMS = 20


def way_of(
    operations: float, records: int, groups: int, looped: bool
) -> Literal["unfolded", "alone", "grouped"]:
    """How a convolution of so many `operations` a record, and `records` a node, is computed.

    Where compiled loops serve (`looped`, on the CPU), it is `unfolded`, or each node `alone`. On a
    device, each node alone, or all in one `grouped` convolution. Measured on an H200 with another
    program, within one CUDA graph: a small CNN's nodes one after the other take 4.4 ms at 20 nodes
    x 32 records, on 4 streams 1.65, on 10 1.09, on 20 0.90; at 20 x 256 on 4 and 10 streams 3.7 and
    3.3; ResNet-18's at 20 x 32 165, and on 4 streams 114. The least batch there has 13 million
    operations. Grouped convolutions were not measured: they are for less than a third of that,
    where starting a kernel a node would be most of the time.
    """
    if looped:
        return "unfolded" if groups == 1 and operations <= UNFOLDED_OPERATIONS else "alone"
    return "grouped" if operations * records < GROUPED_OPERATIONS else "alone"


@dataclass(frozen=True)
class ChannelsLast(Contribution):
    """Gradients by a kernel whose entries are ordered channels last within an output channel.

    The slot, of the kernel, has them channels first.

    Attributes:
        inner: the gradients, for a slot of the same size that begins at 0.
        channels: input channels of the kernel.
    """

    inner: Dense | Outer
    channels: int

    @property
    def kept(self) -> tuple[Tensor, ...]:
        return self.inner.kept

    @property
    def positions(self) -> int:
        return self.inner.positions

    def sizes(self) -> Sizes:
        return self.inner.sizes()

    def absolute_sums(self) -> Tensor:
        return self.inner.absolute_sums()

    def exact(self) -> ChannelsLast:
        return replace(self, inner=self.inner.exact())

    def cleaned(self, finite: Tensor) -> ChannelsLast:
        return replace(self, inner=self.inner.cleaned(finite))

    def add_to(self, total: Tensor, factors: Tensor, beta: int) -> None:
        """See `Contribution`; sums first, so that only the sum is put in order."""
        summed = total.new_empty(total.shape[0], self.slot.stop - self.slot.start)
        self.inner.add_to(summed, factors, 0)
        ordered = self._channels_first(summed)
        target = total[:, self.slot.start : self.slot.stop].view(ordered.shape)
        if beta:
            target.add_(ordered)
        else:
            target.copy_(ordered)

    def materialised(self) -> Dense:
        values = self.inner.materialised().values
        return Dense(self.slot, self._channels_first(values).reshape(values.shape))

    def outer(self) -> Outer:
        outer = self.inner.outer()
        if outer.inputs.shape[4] == 1:  # a vector times one
            return self.materialised().outer()
        inputs = outer.inputs
        return Outer(self.slot, self._channels_first(inputs).reshape(inputs.shape), outer.gradients)

    def _channels_first(self, values: Tensor) -> Tensor:
        """`[..., out * places * channels]` as a view `[..., out, channels, places]`."""
        places = math.prod(self.slot.shape[2:])
        split = values.view(*values.shape[:-1], -1, places, self.channels)
        return split.transpose(-1, -2)


@dataclass(frozen=True)
class Geometry:
    """A convolution's settings over two axes; a one-dimensional one has a first axis of one.

    Attributes:
        channels_last: whether outputs lie channels last, which a module that calls `view` on them
            cannot take.
        rectified: whether negative inputs count as zero.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    channels_last: bool
    rectified: bool = False

    def forward(
        self, inputs: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, tuple[int, ...], Tensor]:
        """Each node's images with its own kernels, and what `factors` needs of the inputs.

        Inputs are `[nodes * b, channels, ...]`, weights `[nodes, out, channels / groups, ...]`, and
        biases `[nodes, out]`.

        Returns:
            See `layers.Kind.forward`; what is kept are the unfolded inputs or the inputs.
        """
        inputs, weight, bias = operands(inputs, weight, bias)
        kernels = weight.reshape(*weight.shape[:3], *self.kernel)
        sides = inputs.shape[2:] if inputs.ndim == 4 else (1, inputs.shape[2])
        operations, records = self._operations(sides, kernels), len(inputs) // len(kernels)
        way = way_of(operations, records, self.groups, processor.serves(inputs))
        if self.rectified and way != "unfolded":
            inputs = torch.relu(inputs)
        images = inputs if inputs.ndim == 4 else inputs.unsqueeze(2)
        if way == "unfolded":
            kept = self.columns(images.detach(), self.rectified)
            outputs: Tensor = _Unfolded.apply(  # type: ignore[no-untyped-call]
                images, kept, kernels, bias, self
            )
        else:
            kept = inputs.detach()
            outputs = (self._grouped if way == "grouped" else self._alone)(images, kernels, bias)
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        outputs = outputs.contiguous(memory_format=layout)
        return outputs, (*outputs.shape[:2], *outputs.shape[4 - (inputs.ndim - 2) :]), kept

    def factors(
        self, kept: Tensor, gradients: Tensor, nodes: int, views: int = 1
    ) -> tuple[Tensor, Tensor]:
        """What the gradients by the kernels are products of.

        `kept` is of `forward`, and gradients are by the outputs, `[nodes * b, out, ...]`. A record
        is `views` rows, one after the other, whose positions are all its own.

        Returns:
            `[nodes, b, groups, positions, places * channels / groups]` (see `columns`) and
            `[nodes, b, groups, positions, out / groups]`.
        """
        if kept.ndim != 5:
            kept = self.columns(kept if kept.ndim == 4 else kept.unsqueeze(2))
        rows = gradients.flatten(2).transpose(1, 2)
        rows = rows.reshape(nodes, -1, rows.shape[1], self.groups, rows.shape[2] // self.groups)
        left, right = kept.view(nodes, -1, *kept.shape[2:]), rows.transpose(2, 3)
        return _joined(left, views), _joined(right, views)

    def columns(self, images: Tensor, rectified: bool = False) -> Tensor:
        """Patches of images `[r, channels, height, width]`, `[1, r, groups, positions, size]`.

        In a patch channels come last on the processor, else first; the first axis is there to be
        split into nodes. `rectified`, on the processor alone: whether negative numbers count as
        zero.
        """
        records, channels, *sides = images.shape
        down, right = self._counts(*self._sides(*sides))
        depth = channels // self.groups
        if processor.serves(images):
            shape = (records, self.groups, down, right, *self.kernel, depth)
            columns = self._copied(images, shape, rectified)
            return columns.view(1, records, self.groups, down * right, -1)
        high, wide = self.padding
        padded = functional.pad(images, (wide, wide, high, high)) if high or wide else images
        record, channel, row, column = padded.stride()
        shape = (records, self.groups, depth, *self.kernel, down, right)
        strides = (
            record,
            depth * channel,
            channel,
            row * self.dilation[0],
            column * self.dilation[1],
            row * self.stride[0],
            column * self.stride[1],
        )
        columns = padded.as_strided(shape, strides, padded.storage_offset()).contiguous()
        return columns.view(1, records, self.groups, -1, down * right).transpose(3, 4)

    def _copied(self, images: Tensor, shape: tuple[int, ...], rectified: bool) -> Tensor:
        """Patches by a loop, `[r, groups, down, right, *kernel, channels / groups]`."""
        from tacit.kernels.images import unfold

        columns = images.new_empty(shape)
        source, target = processor.last_channels(images), columns.numpy()

        def work(part: slice) -> None:
            unfold(source[part], target[part], rectified, *self._settings)

        processor.over_records(shape[0], columns.numel(), work)
        return columns

    def folded(
        self, columns: Tensor, size: tuple[int, int], rectified: Tensor | None = None
    ) -> Tensor:
        """The sum of patches at their places, the transpose of `columns`; on the processor.

        Without groups.

        Args:
            columns: `[r, positions, places * channels]`.
            size: height and width of the images.
            rectified: images `[r, channels, height, width]`: where they are not above zero, so is
                the sum.

        Returns:
            `[r, channels, height, width]`.
        """
        down, right = self._counts(*self._sides(*size))
        channels = columns.shape[-1] // math.prod(self.kernel)
        patches = columns.view(-1, down, right, *self.kernel, channels)
        return self._added(patches, size, rectified).permute(0, 3, 1, 2)

    def _added(self, patches: Tensor, size: tuple[int, int], rectified: Tensor | None) -> Tensor:
        """Sums of patches by a loop, channels last."""
        from tacit.kernels.images import fold

        images = patches.new_empty(patches.shape[0], *size, patches.shape[-1])
        source, target = patches.numpy(), images.numpy()
        signs = target if rectified is None else processor.last_channels(rectified)

        def work(part: slice) -> None:
            fold(source[part], target[part], signs[part], rectified is not None, *self._settings)

        processor.over_records(len(target), patches.numel(), work)
        return images

    def parts(
        self, slots: Slots, kept: Tensor, gradients: Tensor, nodes: int, views: int, norms: bool
    ) -> list[Contribution]:
        factors = self.factors(kept, gradients, nodes, views)
        return of_factors(slots, *factors, norms, self.contribution)

    def contribution(self, outer: Outer, as_matrix: bool) -> Contribution:
        """The gradients by the kernels, from factors whose patches are those of `columns`."""
        channels = outer.slot.shape[1]
        one_order = channels == 1 or math.prod(self.kernel) == 1
        if one_order or not processor.serves(outer.inputs):
            return outer.materialised() if as_matrix else outer
        slot = outer.slot
        alone = replace(outer, slot=Slot(slot.name, slot.shape, 0, slot.stop - slot.start))
        return ChannelsLast(slot, alone.materialised() if as_matrix else alone, channels)

    @property
    def _settings(
        self,
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """As loops over images take them."""
        return self.kernel, self.stride, self.padding, self.dilation

    def _sides(self, height: int, width: int) -> tuple[int, int]:
        """Of an image with the padding around."""
        down, right = self.padding
        return height + 2 * down, width + 2 * right

    def _counts(self, height: int, width: int) -> tuple[int, int]:
        """Positions down and across a padded image."""
        down, right = (
            (side - spread * (kernel - 1) - 1) // stride + 1
            for side, spread, kernel, stride in zip(
                (height, width), self.dilation, self.kernel, self.stride, strict=True
            )
        )
        return down, right

    def _operations(self, sides: Sequence[int], kernels: Tensor) -> float:
        """Of one record's forward pass."""
        positions = math.prod(self._counts(*self._sides(*sides)))
        return 2.0 * positions * math.prod(kernels.shape[1:])

    def _alone(self, images: Tensor, kernels: Tensor, bias: Tensor | None) -> Tensor:
        nodes = kernels.shape[0]
        biases = [None] * nodes if bias is None else list(bias)
        settings = self.stride, self.padding, self.dilation, self.groups
        return torch.cat(
            side_by_side(
                [
                    partial(functional.conv2d, own, kernel, one, *settings)
                    for own, kernel, one in zip(images.chunk(nodes), kernels, biases, strict=True)
                ],
                images.device,
            )
        )

    def _grouped(self, images: Tensor, kernels: Tensor, bias: Tensor | None) -> Tensor:
        """One convolution of all nodes' channels, side by side."""
        nodes = kernels.shape[0]
        channels = images.reshape(nodes, -1, *images.shape[1:]).transpose(0, 1).flatten(1, 2)
        biases = None if bias is None else bias.flatten()
        settings = self.stride, self.padding, self.dilation, nodes * self.groups
        outputs = functional.conv2d(channels, kernels.flatten(0, 1), biases, *settings)
        return torch.cat(outputs.reshape(len(outputs), nodes, -1, *outputs.shape[2:]).unbind(1))


def side_by_side(work: Sequence[Callable[[], Tensor]], device: torch.device) -> list[Tensor]:
    """What independent work gives; where a CUDA graph is recorded, from several streams.

    All of them wait for what was done before, and what comes after waits for all of them.
    """
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        return [one() for one in work]
    here = torch.cuda.current_stream(device)
    streams: list[Any] = [
        torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        for _ in range(min(_STREAMS, len(work)))
    ]
    found = []
    for stream in streams:
        stream.wait_stream(here)
    for number, one in enumerate(work):
        with torch.cuda.stream(streams[number % len(streams)]):
            found.append(one())
    for stream in streams:
        here.wait_stream(stream)
    return found


def _joined(factor: Tensor, views: int) -> Tensor:
    """`[nodes, b * views, groups, positions, n]` as `[nodes, b, groups, views * positions, n]`."""
    if views == 1:
        return factor
    nodes, rows = factor.shape[:2]
    split = factor.reshape(nodes, rows // views, views, *factor.shape[2:])
    return split.transpose(2, 3).flatten(3, 4)


class _Unfolded(torch.autograd.Function):
    """A convolution as a batched product, differentiable by its images; on the processor.

    It reads of them, if the geometry is `rectified`, where they are above zero; else nothing.
    """

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        columns: Tensor,
        kernels: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
    ) -> Tensor:
        nodes, out = kernels.shape[:2]
        records, _, height, width = images.shape
        matrices = kernels.permute(0, 3, 4, 2, 1).reshape(nodes, -1, out)
        rows = columns.view(nodes, -1, columns.shape[-1])
        ctx.geometry, ctx.size, ctx.matrices = geometry, (height, width), matrices
        ctx.save_for_backward(*[images] * geometry.rectified)
        down, right = geometry._counts(*geometry._sides(height, width))
        # Written into in place, since a tap cannot change a view that a function like this returns.
        outputs = torch.empty(
            (records, out, down, right),
            dtype=images.dtype,
            device=images.device,
            memory_format=torch.channels_last,
        )
        target = outputs.permute(0, 2, 3, 1).view(nodes, -1, out)
        if bias is None:
            torch.bmm(rows, matrices, out=target)
        else:
            torch.baddbmm(bias.unsqueeze(1), rows, matrices, out=target)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, *tuple[None, ...]]:
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        (gradient,) = gradients
        nodes, _, out = ctx.matrices.shape
        rows = gradient.permute(0, 2, 3, 1).reshape(nodes, -1, out)
        columns = widened(torch.bmm(rows, ctx.matrices.transpose(1, 2)))
        columns = columns.view(gradient.shape[0], -1, columns.shape[-1])
        images = ctx.geometry.folded(columns, ctx.size, *ctx.saved_tensors)
        return images, None, None, None, None


def geometry_of(
    module: nn.Conv1d | nn.Conv2d, channels_last: bool, rectified: bool = False
) -> Geometry | str:
    """The geometry of a module, or why it has none here."""
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        return f"pads with {module.padding!r}, mode {module.padding_mode!r}"
    missing = 2 - len(module.kernel_size)
    return Geometry(
        kernel=(1,) * missing + module.kernel_size,
        stride=(1,) * missing + module.stride,
        padding=(0,) * missing + module.padding,
        dilation=(1,) * missing + module.dilation,
        groups=module.groups,
        channels_last=channels_last,
        rectified=rectified,
    )
