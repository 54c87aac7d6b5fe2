"""DP-FedAvg by pfl (pfl-research, Apple): its FederatedAveraging on its simulated backend.

Configured as its benchmarks are for one machine: users' records as tensors in memory
(`PyTorchTensorDataset`), cut into batches once; plain SGD at users and at the server; the Gaussian
mechanism applied centrally, that is, each user's update is clipped and noise is added once to the
sum, of the standard deviation that the sum of all users' own noises would have. No metrics are
printed, and nothing is evaluated after the first round, which `build` plays. tacit does more in a
round: it draws mini-batches and a noise of its own for every client.

`processes`: pfl spreads a round's users over processes that torchrun would start; they are started
here with the same variables, with `threads` each. On two cores two processes of one thread take
about half the time of one process, on one thread or on two.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gate import Gate
from numpy.typing import NDArray
from torch.nn import functional
from workloads import Workload, records_of

from models import model_of

MOST_ROUNDS = 1_000_000
_KEPT: list[socket.socket] = []  # bound, so that the system gives their ports to nobody else


class _Setup:
    """Model, users' data, mechanism and algorithm of a process; pfl reads the ranks on import."""

    def __init__(self, workload: Workload) -> None:
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.data.pytorch import PyTorchTensorDataset
        from pfl.data.sampling import get_user_sampler
        from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
        from pfl.privacy.gaussian_mechanism import GaussianMechanism
        from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

        assert workload.clip is not None
        assert workload.active is not None
        np.random.seed(workload.seed)  # noqa: NPY002, pfl's own generator: ranks must agree
        records = records_of(workload)
        inputs, labels = torch.from_numpy(records.inputs), torch.from_numpy(records.labels)
        self.tensors = (inputs, labels)
        users = [PyTorchTensorDataset((inputs[i], labels[i])) for i in range(workload.nodes)]
        self.model = _model(workload, torch.float32)
        noise = workload.active**0.5 * workload.noise / workload.batch
        self.mechanism = GaussianMechanism(workload.clip, noise / workload.clip)
        training = FederatedDataset(
            lambda user: users[user], get_user_sampler("random", range(workload.nodes))
        )
        self._backend = SimulatedBackend(
            training_data=training,
            val_data=training,
            postprocessors=[CentrallyAppliedPrivacyMechanism(self.mechanism)],
        )
        self.parameters = (
            NNAlgorithmParams(
                central_num_iterations=MOST_ROUNDS,
                evaluation_frequency=MOST_ROUNDS,
                train_cohort_size=workload.active,
                val_cohort_size=0,
            ),
            NNTrainHyperParams(
                local_batch_size=workload.batch,
                local_num_epochs=None,
                local_num_steps=workload.local_steps,
                local_learning_rate=workload.learning_rate,
            ),
            NNEvalHyperParams(local_batch_size=None),
        )
        self.algorithm = FederatedAveraging()

    def train(self, callbacks: list[Any]) -> None:
        """Rounds without end, or until a callback ends them."""
        asyncio.set_event_loop(asyncio.new_event_loop())  # pfl asks for that of the thread
        algorithm_parameters, train_parameters, eval_parameters = self.parameters
        self.algorithm.run(
            algorithm_parameters,
            self._backend,
            self.model,
            train_parameters,
            eval_parameters,
            callbacks,
            send_metrics_to_platform=False,
        )


def _model(workload: Workload, kind: torch.dtype) -> Any:
    """The workload's network at its start, as pfl has models."""
    from pfl.model.pytorch import PyTorchModel

    module = _with_loss(model_of(workload).to(kind))
    return PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )


def _with_loss(module: torch.nn.Module) -> torch.nn.Module:
    """The module with the two methods that pfl asks for."""

    def loss(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(module(inputs), labels)

    def metrics(inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        from pfl.metrics import Weighted

        with torch.no_grad():
            return {"loss": Weighted(loss(inputs, labels).item() * len(labels), len(labels))}

    module.loss, module.metrics = loss, metrics
    return module


def _callback(gate: Gate) -> Any:
    from pfl.callback.base import TrainingProcessCallback

    class Turn(TrainingProcessCallback):
        """Holds the loop between rounds."""

        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> tuple[bool, Any]:
            from pfl.metrics import Metrics

            gate.passed()
            return gate.stopped, Metrics()

    return Turn()


class _Pfl:
    """This process is rank 0; the others follow it round by round."""

    def __init__(self, workload: Workload, processes: int, threads: int) -> None:
        self._workload, self._processes = workload, processes
        torch.set_num_threads(threads)
        variables = _variables(processes)
        self._others = [
            subprocess.Popen(
                [sys.executable, __file__, workload.to_json(), str(threads)],
                env=os.environ | variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=sys.stderr,
            )
            for rank in range(1, processes)
        ]
        if self._others:
            os.environ |= variables | {"RANK": "0", "LOCAL_RANK": "0"}
        self._setup = _Setup(workload)
        self._gate = Gate(lambda: self._setup.train([_callback(self._gate)]))

    def run(self, steps: int) -> None:
        """See `contender.Runner`."""
        self._gate.run(steps)

    def check(self) -> NDArray[np.float32]:
        """See `contender.Runner`; pfl's batches are a user's records in order.

        In double precision: see `tacit_federated`.
        """
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.data.pytorch import PyTorchTensorDataset

        workload, setup = self._workload, self._setup
        state = np.random.get_state()  # noqa: NPY002, another algorithm draws from it; ranks agree
        algorithm = FederatedAveraging()
        np.random.set_state(state)  # noqa: NPY002
        model = _model(workload, torch.float64)
        (context,), _, _ = algorithm.get_next_central_contexts(model, 1, *setup.parameters)
        rows = []
        for inputs, labels in zip(*setup.tensors, strict=True):
            user = PyTorchTensorDataset((inputs.double(), labels))
            change, _ = algorithm.simulate_one_user(model, user, context)
            clipped, _ = setup.mechanism.constrain_sensitivity(change)
            rows.append(torch.cat([value.flatten() for _, value in clipped.items()]).numpy())
            if len(rows) == workload.active:
                break
        return np.stack(rows)

    def notes(self) -> Mapping[str, Any]:
        """See `contender.Runner`."""
        import pfl

        return {
            "pfl": getattr(pfl, "__version__", "unknown"),
            "torch": torch.__version__,
            "processes": self._processes,
            "threads": torch.get_num_threads(),
        }

    def close(self) -> None:
        """End the other ranks, which wait for a round that does not come."""
        for other in self._others:
            other.kill()
            other.wait()


def _variables(processes: int) -> dict[str, str]:
    """What torchrun sets for each of its processes on one machine."""
    free = socket.socket()
    free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    free.bind(("127.0.0.1", 0))
    _KEPT.append(free)
    return {
        "TORCHELASTIC_RUN_ID": "bench",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free.getsockname()[1]),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
    }


def build(workload: Workload, processes: int = 2, threads: int = 1) -> _Pfl:
    """See `contender`; `processes` share a round's users, with so many `threads` each."""
    runner = _Pfl(workload, processes, threads)
    runner.run(1)
    return runner


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]))
    _Setup(Workload.from_json(sys.argv[1])).train([])
