"""Graphs of one's own, against networkx: objects, functions, files, and what is wrong with them."""

import io
import zipfile

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.io import mmwrite

from tacit.config import Config
from tacit.errors import InputError
from tacit.models.imports import call_function
from tacit.topology.checks import (
    check_column_stochastic,
    check_doubly_stochastic,
    check_strongly_connected,
    contraction,
)
from tacit.topology.mixing import build_mixing
from tacit.topology.own import build_schedule
from tacit.topology.own import given as name_of

PROPERTY = settings(max_examples=12, deadline=None, derandomize=True)


def edges_of(graph, order):
    numbers = {node: number for number, node in enumerate(order)}
    directed = nx.DiGraph(graph)
    return {(numbers[a], numbers[b]) for a, b in directed.edges if a != b}


@PROPERTY
@given(
    nodes=st.integers(2, 12),
    density=st.floats(0.05, 0.9),
    directed=st.booleans(),
    seed=st.integers(0, 99),
    base=st.sampled_from([0, 1, None]),
)
def test_objects_and_files_are_the_graph_of_networkx(
    tmp_path_factory, nodes, density, directed, seed, base
):
    plain = nx.gnp_random_graph(nodes, density, seed, directed)
    plain.add_edges_from((node, (node + 1) % nodes) for node in range(nodes))
    order = list(range(nodes))
    graph = plain
    if base is not None:
        graph = nx.relabel_nodes(plain, {node: node + base for node in order})
    else:  # read in another order than they are sorted
        graph = nx.relabel_nodes(plain, {node: f"site {node + 1}" for node in reversed(order)})
    folder = tmp_path_factory.getbasetemp()
    nx.write_graphml(graph, folder / "a.graphml")
    adjacency = nx.to_scipy_sparse_array(plain, nodelist=order)
    sparse.save_npz(folder / "a.npz", adjacency)
    mmwrite(folder / "a.mtx", adjacency)
    lines = [f"{a} {b}".replace("site ", "site") for a, b in graph.edges]
    (folder / "a.txt").write_text("\n".join(lines))
    if base is None:
        assert [f"site{node + 1}" for node in order] == list(
            build_schedule(f"file:{folder}/a.txt", nodes).names
        )
    names = [name_of(graph), name_of(adjacency), name_of(adjacency.toarray())]
    names += [f"file:{folder}/a.{ending}" for ending in ("graphml", "npz", "mtx")]
    found = [build_schedule(name, nodes) for name in names]
    found.append(build_schedule(f"file:{folder}/a.txt", nodes, undirected=not directed or None))
    for schedule in found:
        assert schedule.graphs[0].edges == edges_of(plain, order)
        connected = nx.is_strongly_connected(nx.DiGraph(plain))
        assert connected
        check_strongly_connected(schedule)


@PROPERTY
@given(nodes=st.integers(2, 14), density=st.floats(0.0, 0.3), seed=st.integers(0, 99))
def test_parts_are_those_of_networkx(nodes, density, seed):
    graph = nx.gnp_random_graph(nodes, density, seed, directed=True)
    schedule = build_schedule(name_of(graph), nodes)
    parts = list(nx.strongly_connected_components(graph))
    if len(parts) == 1:
        check_strongly_connected(schedule)
        return
    with pytest.raises(InputError) as refused:
        check_strongly_connected(schedule)
    said = str(refused.value)
    largest = max(map(len, parts))
    shown = [", ".join(map(str, sorted(part)[:10])) for part in parts if len(part) == largest]
    assert f"it has {len(parts)} parts, " in said
    assert any(f"parts, {one}" in said for one in shown)
    assert said.endswith(f" | {len(parts) - 3} more") == (len(parts) > 3)


def stochastic(nodes, seed, doubly):
    """A mixing matrix: of columns, by chance; or symmetric, by networkx's Laplacian."""
    random = np.random.default_rng(seed)
    graph = nx.gnp_random_graph(nodes, 0.5, seed)
    graph.add_edges_from((node, (node + 1) % nodes) for node in range(nodes))
    laplacian = nx.laplacian_matrix(graph).toarray()
    if doubly:
        return np.eye(nodes) - laplacian / (laplacian.diagonal().max() + random.uniform(0.5, 2))
    matrix = (laplacian != 0) * random.uniform(0.1, 1, (nodes, nodes))
    return matrix / matrix.sum(0)


@PROPERTY
@given(
    nodes=st.integers(2, 9),
    seed=st.integers(0, 99),
    doubly=st.booleans(),
    period=st.integers(1, 3),
    packed=st.booleans(),
)
def test_a_mixing_matrix_is_used_as_it_is(nodes, seed, doubly, period, packed):
    matrices = [stochastic(nodes, seed + step, doubly) for step in range(period)]
    given_as = [sparse.coo_array(matrix) if packed else matrix for matrix in matrices]
    mixing = build_mixing(build_schedule(name_of(given_as), nodes))
    assert not doubly or mixing.kind == "doubly-stochastic"
    product = np.eye(nodes)
    for own, matrix in zip(mixing.weights, matrices, strict=True):
        assert np.array_equal(own.matrix(), matrix)
        check_column_stochastic(own)
        product = matrix @ product
        if doubly:
            check_doubly_stochastic(own)
    second = np.sort(np.abs(np.linalg.eigvals(product)))[-2]
    assert contraction(mixing) == pytest.approx(second ** (1 / period), abs=1e-3)


def test_weights_of_edges_leave_each_node_the_rest(tmp_path):
    graph = nx.DiGraph()
    graph.add_weighted_edges_from([("a", "b", 0.25), ("b", "c", 0.5), ("c", "a", 0.125)])
    nx.write_graphml(graph, tmp_path / "w.graphml")
    (tmp_path / "w.txt").write_text("b c 0.5\nc a 0.125\na b 0.25\n")
    wanted = np.array([[0.75, 0, 0.125], [0.25, 0.5, 0], [0, 0.5, 0.875]])
    for name in (name_of(graph), f"file:{tmp_path}/w.graphml", f"file:{tmp_path}/w.txt"):
        schedule = build_schedule(name, 3)
        assert schedule.names == ("a", "b", "c")
        assert np.array_equal(build_mixing(schedule).weights[0].matrix(), wanted)
        with pytest.raises(InputError, match="has its own: leave it out"):
            build_mixing(schedule, "laplacian")
    # By the sites' order, where the names are theirs.
    turned = build_schedule(name_of(graph), 3, names=("c", "a", "b"))
    assert turned.names is None
    assert build_mixing(turned).weights[0].matrix()[1, 0] == 0.125


def test_functions_and_lists_take_turns(tmp_path, monkeypatch):
    (tmp_path / "own_graphs.py").write_text(
        "import networkx as nx\n"
        "def hops(nodes, seed):\n"
        "    ends = range(nodes)\n"
        "    return [nx.DiGraph((a, (a + hop) % nodes) for a in ends) for hop in (1, 2)]\n"
        "def nothing():\n    return None\n"
    )
    monkeypatch.chdir(tmp_path)
    schedule = build_schedule("own_graphs:hops", 5, call=call_function)
    assert (schedule.period, schedule.directed) == (2, True)
    assert schedule.graphs[1].edges == {(node, (node + 2) % 5) for node in range(5)}
    np.savez(tmp_path / "two.npz", *(np.roll(np.eye(5), hop, 1) for hop in (1, 2)))
    assert build_schedule("file:two.npz", 5).graphs == schedule.graphs
    with pytest.raises(InputError, match="must be a networkx graph"):
        build_schedule("own_graphs:nothing", 5, call=call_function)


def test_a_graph_in_an_experiment_is_named_by_what_it_holds():
    first = Config(topology={"graph": nx.cycle_graph(16)})
    again = Config(topology={"graph": nx.to_numpy_array(nx.cycle_graph(16))})
    other = Config(topology={"graph": nx.path_graph(16)})
    assert first.topology.graph == again.topology.graph != other.topology.graph
    with pytest.raises(InputError, match="pass it again"):
        build_schedule("given:0123", 16)


HALF = np.full((2, 2), 0.5)
REFUSED = {
    "row 0 sums to 1.1.*must sum to 1": np.array([[0.6, 0.5], [0.4, 0.5]]),
    "column 1 sums to 0.5": np.array([[0.5, 0.25], [0.5, 0.25]]),
    "weights must be 0 or more": np.array([[1.5, -0.5], [-0.5, 1.5]]),
    "nan": np.array([[np.nan, 0.5], [0.5, 0.5]]),
    "not symmetric": np.array([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.3, 0.2, 0.5]]),
    "with weights and others without": [HALF, np.eye(2)[::-1]],
    "node 2 is not one of 0..1": nx.path_graph(3),
    "from node 1 that sum to 2": nx.Graph([(0, 1, {"weight": 1}), (1, 2, {"weight": 1.0})]),
    "no numbers": nx.Graph([(0, 1, {"weight": "far"})]),
    "square matrix": np.zeros((2, 3)),
    "square matrix of numbers": HALF.astype(complex),
    "a list of these": [["ring"]],
    "1 to 10,000 graphs": [],
}
REFUSED["from node 1 that sum to 2"].add_edge(0, 2, weight=0.5)


def checked(value, nodes):
    for own in build_mixing(build_schedule(name_of(value), nodes)).weights:
        check_doubly_stochastic(own)


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_no_graph_or_no_mixing_is_refused_in_a_line(said):
    value = REFUSED[said]
    nodes = len(value[0] if isinstance(value, list) and value else value) if said else 2
    nodes = 2 if "not one of" in said else nodes
    with pytest.raises(InputError, match=said) as refused:
        checked(value, nodes)
    assert "\n" not in str(refused.value)


def bomb():
    """An archive that says it unpacks to more than it may."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.npy", bytes(8))
        archive.infolist()[0].file_size = 8 * 12_000**2
    return file.getvalue()


def out_of_range():
    file = io.BytesIO()
    sparse.save_npz(file, sparse.csr_array(np.eye(3)))
    parts = dict(np.load(io.BytesIO(file.getvalue())))
    parts["indices"] = np.array([0, 10**6, 2], np.int32)
    file = io.BytesIO()
    np.savez(file, **parts)
    return file.getvalue()


def pickled():
    file = io.BytesIO()
    np.savez(file, a=np.array([object()], dtype=object))
    return file.getvalue()


def shaped():
    file = io.BytesIO()
    sparse.save_npz(file, sparse.coo_array(([1.0], ([0], [1])), shape=(10**9, 10**9)))
    return file.getvalue()


MTX = b"%%MatrixMarket matrix coordinate real general\n"
HOSTILE = {
    "bomb.npz": bomb,
    "range.npz": out_of_range,
    "pickle.npz": pickled,
    "shape.npz": shaped,
    "half.npz": lambda: shaped()[:300],
    "empty.npz": lambda: b"",
    "large.mtx": lambda: MTX + b"100000000 100000000 1000000000000\n1 1 1\n",
    "range.mtx": lambda: MTX + b"2 2 1\n9 9 1\n",
    "no.mtx": lambda: b"\x00\xff" * 50,
    "laughs.graphml": lambda: (
        b'<!DOCTYPE x [<!ENTITY a0 "ha">'
        + b"".join(b'<!ENTITY a%d "%s">' % (n, b"&a%d;" % (n - 1) * 50) for n in range(1, 9))
        + b"]><graphml><graph><node id='&a8;'/></graph></graphml>"
    ),
    "cut.graphml": lambda: b"<graphml><graph>",
    "none.graphml": lambda: b"<html></html>",
}


def test_an_edge_of_no_weight_is_none():
    graph = nx.Graph([(0, 1, {"weight": 0.0}), (1, 2, {"weight": 0.25})])
    packed = sparse.csr_array(([0.5, 0.0, 0.5], ([0, 0, 1], [1, 2, 2])), (3, 3))
    for given_one in (graph, packed):
        schedule = build_schedule(name_of(given_one), 3)
        assert len(schedule.graphs[0].edges) == 2
        with pytest.raises(InputError, match="not strongly connected"):
            check_strongly_connected(schedule)


@pytest.mark.parametrize("label", ["sooth", 7, "1"])
def test_a_name_beside_those_of_nodes_is_no_permutation(label):
    names = ["north", "east", "south", "west"]
    graph = name_of(nx.cycle_graph(["north", "east", label, "west"]))
    with pytest.raises(InputError, match=rf"(north|node {label}) is not one of 0\.\.3"):
        build_schedule(graph, 4, names=names)
    with pytest.raises(InputError, match="node south is not one"):
        build_schedule(name_of(nx.cycle_graph([0, 1, "south", 3])), 4, names=names)


def test_a_mixing_matrix_is_not_made_undirected():
    with pytest.raises(InputError, match="a mixing matrix says each direction") as refused:
        build_schedule(name_of(HALF), 2, undirected=True)
    assert refused.value.where == "topology.undirected"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_in_a_line(tmp_path, name):
    (tmp_path / name).write_bytes(HOSTILE[name]())
    with pytest.raises(InputError) as refused:
        build_schedule(f"file:{tmp_path / name}", 3)
    assert refused.value.where == "topology.graph"
    assert "\n" not in str(refused.value)


def test_networkx_is_asked_for_in_a_line(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(InputError, match=r"pip install 'networkx>=3.2'"):
        build_schedule("barabasi-albert", 8, degree=2)


@pytest.mark.parametrize("seed", [0, 1])
def test_drawn_kinds_are_those_of_networkx_and_of_the_seed(seed):
    small = build_schedule("small-world", 20, degree=4, probability=0.2, seed=seed)
    grown = build_schedule("barabasi-albert", 20, degree=3, seed=seed)
    cube = build_schedule("hypercube", 16)
    assert len(small.graphs[0].edges) == 80
    assert len(grown.graphs[0].edges) == 2 * 3 * 17
    assert nx.is_isomorphic(nx.Graph(list(cube.graphs[0].edges)), nx.hypercube_graph(4))
    for schedule in (small, grown, cube):
        check_strongly_connected(schedule)
        assert not schedule.directed
    assert build_schedule("small-world", 20, degree=4, probability=0.2, seed=seed) == small
    assert build_schedule("barabasi-albert", 20, degree=3, seed=seed + 1) != grown
    with pytest.raises(InputError, match="power of two as the number of nodes, not 12"):
        build_schedule("hypercube", 12)
    with pytest.raises(InputError, match="even number from 1 to 19"):
        build_schedule("small-world", 20, degree=3, probability=0.2)
