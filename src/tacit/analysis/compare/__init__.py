"""`tacit compare`: runs the lines of one figure, and draws what came of them, truthfully."""

from __future__ import annotations

from tacit.analysis.compare.document import figure_document, figure_table, watching
from tacit.analysis.compare.figure import Figure, FigureOptions, load_figure
from tacit.analysis.compare.session import FigureRuns, Monitor, gather, worst_code
from tacit.analysis.compare.store import Store

__all__ = [
    "Figure",
    "FigureOptions",
    "FigureRuns",
    "Monitor",
    "Store",
    "figure_document",
    "figure_table",
    "gather",
    "load_figure",
    "watching",
    "worst_code",
]
