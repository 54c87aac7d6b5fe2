"""How near the rules of `tacit plan --recommend` come to the best of a grid, on public data.

    python benchmarks/recommend.py [--data-dir data] [--records 4000] [--seeds 2] [--only digits]

Linear models at full batch, in plain PyTorch, with the noise that a run of tacit has in the mean
over all nodes: that of one release of everything, s, times sqrt(T), in every step. Nodes agree
exactly. A cell is a data set and an s; budgets, nodes and records come to an s by
`--budgets`, which prints them.

For every cell stand the accuracy of the rules (mean over seeds, in percent), the best of the grid
(travel, clip; the same seeds), and what is lost beside it; and what is lost by the travel and clip
that are best on all other data sets, so that no data set judges a rule that was fitted to it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tacit import data, privacy
from tacit.features.maps import find_features
from tacit.training.recommend.rules import CLIP_SHARE, MOMENTUM, OUTPUT_NOISE, STEPS, travel

SETS = {
    "digits": ("digits", "scattering:1"),
    "adult": ("adult", None),
    "mnist": ("mnist", "scattering"),
    "fashion-mnist": ("fashion-mnist", "scattering"),
    "mnist, pixels": ("mnist", None),
}
NOISES = {
    "digits": (3e-4, 1e-3, 3e-3, 1e-2),
    "adult": (3e-5, 2e-4, 1e-3, 5e-3),
    "mnist": (2e-5, 2e-4, 1e-3, 4e-3),
    "fashion-mnist": (2e-5, 2e-4, 1e-3, 4e-3),
    "mnist, pixels": (2e-5, 2e-4, 1e-3, 4e-3),
}
OUTPUT_NOISES = (1.0, 2.0, 4.0, 8.0, 16.0)
CLIPS = (0.003, 0.01, 0.1, 1.0)
DECAY = 0.9
TESTED = 5000


@dataclass(frozen=True)
class Records:
    """Inputs `[r, p]` and labels `[r]`, to train and to test on."""

    inputs: Tensor
    labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor

    @property
    def norm(self) -> float:
        """|x|, of the test records, and of the 1 that goes with a bias."""
        return math.sqrt(1 + float(self.test_inputs.square().sum(1).median()))


@dataclass(frozen=True)
class Row:
    """Accuracies of a cell: of every point of the grid, and of the rules."""

    name: str
    noise: float
    grid: dict[str, float]
    rules: float


def records_of(name: str, folder: Path, most: int) -> Records:
    """Some records of a data set, drawn by a seed, as a model gets them."""
    dataset, features = SETS[name]
    loaded = data.load(dataset, data_dir=folder)
    assert loaded.test is not None
    halves = []
    for half, count in ((loaded.train, most), (loaded.test, TESTED)):
        order = np.random.default_rng(0).permutation(len(half))[:count]
        inputs = half.inputs[order].float()
        if features is not None:
            made = find_features(features, inputs[:1], torch.float32, inputs.device)
            inputs = made(inputs)
        halves += [inputs.flatten(1), half.targets[order].reshape(-1).long()]
    return Records(*halves)


def accuracies(
    records: Records, noise: float, travels: Sequence[float], clips: Sequence[float], seed: int
) -> list[float]:
    """Accuracy of the averaged model of each pair of travel and clip, trained side by side.

    Args:
        records: to train and to test on.
        noise: s.
        travels: |x| L of each.
        clips: C over |x| of each.
        seed: of the noise.
    """
    classes = 1 + int(records.test_labels.max())
    count, inputs = len(records.inputs), records.inputs
    many, width = len(clips), inputs.shape[1]
    draw = torch.Generator().manual_seed(seed)
    bound = torch.tensor(clips, dtype=torch.float32) * records.norm
    length = torch.tensor(travels, dtype=torch.float32) / records.norm
    rate = length / bound * (1 - MOMENTUM) / STEPS
    lengths = (inputs.square().sum(1) + 1).sqrt()
    target = functional.one_hot(records.labels, classes).float()[:, None]
    weights, bias = torch.zeros(many, classes, width), torch.zeros(many, classes)
    moved, moved_bias = torch.zeros_like(weights), torch.zeros_like(bias)
    mean, mean_bias = torch.zeros_like(weights), torch.zeros_like(bias)
    deviation = bound * noise * math.sqrt(STEPS)
    total = 0.0
    for k in range(STEPS):
        outputs = (inputs @ weights.flatten(0, 1).T).view(count, many, classes) + bias
        residuals = torch.softmax(outputs, 2) - target
        norms = residuals.norm(dim=2) * lengths[:, None]
        residuals *= (bound / norms.clamp_min(1e-12)).clamp_max(1)[:, :, None]
        gradient = (residuals.flatten(1).T @ inputs).view_as(weights) / count
        gradient += deviation[:, None, None] * torch.randn(gradient.shape, generator=draw)
        slope = residuals.mean(0) + deviation[:, None] * torch.randn(bias.shape, generator=draw)
        moved.mul_(MOMENTUM).add_(gradient)
        moved_bias.mul_(MOMENTUM).add_(slope)
        weights -= rate[:, None, None] * moved
        bias -= rate[:, None] * moved_bias
        share = DECAY ** (STEPS - 1 - k)
        total += share
        mean += share * weights
        mean_bias += share * bias
    outputs = (records.test_inputs @ (mean / total).flatten(0, 1).T).view(-1, many, classes)
    right = (outputs + mean_bias / total).argmax(2) == records.test_labels[:, None]
    return [100 * value for value in right.float().mean(0).tolist()]


def row_of(name: str, records: Records, noise: float, seeds: int) -> Row:
    """One cell: every point of the grid, and the rules, with the same seeds."""
    points = list(itertools.product(OUTPUT_NOISES, CLIPS))
    travels = [value / noise for value, _ in points] + [travel(noise)]
    clips = [clip for _, clip in points] + [CLIP_SHARE]
    found = [accuracies(records, noise, travels, clips, seed) for seed in range(seeds)]
    means = np.mean(found, axis=0).tolist()
    grid = {f"{value:g} {clip:g}": one for (value, clip), one in zip(points, means, strict=False)}
    return Row(name, noise, grid, means[-1])


def best_point(rows: Sequence[Row]) -> str:
    """The point of the grid that loses least in the mean over cells."""
    points = rows[0].grid
    return max(
        points, key=lambda point: sum(row.grid[point] - max(row.grid.values()) for row in rows)
    )


def print_table(rows: Sequence[Row]) -> None:
    """A line for each cell."""
    print("| data | s | rules | best of grid | lost | lost, fitted on the others |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        others = [other for other in rows if other.name != row.name]
        best = max(row.grid.values())
        fitted = f"{best - row.grid[best_point(others)]:.1f}" if others else "-"
        print(
            f"| {row.name} | {row.noise:g} | {row.rules:.1f} | {best:.1f} | "
            f"{best - row.rules:.1f} | {fitted} |"
        )


def print_budgets() -> None:
    """s of some budgets: all messages seen, 60,000 records in all, delta 1e-5."""
    print("| epsilon | 1 node | 10 nodes | 100 nodes |")
    print("|---|---|---|---|")
    for epsilon in (0.1, 0.3, 1.0, 3.0, 8.0):
        multiplier = privacy.calibrate(
            lambda scale: privacy.Gaussian([scale], coordinates=1000), epsilon=epsilon, delta=1e-5
        )
        cells = (f"{multiplier * math.sqrt(nodes) / 60_000:.1e}" for nodes in (1, 10, 100))
        print(f"| {epsilon:g} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--records", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=[*SETS], default=[*SETS])
    parser.add_argument("--budgets", action="store_true", help="print what budgets come to")
    parser.add_argument("--out", type=Path, help="write all figures as JSON")
    asked = parser.parse_args()
    if asked.budgets:
        print_budgets()
        return
    rows = []
    for name in asked.only:
        records = records_of(name, asked.data_dir, asked.records)
        for noise in NOISES[name]:
            rows.append(row_of(name, records, noise, asked.seeds))
            print(f"{name}, s {noise:g}: {rows[-1].rules:.1f}", flush=True)
    print(f"|x| L s = {OUTPUT_NOISE:g}, C = {CLIP_SHARE:g} |x|, {STEPS} steps")
    print_table(rows)
    if asked.out is not None:
        asked.out.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
