"""What the convergence bound of a run is made of: constants, and the noise that budgets need.

The bound, and its symbols, are in `tacit.privacy.published.privsgp`. Constants are estimated at
the start, each with its provenance:

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

*Noise*, for any number of steps and any batch, is calibrated at few points. Each is a plan of its
own (`build_plan`), so that what is minimised is the mechanism that would run: its sampler,
relation, schedules and every node's own budget. Between points the logarithm of the noise is
interpolated in that of the steps, to find where the next one is worth its cost. What is reported
is always a calibrated point, never an interpolated one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from scipy.interpolate import PchipInterpolator
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import Tensor, nn

from tacit import data, privacy
from tacit.analysis.promise import noise_variances
from tacit.config import GIVEN, Config
from tacit.errors import InputError, describe, nearest
from tacit.gradients import Loss, record_coins
from tacit.privacy.published import BoundConstants
from tacit.report.documents.plan import OptimiseConstant
from tacit.training.job import Job
from tacit.training.plan import Plan
from tacit.training.planner import build_plan
from tacit.training.release import NodePlan

Source = Literal["test", "train"]
Kind = Literal["given", "exact", "public", "private"]
NAMES = ("L", "b2", "F0", "x0", "G")

_NO_CLIP = 1e12  # a bound so that norms are reported: nothing reaches it
_CURVATURE_RECORDS = 500  # of those read; each iteration differentiates all of them twice
_SETTLED = 2e-2  # relative residual at which the iteration stops: its square is that of L
_DIRECTIONS = 6  # that are kept: with more, most of the products would come after that
_UNUSABLE = "give it by hand: the loss has no usable curvature at the start"


@dataclass(frozen=True)
class Estimates:
    """All constants, in the order of `NAMES`, and the gradient norms behind them.

    `norms` are ascending l2 norms of record gradients at the start; there are none where every
    constant was given and no norm was asked for.
    """

    constants: tuple[OptimiseConstant, ...]
    parameters: int
    norms: tuple[float, ...]
    norms_kind: Kind

    def value(self, name: str) -> float:
        """A constant by name."""
        return {constant.name: constant.value or 0.0 for constant in self.constants}[name]

    @property
    def private(self) -> bool:
        """Whether anything here was read off private records."""
        read = bool(self.norms) and self.norms_kind == "private"
        return read or not all(constant.private for constant in self.constants)

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
    """Every constant: as given by name, or estimated.

    `source` is `test`, which reads public test records, or `train`, which reads the nodes' own: not
    private. So many `records` are read at most, over all nodes (one a node at least). `norms`:
    gradient norms are wanted even where every constant is given.

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
    start = job.model.start(1, job.dtype, job.device)[0]
    squared = float(start.double().square().sum())
    constants = {"x0": _constant("x0", squared, "exact", "squared norm of the start")}
    clip = job.plan.release.clip.bounds or ()
    if clip:
        how = "the clipping bound" + (", the largest" if len(set(clip)) > 1 else "")
        constants["G"] = _constant("G", max(clip), "exact", how)
    kind: Kind = "public" if source == "test" else "private"
    found: tuple[float, ...] = ()
    if norms or not given.keys() >= {"L", "b2", "F0"}:
        measured, found = _measure(job, start, source, records)
        for name, (value, how) in measured.items():
            constants[name] = _constant(name, value, kind, how)
    for name, value in given.items():
        constants[name] = _constant(name, float(value), "given", "given by hand")
    return Estimates(
        constants=tuple(constants[name] for name in NAMES if name in constants),
        parameters=job.model.parameters_count,
        norms=found,
        norms_kind=kind,
    )


def _constant(name: str, value: float, kind: Kind, how: str) -> OptimiseConstant:
    """`private` by its document: whether epsilon covers what is read."""
    return OptimiseConstant(name=name, value=value, kind=kind, how=how, private=kind != "private")


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

    Inputs and targets are `[records, ...]`; activations of `at_once` records are held at a time.

    Raises:
        InputError: the module cannot be differentiated twice, or the answer is no use as L.
    """
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    sizes = [weight.numel() for weight in weights]

    def product(vector: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        pieces = torch.split(torch.from_numpy(vector.reshape(-1)), sizes)
        along = [piece.view(w.shape).to(w) for piece, w in zip(pieces, weights, strict=True)]
        image = torch.zeros(sum(sizes), dtype=torch.float64)
        for some in zip(torch.split(inputs, at_once), torch.split(targets, at_once), strict=True):
            total = loss.per_record(module(some[0]), some[1]).sum()
            slopes = torch.autograd.grad(total, weights, create_graph=True)
            slope = torch.stack([(a * b).sum() for a, b in zip(slopes, along, strict=True)]).sum()
            second = torch.autograd.grad(slope, weights, materialize_grads=True)
            image += torch.cat([value.reshape(-1).double() for value in second]).cpu()
        if not image.isfinite().all():
            raise InputError("constants.L", math.nan, _UNUSABLE)
        return (image / len(inputs)).numpy()

    size = sum(sizes)
    random = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    hessian = LinearOperator((size, size), matvec=product, dtype=np.float64)
    try:
        if size == 1:
            found = product(np.ones(1))
        else:
            kept = {"ncv": min(size, _DIRECTIONS), "return_eigenvectors": False}
            found = eigsh(hessian, 1, v0=random.numpy(), tol=_SETTLED, **kept)
    except ArpackError:
        raise InputError("constants.L", 0.0, _UNUSABLE) from None
    except RuntimeError as error:
        failed = f"give it by hand: differentiating twice failed; {describe(error)}"
        raise InputError("constants.L", "none", failed) from error
    largest = abs(float(found[0]))
    if not largest:
        raise InputError("constants.L", largest, _UNUSABLE)
    return largest


def _measure(
    job: Job, start: Tensor, source: Source, records: int
) -> tuple[dict[str, tuple[float, str]], tuple[float, ...]]:
    """What the records tell at the start: constants, and how each was read; and gradient norms."""
    sample, divided = _SOURCES[source](job, records)
    sizes = sample.sizes
    width = int(sizes.max())
    slots = torch.arange(width, device=job.device).expand(len(sizes), width)
    mask = slots < sizes.unsqueeze(1)
    inputs, targets = sample.gather(torch.where(mask, slots, 0))
    numbers = torch.arange(len(sizes), device=job.device)
    coins = record_coins(job.config.train.seed, 0, 0, numbers, slots)
    starts = start.repeat(len(sizes), 1)
    by_row = replace(job.model, unit_rows=None)  # the constants are those of single rows
    gradients = by_row.gradient(starts, inputs, targets, mask, _NO_CLIP, coins=coins)
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
    module = job.model.wired(job.model.module(start), start.dtype)
    every = math.ceil(len(sample.inputs) / _CURVATURE_RECORDS)  # every node's in the same share
    curvature = largest_curvature(module, job.loss, sample.inputs[::every], sample.targets[::every])
    constants = {
        "L": (curvature, "Hessian's norm at the start: a lower estimate"),
        "b2": (max(0.0, heterogeneity), reading),
        "F0": (float(losses), "loss at the start, as f* >= 0: an upper estimate"),
    }
    return constants, tuple(sorted(gradients.norms[mask].double().tolist()))


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


# Noise.


Batch = int | Literal["all"]


@dataclass(frozen=True)
class OptimiseSetting:
    """A run of K steps, and the certified noise that its nodes' budgets need.

    `batch` is the expected records of a step, or `all`, and `clip` the clipping bound at the first
    step. `noise_multiplier` is the root mean square over nodes and steps of noise standard
    deviation over the clipping bound, for the sum over a batch; `variances` `[nodes]` are the noise
    variance of one coordinate of the batch mean, mean over steps. `accumulated` is the noise
    standard deviation in the mean over nodes and steps, and `floor` the least that these budgets
    allow (`least_noise`). `record_gradients` are the expected gradients of a record that a node
    computes in all, the most.
    """

    steps: int
    batch: Batch
    clip: float
    noise_multiplier: float
    variances: tuple[float, ...]
    accumulated: float
    floor: float
    record_gradients: float

    @property
    def noise_std(self) -> float:
        """Root mean square over the nodes of the noise in one coordinate of the batch mean."""
        return math.sqrt(math.fsum(self.variances) / len(self.variances))

    @property
    def waste(self) -> float:
        """Accumulated noise over the least that the budgets allow: at least about 1."""
        return self.accumulated / self.floor

    def scaled(self, clip: float) -> OptimiseSetting:
        """The same with another clipping bound: the multiplier stays, the noise follows it."""
        factor = clip / self.clip
        return replace(
            self,
            clip=clip,
            variances=tuple(variance * factor**2 for variance in self.variances),
            accumulated=self.accumulated * factor,
            floor=self.floor * factor,
        )


def adapted(
    config: Config, records: Sequence[int], parameters: int, steps: int, batch: Batch
) -> OptimiseSetting:
    """The setting of an experiment, with a budget for every node, in other steps and batches.

    Raises:
        InputError: the experiment cannot run like that.
        BudgetError: no noise meets a budget.
    """
    changed = config.with_keys(train={"steps": steps, "batch": batch})
    return setting_of(build_plan(changed, records, parameters))


def setting_of(plan: Plan) -> OptimiseSetting:
    """What a calibrated plan says of its noise."""
    unit, variances = replace(plan.nodes[0], noise_scale=1.0), noise_variances(plan)
    clip = plan.release.clip.bounds or (1.0,) * plan.steps
    shapes = [plan.release.noise_multiplier(unit, k) for k in range(plan.steps)]
    shape = math.fsum(value * value for value in shapes) / plan.steps
    scales = math.fsum(node.noise_scale**2 for node in plan.nodes) / len(plan.nodes)
    return OptimiseSetting(
        steps=plan.steps,
        batch=plan.config.train.settled_batch,
        clip=clip[0],
        noise_multiplier=math.sqrt(scales * shape),
        variances=variances,
        accumulated=math.sqrt(math.fsum(variances) / plan.steps) / len(variances),
        floor=least_noise(plan.nodes, math.fsum(clip) / plan.steps, plan.config.privacy.relation),
        record_gradients=plan.steps * max(node.expected_batch for node in plan.nodes),
    )


def least_noise(nodes: Sequence[NodePlan], clip: float, relation: privacy.Relation) -> float:
    """The least noise standard deviation that budgets allow in the mean over nodes and steps.

    Every node noises for itself and every message is seen. Then node i's contribution to that mean
    is at best its mean clipped gradient over all its records, released once by a Gaussian:
    s C n p_i / (mu_i J_i), whatever K is, with s the sensitivity's factor of the relation (1, or 2
    under replace-one), C the mean clipping bound and n p_i its weight; with every record at every
    step it is attained.
    """
    units = {
        (node.budget, node.delta): privacy.calibrate(
            lambda scale: privacy.Gaussian(scale, 1, relation=relation),
            epsilon=node.budget or 0.0,
            delta=node.delta or 0.0,
        )
        for node in nodes
    }
    squares = (
        (clip * units[node.budget, node.delta] * node.weight / node.records) ** 2
        for node in nodes
        if node.records
    )
    return math.sqrt(math.fsum(squares)) / len(nodes)


def geometric_steps(low: float, high: float, points: int) -> list[int]:
    """About `points` whole numbers from low to high, evenly spaced in the logarithm."""
    raw = np.geomspace(max(1.0, low), max(1.0, high), points)
    return sorted({max(1, round(float(value))) for value in raw})


def interpolated_deviation(
    settings: Sequence[OptimiseSetting],
) -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """The noise in the batch mean as a function of K between calibrated settings of one batch.

    Monotone cubic in the logarithms; only to choose the next K to calibrate at.
    """
    ordered = sorted(settings, key=lambda setting: setting.steps)
    xs = np.log([setting.steps for setting in ordered])
    ys = np.log([setting.noise_std for setting in ordered])
    if len(xs) == 1:
        return lambda steps: np.full(len(steps), math.exp(ys[0]))
    curve = PchipInterpolator(xs, ys)
    return lambda steps: np.asarray(np.exp(curve(np.log(steps))))
