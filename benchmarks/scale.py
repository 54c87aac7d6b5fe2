"""How time and memory grow with nodes: three steps with one evaluation at 100, 1,000 and 10,000.

    python benchmarks/scale.py [--nodes 100 1000 10000] [--beside SRC] [--quick]

PrivSGP on the exponential graph, a logistic model on scikit-learn's digits, four records a node
(of 1,437, drawn with replacement), 360 public test records. Of every size it prints wall time,
processor time and peak memory of a fresh process on one thread: import, planning, steps, evaluation
and result together; and what a thousand nodes more add. Kernels are compiled and kept before, and
the digits are read from scikit-learn by this process, which tacit itself does without.

Beside it stands a process a node: a process with one of these nodes alone, which starts and trains
as long. Its formula: n of them take n times its processor time, divided by the cores there are, and
n times its peak memory. That is linear, and leaves out what they send each other; memory that
processes share (libraries) is counted in each. `--beside` runs the same with another version of
tacit, by its folder `src`, in turns, and prints the ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
from sklearn.datasets import load_digits

HERE = Path(__file__).resolve()
CHILD = """
import json, resource, sys, time, warnings
start = time.perf_counter()
import numpy
import torch
import tacit

warnings.simplefilter("ignore")
count, digits = int(sys.argv[1]), numpy.load(sys.argv[2])
inputs, targets = (torch.tensor(digits[name]) for name in ("inputs", "targets"))
inputs = (inputs / 16).float()
rows = torch.randint(1437, (count, 4), generator=torch.Generator().manual_seed(0))
result = tacit.train(
    {
        "task": {"model": "logistic", "outputs": 10},
        "algorithm": {"name": "privsgp"},
        "train": {"steps": 3, "batch": 2, "evaluate_every": 3},
        "privacy": {"epsilon": 3.0, "noise_seed": 5},
    },
    nodes=[(inputs[chosen], targets[chosen]) for chosen in rows],
    test=(inputs[1437:], targets[1437:]),
)
print(json.dumps({
    "wall": time.perf_counter() - start,
    "cpu": time.process_time(),
    "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "sum": float(result.parameters.double().sum()),
}))
"""


def measured(nodes: int, source: Path, digits: Path) -> dict[str, float]:
    """Seconds, MiB and the sum of all models of one fresh process."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHILD, str(nodes), str(digits)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print a line a size, and that of a process a node."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--beside", type=Path, default=None)
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    source, cores = HERE.parents[1] / "src", os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        digits = Path(folder, "digits.npz")
        inputs, targets = load_digits(return_X_y=True)
        numpy.savez(digits, inputs=inputs, targets=targets)
        report(chosen, source, digits, cores)


def report(chosen: argparse.Namespace, source: Path, digits: Path, cores: int) -> None:
    """Print them of the chosen sizes."""
    for kept in (
        () if chosen.quick else {source, chosen.beside or source}
    ):  # kernels are compiled once, and kept
        measured(2, kept, digits)
    alone, before = measured(1, source, digits), None
    print(f"a process a node: {alone['cpu']:.2f} s of a core and {alone['mib']:.0f} MiB each")
    for nodes in [1, 20] if chosen.quick else chosen.nodes:
        own = alone if nodes == 1 else measured(nodes, source, digits)
        print(f"{nodes:,} nodes: {own['wall']:.2f} s, {own['cpu']:.2f} s of a core, ", end="")
        print(f"{own['mib']:.0f} MiB")
        if before is not None:
            more = (nodes - before[0]) / 1000
            seconds, mib = (own[key] - before[1][key] for key in ("cpu", "mib"))
            print(f"  a thousand nodes more: {seconds / more:.2f} s, {mib / more:.0f} MiB")
        print(
            f"  a process a node, by its formula: {nodes * alone['cpu'] / cores:,.0f} s on {cores} "
            f"cores, {nodes * alone['mib'] / 1024:,.1f} GiB"
        )
        if chosen.beside is not None:
            other = measured(nodes, chosen.beside, digits)
            same = "the same models" if own["sum"] == other["sum"] else "OTHER MODELS"
            kinds = ("wall", "cpu", "mib")
            ratios = ", ".join(f"{own[key] / other[key]:.2f} of its {key}" for key in kinds)
            print(f"  beside {other['wall']:.2f} s, {other['mib']:.0f} MiB: {ratios}; {same}")
        before = nodes, own


if __name__ == "__main__":
    main()
