"""Where a run is measured: what each process knows of its own nodes, and the row made of all.

What is measured on private records never leaves its process: of a run of many, the common
`metrics.jsonl` has none of it, and each process writes its own beside its ledger.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor

from tacit.algorithms.facets import common_mean
from tacit.communication.colours import Private, Released
from tacit.communication.exchange import Exchange
from tacit.errors import PeerError
from tacit.training.job import Job
from tacit.training.run_folder import metrics as measured
from tacit.training.run_folder.metrics import Evaluation

T = TypeVar("T")

_HEAD = 4  # numbers of a vector before those of single nodes
_MOST = 2**53  # of a count: larger ones are not exact in float64


@dataclass(frozen=True)
class Part:
    """What one process says of its nodes at a mark.

    Args:
        bytes_sent: by each of its nodes.
        dropped: rows of bad messages.
        mass: of push-sum, over its nodes; None of a method without.
        equal: whether its nodes have one model.
        spread: sum over its nodes of the squared distance to their mean.
        evaluation: on public test records; None without any.
        total: the sum of its nodes' models, `[d]`; empty where they are not added up, and of a
            process that is gone.
    """

    bytes_sent: tuple[int, ...]
    dropped: int
    mass: float | None
    equal: bool
    spread: float
    evaluation: Evaluation | None
    total: Tensor


@dataclass(frozen=True)
class RunEvaluation:
    """What all nodes came to at a mark.

    Args:
        evaluation: on public test records; None without any. Where nodes' models are private, every
            node has the scores of the common model.
        consensus_distance: root mean square over nodes of the distance to their mean; None where
            models are private, or, across processes, are not added up.
        notes: of bad messages that were dropped, if any were, for people.
        common: the mean of the models of all processes, `[d]` in float64; None where this process
            knows the common model without the others.
    """

    evaluation: Released[Evaluation] | None
    consensus_distance: float | None
    bytes_sent: tuple[int, ...]
    notes: tuple[str, ...] = ()
    common: Tensor | None = None


def measure(
    job: Job, models: Tensor, consensus: Tensor, state: Any, exchange: Exchange, *, whole: bool
) -> Released[Part]:
    """What this process may tell of its nodes.

    Models are `[nodes, d]`, or `[1, d]` where all have the same. Those that are private are not
    looked at: in their place stands the common model `[d]`, `consensus`, as far as this process
    knows it. The exchange has counted bytes, and rows that were bad. With `whole`, scores are of
    all test records, in place of the first.
    """
    count, weights = len(job.hosted), getattr(state, "w", None)
    if not job.config.algorithm.definition.releases.models:
        models = consensus.unsqueeze(0)
    alone, total, spread = job.placement.processes == 1, models.new_empty(0), 0.0
    if alone or models_public(job):
        spread = measured.consensus_distance(models) ** 2 * count
    if models_public(job) and not alone:
        total = models.sum(0) * (count / len(models))
    part = Part(
        bytes_sent=tuple(exchange.bytes_sent.tolist()),
        dropped=sum(exchange.dropped.values()),
        mass=None if weights is None else float(weights.sum()),
        equal=len(models) == 1,
        spread=spread,
        evaluation=_scores(job, models, consensus, whole),
        total=total,
    )
    return Released(part)


def _scores(job: Job, models: Tensor, consensus: Tensor, whole: bool) -> Evaluation | None:
    """Of this process's nodes, `[nodes, d]` or `[1, d]`, and the common model; None: no records."""
    if job.test is None:
        return None
    return measured.evaluate(
        job.model,
        job.loss,
        Released(models),
        Released(consensus),
        job.test,
        None if whole else job.config.train.evaluate_records,
        nodes=len(job.hosted),
        metrics=job.metrics,
    ).value


def numbers_of(job: Job) -> tuple[list[int], int]:
    """How many numbers the part of each rank has as a vector, and how many of these are `total`."""
    measures = 0
    if job.test is not None:
        measures = 1 + (job.loss.accuracy is not None) + len(job.metrics)
    counts = [len(job.placement.hosted(rank)) for rank in range(job.placement.processes)]
    added = job.plan.parameters if models_public(job) else 0
    return [_HEAD + count + measures * (count + 1) + added for count in counts], added


def packed(part: Part) -> Tensor:
    """A part as one vector, float64, in which what is not there is no number."""
    rows = [] if part.evaluation is None else part.evaluation.rows
    mass = math.nan if part.mass is None else part.mass
    head = [part.dropped, mass, part.equal, part.spread, *part.bytes_sent]
    said = torch.tensor([*head, *(value for row in rows for value in row)], dtype=torch.float64)
    return torch.cat([said, part.total.detach().to("cpu", torch.float64)])


def unpacked(vector: Tensor, job: Job, rank: int) -> Part:
    """What such a vector of a rank says; one without `total` is of a process that is gone.

    Raises:
        PeerError: it is no part of its nodes.
    """
    nodes, (due, added) = len(job.placement.hosted(rank)), numbers_of(job)
    said = due[rank] - added
    if len(vector) not in (said, due[rank]):
        raise PeerError(f"rank {rank} sent {len(vector)} metrics, where {due[rank]} were due")
    (dropped, mass, equal, spread, *sent), total = vector[: _HEAD + nodes].tolist(), vector[said:]
    if not all(0 <= value <= _MOST and value.is_integer() for value in (dropped, *sent)):
        raise PeerError(f"rank {rank} sent counts in its metrics that are none")
    if not (math.isnan(mass) or 0 <= mass <= _MOST) or equal not in (0, 1) or spread < 0:
        raise PeerError(f"rank {rank} sent metrics out of their range")
    if not bool(torch.isfinite(total).all()):
        raise PeerError(f"rank {rank} sent metrics with a sum of models that is not finite")
    rows = vector[_HEAD + nodes : said].reshape(-1, nodes + 1).tolist()
    return Part(
        bytes_sent=tuple(map(int, sent)),
        dropped=int(dropped),
        mass=None if math.isnan(mass) else mass,
        equal=bool(equal),
        spread=spread,
        evaluation=Evaluation(tuple(map(tuple, rows)), len(job.metrics)) if rows else None,
        total=total,
    )


def of_server(job: Job, own: Part, rank: int) -> Part:
    """The part of a process that has never come: of the server's model, which is every node's."""
    nodes, found = len(job.placement.hosted(rank)), own.evaluation
    if found is not None:
        found = replace(found, rows=tuple((*row[:1] * nodes, row[-1]) for row in found.rows))
    no_models = own.total.new_empty(0)
    return replace(own, bytes_sent=(0,) * nodes, dropped=0, evaluation=found, total=no_models)


def augmented_lagrangian(job: Job, state: Any) -> Private[float | None]:
    """That of this process's nodes, over all their records; None of a method without duals.

    It reads private records, and models that were never noised: for the eyes of the nodes.
    """
    chosen = job.config.algorithm
    if chosen.definition.primal_dual is None:
        return Private(None)
    made, train = chosen.definition.primal_dual(state, chosen.options), job.train
    ends = zip(train.offsets.tolist(), train.sizes.tolist(), strict=True)
    losses = []
    for model, (first, size) in zip(made.models, ends, strict=True):
        rows = torch.arange(first, first + size, device=train.targets.device)
        outputs = job.model.outputs(model.to(job.dtype).unsqueeze(0), train.inputs_of(rows))[0]
        losses.append(job.loss.per_record(outputs, train.targets[rows]).double().mean())
    return Private(made.terms(torch.stack(losses), len(job.plan.nodes)))


def combined(job: Job, parts: Sequence[Part], *, whole: bool) -> RunEvaluation:
    """What all processes' parts come to; in the process that writes them down."""
    every = [node for rank in range(len(parts)) for node in job.placement.hosted(rank)]

    def by_node(values: Iterable[Sequence[T]]) -> tuple[T, ...]:
        found = dict(zip(every, chain.from_iterable(values), strict=True))
        return tuple(found[node] for node in sorted(found))

    common, own, distance = None, parts[0].evaluation, None
    if job.config.algorithm.definition.releases.models:
        distance = math.sqrt(parts[0].spread / len(job.hosted))
    if len(parts) > 1:
        equal = distance is not None and all(part.equal for part in parts)
        distance = 0.0 if equal else None
        if models_public(job):
            distance, common = _around(parts)
            model = common.to(job.device, job.dtype)
            own = _scores(job, model.unsqueeze(0), model, whole)
    sent, notes = by_node([part.bytes_sent for part in parts]), _notes(job, parts)
    if own is None:
        return RunEvaluation(None, distance, sent, notes, common)
    scores = [part.evaluation.rows for part in parts if part.evaluation is not None]
    rows = tuple(
        (*by_node([theirs[m][:-1] for theirs in scores]), row[-1]) for m, row in enumerate(own.rows)
    )
    evaluation = replace(own, rows=rows)
    return RunEvaluation(Released(evaluation), distance, sent, notes, common)


def consensus_of(job: Job, models: Tensor, state: Any) -> Tensor:
    """The common model `[d]` as far as this process knows it: of its own nodes, or the server's."""
    common: Tensor = job.config.algorithm.definition.graph.consensus(models, state)
    return common


def models_public(job: Job) -> bool:
    """Whether nodes' models are added up: they are where their mean is the common model."""
    return job.config.algorithm.definition.graph.consensus is common_mean


def _around(parts: Sequence[Part]) -> tuple[float, Tensor]:
    here = [part for part in parts if len(part.total)]  # of those that are not gone
    counts = [len(part.bytes_sent) for part in here]
    every = sum(counts)
    means = [part.total.double() / count for part, count in zip(here, counts, strict=True)]
    mean = torch.stack([m * c for m, c in zip(means, counts, strict=True)]).sum(0) / every
    between = [
        count * float((own - mean).square().sum()) for own, count in zip(means, counts, strict=True)
    ]
    within = [part.spread for part in here]
    return math.sqrt(sum([*between, *within]) / every), mean  # of what is huge, infinity


def _notes(job: Job, parts: Sequence[Part]) -> tuple[str, ...]:
    dropped = sum(part.dropped for part in parts)
    masses = [part.mass for part in parts if part.mass is not None]
    if not dropped:
        return ()
    note = f"rows of bad messages that were dropped: {dropped:,}"
    if job.plan.release.pairs is not None:
        note += " (noise of pairs that was in them is left in the mean; privacy stands)"
    if len(masses) < len(parts):
        return (note,)
    every = len(job.plan.nodes)
    return (f"{note}; the push-sum mass is {math.fsum(masses):.6g} of {every} since",)


def share_of(steps: int, parts: int) -> int:
    """Steps between two of about `parts` events."""
    return max(1, -(-steps // parts))
