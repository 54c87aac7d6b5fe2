"""A node's own records: what a process reads for the nodes that it hosts, and for no other.

`[nodes].data = "by-rank"` with `[nodes].source`: a path with `{node}` in it, or a
`module:function` that is called with the node's number. Only the files of the nodes that are
asked for are opened.

What tells one record from another, for ledgers of data, is a keyed digest of its inputs
(`record_digests`). A budget belongs to records, so that a ledger must know them again: at another
node, in another order, from another file, under another name, with another label. Hence a digest is
that of a record's input numbers alone:

- *not of its targets*: a person's record with a corrected label is still that person's record;
- *not of its shape or type*: the numbers are rounded to float32, so that a set kept in float64, as
  integers, or as images in place of rows is the same set;
- *not of zeros before its first and after its last other number*: how wide a record is may depend
  on the records beside it, where a file leaves zeros out or short sequences are filled up;
- *not of its place*: records with equal inputs have equal digests.

Each of these can only take two records for one, which charges more. What a digest does not see
through is other numbers: records that were scaled, cropped or perturbed anew are new records.

Where ids say whose rows are whose, a person is known by a keyed digest of the id beside those of
the rows (`unit_digests`): with other rows or other columns it is still that person. Equal ids are
one person, whatever table, column or node they stand in, and so are ids that differ in case, in
blanks around them or in how Unicode writes a letter: again this can only take two for one. An id
that was written anew (`0017` for `17`, another pseudonym) is another person.

The key keeps an outsider from testing whether a known record is there. A digest has 64 bits: two of
60,000 records share one by chance with a probability below 1e-9, which again charges more.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import os
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from unicodedata import normalize

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.data.datasets import Dataset, check_dataset
from tacit.data.files import UnfitFileError, check_size, read_member
from tacit.data.tables.check import OwnScreen
from tacit.data.tables.reading import TABLE_ENDINGS, read_table
from tacit.data.tables.schema import Schema
from tacit.errors import InputError, nearest
from tacit.models.imports import call_function, import_function, names_function

_WHERE = "nodes.source"
_NODE = "{node}"
_ARRAYS = ("inputs", "targets")
_UNITS = "units"  # may be there
_OF_SEVERAL = "inputs."  # and then the name of one of several inputs

Arrays = Mapping[str, object]


def load_own(source: str, nodes: Sequence[int], schema: Schema | None = None) -> list[Dataset]:
    """Read the records of some `nodes`, a data set for each, in their order.

    `source` is a path in which `{node}` stands for the node's number, relative to the current
    directory; its ending is one of `READERS`, and the file holds two arrays `inputs` and `targets`,
    and perhaps `units`, or one of `TABLE_ENDINGS`. Or `module:function`, which is called with
    `node=` its number and returns what `as_dataset` takes, or a frame. The `schema` is of tables
    and frames.

    Raises:
        InputError: on `nodes.source`, if a file is missing, has another form or lacks an array,
            or if several nodes would read the same file; on `node 3 (PATH)`, if the records of
            node 3 cannot be trained on, say that they are another node's, or are shaped otherwise
            than those of the first node.
    """
    read = _from_function if names_function(source) else _from_file
    if len(nodes) > 1 and _NODE not in source and not names_function(source):
        expected = (
            f"must have {_NODE} in it, such as data/{_NODE}.npz: nodes {nodes[0]} and {nodes[1]} "
            "of this process would read the same records"
        )
        raise InputError(_WHERE, source, expected)
    screen, datasets = OwnScreen(), list[Dataset]()
    for node in nodes:
        name = own_name(source, node)
        records = read(source, node, schema)
        dataset = screen.dataset(records, schema, name, node)
        check_dataset(dataset, name, may_be_empty=True)
        datasets.append(dataset)
        wanted = record_layout(datasets[0])
        for key, found in record_layout(dataset).items():
            if found != wanted[key]:
                expected = f"must be {wanted[key]}, as those of node {nodes[0]}"
                raise InputError(f"{name}, {key}", found, expected)
    file = source.replace(_NODE, str(nodes[0])) if len(nodes) == 1 else source
    screen.warn("FILE" if names_function(source) else file)
    return datasets


def own_name(source: str, node: int) -> str:
    """What an error calls a node's own records."""
    return f"node {node} ({source.replace(_NODE, str(node))})"


def record_layout(dataset: Dataset) -> dict[str, str]:
    """The kind and the shape of a record's input and target, in words; never how many there are.

    What all nodes of a run must share: numbers that are integer at one node and floating at
    another are suspicious (grey levels 0 to 255 beside 0 to 1), and ids are no measurements.
    """
    found = {
        f"record {name}": f"{_kind(values)} {list(values.shape[1:])}"
        for name, values in (("inputs", dataset.inputs), ("targets", dataset.targets))
    }
    if dataset.packed is not None:
        found["record inputs"] = dataset.packed.words
    return found


def _kind(values: Tensor) -> str:
    return "floating" if values.is_floating_point() else "integer"


def _from_function(source: str, node: int, schema: Schema | None) -> object:
    function = import_function(source, _WHERE)
    try:
        inspect.signature(function).bind(node=node)
    except (TypeError, ValueError):
        # Called without the number, it would give every node the same records.
        expected = "the function must take the node's number, as in def load(node)"
        raise InputError(_WHERE, source, expected) from None
    return call_function(source, _WHERE, node=node)


def _from_file(source: str, node: int, schema: Schema | None) -> object:
    path = Path(os.path.expanduser(source.replace(_NODE, str(node))))
    if schema is not None:
        return read_table(path, f"{_WHERE} of node {node}", use=schema)
    if path.name.lower().endswith(TABLE_ENDINGS):
        expected = "is a table: name its schema in task.schema (`tacit init` writes one)"
        raise InputError(_WHERE, source, expected)
    read = READERS.get(path.suffix.lower())
    if read is None:
        expected = f"{nearest(path.suffix, READERS)} (module:function names a function of your own)"
        raise InputError(_WHERE, source, expected)
    if not os.path.isfile(path):  # False, where Path.is_file raises, in a locked folder
        raise InputError(_WHERE, source, f"node {node}: there is no file {path}")
    try:
        arrays = read(path)
    except UnfitFileError as error:
        expected = f"node {node}: {path} cannot be read as {path.suffix}: it {error}"
        raise InputError(_WHERE, source, expected) from error
    except Exception as error:  # a damaged file may raise anything, and its text may quote records
        kind = type(error).__name__
        expected = f"node {node}: {path} cannot be read as {path.suffix} ({kind})"
        raise InputError(_WHERE, source, expected) from error
    several = {
        name.removeprefix(_OF_SEVERAL): values
        for name, values in arrays.items()
        if name.startswith(_OF_SEVERAL)
    }
    if several:
        arrays = {**arrays, "inputs": several}
    missing = [name for name in _ARRAYS if name not in arrays]
    if missing:
        found = ", ".join(arrays) or "none"
        expected = f"node {node}: {path} must hold an array {missing[0]!r}; it holds: {found}"
        raise InputError(_WHERE, source, expected)
    return tuple(arrays[name] for name in (*_ARRAYS, _UNITS) if name in arrays)


def _read_npz(path: Path) -> Arrays:
    # What is not asked for is not read.
    with zipfile.ZipFile(path) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        return {
            name: read_member(archive, member)
            if name in (*_ARRAYS, _UNITS) or name.startswith(_OF_SEVERAL)
            else None
            for name, member in members.items()
        }


def _read_safetensors(path: Path) -> Arrays:
    check_size(path.stat().st_size)  # which its header cannot exceed
    return safetensors.torch.load(path.read_bytes())


READERS: MappingProxyType[str, Callable[[Path], Arrays]] = MappingProxyType(
    {".npz": _read_npz, ".safetensors": _read_safetensors}
)
"""How a file is read, by its ending; none of these unpickles."""


_BYTES = 8
_ROWS = 4096  # converted at a time
_OF_UNITS = b"id of a unit"  # BLAKE2b's own separation: no input has the digest of an id


def unit_digests(ids: Iterable[str], key: bytes) -> NDArray[np.uint64]:
    """The digest of every id of a unit, `[units]`, in their order; the key is as below."""
    plain = (normalize("NFKC", normalize("NFKC", name).casefold()).strip() for name in ids)
    found = [
        hashlib.blake2b(
            text.encode("utf-8", "surrogatepass"), digest_size=_BYTES, key=key, person=_OF_UNITS
        ).digest()
        for text in plain
    ]
    return np.frombuffer(b"".join(found), dtype="<u8").astype(np.uint64)


def digests_of_all(parts: Sequence[Tensor], key: bytes) -> NDArray[np.uint64]:
    """What `record_digests` gives of the records of all parts, one after the other.

    Their records have one shape; of small parts many are converted at a time.
    """
    starts = np.cumsum([0, *map(len, parts)])
    blocks = [
        (start // _ROWS, len(part) < _ROWS) for start, part in zip(starts, parts, strict=False)
    ]
    found = []
    for _, some in groupby(zip(blocks, parts, strict=True), lambda pair: pair[0]):
        few = [part for _, part in some]
        if len(few) > 1:
            few = [torch.cat([part.detach().to("cpu", torch.float32) for part in few])]
        found.append(record_digests(few[0], key))
    return np.concatenate(found)


def record_digests(inputs: Tensor, key: bytes) -> NDArray[np.uint64]:
    """The digest of every record of `inputs` `[records, ...]`, in their order.

    Inputs are real numbers of any type, on any device; the `key` is secret, 1 to 64 bytes.
    """
    rows = inputs.detach().reshape(len(inputs), math.prod(inputs.shape[1:]))
    found: list[bytes] = []
    for first in range(0, len(rows), _ROWS):
        block = rows[first : first + _ROWS].to("cpu", torch.float32) + 0.0  # -0.0 becomes 0.0
        numbers = block.numpy().astype("<f4", copy=False)
        found += [
            hashlib.blake2b(row.tobytes().strip(b"\0"), digest_size=_BYTES, key=key).digest()
            for row in numbers
        ]
    return np.frombuffer(b"".join(found), dtype="<u8").astype(np.uint64)
