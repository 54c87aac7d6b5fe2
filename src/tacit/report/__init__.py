"""One page for one run: reads a run folder, and nothing else, and writes `report.html`."""

from __future__ import annotations

from tacit.report.page import write_report

__all__ = ["write_report"]
