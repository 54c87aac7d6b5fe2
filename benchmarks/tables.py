"""How long tacit takes to read and encode a table, beside pandas, which only reads it.

    python benchmarks/tables.py [--quick] [--rounds 3]

Tables of numbers, categories, dates and missing fields are made, and each is read as CSV, as
Parquet, as a folder of Parquet files, and taken as a frame of pandas. Every reading is a process of
its own, and both take turns in one run. Printed are, as medians over rounds, the seconds of both
and their ratio within a round, where tacit's are all of file -> tensors and pandas' are `read_csv`
or `read_parquet`; and the memory that each takes at most, beyond what it has after its imports, as
a multiple of `frame.memory_usage(deep=True)`. For a frame, pandas' time is that of `read_parquet`,
and the frame itself is not counted. The goal is at most 3 times each. `--quick` takes a tiny table,
and one process for all of its forms: figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

GOAL = 3.0
SIZES = ((300_000, 29), (60_000, 29), (10_000, 500))
QUICK = ((300, 29),)
FORMS = ("csv", "parquet", "folder", "frame")
FILES = {"csv": "t.csv", "parquet": "t.parquet", "folder": "parts.parquet", "frame": "t.parquet"}
FRAMES: dict[Path, pd.DataFrame] = {}  # tables that are in memory already
Pair = tuple[dict[str, float], dict[str, float]]
WARDS = [f"ward {number}" for number in range(12)]


def kind_of(place: int) -> str:
    """What a column holds, by its place: of ten, six are numbers."""
    return (
        "number",
        "whole",
        "number",
        "ward",
        "number",
        "lab",
        "date",
        "number",
        "flag",
        "whole",
    )[place % 10]


def made(rows: int, columns: int) -> pd.DataFrame:
    """A table of so many columns, the last of which is the target."""
    generator = np.random.default_rng(0)
    days = pd.date_range("2020-01-01", periods=700).strftime("%Y-%m-%d").to_numpy()
    makers: dict[str, Callable[[], Any]] = {
        "number": lambda: generator.normal(size=rows),
        "whole": lambda: generator.integers(0, 120, rows),
        "ward": lambda: np.array(WARDS)[generator.integers(0, len(WARDS), rows)],
        "lab": lambda: np.where(generator.random(rows) < 0.2, np.nan, generator.random(rows)),
        "date": lambda: days[generator.integers(0, len(days), rows)],
        "flag": lambda: generator.random(rows) < 0.5,
    }
    found = {f"c{place}": makers[kind_of(place)]() for place in range(columns - 1)}
    return pd.DataFrame({**found, "ill": generator.random(rows) < 0.3})


def schema_of(columns: int) -> dict[str, Any]:
    """What is declared of such a table."""
    kinds: dict[str, dict[str, Any]] = {
        "number": {"kind": "number", "low": -4, "high": 4},
        "whole": {"kind": "number", "low": 0, "high": 120},
        "ward": {"kind": "category", "values": WARDS, "unknown": "other"},
        "lab": {"kind": "number", "low": 0, "high": 1, "missing": "indicator"},
        "date": {"kind": "date", "low": "2020-01-01", "high": "2022-01-01"},
        "flag": {"kind": "boolean"},
    }
    return {
        "confirmed_public": True,
        "target": {"column": "ill", "kind": "class", "labels": [False, True]},
        "columns": {f"c{place}": kinds[kind_of(place)] for place in range(columns - 1)},
    }


def written(folder: Path, rows: int, columns: int) -> int:
    """Write the table in every form; how many bytes it has in pandas."""
    frame = made(rows, columns)
    frame.to_csv(folder / FILES["csv"], index=False)
    frame.to_parquet(folder / FILES["parquet"])
    (folder / FILES["folder"]).mkdir()
    for part, start in enumerate(range(0, rows, -(-rows // 8))):
        piece = frame[start : start + -(-rows // 8)]
        piece.to_parquet(folder / FILES["folder"] / f"part-{part}.parquet", index=False)
    return int(frame.memory_usage(deep=True).sum())


class Peak(threading.Thread):
    """The most memory of this process since it began, in bytes, beyond what it had then."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._first, self.most, self._ends = resident(), 0, threading.Event()
        self.start()

    def run(self) -> None:
        while not self._ends.wait(0.002):
            self.most = max(self.most, resident() - self._first)

    def end(self) -> int:
        """Stop counting."""
        self._ends.set()
        self.join()
        return max(self.most, resident() - self._first)


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def readings(who: str, form: str, columns: int) -> Callable[[Path], Any]:
    """What reads a file in one form; of a frame, that which makes its tensors."""
    if who == "pandas":
        return pd.read_csv if form == "csv" else pd.read_parquet
    from tacit import Schema
    from tacit.data.tables.reading import read_table

    schema = Schema.of(schema_of(columns))
    return lambda file: schema.dataset(
        FRAMES[file] if file in FRAMES else read_table(file, "table", use=schema)
    )


def read(who: str, form: str, folder: Path, columns: int) -> None:
    """Read once, in this process, and print seconds and bytes."""
    reading = readings(who, form, columns)
    with tempfile.TemporaryDirectory() as small:  # packages are there before the clock runs
        written(Path(small), 16, columns)
        reading(Path(small) / FILES[form])
    file = folder / FILES[form]
    if (who, form) == ("tacit", "frame"):
        FRAMES[file] = pd.read_parquet(file)
    peak, begun = Peak(), time.perf_counter()
    found = reading(file)
    seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "bytes": peak.end(), "records": len(found)}))


def asked(
    who: str, forms: Sequence[str], folder: Path, columns: int
) -> dict[str, dict[str, float]]:
    """Read each form once, all of them in one process of its own."""
    command = [sys.executable, __file__, "--read", who, ",".join(forms), str(folder)]
    done = subprocess.run(
        [*command, str(columns)], capture_output=True, text=True, check=True, timeout=600
    )
    return dict(zip(forms, map(json.loads, done.stdout.splitlines()[-len(forms) :]), strict=True))


def measured(folder: Path, columns: int, rounds: int, *, quick: bool) -> dict[str, list[Pair]]:
    """Of each form and round what tacit took and what pandas took."""
    found: dict[str, list[Pair]] = {form: [] for form in FORMS}
    for forms in [FORMS] if quick else [(form,) for form in FORMS]:
        for _ in range(rounds):
            ours, theirs = (asked(who, forms, folder, columns) for who in ("tacit", "pandas"))
            for form in forms:
                found[form].append((ours[form], theirs[form]))
    return found


def main() -> int:
    """Measure, print a row for each table and form; 1 if tacit lost records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="tiny tables: shows that all runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--read", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        who, forms, folder, columns = options.read
        for form in forms.split(","):
            read(who, form, Path(folder), int(columns))
        return 0
    quick = " (quick: these figures mean NOTHING)" if options.quick else ""
    table = Table(title=f"Reading tables{quick}")
    for name in ("table", "form", "tacit, s", "pandas, s", "ratio", "memory", "pandas'", "goal"):
        table.add_column(name, justify="left" if name in ("table", "form", "goal") else "right")
    wrong = 0
    for rows, columns in QUICK if options.quick else SIZES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            size = written(folder, rows, columns)
            rounds = 1 if options.quick else options.rounds
            for form, pairs in measured(folder, columns, rounds, quick=options.quick).items():
                print(f"{rows:,} x {columns} as {form}: {pairs[-1]}", file=sys.stderr, flush=True)
                wrong += any(one["records"] != rows for pair in pairs for one in pair)
                middle = [
                    [statistics.median(pair[who][key] for pair in pairs) for who in (0, 1)]
                    for key in ("seconds", "bytes")
                ]
                ratio = statistics.median(
                    ours["seconds"] / theirs["seconds"] for ours, theirs in pairs
                )
                memory = [one / size for one in middle[1]]
                table.add_row(
                    f"{rows:,} x {columns}, {size / 1e6:.0f} MB",
                    form,
                    *(f"{one:.2f}" for one in (*middle[0], ratio, *memory)),
                    "met" if max(ratio, memory[0]) <= GOAL else "missed",
                )
    Console(width=100).print(table)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
