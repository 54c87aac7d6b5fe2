"""Wall time of `tacit compare` of many small runs, here and at another checkout, side by side.

`python benchmarks/compare_runs.py --base CHECKOUT [--runs 100] [--rounds 3] [--folder DIR]` runs
both in turn, with two processes each, on the digits (a logistic model, 30 steps, seeded noise), in
folders below DIR, which says on which disk. It prints a line a round: seconds of the base, seconds
of this checkout, and their ratio; then the median ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIGURE = """
[task]
dataset = "digits"
model = "logistic"
[nodes]
count = 8
[algorithm]
name = "privsgp"
[privacy]
epsilon = 2.0
delta = 1e-4
noise_seed = 3
[train]
steps = 30
batch = 32
[figure]
seeds = {seeds}
[[figure.line]]
name = "grid"
grid = {{ "algorithm.learning_rate" = [0.05, 0.1, 0.2, 0.4, 0.8], "algorithm.clip" = [1.0, 2.0] }}
"""


def seconds(checkout: Path, figure: Path, out: Path) -> float:
    """Of one comparison by the code of a checkout, in a new folder."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tacit", "compare", str(figure), "--jobs", "2", "--json"]
    began = time.perf_counter()
    subprocess.run(
        [*command, "--out", str(out)], env=environment, check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        figure = Path(folder, "many.toml")
        figure.write_text(FIGURE.format(seeds=options.runs // 10))
        for turn in range(options.rounds):
            base = seconds(options.base.resolve(), figure, Path(folder, f"base-{turn}"))
            own = seconds(ROOT, figure, Path(folder, f"own-{turn}"))
            ratios.append(own / base)
            print(f"base {base:.1f} s, here {own:.1f} s, ratio {ratios[-1]:.2f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.2f} of {options.runs} runs")


if __name__ == "__main__":
    main()
