"""What several processes cost, and whether the forecast is right: `python benchmarks/cluster`.

| row | what |
|---|---|
| overhead | steps of the same work in one process and in two |
| runs | the same of whole runs by `tacit launch` |
| wire | bytes on the wire beside those that the algorithm needs |
| nodes | time a step against nodes a process |
| fit | what a message and a byte cost beside the network |
| check | the forecast of `forecast_job.py` against measurement, on shaped links |

Links are shaped in network namespaces, which takes root and /dev/net/tun (see `switch.py`); without
them the check is on loopback alone, and says so. Prints tables and writes JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rows import ROWS, Row

sys.path.append(str(Path(__file__).resolve().parents[1] / "speed"))

from machine import machine, versions
from table import formatted

QUICK = "quick: tiny sizes, few steps: these figures mean NOTHING"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; 1 if a row fails."""
    asked = _parser().parse_args(arguments)
    unknown = set(asked.only) - set(ROWS)
    if unknown:
        print(f"no row {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}", file=sys.stderr)
        return 2
    begun, here = datetime.now(UTC), machine()
    found: dict[str, Row] = {}
    failed: dict[str, str] = {}
    for name in asked.only or ROWS:
        started = time.monotonic()
        try:
            found[name] = ROWS[name](asked.quick)
        except Exception as error:
            traceback.print_exc()
            failed[name] = str(error)
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    report = {
        "figures mean something": not asked.quick,
        "command": shlex.join(["python", "benchmarks/cluster", *(arguments or sys.argv[1:])]),
        "begun": begun.isoformat(timespec="seconds"),
        "seconds": (datetime.now(UTC) - begun).total_seconds(),
        "machine": here,
        "load average at the end": os.getloadavg(),
        "versions": versions(),
        "rows": {name: asdict(row) for name, row in found.items()},
        "failed": failed,
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(report, indent=1) + "\n")
    print(
        f"{here['processor']}, {here['cores']} cores, {here['memory']}; "
        f"load average {here['load average'][0]:.2f} before, {os.getloadavg()[0]:.2f} after; "
        + ", ".join(f"{name} {version}" for name, version in versions().items())
    )
    for name, row in found.items():
        print(f"\n{name}: {ROWS[name].__doc__}\n{formatted(row.headers, row.cells)}")
        print("".join(f"{note}\n" for note in row.notes), end="")
    for name, error in failed.items():
        print(f"\nFAILED: {name}: {error}")
    if asked.quick:
        print(f"\n{QUICK}")
    print(f"\nwritten to {asked.out}")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python benchmarks/cluster", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny: shows that all of it runs")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="rows to run")
    parser.add_argument("--out", type=Path, default=Path("runs/cluster.json"), metavar="FILE.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
