"""One full training with many canaries: real records with a wrong label, each in by a fair coin.

Steinke, Nasr and Jagielski (2023): the coins are independent, so that a single run tests as many
guesses as it has canaries, on the experiment's own task, model and data. Every node's canaries
are guessed from all that is sent; the transcript of all nodes together is as private for each
record as that record's node is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.analysis.audit.bounds import one_run_epsilon
from tacit.analysis.audit.harness import (
    ContextFactory,
    RecordingExchange,
    Transcript,
    noised_gradients,
    seeded,
)
from tacit.communication.exchange import InProcessExchange
from tacit.data import StackedData
from tacit.errors import InputError
from tacit.privacy import ADD_OR_REMOVE_ONE, Relation
from tacit.training.budget import node_keys
from tacit.training.plan import Plan
from tacit.training.prepare import Job

__all__ = ["GUESSED_SHARE", "OneRun", "mislabel", "run_once"]

GUESSED_SHARE = 0.2
"""Of the canaries that are guessed; the least certain others are abstained from."""

CHUNK = 2_000_000  # numbers of the canaries' gradients that are taken at a time
MOST_NUMBERS = 2**28  # of all nodes' models at all steps: kept four times, once in float64


@dataclass(frozen=True)
class OneRun:
    """What one training gave away.

    Args:
        canaries: m, over all audited nodes.
        guesses: r, fixed beforehand.
        correct: v.
        included: bool `[m]`, the coins.
        scores: `[m]`, larger where the transcript speaks for the canary.
    """

    canaries: int
    guesses: int
    correct: int
    included: NDArray[np.bool_]
    scores: NDArray[np.float64]

    def epsilon(self, *, delta: float, confidence: float) -> float:
        """The epsilon that this run refutes; see `bounds.one_run_epsilon`."""
        return one_run_epsilon(
            canaries=self.canaries,
            guesses=self.guesses,
            correct=self.correct,
            delta=delta,
            confidence=confidence,
        )


@dataclass(frozen=True)
class _Canaries:
    """Whose records are canaries, and which of them are in.

    Args:
        rows: int64 `[m]`, the canaries' rows in the stacked data.
        owners: int64 `[m]`, the nodes they belong to.
        included: bool `[m]`.
    """

    rows: Tensor
    owners: Tensor
    included: NDArray[np.bool_]


def mislabel(targets: Tensor, loss: str, outputs: int) -> Tensor:
    """Wrong targets for the right ones: the next class, or the opposite number."""
    if loss == "logistic":  # of two classes, numbered -1 and 1 or 0 and 1: a loss takes both
        return torch.where(targets > 0, -1, 1).to(targets.dtype)
    numbers = targets.is_floating_point() or bool((targets < 0).any())
    if loss == "mse" or (numbers and loss != "cross-entropy"):
        return -targets
    return (targets + 1) % max(2, outputs)


def run_once(
    job: Job,
    *,
    nodes: tuple[int, ...],
    steps: int,
    relation: Relation,
    canaries: int,
    seed: int,
    context: ContextFactory,
    on_step: Callable[[int], None] = lambda k: None,
) -> OneRun:
    """Train once with canaries, and guess the coins.

    Under add-or-remove-one a canary that is out is not there, with J, rate and denominator as
    they were; under replace-one the record has its own, right label instead.

    Args:
        job: the experiment.
        nodes: whose records are audited.
        steps: how many steps to run.
        relation: of neighbouring data sets.
        canaries: at most so many in all, and at most half of a node's records.
        seed: of coins and noise.
        context: what executes a step.
        on_step: called with every step done.

    Raises:
        InputError: all that is sent in so many steps would not fit the memory; the model has
            dropout.
    """
    if job.model.drops:
        raise InputError(
            "canaries",
            canaries,
            "must be 0 for a model with dropout: its masks go by the numbers of the records, which "
            "a training without some of them changes",
        )
    numbers = steps * len(job.plan.nodes) * job.plan.parameters
    if numbers > MOST_NUMBERS:
        raise InputError(
            "canaries",
            canaries,
            f"one training of {steps} steps keeps {numbers:.3g} numbers four times over, and "
            f"{MOST_NUMBERS:.3g} is the most: run fewer steps, or 0 canaries",
        )
    rng = np.random.default_rng(seed)
    selection = _choose_canaries(job, nodes, canaries, rng)
    wrong = mislabel(job.train.targets[selection.rows], job.loss.name, job.outputs)
    zero_out = relation == ADD_OR_REMOVE_ONE
    out = torch.from_numpy(~selection.included).to(job.device)
    targets = job.train.targets.clone()
    targets[selection.rows] = wrong
    if not zero_out:
        targets[selection.rows[out]] = job.train.targets[selection.rows[out]]
    gone = selection.rows[out] if zero_out else selection.rows[:0]
    plan, train = _without(job.plan, replace(job.train, targets=targets), gone)
    models, noised = _train(job, seeded(plan, seed), train, steps, context, on_step)
    known = torch.ones(len(targets), dtype=torch.bool, device=job.device)
    known[selection.rows] = False
    scores = _scores(job, selection, wrong, known, models, noised, replaced=not zero_out)
    guesses = max(1, int(GUESSED_SHARE * len(scores)))
    # The highest are guessed in and the lowest out, half of them each.
    order = np.argsort(scores, kind="stable")
    lowest, highest = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
    included = selection.included
    return OneRun(
        canaries=len(scores),
        guesses=guesses,
        correct=int((~included[lowest]).sum() + included[highest].sum()),
        included=included,
        scores=scores,
    )


def _choose_canaries(
    job: Job, nodes: tuple[int, ...], canaries: int, rng: np.random.Generator
) -> _Canaries:
    each = -(-canaries // len(nodes))
    rows, owners = [], []
    for node in nodes:
        size, offset = int(job.train.sizes[node]), int(job.train.offsets[node])
        chosen = np.sort(rng.permutation(size)[: min(each, size // 2)])
        rows.append(offset + chosen)
        owners.append(np.full(len(chosen), node))
    chosen_rows = np.concatenate(rows)[:canaries]
    return _Canaries(
        torch.from_numpy(chosen_rows).to(job.device),
        torch.from_numpy(np.concatenate(owners)[:canaries]).to(job.device),
        rng.random(len(chosen_rows)) < 0.5,
    )


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
    context: ContextFactory,
    on_step: Callable[[int], None],
) -> tuple[list[Tensor], Tensor]:
    """Public values of the training: models z_k and noised means, `[steps, nodes, d]` each."""
    algorithm, options = job.config.algorithm.definition, job.config.algorithm.options

    def exchange() -> InProcessExchange:
        return InProcessExchange(
            plan.mixing.weights, dtype=job.dtype, device=job.device, active=plan.release.active
        )

    recorder = RecordingExchange(exchange())
    step_context = context(plan, job.model, train, node_keys(plan), recorder)
    start = job.model.start(len(plan.nodes), job.dtype, job.device)
    state, models = algorithm.start(start.clone(), options, step_context), []
    for k in range(steps):
        models.append(algorithm.models(state).clone())
        state = algorithm.step(state, k, options, step_context)
        on_step(k + 1)
    algorithm.mix(state, steps, step_context)
    transcript = Transcript(start, recorder.sent, options, plan.steps, exchange())
    return models, noised_gradients(algorithm, transcript)


def _scores(
    job: Job,
    selection: _Canaries,
    wrong: Tensor,
    known: Tensor,
    models: Sequence[Tensor],
    noised: Tensor,
    *,
    replaced: bool,
) -> NDArray[np.float64]:
    """Log-likelihood slope of each canary, what all other records are expected to add removed.

    Under replace-one the canary's alternative is the same record with its right label.
    """
    plan, owners = job.plan, selection.owners
    inputs, right = job.train.inputs_of(selection.rows), job.train.targets[selection.rows]
    scores = torch.zeros(len(owners), dtype=torch.float64, device=job.device)
    rates = scores.new_tensor([node.rate for node in plan.nodes])[:, None]
    batches = scores.new_tensor([node.expected_batch for node in plan.nodes])[:, None]
    parts = torch.split(torch.arange(len(owners), device=job.device), 1 + CHUNK // plan.parameters)
    for k, at in enumerate(models):
        clip = plan.release.clip.bound(k)
        stds = scores.new_tensor([plan.release.noise_std(node, k) for node in plan.nodes])[:, None]
        rest = noised[k] * batches - rates * _crowd(job, known, at, clip)
        for part in parts:
            node = owners[part]
            own = _each(job, at[node], inputs[part], wrong[part], clip)
            other = torch.zeros_like(own)
            if replaced:
                other = _each(job, at[node], inputs[part], right[part], clip)
            centred = rest[node] - rates[node] * 0.5 * (own + other)
            weight = (rates / stds**2)[node]
            scores[part] += (weight * centred * (own - other)).sum(1)
    return scores.cpu().numpy()


def _each(job: Job, models: Tensor, inputs: Tensor, targets: Tensor, clip: float | None) -> Tensor:
    """The clipped gradient of each record at its own model, float64 `[records, d]`."""
    mask = torch.ones(len(models), 1, dtype=torch.bool, device=job.device)
    norm = job.plan.release.clip.norm
    gradient = job.model.gradient(models, inputs[:, None], targets[:, None], mask, clip, norm=norm)
    return gradient.total.double()


def _crowd(job: Job, known: Tensor, models: Tensor, clip: float | None) -> Tensor:
    """Every node's sum of the clipped gradients of the records that are no canaries."""
    data = job.train
    width = int(data.sizes.max())
    columns = torch.arange(width, device=job.device)
    present = columns < data.sizes[:, None]
    indices = columns.expand(len(data.sizes), width).where(present, columns.new_zeros(()))
    mask = present & known[data.offsets[:, None] + indices]
    inputs, targets = data.gather(indices)
    norm = job.plan.release.clip.norm
    return job.model.gradient(models, inputs, targets, mask, clip, norm=norm).total
