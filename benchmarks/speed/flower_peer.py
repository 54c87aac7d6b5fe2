"""DP-FedAvg by Flower's simulation engine: ServerApp, ClientApp and the ray backend.

Configured as its documentation has it for a machine's cores: one actor a core
(`client_resources = {"num_cpus": 1}`), a model and the records loaded once an actor, no federated
evaluation, clipping at the clients (`fixedclipping_mod`, so that actors share that work) with
`DifferentialPrivacyClientSideFixedClipping` around `FedAvg`: noise is added once to the mean, of
the standard deviation that the mean of all clients' own noises would have. Records lie in a file
that all actors map. Logging below warnings and telemetry are off. One actor of two threads took a
third longer on two cores; two actors a core (`actor_cpus` 0.5) a tenth less, if anything, for half
as much memory again.

Flower ends a round with `evaluate_fn`: that hook holds the loop between turns. Start-up of ray and
of its actors falls into the first round, which `build` plays. `run_simulation` is the engine of
`flwr run`, which replaces it on the command line.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_LOG_LEVEL": "WARNING",
    "RAY_USAGE_STATS_ENABLED": "0",
}

import flwr
import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from gate import Gate
from numpy.typing import NDArray
from torch.nn import functional
from workloads import Workload, records_of

from models import model_of

MOST_ROUNDS = 1_000_000
OBJECT_STORE = 256 * 2**20


class _StoppedError(Exception):
    """Ends a simulation: Flower has no other way out of its rounds."""


@lru_cache(maxsize=1)
def _loaded(
    workload: str, folder: str, threads: int, double: bool
) -> tuple[Workload, torch.nn.Module, Any, Any]:
    """What an actor keeps: the model, and every client's records, mapped."""
    torch.set_num_threads(threads)
    described = Workload.from_json(workload)
    inputs, labels = (
        torch.from_numpy(np.load(Path(folder) / f"{name}.npy", mmap_mode="c"))
        for name in ("inputs", "labels")
    )
    module = model_of(described).to(torch.float64 if double else torch.float32)
    return described, module, inputs, labels


def _train(message: Message, context: Context) -> Message:
    """A client's local steps."""
    config = message.content["config"]
    workload, module, inputs, labels = _loaded(
        config["workload"], config["folder"], config["threads"], config["double"]
    )
    client = int(context.node_config["partition-id"])
    kind = next(module.parameters()).dtype
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(module.parameters(), lr=workload.learning_rate)
    for step in range(workload.local_steps):
        cut = slice(step * workload.batch, (step + 1) * workload.batch)
        optimiser.zero_grad()
        outputs = module(inputs[client, cut].to(kind))
        functional.cross_entropy(outputs, labels[client, cut]).backward()
        optimiser.step()
    content = RecordDict(
        {
            "arrays": ArrayRecord(module.state_dict()),
            "metrics": MetricRecord({"num-examples": workload.records}),
        }
    )
    return Message(content=content, reply_to=message)


class _Flower:
    """A simulation in a thread."""

    def __init__(self, workload: Workload, actor_cpus: float) -> None:
        assert workload.clip is not None
        assert workload.active is not None
        self._workload, self._actor_cpus = workload, actor_cpus
        self._folder = tempfile.mkdtemp(prefix="flower-")  # short: ray's sockets lie in it
        records = records_of(workload)
        np.save(Path(self._folder) / "inputs.npy", records.inputs)
        np.save(Path(self._folder) / "labels.npy", records.labels)
        noise = workload.active**0.5 * workload.noise / workload.batch
        self._strategy = DifferentialPrivacyClientSideFixedClipping(
            FedAvg(
                fraction_train=workload.active / workload.nodes,
                fraction_evaluate=0.0,
                min_train_nodes=workload.active,
                min_available_nodes=workload.nodes,
            ),
            noise_multiplier=noise / workload.clip,
            clipping_norm=workload.clip,
            num_sampled_clients=workload.active,
        )
        self._config = {
            "workload": workload.to_json(),
            "folder": self._folder,
            "threads": max(1, int(actor_cpus)),
            "double": False,
        }
        self._client = ClientApp(mods=[fixedclipping_mod])
        self._client.train()(_train)
        self._latest: ArrayRecord | None = None
        self._gate = Gate(self._simulate)

    def _simulate(self) -> None:
        server = ServerApp()
        server.main()(self._serve)
        run_simulation(
            server,
            self._client,
            self._workload.nodes,
            backend_config={
                "client_resources": {"num_cpus": self._actor_cpus, "num_gpus": 0.0},
                "init_args": {
                    "num_cpus": os.cpu_count() or 1,
                    "object_store_memory": OBJECT_STORE,
                    "log_to_driver": False,
                    "_temp_dir": self._folder,
                },
            },
        )

    def _serve(self, grid: Grid, context: Context) -> None:
        self._strategy.start(
            grid,
            ArrayRecord(model_of(self._workload).state_dict()),
            num_rounds=MOST_ROUNDS,
            train_config=ConfigRecord(self._config),
            evaluate_fn=self._after_round,
        )

    def _after_round(self, number: int, arrays: ArrayRecord) -> None:
        if arrays is self._latest:  # clients' errors are logged, and their round passed over
            raise RuntimeError(f"round {number} brought no new model")
        self._latest = arrays
        if number:
            self._gate.passed()
        if self._gate.stopped:
            raise _StoppedError

    def run(self, steps: int) -> None:
        """See `contender.Runner`."""
        self._gate.run(steps)

    def check(self) -> NDArray[np.float32]:
        """See `contender.Runner`: clients as the simulation calls them, `fixedclipping_mod` too.

        In double precision: see `tacit_federated`.
        """
        start = ArrayRecord(model_of(self._workload).double().state_dict())
        config = ConfigRecord(self._config | {"clipping_norm": self._workload.clip, "double": True})
        rows = []
        for client in range(self._workload.active or 0):
            message = Message(RecordDict({"arrays": start, "config": config}), client + 1, "train")
            context = Context(0, client + 1, {"partition-id": client}, RecordDict(), {})
            reply = self._client(message, context)
            pairs = zip(
                reply.content["arrays"].to_numpy_ndarrays(), start.to_numpy_ndarrays(), strict=True
            )
            rows.append(np.concatenate([(after - before).ravel() for after, before in pairs]))
        return np.stack(rows)

    def notes(self) -> Mapping[str, Any]:
        """See `contender.Runner`."""
        return {
            "flwr": flwr.__version__,
            "torch": torch.__version__,
            "cpus an actor": self._actor_cpus,
        }

    def close(self) -> None:
        """End the simulation, with ray and its actors."""
        self._gate.stop(seconds=20.0)
        shutil.rmtree(self._folder, ignore_errors=True)


def build(workload: Workload, actor_cpus: float = 1.0) -> _Flower:
    """See `contender`; `actor_cpus` is `client_resources["num_cpus"]`: cores / it actors run."""
    runner = _Flower(workload, actor_cpus)
    runner.run(1)
    return runner
