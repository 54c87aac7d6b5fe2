"""Who may talk and when (`graphs`, `own`), with which weight (`mixing`), and `checks`."""

from tacit.topology.checks import (
    check_column_stochastic,
    check_doubly_stochastic,
    check_strongly_connected,
    contraction,
)
from tacit.topology.graphs import GRAPHS, Graph, GraphRequest, GraphSchedule, graph_of
from tacit.topology.mixing import WEIGHTS, Mixing, Weights, build_mixing, server_averaging
from tacit.topology.own import build_schedule

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
    "server_averaging",
]
