"""tacit: all nodes stacked in one process. What is timed is the loop of a run, as users have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gate import Gate
from numpy.typing import NDArray
from workloads import Workload, records_of

import tacit
from models import model_of
from tacit.training.job import Job
from tacit.training.loop import execute
from tacit.training.prepare import prepare

# More than any benchmark asks for; a run is evaluated before its first step and after its last.
MOST_STEPS = 1_000_000


def job_of(
    workload: Workload,
    *,
    steps: int = MOST_STEPS,
    privacy: Mapping[str, Any] | None = None,
    topology: Mapping[str, Any] | None = None,
    **algorithm: Any,
) -> Job:
    """The workload as an experiment.

    Args:
        workload: what is done.
        steps: most that can be asked for.
        privacy: `[privacy]` of a private workload, in place of a given noise without accounting.
        topology: `[topology]`; by default what the algorithm takes.
        algorithm: further options of `[algorithm]`.
    """
    records = records_of(workload)
    private = workload.clip is not None
    experiment = {
        "algorithm": {
            "name": workload.algorithm,
            "learning_rate": workload.learning_rate,
            **({"clip": workload.clip} if private else {}),
            **({"clients_per_round": workload.active} if workload.active else {}),
            **({"local_steps": workload.local_steps} if workload.local_steps > 1 else {}),
            **algorithm,
        },
        "privacy": (privacy or {"noise_std": workload.noise / workload.batch, "accounting": "none"})
        if private
        else {},
        "topology": topology or {},
        "train": {
            "steps": steps,
            "batch": workload.batch,
            "sampling": "fixed",
            "evaluate_every": steps,
        },
    }
    nodes = [
        (torch.from_numpy(inputs), torch.from_numpy(labels))
        for inputs, labels in zip(records.inputs, records.labels, strict=True)
    ]
    config = tacit.load_config(experiment, count=workload.nodes, given_model=True)
    return prepare(config, model=model_of(workload), nodes=nodes)


class _Stacked:
    """A run, let go by so many steps at a time; `job` is what runs."""

    def __init__(self, workload: Workload, job: Job) -> None:
        self._workload, self.job = workload, job
        self._gate = Gate(self._train)

    def _train(self) -> None:
        execute(
            self.job,
            on_step=lambda progress: self._gate.passed(),
            should_stop=lambda: self._gate.stopped,
        )

    def run(self, steps: int) -> None:
        """See `contender.Runner`."""
        self._gate.run(steps)

    def check(self) -> NDArray[np.float32]:
        """See `contender.Runner`."""
        workload, job = self._workload, self.job
        indices = torch.from_numpy(records_of(workload).batch(workload, 0))
        inputs, targets = job.train.gather(indices)
        at = job.model.start(workload.nodes, job.dtype, job.device)
        mask = torch.ones_like(indices, dtype=torch.bool)
        found: NDArray[np.float32] = job.model.gradient(
            at, inputs, targets, mask, workload.clip
        ).total.numpy()
        return found

    def notes(self) -> Mapping[str, Any]:
        """See `contender.Runner`."""
        return {
            "tacit": tacit.__version__,
            "torch": torch.__version__,
            "d": self.job.model.parameters_count,
        }

    def close(self) -> None:
        """End the run."""
        self._gate.stop(seconds=60.0)


def build(workload: Workload, **options: Any) -> _Stacked:
    """See `contender`; the options are those of `job_of`."""
    return _Stacked(workload, job_of(workload, **options))
