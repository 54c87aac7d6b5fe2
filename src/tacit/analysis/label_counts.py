"""How many records of each class there are, measured privately and charged to the data's budget.

Class weights are public: they are part of the experiment. Where nobody can declare how rare a
class is, it is measured here, once, before training, and the measurement is a release like any
other. It is stated as a plan of one step, so that accountant, ledgers and noise are those of a run:

*Mechanism.* Each node releases c_i + Normal(0, s_i^2 I), where c_i `[classes]` counts its labels
and s_i is the standard deviation of the noise in that sum. *Sensitivity.* A record adds a one to
one count, so with or without it c_i differs by 1 in the l2 norm, which is the plan's clipping
bound; by `replace-one` it differs by sqrt(2) at most, and the plan accounts 2. A unit of
`privacy.unit` adds one for each of its rows, of which no more than `privacy.unit_rows` = m are
kept, a choice among the unit's rows alone: it adds a vector of whole numbers whose sum is at most
m, so its l2 norm, at most the sum, is at most m (attained where all rows have one label), and two
units in each other's place differ by 2 m at most (sqrt(2) m is attained). Counts are whole
numbers below 2^53 in float64, so no sum is rounded. *Theorem.* The Gaussian mechanism on a public
lattice, as for a gradient (`docs/proofs/finite-arithmetic.md`). *Trust model.* That of the
experiment: everyone sees the noised counts of every node, or the server does. *What follows*, the
totals and the weights, is post-processing of what was released.

The budget is that of the data (`privacy.ledger`), which training draws on afterwards: without one,
two releases about the same records would each claim to be the only one, and this is refused.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit.algorithms import plain_method
from tacit.communication.colours import Released
from tacit.communication.peers import ALONE, Peers, Placement, place
from tacit.communication.received import EXPERIMENT, SESSION_ID, Experiment
from tacit.config import Config, load_config
from tacit.config.schema import LEDGER_KEYS, UNIT_KEYS
from tacit.data import Schema, StackedData
from tacit.errors import InputError, RecordsError
from tacit.gradients import Loss
from tacit.models.architectures import find_loss
from tacit.report.view import Block, Table, Text
from tacit.report.wording import epsilon_text
from tacit.training.budget import node_keys, open_ledger
from tacit.training.calibration import shared_counts
from tacit.training.plan import Plan
from tacit.training.planner import build_plan
from tacit.training.processes.agreement import compare, counts, identity
from tacit.training.records import load_records, node_records
from tacit.training.shared_budgets import check_shared, open_shared

_DTYPE = torch.float64


@dataclass(frozen=True)
class LabelCounts:
    """Noised counts of labels, and the weights that make all classes count alike.

    Args:
        counts: of all nodes together, one a class; noised, so they may be negative.
        noise_std: standard deviation of the noise in each of them.
        class_weights: what `[task].class_weights` may say: records over classes and count, where
            no count is taken as lower than the noise.
        nodes: the noised counts of each node, `[nodes][classes]`.
        epsilon: certified, what the release by itself costs each node, at its `delta`.
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
    nodes, declared, names = node_records(nodes, schema)
    config = load_config(
        config,
        count=None if nodes is None else len(nodes),
        names=names,
        loss=None if declared is None else declared.target.loss,
    )
    if config.privacy.ledger is None:
        raise InputError(
            "privacy.ledger",
            None,
            "must name the folder of the budgets of the data, which the count and the training "
            'then share, such as privacy.ledger = "ledgers"',
        )
    plans = "blocks" if peers.processes == 1 else config.nodes.placement
    placement = place(config.nodes.count, peers.processes, plans)
    hosted = placement.hosted(peers.rank)
    records = load_records(config, nodes, None, declared, _DTYPE, torch.device("cpu"), hosted)
    config = config.with_names(records.names)
    train, public = records.train, None if records.test is None else records.test.targets
    loss = find_loss(config.task.loss)
    classes = _class_count(config, loss, public, records.classes)
    labels = _labels(train, loss, classes, hosted)
    plan = _plan(config, epsilon, train, classes, placement, peers)
    totals = _histograms(labels, train, classes)
    released = _release(config, plan, train, totals, hosted, peers)
    counted = shared_counts("noised counts of labels", released, classes, placement, peers)
    return _weighed(plan, counted)


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


def _histograms(labels: Tensor, train: StackedData, classes: int) -> Tensor:
    """The true counts `[nodes, classes]`, exact; they do not leave this process."""
    parts = torch.split(labels, train.sizes.tolist())
    return torch.stack([torch.bincount(own, minlength=classes).to(_DTYPE) for own in parts])


def _plan(
    config: Config,
    epsilon: float,
    train: StackedData,
    classes: int,
    placement: Placement,
    peers: Peers,
) -> Plan:
    """One step on all records, whose clipped sum are the counts."""
    server = config.algorithm.definition.graph.weights == "server"
    method, unit = plain_method("server" if server else "doubly-stochastic"), train.units
    release = Config(
        task=config.task,
        nodes=config.nodes,
        topology={} if server else {"graph": "complete"},
        algorithm={"name": method, "clip": 1.0 if unit is None else float(unit.rule.most)},
        privacy={
            "epsilon": epsilon,
            "delta": config.privacy.delta,
            "relation": config.privacy.relation,
            **{key: getattr(config.privacy, key) for key in (*LEDGER_KEYS, *UNIT_KEYS)},
        },
        train={"steps": 1, "batch": "all", "seed": config.train.seed, "dtype": "float64"},
    )
    sizes = train.counts.tolist()
    start = torch.zeros(classes, dtype=_DTYPE)
    settings = identity(release, layout={"counts": (classes,)}, start=start, dtype=_DTYPE)
    own = Experiment(identity=settings, records=sizes)
    experiments = peers.share("experiment", own, EXPERIMENT)
    compare([experiment.identity for experiment in experiments])
    records = counts([experiment.records for experiment in experiments], placement)
    return build_plan(release, records, classes)


def _release(
    config: Config,
    plan: Plan,
    train: StackedData,
    totals: Tensor,
    hosted: Sequence[int],
    peers: Peers,
) -> Released[Tensor]:
    """The counts under noise, once every ledger has them."""
    session, *_ = peers.share("run", secrets.token_hex(16), SESSION_ID)
    with ExitStack() as stack:
        # Data without an account get the budget that the experiment has for them.
        budgets = config.privacy.budget
        shared = stack.enter_context(open_shared(plan, train, hosted, session, budgets))
        check_shared(plan, shared)
        peers.share("sign that the budgets cover it", session, SESSION_ID)
        ledger = open_ledger(plan, None, False, shared, hosted)
        assert ledger is not None
        stack.enter_context(ledger)
        ledger.reserve(0, 1)
        stds = [plan.release.noise_std(plan.nodes[node], 0) for node in hosted]
        noise = plan.release.algorithm.releases.noise
        noised = noise.add(totals, stds, node_keys(plan, hosted), hosted, 0, part=0)
        ledger.settle(1)
    return Released(noised)


def _weighed(plan: Plan, rows: Sequence[Sequence[float]]) -> LabelCounts:
    """Totals and weights: functions of what was released."""
    totals = [math.fsum(column) for column in zip(*rows, strict=True)]
    noise = math.sqrt(math.fsum(plan.release.noise_std(node, 0) ** 2 for node in plan.nodes))
    counted = [max(total, noise, 1.0) for total in totals]
    weights = [math.fsum(counted) / (len(counted) * count) for count in counted]
    return LabelCounts(
        counts=tuple(totals),
        noise_std=noise,
        class_weights=tuple(float(f"{weight:.3g}") for weight in weights),
        nodes=tuple(map(tuple, rows)),
        epsilon=tuple(node.epsilon or 0.0 for node in plan.nodes),
        delta=tuple(node.delta or 0.0 for node in plan.nodes),
    )


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
