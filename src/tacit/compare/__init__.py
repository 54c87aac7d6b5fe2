"""`tacit compare`: runs the lines of one figure, and draws what came of them, truthfully."""

from __future__ import annotations

from tacit.compare.document import figure_document
from tacit.compare.figure import Asked, Figure, load_figure
from tacit.compare.session import Gathered, Watch, gather, worst_code
from tacit.compare.store import Store
from tacit.compare.table import figure_table, watching

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
