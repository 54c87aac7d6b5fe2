"""The charts of a run: which series they show, and the sentence that tells how to read them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import TypeVar

from tacit.report.charts import (
    AMBER,
    BLUE,
    DASHES,
    GREEN,
    GREY,
    PURPLE,
    RED,
    SKY,
    Axis,
    Chart,
    Drawing,
    Series,
    Trace,
    base_layout,
    changed,
    has_wide_range,
    line_figure,
    scatter,
)
from tacit.report.documents.metrics import Measurement, Scores
from tacit.report.documents.run import CommunicationGraph, NodeRow, RecordedRun, ResultDocument
from tacit.report.measures import ACCURACY, LOSS, Measure
from tacit.report.protection import MOST_SHOWN, SIZE_NOTE
from tacit.report.wording import epsilon_text, number_text, percent_text

_STEPS = Axis("steps completed")
_BYTES = Axis("bytes sent by a node (mean)", ticks="~s", suffix="B")
_MOST_POINTS = 2000
_MOST_NODES_APART = 60
_GRAPH_COLOURS = (BLUE, RED, GREEN, AMBER, PURPLE, SKY, "#8c7a00", "#5b5fc7")
_GRAPH_DASHES = (*DASHES, "dot")
_MOST_NODES = 200  # of a graph that is drawn
_MOST_EDGES = 4000
_SMALLEST_LABELLED = 8.0
_GRAPH_HEIGHT = 440  # CSS pixels, of the chart beside it as well

Edge = tuple[int, int]
Group = TypeVar("Group")


def thinned(measurements: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """Keep about 2000 evenly spaced measurements at most, always with the last."""
    every = max(1, math.ceil(len(measurements) / _MOST_POINTS))
    kept = tuple(measurements[::every])
    return kept if kept[-1:] == tuple(measurements[-1:]) else (*kept, measurements[-1])


def model_charts(run: RecordedRun) -> list[Chart]:
    """Draw the leading score and losses, each against steps and against bytes sent."""
    measurements = thinned(run.measurements)
    measure, scores = run.result.leading
    if measure == LOSS:
        measure, scores = ACCURACY, None
    baseline = None if scores is None else scores.baseline
    charts = [*_score_charts(measurements, measure, baseline), *_loss_charts(measurements)]
    return [*charts, *([_calibration_chart(run.result)] if run.result.calibration else [])]


def _calibration_chart(result: ResultDocument) -> Chart:
    """Draw what was observed among test records against the probability that they were given."""
    bins = result.calibration
    predicted, counts = [own.predicted for own in bins], [own.records for own in bins]
    x, y = (Axis(title, ticks=".0~%") for title in ("mean predicted probability", "share observed"))
    series = [
        Series("observed", [own.observed for own in bins], BLUE, hover=".1%"),
        Series("as predicted", predicted, GREY, "dot", hover=".1%"),
    ]
    drawn = line_figure(predicted, x, y, series)
    if drawn is not None:  # always, of bins with records
        texts = [f"{count:,}" for count in counts]
        points = {"text": texts, "hovertemplate": "%{y:.1%} of %{text} records"}
        drawn = replace(drawn, data=[{**drawn.data[0], **points}, *drawn.data[1:]])
    return Chart(
        key="calibration",
        title="Calibration of the consensus model",
        caption=f"Each point is a group of {min(counts):,} to {max(counts):,} of the "
        f"{sum(counts):,} test records that were given similar probabilities. On the dotted line "
        "as many were observed as predicted; below it probabilities are too high. Of more than "
        "two classes it is about the predicted one.",
        figure=drawn,
        absent="",
    )


def privacy_charts(run: RecordedRun) -> list[Chart]:
    """Draw epsilon over the steps and, where nodes differ at the end, by node."""
    nodes = run.result.nodes
    shown = [(row.budget, row.claimed_epsilon, row.epsilon) for row in nodes]
    differ = len({tuple(map(epsilon_text, values)) for values in shown}) > 1
    return [_epsilon_chart(run), *([_epsilon_by_node_chart(run.result)] if differ else [])]


def gradient_charts(run: RecordedRun) -> list[Chart]:
    """Draw the norms of gradients before clipping and, where it changes, the noise."""
    measurements = thinned(run.measurements)
    charts = [_gradient_chart(measurements)]
    known = [line.noise_std for line in measurements if line.noise_std is not None]
    if known and max(known) > 1.01 * min(known):
        charts.append(_noise_chart(measurements, run.result.parameters))
    return charts


def network_charts(run: RecordedRun) -> list[Chart]:
    """Draw how far the nodes' models are apart, and the graph."""
    return [
        _consensus_chart(thinned(run.measurements), dict(run.result.consensus_forecast)),
        graph_chart(run.result.topology, len(run.result.nodes)),
    ]


def _over_steps(
    measurements: Sequence[Measurement], y: Axis, series: Sequence[Series]
) -> Drawing | None:
    return line_figure([measurement.step for measurement in measurements], _STEPS, y, series)


def _absent(measurements: Sequence[Measurement], reason: str) -> str:
    """Say why a chart is not drawn; `reason` is that of a run with measurements."""
    return reason if measurements else "Nothing was measured in this run."


def _grouped(
    measurements: Sequence[Measurement],
    group: Callable[[Measurement], Group | None],
    *lines: tuple[str, Callable[[Group], float | None], str],
    hover: str = ".3g",
) -> list[Series]:
    """A line for each (name, value of a group, colour); a gap where the group is absent."""
    groups = [group(measurement) for measurement in measurements]
    return [
        Series(name, [None if own is None else value(own) for own in groups], colour, hover=hover)
        for name, value, colour in lines
    ]


def _scale(series: Sequence[Series]) -> str:
    wide = has_wide_range([value for line in series for value in line.values])
    return "log" if wide else "linear"


def _score_series(
    measurements: Sequence[Measurement],
    scores: Callable[[Measurement], Scores | None],
    prefix: str,
    hover: str,
) -> list[Series]:
    return _grouped(
        measurements,
        scores,
        (f"{prefix}mean over nodes", lambda score: score.mean, BLUE),
        (f"{prefix}worst node", lambda score: score.worst, RED),
        (f"{prefix}consensus model", lambda score: score.consensus, GREEN),
        hover=hover,
    )


def _score_charts(
    measurements: Sequence[Measurement], measure: Measure, baseline: float | None
) -> list[Chart]:
    """Draw the leading score; a dotted line is what a model that ignores its inputs has."""
    hover, ticks = (".1%", ".0~%") if measure.percent else (".3g", "")

    def shown(line: Measurement) -> Scores | None:
        own, scores = line.leading
        return scores if own == measure else None

    series = _score_series(measurements, shown, "", hover)
    if baseline is not None and measurements:
        flat: list[float | None] = [baseline] * len(measurements)
        series.append(Series("baseline", flat, GREY, "dot", hover=hover))
    better = "Higher" if measure.larger_is_better else "Lower"
    if measure.ideal is not None:
        better = f"Closer to {measure.ideal:g}"
    ignorant = "" if baseline is None else " The dotted line is a model that ignores its inputs."
    return _steps_and_bytes(
        measurements,
        ("accuracy", f"Test {measure.title}"),
        Axis(f"test {measure.title}", ticks=ticks),
        series,
        f"{better} is better; a wide gap between mean and worst node means that some nodes fare "
        f"badly; the consensus model is the average of all, or the server's.{ignorant}",
        "The same scores against what a node had sent by then: a curve further to the left is "
        "cheaper in communication.",
        "Test accuracy was not measured: there was no test set with classes.",
    )


def _loss_charts(measurements: Sequence[Measurement]) -> list[Chart]:
    train = [line.train_loss for line in measurements]
    series = [
        *_score_series(measurements, lambda line: line.test_loss, "test, ", ".3g"),
        Series("train (private, not covered by epsilon)", train, PURPLE, "dot"),
    ]
    return _steps_and_bytes(
        measurements,
        ("loss", "Loss"),
        Axis("loss", _scale(series)),
        series,
        "Lower is better; the train loss is computed on private records and not covered by "
        "epsilon, so publishing it would reveal something about them.",
        "The same losses against what a node had sent by then.",
        "No loss was recorded.",
    )


def _steps_and_bytes(
    measurements: Sequence[Measurement],
    name: tuple[str, str],
    y: Axis,
    series: Sequence[Series],
    by_steps: str,
    by_bytes: str,
    absent: str,
) -> list[Chart]:
    """The same lines against the steps and against the bytes sent, with a caption each."""
    (key, title), absent = name, _absent(measurements, absent)
    sent = [measurement.bytes_sent for measurement in measurements]
    drawn = _over_steps(measurements, y, series), line_figure(sent, _BYTES, y, series)
    return [
        Chart(f"{key}-steps", f"{title} by steps", by_steps, drawn[0], absent),
        Chart(f"{key}-bytes", f"{title} by bytes sent", by_bytes, drawn[1], absent),
    ]


def _consensus_chart(
    measurements: Sequence[Measurement], forecast: Mapping[int, float | None]
) -> Chart:
    distances = [measurement.consensus_distance for measurement in measurements]
    any_known = any(distance is not None for distance in distances)
    lines = [Series("distance to the average model", distances, BLUE)]
    caption = (
        "How far the nodes' models are from their average, on a logarithmic axis: lower means that "
        "they agree more, a rising line that they drift apart (zero is not shown)."
    )
    foreseen = [forecast.get(measurement.step) for measurement in measurements]
    if any(distance is not None for distance in foreseen):
        lines.append(Series("forecast by the plan, of noise alone", foreseen, AMBER))
        caption += (
            " The noise that nodes share is in each model until gossip has mixed it away: that is "
            "what the forecast counts. What different data do to the models comes on top of it."
        )
    return Chart(
        key="consensus",
        title="Consensus distance",
        caption=caption,
        figure=_over_steps(measurements, Axis("consensus distance", "log"), lines),
        absent="The models of all nodes were equal at every measurement: the distance was zero."
        if any_known
        else _absent(measurements, "The consensus distance was not recorded."),
        height=_GRAPH_HEIGHT,
    )


def _epsilon_chart(run: RecordedRun) -> Chart:
    measurements, result = thinned(run.measurements), run.result
    epsilons = _grouped(
        measurements,
        lambda line: line.epsilon,
        ("certified, highest node", lambda spread: spread.most, BLUE),
        ("certified, lowest node", lambda spread: spread.least, SKY),
    )
    claims = _grouped(
        measurements,
        lambda line: line.claimed_epsilon,
        ("claimed by the paper's formula, highest node", lambda spread: spread.most, AMBER),
    )
    series, left_out = _with_meaning(*epsilons, *claims)
    # every line starts near zero: only where they end far apart is a linear axis unreadable
    y = _epsilon_axis("epsilon spent", [value for line in series for value in line.values[-1:]])
    return Chart(
        key="epsilon-steps",
        title="Epsilon spent by steps",
        caption="What an observer could have learned by each step"
        + ("" if result.private else " if the run were private, which it is not")
        + "; a claimed line below the certified ones promises more privacy than was proved."
        + left_out,
        figure=_over_steps(measurements, y, series),
        absent=_absent(measurements, "No epsilon was computed while this run trained."),
    )


def _epsilon_by_node_chart(result: ResultDocument) -> Chart:
    apart = len(result.nodes) <= _MOST_NODES_APART
    order = "" if apart else ", and nodes are ordered by their certified epsilon"
    figure, left_out = _epsilon_by_node_figure(result.nodes, apart)
    return Chart(
        key="epsilon-nodes",
        title="Final epsilon by node",
        caption="A certified epsilon above a node's budget means that the node has spent more "
        f"than it allowed{order}.{left_out}",
        figure=figure,
        absent="No node has an epsilon or a budget in this run.",
    )


def _with_meaning(*series: Series) -> tuple[list[Series], str]:
    """Leave out what is beyond all meaning, since beside it nothing else can be seen; say so."""
    kept = [
        replace(
            line,
            values=[
                value if value is not None and value <= MOST_SHOWN else None
                for value in line.values
            ],
        )
        for line in series
    ]
    said = "" if kept == list(series) else f" {SIZE_NOTE}, and is not drawn."
    return kept, said


def _epsilon_by_node_figure(nodes: Sequence[NodeRow], apart: bool) -> tuple[Drawing | None, str]:
    ordered = list(nodes) if apart else sorted(nodes, key=lambda row: row.epsilon or 0.0)
    series, left_out = _with_meaning(
        Series("budget", [row.budget for row in ordered], GREY),
        Series("claimed by the paper's formula", [row.claimed_epsilon for row in ordered], AMBER),
        Series("certified", [row.epsilon for row in ordered], BLUE),
    )
    drawn = [line for line in series if any(value is not None for value in line.values)]
    if not drawn:
        return None, left_out
    y = _epsilon_axis("epsilon", [value for line in drawn for value in line.values])
    title = "node" if apart else "nodes, in order of certified epsilon"
    x = Axis(title, settings={"showgrid": False})
    names = [row.node for row in ordered]
    positions = names if apart else list(range(1, len(ordered) + 1))
    traces = [_node_trace(line, positions, names, apart) for line in drawn]
    return Drawing(traces, base_layout(x, y), y.title), left_out


def _epsilon_axis(title: str, values: Sequence[float | None]) -> Axis:
    if has_wide_range(values):
        return Axis(title, "log")
    return Axis(title, settings={"rangemode": "tozero"})


_SYMBOLS = {
    "budget": {"symbol": "line-ew-open", "size": 13, "line": {"width": 2}},
    "certified": {"symbol": "circle", "size": 8},
}
_OPEN_DIAMOND = {"symbol": "diamond-open", "size": 9, "line": {"width": 2}}
_NODE_DASHES = {"budget": "dash", "certified": "solid"}


def _node_trace(line: Series, positions: Sequence[int], names: Sequence[int], apart: bool) -> Trace:
    marker = _SYMBOLS.get(line.name, _OPEN_DIAMOND)
    return scatter(
        x=list(positions),
        y=list(line.values),
        customdata=list(names),
        name=line.name,
        mode="markers" if apart else "lines",
        marker={"color": line.colour, **marker},
        line={"color": line.colour, "dash": _NODE_DASHES.get(line.name, "dashdot"), "width": 2},
        hovertemplate=f"%{{y:{line.hover}}} (node %{{customdata}})",
    )


def _gradient_chart(measurements: Sequence[Measurement]) -> Chart:
    norms = _grouped(
        measurements,
        lambda line: line.gradient_norm,
        ("median", lambda norm: norm.median, BLUE),
        ("90th percentile", lambda norm: norm.p90, SKY),
        ("largest", lambda norm: norm.largest, PURPLE),
    )
    series = [*norms, Series("clipping bound", [line.clip for line in measurements], RED, "dot")]
    rates = [line.clip_rate for line in measurements if line.clip_rate is not None]
    clipped = f", as {percent_text(rates[-1])} did at the last measurement" if rates else ""
    return Chart(
        key="gradients",
        title="Gradient norms before clipping",
        caption="Private, not covered by epsilon: records whose gradient lies above the clipping "
        f"bound lose the part above it{clipped}.",
        figure=_over_steps(
            measurements, Axis("norm of a record's gradient", _scale(series)), series
        ),
        absent=_absent(measurements, "No gradient norms were recorded."),
    )


def _noise_chart(measurements: Sequence[Measurement], parameters: int) -> Chart:
    deviations = [measurement.noise_std for measurement in measurements]
    known = [value for value in deviations if value is not None]
    norm = number_text(known[-1] * math.sqrt(parameters))
    return Chart(
        key="noise",
        title="Noise level",
        caption="Standard deviation of the noise in one coordinate of a node's mean gradient of "
        f"a batch, mean over nodes. Over all {parameters:,} coordinates it had a norm of about "
        f"{norm} at the end.",
        figure=_over_steps(
            measurements,
            Axis("noise standard deviation", settings={"rangemode": "tozero"}),
            [Series("noise", deviations, BLUE)],
        ),
        absent="",
    )


def union_edges(topology: CommunicationGraph) -> set[Edge]:
    """Give every edge of the period once, without loops; undirected ones as (low, high)."""
    return set().union(*(_proper_edges(graph, topology.directed) for graph in topology.edges))


def _proper_edges(edges: Iterable[Edge], directed: bool) -> set[Edge]:
    proper = ((source, target) for source, target in edges if source != target)
    return set(proper) if directed else {(min(edge), max(edge)) for edge in proper}


def degree_sentence(topology: CommunicationGraph, nodes: int) -> str:
    """Say in one sentence with how many others a node talks over one period of the graph."""
    union = union_edges(topology)
    size = _vertices(topology, nodes)
    sent = Counter(source for source, _ in union)
    received = Counter(target for _, target in union)
    if topology.directed:
        return (
            f"Over one period a node has out-degree {_degrees_text(sent, size)} and in-degree "
            f"{_degrees_text(received, size)}."
        )
    return f"Over one period a node has degree {_degrees_text(sent + received, size)}."


def _degrees_text(degrees: Counter[int], nodes: int) -> str:
    all_degrees = [degrees[node] for node in range(nodes)]
    low, high = min(all_degrees), max(all_degrees)
    if low == high:
        return str(low)
    return f"{low} to {high} (mean {sum(all_degrees) / nodes:.1f})"


def _vertices(topology: CommunicationGraph, nodes: int) -> int:
    """Count the vertices: a graph may name a server after the last node."""
    ends = [end for graph in topology.edges for edge in graph for end in edge]
    return max([nodes, *(end + 1 for end in ends)])


def graph_chart(topology: CommunicationGraph, nodes: int) -> Chart:
    """Draw the graph over one period, or say in words why it is not drawn."""
    union = union_edges(topology)
    size = _vertices(topology, nodes)
    degrees = degree_sentence(topology, nodes)
    if size > _MOST_NODES or len(union) > _MOST_EDGES:
        figure, absent = None, f"The graph has {size:,} nodes and {len(union):,} edges over one "
        absent += f"period, too many to draw. {degrees}"
    elif not union:
        figure, absent = None, "The graph has no edges: nodes send nothing to each other."
    else:
        figure, absent = _graph_figure(topology, union, size, nodes), ""
    return Chart(
        key="graph",
        title="Who talks to whom",
        caption=f"{_colour_sentence(topology)} {degrees}",
        figure=figure,
        absent=absent,
        height=_GRAPH_HEIGHT,
    )


def _colour_sentence(topology: CommunicationGraph) -> str:
    drawn = (
        "Each arrow is a message from its tail to its head"
        if topology.directed
        else ("Each line joins two nodes that exchange messages")
    )
    period = len(topology.edges)
    if period <= 1:
        return f"{drawn}, at every step."
    if period <= len(_GRAPH_COLOURS):
        return (
            f"{drawn}; the {period} graphs of the period take turns, each with a colour and a kind "
            "of line of its own."
        )
    return f"{drawn}; the {period} graphs of the period are drawn on top of each other."


def _graph_figure(topology: CommunicationGraph, union: set[Edge], size: int, nodes: int) -> Drawing:
    places = _places(union, size)
    radius = max(3.0, min(11.0, 190.0 / size))
    period = len(topology.edges)
    layers = [union]
    names = ["messages"]
    if 1 < period <= len(_GRAPH_COLOURS):
        layers = [_proper_edges(graph, topology.directed) for graph in topology.edges]
        names = [f"graph {number} of {period}" for number in range(1, period + 1)]
    # equal units on both axes keep the circle round at every width
    hidden = {"visible": False, "range": [-1.15, 1.15], "fixedrange": True}
    layout = changed(
        base_layout(Axis(""), Axis("")),
        xaxis={**hidden, "constrain": "domain"},
        yaxis={**hidden, "scaleanchor": "x", "constrain": "domain"},
        hovermode="closest",
        dragmode=False,
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
    )
    lines = [
        _edge_trace(sorted(edges), places, topology.directed, radius, name, colour, dash)
        for edges, name, colour, dash in zip(
            layers, names, _GRAPH_COLOURS, cycle(_GRAPH_DASHES), strict=False
        )
        if edges
    ]
    traces = [*lines, _network_nodes(places, radius, nodes)]
    return Drawing(traces, layout, has_legend=len(layers) > 1)


def _places(union: set[Edge], size: int) -> list[tuple[float, float]]:
    """Put nodes clockwise on the unit circle, and the hub of a star in its middle."""
    hub = _hub(union, size)
    rim = [node for node in range(size) if node != hub]
    turn = 2 * math.pi / len(rim)
    places = [(0.0, 0.0)] * size
    for position, node in enumerate(rim):
        places[node] = (math.sin(position * turn), math.cos(position * turn))
    return places


def _hub(union: set[Edge], size: int) -> int | None:
    """Give the one node that every edge touches, in a graph that looks like a star."""
    touching = Counter(end for edge in union for end in edge)
    hubs = [node for node, count in touching.items() if count == len(union)]
    return hubs[0] if len(hubs) == 1 and size > 3 else None


def _edge_trace(
    edges: Sequence[Edge],
    places: Sequence[tuple[float, float]],
    directed: bool,
    radius: float,
    name: str,
    colour: str,
    dash: str,
) -> Trace:
    xs: list[float | None] = []
    ys: list[float | None] = []
    for source, target in edges:
        (x0, y0), (x1, y1) = places[source], places[target]
        xs += [x0, x1, None]
        ys += [y0, y1, None]
    # the more edges, the finer they are drawn
    fineness = min(1.0, len(edges) / 500)
    return scatter(
        x=xs,
        y=ys,
        name=name,
        # a marker at each end, of which only the one at the target has a size
        mode="lines+markers" if directed else "lines",
        line={"color": colour, "dash": dash, "width": 1.4 - 0.9 * fineness},
        opacity=0.85 - 0.4 * fineness,
        marker={
            "symbol": "arrow",
            "angleref": "previous",
            "size": [0, 9 - 5 * fineness, 0] * len(edges),
            "standoff": radius,
            "color": colour,
            "opacity": 1,
            "line": {"width": 0},
        },
        hoverinfo="skip",
    )


def _network_nodes(places: Sequence[tuple[float, float]], radius: float, nodes: int) -> Trace:
    names = [str(node) if node < nodes else "server" for node in range(len(places))]
    return scatter(
        x=[x for x, _ in places],
        y=[y for _, y in places],
        text=names,
        mode="markers+text" if radius >= _SMALLEST_LABELLED else "markers",
        textfont={"size": 10, "color": "#ffffff"},
        marker={"size": 2 * radius, "color": "#4a5361", "line": {"color": GREY, "width": 1}},
        hovertemplate="node %{text}<extra></extra>",
        showlegend=False,
    )
