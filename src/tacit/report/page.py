"""Writes the page of a run: one file that needs neither a network nor anything beside it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from tacit.private_files import plain_errors, write_private
from tacit.report.charts import Chart
from tacit.report.figures import gradient_charts, model_charts, network_charts, privacy_charts
from tacit.report.reading import RunFolder, read_run_folder
from tacit.report.sections import (
    banners,
    claim_section,
    heading,
    meaning_section,
    tiles,
    title_text,
)
from tacit.report.shell import figure_html, page_html
from tacit.report.tables import facts_section, node_table

__all__ = ["render_page", "write_report"]


def write_report(run_folder: Path) -> Path:
    """Write `report.html` into a run folder, from its files alone, and give its path.

    The file appears whole or not at all, and only its owner can read it: of a simulation it shows
    what was measured on private records.
    Raises `InputError` where the folder cannot be read or written, or has another format.
    """
    page = render_page(read_run_folder(run_folder))
    target = run_folder / "report.html"
    with plain_errors("RUN", target):
        write_private(target, page.encode())
    return target


def render_page(run: RunFolder) -> str:
    """Give the page of a run as HTML."""
    return page_html(title_text(run.result), _body(run))


def _body(run: RunFolder) -> str:
    result = run.result
    no_scripts = "The charts need JavaScript; the numbers below and above them do not."
    return "\n".join(
        [
            heading(result),
            banners(result),
            tiles(result),
            meaning_section(result),
            claim_section(result),
            f"<noscript><p>{no_scripts}</p></noscript>",
            _charts_section("How well the models learned", model_charts(run)),
            _charts_section("What was spent", privacy_charts(run)),
            _charts_section("Gradients and noise", gradient_charts(run)),
            _charts_section("The network", network_charts(run)),
            facts_section(result),
            "<section><h2>Details</h2>",
            node_table(result),
            "<details><summary>The resolved experiment (config.toml)</summary>"
            f'<div class="scroll"><pre>{escape(run.config)}</pre></div></details></section>',
            f"<footer>Written from the run folder alone by tacit {escape(result.tacit_version)}; "
            "this page loads nothing from the network.</footer>",
        ]
    )


def _charts_section(title: str, charts: Sequence[Chart]) -> str:
    figures = "\n".join(map(figure_html, charts))
    return f'<section><h2>{escape(title)}</h2><div class="charts">\n{figures}\n</div></section>'
