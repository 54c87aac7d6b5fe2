"""Which records this process trains on and which it tests on: loaded, divided and stacked."""

from __future__ import annotations

import logging
import os
import secrets
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit import data
from tacit.communication.peers import Peers, Placement
from tacit.config import GIVEN, Config
from tacit.config.schema import PER_NODE
from tacit.data import Dataset, Schema, StackedData
from tacit.data.own import digests_of_all, own_name, record_digests, unit_digests
from tacit.data.sources import public_records
from tacit.data.tables import default_schema, find_schema, is_frame
from tacit.data.tables.check import OwnScreen
from tacit.data.tables.kinds import NodeColumn
from tacit.data.tables.reading import read_table
from tacit.data.units import Ids, UnitRule, Units, check_nodes, unit_ids
from tacit.errors import InputError, PrivateRecordsWarning, RecordsError
from tacit.features.kept import Kept
from tacit.features.maps import FeatureMap

_COMPARED = b"compared here"  # a key of digests that are kept nowhere need not be secret

_LOG = logging.getLogger("tacit")

NO_TEST_RECORDS = (
    "no test records: nothing will be scored. For a table name public records in task.test, or "
    "declare a share of its records public with task.test_share; in Python pass test="
)


@dataclass(frozen=True)
class TrainingRecords:
    """What a run trains and tests on.

    Args:
        train: the records of this process's nodes.
        whose: what an error calls the records of each of these nodes.
        test: public test records; None: there are none.
        classes: as declared; None: nobody did, or there are none.
        schema: by which they were read, if they are a table.
        notes: what people should know of them, each one line; public.
        names: of all nodes, as the data, the schema or the experiment declares them.
        person: what those are called whose the records are; None: nobody said.
    """

    train: StackedData
    whose: tuple[str, ...]
    test: Dataset | None
    classes: int | None
    schema: Schema | None
    notes: tuple[str, ...]
    names: tuple[str, ...] | None
    person: str | None = None


def node_records(
    nodes: Any, schema: str | Path | Mapping[str, Any] | Schema | None
) -> tuple[Any, Schema | None, tuple[str, ...] | None]:
    """What a user gives as the nodes' records: one table is split by the schema's node column.

    Args:
        nodes: a frame of pandas or polars, the path of a table, a list or a mapping by the nodes'
            names that may have paths in it, which is brought into the order of the schema, or
            anything else, which is returned as it is.
        schema: a path, a mapping or a `Schema`; of the path of a table, by default that beside it.

    Returns:
        The records, the schema, and the nodes' names, if they were given by name.

    Raises:
        InputError: the schema is wrong, a table has none, or a path leads to no table.
    """
    if schema is None and isinstance(nodes, (str, os.PathLike)):
        path = own_path(nodes)
        if not Path(path).name or not os.path.exists(path):
            expected = "there is no such file: give a table, or a list with one data set a node"
            raise InputError("nodes", os.fspath(nodes), expected)
        schema = default_schema(path)
        if not os.path.isfile(schema):
            expected = f"must say what the columns of {path} are, and there is no {schema}"
            raise InputError("schema", None, f"{expected}: `tacit init` writes one")
    declared = None if schema is None else Schema.of(schema)
    if isinstance(nodes, Mapping):
        named = {str(name): records for name, records in nodes.items()}
        known = () if declared is None or declared.node is None else declared.node.values
        order = tuple(name for name in known if name in named)
        order = order if len(order) == len(named) else tuple(named)
        return (
            [_opened(named[name], f"nodes[{name!r}]", declared) for name in order],
            declared,
            order,
        )
    if isinstance(nodes, (list, tuple)):
        opened = [_opened(part, f"nodes[{place}]", declared) for place, part in enumerate(nodes)]
        return opened, declared, None
    table = _opened(nodes, "nodes", declared)
    if table is nodes and not is_frame(nodes):
        return nodes, declared, None
    if declared is None:
        expected = "is a frame, and needs schema=, which says what its columns are"
        raise InputError("nodes", type(nodes).__name__, expected)
    return declared.split(table), declared, None


def with_units(nodes: Any, units: Any, schema: Schema | None, names: Sequence[str] | None) -> Any:
    """The records of `node_records` with whose each is, of one array of ids a node.

    Raises:
        InputError: on `units`, if they are not given as the nodes are, or the records say it too.
        RecordsError: on `units`, if ids are missing, or neither texts nor whole numbers.
    """
    if units is None:
        return nodes
    if nodes is None or schema is not None:
        expected = "goes with arrays: a table says it by [unit] of its schema, or TaskData(units=)"
        raise InputError("units", type(units).__name__, expected)
    places: Sequence[object] = names or range(len(nodes))
    given: dict[object, Any] = {}
    if isinstance(units, Mapping) and names is not None:
        given = {str(name): ids for name, ids in units.items()}
    elif isinstance(units, (list, tuple)) and names is None:
        given = dict(enumerate(units))
    if given.keys() != {*places}:
        kind = f"list of {len(nodes)}" if names is None else "mapping by the nodes' names"
        expected = f"must be a {kind}, as nodes: one array of ids a node"
        raise InputError("units", type(units).__name__, expected)
    made: list[Dataset] = []
    for place, records in zip(places, nodes, strict=True):
        known, where = data.as_dataset(records, f"nodes[{place!r}]"), f"units[{place!r}]"
        if known.units is not None:
            raise InputError(where, "ids", "its data set has ids too: give them once")
        ids = unit_ids(given[place], len(known), where)
        made.append(Dataset(known.inputs, known.targets, ids, known.packed))
    return made


def _opened(value: Any, where: str, schema: Schema | None) -> Any:
    """The table of a path; anything else as it is."""
    if not isinstance(value, (str, os.PathLike)):
        return value
    if schema is None:
        expected = "is the path of a table, and needs schema=, which says what its columns are"
        raise InputError(where, os.fspath(value), expected)
    return read_table(Path(own_path(value)), where, use=schema)


def own_path(value: str | os.PathLike[str]) -> str:
    """The path of a table, which may be written as `[task].dataset` has it: `csv:PATH`."""
    text = os.fspath(value)
    kind, _, path = text.partition(":")
    return os.path.expanduser(path if path and kind in ("csv", "parquet") else text)


def load_records(
    config: Config,
    nodes: Sequence[Any] | None,
    test: Any,
    schema: Schema | None,
    dtype: torch.dtype,
    device: torch.device,
    hosted: Sequence[int],
    instead: StackedData | None = None,
) -> TrainingRecords:
    """Load what this process needs: the records of its own nodes, and the public ones.

    `nodes` are each node's records, of which those of `hosted` are read; None loads them. Where
    `test` is None, the public test records are those that the experiment names; where `schema` is,
    tables are read by that of `[task].schema`. `instead` has records of this process's nodes in the
    place of those that are read.

    Raises:
        InputError: something is wrong with the data, the schema or their settings; what a schema
            declares has not been confirmed to be public.
    """
    task, path = config.task, config.task.schema
    if schema is None and path is not None:
        schema = find_schema(path, Path(task.data_dir))
    if schema is not None:  # its facts are confirmed to be public
        schema.check_confirmed("schema" if path is None else path)
    own = nodes is not None or config.nodes.data == "by-rank"
    if nodes is not None and config.nodes.part is not None:
        expected = "is a part of one data set, and here each node has its own: leave it out"
        raise InputError("nodes.part", list(config.nodes.part), expected)
    if own and task.test_share is not None:
        expected = "is a share of one data set, and here each node has its own: use task.test"
        raise InputError("task.test_share", task.test_share, expected)
    named = None
    if nodes is None and task.dataset != GIVEN:
        named = data.load(
            task.dataset,
            data_dir=Path(task.data_dir),
            seed=config.train.seed,
            schema=schema,
            test=task.test,
            test_share=task.test_share,
            declared=task.declared,
        )
    names = _names(config, named, schema if own else None)
    rule, source = _unit_rule(config, schema), config.nodes.source
    whose = tuple(
        f"nodes[{node}]"
        if nodes is not None
        else f"task.dataset of node {node}"
        if source is None
        else own_name(source, node)
        for node in hosted
    )
    if own:
        theirs = schema
        if schema is not None and schema.node is not None and names is not None:
            # The column of the nodes' own tables must say these names, node 0 first.
            column = schema.node.model_copy(update={"values": names})
            theirs = schema.model_copy(update={"node": column})
        local = _own(config, nodes, theirs, hosted, whose)
        for name, records in zip(whose, local, strict=True):
            _check_known(config, schema, records, name)
        ids = [records.units for records in local]
        train = data.stack(local, dtype, device, rule, hosted)
        _warn_of_equal(local, whose)
    else:
        assert named is not None
        _check_known(config, schema, named.train, named.name)
        train = _divided(config, named, names, dtype, device, hosted, rule)
        ids = [named.train.units]
    if train.units is not None:
        check_nodes(train.units, config.privacy.unit_nodes)
    public = _public(config, test, named, schema)
    known = [own for own in ids if own is not None]
    unit = None if schema is None else schema.unit
    person = config.privacy.unit_column if unit is None else unit.name
    person = person or ("person" if known else None)
    if instead is None and public is not None and public.units is not None:
        _warn_of_persons(public.units, known, person or "person")
    if config.nodes.part is not None and names is not None:
        names = (names[config.nodes.part[0]],)
    declared = None if schema is None else schema.target.classes
    notes = () if schema is None else schema.notes
    if named is not None:
        notes = (*notes, *named.notes)
    return TrainingRecords(
        train=train if instead is None else instead,
        whose=whose,
        test=public,
        classes=declared if named is None else named.classes,
        schema=schema,
        notes=notes if public is not None else (*notes, NO_TEST_RECORDS),
        names=names,
        person=person,
    )


def _unit_rule(config: Config, schema: Schema | None) -> UnitRule | None:
    privacy = config.privacy
    column = privacy.unit_column
    if column is None:
        return None
    if schema is not None and (schema.unit is None or schema.unit.column != column):
        has = "no [unit]" if schema.unit is None else f"[unit] column = {schema.unit.column!r}"
        expected = f"must name the column that the schema declares as [unit]; it has {has}"
        raise InputError("privacy.unit", privacy.unit, expected)
    return UnitRule(privacy.unit_rows, privacy.unit_gradient, config.train.seed)


def _check_known(config: Config, schema: Schema | None, records: Dataset, whose: str) -> None:
    if config.privacy.unit_column is None or records.units is not None:
        return
    expected = f"{whose} has no such column"
    if schema is None:
        expected = (
            f"{whose} does not say whose each record is: ids are a column of a table ([unit] of "
            "its schema), an array units in .npz or .safetensors, TaskData(units=) of a function, "
            "or units= in Python"
        )
    raise InputError("privacy.unit", config.privacy.unit, expected)


def _names(
    config: Config, named: data.TaskData | None, schema: Schema | None
) -> tuple[str, ...] | None:
    """The declared names of all parts, node 0 first; never those that occur in the records.

    Of a column that nobody declared, the names in a table of budgets are a declaration. `schema` is
    that of nodes with records of their own.
    """
    by, (parts, known) = config.nodes.partition.partition(":")[2], config.nodes.divided
    declared: tuple[str, ...] | None = None
    if schema is not None and schema.node is not None:
        return _parties(config, schema.node)
    if named is not None and by:
        tables = (config.nodes.weights, *(getattr(config.privacy, key) for key in PER_NODE))
        in_tables = (tuple(table) for table in tables if isinstance(table, Mapping))
        values = named.values.get(by)
        declared = tuple(map(str, values)) if values else known or next(in_tables, None)
    fits = declared is not None and len(declared) == parts
    return declared if fits else known


def _parties(config: Config, declared: NodeColumn) -> tuple[str, ...]:
    """Whose the nodes are that have records of their own: all that a schema lists, or some."""
    count, names, listed = config.nodes.count, config.nodes.names, declared.values
    if names is None and count != len(listed):
        expected = (
            f"column {declared.column!r} of the schema has {len(listed)} declared values: take as "
            "many, or say which of them take part: nodes.names, in Python nodes= as a mapping"
        )
        raise InputError("nodes.count", count, expected)
    chosen = tuple(dict.fromkeys(names or listed))
    if chosen != tuple(name for name in listed if name in chosen):
        expected = f"must be those of the schema, or some, in its order: {', '.join(listed)}"
        raise InputError("nodes.names", ", ".join(chosen), expected)
    return names or listed


def node_names(
    declared: tuple[str, ...] | None, placement: Placement, peers: Peers
) -> tuple[str, ...] | None:
    """Whose each node is: what is declared, unless it is a site whose node is another; or sites.

    Their processes are known by their names, others are not.
    """
    if not peers.authenticated:
        return declared
    known = [site.name for site in peers.seen()]
    sites = [known[rank] for rank in placement.ranks]
    names = declared or tuple(sites)
    if any(site != name and site in names for site, name in zip(sites, names, strict=True)):
        expected = f"must be those of the sites, by their ranks: {', '.join(sites)}"
        raise InputError("nodes.names", ", ".join(names), expected)
    return names


def found_in(records: Tensor, others: Tensor) -> int:
    """How many of some records have the inputs of one of the others, whatever their names say.

    Both are inputs, `[records, ...]`.
    """
    own, known = (record_digests(inputs, _COMPARED) for inputs in (records, others))
    return int(np.isin(own, known).sum())


def units_in(units: Units, others: Units) -> int:
    """How many of some units have the id of one of the others."""
    own, known = (unit_digests(chain.from_iterable(one.ids), _COMPARED) for one in (units, others))
    return int(np.isin(own, known).sum())


def warn_of_private(what: str, public: Tensor, private: Tensor) -> None:
    """Say on the own screen how many records that are called public have a private one's inputs."""
    count = found_in(public, private)
    if count:
        warnings.warn(
            f"{count:,} of the {len(public):,} public {what} records have the inputs of a private "
            "training record. If they are the same people's, scores tell of private records, and "
            "no epsilon covers that; in a table of few values rows may be equal by chance",
            PrivateRecordsWarning,
            stacklevel=3,
        )


def _own(
    config: Config,
    nodes: Sequence[Any] | None,
    schema: Schema | None,
    hosted: Sequence[int],
    whose: Sequence[str],
) -> list[Dataset]:
    if nodes is None:
        assert config.nodes.source is not None
        return data.load_own(config.nodes.source, hosted, schema)
    screen = OwnScreen()
    local = [
        screen.dataset(nodes[node], schema, name, node)
        for node, name in zip(hosted, whose, strict=True)
    ]
    screen.warn("FILE")
    for name, records in zip(whose, local, strict=True):
        data.check_dataset(records, name, may_be_empty=True)
    return local


def _warn_of_equal(local: Sequence[Dataset], whose: Sequence[str]) -> None:
    """Say on the own screen that nodes hold the very same records, or mostly, in whatever order.

    Mostly is said only of more than two, and of records that differ: of few values, all may occur
    at every node.
    """
    if len(local) < 2:
        return
    key = secrets.token_bytes(32)
    counts = [len(records) for records in local]
    nodes = np.repeat(np.arange(len(local)), counts)
    every = digests_of_all([records.inputs for records in local], key)
    every = every[np.lexsort((every, nodes))]
    digests = _parts(every, counts)
    # Of each node its distinct records.
    new = np.append(True, (np.diff(every) != 0) | (np.diff(nodes) != 0))[: len(every)]
    sizes = np.bincount(nodes[new], minlength=len(local)).tolist()
    _, places, inverse = np.unique(every[new], return_index=True, return_inverse=True)
    # The first node that has each record, node by node; and the nodes that share three with one.
    first = nodes[new][places][inverse]
    firsts, others = _parts(first, sizes), first < nodes[new]
    pairs, times = np.unique((nodes[new] * len(local) + first)[others], return_counts=True)
    near = set((pairs[times > 2] // len(local)).tolist())
    whole: dict[bytes, int] = {}
    for place, (own, found) in enumerate(zip(digests, firsts, strict=True)):
        other, word = whole.setdefault(own.tobytes(), place), ""
        if other == place and 2 * sizes[place] > len(own) and place in near:
            shared = np.bincount(found)[:place]
            most = int(shared.argmax())
            if 2 * shared[most] > max(4, min(sizes[place], sizes[most])):
                other, word = most, "mostly "
        if other != place and len(own):
            _LOG.warning(
                "the records of %s are %sthose of %s: is one of them another site's file?",
                whose[place],
                word,
                whose[other],
            )


def _parts(values: NDArray[Any], sizes: Sequence[int]) -> list[NDArray[Any]]:
    """What `np.split` gives of parts of these sizes, ten times as fast."""
    ends = accumulate(sizes)
    return [values[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _warn_of_persons(public: Ids, private: Sequence[Ids], person: str) -> None:
    """Say on the own screen how many of whom test records are have private training records."""
    tested, known = (
        unit_digests(set(ids.tolist()), _COMPARED)
        for ids in (public, np.concatenate([public[:0], *private]))
    )
    count = int(np.isin(tested, known).sum())
    if count:
        warnings.warn(
            f"{count:,} of the {len(tested):,} ids ({person}) of the public test records are those "
            "of private training records, too. If they are the same people's, scores tell of them, "
            "and no epsilon covers that: let nobody be in both",
            PrivateRecordsWarning,
            stacklevel=3,
        )


def _divided(
    config: Config,
    loaded: data.TaskData,
    names: tuple[str, ...] | None,
    dtype: torch.dtype,
    device: torch.device,
    hosted: Sequence[int],
    rule: UnitRule | None,
) -> StackedData:
    wanted = config.nodes
    parts = data.partition(
        wanted.partition,
        loaded,
        wanted.divided[0],
        config.train.seed,
        alpha=wanted.alpha,
        per_node=wanted.per_node,
        names=names,
    )
    own = hosted if wanted.part is None else wanted.part[:1]
    return data.stack_parts(
        loaded.train, [parts[node] for node in own], dtype, device, rule, hosted
    )


def _public(
    config: Config, test: Any, named: data.TaskData | None, schema: Schema | None
) -> Dataset | None:
    if test is not None:
        table = _opened(test, "test", schema)
        return data.as_dataset(table, "test") if schema is None else schema.dataset(table, "test")
    if named is not None or config.task.test is None:
        return None if named is None else named.test
    if schema is None:
        expected = "is a table, and needs a schema: name it in task.schema"
        raise InputError("task.test", config.task.test, expected)
    return public_records(config.task.test, Path(config.task.data_dir), schema)


def with_features(
    features: FeatureMap, records: TrainingRecords, hosted: Sequence[int], kept: Kept | None = None
) -> TrainingRecords:
    """The same records with features in place of inputs, those that are public too.

    The records given are left as they are. Features of the nodes are kept in `kept`; None: nowhere.
    """
    test = records.test
    if test is not None:
        alone = data.stack([test], features.dtype, records.train.targets.device)
        made = features_of(features, alone, ["the test records"])
        test = Dataset(made.stored, made.targets)
    train = features_of(features, records.train, [f"node {node}" for node in hosted], kept, hosted)
    return replace(records, train=train, test=test)


def features_of(
    features: FeatureMap,
    records: StackedData,
    whose: Sequence[str],
    kept: Kept | None = None,
    hosted: Sequence[int] = (),
) -> StackedData:
    """Features in place of inputs, node by node and block by block.

    The records given are left as they are; `whose` says in words whose each node's are. Features
    are kept in `kept` by the nodes' numbers, `hosted`; None: nowhere.

    Raises:
        RecordsError: features of some records are not finite.
    """
    total, device = len(records.targets), records.targets.device
    made = torch.empty(total, *features.shape, dtype=features.dtype, device=device)
    ends = zip(whose, records.offsets.tolist(), records.sizes.tolist(), strict=True)
    for place, (name, start, size) in enumerate(ends):
        own = made[start : start + size]

        def read(rows: slice, start: int = start) -> Tensor:
            stored = records.stored[start + rows.start : start + rows.stop]
            return replace(records, stored=stored).inputs

        if kept is None:
            features.write(read, size, own)
        else:
            stored = records.stored[start : start + size]
            kept.write(features, hosted[place], stored, read, own)
        if bool(torch.isfinite(own.sum())):
            continue
        if wrong := int((~torch.isfinite(own)).flatten(1).any(dim=1).sum()):
            found = f"{wrong:,} of {len(own):,} records"
            raise RecordsError(f"task.features of {name}", found, "features must be finite numbers")
    return replace(records, stored=made, bytes=False, packed=None)
