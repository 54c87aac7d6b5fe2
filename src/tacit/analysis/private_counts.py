"""Counts of records under noise, charged to the budgets of the data: of classes, and of scores.

Mechanism, relation, trust model and sensitivity are those of `tacit.training.noised_counts`. A
count is stated as a plan of one step, so that accountant, ledgers and noise are those of a run. All
that is said beside the counts is post-processing of what was released.

*Labels.* Class weights are public: they are part of the experiment. Where nobody can declare how
rare a class is, it is measured once, before training. A cell is a class.

*Scores* say how good a run's model is over sites. A cell is a group, a class and a bin of what the
model says: of two classes the log-odds of class 1, between public edges of which 0 (a probability
of a half) is one; of more, the predicted class. Proof: `docs/proofs/scores.md`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, logit
from torch import Tensor

from tacit.communication.peers import ALONE, Peers
from tacit.config import Config, load_config
from tacit.data import Schema, StackedData
from tacit.data.tables.groups import groups_by
from tacit.errors import InputError, RecordsError
from tacit.gradients import Loss
from tacit.models.architectures import find_loss
from tacit.models.probabilities import log_odds
from tacit.report.view import Block, Table, Text
from tacit.report.wording import epsilon_text
from tacit.training.noised_counts import check_counted, counted_once, placed
from tacit.training.recalibration import edges_of
from tacit.training.records import TrainingRecords, load_records, node_names, node_records, own_path
from tacit.training.run_folder.predictor import Predictor, load_predictor


@dataclass(frozen=True)
class LabelCounts:
    """Noised counts of labels, and the weights that make all classes count alike.

    `counts` are of all nodes together, one a class; noised, so they may be negative. `noise_std` is
    the standard deviation of the noise in each of them. `class_weights` are what
    `[task].class_weights` may say: records over classes and count, where no count is taken as lower
    than the noise. `nodes` are the noised counts of each node, `[nodes][classes]`. `epsilon` is
    certified: what the release by itself costs each node, at its `delta`.
    """

    counts: tuple[float, ...]
    noise_std: float
    class_weights: tuple[float, ...]
    nodes: tuple[tuple[float, ...], ...]
    epsilon: tuple[float, ...]
    delta: tuple[float, ...]


def count_labels(
    config: str | Path | Mapping[str, Any] | Config,
    epsilon: float,
    *,
    nodes: Any = None,
    schema: str | Path | Mapping[str, Any] | Schema | None = None,
    peers: Peers = ALONE,
) -> LabelCounts:
    """Count the labels of every node under noise, charged to the budgets of their data.

    The release may cost each node `epsilon`, at the experiment's `privacy.delta` and under its
    `privacy.relation`; its `privacy.ledger` keeps the budgets. Experiment, the nodes' records (by
    default `[task].dataset` is loaded) and the schema of frames are as for `tacit.train`. Among
    `peers`, each process counts the labels of its own nodes.

    Raises:
        InputError: no ledger is named, the targets are no class labels, or nothing public says how
            many classes there are.
        BudgetError: the budget of a node's data does not cover it.
        PeerError: another process was lost, or sent what cannot be added up.
    """
    counted = read_counted(config, nodes, schema, peers)
    labels, classes = counted.labels, counted.classes
    plan, rows = counted_once(counted.config, epsilon, counted.loaded.train, labels, classes, peers)
    # Totals and weights are functions of what was released.
    totals = [math.fsum(column) for column in zip(*rows, strict=True)]
    noise = math.sqrt(math.fsum(plan.release.noise_std(node, 0) ** 2 for node in plan.nodes))
    taken = [max(total, noise, 1.0) for total in totals]
    weights = [math.fsum(taken) / (len(taken) * count) for count in taken]
    return LabelCounts(
        counts=tuple(totals),
        noise_std=noise,
        class_weights=tuple(float(f"{weight:.3g}") for weight in weights),
        nodes=tuple(map(tuple, rows)),
        epsilon=tuple(node.epsilon or 0.0 for node in plan.nodes),
        delta=tuple(node.delta or 0.0 for node in plan.nodes),
    )


@dataclass(frozen=True)
class Counted:
    """What is counted: an experiment, the records of this process's nodes, and their classes.

    `labels` are of every row, int64 `[rows]`, 0 to `classes` - 1.
    """

    config: Config
    loaded: TrainingRecords
    classes: int
    labels: Tensor


def read_counted(
    config: str | Path | Mapping[str, Any] | Config,
    nodes: Any,
    schema: str | Path | Mapping[str, Any] | Schema | None,
    peers: Peers,
    held_out: str | None = None,
) -> Counted:
    """Read what is counted; arguments and errors are as for `count_labels`.

    `held_out` names a table of other records that are read in place of those of training.
    """
    nodes, declared, names = node_records(nodes, schema)
    config = load_config(
        config,
        count=None if nodes is None else len(nodes),
        names=names,
        loss=None if declared is None else declared.target.loss,
    )
    check_counted(config)
    if held_out is not None and config.nodes.data == "by-rank":
        config = config.with_keys(nodes={"source": own_path(held_out)})
    elif held_out is not None:
        config = config.with_keys(task={"dataset": held_out, "test_share": None})
    placement = placed(config, peers)
    hosted = placement.hosted(peers.rank)
    cpu = torch.device("cpu")
    records = load_records(config, nodes, None, declared, torch.float64, cpu, hosted)
    config = config.with_names(node_names(records.names, placement, peers))
    public = None if records.test is None else records.test.targets
    loss = find_loss(config.task.loss)
    classes = _class_count(config, loss, public, records.classes)
    return Counted(config, records, classes, _labels(records.train, loss, classes, hosted))


def _class_count(config: Config, loss: Loss, public: Tensor | None, declared: int | None) -> int:
    """How many classes there are, going by what is public alone."""
    if loss.formula == "logistic":
        return 2
    if loss.formula != "cross-entropy":
        expected = "counts class labels: this needs the loss 'cross-entropy' or 'logistic'"
        raise InputError("task.loss", loss.name, expected)
    targets = torch.zeros(0, dtype=torch.int64) if public is None else public
    count = config.task.outputs or loss.outputs(targets, declared)
    if count is None:
        expected = (
            "write how many classes there are, such as task.outputs = 10: nothing public says"
        )
        raise InputError("task.outputs", None, expected)
    return count


def _labels(train: StackedData, loss: Loss, classes: int, hosted: Sequence[int]) -> Tensor:
    """The class of every record, int64 `[records]`; a logistic loss has -1 or 0, and 1."""
    targets = train.targets
    one = targets.shape[1:].numel() == 1
    if loss.formula == "logistic" and one:
        labels = (targets.reshape(-1) > 0).long()
        wrong = ~((targets == 1) | (targets == 0) | (targets == -1)).reshape(-1)
    elif targets.is_floating_point() or targets.ndim != 1:
        raise InputError(
            "task.dataset",
            f"targets {list(targets.shape[1:])} of {targets.dtype}",
            "must be one integer class label a record",
        )
    else:
        labels, wrong = targets, (targets < 0) | (targets >= classes)
    sizes = train.sizes.tolist()
    for node, own in zip(hosted, torch.split(wrong, sizes), strict=True):
        if bool(own.any()):
            rule = f"labels must be 0 to {classes - 1} ({classes} classes)"
            count = f"{int(own.sum()):,} of {len(own):,} records"
            raise RecordsError(f"task.dataset of node {node}", count, rule)
    return labels.cpu()


def label_blocks(counted: LabelCounts) -> list[Block]:
    """The counts for people, with the line that an experiment file takes."""
    every = math.fsum(max(count, 0.0) for count in counted.counts)
    pairs = enumerate(zip(counted.counts, counted.class_weights, strict=True))
    rows = [
        (
            str(label),
            f"{count:,.0f}",
            f"{max(count, 0.0) / every:.1%}" if every else "not known",
            f"{weight:g}",
        )
        for label, (count, weight) in pairs
    ]
    weights = ", ".join(f"{weight:g}" for weight in counted.class_weights)
    spent = epsilon_text(max(counted.epsilon))
    drowned = sum(count < 2 * counted.noise_std for count in counted.counts)
    little = (
        f"Of the counts, {drowned} are less than twice that, so these weights say little. "
        "A larger --epsilon lowers the noise."
    )
    lines = [
        f"The noise in each count has a standard deviation of {counted.noise_std:,.0f} records.",
        *([little] if drowned else []),
        f"It cost every node an epsilon of at most {spent}, which its ledger has charged.",
        "Write this into the section [task] of the experiment file:",
        f"class_weights = [{weights}]",
    ]
    table = Table(("class", "noised count", "share", "weight"), rows)
    return [table, *(Text(line, unbroken=True) for line in lines)]


# Scores of a model.


Array = NDArray[np.float64]
_FIXED = (0.01, 0.03, 0.07, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95)  # where no public record says better
_FEW = 100  # public records, too few for quantiles
_MOST_CELLS = 10_000
_DROWNED = 3.0  # deviations: a total that is lower says nothing
SCORES = ("accuracy", "sensitivity", "specificity", "prevalence", "auc")


@dataclass(frozen=True)
class NoisedScore:
    """A score and the deviation that the noise gives it, at most; None where noise drowns it."""

    value: float | None
    deviation: float | None


@dataclass(frozen=True)
class PartScores:
    """Of some records: a node's, a group's, or all, `of` whom it says.

    `records` are how many, under noise of deviation `noise_std` in each count. `confusion` are
    counts, `[true class][predicted class]`. Of the scores, `auc` counts records of one bin as ties,
    and `auc_within` is how far the area without bins may lie from it, beside the noise.
    `calibration` has of each bin its lowest and highest probability, records, and the share of
    class 1 among them.
    """

    of: str
    records: float
    noise_std: float
    confusion: tuple[tuple[float, ...], ...]
    scores: dict[str, NoisedScore]
    auc_within: float | None
    calibration: tuple[tuple[float, float, float, NoisedScore], ...]


@dataclass(frozen=True)
class NoisedScores:
    """What was released of a model's scores, and what follows from it.

    `model` is the digest of its parameters, and `records` are "training" or "held out". `edges` are
    probabilities of class 1 between bins; none of more than two classes. `groups` are by name; one
    without a name where nobody asked for groups. `noise_std` is in each count of a node, and
    `counts` are `[nodes][groups][classes][bins]`. `parts` are of all records, of each node, and of
    each group. `epsilon` is certified: what the release by itself costs each node, at its `delta`.
    """

    model: str
    records: str
    edges: tuple[float, ...]
    groups: tuple[str, ...]
    noise_std: tuple[float, ...]
    counts: tuple[Any, ...]
    parts: tuple[PartScores, ...]
    epsilon: tuple[float, ...]
    delta: tuple[float, ...]


def noised_scores(
    config: str | Path | Mapping[str, Any] | Config,
    run: str | Path,
    epsilon: float,
    *,
    held_out: str | None = None,
    by: str | None = None,
    nodes: Any = None,
    schema: str | Path | Mapping[str, Any] | Schema | None = None,
    trust: bool = False,
    peers: Peers = ALONE,
) -> NoisedScores:
    """Score the model of a run folder on the nodes' records, charged to the budgets of these.

    The records are those that the experiment trains on, or `held_out` in their place, a table of
    the same columns that is named as `[task].dataset` or `nodes.source` is. `by` is a declared
    column. All else is as for `tacit.count_labels`; `trust` is as in `tacit.load_model`.

    Raises:
        InputError: no ledger is named, the targets are no class labels, processes have other models
            or count other things, or the model takes other records.
        BudgetError: the budget of a node's data does not cover it.
        PeerError: another process was lost, or sent what cannot be added up.
    """
    predictor = load_predictor(run, trust=trust)
    counted = read_counted(config, nodes, schema, peers, held_out)
    loaded, classes, train = counted.loaded, counted.classes, counted.loaded.train
    own, used = predictor.schema, loaded.schema
    if (own is None) != (used is None) or (own and used and own.digest != used.digest):
        expected = "was trained by another schema than that by which these records are read"
        raise InputError("RUN", "schema.toml", expected)
    groups = groups_by(used, by)
    outputs = predictor.outputs_of_rows(train.inputs, train.packed, alone=True)
    if outputs.ndim > 2 or (
        outputs.shape[1:].numel() not in ((1, 2) if classes == 2 else (classes,))
    ):
        found = f"outputs {list(outputs.shape[1:])}"
        raise InputError("RUN", found, f"its model must tell {classes} classes apart")
    edges, test = public_edges(None), loaded.test
    if classes > 2:
        edges = ()
    elif test is not None:
        edges = public_edges(log_odds(predictor.outputs_of_rows(test.inputs, test.packed)))
    count = len(groups.names)
    shape = (count, classes, len(edges) + 1 if classes == 2 else classes)
    if (width := math.prod(shape)) > _MOST_CELLS:
        raise InputError("--by", by, f"makes {width} cells, and {_MOST_CELLS} can be")
    cells = cells_of(outputs, counted.labels, groups.of(train.inputs), edges, shape)
    agreed = {
        "scores.model": _digest(predictor),
        "scores.records": "training" if held_out is None else "held out",
        "scores.bins": hashlib.blake2b(repr(edges).encode(), digest_size=16).hexdigest(),
        "scores.by": by or "none",
        "scores.schema": "none" if used is None else used.digest,
    }
    plan, rows = counted_once(counted.config, epsilon, train, cells, width, peers, agreed)
    counts = np.array(rows).reshape(len(rows), *shape)
    stds = [plan.release.noise_std(node, 0) for node in plan.nodes]
    bins = tuple(float(f"{expit(edge):.6g}") for edge in edges)
    sites = counted.config.nodes.names or [f"node {node}" for node in range(len(rows))]
    every = math.hypot(*stds)
    parts = [part_scores("all", counts.sum((0, 1)), every, count, bins)]
    if len(rows) > 1:
        each = zip(sites, counts, stds, strict=True)
        parts += [part_scores(name, own.sum(0), std, count, bins) for name, own, std in each]
    if by is not None:
        whole = zip(groups.names, counts.sum(0), strict=True)
        parts += [part_scores(f"{by}: {name}", own, every, 1, bins) for name, own in whole]
    return NoisedScores(
        model=agreed["scores.model"],
        records=agreed["scores.records"],
        edges=bins,
        groups=groups.names,
        noise_std=tuple(stds),
        counts=tuple(counts.tolist()),
        parts=tuple(parts),
        epsilon=tuple(node.epsilon or 0.0 for node in plan.nodes),
        delta=tuple(node.delta or 0.0 for node in plan.nodes),
    )


def _digest(predictor: Predictor) -> str:
    """Tells one model from another: of all its parameters and buffers."""
    whole = hashlib.blake2b(digest_size=16)
    for name, tensor in predictor.module.state_dict().items():
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        whole.update(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy())
    return whole.hexdigest()


def public_edges(odds: Array | None) -> tuple[float, ...]:
    """Log-odds between bins, ascending, 0 among them: of public records their quantiles.

    They are rounded, so that sites whose machines round differently have the same ones.
    """
    known = np.zeros(0) if odds is None else odds[np.isfinite(odds)]
    found = edges_of(known) if len(known) >= _FEW else logit(np.array(_FIXED))
    return tuple(np.unique(np.append(np.round(found, 2) + 0.0, 0.0)).tolist())


def cells_of(
    outputs: Tensor,
    labels: Tensor,
    groups: Tensor,
    edges: Sequence[float],
    shape: tuple[int, int, int],
) -> Tensor:
    """The one cell of every record, int64 `[records]`, of `shape` (groups, classes, bins).

    Outputs that are no numbers are of the last bin, or of one of the classes.
    """
    if shape[1] == 2:
        said = torch.from_numpy(np.searchsorted(np.array(edges), log_odds(outputs)))
    else:
        said = outputs.argmax(1).cpu()
    return (groups.cpu() * shape[1] + labels) * shape[2] + said


def part_scores(
    of: str, counts: Array, each: float, groups: int, edges: Sequence[float]
) -> PartScores:
    """Scores of noised counts `[classes, bins]`.

    Each is a sum of so many `groups`' counts, with noise of deviation `each` in every one.
    """
    std, classes = each * math.sqrt(groups), len(counts)
    bins, total = counts.shape[1], float(counts.sum())
    auc, within = NoisedScore(None, None), None
    scores: dict[str, NoisedScore] = {}
    calibration = []
    half = edges.index(0.5) + 1 if classes == 2 else 0  # bins below a half
    if classes == 2:
        no, yes = counts
        below, above = (part.sum(1) for part in (counts[:, :half], counts[:, half:]))
        confusion = np.stack([below, above], 1)
        right = (below[0] + above[1], bins)
        scores["sensitivity"] = _share(above[1], yes.sum(), bins - half, half, std)
        scores["specificity"] = _share(below[0], no.sum(), half, bins - half, std)
        scores["prevalence"] = _share(yes.sum(), total, bins, bins, std)
        auc, within = _auc(no, yes, std)
        ends = [0.0, *edges, 1.0]
        for k in range(bins):
            inside = no[k] + yes[k]
            share = _share(yes[k], inside, 1, 1, std)
            calibration.append((ends[k], ends[k + 1], float(inside), share))
    else:
        confusion, right = counts, (np.trace(counts), classes)
    accuracy = _share(right[0], total, right[1], classes * bins - right[1], std)
    scores = {"accuracy": accuracy, **scores}
    if classes == 2:
        scores["auc"] = auc
    table = tuple(tuple(map(float, row)) for row in confusion)
    return PartScores(of, total, std, table, scores, within, tuple(calibration))


def _share(inside: float, of: float, cells: int, others: int, std: float) -> NoisedScore:
    """A share of counts with noise in each: `cells` of them inside, and so many others.

    With inside = a + e and of = b + f, where e and f are the noise, the error is exactly
    (e - (a / b) f) / of. Its numerator is normal, and of a variance that is convex in a / b: at
    most that at 0 or at 1.
    """
    if of <= _DROWNED * std * math.sqrt(cells + others):
        return NoisedScore(None, None)
    deviation = std * math.sqrt(max(cells, others)) / of
    return NoisedScore(min(max(float(inside / of), 0.0), 1.0), float(deviation))


def _auc(no: Array, yes: Array, std: float) -> tuple[NoisedScore, float | None]:
    """The area by bins of ascending odds, its deviation, and what bins may hide.

    With M[b, c] = 1 for c < b and a half for c = b, and noised counts p and n, the error of
    A = p M n / (sum p sum n) is (e K n + p K f - e K f) / (sum p sum n), where K = M - A and e and
    f are the noise. The expectation of the deviation's square is at least the error's variance,
    but for what A itself is off by.
    """
    bins = len(no)
    outside, inside = float(no.sum()), float(yes.sum())
    if min(outside, inside) <= _DROWNED * std * math.sqrt(bins):
        return NoisedScore(None, None), None
    pairs = outside * inside
    order = np.tril(np.ones((bins, bins)), -1) + np.eye(bins) / 2
    area = min(max(float(yes @ order @ no) / pairs, 0.0), 1.0)
    kept = order - area
    spread = std * math.hypot(np.linalg.norm(kept @ no), np.linalg.norm(yes @ kept))
    hidden = float(np.maximum(yes, 0) @ np.maximum(no, 0)) / 2 / pairs
    return NoisedScore(area, float(spread / pairs)), hidden


def score_blocks(found: NoisedScores) -> list[Block]:
    """The scores for people."""
    columns = [name for name in SCORES if name in found.parts[0].scores]
    rows = [
        (part.of, f"{part.records:,.0f}", *(_plus(part.scores[name]) for name in columns))
        for part in found.parts
    ]
    blocks: list[Block] = [Table(("records of", "noised count", *columns), rows)]
    first = found.parts[0]
    if first.calibration:
        cells = [
            (f"{low:.2%} to {high:.2%}", f"{records:,.0f}", _plus(share))
            for low, high, records, share in first.calibration
        ]
        heads = ("probability of class 1", "noised count", "share of class 1")
        blocks.append(Table(heads, cells, title="calibration, all records"))
    spent = epsilon_text(max(found.epsilon))
    lines = [
        "Behind +- stand two standard deviations of the noise alone; - is what the noise drowns.",
        *(
            [f"The AUC counts records of one bin as ties: without bins it is within {own:.3f}."]
            if (own := first.auc_within) is not None
            else []
        ),
        *(
            ["These are the records that the model was trained on: on others it is less good."]
            if found.records == "training"
            else []
        ),
        f"It cost every node an epsilon of at most {spent}, which its ledger has charged.",
    ]
    return [*blocks, *(Text(line) for line in lines)]


def _plus(estimate: NoisedScore) -> str:
    if estimate.value is None or estimate.deviation is None:
        return "-"
    return f"{estimate.value:.3f} +- {2 * estimate.deviation:.3f}"
