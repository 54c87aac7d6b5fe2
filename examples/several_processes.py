"""Train in several processes that share no data: what several sites do, on one machine.

    python examples/several_processes.py

Every node has a file of its own. Two processes, linked over the loopback address, host two nodes
each and open the files of these alone; each keeps its own ledger. docs/how-to/processes.md goes
from here to several machines.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from sklearn.datasets import load_digits

EXPERIMENT = """
[task]
dataset = "digits"            # for its public test records only
model = "logistic"

[nodes]
count = 4
data = "by-rank"
source = "own-{node}.npz"

[algorithm]
name = "privsgp"
learning_rate = 0.5
clip = 0.5

[privacy]
epsilon = [1.0, 2.0, 3.0, 4.0]
delta = 1e-4

[train]
steps = 20
batch = "all"
"""


def main() -> None:
    """Write four sites' files, train across them, and read what came out."""
    images, labels = load_digits(return_X_y=True)
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "experiment.toml").write_text(EXPERIMENT, encoding="utf-8")
        for node in range(4):
            inputs = images[node:1400:4].reshape(-1, 1, 8, 8) / 16
            np.savez(folder / f"own-{node}.npz", inputs=inputs, targets=labels[node:1400:4])

        command = ["launch", "experiment.toml", "--processes", "2", "--out", "run", "--quiet"]
        subprocess.run([sys.executable, "-m", "tacit", *command], cwd=folder, check=True)

        result = json.loads((folder / "run" / "result.json").read_text(encoding="utf-8"))
        for node, (epsilon, source) in enumerate(
            zip(result["epsilon"], result["epsilon_source"], strict=True)
        ):
            bound = math.ceil(100 * epsilon) / 100  # a bound stays one when it is rounded up
            print(f"node {node}: certified epsilon {bound:.2f}, by: {source}")
        print(f"test accuracy, mean over nodes: {result['test_accuracy']['mean']:.1%}")
        ledgers = sorted(path.parent.name for path in folder.glob("run/rank-*/ledger.sqlite"))
        print("ledgers:", ", ".join(ledgers))


if __name__ == "__main__":
    main()
