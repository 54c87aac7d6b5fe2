import math
from dataclasses import replace

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.report.charts import keys
from tacit.report.documents.metrics import Spread
from tacit.report.documents.run import CommunicationGraph, read_run_folder
from tacit.report.graph_chart import degree_sentence, graph_chart, union_edges
from tacit.report.run_charts import run_charts, thinned
from web_pages import drawn


def charts_of(run):
    return {chart.key: chart for _, charts in run_charts(run) for chart in charts}


def lines_of(chart):
    return {trace.name: trace for trace in drawn(chart).data}


def test_every_chart_of_a_full_run_is_drawn(write_run):
    charts = charts_of(read_run_folder(write_run()))
    assert len(charts) == 11
    assert all(chart.figure is not None and chart.caption for chart in charts.values())


def test_lines_hold_the_measured_values(write_run):
    run = read_run_folder(write_run())
    charts = charts_of(run)
    worst = lines_of(charts["accuracy-bytes"])["worst node"]
    assert list(worst.x) == [line.bytes_sent for line in run.measurements]
    assert list(worst.y) == [line.test_accuracy.worst for line in run.measurements]
    certified = lines_of(charts["epsilon-steps"])["certified, highest node"]
    assert list(certified.x) == [line.step for line in run.measurements]
    assert certified.y[-1] == 2.9912


def test_the_train_loss_is_labelled_as_not_covered(write_run):
    charts = charts_of(read_run_folder(write_run()))
    assert any("not covered by epsilon" in name for name in lines_of(charts["loss-steps"]))
    assert "not covered by epsilon" in charts["loss-steps"].caption
    assert "not covered by epsilon" in charts["gradients"].caption


def test_the_calibration_curve_has_every_bin_with_its_count(write_run):
    chart = charts_of(read_run_folder(write_run()))["calibration"]
    observed, line = drawn(chart).data
    assert (list(observed.x), list(observed.y)) == ([0.55, 0.999], [0.7, 0.98])
    assert list(observed.text) == ["179", "180"]
    assert list(line.x) == list(line.y)
    assert "a group of 179 to 180 of the 359 test records" in chart.caption


def test_charts_without_data_say_so(star_run):
    charts = charts_of(read_run_folder(star_run))
    absent = {key for key, chart in charts.items() if chart.figure is None}
    assert absent == {"accuracy-steps", "accuracy-bytes", "epsilon-steps"}
    assert charts.keys().isdisjoint({"epsilon-nodes", "noise"})
    assert "no test set" in charts["accuracy-steps"].absent
    assert list(lines_of(charts["loss-steps"])) == ["train (private, not covered by epsilon)"]


def test_without_measurements_every_series_says_so(write_run):
    charts = charts_of(read_run_folder(write_run(metrics=[])))
    drawn = {key for key, chart in charts.items() if chart.figure is not None}
    assert drawn == {"calibration", "epsilon-nodes", "graph"}
    assert charts["accuracy-steps"].absent == "Nothing was measured in this run."


def test_single_nulls_leave_gaps(write_run):
    run = read_run_folder(write_run())
    first, *rest = run.measurements
    hole = first.model_copy(
        update={"test_accuracy": None, "consensus_distance": 0.0, "bytes_sent": None}
    )
    charts = charts_of(replace(run, measurements=(hole, *rest)))
    assert lines_of(charts["accuracy-steps"])["worst node"].y[0] is None
    (distance,) = drawn(charts["consensus"]).data
    assert distance.y[0] is None, "zero has no place on a logarithmic axis"
    assert distance.y[1] == rest[0].consensus_distance


def test_equal_models_are_said_to_be_equal(write_run):
    run = read_run_folder(write_run())
    equal = tuple(line.model_copy(update={"consensus_distance": 0.0}) for line in run.measurements)
    chart = charts_of(replace(run, measurements=equal))["consensus"]
    assert chart.figure is None
    assert "zero" in chart.absent


def test_epsilons_far_apart_get_a_logarithmic_axis(write_run):
    near = charts_of(read_run_folder(write_run()))
    far = charts_of(read_run_folder(write_run({"claimed_epsilon": [0.01] * 16})))
    assert drawn(near["epsilon-nodes"]).layout.yaxis.type == "linear"
    assert drawn(near["epsilon-steps"]).layout.yaxis.type == "linear"
    assert drawn(far["epsilon-nodes"]).layout.yaxis.type == "log"


def test_many_nodes_are_drawn_as_ordered_lines(write_run):
    epsilon = [1.0 + (node * 7 % 100) for node in range(100)]
    run = read_run_folder(write_run({"epsilon": epsilon}, nodes=100))
    chart = charts_of(run)["epsilon-nodes"]
    certified = lines_of(chart)["certified"]
    assert certified.mode == "lines"
    assert list(certified.y) == [1.0 + share for share in range(100)]
    assert certified.customdata[1] == 43, "7 * 43 = 301: the second lowest epsilon"


def test_long_series_are_thinned_and_keep_their_end(write_run):
    (line, *_) = read_run_folder(write_run()).measurements
    series = [line.model_copy(update={"step": step}) for step in range(5000)]
    kept = [measurement.step for measurement in thinned(series)]
    assert len(kept) <= 2001
    assert (kept[0], kept[-1]) == (0, 4999)
    assert thinned(series[:2000]) == tuple(series[:2000])
    assert thinned([]) == ()


def test_a_chart_that_would_be_a_flat_line_is_left_out(write_run):
    run = read_run_folder(write_run({"epsilon": [2.99] * 16, "claimed_epsilon": [1.2] * 16}))
    flat = tuple(line.model_copy(update={"noise_std": 0.25}) for line in run.measurements)
    assert "noise" in charts_of(run)
    left = charts_of(replace(run, measurements=flat))
    assert left.keys().isdisjoint({"noise", "epsilon-nodes"})


def test_nodes_that_differ_by_less_than_is_shown_are_not_drawn(write_run):
    epsilon = [2.9801 + 1e-4 * node for node in range(16)]
    claimed = [1.2] * 16
    assert "epsilon-nodes" not in charts_of(
        read_run_folder(write_run({"epsilon": epsilon, "claimed_epsilon": claimed}))
    )


def test_lines_differ_by_more_than_their_colour(write_run):
    for chart in charts_of(read_run_folder(write_run())).values():
        figure = chart.figure
        assert figure is not None
        entries = keys(figure)
        marks = {(entry.dashes, entry.outline, entry.filled) for entry in entries}
        assert len(marks) == len(entries), chart.key


def test_an_epsilon_beyond_all_meaning_is_not_drawn(write_run):
    run = read_run_folder(write_run({"claimed_epsilon": [2e52] * 16}))
    beyond = tuple(
        line.model_copy(update={"claimed_epsilon": Spread(max=2e52, min=2e52)})
        for line in run.measurements
    )
    charts = charts_of(replace(run, measurements=beyond))
    assert list(lines_of(charts["epsilon-nodes"])) == ["budget", "certified"]
    assert len(lines_of(charts["epsilon-steps"])) == 2
    for key in ("epsilon-steps", "epsilon-nodes"):
        assert "is no protection, and is not drawn" in charts[key].caption


#


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
    edges = tuple(tuple((i, (i + hop) % 8) for i in range(8)) for hop in (1, 2, 4))
    chart = graph_chart(topology(edges), 8)
    *layers, nodes = drawn(chart).data
    assert [layer.name for layer in layers] == ["graph 1 of 3", "graph 2 of 3", "graph 3 of 3"]
    assert len({layer.line.color for layer in layers}) == 3
    assert len(nodes.x) == 8
    assert "3 graphs" in chart.caption


def test_a_long_period_is_drawn_as_one_union():
    edges = tuple(tuple((i, (i + hop) % 10) for i in range(10)) for hop in range(1, 10))
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
    edges = (((0, 1), (0, 2)), ((0, 1), (1, 2), (3, 3)))
    directed = degree_sentence(topology(edges), 4)
    assert "out-degree 0 to 2 (mean 0.8) and in-degree 0 to 2 (mean 0.8)" in directed
    assert "has degree 0 to 2 (mean 1.5)" in degree_sentence(topology(edges, False), 4)
