"""Divides the training records among nodes: one row of `PARTITIONS` for each way.

What is drawn comes from the public seed (`public_generator`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from tacit.data.datasets import TaskData, class_labels
from tacit.data.public_coins import PARTITION, public_generator
from tacit.errors import InputError, RecordsError, is_meant, nearest

_REDRAWS = 100


@dataclass(frozen=True, eq=False)
class Division:
    """What is to be divided, and how: see `partition`.

    `column` is what follows the colon in `by:COLUMN`, or an empty string; without `names`, nobody
    said whose records each node has.
    """

    kind: str
    column: str
    data: TaskData
    nodes: int
    generator: np.random.Generator
    alpha: float | None
    per_node: int | None
    names: tuple[str, ...] | None


@dataclass(frozen=True)
class PartitionKind:
    """A way to divide records.

    `divide` gives the record numbers of each node; no record goes to two. `parameter` is the one
    key of `[nodes]` that it needs, if any.
    """

    divide: Callable[[Division], list[np.ndarray]]
    parameter: str | None = None


def partition(
    kind: str,
    data: TaskData,
    nodes: int,
    seed: int,
    *,
    alpha: float | None = None,
    per_node: int | None = None,
    names: tuple[str, ...] | None = None,
) -> tuple[np.ndarray, ...]:
    """Divide the training records of a task among nodes; where units are known, whole units.

    A unit is placed by its first record, but for `by:COLUMN`, which asks each record.

    Args:
        kind: a name in `PARTITIONS`, as `by:region` for `by:COLUMN`.
        data: whose training records are divided.
        nodes: among how many.
        seed: the public seed.
        alpha: for `dirichlet`; the smaller, the more the nodes differ.
        per_node: for `shards` and `equal`; how many shards, or records, each node gets.
        names: for `by:COLUMN`; the values of a column that declares none, node 0 first.

    Returns:
        One ascending int64 array of record numbers for each node: disjoint, none empty but with
        `by:COLUMN`, all records together; with `equal`, as many as were asked for.

    Raises:
        InputError: on `nodes.partition`, `nodes.count`, `nodes.alpha` or `nodes.per_node`.
        RecordsError: records have none of the names; says how many.
    """
    row, column = partition_kind(kind, {"alpha": alpha, "per_node": per_node})
    records = np.arange(len(data.train))
    if data.train.units is not None and not column:
        _, first, records = np.unique(data.train.units, return_index=True, return_inverse=True)
        data = data.chosen(first)
    if not 1 <= nodes <= len(data.train):
        expected = f"must be 1 to {len(data.train)}, the number of training records"
        raise InputError("nodes.count", nodes, expected)
    generator = public_generator(seed, PARTITION)
    parts = row.divide(Division(kind, column, data, nodes, generator, alpha, per_node, names))
    return tuple(np.flatnonzero(np.isin(records, part)) for part in parts)


def partition_kind(kind: str, keys: Mapping[str, object]) -> tuple[PartitionKind, str]:
    """The row of `PARTITIONS`, and the column that stands after a colon.

    Raises:
        InputError: on `nodes.partition`, or one of the keys of `[nodes]` that it does not take.
    """
    name, colon, column = kind.partition(":")
    row = PARTITIONS.get(f"{name}:COLUMN" if colon else name)
    if row is None:
        raise InputError("nodes.partition", kind, nearest(kind, PARTITIONS))
    for key, value in keys.items():
        if value is not None and row.parameter != key:
            raise InputError(f"nodes.{key}", value, f"partition {kind!r} does not take it")
    return row, column


def _iid(division: Division) -> list[np.ndarray]:
    """Records at random; sizes differ by at most one."""
    order = division.generator.permutation(len(division.data.train))
    return np.array_split(order, division.nodes)


def _equal(division: Division) -> list[np.ndarray]:
    """`per_node` records at random to each node; those that are left over go to none."""
    nodes, per_node, records = division.nodes, division.per_node, len(division.data.train)
    if per_node is None or not 1 <= per_node <= records // nodes:
        expected = f"partition 'equal' needs 1 to {records // nodes} records a node"
        raise InputError("nodes.per_node", per_node, expected)
    order = division.generator.permutation(records)
    return np.split(order[: nodes * per_node], nodes)


def _dirichlet(division: Division) -> list[np.ndarray]:
    """Each class in shares drawn from a Dirichlet distribution (Hsu, Qi, Brown 2019)."""
    nodes, alpha, generator = division.nodes, division.alpha, division.generator
    if alpha is None or not (alpha > 0 and math.isfinite(alpha * nodes)):
        raise InputError("nodes.alpha", alpha, "partition 'dirichlet' needs a positive number")
    labels = _labels(division)
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    sizes = np.array([len(records) for records in classes])[:, None]
    for _ in range(_REDRAWS):
        shares = generator.dirichlet(np.full(nodes, alpha), size=len(classes))
        cuts = (np.cumsum(shares, axis=1)[:, :-1] * sizes).astype(np.int64)  # [classes, nodes - 1]
        counts = np.diff(cuts, axis=1, prepend=0, append=sizes)
        if counts.sum(axis=0).min() > 0:
            break
    pieces = [
        np.split(generator.permutation(records), cut)
        for records, cut in zip(classes, cuts, strict=True)
    ]
    return _without_empty([np.concatenate(node) for node in zip(*pieces, strict=True)])


def _without_empty(parts: list[np.ndarray]) -> list[np.ndarray]:
    """Give each empty node one record of the largest node, the first such if several are."""
    sizes = np.array([len(part) for part in parts])
    while sizes.min() == 0:
        largest, empty = int(sizes.argmax()), int(sizes.argmin())
        parts[largest], parts[empty] = parts[largest][:-1], parts[largest][-1:]
        sizes[largest], sizes[empty] = sizes[largest] - 1, 1
    return parts


def _shards(division: Division) -> list[np.ndarray]:
    """Records sorted by label, cut in shards, `per_node` to each node (McMahan et al. 2017)."""
    nodes, per_node, records = division.nodes, division.per_node, len(division.data.train)
    if per_node is None or not 1 <= per_node <= records // nodes:
        expected = f"partition 'shards' needs 1 to {records // nodes} shards a node"
        raise InputError("nodes.per_node", per_node, expected)
    by_label = np.argsort(_labels(division), kind="stable")
    shards = np.array_split(by_label, nodes * per_node)
    dealt = division.generator.permutation(nodes * per_node).reshape(nodes, per_node)
    return [np.concatenate([shards[shard] for shard in node]) for node in dealt]


def _by_column(division: Division) -> list[np.ndarray]:
    """One declared value of a column to a node, whether or not it occurs."""
    columns, nodes = division.data.columns, division.nodes
    if division.column not in columns:
        if columns:
            meant = is_meant(division.column, columns)
            hint = "" if meant is None else f"did you mean 'by:{meant}'? "
            known = ", ".join(f"by:{name}" for name in columns)
            expected = f"{hint}records can be divided {known}"
        else:
            expected = (
                f"{division.data.name} has no columns to divide by: a function of your own gives "
                "them as TaskData(columns={'hospital': ...}, values=...), a table as [node] of its "
                "schema"
            )
        raise InputError("nodes.partition", division.kind, expected)
    declared = _declared(division)
    column, nodes = division.column, division.nodes
    if len(declared) != nodes:
        expected = (
            f"column {column!r} has {len(declared)} declared values, and each is a node: write "
            f"{len(declared)}, or divide by another column"
        )
        raise InputError("nodes.count", nodes, expected)
    owners = np.array([str(value) for value in division.data.columns[column].tolist()])
    parts = [np.flatnonzero(owners == str(value)) for value in declared]
    others = len(owners) - sum(map(len, parts))
    if others:
        rule = (
            f"column {column!r} must hold one of {', '.join(map(str, declared))}: others are "
            "declared as nodes.names, task.labels of an svmlight file, or values= of a TaskData"
        )
        raise RecordsError("nodes.partition", f"{others:,} of {len(owners):,} records", rule)
    return parts


def _declared(division: Division) -> tuple[str | int, ...]:
    """The declared values of a column, node 0's first; labels are those of the classes.

    Which node a value goes to must not follow from which values occur: that no record has one is
    private, too.
    """
    data, column = division.data, division.column
    if column in data.values:
        return data.values[column]
    if division.names is not None:
        return division.names
    if column == "label" and class_labels(data.train) is not None:
        # Where nobody has said how many classes there are, the number of nodes says it.
        return tuple(range(division.nodes if data.classes is None else data.classes))
    expected = (
        f"which node a value goes to is declared, and not found in the records: return "
        f"TaskData(values={{{column!r}: (...)}}) with all values, node 0's first"
    )
    raise InputError("nodes.partition", division.kind, expected)


def _labels(division: Division) -> np.ndarray:
    labels = class_labels(division.data.train)
    if labels is None:
        dtype = str(division.data.train.targets.dtype).removeprefix("torch.")
        expected = f"needs integer class labels; the targets of {division.data.name} are {dtype}"
        raise InputError("nodes.partition", division.kind, expected)
    return labels


PARTITIONS: MappingProxyType[str, PartitionKind] = MappingProxyType(
    {
        "iid": PartitionKind(_iid),
        "equal": PartitionKind(_equal, parameter="per_node"),
        "dirichlet": PartitionKind(_dirichlet, parameter="alpha"),
        "shards": PartitionKind(_shards, parameter="per_node"),
        "by:COLUMN": PartitionKind(_by_column),
    }
)
"""Ways to divide records, by name; after a colon, `COLUMN` stands for a column of the data."""
