"""Named graphs against networkx, and graph files.

Named schedules, their periods and options, and schedules from files.
"""

import math
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from few import few
from tacit.errors import InputError
from tacit.topology import graphs, own
from tacit.topology.graphs import (
    GRAPHS,
    GraphSchedule,
    complete,
    directed_ring,
    exponential,
    graph_of,
    k_regular,
    ring,
    star,
)
from tacit.topology.own import build_schedule

PROPERTY = few(20, 60)
Write = Callable[[str | bytes], Path]


def both_ways(graph):
    """Edges of a networkx graph, in both directions, without self loops."""
    return {pair for a, b in graph.edges for pair in ((a, b), (b, a)) if a != b}


@pytest.fixture
def write(tmp_path):
    def written(content):
        path = tmp_path / "net.txt"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return written


@pytest.mark.parametrize("n", range(1, 41))
def test_named_graphs_are_those_of_networkx(n):
    assert ring(n) == graph_of(n, frozenset(both_ways(nx.cycle_graph(n))))
    assert complete(n) == graph_of(n, frozenset(both_ways(nx.complete_graph(n))))
    assert star(n) == graph_of(n, frozenset(both_ways(nx.star_graph(n - 1))))
    one_way = nx.cycle_graph(n, create_using=nx.DiGraph)
    assert directed_ring(n).edges == {(a, b) for a, b in one_way.edges if a != b}


@pytest.mark.parametrize("n", range(1, 41))
def test_symmetry(n):
    assert ring(n).symmetric
    assert complete(n).symmetric
    assert star(n).symmetric
    assert directed_ring(n).symmetric == (n <= 2)
    assert all(graph.symmetric for graph in exponential(n)) == (n <= 2)


@PROPERTY
@given(data=st.data(), n=st.integers(3, 40))
def test_k_regular_is_a_circulant_of_that_degree(data, n):
    r = data.draw(st.integers(1, (n - 1) // 2))
    graph = k_regular(n, 2 * r)
    assert graph.edges == both_ways(nx.circulant_graph(n, range(1, r + 1)))
    for node in range(n):
        assert sum(source == node for source, _ in graph.edges) == 2 * r
        assert sum(target == node for _, target in graph.edges) == 2 * r


@pytest.mark.parametrize(("n", "degree"), [(8, 3), (8, 8), (8, 10), (8, -2), (8, 0), (7, 7)])
def test_k_regular_refuses_a_degree_it_cannot_have(n, degree):
    with pytest.raises(InputError) as refused:
        k_regular(n, degree)
    assert refused.value.where == "topology.degree"
    assert refused.value.value == degree


def test_k_regular_says_which_degrees_are_right():
    with pytest.raises(InputError, match="even and at most 6"):
        k_regular(8, 3)
    with pytest.raises(InputError, match="needs 3 nodes or more"):
        k_regular(2, 2)


@pytest.mark.parametrize("n", range(2, 70))
def test_exponential_has_one_peer_a_step_at_doubling_hops(n):
    graphs = exponential(n)
    assert len(graphs) == math.floor(math.log2(n - 1)) + 1
    for j, graph in enumerate(graphs):
        assert graph.nodes == n
        assert sorted(graph.edges) == [(i, (i + 2**j) % n) for i in range(n)]


def test_one_node_alone_has_one_exponential_graph_without_edges():
    assert list(exponential(1)) == [graph_of(1, frozenset())]


def test_file_with_everything_that_is_allowed(write):
    path = write(
        "# a sequence of two graphs\n"
        "\n"
        "0 1   # trailing comment\n"
        "\t1  2\n"
        "# a comment line does not separate\n"
        "2 0\n"
        "0 1\n"  # a duplicate
        "\n"
        "   \n"
        "# between blank lines\n"
        "\n"
        "1 0#tight\r\n"
        "3 3\n"  # a node keeps its part anyway
        "\n"
        "\n"
    )
    first, second = read_graph_file(path, 4)
    assert first == graph_of(4, frozenset({(0, 1), (1, 2), (2, 0)}))
    assert second == graph_of(4, frozenset({(1, 0)}))


def read_graph_file(path, nodes):
    return build_schedule(f"file:{path}", nodes).graphs


def pairs(n):
    node = st.integers(0, n - 1)
    return st.frozensets(st.tuples(node, node).filter(lambda pair: pair[0] != pair[1]), min_size=1)


@PROPERTY
@given(
    blocks=st.lists(pairs(7), min_size=1, max_size=4),
    separator=st.sampled_from(["\n", "\n\n\n", " \n# between\n\t\n"]),
    within=st.sampled_from(["", "# within\n", "   # within, indented\n"]),
)
def test_written_graphs_are_read_back(tmp_path_factory, blocks, separator, within):
    def text(edges):
        return within.join(f"{source} {target}\n" for source, target in edges)

    path = tmp_path_factory.getbasetemp() / "written.txt"
    path.write_text(separator.join(text(block) for block in blocks))
    assert list(read_graph_file(path, 7)) == [graph_of(7, block) for block in blocks]


@pytest.mark.parametrize(
    ("content", "line", "named"),
    [
        ("0 1\n1 x\n", 2, "x"),
        ("# comment\n\n0 1 2 3\n", 3, "0 1 2 3"),
        ("0 1\n\n1\n", 3, "1"),
        ("0 1.0\n", 1, "1.0"),
        ("0 1_0\n", 1, "1_0"),
        ("0, 1\n", 1, "0,"),
        ("0 1\n1 4\n", 2, "4"),
        ("0 1\n\n\n-1 0\n", 4, "-1"),
    ],
)
def test_a_wrong_line_is_named(write, content, line, named):
    with pytest.raises(InputError, match=rf"net\.txt.*line {line}\b") as refused:
        read_graph_file(write(content), 4)
    assert refused.value.where == "topology.graph"
    assert named in str(refused.value)


def test_a_file_holds_so_many_graphs_and_edges_and_no_more(write, monkeypatch):
    monkeypatch.setattr(own, "_MOST_GRAPHS", 3)
    monkeypatch.setattr(graphs, "MOST_EDGES", 5)
    assert len(read_graph_file(write("0 1\n\n1 2\n\n2 3\n3 0\n"), 4)) == 3
    for content in ("0 1\n\n" * 4, "0 1\n" * 6):
        line = 7 if content.count("\n\n") else 6
        with pytest.raises(InputError, match=rf"line {line}: 3 graphs and 5 edges are the most"):
            read_graph_file(write(content), 4)
    with pytest.raises(InputError, match=r"net\.txt, line 1 must be two node numbers"):
        read_graph_file(write("0 " * 2**20), 4)


def test_a_node_out_of_range_is_told_the_range(write):
    with pytest.raises(InputError, match=r"node 12\b.*\b3\b"):
        read_graph_file(write("0 12\n"), 4)


@pytest.mark.parametrize("content", ["", "\n\n", "# nothing but a comment\n"])
def test_a_file_without_pairs_is_refused(write, content):
    with pytest.raises(InputError, match=r"net\.txt.*source target") as refused:
        read_graph_file(write(content), 4)
    assert refused.value.where == "topology.graph"


def test_unreadable_files_are_refused(write, tmp_path):
    for path in (tmp_path / "absent.txt", tmp_path, write(b"0 1\n\xff\xfe\n")):
        with pytest.raises(InputError) as refused:
            read_graph_file(path, 4)
        assert refused.value.where == "topology.graph"
        assert path.name in str(refused.value)


def test_a_graph_file_error_keeps_its_line_however_long_the_path(tmp_path):
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    path = folder / "graph.txt"
    path.write_text(f"0 1\n1 {'9' * 5000}\n")
    with pytest.raises(InputError, match=r"graph\.txt, line 2 must be two node numbers"):
        read_graph_file(path, 3)


def test_a_byte_order_mark_is_not_content(tmp_path):
    path = tmp_path / "graph.txt"
    path.write_bytes(b"\xef\xbb\xbf0 1\n1 0\n")
    assert read_graph_file(path, 2)[0].edges == {(0, 1), (1, 0)}


UNDIRECTED = {
    "ring",
    "complete",
    "star",
    "k-regular",
    "torus",
    "erdos-renyi",
    "small-world",
    "barabasi-albert",
    "hypercube",
}
DIRECTED = {"directed-ring", "exponential"}
KEYS = {
    "k-regular": {"degree": 2},
    "torus": {"shape": (2, 8)},
    "erdos-renyi": {"probability": 0.6},
    "small-world": {"degree": 2, "probability": 0.1},
    "barabasi-albert": {"degree": 1},
}
BARE = sorted(UNDIRECTED.union(DIRECTED).difference(KEYS))


def test_every_known_graph_is_covered_here():
    assert set(GRAPHS) == UNDIRECTED | DIRECTED


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        (name, nodes)
        for name in sorted(GRAPHS)
        for nodes in (3, 4, 7, 16)
        if name not in ("torus", "hypercube")
    ]
    + [("torus", 16), ("hypercube", 16)],
)
def test_named_schedules(name, nodes):
    schedule = build_schedule(name, nodes, **KEYS.get(name, {}))
    assert schedule.name == name
    assert schedule.nodes == nodes
    assert schedule.directed == (name in DIRECTED)
    assert schedule.period == ((nodes - 1).bit_length() if name == "exponential" else 1)


@pytest.mark.parametrize("name", BARE)
def test_one_and_two_nodes(name):
    assert build_schedule(name, 1).graphs == (graph_of(1, frozenset()),)
    assert build_schedule(name, 2).graphs == (graph_of(2, frozenset({(0, 1), (1, 0)})),)
    assert not build_schedule(name, 2).directed


def test_a_schedule_repeats():
    graphs = tuple(graph_of(3, frozenset({(i, (i + 1) % 3)})) for i in range(3))
    schedule = GraphSchedule("given", graphs)
    assert [schedule.at(k) for k in range(7)] == [*graphs, *graphs, graphs[0]]


def test_one_asymmetric_graph_makes_a_schedule_directed():
    both, one_way = graph_of(2, frozenset({(0, 1), (1, 0)})), graph_of(2, frozenset({(0, 1)}))
    assert GraphSchedule("given", (both, one_way)).directed
    assert not GraphSchedule("given", (both, both)).directed


def test_a_file_is_read_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "net.txt").write_text("0 1\n\n1 0\n")
    monkeypatch.chdir(tmp_path)
    schedule = build_schedule("file:net.txt", 2)
    assert schedule.name == "file:net.txt"
    assert schedule.graphs == (graph_of(2, frozenset({(0, 1)})), graph_of(2, frozenset({(1, 0)})))
    assert schedule.directed
    assert build_schedule(f"file:{tmp_path / 'net.txt'}", 2).graphs == schedule.graphs


@pytest.mark.parametrize(
    ("graph", "hint"),
    [("rings", "'ring'"), ("exponentail", "'exponential'"), ("zzz", "complete, directed-ring")],
)
def test_an_unknown_graph_is_told_the_nearest(graph, hint):
    with pytest.raises(InputError, match=hint) as refused:
        build_schedule(graph, 4)
    assert refused.value.where == "topology.graph"
    assert refused.value.value == graph


@pytest.mark.parametrize("graph", [*BARE, "torus", "erdos-renyi", "file:net.txt"])
def test_a_degree_is_refused_where_none_is_taken(graph, tmp_path, monkeypatch):
    (tmp_path / "net.txt").write_text("0 1\n1 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=graph) as refused:
        build_schedule(graph, 4, degree=2)
    assert refused.value.where == "topology.degree"


@pytest.mark.parametrize("degree", [None, 3, 6])
def test_k_regular_needs_a_fitting_degree(degree):
    with pytest.raises(InputError, match="even") as refused:
        build_schedule("k-regular", 6, degree=degree)
    assert refused.value.where == "topology.degree"
    assert refused.value.value == degree


@pytest.mark.parametrize("graph", ["file:", "file:absent.txt"])
def test_a_file_that_is_not_there_is_refused(graph, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refused:
        build_schedule(graph, 4)
    assert refused.value.where == "topology.graph"
