"""One full training with many canaries: records in the user's own model and gradient path, each in
by a fair coin.

Steinke, Nasr and Jagielski (2023): the coins are independent, so that a single run tests as many
guesses as it has canaries, on the experiment's own task, model and data. Every node's canaries
are guessed from all that is released; the releases of all nodes together are as private for each
record as that record's node is.

What is looked at are the releases themselves, as they come back from the noise: every message is a
function of them, so that no observer of any trust model can know more. This way every algorithm
that adds noise can be audited, whatever it does with what it releases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.analysis.audit.alignment import Alignment, Forms
from tacit.analysis.audit.colluders import Colluders, estimated, keys_of
from tacit.analysis.audit.recorder import (
    ContextFactory,
    Pinned,
    Trace,
    TracedRelease,
    pair_keys_of,
    recorded,
    seeded,
)
from tacit.analysis.audit.trade_off import Guessed, epsilon_of_any
from tacit.communication.exchange import InProcessExchange
from tacit.data import StackedData, bounded_inputs
from tacit.models.architectures import failures
from tacit.privacy import ADD_OR_REMOVE_ONE, Relation
from tacit.training.budget import node_keys
from tacit.training.plan import Plan
from tacit.training.prepare import Job
from tacit.training.rounds import advanced

Canary = Literal["mislabelled", "unlike"]
"""What a canary is: a record with a wrong label; or one of a wrong label whose inputs are random
numbers ten times as large as those of any record, so that its gradient is clipped, and nobody
else's points the same way."""

GUESSED_SHARE = 0.2
"""Of the canaries that are guessed; the least certain others are abstained from."""

MOST_SCORED = 200  # steps that are looked at, evenly spread
FEW_SCORED = 10  # steps that are rather looked at than more canaries
FEW_CANARIES = 20  # that are rather looked at than more steps
MOST_GRADIENTS = 2 * 10**9  # numbers of the canaries' gradients at all of them: ten seconds
MOST_PRODUCTS = 2 * 10**10  # for canaries to be told apart together: five seconds
MOST_NOISE = 4 * 10**7  # numbers of noise that are drawn in training: fifteen seconds
# Of one parameter's gradient by one record, beside one number of noise: the time that it takes.
GRADIENT_TIME = 3e-4
LARGE = 10.0  # times the largest norm of a record's inputs


@dataclass(frozen=True)
class OneRun:
    """What one training gave away.

    Args:
        canaries: m, over all audited nodes.
        guesses: r, fixed beforehand.
        correct: v.
        included: bool `[m]`, the coins.
        scores: `[m]`, larger where the releases speak for the canary.
        times: neighbouring steps between a canary that is in and one that is out, see `TradeOff`.
        stopped_after: of how many steps, where the training did not run all of those that were
            asked for; None: it did.
    """

    canaries: int
    guesses: int
    correct: int
    included: NDArray[np.bool_]
    scores: NDArray[np.float64]
    times: int = 1
    kind: Canary = "mislabelled"
    stopped_after: int | None = None

    @property
    def guessed(self) -> Guessed:
        """The counts alone."""
        return Guessed(self.canaries, self.guesses, self.correct)

    def epsilon(self, *, delta: float, confidence: float) -> float:
        """The epsilon that this run refutes, whatever the mechanism is."""
        return epsilon_of_any(self.guessed, delta=delta, confidence=confidence, times=self.times)


def mislabel(targets: Tensor, loss: str, outputs: int) -> Tensor:
    """Wrong targets for the right ones: the next class, or the opposite number (of 0, 1)."""
    if loss == "logistic":  # of two classes, numbered -1 and 1 or 0 and 1: a loss takes both
        return torch.where(targets > 0, -1, 1).to(targets.dtype)
    numbers = targets.is_floating_point() or bool((targets < 0).any())
    if loss == "mse" or (numbers and loss != "cross-entropy"):
        return torch.where(targets == 0, torch.ones_like(targets), -targets)
    return (targets + 1) % max(2, outputs)


def unlike(inputs: Tensor, rng: np.random.Generator, bound: float | None) -> Tensor:
    """Inputs that no record has: random, and large; of whole numbers, random ones of those seen.

    They take the place of inputs `[m, ...]`. `bound` is the public norm that no record's inputs
    exceed; None: there is none.
    """
    if not inputs.is_floating_point():
        flat = inputs.reshape(-1)
        picked = torch.from_numpy(rng.integers(0, len(flat), len(flat))).to(flat.device)
        return flat[picked].reshape(inputs.shape)
    made = torch.from_numpy(rng.normal(size=tuple(inputs.shape))).to(inputs)
    axes = tuple(range(1, inputs.dim()))
    norms = inputs.double().square().sum(axes).sqrt()
    size = LARGE * max(float(norms.max()), 1.0) if bound is None else bound * (1 - 1e-3)
    own = made.double().square().sum(axes, keepdim=True).sqrt()
    return (made * (size / own)).to(inputs.dtype)


def guess(
    scores: NDArray[np.float64], included: NDArray[np.bool_], share: float = GUESSED_SHARE
) -> Guessed:
    """Guess the coins of the highest and the lowest scores, as many of each; count the right ones.

    Scores `[m]` are made without the coins `included`, bool `[m]`, and the share of the canaries
    that are guessed is fixed before the coins are looked at.
    """
    guesses = max(1, int(share * len(scores)))
    order = np.argsort(scores, kind="stable")
    lowest, highest = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
    correct = int((~included[lowest]).sum() + included[highest].sum())
    return Guessed(len(scores), guesses, correct)


def run_once(
    job: Job,
    *,
    nodes: tuple[int, ...],
    steps: int,
    relation: Relation,
    canaries: int,
    seed: int,
    context: ContextFactory,
    canary: Canary = "mislabelled",
    colluders: Colluders | None = None,
    on_step: Callable[[int], None] = lambda k: None,
) -> OneRun:
    """Train once with canaries, and guess the coins.

    Under add-or-remove-one a canary that is out is not there, with J, rate and denominator as they
    were; under replace-one the record is as it was instead. So it is also where the number of a
    record decides how others are treated: a model with dropout, whose masks go by numbers, and a
    table of mini-batches, which hold records whose numbers follow each other. There two
    neighbouring steps lie between a canary that is in and one that is out.

    Where the model or the data are large, the training stops early, before `steps`, and fewer steps
    and canaries are looked at; all of that follows from public sizes. The first steps of a training
    are a function of all that it releases, so that they keep the certificate of the whole.

    There are at most `canaries` in all, and at most half of a node's records. They are mislabelled
    where the model fails on ones that are unlike any other. Colluders pool what they know of the
    one node that is audited; None where there is no noise of pairs. `seed` is of coins and noise,
    and `on_step` is told how many steps are done.
    """
    rng = np.random.default_rng(seed)
    zero_out = relation == ADD_OR_REMOVE_ONE and not _by_number(job)
    ran = min(steps, _affordable_steps(job.plan))
    numbers = job.plan.parameters * (1 if zero_out else 2)
    fewest = min(ran, FEW_SCORED)
    most = max(FEW_CANARIES, MOST_GRADIENTS // (numbers * fewest))
    rows, owners = choose_rows(job.train, nodes, min(canaries, most), rng)
    included, count = rng.random(len(rows)) < 0.5, len(rows)
    scored = min(ran, MOST_SCORED, max(fewest, MOST_GRADIENTS // (numbers * count)))
    right, was = job.train.targets[rows], job.train.inputs_of(rows)
    made = was
    if canary == "unlike":
        made = _unlike(job, rows, was, rng)
        taken = made.to(job.dtype) if made.is_floating_point() else made
        if failures(job.model.evaluated, taken):
            canary, made = "mislabelled", was
    forms = Forms(
        nodes=owners,
        inputs=made,
        targets=mislabel(right, job.loss.name, job.outputs),
        other_inputs=None if zero_out else was,
        other_targets=None if zero_out else right,
    )
    out = torch.from_numpy(~included).to(job.device)
    plan, train = job.plan, in_place(job.train, rows, forms, out)
    if zero_out:
        plan, train = _without(plan, train, rows[out])
    alignment = Alignment(
        job.model,
        job.train,
        rows,
        forms,
        clip_norm=plan.release.clip.norm,
        sign=-1 if job.config.algorithm.definition.releases.falls else 1,
        seed=job.config.train.seed,
        joint=count**2 * plan.parameters * scored < MOST_PRODUCTS,
    )
    looked_at = frozenset(np.linspace(0, ran - 1, scored).astype(int).tolist())
    _train(job, seeded(plan, seed), train, ran, looked_at, context, alignment, colluders, on_step)
    scores = alignment.scores()
    counts = guess(scores, included)
    return OneRun(
        canaries=counts.canaries,
        guesses=counts.guesses,
        correct=counts.correct,
        included=included,
        scores=scores,
        times=2 if relation == ADD_OR_REMOVE_ONE and not zero_out else 1,
        kind=canary,
        stopped_after=None if ran == steps else ran,
    )


def _unlike(job: Job, rows: Tensor, was: Tensor, rng: np.random.Generator) -> Tensor:
    """Inputs of the model that no record has; features of such records where there are features."""
    if job.features is None or job.raw is None:
        return unlike(was, rng, job.config.input_bound)
    features = job.features(unlike(job.raw.inputs_of(rows), rng, None))
    bound = job.config.input_bound
    return features if bound is None else bounded_inputs(features, bound)


def _by_number(job: Job) -> bool:
    """Whether a record that is gone changes how the records after it are treated."""
    chosen = job.config.algorithm
    table = chosen.definition.table(chosen.options)
    return job.model.needs_coins or (table is not None and table.mini_batch is not None)


def _affordable_steps(plan: Plan) -> int:
    """How many steps take some fifteen seconds of one core, by public sizes; at least one."""
    drawn = sum(node.expected_batch for node in plan.nodes) * plan.release.local_steps
    return max(1, int(MOST_NOISE / (plan.parameters * (len(plan.nodes) + GRADIENT_TIME * drawn))))


def choose_rows(
    data: StackedData, nodes: Sequence[int], count: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Rows of the stacked data whose place canaries take, and the nodes that hold them, int64.

    Of each node as many, `count` in all at most, and at most half of a node's records.
    """
    each, rows = -(-count // len(nodes)), []
    for node in nodes:
        size, offset = int(data.sizes[node]), int(data.offsets[node])
        rows.append(offset + np.sort(rng.permutation(size)[: max(0, min(each, size // 2))]))
    owners = np.repeat(np.asarray(nodes, np.int64), [len(part) for part in rows])
    chosen, device = np.concatenate(rows)[: max(0, count)], data.targets.device
    return (
        torch.from_numpy(chosen).to(device),
        torch.from_numpy(owners[: len(chosen)]).to(device),
    )


def in_place(data: StackedData, rows: Tensor, forms: Forms, out: Tensor) -> StackedData:
    """The records with a canary in each of these rows, in its other form where it is `out`.

    Both are of the canaries: `rows` int64 `[m]`, and `out` bool `[m]`. Where canaries have no other
    form, one that is out is there as well.
    """
    targets, inputs = data.targets.clone(), data.inputs.clone()
    targets[rows], inputs[rows] = forms.targets, forms.inputs.to(inputs.dtype)
    if forms.other_inputs is not None and forms.other_targets is not None:
        targets[rows[out]] = forms.other_targets[out]
        inputs[rows[out]] = forms.other_inputs[out]
    return StackedData(inputs, targets, data.offsets, data.sizes)


def _without(plan: Plan, train: StackedData, gone: Tensor) -> tuple[Plan, StackedData]:
    """Plan and records without the rows that are gone; J, rate and denominators are public."""
    keep = torch.ones(len(train.targets), dtype=torch.bool, device=gone.device)
    keep[gone] = False
    owner = torch.repeat_interleave(torch.arange(len(train.sizes), device=gone.device), train.sizes)
    sizes = torch.bincount(owner[keep], minlength=len(train.sizes))
    nodes = tuple(
        replace(node, records=int(size)) for node, size in zip(plan.nodes, sizes, strict=True)
    )
    fewer = StackedData(train.inputs[keep], train.targets[keep], sizes.cumsum(0) - sizes, sizes)
    return replace(plan, nodes=nodes), fewer


def _train(
    job: Job,
    plan: Plan,
    train: StackedData,
    steps: int,
    scored: frozenset[int],
    context: ContextFactory,
    alignment: Alignment,
    colluders: Colluders | None,
    on_step: Callable[[int], None],
) -> None:
    """Train, and hand the releases of some steps on, with the public points where they began."""
    definition, options = job.config.algorithm.definition, job.config.algorithm.options
    exchange = InProcessExchange(
        plan.mixing.weights,
        dtype=job.dtype,
        device=job.device,
        active=plan.release.active,
        rounds=plan.rounds,
    )
    shared = pair_keys_of(plan)
    if shared is not None:
        context = partial(context, pair_keys=shared)
    inner = context(plan, job.model, train, node_keys(plan), exchange)
    start = job.model.start(len(plan.nodes), job.dtype, job.device)
    noise = Pinned(plan.release.algorithm.releases.noise)
    trace = Trace(plan, noise, train.offsets.cpu().numpy(), start.clone())
    watched = recorded(inner, trace)
    state = definition.start(start, options, watched)
    for k in range(steps):
        points = definition.models(state)
        if not definition.releases.models:  # un-noised: a node's own
            points = definition.graph.consensus(points, state)[None]
        points = points.expand(len(plan.nodes), -1).clone()
        trace.forget()
        state = advanced(plan, state, k, watched)
        for release in trace.releases if k in scored else ():
            nodes = torch.tensor(release.nodes, dtype=torch.int64, device=job.device)
            whole = torch.zeros_like(points, dtype=torch.float64)
            whole[nodes] = release.after.double()
            precision = torch.zeros_like(whole[:, 0])
            precision[nodes] = _precision(release).to(job.device)
            if colluders is not None:
                whole, precision = _pooled(plan, release, whole, precision, colluders)
            whole_change = definition.releases.law(options) == "change"
            clip = None if whole_change else plan.release.clip.applied(k)
            alignment.add([points], whole, precision, clip, step=k)
        on_step(k + 1)


def _precision(release: TracedRelease) -> Tensor:
    """One over the variance of the noise in each row, `[rows]`; 0 where there is none."""
    deviations = torch.from_numpy(release.deviations)
    return torch.where(deviations > 0, deviations**-2, 0.0)


def _pooled(
    plan: Plan, release: TracedRelease, whole: Tensor, precision: Tensor, colluders: Colluders
) -> tuple[Tensor, Tensor]:
    """What colluders make of a release: of their node alone, with as much noise as they leave.

    The plan is under seeded noise. `whole` is what all nodes released, `[nodes, d]`, and
    `precision` one over the variance of each node's own noise, `[nodes]`; 0: nothing is known.
    """
    node, nothing = colluders.node, torch.zeros_like(precision)
    estimate = colluders.estimates[release.step]
    if estimate is None or not precision[node] > 0:
        return whole, nothing
    values = (whole * precision.sqrt()[:, None]).cpu().numpy()
    keys = keys_of(colluders, plan)
    found = torch.from_numpy(estimated(values, plan, release, colluders, keys)[0])
    left = estimate.gain / precision[node].sqrt()
    pooled = torch.zeros_like(whole)
    pooled[node] = found.to(whole.device) * left
    nothing[node] = left**-2
    return pooled, nothing
