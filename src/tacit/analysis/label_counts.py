"""How many records of each class there are, measured privately and charged to the data's budget.

Class weights are public: they are part of the experiment. Where nobody can declare how rare a
class is, it is measured here, once, before training, and the measurement is a release like any
other. It is stated as a plan of one step, so that accountant, ledgers and noise are those of a run.

A cell is a class: mechanism, relation, trust model and proof are those of
`tacit.training.noised_counts`. The totals and the weights are post-processing of what was released.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit.communication.peers import ALONE, Peers
from tacit.config import Config, load_config
from tacit.data import Schema, StackedData
from tacit.errors import InputError, RecordsError
from tacit.gradients import Loss
from tacit.models.architectures import find_loss
from tacit.report.view import Block, Table, Text
from tacit.report.wording import epsilon_text
from tacit.training.noised_counts import check_counted, counted_once, placed
from tacit.training.records import TrainingRecords, load_records, node_names, node_records, own_path


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
