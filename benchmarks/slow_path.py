"""The forecast of a plan against the run: models that are differentiated one record at a time.

    python benchmarks/slow_path.py

Prints for each model how long a step takes by the plan's forecast and by the run, and their ratio;
then how many times as long as plain PyTorch, forecast. A step of a run also mixes and adds noise.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import tacit

NODES, RECORDS, STEPS = 4, 64, 12


class Tied(nn.Module):
    """One weight in three layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        for _ in range(3):
            inputs = torch.tanh(self.layer(inputs))
        outputs: Tensor = self.head(inputs)
        return outputs


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(12 * 32, 3))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "tied layers, 128 wide": (lambda: Tied(128), (128,)),
    "weight-normalised network, 50,000 weights": (
        lambda: nn.Sequential(weight_norm(nn.Linear(64, 700)), nn.ReLU(), nn.Linear(700, 3)),
        (64,),
    ),
    "transformer layer, 12 places": (encoder, (12, 32)),
}


def main() -> None:
    warnings.simplefilter("ignore")
    for name, (make, shape) in MODELS.items():
        torch.manual_seed(0)
        draws = torch.Generator().manual_seed(1)
        nodes = [
            (torch.randn(RECORDS, *shape, generator=draws), torch.arange(RECORDS) % 3)
            for _ in range(NODES)
        ]
        config: dict[str, Any] = {
            "task": {"outputs": 3},
            "topology": {"graph": "ring"},
            "algorithm": {"name": "dp2-sgd", "learning_rate": 0.1, "clip": 1.0},
            "privacy": {"epsilon": 8.0, "delta": 1e-3},
            "train": {"steps": STEPS, "batch": "all"},
        }
        result = tacit.train(config, model=tacit.fix(make()), nodes=nodes)
        lines = [line for line in result.plan.warnings if "slow to train" in line]
        measured = result.seconds / result.steps
        found = re.search(r"about ([\d.e+-]+) s .*, ([\d.e+-]+) times", lines[0]) if lines else None
        if found is None:
            print(f"{name}: no warning ({result.job.model.path}); {measured:.3f} s a step")
            continue
        forecast = float(found[1])
        print(
            f"{name}: forecast {forecast:.3f} s a step, run {measured:.3f}, "
            f"ratio {measured / forecast:.2f}; {found[2]} times plain PyTorch"
        )


if __name__ == "__main__":
    main()
