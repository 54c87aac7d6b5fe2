"""Records of the kind that a job has: all others in their place, and the worst for a clipped sum.

Every record here is one that a user could have: of the kind and shape of the data, finite, within
`task.input_bound` if there is one, that the model takes (ids have a row in every embedding, also
ids that stand among other numbers), with targets that the loss takes.

*Other records* have nothing in common with a job's own but what is public of them. How many there
are, their shape and their kind stay as they are. Numbers become other numbers, ids and labels
others of those that are declared. Where nothing is declared, as of the targets of a user's own
loss, they become values that other records have.

*Worst records* put clipping to the test, one in the place of another:

- *huge* and *tiny* ones, whose gradients are far above the clipping bound, or lost beside others;
- ones that *cancel*: positions of a sequence, or rows of an image, that are opposite but for a
  rest, so that the terms of a gradient are far longer than their sum;
- ones that *oppose* others: the negative of another record, wrong labels;
- what *ascent* finds: on the distance of the clipped gradient from that of the record whose place
  it takes, through plain autograd (`plain_gradients`), differentiated once more; of ids and labels,
  the best of those that were tried.

A search proves nothing about records that it did not try.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import cast

import torch
from torch import Tensor, nn

from tacit.analysis.audit.canaries import alike, mislabel
from tacit.analysis.audit.plain_gradients import PlainModel, clipped, plain_model
from tacit.data import StackedData, bounded_inputs
from tacit.errors import InputError, RecordsError
from tacit.gradients.losses import OF_NUMBERS
from tacit.models.architectures import failures
from tacit.training.job import Job

LARGER = 1e3
OUTLIER = 1e10
HUGE = 1e6
ASCENT_STEPS = 12
_TRIED = 256  # records on which a changed data set is tried at once
_AT_ONCE = 4096  # records that are changed at once
_LABELS_TRIED = 8
_IDS_TRIED = 4
_MARKERS = 100
_SIZES = (1e8, 1e12, 1e4, 1e18)  # of positions that cancel
_BEFORE_ASCENT = 4  # kinds that come before what is searched


# What a job takes.


def _module(job: Job) -> nn.Module:
    """The user's module, as it starts."""
    module = job.model.module(job.model.start(1, job.dtype, job.device)[0])
    return job.model.wired(module, job.dtype)


def _takes(job: Job, module: nn.Module, inputs: Tensor) -> bool:
    """Whether all records `[records, ...]` pass through the module."""
    return not failures(module, inputs.to(job.train.first.inputs.dtype))


def _fit(job: Job, outputs: Tensor, targets: Tensor) -> bool:
    """Whether the loss takes targets `[records, ...]`, by the shape of outputs `[1, ...]`."""
    try:
        job.loss.check_records(outputs, targets)
    except InputError:
        return False
    return True


def _ids(module: nn.Module, known: Tensor) -> int:
    """How many ids every embedding takes; without one, as many as records that are known have."""
    kinds = nn.Embedding | nn.EmbeddingBag
    rows = [part.num_embeddings for part in module.modules() if isinstance(part, kinds)]
    return min(rows, default=int(known.max()) + 1)


# All others.


@dataclass(frozen=True)
class Change:
    """One way to change every record; if not `every`, the first of each node alone.

    Where it is `single`, each unit is left with one row: how many it has is as private as they are.

    `words` are for people. `inputs` takes numbers `[total, ...]`, or bytes as shares of 255 to
    others within 0 and 1; `labels` takes labels and the number of classes.
    """

    words: str
    inputs: Callable[[Tensor], Tensor]
    labels: Callable[[Tensor, int], Tensor]
    targets: Callable[[Tensor], Tensor]
    every: bool = True
    single: bool = False


def _next_label(labels: Tensor, classes: int) -> Tensor:
    return (labels.flip(0) + 1) % classes


CHANGES: Mapping[str, Change] = {
    "all others": Change(
        "every record is another one, in another order",
        lambda values: 1 - 2 * values.flip(0),
        _next_label,
        lambda values: 1 - 2 * values.flip(0),
        single=True,
    ),
    "all zeros": Change(
        "every record holds zeros and the smallest label",
        torch.zeros_like,
        lambda labels, classes: torch.zeros_like(labels),
        torch.zeros_like,
    ),
    "all large": Change(
        "every record is a thousand times larger and has the largest label",
        lambda values: LARGER * (values + 1),
        lambda labels, classes: torch.full_like(labels, classes - 1),
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

    They are as many of each node, of the same shapes and types, within `input_bound`.
    """
    made = _changed(job, change)
    if job.features is not None:
        try:
            made = job.train_of(made)
        except RecordsError:
            return None
    return made if _fits(job, made) else None


def other_inputs(job: Job, change: Change) -> StackedData | None:
    """`other_records` as they are before features are made of them; the same without features."""
    made = other_records(job, change)
    return made if made is None or job.features is None else _changed(job, change)


def _changed(job: Job, change: Change) -> StackedData:
    """All records changed, as they are read.

    Raises:
        InputError: the job has let the records go that it read.
    """
    if job.features is not None and job.raw is None:
        raise InputError("job", "without its records", "prepare it with keep_raw=True")
    train = job.train if job.raw is None else job.raw
    stored = _changed_inputs(job, train, change)
    targets = _changed_targets(job, train.targets, change)
    units = train.units
    if not change.every:
        first, others = train.firsts, (stored, targets)
        first = first if units is None else units.rows(first)
        stored, targets = train.stored.clone(), train.targets.clone()
        stored[first], targets[first] = (values[first] for values in others)
    bound = job.config.input_bound if job.features is None else None
    if bound is not None and not train.bytes and stored.is_floating_point():
        stored = bounded_inputs(stored, bound)
    if units is None or not change.single:
        return replace(train, stored=stored, targets=targets)
    rows = units.starts
    one = replace(units, starts=torch.arange(len(rows)).to(rows), counts=torch.ones_like(rows))
    sizes = one.offsets, one.sizes
    return StackedData(stored[rows], targets[rows], *sizes, train.bytes, one, train.packed)


def _fits(job: Job, data: StackedData) -> bool:
    """Whether records keep the public rules, and all of them pass through the model."""
    outputs = job.model.outputs(job.model.start(1, job.dtype, job.device), job.train.first.inputs)
    targets = torch.split(data.targets, data.sizes.tolist())
    if not all(_fit(job, outputs[0], own) for own in targets):
        return False
    module, everyone = _module(job), torch.arange(len(data.targets), device=data.targets.device)
    parts = torch.split(everyone, _TRIED)  # few, as the first one that fails is looked through
    return all(_takes(job, module, data.inputs_of(rows)) for rows in parts)


def _changed_inputs(job: Job, train: StackedData, change: Change) -> Tensor:
    if not train.bytes and not train.stored.is_floating_point():
        return change.labels(train.stored, _ids(_module(job), train.stored))
    parts = torch.split(train.stored, _AT_ONCE)  # as numbers, bytes take four times the memory
    if train.bytes:
        shares = (change.inputs(part.float() / 255).abs().clamp(0, 1) for part in parts)
        return torch.cat([(255 * share).round().to(train.stored.dtype) for share in shares])
    # Without what is beyond the type.
    made = torch.cat([change.inputs(part).nan_to_num() for part in parts])
    return made if train.packed is None else train.packed.possible(made, train.stored)


def _changed_targets(job: Job, targets: Tensor, change: Change) -> Tensor:
    if job.loss.name == "cross-entropy":
        return change.labels(targets, job.outputs)
    if job.loss.name == "logistic":
        positive = change.labels((targets > 0).long(), 2) > 0
        low = -1.0 if bool((targets == -1).any()) else 0.0
        return torch.where(positive, 1.0, low).to(targets.dtype)
    if job.loss.name in OF_NUMBERS:
        return change.targets(targets).nan_to_num()
    # Of a user's own loss nothing is declared but that other records have these targets.
    known: Tensor = torch.unique(targets.reshape(len(targets), -1), dim=0)
    places = torch.arange(len(targets), device=targets.device) % len(known)
    return known[change.labels(places, len(known))].view(targets.shape)


# The worst in the place of one.


@dataclass(frozen=True, eq=False)
class Candidate:
    """Records of one kind, each in place of another one.

    `name` is the kind, for people, after *a record*: `that is huge`. Inputs are `[records, ...]`,
    and targets `[records]` or `[records, m]`.
    """

    name: str
    inputs: Tensor
    targets: Tensor


Place = tuple[Tensor, Tensor, Tensor, Tensor]
"""Records and targets whose place is taken, and those of another record of each node's batch."""


def marker(job: Job, inputs: Tensor, targets: Tensor, seed: int) -> Candidate | None:
    """A record that is like none of those given, to be told from them; None if none is found.

    It is one that the model takes: random numbers or ids, or, where it does not take these, numbers
    of several records, each in its place. Of the targets `[records, ...]` it has the first.
    """
    draws = torch.Generator().manual_seed(seed)
    shape, module, flat = inputs.shape[1:], _module(job), inputs.flatten(1)
    for number in range(_MARKERS):
        if number % 2:
            rows = torch.randint(len(flat), (flat.shape[1],), generator=draws).to(flat.device)
            made = flat.gather(0, rows.unsqueeze(0))[0].reshape(shape)
        elif inputs.is_floating_point():
            made = torch.randn(shape, generator=draws, dtype=torch.float64).to(inputs)
        else:
            made = torch.randint(_ids(module, inputs), shape, generator=draws).to(inputs)
        if job.model.packed is not None:
            made = job.model.packed.possible(made, inputs)
        known = bool((flat == made.flatten()).all(dim=1).any())
        if not known and _takes(job, module, made.unsqueeze(0)):
            return Candidate("left out", made, targets[0].clone())
    return None


def candidates(job: Job, place: Place, at: Tensor | None, seed: int) -> Iterator[Candidate]:
    """Records to put in the place of others, the most telling kinds first; a fixed order.

    What a place holds is `[records, ...]` each. Ascent is tried at the parameters `at` `[d]`, where
    the first of these records is evaluated; None leaves it out.

    Where a record is a unit, `[records, rows, ...]`, it has all of these rows in its place: first
    those of one kind that agree, then those that cancel or are unlike each other.
    """
    rows = job.model.unit_rows
    if rows is None:
        yield from _of_rows(job, place, at, seed)
        return
    firsts = cast(Place, tuple(values[:, 0] for values in place))
    for one in _of_rows(job, firsts, at, seed):
        yield Candidate(one.name, alike(one.inputs, rows), alike(one.targets, rows))
    module = _module(job)
    for one in _of_units(job, place[0], place[1], torch.Generator().manual_seed(seed)):
        flat = Candidate(one.name, one.inputs.flatten(0, 1), one.targets.flatten(0, 1))
        for fit in _declared(job, flat, module):
            made = (v.view(-1, rows, *v.shape[1:]) for v in (fit.inputs, fit.targets))
            yield Candidate(fit.name, *made)


def _of_units(
    job: Job, inputs: Tensor, targets: Tensor, draws: torch.Generator
) -> Iterator[Candidate]:
    """Units whose rows are unlike each other, of `[records, rows, ...]`."""
    rows = targets.shape[1]
    first, right = (alike(values[:, 0], rows) for values in (inputs, targets))
    wrong, mixed = _wrong(job, right), right.clone()
    mixed[:, 1::2] = wrong[:, 1::2]
    yield Candidate("half of whose rows have a wrong target", first, mixed)
    if not inputs.is_floating_point():
        return
    yield Candidate("whose rows are huge and half of them wrong", HUGE * first, mixed)
    for size in _SIZES:
        made = _cancelling(first, size, draws, axis=1)
        yield Candidate(f"whose rows of {size:g} cancel", made, wrong)
    outlier = inputs.clone()
    outlier[:, -1] *= OUTLIER
    yield Candidate("one row of which is huge", outlier, targets)


def _of_rows(job: Job, place: Place, at: Tensor | None, seed: int) -> Iterator[Candidate]:
    """Records of one row each."""
    inputs, targets, _, _ = place
    draws = torch.Generator().manual_seed(seed)
    kinds = _of_numbers if inputs.is_floating_point() else _of_ids
    module = _module(job)
    wrong = Candidate("with a wrong target", inputs, _wrong(job, targets))
    for number, candidate in enumerate(chain([wrong], kinds(job, place, draws))):
        if number == _BEFORE_ASCENT and at is not None:
            yield from _searched(job, place, at, module)
        yield from _declared(job, candidate, module)


def _of_numbers(job: Job, place: Place, draws: torch.Generator) -> Iterator[Candidate]:
    inputs, targets, others, other_targets = place
    wrong = _wrong(job, targets)
    yield Candidate("that opposes another one", -others, other_targets)
    yield Candidate("that is huge", HUGE * inputs, wrong)
    yield Candidate("that is huge and opposite", -HUGE * inputs, wrong)
    for size in _SIZES:
        yield Candidate(f"whose parts of {size:g} cancel", _cancelling(inputs, size, draws), wrong)
    yield Candidate("of zeros", torch.zeros_like(inputs), wrong)
    yield Candidate("that is tiny", 1e-40 * inputs, targets)
    for size in (1e15, 1e30):
        yield Candidate(f"that is {size:g} times as large", size * inputs, wrong)
    if targets.is_floating_point() and not job.loss.labels:
        yield Candidate("with a huge target", inputs, HUGE * (1 + targets.abs()))


def _of_ids(job: Job, place: Place, draws: torch.Generator) -> Iterator[Candidate]:
    inputs, targets, others, other_targets = place
    rows, wrong = _ids(job.model.original, job.train.stored), _wrong(job, targets)
    yield Candidate("with the label of another one", inputs, other_targets)
    for id_ in (rows - 1, 0):
        yield Candidate(f"of id {id_} alone", torch.full_like(inputs, id_), wrong)
    flat = inputs.reshape(len(inputs), -1)
    first = flat[:, :1].expand_as(flat).reshape(inputs.shape)
    yield Candidate("of its first id alone", first, wrong)
    halves = flat.clone()
    halves[:, : flat.shape[1] // 2], halves[:, flat.shape[1] // 2 :] = 0, rows - 1
    yield Candidate("of two ids, a half each", halves.reshape(inputs.shape), wrong)
    yield Candidate("whose ids are those of another one", others, _wrong(job, other_targets))
    for number in range(_IDS_TRIED):
        drawn = torch.randint(rows, inputs.shape, generator=draws).to(inputs)
        yield Candidate(f"of ids that were drawn ({number + 1})", drawn, wrong)


def _cancelling(
    inputs: Tensor, size: float, draws: torch.Generator, axis: int | None = None
) -> Tensor:
    """Positions in pairs that are opposite but for a rest of ordinary size."""
    axis = axis or (2 if inputs.ndim > 3 else 1)
    length = inputs.shape[axis]
    rest = torch.randn(inputs.shape, generator=draws, dtype=torch.float64)
    halves = torch.randn(inputs.shape, generator=draws, dtype=torch.float64)
    pairs = torch.arange(length) // 2
    signs = torch.where(torch.arange(length) % 2 == 0, 1.0, -1.0).double()
    if length % 2:
        signs[-1] = 0.0
    shape = [1] * inputs.ndim
    shape[axis] = length
    made = size * halves.index_select(axis, pairs) * signs.view(shape) + rest
    return made.to(inputs)


def _wrong(job: Job, targets: Tensor) -> Tensor:
    return mislabel(targets, job.loss.name, job.outputs)


def _declared(job: Job, candidate: Candidate, module: nn.Module) -> Iterator[Candidate]:
    """The same within what is declared; nothing where a target or an id does not fit.

    Also numbers may be ids, in a column of the inputs: so the model itself is asked.
    """
    inputs, targets = candidate.inputs, candidate.targets
    if inputs.is_floating_point():
        most = torch.finfo(inputs.dtype).max
        inputs = inputs.clamp(-most, most)
        if job.config.input_bound is not None:
            inputs = bounded_inputs(inputs, job.config.input_bound)
        if job.model.packed is not None:
            inputs = job.model.packed.possible(inputs, job.train.inputs)
    outputs = torch.zeros(1, *job.output_shape, dtype=job.dtype, device=job.device)
    if _takes(job, module, inputs) and _fit(job, outputs, targets):
        yield Candidate(candidate.name, inputs, targets)


def _searched(job: Job, place: Place, at: Tensor, module: nn.Module) -> Iterator[Candidate]:
    """What ascent finds from the first record, in the place of all."""
    inputs, targets, _, _ = place
    if job.model.needs_coins:  # masks and views are those of a batch
        return
    plain = plain_model(job.model, job.dtype, job.device)
    bound = job.plan.release.clip.bound(0) or 1.0
    norm = job.plan.release.clip.norm
    own = clipped(plain.gradients(at, inputs[:1], targets[:1]), bound, norm)[0]
    labels = [targets[0]]  # that are tried, its own first
    while len(labels) < min(_LABELS_TRIED, max(2, job.outputs)):
        following = _wrong(job, labels[-1].unsqueeze(0))[0]
        if any(torch.equal(following, one) for one in labels):
            break
        labels.append(following)
    found = ascend(plain, at, inputs[0], labels, own, bound)
    if found is None:
        return
    record, target = found[0].expand_as(inputs).clone(), found[1].expand_as(targets).clone()
    yield from _declared(job, Candidate("found by ascent", record, target), module)


def ascend(
    plain: PlainModel,
    at: Tensor,
    record: Tensor,
    labels: Sequence[Tensor],
    own: Tensor,
    bound: float,
) -> tuple[Tensor, Tensor] | None:
    """A record and a target whose clipped gradient is far from a given one; None if none is found.

    The given one is `own` `[d]`, of the record whose place is taken, at the same parameters `at`
    `[d]`. The clip here is that of the l2 norm, to `bound`. Ascent starts at `record`, with the
    best of the labels, and takes steps of a share of the record's length, which falls. Ids stay as
    they are: only labels are tried then. It ends at a record that the model fails on.
    """

    def distance(inputs: Tensor, target: Tensor) -> Tensor:
        gradient = plain.gradient(at, inputs, target)
        length = gradient.norm()
        apart: Tensor = (gradient * (bound / length.clamp(min=bound)) - own).norm()
        return apart

    tried = [(float(distance(record, target).detach()), n) for n, target in enumerate(labels)]
    usable = [(value, -n) for value, n in tried if math.isfinite(value)]
    if not usable:
        return None
    best, chosen = max(usable)
    target, place, kept = labels[-chosen], record, record
    if not record.is_floating_point():
        return record, target
    scale = float(record.norm()) or 1.0
    for number in range(ASCENT_STEPS):
        leaf = place.detach().clone().requires_grad_()
        with torch.enable_grad():
            value = distance(leaf, target)
            (slope,) = torch.autograd.grad(value, leaf, allow_unused=True, materialize_grads=True)
        length = float(slope.norm())
        if not 0 < length < math.inf:
            break
        place = place + slope * (scale * 0.5 * (1 - number / ASCENT_STEPS) / length)
        if failures(plain.module, place.detach().unsqueeze(0).to(plain.dtype)):
            break
        reached = float(distance(place, target).detach())
        if math.isfinite(reached) and reached > best:
            best, kept = reached, place
    return kept.detach(), target
