"""Clipped sums of per-record gradients for a stack of nodes, each with its own parameters.

*Theorem* (`docs/proofs/clipped-sums.md`). Leave out any record of a batch, or put any other in its
place: the sum **that the machine returns** moves by at most C, or 2 C, in the l2 norm, whatever the
model, the layer, the path, the other records, and however many there are. Rounding is part of it:
norms are bounded from above, terms that cancel are added in float64, many records by way of a
float64 total, and each is clipped to a little less than C, by what the sum may lose (`aimed`).

What holds for every batch, on both paths:

| case | guarantee |
|---|---|
| a record's l2 norm exceeds C | its contribution is scaled to norm C, less what rounding may add |
| another `norm` is to be bounded | the l2 norm of its contribution is at most C; see `clipping` |
| a record's gradient is not finite, or too large for its arithmetic | it contributes exactly zero |
| the terms of its gradient cancel to less than 1/8192 of them | it is scaled to less than C |
| a masked slot | it contributes exactly zero, whatever the slot holds; norm and loss are 0 |
| a node without records | its row of `total` is zero |
| b = 0 | `total` is zero |
| a batch larger than the memory bound | taken in chunks of records; the sum is the same |

With `clip=None` nothing is bounded and a gradient that is not finite shows in `total`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tacit.errors import InputError, describe
from tacit.gradients.augmentation import Augmentation, check_augmentation
from tacit.gradients.captured import Captured
from tacit.gradients.clipping import (
    Clip,
    ClipNorm,
    RecordGradients,
    aimed,
    check_clip,
    clip_records,
)
from tacit.gradients.contributions import CHUNK, Layout, all_known_true, layout_of
from tacit.gradients.dropout import drops, view_coins
from tacit.gradients.inputs import Output, Packed, with_dtype, with_inputs, with_output
from tacit.gradients.layers import processor
from tacit.gradients.layers.normalisation import PlainPReLU
from tacit.gradients.layers.pooling import poolings, rectified
from tacit.gradients.linear import (
    LEAST_RECORDS,
    LOOP_NORMS,
    LinearLayer,
    add_by_blocks,
    add_clipped_records,
    linear_layer,
    scores,
)
from tacit.gradients.losses import Loss
from tacit.gradients.moments import Moments
from tacit.gradients.paths import (
    FunctionalPath,
    GradientPath,
    RecordBatch,
    TapsPath,
    accumulate,
    tapped_layers,
)
from tacit.gradients.precision import Precision, check_products, exact_products, forward, widened
from tacit.gradients.probe import Probe, probe_of, refuse_module, refuse_outputs
from tacit.gradients.recurrent import Recurrent, recurrent_layers
from tacit.gradients.trials import disproof, failure, mixing, parts_of

PathName = Literal["closed form", "taps", "functional"]
"""How clipped sums are computed; the same sums, at other speeds."""

# Measured with 20 nodes of 100 records on two cores: the CNN takes 303 ms at 256 MiB, 200 at 64,
# 265 at 16; the two-layer network 11, 10 and 15.
MEMORY_BYTES = 64 * 2**20

# Of what is free on a GPU before the run: the rest is for parameters, messages and CUDA graphs.
_SHARE_OF_DEVICE = 4

# How many times d numbers a record a clip norm needs at most, where gradients are kept as factors.
_MATERIALISED: Mapping[ClipNorm, int] = {"l2": 0, "l1": 1, "coordinate": 2, "automatic": 0}


@dataclass(frozen=True)
class BatchGradient:
    """What one batch gives.

    Attributes:
        total: `[nodes, d]`, the sum (not the mean) over unmasked records of clipped gradients.
        norms: `[nodes, b]`, each record's norm before clipping (the one that is bounded), 0 where
            masked, infinite where it has no bound, so that the record contributes nothing;
            `[nodes, 0]` when nothing is clipped.
        losses: `[nodes, b]`, 0 where masked.
    """

    total: Tensor
    norms: Tensor
    losses: Tensor


@dataclass(frozen=True)
class StackedModel:
    """A user's module for a stack of nodes; made by `build`, holds no training state.

    One object serves one thread at a time.

    Attributes:
        path: `closed form` where the model is one linear layer, `taps` where norms come from layer
            inputs and output gradients, `functional` where the gradients of records are
            materialised.
        reason: why the path is `functional`; empty for others.
        memory_bytes: bound on what a call holds at once beside arguments and results.
        original: a copy of the user's module, as it was given.
        evaluated: a copy in evaluation mode, in the run's dtype and on its device; where images lie
            channels last, it pools as `layers.pooling` does.
        engine: the computation of `path`, in the run's dtype.
        exact: the same in float64, for parameters in float64.
        examples: one input and one target, put into the slots of a node without records.
        numbers_per_record: what `gradient` keeps for one record of one node.
        outputs_per_record: what `outputs` keeps for one record.
        channels_last: whether images may lie so.
        positions: the most terms that a record's gradient by one parameter is a sum of.
        drops: whether the module holds dropout, so that every batch needs coins.
        augmentation: what the views of a row are; None: each row is its own one view.
        unit_rows: how many rows a record has at most, where it is all that a person has (batches
            are then `[nodes, b, unit_rows, ...]`, with shares); None: a record is one row.
        output: the part of what the module returns that is the prediction; None: all of it.
        loop: what the compiled loop knows of the model, where the path is `closed form`.
        moments: where parameters are moments, what solves the user's linear model from them; None:
            they are the weights of the user's module.
        packed: how a record's inputs lie in its row, where it has several.
        in_dtype: whether tensors that the module makes are to be in the dtype that it runs in.
        captured: on a device, the records of `gradient` for the shapes of batches so far.
    """

    path: PathName
    reason: str
    layout: Layout
    loss: Loss
    memory_bytes: int
    original: nn.Module
    evaluated: nn.Module
    engine: GradientPath
    exact: GradientPath
    examples: tuple[Tensor, Tensor]
    numbers_per_record: int
    outputs_per_record: int
    channels_last: bool
    positions: int
    drops: bool = False
    output: Output | None = None
    loop: LinearLayer | None = None
    augmentation: Augmentation | None = None
    unit_rows: int | None = None
    moments: Moments | None = None
    packed: Packed | None = None
    in_dtype: bool = False
    captured: Captured = field(default_factory=Captured, init=False, repr=False, compare=False)

    @property
    def parameters_count(self) -> int:
        """The number d of trainable parameters."""
        return self.layout.size

    @property
    def needs_coins(self) -> bool:
        """Whether a record's gradient changes with its coin: by dropout, or by its views."""
        return self.drops or self.augmentation is not None

    def start(self, nodes: int, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """The module's present weights for every node, a new tensor `[nodes, d]`."""
        vector = self.layout.flatten(self.original).to(device=device, dtype=dtype)
        return vector.repeat(nodes, 1)

    def gradient(
        self,
        parameters: Tensor,
        inputs: Tensor | Sequence[Tensor],
        targets: Tensor,
        mask: Tensor,
        clip: Clip | None,
        out: Tensor | None = None,
        norm: ClipNorm = "l2",
        counts: int | Tensor | None = None,
        coins: Tensor | None = None,
        shares: Tensor | None = None,
    ) -> BatchGradient:
        """Sums of clipped per-record gradients.

        Args:
            parameters: `[nodes, d]`, each node's weights.
            inputs: `[nodes, b, ...]`, padded; masked slots may hold anything. Or of each node its
                own `[at most b, ...]`, where the model `reads_rows`. With `unit_rows`, a record is
                `[unit_rows, ...]`, of which rows that are not there are like one that is.
            targets: `[nodes, b, ...]`, padded likewise.
            mask: bool `[nodes, b]`, True for records.
            clip: bound C on what a record moves the sum by, for all nodes or `[nodes]` one each;
                None for the plain sum.
            out: `[nodes, d]` contiguous, where to write `total`; a new tensor otherwise.
            norm: which norm is bounded, and how; see `clipping`.
            counts: records whose rounding clipping is to allow for, `[nodes]` or of all nodes; by
                default those of the batch, which must then be public.
            coins: int64 `[nodes, b]`, the records' own (`record_coins`), where it `needs_coins`.
            shares: `[nodes, b, unit_rows]`, how much each row of a record counts in its loss, 0 for
                one that is not there; None without `unit_rows`.

        Raises:
            ValueError: no coins or no shares, and they are needed.
            InputError: on `algorithm.clip` unless the bound lies between 1e-18 and 1e18; on
                `torch.set_float32_matmul_precision` if products are not to be in float32.
        """
        coins = self._coins(coins)
        shares = self._shares(shares, parameters)
        if clip is not None:
            present = mask.shape[1] if all_known_true(mask) else mask.sum(dim=1)
            clip = self.aimed(clip, present if counts is None else counts, parameters.dtype)
        parameters = parameters.detach()
        total = parameters.new_empty(parameters.shape) if out is None else out
        nodes, count = mask.shape
        if mask.numel() == 0:
            empty = parameters.new_zeros(nodes, count)
            return BatchGradient(total.zero_(), empty, empty.clone())
        looped = targets, mask, clip, total, norm
        if self.loop is not None and self.reads_rows(count, norm if clip is not None else "l2"):
            return BatchGradient(total, *add_by_blocks(self.loop, parameters, inputs, *looped))
        if not isinstance(inputs, Tensor):
            raise ValueError("only a model that reads rows takes the rows of nodes")
        small = self.loop if self.loop is not None and not self.loop.wide else None
        if small is not None and (clip is None or norm in LOOP_NORMS):
            found = add_clipped_records(small, parameters, inputs, *looped, shares)
            return BatchGradient(total, *found)

        given = inputs, targets, mask, coins, shares
        if parameters.device.type not in self.captured.devices:
            return BatchGradient(*self._gradients(norm, parameters, clip, *given, total=total))
        if clip is not None and not isinstance(clip, Tensor):  # a record must not keep the number
            clip = parameters.new_full((nodes,), clip, dtype=torch.float64)
        work, arguments = partial(self._gradients, norm), (parameters, clip, *given)
        made, *rest = self.captured.call(work, norm, arguments)
        return BatchGradient(made if out is None else out.copy_(made), *rest)

    def _gradients(
        self,
        norm: ClipNorm,
        parameters: Tensor,
        clip: Clip | None,
        *given: Any,
        total: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What `gradient` gives, whose `clip` is lowered already; a function of tensors alone.

        Those that are `given` make a `RecordBatch`.
        """
        total = parameters.new_empty(parameters.shape) if total is None else total
        batch = self._filled(parameters, RecordBatch(*given))
        nodes, count = batch.mask.shape
        beside = 0 if clip is None else _MATERIALISED[norm] * self.layout.size
        most = self._chunk(self.numbers_per_record + beside, parameters)
        # Nodes do not depend on each other: as many as fit with all their records, or one by one.
        group = _equal_parts(nodes, max(1, most // count))
        found = []
        for start in range(0, nodes, group):
            part = slice(start, start + group)
            own = clip[part] if isinstance(clip, Tensor) else clip
            some = batch if group >= nodes else batch[part]
            found.append(self._sums(parameters[part], some, own, total[part], norm, most))
        if clip is None and not batch.full:
            # Without records, a node whose weights are not finite would still give 0 * nan.
            total.masked_fill_(~batch.mask.any(dim=1).unsqueeze(1), 0.0)
        return total, *_joined(found, dim=0)

    def _sums(
        self,
        parameters: Tensor,
        batch: RecordBatch,
        clip: Clip | None,
        total: Tensor,
        norm: ClipNorm,
        most: int,
    ) -> tuple[Tensor, Tensor]:
        """Overwrite `total` with the sums of some nodes; norms and losses.

        All records in one go, or, of a node alone, `most` at once.
        """
        nodes, count = batch.mask.shape
        step = _equal_parts(count, max(1, most // nodes))
        # A float64 total bounds how rounding adds up; one product of few records needs none.
        wide = clip is not None and (step < count or count > CHUNK)
        sums = total.new_empty(total.shape, dtype=torch.float64) if wide else total
        engine, found = self._engine(parameters), []
        for start in range(0, count, step):
            some = batch if step >= count else batch[:, start : start + step]
            with exact_products(parameters.device):
                rows = self._rows(parameters, some)
                found.append(accumulate(engine, parameters, rows, clip, sums, int(start > 0), norm))
        if sums is not total:
            total.copy_(sums)
        return _joined(found, dim=1)

    def record_gradients(
        self,
        parameters: Tensor,
        inputs: Tensor,
        targets: Tensor,
        mask: Tensor,
        clip: Clip | None,
        coins: Tensor | None = None,
        shares: Tensor | None = None,
    ) -> RecordGradients:
        """Gradients of norm C at most, each by itself; arguments as those of `gradient`.

        All at once: the caller takes no more than `records_at_once` slots, and at least one, and
        answers for the rounding of sums of them: see `aimed`.
        """
        shares = self._shares(shares, parameters)
        batch = RecordBatch(inputs, targets, mask, self._coins(coins), shares)
        if clip is not None:
            check_clip(clip)
            check_products()
        parameters = parameters.detach()
        batch = self._filled(parameters, batch)
        with exact_products(parameters.device):
            batch = self._rows(parameters, batch)
            # With norms even where nothing is clipped: the form of the parts is always the same.
            parts, losses = self._engine(parameters).contributions(parameters, batch, norms=True)
            with torch.no_grad():
                if clip is not None:
                    return RecordGradients(*clip_records(parts, mask, clip), losses)
                if not all_known_true(mask):
                    parts = [part.cleaned(mask) for part in parts]
                norms = losses.new_empty(mask.shape[0], 0)
                return RecordGradients(parts, mask.to(losses.dtype), norms, losses)

    def aimed(self, clip: Clip, counts: int | Tensor, dtype: torch.dtype) -> float | Tensor:
        """What records are clipped to for a sum over so many: see `clipping.aimed`.

        Raises:
            InputError: as `gradient`.
        """
        check_clip(clip)
        check_products()
        return aimed(clip, counts, dtype, self.positions)

    def records_at_once(self, parameters: Tensor, beside: int = 0) -> int:
        """How many slots a node fit the memory bound, at least one.

        `beside` is how many numbers the caller keeps for each record.
        """
        return self._chunk(parameters.shape[0] * (self.numbers_per_record + beside), parameters)

    def outputs(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Every node's outputs for the same records, `[nodes, records, ...]`, without grad.

        Parameters are `[nodes, d]`, and inputs `[records, ...]`, such as a public test set.
        """
        if self.moments is not None:
            return self.moments.outputs(parameters, inputs)
        if self.loop is not None:
            return scores(self.loop, parameters.detach(), _cast(inputs, parameters))
        views = self.layout.views(parameters.detach())
        # A quarter of the bound, since large parts take longer: 2,000 images of three channels
        # through the CNN 112 ms at once, 78 in four.
        step = self._chunk(4 * self.outputs_per_record, parameters)
        # As in training: 2,000 images of one channel take 35 ms channels last, 150 channels first.
        if self.channels_last and inputs.ndim == 4:
            # `contiguous` leaves images of one channel as they lie, which PyTorch reads as first.
            inputs = torch.empty_like(inputs, memory_format=torch.channels_last).copy_(inputs)
        with torch.no_grad(), exact_products(parameters.device):
            rows = [
                torch.cat(
                    [
                        self.engine.evaluate(
                            self.evaluated,
                            {name: view[node] for name, view in views.items()},
                            _cast(chunk, parameters),
                        )
                        for chunk in torch.split(inputs, step)
                    ]
                )
                for node in range(parameters.shape[0])
            ]
        return torch.stack(rows)

    def module(self, vector: Tensor) -> nn.Module:
        """A copy of the user's module with the weights `vector` `[d]`, in its dtype and device.

        In evaluation mode, so that what it says does not depend on how the module was handed over.
        """
        if self.moments is not None:
            return self.moments.model(vector)
        result = copy.deepcopy(self.original).to(device=vector.device, dtype=vector.dtype).eval()
        named = dict(result.named_parameters())
        with torch.no_grad():
            for slot in self.layout.slots:
                named[slot.name].copy_(vector[slot.start : slot.stop].view(slot.shape))
        return result

    def wired(self, module: nn.Module, dtype: torch.dtype) -> nn.Module:
        """The user's module, which is in this dtype, as the run calls it: rows to predictions."""
        return _wired(module, self.packed, self.output, dtype if self.in_dtype else None)

    def reads_rows(self, records: int, norm: ClipNorm) -> bool:
        """Whether batches of so many records a node are read where they lie, and by blocks."""
        wide = self.loop is not None and self.loop.wide and self.unit_rows is None
        return wide and norm in LOOP_NORMS and records >= LEAST_RECORDS

    def _engine(self, parameters: Tensor) -> GradientPath:
        return self.exact if parameters.dtype == torch.float64 else self.engine

    def _coins(self, coins: Tensor | None) -> Tensor | None:
        """The coins, where they are needed: without them, masks would not be the records' own."""
        if self.needs_coins and coins is None:
            raise ValueError("dropout and augmentation need the coins of the records")
        return coins if self.needs_coins else None

    def _shares(self, shares: Tensor | None, parameters: Tensor) -> Tensor | None:
        """The shares in the run's dtype: without them, rows that are not there would count."""
        if (shares is None) != (self.unit_rows is None):
            raise ValueError("shares of rows are for records of several rows, and needed there")
        return None if shares is None else shares.to(parameters)

    def _rows(self, parameters: Tensor, batch: RecordBatch) -> RecordBatch:
        """Records `[nodes, b, ...]` as the engine takes them, `[nodes, b * rows, ...]`.

        Rows are those of a record's person, and the views of each.
        """
        inputs, targets, coins, shares = batch.inputs, batch.targets, batch.coins, batch.shares
        if shares is None and self.augmentation is None:
            return batch
        if shares is not None:
            inputs, targets = inputs.flatten(1, 2), targets.flatten(1, 2)
            coins = None if coins is None else view_coins(coins, shares.shape[2])
        chosen = self.augmentation
        if chosen is not None and coins is not None:
            inputs, coins = chosen.made(inputs, coins)
            targets = targets.repeat_interleave(chosen.views, dim=1)
            if chosen.views > 1:
                each = parameters.new_ones(*batch.mask.shape, 1) if shares is None else shares
                shares = (each / chosen.views).repeat_interleave(chosen.views, dim=2)
        coins = coins if self.drops else None
        return replace(batch, inputs=inputs, targets=targets, coins=coins, shares=shares)

    def _filled(self, parameters: Tensor, batch: RecordBatch) -> RecordBatch:
        """Inputs and targets as the engine takes them."""
        inputs, targets = (_cast(each, parameters) for each in (batch.inputs, batch.targets))
        if batch.full and inputs is batch.inputs and targets is batch.targets:
            return batch
        if not batch.full:
            inputs = _fill(inputs, batch.mask, self.examples[0])
            targets = _fill(targets, batch.mask, self.examples[1])
        return replace(batch, inputs=inputs, targets=targets)

    def _chunk(self, numbers_per_record: int, parameters: Tensor) -> int:
        """How many records fit the memory bound, at least one."""
        return max(1, self.memory_bytes // (numbers_per_record * parameters.element_size()))


def build(
    model: nn.Module,
    loss: Loss,
    example_inputs: Tensor,
    example_targets: Tensor,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    memory_bytes: int | None = None,
    output: Output | None = None,
    augmentation: Augmentation | None = None,
    unit_rows: int | None = None,
    packed: Packed | None = None,
    precision: Precision = "float32",
) -> StackedModel:
    """Check a module, and choose and prove the path for its gradients.

    Args:
        model: copied, never changed. Frozen parameters and buffers stay constant.
        loss: from `LOSSES` or `loss_from_mean`.
        example_inputs: `[few, ...]`, real records of the task; at least one.
        example_targets: `[few, ...]`.
        dtype: of the run, float32 or float64.
        device: of the run.
        memory_bytes: bound on the activations held at once; by default `memory_bound`.
        output: the part of what the model returns that is the prediction; None where it returns
            nothing else.
        augmentation: what a record's views are, over which its gradient is averaged; None: each
            record is its own one view. It is tried out on the examples.
        unit_rows: how many rows a record has at most, where it is all that a person has; None: a
            record is one row.
        packed: how the inputs of a record lie in its row, where it has several.
        precision: of the model's forward and backward passes, where parameters are float32.

    Raises:
        InputError: on `task.augmentation` as `check_augmentation`;
            on `task.model` if the module cannot be trained privately (see `probe`), its
            output does not fit the loss, or `torch.func` cannot differentiate it; on
            `task.dataset` if the targets do not fit; on `task.output`, if that is no part of what
            the model returns.
    """
    refuse_module(model)
    if memory_bytes is None:
        memory_bytes = memory_bound(torch.device(device))
    original = copy.deepcopy(model)
    inputs, targets = example_inputs.to(device), example_targets.to(device)
    examples = (_as_dtype(inputs, dtype), _as_dtype(targets, dtype))
    layout = layout_of(original)
    rows = unit_rows or 1
    if augmentation is not None:
        augmentation = check_augmentation(augmentation, examples[0])
        rows *= augmentation.views

    def tried(in_dtype: bool) -> tuple[nn.Module, nn.Module, int, Probe]:
        def made(kind: torch.dtype) -> nn.Module:
            found = _sharing(original, [p for p in original.parameters() if not p.requires_grad])
            for part in found.modules():
                if type(part) is nn.PReLU:
                    part.__class__ = PlainPReLU
            found = found.to(device=device, dtype=kind).requires_grad_(False).train()
            return _wired(found, packed, output, kind if in_dtype else None)

        working, exact = made(dtype), made(torch.float64)
        with forward(precision, examples[0].device):
            outputs, activations = _counted_outputs(working, examples[0])
        loss.check(widened(outputs), examples[1])
        try:
            probe = probe_of(exact, loss, layout, inputs, targets, rows, packed)
        except Exception as error:
            hint = _OTHER_DTYPE if _of_types(error) else ""
            expected = f"one record alone must pass forward and backward; {describe(error)}{hint}"
            raise InputError("task.model", type(model).__name__, expected) from error
        return working, exact, activations, probe

    in_dtype = False
    try:
        working, exact, activations, probe = tried(in_dtype)
    except InputError as refused:
        if not _of_types(refused.__cause__):
            raise
        in_dtype = True
        working, exact, activations, probe = tried(in_dtype)
    own_probe = probe.single() if dtype == torch.float32 else probe
    choice = _choose(original, working, exact, loss, layout, probe, own_probe, precision)
    # Which makes nothing of the batch, in float32.
    loop = choice.loop if augmentation is None and precision != "bf16" else None
    evaluated = _sharing(working, working.parameters()).eval()
    for pooling in poolings(evaluated) if choice.channels_last else ():
        vars(evaluated.get_submodule(pooling.name))["forward"] = pooling.forward
    return StackedModel(
        path="closed form" if loop is not None else choice.path,
        reason=choice.reason,
        layout=layout,
        loss=loss,
        memory_bytes=memory_bytes,
        original=original,
        evaluated=evaluated,
        engine=choice.engine,
        exact=choice.exact,
        examples=(examples[0][0], examples[1][0]),
        numbers_per_record=choice.kept + 2 * activations * rows,
        outputs_per_record=activations,
        channels_last=choice.channels_last,
        positions=choice.positions,
        drops=drops(original),
        output=output,
        loop=loop,
        augmentation=augmentation,
        unit_rows=unit_rows,
        packed=packed,
        in_dtype=in_dtype,
    )


def memory_bound(device: torch.device, free: int | None = None) -> int:
    """Bytes that a call may hold at once: a quarter of what is `free` on a GPU, or is now."""
    if device.type != "cuda":
        return MEMORY_BYTES
    free = torch.cuda.mem_get_info(device)[0] if free is None else free
    return max(MEMORY_BYTES, free // _SHARE_OF_DEVICE)


_OTHER_DTYPE = (
    "; what forward makes must be of the type of its inputs, which are also tried in float64: "
    "torch.zeros(..., dtype=x.dtype, device=x.device), or x.new_zeros(...)"
)


def _of_types(error: BaseException | None) -> bool:
    """Whether PyTorch says that tensors of two floating types met."""
    return any(words in str(error).lower() for words in ("dtype", "scalar type", "double"))


def _wired(
    module: nn.Module, packed: Packed | None, output: Output | None, dtype: torch.dtype | None
) -> nn.Module:
    """The same module from rows to predictions, whose forward pass makes tensors in `dtype`."""
    module = with_output(with_inputs(module, packed), output)
    return module if dtype is None else with_dtype(module, dtype)


def _sharing(module: nn.Module, parameters: Iterable[nn.Parameter]) -> nn.Module:
    """A copy of a module that shares the memory of some parameters, which nobody changes.

    What is frozen is often most of a model, and should not be kept once for each copy.
    """
    shared = {id(p): nn.Parameter(p.detach(), requires_grad=p.requires_grad) for p in parameters}
    return copy.deepcopy(module, shared)


@dataclass(frozen=True)
class _Choice:
    """A proved path; `kept` numbers a record beside the activations, `positions` terms at most."""

    path: Literal["taps", "functional"]
    reason: str
    engine: GradientPath
    exact: GradientPath
    kept: int
    channels_last: bool
    positions: int = 1
    loop: LinearLayer | None = None


def _choose(
    original: nn.Module,
    working: nn.Module,
    exact: nn.Module,
    loss: Loss,
    layout: Layout,
    probe: Probe,
    own_probe: Probe,
    precision: Precision,
) -> _Choice:
    """Taps if they pass the probe, else `torch.func` if that does.

    `working` is the module in the run's dtype, `exact` in float64, both without parameters that
    require grad; `original` says which do.
    """
    reason = ""
    found = rectified(original)
    recurrent = recurrent_layers(original, layout)
    # The fastest first: some modules cannot take images that lie channels last, and some read what
    # a rectifier makes although a sequence seems to call it.
    # On a device images never lie so.
    orders = (True, False) if processor.serves(probe.inputs) else (False,)
    chosen: list[Mapping[str, str]] = [found, {}] if found else [found]
    for rectifiers, channels_last in product(chosen, orders):
        pools = poolings(original, rectifiers)
        layers = tapped_layers(original, layout, channels_last, rectifiers)
        if isinstance(layers, str) or isinstance(recurrent, str):
            reason = layers if isinstance(layers, str) else str(recurrent)
            break
        names = [layer.name for layer in layers] + [pooling.name for pooling in pools]
        unneeded = tuple(rectifiers[name] for name in names if name in rectifiers)
        candidate = TapsPath(exact, loss, layers, pools, unneeded, recurrent)
        engine: GradientPath = TapsPath(
            working, loss, layers, pools, unneeded, recurrent, precision
        )
        reason = disproof(candidate, probe) or mixing(candidate, probe, original, exact)
        reason = reason or failure(engine, own_probe)
        if not reason and precision != "float32":
            reason = mixing(engine, own_probe, original, working)
        if not reason:
            parts = parts_of(candidate, probe)
            # Sums of terms are added in float64.
            kept = sum((1 + 2 * (part.positions > 1)) * part.numel() for part in parts)
            kept //= probe.mask.shape[0]
            positions = max(part.positions for part in parts)
            loop = linear_layer(original, exact, loss, layout, probe)
            return _Choice("taps", "", engine, candidate, kept, channels_last, positions, loop)
    alone = FunctionalPath(exact, loss, layout)
    problem = disproof(alone, probe)
    if problem:
        expected = f"torch.func must be able to differentiate it one record at a time; {problem}"
        raise InputError("task.model", type(original).__name__, expected)
    engine = FunctionalPath(working, loss, layout, precision)
    return _Choice("functional", reason, engine, alone, 2 * layout.size, channels_last=False)


def _counted_outputs(module: nn.Module, inputs: Tensor) -> tuple[Tensor, int]:
    """The checked outputs, and how many numbers inputs and leaf outputs hold for one record."""
    counts = [inputs.numel()]

    def count(module: nn.Module, arguments: object, output: object) -> None:
        if isinstance(output, Tensor):
            counts.append(output.numel())

    def count_steps(module: nn.Module, arguments: object, output: tuple[Tensor, object]) -> None:
        # Autograd keeps gates and states of every step.
        counts.append(12 * output[0].numel())

    hooks = [m.register_forward_hook(count) for m in module.modules() if not list(m.children())]
    recurring = [m for m in module.modules() if isinstance(m, Recurrent)]
    hooks += [m.register_forward_hook(count_steps) for m in recurring]
    try:
        outputs = refuse_outputs(module, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs, max(1, sum(counts) // inputs.shape[0])


def _equal_parts(count: int, most: int) -> int:
    """The size of as few equal parts of `count` as have at most `most` each, the last one cut."""
    return -(-count // -(-count // most))


def _joined(found: Sequence[tuple[Tensor, Tensor]], dim: int) -> tuple[Tensor, Tensor]:
    """Norms and losses of parts as those of the whole."""
    if len(found) == 1:
        return found[0]
    norms, losses = (torch.cat(parts, dim=dim) for parts in zip(*found, strict=True))
    return norms, losses


def _fill(values: Tensor, mask: Tensor, example: Tensor) -> Tensor:
    """Masked slots of `[nodes, b, ...]` replaced by a record of the same node.

    Or by the example where the node has none: so that padding never meets the model. A record of
    the node, so that a masked slot is finite wherever the node's records are.
    """
    rows = torch.arange(mask.shape[0], device=mask.device)
    own = values[rows, mask.int().argmax(dim=1)]
    extra = (1,) * (values.ndim - 2)
    filler = torch.where(mask.any(dim=1).view(-1, *extra), own, example.to(values))
    return torch.where(mask.view(*mask.shape, *extra), values, filler.unsqueeze(1))


def _as_dtype(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(dtype) if values.is_floating_point() else values


def _cast(values: Tensor, parameters: Tensor) -> Tensor:
    """`values` on the device of the parameters, and in their dtype if they are not integers."""
    return _as_dtype(values.to(parameters.device), parameters.dtype)
