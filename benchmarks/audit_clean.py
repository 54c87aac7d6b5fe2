"""Audits of correct programs: `python benchmarks/audit_clean.py [--audits N]`, 200 by default.

Every private algorithm with each sampler and relation that it takes (tests/analysis/audit/
clean_cases.py), again and again with other seeds, at the options that an audit has by default.
What raises an alarm is printed, and so is what is refused; the last line counts both.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from tacit.analysis.audit import AuditOptions, audit_job

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "analysis" / "audit")]

from clean_cases import CLEAN  # noqa: E402

_STRIDE = 37  # a prime that does not divide how many there are


def audited(case: str, seed: int, options: AuditOptions) -> tuple[str, float]:
    """What accuses a correct program (nothing should) or was refused, and how long it took."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    try:
        report = audit_job(CLEAN[case](), options=replace(options, seed=seed))
    except Exception as error:  # the others are audited all the same
        return f"REFUSED: {type(error).__name__}: {error}", time.perf_counter() - began
    alarms = [f"ALARM: {failure.name}: {failure.saw}" for failure in report.failures]
    return "; ".join(alarms), time.perf_counter() - began


def main(arguments: Sequence[str]) -> int:
    """Audit so many; 1 if there was an alarm or a refusal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audits", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--repetitions", type=int, default=AuditOptions().repetitions)
    parser.add_argument("--canaries", type=int, default=AuditOptions().canaries)
    parser.add_argument("--seconds", type=float, help="of the search for worst-case records")
    parser.add_argument("--seed", type=int, default=1000, help="of the first audit")
    given = parser.parse_args(arguments)
    options = AuditOptions(
        repetitions=given.repetitions, seconds=given.seconds, canaries=given.canaries
    )
    names = list(CLEAN)
    # Spread, so that a part of them has something of every algorithm.
    cases = [names[number * _STRIDE % len(names)] for number in range(given.audits)]
    told, longest = [], 0.0
    with ProcessPoolExecutor(given.jobs) as pool:
        waiting = [
            pool.submit(audited, case, given.seed + number, options)
            for number, case in enumerate(cases)
        ]
        for number, (case, done) in enumerate(zip(cases, waiting, strict=True)):
            accused, seconds = done.result()
            told.append(accused)
            longest = max(longest, seconds)
            if accused:
                print(f"{case}, seed {given.seed + number}: {accused}", flush=True)
            print(f"{number + 1}: {case}, {seconds:.0f} s", file=sys.stderr, flush=True)
    alarms = sum(accused.startswith("ALARM") for accused in told)
    refused = sum(accused.startswith("REFUSED") for accused in told)
    print(
        f"{len(told)} audits of correct programs, {len(set(cases))} experiments: {alarms} alarms, "
        f"{refused} refused; the longest took {longest:.0f} s"
    )
    return int(alarms + refused > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
