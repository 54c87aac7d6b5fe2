import math

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.report.documents.run import CommunicationGraph
from tacit.report.graph_chart import degree_sentence, graph_chart, union_edges
from web_pages import drawn

Edges = tuple[tuple[tuple[int, int], ...], ...]


def topology(edges, directed=True):
    return CommunicationGraph(
        graph="test", directed=directed, period=len(edges), contraction=0.5, edges=edges
    )


def complete(nodes):
    return (tuple((i, j) for i in range(nodes) for j in range(nodes)),)


edge_lists = st.lists(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20), min_size=1, max_size=4
)


@given(edge_lists, st.booleans())
def test_the_union_is_that_of_networkx(graphs, directed):
    oracle = networkx.DiGraph() if directed else networkx.Graph()
    for graph in graphs:
        oracle.add_edges_from(graph)
    oracle.remove_edges_from(list(networkx.selfloop_edges(oracle)))
    expected = set(oracle.edges) if directed else {tuple(sorted(edge)) for edge in oracle.edges}
    edges = tuple(tuple(graph) for graph in graphs)
    assert union_edges(topology(edges, directed)) == expected


def test_each_graph_of_a_short_period_has_a_colour():
    edges: Edges = tuple(tuple((i, (i + hop) % 8) for i in range(8)) for hop in (1, 2, 4))
    chart = graph_chart(topology(edges), 8)
    *layers, nodes = drawn(chart).data
    assert [layer.name for layer in layers] == ["graph 1 of 3", "graph 2 of 3", "graph 3 of 3"]
    assert len({layer.line.color for layer in layers}) == 3
    assert len(nodes.x) == 8
    assert "3 graphs" in chart.caption


def test_a_long_period_is_drawn_as_one_union():
    edges: Edges = tuple(tuple((i, (i + hop) % 10) for i in range(10)) for hop in range(1, 10))
    lines, _ = drawn(graph_chart(topology(edges), 10)).data
    assert len(lines.x) == 3 * 90


def test_lines_join_the_places_of_their_nodes():
    lines, nodes = drawn(graph_chart(topology((((0, 1), (1, 2), (2, 2)),)), 3)).data
    places = list(zip(nodes.x, nodes.y, strict=True))
    ends = list(zip(lines.x, lines.y, strict=True))
    assert ends == [places[0], places[1], (None, None), places[1], places[2], (None, None)]
    assert all(math.hypot(x, y) == pytest.approx(1) for x, y in places)
    # the arrow stands at the target: the second of three points
    assert list(lines.marker.size)[:3] == [0, lines.marker.size[1], 0]
    assert lines.marker.size[1] > 0


def test_undirected_graphs_have_no_arrows():
    lines, _ = drawn(graph_chart(topology((((0, 1), (1, 0)),), directed=False), 2)).data
    assert lines.mode == "lines"
    assert len(lines.x) == 3


def test_the_hub_of_a_star_stands_in_the_middle():
    star = graph_chart(topology((tuple((5, i) for i in range(5)),), directed=False), 5)
    _, nodes = drawn(star).data
    assert (nodes.x[5], nodes.y[5]) == (0, 0)
    assert nodes.text[5] == "server", "an end beyond the last node is the server"


@pytest.mark.parametrize(("nodes", "drawn"), [(200, True), (201, False)])
def test_graphs_with_too_many_nodes_are_described(nodes, drawn):
    chart = graph_chart(topology((tuple((i, (i + 1) % nodes) for i in range(nodes)),)), nodes)
    assert (chart.figure is not None) == drawn
    if not drawn:
        assert "too many to draw" in chart.absent
        assert "out-degree 1 and in-degree 1" in chart.absent


def test_graphs_with_too_many_edges_are_described():
    assert graph_chart(topology(complete(63)), 63).figure is not None  # 3906 edges
    assert "4,032 edges" in graph_chart(topology(complete(64)), 64).absent


def test_a_graph_without_edges_says_so():
    chart = graph_chart(topology(((),)), 1)
    assert chart.figure is None
    assert "no edges" in chart.absent


def test_degrees_are_counted_over_the_period():
    edges: Edges = (((0, 1), (0, 2)), ((0, 1), (1, 2), (3, 3)))
    directed = degree_sentence(topology(edges), 4)
    assert "out-degree 0 to 2 (mean 0.8) and in-degree 0 to 2 (mean 0.8)" in directed
    assert "has degree 0 to 2 (mean 1.5)" in degree_sentence(topology(edges, False), 4)
