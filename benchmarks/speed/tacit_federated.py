"""tacit's federated methods, as users run them: the loop of a run, clients stacked.

For `fedspd-dp` (on Adult, in the setting of `adult.py`) and `dp-fedavg`. A row of the table:

    Workload("dp-fedavg", algorithm="dp-fedavg", model="cnn3", dataset="generated", nodes=1000,
             records=50, shape=(3, 32, 32), classes=10, active=50, batch=10, local_steps=5,
             learning_rate=0.1)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from adult import FEDSPD_OPTIONS, clients_of
from gate import Gate
from numpy.typing import NDArray
from torch import Tensor
from workloads import Workload

import tacit
from models import model_of
from tacit.algorithms import Activity
from tacit.communication.colours import Outgoing
from tacit.communication.exchange import InProcessExchange
from tacit.privacy.noise.draws import NodeKeys
from tacit.training import sampling
from tacit.training.budget import node_keys
from tacit.training.job import Job
from tacit.training.loop import execute
from tacit.training.plan import Plan
from tacit.training.prepare import prepare
from tacit.training.release import NodePlan
from tacit.training.sampling import Batch, DisjointBatches
from tacit.training.stacked_context import StackedContext

# Who is active is drawn for the whole run beforehand: so many (round, client) pairs at most.
MOST_ACTIVITY = 5_000_000
MOST_ROUNDS = 50_000

OPTIONS: Mapping[str, Mapping[str, Any]] = {"fedspd-dp": FEDSPD_OPTIONS, "dp-fedavg": {}}


def job_of(
    workload: Workload,
    *,
    clients: int | None = None,
    noisy: bool = True,
    dtype: str = "float32",
    **algorithm: Any,
) -> Job:
    """The workload, or its first `clients` alone, as an experiment.

    `algorithm` are further options of `[algorithm]`.
    """
    records = clients_of(workload)
    rounds = min(MOST_ROUNDS, MOST_ACTIVITY // workload.nodes)
    experiment = {
        "task": {"loss": "logistic" if workload.model == "logistic" else "cross-entropy"},
        "algorithm": {
            "name": workload.algorithm,
            "learning_rate": workload.learning_rate,
            "clip": workload.clip,
            "clients_per_round": workload.active,
            "local_steps": workload.local_steps,
            **OPTIONS[workload.algorithm],
            **algorithm,
        },
        "privacy": {"noise_std": workload.noise / workload.batch, "accounting": "none"}
        if noisy
        else {"epsilon": "none"},
        "train": {
            "steps": rounds,
            "batch": workload.batch,
            "sampling": "fixed",
            "evaluate_every": rounds,
            "dtype": dtype,
        },
    }
    nodes = [
        (torch.from_numpy(inputs), torch.from_numpy(labels))
        for inputs, labels in zip(records.inputs[:clients], records.labels[:clients], strict=True)
    ]
    config = tacit.load_config(experiment, count=len(nodes), given_model=True)
    return prepare(config, model=model_of(workload), nodes=nodes)


class _Recording(InProcessExchange):
    """An exchange that keeps what each client sends to the server."""

    messages: Tensor

    def average(self, k: int, *values: Outgoing[Tensor], **more: Any) -> tuple[Tensor, ...]:
        """See `InProcessExchange.average`."""
        value = values[0].value  # of those who send, or the latest of everyone
        active = self._active(k)
        everyone = active is None or len(value) < len(active)
        self.messages = (value if everyone else value[torch.from_numpy(active)]).clone()
        return super().average(k, *values, **more)


class _Federated:
    """A run of a federated method."""

    def __init__(self, workload: Workload, job: Job) -> None:
        self._workload, self._job = workload, job
        self._gate = Gate(self._train)

    def _train(self) -> None:
        execute(
            self._job,
            on_step=lambda progress: self._gate.passed(),
            should_stop=lambda: self._gate.stopped,
        )

    def run(self, steps: int) -> None:
        """See `contender.Runner`."""
        self._gate.run(steps)

    def check(self) -> NDArray[np.float32]:
        """See `contender.Runner`: a round of the method's own, on agreed batches, without noise.

        dp-fedavg sends a clipped change of the model, fedspd-dp its message. In double precision:
        in single, one of the 17 million rectifiers of a round of dp-fedavg was within rounding of
        its kink, and its client's change moved by 3e-4 of the norm.
        """
        workload = self._workload
        assert workload.active is not None
        few = min(workload.nodes, workload.active + 1)  # one that takes no part, if there is one
        job = job_of(workload, clients=few, noisy=False, dtype="float64")
        first = np.arange(few) < workload.active
        activity = Activity(np.tile(first, (job.plan.steps, 1)))
        plan = replace(job.plan, release=replace(job.plan.release, activity=activity))
        algorithm, options = job.config.algorithm.definition, job.config.algorithm.options
        exchange = _Recording(
            plan.mixing.weights, dtype=job.dtype, device=job.device, active=plan.release.active
        )
        context = StackedContext(plan, job.model, job.train, node_keys(plan), exchange)
        start = job.model.start(few, job.dtype, job.device)
        agreed = _agreed(workload.batch, workload.local_steps)
        with patch.object(sampling, "disjoint_batches", agreed):
            algorithm.step(algorithm.start(start, options, context), 0, options, context)
        found: NDArray[np.float32] = exchange.messages.float().numpy()
        return found

    def notes(self) -> Mapping[str, Any]:
        """See `contender.Runner`."""
        return {
            "tacit": tacit.__version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "d": self._job.model.parameters_count,
        }

    def close(self) -> None:
        """End the run."""
        self._gate.stop(seconds=60.0)


def _agreed(size: int, parts: int) -> Callable[..., DisjointBatches]:
    """In place of random mini-batches: records r b .. (r + 1) b at local step r."""

    def disjoint_batches(
        plan: Plan, keys: NodeKeys, k: int, device: torch.device, *, nodes: tuple[NodePlan, ...]
    ) -> DisjointBatches:
        numbers = torch.arange(parts * size).view(parts, 1, size).repeat(1, len(nodes), 1)
        batches = Batch(numbers, torch.ones_like(numbers, dtype=torch.bool))
        return DisjointBatches(plan, keys, k, device, nodes, together=batches)

    return disjoint_batches


def build(workload: Workload, **algorithm: Any) -> _Federated:
    """See `contender`; `algorithm` are further options of `[algorithm]`."""
    return _Federated(workload, job_of(workload, **algorithm))
