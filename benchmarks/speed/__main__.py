"""How fast tacit is, beside what people use today: `python benchmarks/speed`.

Every row of the table compares contenders on the same work: each is a process of its own, all are
checked to compute the same thing, and they take turns, so that what disturbs one disturbs all. A
figure is the median over rounds of the ratio within a round. Prints a table and writes JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from comparisons import Comparison, comparisons
from interleaved import Outcome, Protocol, compare
from machine import machine, versions
from table import Line, formatted

LONG = 60
FLOORS = 3.0  # a step takes at most so many times its floor
ROOT = Path(__file__).resolve().parents[2]
QUICK = "quick: tiny sizes, two rounds of two steps: these figures mean NOTHING"
# `--quick` leaves these to `privsgp-batch`, which has the same contenders, and to tests: they run
# the contenders of the second, and the third at its quick size.
ELSEWHERE = ("privsgp-one", "fedspd-adult", "wide")


@dataclass(frozen=True)
class Found:
    """What a row of the table came to: its lines, all else for the JSON, and what went wrong."""

    lines: tuple[Line, ...]
    record: dict[str, Any]
    wrong: tuple[str, ...] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; 1 if contenders disagree or one of them fails."""
    asked = _parser().parse_args(arguments)
    data_dir = str(Path(asked.data_dir).resolve())
    protocol = Protocol(rounds=2, turn=0.0, within=True) if asked.quick else Protocol()
    if asked.rounds:
        protocol = replace(protocol, rounds=asked.rounds)
    rows = _rows(asked.quick, protocol, data_dir, asked.peers)
    unknown = set(asked.only) - set(rows)
    if unknown:
        print(f"no row {', '.join(sorted(unknown))}; there are {', '.join(rows)}", file=sys.stderr)
        return 2
    begun, before = datetime.now(UTC), machine()
    names = asked.only or [name for name in rows if not asked.quick or name not in ELSEWHERE]
    found = {name: _guarded(name, rows[name]) for name in names}
    report = {
        "figures mean something": not asked.quick,
        "command": shlex.join(["python", "benchmarks/speed", *(arguments or sys.argv[1:])]),
        "begun": begun.isoformat(timespec="seconds"),
        "seconds": (datetime.now(UTC) - begun).total_seconds(),
        "machine": before,
        "load average at the end": os.getloadavg(),
        "versions": versions(),
        "protocol": asdict(protocol),
        "rows": {name: one.record for name, one in found.items()},
        "lines": [asdict(line) | {"met": line.met} for one in found.values() for line in one.lines],
        "wrong": [text for one in found.values() for text in one.wrong],
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(report, indent=1) + "\n")
    print(_printed(report, found, asked.quick))
    print(f"written to {asked.out}")
    return 1 if report["wrong"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python benchmarks/speed", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny: shows that it runs")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="rows to run")
    parser.add_argument("--rounds", type=int, help="turns of each contender (9; quick: 2)")
    parser.add_argument("--out", type=Path, default=Path("runs/speed.json"), metavar="FILE.json")
    parser.add_argument("--data-dir", default=str(ROOT.parent / "shared" / "data"))
    parser.add_argument(
        "--peers",
        default=str(ROOT / ".venv-peers" / "bin" / "python"),
        metavar="PYTHON",
        help="the interpreter that has Opacus, pfl and Flower (`make bench` makes it)",
    )
    return parser


def _rows(
    quick: bool, protocol: Protocol, data_dir: str, peers: str
) -> dict[str, Callable[[], Found]]:
    """What can be run, by name."""

    def of(comparison: Comparison) -> Callable[[], Found]:
        if quick:
            comparison = replace(comparison, workload=comparison.workload.quick())
        return lambda: _compared(comparison, protocol)

    compared = {one.workload.name: of(one) for one in comparisons(data_dir, peers)}
    return {
        **compared,
        "noise": lambda: _noise(quick, protocol.rounds),
        "wide": lambda: _wide(quick, protocol.rounds),
        "scaling": lambda: _scaling(quick, protocol.rounds, data_dir),
    }


def _compared(comparison: Comparison, protocol: Protocol) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        outcome: Outcome = compare(comparison, protocol, Path(folder), _say)
    name = comparison.workload.name
    floor = importlib.import_module("floor").floor_of(comparison.workload)
    parts = floor["parts"]
    kind = max(("bytes", "operations"), key=lambda kind: floor[f"seconds by {kind}"])
    most = max(parts, key=lambda part: parts[part][f"seconds by {kind}"])
    detail = f"floor {floor['seconds'] * 1e3:.3g} ms by {kind}, most of it {most}"
    ours = outcome.entries[0]["median seconds a step"]
    times = ours / floor["seconds"]
    over = Line(name, "tacit over its floor", times, at_most=FLOORS, detail=detail)
    return Found((*outcome.lines, over), outcome.to_dict() | {"floor": floor}, outcome.wrong)


def _noise(quick: bool, rounds: int) -> Found:
    # A round takes a fraction of a second: more of them.
    measured = importlib.import_module("noise").measure(3 * rounds, quick=quick)
    seen = ", ".join(f"{name} {spent:.3g}" for name, spent in measured["ns_per_value"].items())
    line = Line(
        "noise",
        "cryptographic noise over torch.randn, one thread each",
        measured["ratio"],
        at_most=measured["goal"],
        detail=f"ns a value: {seen}",
    )
    return Found((line,), measured)


def _wide(quick: bool, rounds: int) -> Found:
    wide = importlib.import_module("wide")
    measured = wide.measure(rounds, quick=quick)
    lines = tuple(
        Line(
            "wide",
            f"{name} over the plain products, threads: {threads}",
            median,
            at_most=measured["goal"] if name == wide.STEP else None,
            detail=f"rounds: {min(one['ratios'][name]):.3g} to {max(one['ratios'][name]):.3g}",
        )
        for threads, one in measured["threads"].items()
        for name, median in one["medians"].items()
    )
    apart = measured["disagreement"]
    agrees = apart <= measured["most disagreement"]
    wrong = () if agrees else (f"wide: blocks differ from taps by {apart:.2g}",)
    return Found(lines, measured, wrong)


def _scaling(quick: bool, rounds: int, data_dir: str) -> Found:
    measured = importlib.import_module("scaling").measure(quick, rounds, data_dir)
    lines = tuple(
        Line(
            "scaling",
            one["name"],
            one["value"],
            one["unit"],
            at_most=one["goal"],
            detail=one["detail"],
        )
        for one in measured
    )
    return Found(lines, {"measured": measured})


def _guarded(name: str, row: Callable[[], Found]) -> Found:
    """What a row found; a row that fails is told of at the end, and the others still run."""
    begun = time.monotonic()
    try:
        found = row()
    except Exception as error:
        traceback.print_exc()
        return Found((), {"failed": str(error)}, (f"{name} failed: {error}",))
    _say(f"{name}: done in {time.monotonic() - begun:.0f} s")
    return found


def _printed(report: dict[str, Any], found: dict[str, Found], quick: bool) -> str:
    entries = [
        [
            name,
            one["name"],
            f"{one['median seconds a step'] * 1e3:.2f}",
            f"{1 / one['median seconds a step']:.1f}",
            f"{one['memory bytes'] / 2**20:.0f}",
            f"{one['set-up seconds']:.1f}",
        ]
        for name, row in found.items()
        for one in row.record.get("entries", ())
    ]
    left_out = [
        f"left out of {name}: {who}: {why}"
        for name, row in found.items()
        for who, why in row.record.get("left_out", {}).items()
    ]
    here = report["machine"]
    parts = [
        f"{here['processor']}, {here['cores']} cores, {here['memory']}; "
        f"load average {here['load average'][0]:.2f} before, "
        f"{report['load average at the end'][0]:.2f} after; "
        f"{', '.join(f'{name} {version}' for name, version in report['versions'].items())}",
        formatted(["row", "contender", "ms a step", "steps a second", "MiB", "set-up s"], entries)
        if entries
        else "",
        formatted(
            ["row", "figure", "value", "goal", "met", ""],
            [line.cells(judged=not quick) for one in found.values() for line in one.lines],
            widest=LONG,
        ),
        "\n".join([*left_out, *(f"WRONG: {text}" for text in report["wrong"])]),
        QUICK if quick else "",
    ]
    return "\n" + "\n\n".join(part for part in parts if part)


def _say(text: str) -> None:
    print(f"[{datetime.now():%H:%M:%S}] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
