"""The networks of the workloads, in plain PyTorch, with the same start for every contender."""

from __future__ import annotations

import math

import torch
from torch import nn
from workloads import Workload


def model_of(workload: Workload) -> nn.Module:
    """The network of a workload; its weights depend on the workload's seed alone."""
    torch.manual_seed(workload.seed)
    size, channels = math.prod(workload.shape), workload.shape[0]
    if workload.model == "logistic":
        return nn.Sequential(nn.Flatten(), nn.Linear(size, workload.classes))
    if workload.model == "mlp":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(size, 128), nn.ReLU(), nn.Linear(128, workload.classes)
        )
    if workload.model == "cnn3":
        return nn.Sequential(
            nn.Conv2d(channels, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 48, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(
                48 * math.prod(-(-side // 8) for side in workload.shape[1:]), workload.classes
            ),
        )
    return nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, workload.classes),
    )
