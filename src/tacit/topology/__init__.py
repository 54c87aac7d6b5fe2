"""Who may talk and when (`graphs`), with which weight (`mixing`), and `checks`."""

from tacit.topology.checks import (
    check_column_stochastic,
    check_doubly_stochastic,
    check_strongly_connected,
    contraction,
)
from tacit.topology.graphs import (
    GRAPHS,
    Graph,
    GraphRequest,
    GraphSchedule,
    build_schedule,
    graph_of,
    read_graph_file,
)
from tacit.topology.mixing import WEIGHTS, Mixing, Weights, build_mixing, server_averaging

__all__ = [
    "GRAPHS",
    "WEIGHTS",
    "Graph",
    "GraphRequest",
    "GraphSchedule",
    "Mixing",
    "Weights",
    "build_mixing",
    "build_schedule",
    "check_column_stochastic",
    "check_doubly_stochastic",
    "check_strongly_connected",
    "contraction",
    "graph_of",
    "read_graph_file",
    "server_averaging",
]
