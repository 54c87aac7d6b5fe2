"""One page for one run: reads a run folder, and nothing else, and writes `report.html`."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_report"]


def write_report(run_folder: Path) -> Path:
    """Write `report.html` into a run folder, from its files alone, and give its path.

    See `page.write_report`, which is loaded only now: what draws charts takes 20 MB, and a run
    needs it at its end.
    """
    from tacit.report.page import write_report as write

    return write(run_folder)
