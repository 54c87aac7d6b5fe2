"""One page for one run: reads a run folder, and nothing else, and writes `report.html`."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_report"]


def write_report(run_folder: Path) -> Path:
    """Write `report.html` into a run folder, from its files alone, and give its path.

    The file appears whole or not at all, and only its owner can read it: of a simulation it shows
    what was measured on private records.
    Raises `InputError` where the folder cannot be read or written, or has another format.
    """
    # Loaded only now: what draws charts takes 20 MB, and a run needs it at its end.
    from tacit.base.private_files import plain_errors, write_private
    from tacit.report.documents.run import read_run_folder
    from tacit.report.run_page import run_page

    page = run_page(read_run_folder(run_folder))
    target = run_folder / "report.html"
    with plain_errors("RUN", target):
        write_private(target, page.encode())
    return target
