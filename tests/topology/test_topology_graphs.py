"""Named graphs against networkx, and graph files."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import InputError
from tacit.topology.graphs import (
    complete,
    directed_ring,
    exponential,
    graph_of,
    k_regular,
    read_graph_file,
    ring,
    star,
)

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
Write = Callable[[str | bytes], Path]


def both_ways(graph: nx.Graph) -> set[tuple[int, int]]:
    """Edges of a networkx graph, in both directions, without self loops."""
    return {pair for a, b in graph.edges for pair in ((a, b), (b, a)) if a != b}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(content: str | bytes) -> Path:
        path = tmp_path / "net.txt"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return written


@pytest.mark.parametrize("n", range(1, 41))
def test_named_graphs_are_those_of_networkx(n: int) -> None:
    assert ring(n) == graph_of(n, frozenset(both_ways(nx.cycle_graph(n))))
    assert complete(n) == graph_of(n, frozenset(both_ways(nx.complete_graph(n))))
    assert star(n) == graph_of(n, frozenset(both_ways(nx.star_graph(n - 1))))
    one_way = nx.cycle_graph(n, create_using=nx.DiGraph)
    assert directed_ring(n).edges == {(a, b) for a, b in one_way.edges if a != b}


@pytest.mark.parametrize("n", range(1, 41))
def test_symmetry(n: int) -> None:
    assert ring(n).symmetric
    assert complete(n).symmetric
    assert star(n).symmetric
    assert directed_ring(n).symmetric == (n <= 2)
    assert all(graph.symmetric for graph in exponential(n)) == (n <= 2)


@PROPERTY
@given(data=st.data(), n=st.integers(3, 40))
def test_k_regular_is_a_circulant_of_that_degree(data: st.DataObject, n: int) -> None:
    r = data.draw(st.integers(1, (n - 1) // 2))
    graph = k_regular(n, 2 * r)
    assert graph.edges == both_ways(nx.circulant_graph(n, range(1, r + 1)))
    for node in range(n):
        assert sum(source == node for source, _ in graph.edges) == 2 * r
        assert sum(target == node for _, target in graph.edges) == 2 * r


@pytest.mark.parametrize(("n", "degree"), [(8, 3), (8, 8), (8, 10), (8, -2), (8, 0), (7, 7)])
def test_k_regular_refuses_a_degree_it_cannot_have(n: int, degree: int) -> None:
    with pytest.raises(InputError) as refused:
        k_regular(n, degree)
    assert refused.value.where == "topology.degree"
    assert refused.value.value == degree


def test_k_regular_says_which_degrees_are_right() -> None:
    with pytest.raises(InputError, match="even and at most 6"):
        k_regular(8, 3)
    with pytest.raises(InputError, match="needs 3 nodes or more"):
        k_regular(2, 2)


@pytest.mark.parametrize("n", range(2, 70))
def test_exponential_has_one_peer_a_step_at_doubling_hops(n: int) -> None:
    graphs = exponential(n)
    assert len(graphs) == math.floor(math.log2(n - 1)) + 1
    for j, graph in enumerate(graphs):
        assert graph.nodes == n
        assert sorted(graph.edges) == [(i, (i + 2**j) % n) for i in range(n)]


def test_one_node_alone_has_one_exponential_graph_without_edges() -> None:
    assert list(exponential(1)) == [graph_of(1, frozenset())]


def test_file_with_everything_that_is_allowed(write: Write) -> None:
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


def pairs(n: int) -> st.SearchStrategy[frozenset[tuple[int, int]]]:
    node = st.integers(0, n - 1)
    return st.frozensets(st.tuples(node, node).filter(lambda pair: pair[0] != pair[1]), min_size=1)


@PROPERTY
@given(
    blocks=st.lists(pairs(7), min_size=1, max_size=4),
    separator=st.sampled_from(["\n", "\n\n\n", " \n# between\n\t\n"]),
    within=st.sampled_from(["", "# within\n", "   # within, indented\n"]),
)
def test_written_graphs_are_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    blocks: list[frozenset[tuple[int, int]]],
    separator: str,
    within: str,
) -> None:
    def text(edges: Iterable[tuple[int, int]]) -> str:
        return within.join(f"{source} {target}\n" for source, target in edges)

    path = tmp_path_factory.getbasetemp() / "written.txt"
    path.write_text(separator.join(text(block) for block in blocks))
    assert list(read_graph_file(path, 7)) == [graph_of(7, block) for block in blocks]


@pytest.mark.parametrize(
    ("content", "line", "named"),
    [
        ("0 1\n1 x\n", 2, "x"),
        ("# comment\n\n0 1 2\n", 3, "0 1 2"),
        ("0 1\n\n1\n", 3, "1"),
        ("0 1.0\n", 1, "1.0"),
        ("0 1_0\n", 1, "1_0"),
        ("0, 1\n", 1, "0,"),
        ("0 1\n1 4\n", 2, "4"),
        ("0 1\n\n\n-1 0\n", 4, "-1"),
    ],
)
def test_a_wrong_line_is_named(write: Write, content: str, line: int, named: str) -> None:
    with pytest.raises(InputError, match=rf"net\.txt.*line {line}\b") as refused:
        read_graph_file(write(content), 4)
    assert refused.value.where == "topology.graph"
    assert named in str(refused.value)


def test_a_node_out_of_range_is_told_the_range(write: Write) -> None:
    with pytest.raises(InputError, match=r"node 12\b.*\b3\b"):
        read_graph_file(write("0 12\n"), 4)


@pytest.mark.parametrize("content", ["", "\n\n", "# nothing but a comment\n"])
def test_a_file_without_pairs_is_refused(write: Write, content: str) -> None:
    with pytest.raises(InputError, match=r"net\.txt.*source target") as refused:
        read_graph_file(write(content), 4)
    assert refused.value.where == "topology.graph"


def test_unreadable_files_are_refused(write: Write, tmp_path: Path) -> None:
    for path in (tmp_path / "absent.txt", tmp_path, write(b"0 1\n\xff\xfe\n")):
        with pytest.raises(InputError) as refused:
            read_graph_file(path, 4)
        assert refused.value.where == "topology.graph"
        assert path.name in str(refused.value)


def test_a_graph_file_error_keeps_its_line_however_long_the_path(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    path = folder / "graph.txt"
    path.write_text(f"0 1\n1 {'9' * 5000}\n")
    with pytest.raises(InputError, match=r"graph\.txt, line 2 must be two node numbers"):
        read_graph_file(path, 3)


def test_a_byte_order_mark_is_not_content(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    path.write_bytes(b"\xef\xbb\xbf0 1\n1 0\n")
    assert read_graph_file(path, 2)[0].edges == {(0, 1), (1, 0)}
