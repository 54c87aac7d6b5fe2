"""Graphs of one's own: from networkx, as matrices, by a function, or from a file.

A matrix of zeros and ones is an adjacency: entry [i, j] lets i send to j, as in networkx. Any other
is a mixing matrix P, used as it is: P[i, j] weighs what i receives from j. Weights of edges are
entries of P too; where no node has one of its own, each keeps what is left of 1 of all it gives.
Weights that are all 1 are none, and are chosen then as for a named graph.
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.base.plain_files import open_plain
from tacit.errors import InputError, optional
from tacit.topology import graphs
from tacit.topology.graphs import Entries, Graph, GraphRequest, GraphSchedule, graph_kind, graph_of

Own = tuple[Mapping[str, str], Sequence[Any]]
"""What nodes are called, and where in a file each is first; and of each graph of a period its SciPy
array `[labels, labels]` in compressed rows, whose entry [i, j] weighs what i sends to j."""

_WHERE = "topology.graph"
_MOST_GRAPHS = 10_000  # which take some 3 ms each until a run has begun
_MOST_BYTES, _MOST_UNPACKED = 2**28, 2**30  # of a file
_LONGEST = 200  # of a node's name
_OBJECTS: dict[str, Own] = {}  # by what they hold, so that it makes no difference who put them


def given(value: object) -> str:
    """Keep a graph that was passed as an object, and say how it is named: by what it holds."""
    labels, period = own = _of_objects(value, type(value).__name__)
    held = [(one.indptr.tolist(), one.indices.tolist(), one.data.tolist()) for one in period]
    digest = hashlib.blake2b(repr((list(labels), held)).encode(), digest_size=8).hexdigest()
    _OBJECTS[f"given:{digest}"] = own
    return f"given:{digest}"


def build_schedule(
    graph: str,
    nodes: int,
    *,
    names: Sequence[str] | None = None,
    call: Callable[..., object] | None = None,
    **keys: Any,
) -> GraphSchedule:
    """The schedule of a named graph, of `file:PATH`, `module:function`, or a passed object.

    The keys are those of `GraphRequest`; `GRAPHS` says which a name takes. `names` are the nodes',
    and `call` calls a function by its reference: see `tacit.models.imports`. An InputError names
    the key of `[topology]` at fault.
    """
    request, name = GraphRequest(nodes, **keys), graph
    kind = graph_kind(name, {key: getattr(request, key) for key in graphs.KEYS})
    if kind is not None:
        return GraphSchedule(name, kind.build(request))
    if name.startswith("file:"):
        labels, period = _read(Path(name.removeprefix("file:")))
    elif name.startswith("given:"):
        if name not in _OBJECTS:
            raise InputError(_WHERE, name, "was an object in Python: pass it again, or name a file")
        labels, period = _OBJECTS[name]
    else:
        assert call is not None
        found = call(name, _WHERE, nodes=nodes, seed=request.seed, names=names)
        labels, period = _of_objects(found, name)
    order, called = _numbered(name, labels, nodes, names)
    made = [_made(name, edges, order, nodes, bool(request.undirected)) for edges in period]
    entries = tuple(weights for _, weights in made if weights is not None)
    if 0 < len(entries) < len(made):
        raise InputError(_WHERE, name, "has graphs with weights and others without: give all")
    return GraphSchedule(name, tuple(graph for graph, _ in made), entries or None, called)


def _of_objects(value: object, name: str) -> Own:
    """Of a graph of networkx, a square matrix, or a list of these."""
    from scipy.sparse import csr_array

    parts: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
    if not 0 < len(parts) <= _MOST_GRAPHS:
        raise InputError(_WHERE, name, f"must be 1 to {_MOST_GRAPHS:,} graphs, not {len(parts):,}")
    labels: dict[str, str] = {}
    period = []
    for part in parts:
        shape, kind = np.shape(part), getattr(getattr(part, "dtype", None), "kind", "none")
        if hasattr(part, "adj") and hasattr(part, "is_directed") and len(part):
            networkx = optional("networkx")
            nodes = [str(node)[:_LONGEST] for node in part]
            try:
                edges = networkx.to_scipy_sparse_array(networkx.DiGraph(part), dtype=np.float64)
            except (TypeError, ValueError):
                raise InputError(_WHERE, name, "has weights that are no numbers") from None
        elif len(shape) == 2 and shape[0] == shape[1] and kind in "biuf":
            graphs.check_size(name, shape[0], shape[0])  # a sparse one may claim any
            nodes = [str(node) for node in range(shape[0])]
            edges = csr_array(part, dtype=np.float64, copy=True)
            edges.eliminate_zeros()
            edges = edges if (edges.data == 1).all() else csr_array(edges.T)
        else:
            expected = "must be a networkx graph, a square matrix of numbers, or a list of these"
            raise InputError(_WHERE, name, f"{expected}, not {type(part).__name__}")
        labels = labels or dict.fromkeys(nodes, "")
        places = {label: place for place, label in enumerate(nodes)}
        if labels.keys() != places.keys() or len(places) != len(nodes):
            raise InputError(_WHERE, name, "needs the same nodes in each graph, each by one name")
        order = [places[label] for label in labels]
        period.append(edges[order][:, order])
        period[-1].sort_indices()
    return labels, period


def _numbered(
    name: str, labels: Mapping[str, str], nodes: int, names: Sequence[str] | None
) -> tuple[NDArray[np.int64], tuple[str, ...] | None]:
    """Which node each label is, and what the nodes are called if it is not by number or site."""
    numbers = [int(word) if re.fullmatch("[0-9]{1,9}", word) else -1 for word in labels]
    outside = [label for label, n in zip(labels, numbers, strict=True) if not 0 <= n < nodes]
    if names is not None and labels.keys() <= set(names):
        ordered, called = list(names), None
    elif not outside:
        return np.array(numbers, np.int64), None
    elif all(1 <= number <= nodes for number in numbers):
        return np.array(numbers, np.int64) - 1, tuple(str(node + 1) for node in range(nodes))
    elif len(outside) == len(labels) == nodes and labels.keys().isdisjoint(names or ()):
        ordered = sorted(labels, key=_natural)
        called = tuple(ordered)
    else:
        odd = next((label for label in outside if label not in (names or ())), outside[0])
        expected = (
            f"{labels[odd]}node {odd} is not one of 0..{nodes - 1}: nodes go by these"
            f", by 1..{nodes}, by nodes.names, or all by other names, which {len(outside)} are"
        )
        raise InputError(_WHERE, name, expected)
    places = {label: node for node, label in enumerate(ordered)}
    return np.array([places[label] for label in labels], np.int64), called


def _natural(label: str) -> list[tuple[int, str]]:
    """Sorts `site 2` before `site 10`."""
    parts = re.split("([0-9]{1,99})", label)
    return [(int(part), "") if place % 2 else (-1, part) for place, part in enumerate(parts)]


def _made(
    name: str, edges: Any, order: NDArray[np.int64], nodes: int, undirected: bool
) -> tuple[Graph, Entries | None]:
    """A graph on the experiment's nodes, and the entries of its own mixing matrix, if any."""
    edges.eliminate_zeros()  # which link nobody
    plain, whole = bool((edges.data == 1).all()), bool(edges.diagonal().any())
    if undirected and whole and not plain:
        expected = "is of edges, and a mixing matrix says each direction: leave it out"
        raise InputError("topology.undirected", True, expected)
    found = (edges.maximum(edges.T) if undirected else edges).tocoo()
    sources, targets, weights = order[found.row], order[found.col], found.data
    graphs.check_size(name, nodes, len(sources))
    graph = graph_of(nodes, np.stack([sources, targets], axis=1))
    if plain or whole:
        return graph, None if plain else (targets, sources, weights)
    sums, own = np.bincount(sources, weights=weights, minlength=nodes), np.arange(nodes)
    if sums.max() >= 1:
        expected = f"has weights from node {sums.argmax()} that sum to {sums.max():g}, and less "
        raise InputError(_WHERE, name, f"{expected}than 1 leaves it a part: or give none")
    return graph, (np.append(targets, own), np.append(sources, own), np.append(weights, 1 - sums))


def _read(path: Path) -> Own:
    """Read a file by its ending: GraphML, `.npz`, `.mtx`, or text with an edge a line."""
    try:
        with open_plain(path, _MOST_BYTES) as file:
            if path.suffix.lower() not in (".graphml", ".npz", ".mtx"):
                return _text(file, path)
            return _of_objects(_object(file, path), str(path))
    except InputError:
        raise
    except OSError as error:
        reason = f"cannot be read ({error.strerror or error})"
    except Exception as error:  # whatever the reader of another library raises
        reason = f"is no sound {path.suffix} file ({' '.join(str(error).split())[:100]})"
    raise InputError(_WHERE, str(path), reason) from None


def _object(file: Any, path: Path) -> Any:
    """A graph of networkx, SciPy's sparse matrix, or NumPy's arrays by their names, one a graph."""
    from scipy import io as scipy_io
    from scipy import sparse

    if path.suffix.lower() == ".graphml":
        return optional("networkx").read_graphml(file)
    if path.suffix.lower() == ".mtx":
        rows, columns, entries, *_ = scipy_io.mminfo(path)  # a file object can end the process
        graphs.check_size(str(path), rows, max(rows, columns, entries))
        return scipy_io.mmread(path, spmatrix=False)
    with zipfile.ZipFile(file) as archive:
        if sum(member.file_size for member in archive.infolist()) > _MOST_UNPACKED:
            raise ValueError("it unpacks to more than 1 GiB")
    with np.load(file) as found:
        if "format" not in found:
            return [found[name] for name in sorted(found, key=_natural)]
    matrix = sparse.load_npz(file)
    if matrix.format in ("csr", "csc", "bsr"):
        matrix.check_format(full_check=True)  # else numbers out of range would be followed
    return matrix


def _text(file: Any, path: Path) -> Own:
    """One `source target` pair a line, perhaps with a weight; `#` begins a comment.

    One or more blank lines separate the graphs of a sequence. Self loops are harmless, and of an
    edge that is there twice the last line counts.
    """
    from scipy.sparse import csr_array

    labels: dict[str, str] = {}
    places: dict[str, int] = {}
    blocks: list[dict[tuple[int, int], float]] = [{}]
    edges = 0
    for number, line in enumerate(io.TextIOWrapper(file, encoding="utf-8-sig"), start=1):
        if not line.strip() and blocks[-1]:
            blocks.append({})
        if not (words := line.split("#", 1)[0].split(None, 3)):
            continue
        place, edges = f"{path.name}, line {number}", edges + 1
        if len(blocks) > _MOST_GRAPHS or edges > graphs.MOST_EDGES:
            most = f"{_MOST_GRAPHS:,} graphs and {graphs.MOST_EDGES:,} edges are the most of a file"
            raise InputError(_WHERE, str(path), f"line {number}: {most}")
        weight = words.pop() if len(words) == 3 else "1"
        known = re.fullmatch(r"[0-9.]+([eE]-?[0-9]+)?", weight)
        if len(words) != 2 or max(map(len, words)) > _LONGEST or not known:
            expected = f"{place} must be two node numbers or names: 'source target', or a weight"
            raise InputError(_WHERE, line[:100].strip(), f"{expected} behind")
        for word in words:
            labels.setdefault(word, f"{place}: ")
            places.setdefault(word, len(places))
        blocks[-1][places[words[0]], places[words[1]]] = float(weight)
    if not edges:
        raise InputError(_WHERE, str(path), "holds no edge: write 'source target', one a line")
    shape = (len(labels), len(labels))
    made = [(list(block.values()), np.array(list(block)).T) for block in blocks if block]
    return labels, [csr_array((values, tuple(ends)), shape) for values, ends in made]
