"""What processes work on: generated records, so that nothing needs to be downloaded."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import torch
from torch import nn

from tacit.config import load_config
from tacit.training.job import Job
from tacit.training.prepare import prepare

_CLASSES = 10


@dataclass(frozen=True)
class Work:
    """A network of one hidden layer, trained on records that are drawn.

    Args:
        algorithm: its name.
        graph: who talks to whom; a server's needs none.
        nodes: how many.
        inputs: numbers of a record.
        hidden: units.
        batch: expected records of a mini-batch.
        records: of each node.
        steps: that the plan has; more may be run.
    """

    algorithm: str = "privsgp"
    graph: str = "exponential"
    nodes: int = 20
    inputs: int = 784
    hidden: int = 128
    batch: int = 32
    records: int = 200
    steps: int = 1000

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.algorithm} on {self.graph}, {self.nodes} nodes, d = {self.parameters:,}"

    @property
    def parameters(self) -> int:
        """d."""
        return self.hidden * (self.inputs + 1) + _CLASSES * (self.hidden + 1)

    def to_json(self) -> str:
        """For a worker's command line."""
        return json.dumps(asdict(self))


def job_of(work: Work) -> Job:
    """All that a run needs; equal in every process."""
    draw = torch.Generator().manual_seed(0)
    total = work.nodes * work.records
    inputs = torch.rand(total, work.inputs, generator=draw)
    labels = torch.randint(_CLASSES, (total,), generator=draw)
    parts = zip(inputs.split(work.records), labels.split(work.records), strict=True)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(work.inputs, work.hidden), nn.ReLU(), nn.Linear(work.hidden, _CLASSES)
    )
    config = load_config(
        {
            "topology": {"graph": work.graph},
            "algorithm": {"name": work.algorithm, "clip": 1.0},
            "privacy": {"noise_std": 0.1, "noise_seed": 1, "accounting": "none"},
            "train": {"steps": work.steps, "batch": work.batch},
        },
        count=work.nodes,
        given_model=True,
    )
    return prepare(config, model=model, nodes=list(parts))
