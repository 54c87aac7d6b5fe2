"""The constants of PrivSGP-VR's convergence bound, estimated at the start.

The bound, and its symbols, are in `tacit.privacy.published.utility`. Each constant comes with its
provenance:

| constant | how it is estimated |
|---|---|
| L | norm of the Hessian of the mean loss at x^0, from below |
| b^2 | mean over nodes of norm(grad f_i - grad f)^2 at x^0, less what sampling records adds |
| F0 | f(x^0), as f* >= 0 for every loss of tacit: at most this far above the truth |
| x0 | the squared norm of the start, exact |
| G | the clipping bound of the run, exact |

L is a lower estimate: the bound needs the largest over all records and all points.

By default they come from the public test records, divided among the nodes as the training records
are. From the nodes' own records they are **not private**: no noise is added, and no epsilon covers
what they tell. Values given by hand cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from tacit import data
from tacit.config import GIVEN
from tacit.errors import InputError, describe, nearest
from tacit.gradients import Loss, record_coins, with_output
from tacit.privacy.published import BoundConstants
from tacit.training.prepare import Job

Source = Literal["test", "train"]
NAMES = ("L", "b2", "F0", "x0", "G")
PRIVATE: Literal["private"] = "private"
"""The kind of a constant that was read off the nodes' own records."""

_NO_CLIP = 1e12  # a bound so that norms are reported: nothing reaches it
_CURVATURE_RECORDS = 500  # of those read; each iteration differentiates all of them twice
_ITERATIONS = 25
_SETTLED = 3e-3  # relative change at which the iteration stops


@dataclass(frozen=True)
class Constant:
    """One constant of the bound.

    Args:
        name: as the paper writes it: L, b2, F0, x0 (its squared norm), G.
        value: its value.
        kind: `given`, `exact`, `public` (estimated on public test records) or `private`
            (estimated on the nodes' records, un-noised: not covered by epsilon).
        how: how it came about, in one line.
    """

    name: str
    value: float
    kind: Literal["given", "exact", "public", "private"]
    how: str


@dataclass(frozen=True)
class Estimates:
    """All constants, and the gradient norms behind them.

    Args:
        constants: in the order of `NAMES`.
        parameters: d.
        norms: ascending l2 norms of record gradients at the start; empty where every constant was
            given and no norm was asked for.
        norms_kind: `public` or `private`, of the norms.
    """

    constants: tuple[Constant, ...]
    parameters: int
    norms: tuple[float, ...]
    norms_kind: Literal["public", "private"]

    def value(self, name: str) -> float:
        """A constant by name."""
        return {constant.name: constant.value for constant in self.constants}[name]

    @property
    def private(self) -> bool:
        """Whether anything here was read off private records."""
        read = bool(self.norms) and self.norms_kind == PRIVATE
        return read or any(constant.kind == PRIVATE for constant in self.constants)

    @property
    def bound(self) -> BoundConstants:
        """What Theorem 1 reads."""
        return BoundConstants(
            smoothness=self.value("L"),
            heterogeneity=self.value("b2"),
            start_gap=self.value("F0"),
            start_norm=self.value("x0"),
            parameters=self.parameters,
        )


def estimate(
    job: Job,
    given: Mapping[str, float],
    *,
    source: Source = "test",
    records: int = 1000,
    norms: bool = False,
) -> Estimates:
    """Every constant: as given, or estimated.

    Args:
        job: a run that could start now.
        given: constants by name; they are not estimated.
        source: `test` reads public test records, `train` the nodes' own: not private.
        records: how many records are read at most, over all nodes (one a node at least).
        norms: whether gradient norms are wanted even where every constant is given.

    Raises:
        InputError: an unknown or impossible constant is given, or public test records are wanted
            and the task has none.
    """
    for name, value in given.items():
        if name not in NAMES:
            raise InputError("constants", name, nearest(name, NAMES))
        least = 0.0 if name in ("b2", "x0") else math.ulp(0.0)
        if not (math.isfinite(value) and value >= least):
            expected = "zero or more" if least == 0 else "positive"
            raise InputError(f"constants.{name}", value, f"must be finite and {expected}")
    constants: dict[str, Constant] = {
        name: Constant(name, float(value), "given", "given by hand")
        for name, value in given.items()
    }
    clip = job.plan.release.clip.bounds or ()
    start = job.model.start(1, job.dtype, job.device)[0]
    squared = float(start.double().square().sum())
    constants.setdefault("x0", Constant("x0", squared, "exact", "squared norm of the start"))
    if clip:
        how = "the clipping bound" + (", the largest" if len(set(clip)) > 1 else "")
        constants.setdefault("G", Constant("G", max(clip), "exact", how))
    measured = _Measured(0.0, 0.0, (), 0.0, "")
    if norms or any(name not in constants for name in ("L", "b2", "F0")):
        measured = _measure(job, start, source, records)
    kind: Literal["public", "private"] = "public" if source == "test" else PRIVATE
    rows = (
        ("L", measured.smoothness, "Hessian's norm at the start: a lower estimate"),
        ("b2", measured.heterogeneity, measured.reading),
        ("F0", measured.loss, "loss at the start, as f* >= 0: an upper estimate"),
    )
    for name, value, how in rows:
        constants.setdefault(name, Constant(name, value, kind, how))
    return Estimates(
        constants=tuple(constants[name] for name in NAMES if name in constants),
        parameters=job.model.parameters_count,
        norms=measured.norms,
        norms_kind=kind,
    )


def clipping_excess(norms: Sequence[float], clip: float) -> float:
    """The mean of max(0, norm - C): a bound of how far clipping moves the mean gradient.

    The clipped mean differs from the mean by mean(g - clip(g)), whose norm is at most this.
    """
    return math.fsum(max(0.0, norm - clip) for norm in norms) / len(norms)


def largest_curvature(
    module: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, *, at_once: int = 128
) -> float:
    """Norm of the Hessian H of a module's mean loss at its present weights, from below.

    Lanczos iteration from a fixed random direction: Ritz values never leave the range of H's
    eigenvalues, so that stopping early can only lower the answer. Products with H come from
    differentiating twice; at the kinks of ReLU or max-pooling, where no Hessian exists, autograd's
    choice of a one-sided derivative counts.

    Args:
        module: with the point as its weights.
        loss: of the task.
        inputs: `[records, ...]`.
        targets: `[records, ...]`.
        at_once: records whose activations are held at a time.

    Raises:
        InputError: the module cannot be differentiated twice, or the answer is no use as L.
    """
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    size = sum(weight.numel() for weight in weights)
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(size, generator=generator, dtype=torch.float64)
    direction = random.to(weights[0].device) / random.norm()
    before, beta = torch.zeros_like(direction), 0.0
    diagonal: list[float] = []
    beside: list[float] = []
    largest = 0.0
    for _ in range(min(_ITERATIONS, size)):
        image = torch.zeros_like(direction)
        for part in torch.split(torch.arange(len(inputs), device=inputs.device), at_once):
            image += _product(module, loss, weights, inputs[part], targets[part], direction)
        image /= len(inputs)
        alpha = float(image @ direction)
        if not math.isfinite(alpha):
            largest = alpha
            break
        diagonal.append(alpha)
        matrix = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
        value = float(np.abs(np.linalg.eigvalsh(matrix)).max())
        image -= alpha * direction + beta * before
        beta = float(image.norm())
        settled = abs(value - largest) <= _SETTLED * value
        largest = max(largest, value)
        if settled or beta <= _SETTLED * largest:
            break
        before, direction = direction, image / beta
        beside.append(beta)
    if not 0 < largest < math.inf:
        raise InputError(
            "constants.L", largest, "give it by hand: the loss has no usable curvature at the start"
        )
    return largest


def _product(
    module: nn.Module,
    loss: Loss,
    weights: Sequence[Tensor],
    inputs: Tensor,
    targets: Tensor,
    direction: Tensor,
) -> Tensor:
    """The Hessian of the summed loss times a vector, `[d]` in the order of the weights."""
    shapes = [weight.shape for weight in weights]
    pieces = torch.split(direction, [weight.numel() for weight in weights])
    vectors = [
        piece.view(shape).to(weight)
        for piece, shape, weight in zip(pieces, shapes, weights, strict=True)
    ]
    try:
        total = loss.per_record(module(inputs), targets).sum()
        slopes = torch.autograd.grad(total, weights, create_graph=True)
        along = torch.stack([(a * b).sum() for a, b in zip(slopes, vectors, strict=True)]).sum()
        second = torch.autograd.grad(along, weights, materialize_grads=True)
    except RuntimeError as error:
        raise InputError(
            "constants.L",
            "none",
            f"give it by hand: differentiating twice failed; {describe(error)}",
        ) from error
    return torch.cat([value.reshape(-1).double() for value in second])


@dataclass(frozen=True)
class _Measured:
    """What the records tell at the start."""

    smoothness: float
    heterogeneity: float
    norms: tuple[float, ...]
    loss: float
    reading: str


def _measure(job: Job, start: Tensor, source: Source, records: int) -> _Measured:
    sample, divided = _SOURCES[source](job, records)
    sizes = sample.sizes
    width = int(sizes.max())
    slots = torch.arange(width, device=job.device).expand(len(sizes), width)
    mask = slots < sizes.unsqueeze(1)
    inputs, targets = sample.gather(torch.where(mask, slots, 0))
    numbers = torch.arange(len(sizes), device=job.device)
    coins = record_coins(job.config.train.seed, 0, 0, numbers, slots)
    starts = start.repeat(len(sizes), 1)
    gradients = job.model.gradient(starts, inputs, targets, mask, _NO_CLIP, coins=coins)
    means = gradients.total.double() / sizes.unsqueeze(1)
    own = means.square().sum(dim=1)
    squares = gradients.norms.double().square().sum(dim=1)
    losses = (gradients.losses.double().sum(dim=1) / sizes).mean()
    if divided:
        heterogeneity = _heterogeneity(job, means, squares - sizes * own, sizes, source)
        reading = "spread of the nodes' gradients at the start" + _DIVISIONS[source]
    else:
        heterogeneity = float((squares.sum() / sizes.sum()) - own.mean())
        reading = "spread of single records' gradients: at least that of any division of them"
    module = with_output(job.model.module(start), job.model.output)
    every = math.ceil(len(sample.inputs) / _CURVATURE_RECORDS)  # every node's in the same share
    return _Measured(
        smoothness=largest_curvature(
            module, job.loss, sample.inputs[::every], sample.targets[::every]
        ),
        heterogeneity=max(0.0, heterogeneity),
        norms=tuple(sorted(gradients.norms[mask].double().tolist())),
        loss=float(losses),
        reading=reading,
    )


_DIVISIONS = {"test": ", the test records divided as the training records are", "train": ""}


def _heterogeneity(
    job: Job, means: Tensor, deviations: Tensor, sizes: Tensor, source: Source
) -> float:
    """b^2 without the part that comes from reading m_i of J_i records.

    The spread of the sampled means exceeds b^2 by (1 - 1/n) mean_i V (1/m_i - 1/J_i), V being the
    variance of a record's gradient within its node. Public records stand for the population, in
    which the part beyond V / J_i cannot be negative.
    """
    nodes = len(sizes)
    raw = float((means - means.mean(dim=0)).square().sum(dim=1).mean())
    within = float(deviations.sum()) / max(1, int(sizes.sum()) - nodes)
    counts = [node.records for node in job.plan.nodes]
    share = (1 - 1 / nodes) * within
    sampled = share * float((1 / sizes.double()).mean())
    own = share * math.fsum(1 / count for count in counts) / nodes
    return max(0.0, raw - sampled) + own if source == "test" else raw - sampled + own


def _public(job: Job, records: int) -> tuple[data.StackedData, bool]:
    """Public test records, divided as the training records are if that can be done."""
    if job.test is None:
        raise InputError(
            "constants",
            "none",
            f"the task has no public test records: give {', '.join(NAMES[:3])} by hand, or have "
            "them estimated on the nodes' own records (which is not private)",
        )
    settings = job.config.nodes
    try:
        if job.config.task.dataset == GIVEN:
            raise InputError("nodes.partition", settings.partition, "nobody knows it")
        parts = data.partition(
            settings.partition,
            data.TaskData(job.config.task.dataset, job.test, None),
            len(job.plan.nodes),
            job.config.train.seed,
            alpha=settings.alpha,
            per_node=settings.per_node,
        )
    except InputError:
        everything = np.arange(len(job.test))
        return _sampled(job, [(job.test, everything)], records), False
    return _sampled(job, [(job.test, part) for part in parts], records), True


def _own(job: Job, records: int) -> tuple[data.StackedData, bool]:
    """The nodes' own records: private."""
    everything = data.Dataset(job.train.inputs, job.train.targets)
    starts, sizes = job.train.offsets.tolist(), job.train.sizes.tolist()
    parts = [
        (everything, np.arange(first, first + size))
        for first, size in zip(starts, sizes, strict=True)
    ]
    return _sampled(job, parts, records), True


_SOURCES = {"test": _public, "train": _own}


def _sampled(
    job: Job, parts: Sequence[tuple[data.Dataset, np.ndarray]], records: int
) -> data.StackedData:
    """An equal share of the records from each part, drawn with a fixed seed."""
    generator = np.random.default_rng(0)
    most = max(1, records // len(parts))
    chosen = [
        (dataset, generator.permutation(part)[:most] if len(part) > most else part)
        for dataset, part in parts
    ]
    return data.stack(
        [data.Dataset(dataset.inputs[part], dataset.targets[part]) for dataset, part in chosen],
        job.dtype,
        job.device,
    )
