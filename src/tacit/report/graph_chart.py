"""The chart of who talks to whom in a run, drawn or in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import cycle

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
    Trace,
    base_layout,
    scatter,
)
from tacit.report.documents.run import CommunicationGraph

GRAPH_HEIGHT = 440  # CSS pixels, of the chart beside it as well
_COLOURS = (BLUE, RED, GREEN, AMBER, PURPLE, SKY, "#8c7a00", "#5b5fc7")
_DASHES = (*DASHES, "dot")
_MOST_NODES = 200  # of a graph that is drawn
_MOST_EDGES = 4000
_SMALLEST_LABELLED = 8.0

Edge = tuple[int, int]


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
    drawn = "Each line joins two nodes that exchange messages"
    if topology.directed:
        drawn = "Each arrow is a message from its tail to its head"
    period, turns = len(topology.edges), ", at every step"
    if period > len(_COLOURS):
        turns = f"; the {period} graphs of the period are drawn on top of each other"
    elif period > 1:
        turns = (
            f"; the {period} graphs of the period take turns, each with a colour and a kind of "
            "line of its own"
        )
    caption = f"{drawn}{turns}. {degrees}"
    return Chart("graph", "Who talks to whom", caption, figure, absent, GRAPH_HEIGHT)


def _graph_figure(topology: CommunicationGraph, union: set[Edge], size: int, nodes: int) -> Drawing:
    places = _places(union, size)
    radius = max(3.0, min(11.0, 190.0 / size))
    period = len(topology.edges)
    layers = [union]
    names = ["messages"]
    if 1 < period <= len(_COLOURS):
        layers = [_proper_edges(graph, topology.directed) for graph in topology.edges]
        names = [f"graph {number} of {period}" for number in range(1, period + 1)]
    # equal units on both axes keep the circle round at every width
    hidden: dict[str, object] = {"visible": False, "range": [-1.15, 1.15], "fixedrange": True}
    layout = base_layout(
        Axis("", settings={**hidden, "constrain": "domain"}),
        Axis("", settings={**hidden, "scaleanchor": "x", "constrain": "domain"}),
        hovermode="closest",
        dragmode=False,
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
    )
    lines = [
        _edge_trace(sorted(edges), places, topology.directed, radius, name, colour, dash)
        for edges, name, colour, dash in zip(layers, names, _COLOURS, cycle(_DASHES), strict=False)
        if edges
    ]
    vertices = scatter(
        x=[x for x, _ in places],
        y=[y for _, y in places],
        text=[str(node) if node < nodes else "server" for node in range(size)],
        mode="markers+text" if radius >= _SMALLEST_LABELLED else "markers",
        textfont={"size": 10, "color": "#ffffff"},
        marker={"size": 2 * radius, "color": "#4a5361", "line": {"color": GREY, "width": 1}},
        hovertemplate="node %{text}<extra></extra>",
        showlegend=False,
    )
    return Drawing([*lines, vertices], layout, has_legend=len(layers) > 1)


def _places(union: set[Edge], size: int) -> list[tuple[float, float]]:
    """Put nodes clockwise on the unit circle, and the hub of a star in its middle."""
    touching = Counter(end for edge in union for end in edge)
    hubs = [node for node, count in touching.items() if count == len(union)]
    hub = hubs[0] if len(hubs) == 1 and size > 3 else None
    rim = [node for node in range(size) if node != hub]
    turn = 2 * math.pi / len(rim)
    places = [(0.0, 0.0)] * size
    for position, node in enumerate(rim):
        places[node] = (math.sin(position * turn), math.cos(position * turn))
    return places


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
