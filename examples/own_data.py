"""Train on data of your own: a function that gives each node's records, and public test records.

    python examples/own_data.py

With `data = "by-rank"` a process asks for the records of its own nodes and of no others, so that
the same experiment runs here, where one process has all nodes, and on the machines of several
sites. What must not follow from private records is declared: how many classes there are, and how
long a record's inputs may be.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

import tacit

Records = tuple[NDArray[np.float32], NDArray[np.int64]]

CENTRES = np.random.default_rng(0).normal(size=(3, 6))  # of three classes, the same at every node


def drawn(seed: int, records: int, shares: list[float]) -> Records:
    """Inputs `[records, 6]` around the centre of each record's class, and labels `[records]`."""
    draw = np.random.default_rng(seed)
    labels = draw.choice(3, size=records, p=shares)
    inputs = CENTRES[labels] + 0.5 * draw.normal(size=(records, 6))
    return inputs.astype(np.float32), labels.astype(np.int64)


def load(node: int) -> Records:
    """The records of one node; a real one would read a file or a database of its site."""
    shares = [0.2, 0.2, 0.2]
    shares[node % 3] = 0.6  # nodes differ in what they see
    return drawn(seed=node + 1, records=300 + 100 * node, shares=shares)


def main() -> None:
    """Train a linear classifier on five nodes that differ in size and in their classes."""
    result = tacit.train(
        {
            "task": {"model": "logistic", "outputs": 3, "input_bound": 5.0},
            "nodes": {"count": 5, "data": "by-rank", "source": "own_data:load"},
            "topology": {"graph": "exponential"},
            "algorithm": {"name": "privsgp", "learning_rate": 0.5, "clip": 1.0},
            "privacy": {"epsilon": 1.0, "delta": 1e-5},
            "train": {"steps": 40, "batch": "all"},
        },
        test=drawn(seed=0, records=500, shares=[1 / 3, 1 / 3, 1 / 3]),
    )

    for node in result.plan.nodes:
        assert node.epsilon is not None
        epsilon = math.ceil(100 * node.epsilon) / 100  # a bound stays one when it is rounded up
        print(f"node {node.node}: {node.records} records, certified epsilon {epsilon:.2f}")
    assert result.test_accuracy is not None
    print(f"test accuracy, mean over nodes: {result.test_accuracy['mean']:.1%}")


if __name__ == "__main__":
    main()
