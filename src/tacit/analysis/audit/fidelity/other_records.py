"""Records that have nothing in common with a job's own but what is public of them.

How many there are, their shape and their kind stay as they are. Numbers become other numbers, ids
and labels others of those that are declared. Where nothing is declared, as of the targets of a
user's own loss, they become values that other records have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tacit.data import StackedData, bounded_inputs
from tacit.errors import InputError, RecordsError
from tacit.models.architectures import failures
from tacit.training.prepare import Job

LARGER = 1e3
OUTLIER = 1e10
_TRIED = 256  # records on which a changed data set is tried at once
_AT_ONCE = 4096  # records that are changed at once


@dataclass(frozen=True)
class _Kinds:
    """What is declared of records.

    Args:
        ids: how many ids there are; None: inputs are numbers.
        classes: how many labels there are; None: targets are no labels of a known number.
        signs: whether targets are two classes by their sign.
        numbers: whether targets may be any numbers.
    """

    ids: int | None
    classes: int | None
    signs: bool
    numbers: bool


@dataclass(frozen=True)
class Change:
    """One way to change all records.

    Args:
        words: what it does, for people.
        inputs: numbers `[total, ...]` to others, or bytes over 255 to others within 0 and 1.
        labels: from (labels, number of classes).
        targets: numbers to others.
        every: whether it changes every record; if not, the first of each node alone.
    """

    words: str
    inputs: Callable[[Tensor], Tensor]
    labels: Callable[[Tensor, int], Tensor]
    targets: Callable[[Tensor], Tensor]
    every: bool = True


def _next_label(labels: Tensor, classes: int) -> Tensor:
    return (labels.flip(0) + 1) % classes


def _least_label(labels: Tensor, classes: int) -> Tensor:
    return torch.zeros_like(labels)


def _last_label(labels: Tensor, classes: int) -> Tensor:
    return torch.full_like(labels, classes - 1)


CHANGES: Mapping[str, Change] = {
    "all others": Change(
        "every record is another one, in another order",
        lambda values: 1 - 2 * values.flip(0),
        _next_label,
        lambda values: 1 - 2 * values.flip(0),
    ),
    "all zeros": Change(
        "every record holds zeros and the smallest label",
        torch.zeros_like,
        _least_label,
        torch.zeros_like,
    ),
    "all large": Change(
        "every record is a thousand times larger and has the largest label",
        lambda values: LARGER * (values + 1),
        _last_label,
        lambda values: LARGER * (values + 1),
    ),
    "one extreme": Change(
        "one record of each node is an extreme one",
        lambda values: OUTLIER * (values.abs() + 1),
        _next_label,
        lambda values: -LARGER * (values.abs() + 1),
        every=False,
    ),
}
"""By name, what an audit does to the records."""


def other_records(job: Job, change: Change) -> StackedData | None:
    """The job's records, changed; None where its model fails on them, or a rule forbids them.

    Args:
        job: whose records, and what is declared of them.
        change: what to do.

    Returns:
        As many records of each node, of the same shapes and types, within `input_bound`.
    """
    changed = _changed(job, change)
    if job.features is None:
        return changed if _fits(job, changed) else None
    try:
        made = job.train_of(changed)
    except RecordsError:
        return None
    return made if _fits(job, made) else None


def other_inputs(job: Job, change: Change) -> StackedData | None:
    """`other_records` as they are before features are made of them; the same without features."""
    made = other_records(job, change)
    return made if made is None or job.features is None else _changed(job, change)


def _changed(job: Job, change: Change) -> StackedData:
    """All records changed, as they are read."""
    train, kinds = _read(job), _kinds(job)
    stored = _inputs(train, kinds, change)
    targets = _targets(train.targets, kinds, change)
    if not change.every:
        first = torch.zeros(len(targets), dtype=torch.bool, device=targets.device)
        first[train.offsets] = True
        stored = torch.where(_like(first, stored), stored, train.stored)
        targets = torch.where(_like(first, targets), targets, train.targets)
    bound = job.config.input_bound if job.features is None else None
    if bound is not None and not train.bytes and stored.is_floating_point():
        stored = bounded_inputs(stored, bound)
    return replace(train, stored=stored, targets=targets)


def _read(job: Job) -> StackedData:
    """The job's records as they were read.

    Raises:
        InputError: the job has let them go.
    """
    if job.features is not None and job.raw is None:
        raise InputError("job", "without its records", "prepare it with keep_raw=True")
    return job.train if job.raw is None else job.raw


def _fits(job: Job, data: StackedData) -> bool:
    """Whether records keep the public rules, and all of them pass through the model."""
    outputs = job.model.outputs(job.model.start(1, job.dtype, job.device), job.train.first.inputs)
    ends = zip(data.offsets.tolist(), data.sizes.tolist(), strict=True)
    try:
        for start, size in ends:
            job.loss.check_records(outputs[0], data.targets[start : start + size])
    except RecordsError:
        return False
    module, kind = _module(job), job.train.first.inputs.dtype
    everyone = torch.arange(len(data.targets), device=data.targets.device)
    parts = torch.split(everyone, _TRIED)  # few, as the first one that fails is looked through
    return not any(failures(module, data.inputs_of(rows).to(kind)) for rows in parts)


def _kinds(job: Job) -> _Kinds:
    train, loss = _read(job), job.loss
    ids = None
    if not train.bytes and not train.stored.is_floating_point():
        rows = [
            module.num_embeddings
            for module in _module(job).modules()
            if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        ]
        # Without an embedding, values that other records have.
        ids = min(rows, default=int(train.stored.max()) + 1)
    return _Kinds(
        ids=ids,
        classes=job.outputs if loss.name == "cross-entropy" else None,
        signs=loss.name == "logistic",
        numbers=loss.name == "mse",
    )


def _module(job: Job) -> nn.Module:
    """The user's module, as it starts."""
    return job.model.module(job.model.start(1, job.dtype, job.device)[0])


def _inputs(train: StackedData, kinds: _Kinds, change: Change) -> Tensor:
    if kinds.ids is not None:
        return change.labels(train.stored, kinds.ids)
    changed = _changed_bytes if train.bytes else _changed_numbers
    parts = torch.split(train.stored, _AT_ONCE)  # as numbers, bytes take four times the memory
    return torch.cat([changed(part, change) for part in parts])


def _changed_numbers(stored: Tensor, change: Change) -> Tensor:
    return _finite(change.inputs(stored))


def _changed_bytes(stored: Tensor, change: Change) -> Tensor:
    shares = change.inputs(stored.float() / 255).abs().clamp(0, 1)
    return (255 * shares).round().to(stored.dtype)


def _targets(targets: Tensor, kinds: _Kinds, change: Change) -> Tensor:
    if kinds.classes is not None:
        return change.labels(targets, kinds.classes)
    if kinds.signs:
        positive = change.labels((targets > 0).long(), 2) > 0
        low = -1.0 if bool((targets == -1).any()) else 0.0
        return torch.where(positive, 1.0, low).to(targets.dtype)
    if kinds.numbers:
        return _finite(change.targets(targets))
    # Of a user's own loss nothing is declared but that other records have these targets.
    known: Tensor = torch.unique(targets.reshape(len(targets), -1), dim=0)
    places = torch.arange(len(targets), device=targets.device) % len(known)
    return known[change.labels(places, len(known))].view(targets.shape)


def _finite(values: Tensor) -> Tensor:
    """Without what is beyond the type."""
    return values.nan_to_num()


def _like(rows: Tensor, values: Tensor) -> Tensor:
    return rows.reshape(-1, *[1] * (values.ndim - 1))
