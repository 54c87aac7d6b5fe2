"""Who may talk (`graphs`), when (`schedules`), with which weight (`mixing`), and `checks`."""

from tacit.topology.checks import (
    check_column_stochastic,
    check_doubly_stochastic,
    check_strongly_connected,
    contraction,
)
from tacit.topology.graphs import Graph, graph_of, read_graph_file
from tacit.topology.mixing import WEIGHTS, Mixing, build_mixing, server_averaging
from tacit.topology.schedules import GRAPHS, GraphRequest, GraphSchedule, build_schedule
from tacit.topology.weights import Weights

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
