"""`tacit compare`: runs the lines of one figure, and draws what came of them, truthfully."""

from __future__ import annotations

from tacit.analysis.compare.document import figure_document
from tacit.analysis.compare.figure import Asked, Figure, load_figure
from tacit.analysis.compare.session import Gathered, Watch, gather, worst_code
from tacit.analysis.compare.store import Store
from tacit.analysis.compare.table import figure_table, watching

__all__ = [
    "Asked",
    "Figure",
    "Gathered",
    "Store",
    "Watch",
    "figure_document",
    "figure_table",
    "gather",
    "load_figure",
    "watching",
    "worst_code",
]
