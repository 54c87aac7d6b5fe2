"""What is timed: one description that every contender is built from, with NumPy alone.

Images are those of MNIST or Fashion-MNIST where `data_dir` has them, and generated ones of the same
shape elsewhere: no time depends on what they show.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Model = Literal["mlp", "cnn", "cnn3", "logistic"]

_NOT_PRIVATE = {"privsgp": "sgp", "dyn-d2p": "sgp"}


@dataclass(frozen=True)
class Workload:
    """One row of the table.

    Attributes:
        name: of the row.
        algorithm: as in `[algorithm].name`.
        model: `mlp` is 784-128-10; `cnn` and `cnn3` are those of `tacit.models`; `logistic` one
            dense layer.
        dataset: `mnist`, `fashion-mnist`, `adult` or `generated`; says which files are read, if
            they are there.
        nodes: nodes or clients.
        batch: records of a step (of a local step) at a node; every contender takes exactly so many,
            drawn without replacement inside a batch.
        records: at a node.
        shape: of a record.
        classes: of its label.
        clip: bound C of a record's gradient; None for the same step without clipping and noise.
        noise: standard deviation of the noise in the sum over a batch.
        active: clients in a round; None for all.
        local_steps: mini-batches a round.
        learning_rate: the step size.
        data_dir: where the original files are.
        seed: of generated records, initial weights and batches; of no noise.
    """

    name: str
    algorithm: str = "privsgp"
    model: Model = "mlp"
    dataset: str = "mnist"
    nodes: int = 50
    batch: int = 1
    records: int = 1200
    shape: tuple[int, ...] = (1, 28, 28)
    classes: int = 10
    clip: float | None = 1.0
    noise: float = 1.0
    active: int | None = None
    local_steps: int = 1
    learning_rate: float = 0.05
    data_dir: str = "data"
    seed: int = 0

    def plain(self) -> Workload:
        """The same step without clipping and noise; for push-sum methods that is SGP."""
        return replace(
            self,
            name=f"{self.name}, not private",
            algorithm=_NOT_PRIVATE.get(self.algorithm, self.algorithm),
            clip=None,
            noise=0.0,
        )

    def quick(self) -> Workload:
        """The same at a size whose figures mean nothing, on generated records."""
        batch = min(self.batch, 4)
        return replace(
            self,
            nodes=6 if self.active else 2,
            active=2 if self.active else None,
            batch=batch,
            records=max(20, batch * self.local_steps),
            data_dir="none",
        )

    def source(self) -> str:
        """Where its records come from."""
        there = (Path(self.data_dir) / self.dataset).is_dir()
        return self.dataset if there else "generated"

    def to_json(self) -> str:
        """For a worker's command line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Workload:
        """The reverse."""
        fields = json.loads(text)
        return Workload(**{**fields, "shape": tuple(fields["shape"])})


@dataclass(frozen=True)
class Records:
    """Every node's records: inputs float32 `[nodes, records, *shape]`, labels `[nodes, records]`.

    `inputs[node, i]` is the i-th record of the node, the same for every contender.
    """

    inputs: NDArray[np.float32]
    labels: NDArray[np.int64]

    def batch(self, workload: Workload, step: int) -> NDArray[np.int64]:
        """A batch that contenders agree on, for checks: record numbers `[nodes, batch]`."""
        draw = np.random.default_rng([workload.seed, step])
        rows = [
            draw.choice(workload.records, workload.batch, replace=False)
            for _ in range(workload.nodes)
        ]
        return np.stack(rows).astype(np.int64)


_FOLDERS = {"mnist": "mnist", "fashion-mnist": "fashion-mnist"}


def records_of(workload: Workload) -> Records:
    """The records of all nodes, real ones where the files are there."""
    total = workload.nodes * workload.records
    found = _images(workload, total)
    if found is None:
        found = _generated(workload, total)
    inputs, labels = found
    shape = (workload.nodes, workload.records)
    return Records(inputs.reshape(*shape, *workload.shape), labels.reshape(shape))


def _images(workload: Workload, total: int) -> tuple[NDArray[np.float32], NDArray[np.int64]] | None:
    folder = Path(workload.data_dir) / _FOLDERS.get(workload.dataset, "none")
    parts = [folder / f"train-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
    if not all(part.exists() for part in parts):
        return None
    pixels, labels = (
        np.frombuffer(gzip.decompress(part.read_bytes()), np.uint8, offset=offset)
        for part, offset in zip(parts, (16, 8), strict=True)
    )
    take = np.arange(total) % len(labels)
    images = pixels.reshape(len(labels), -1)[take]
    return (images / np.float32(255)).astype(np.float32), labels[take].astype(np.int64)


def _generated(workload: Workload, total: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    draw = np.random.default_rng(workload.seed)
    inputs = draw.random((total, *workload.shape), dtype=np.float32)
    return inputs, draw.integers(0, workload.classes, total)
