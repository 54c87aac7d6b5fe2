"""Which test of an audit finds which planted bug: `python benchmarks/audit_bugs.py [BUG]...`.

The bugs and their experiments are those of tests/analysis/audit/bug_table.py, the options those
that an audit has by default. Every bug is a row of the table that is printed. `--jobs`
shares them among processes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from tacit.analysis.audit import AuditOptions, audit_job

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "analysis" / "audit")]

from bug_table import BUGS  # noqa: E402
from planting import planted  # noqa: E402


@dataclass(frozen=True)
class Found:
    """What an audit made of one experiment with a bug in it.

    Args:
        bug: its name.
        case: the experiment.
        alarms: names of the tests and attacks that accuse the program; none: it was missed.
        refused: why no audit was made; empty if one was.
        seconds: it took.
    """

    bug: str
    case: str
    alarms: tuple[str, ...]
    refused: str
    seconds: float


def audited(bug: str, case: str, options: AuditOptions) -> Found:
    """Audit one experiment with one bug."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    try:
        with planted(BUGS[bug], case) as job:
            report = audit_job(job, options=options, context=BUGS[bug].context)
    except Exception as error:  # a table with a hole in it says more than none
        told = f"{type(error).__name__}: {error}"
        return Found(bug, case, (), told, time.perf_counter() - began)
    alarms = tuple(failure.name for failure in report.failures)
    return Found(bug, case, alarms, "", time.perf_counter() - began)


def row(bug: str, found: Sequence[Found]) -> str:
    """A row of the table: the bug, and what found it, the most frequent first."""
    names = [name for one in found for name in dict.fromkeys(one.alarms)]
    order = sorted(set(names), key=lambda name: (-names.count(name), name))
    by = [
        name if names.count(name) == len(found) else f"{name} ({names.count(name)})"
        for name in order
    ]
    missed = [one.case for one in found if not one.alarms]
    return (
        f"| {bug} | {BUGS[bug].slip} | {', '.join(one.case for one in found)} | "
        f"{'; '.join(by) or 'nothing'} | {', '.join(missed) or '-'} |"
    )


def main(arguments: Sequence[str]) -> int:
    """Audit the named bugs, or all; 1 if one was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bugs", nargs="*", metavar="BUG", help="by default all")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--repetitions", type=int, default=AuditOptions().repetitions)
    parser.add_argument("--canaries", type=int, default=AuditOptions().canaries)
    parser.add_argument("--seconds", type=float, help="of the search for worst-case records")
    given = parser.parse_args(arguments)
    options = AuditOptions(
        repetitions=given.repetitions, seconds=given.seconds, canaries=given.canaries
    )
    names = given.bugs or list(BUGS)
    pairs = [(name, case) for name in names for case in BUGS[name].cases]
    found: dict[str, list[Found]] = {name: [] for name in names}
    with ProcessPoolExecutor(given.jobs) as pool:
        waiting = [pool.submit(audited, *pair, options) for pair in pairs]
        for done in waiting:
            one = done.result()
            found[one.bug].append(one)
            told = one.refused or "; ".join(one.alarms) or "MISSED"
            print(
                f"{one.bug}, {one.case}: {told} ({one.seconds:.1f} s)", file=sys.stderr, flush=True
            )
    print("| bug | what was done | in | found by (in how many, if not in all) | missed in |")
    print("|---|---|---|---|---|")
    for name in names:
        print(row(name, found[name]))
    every = [one for many in found.values() for one in many]
    missed = [one for one in every if not one.alarms]
    print(f"\n{len(every) - len(missed)} of {len(every)} found; {len(names)} bugs.")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
