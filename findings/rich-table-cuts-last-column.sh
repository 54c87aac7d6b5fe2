#!/usr/bin/env bash
# rich 15.0.0, Table: columns that have a min_width, beside others whose headings may fold. Where the
# console is a little wider than all min_widths and the padding together, the table fits; but rich
# lays it out wider than the console and cuts each line at the edge, without an ellipsis although
# overflow="fold" was asked for. So a figure loses its last digits and is still a figure: 2.99 is
# printed as 2.9, or not at all. Giving every column its width (`width=`) avoids it.
#
# Seen: ten columns that need 92 characters; of consoles of 92 to 101 none shows the last cell whole,
# and at 101 it reads 2.9. From 102 on it is whole. Exit status 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check --quiet install rich==15.0.0
"$folder/venv/bin/python" - <<'PYTHON'
import io
from importlib.metadata import version

from rich.console import Console
from rich.table import Table

HEADINGS = ["nodes", "noise multiplier", "own multiplier", "noise in mean", "share of model"]
HEADINGS += ["share of noise", "budget", "rate", "records", "certified epsilon"]
CELLS = ["1-3", "2.996", "1.791", "0.004984", "25.0%", "25.0%", "(3, 1e-4)", "1", "359", "2.99"]
LEAST = [max(map(len, (*name.split(), cell))) for name, cell in zip(HEADINGS, CELLS)]
NEEDED = sum(LEAST) + 2 * len(LEAST)  # with a blank on either side of each column


def last_cell(width: int) -> str:
    table = Table(box=None, pad_edge=False)
    for name, least in zip(HEADINGS, LEAST):
        table.add_column(name, justify="right", overflow="fold", min_width=least)
    table.add_row(*CELLS)
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue().split()[-1]


shown = {width: last_cell(width) for width in range(NEEDED, NEEDED + 13)}
print("rich", version("rich"), "needs", NEEDED, shown)
assert NEEDED == 92
assert [width for width, cell in shown.items() if cell == "2.99"] == [102, 103, 104]
assert shown[101] == "2.9"
PYTHON
