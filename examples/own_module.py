"""Train a module of your own on records that you pass in: four nodes, each with its own budget.

    python examples/own_module.py

Any module will do whose records do not mix, such as one with `GroupNorm`; batch normalisation is
refused, because one record would then move the gradients of all others. The module's present
weights are every node's start.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import tacit


def network() -> nn.Module:
    """A small convolutional network for images of 8 x 8 pixels and ten classes."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, stride=2),
        nn.GroupNorm(4, 8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, 10),
    )


def main() -> None:
    """Train it, and say what each node spent."""
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    inputs, test_inputs, targets, test_targets = train_test_split(
        images, labels, test_size=0.2, random_state=0, stratify=labels
    )
    nodes = list(zip(np.array_split(inputs, 4), np.array_split(targets, 4), strict=True))

    result = tacit.train(
        {
            "task": {"outputs": 10},
            "topology": {"graph": "ring"},
            "algorithm": {"name": "dp2-sgd", "learning_rate": 0.5, "clip": 1.0},
            "privacy": {"epsilon": [4.0, 4.0, 8.0, 8.0], "delta": 1e-4},
            "train": {"steps": 30, "batch": "all"},
        },
        model=network(),
        nodes=nodes,
        test=(test_inputs, test_targets),
    )

    for claim in result.claims:
        assert claim.certified is not None
        epsilon = math.ceil(100 * claim.certified) / 100  # a bound stays one when it is rounded up
        print(f"node {claim.node}: certified epsilon {epsilon:.2f} of {claim.budget:g}")
    assert result.test_accuracy is not None
    print(f"test accuracy, worst node: {result.test_accuracy['worst']:.1%}")
    trained = result.model("consensus")  # a copy of the module; result.model(0) is that of node 0
    with torch.no_grad():
        print(f"first test image: {int(trained(torch.from_numpy(test_inputs[:1])).argmax())}")

    mixing = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))
    try:
        tacit.train({"task": {"outputs": 10}}, model=mixing, nodes=nodes)
    except tacit.InputError as refused:
        print(f"batch normalisation is refused: {refused}")


if __name__ == "__main__":
    main()
