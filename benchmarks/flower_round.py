"""A round of DP-FedAvg inside Flower's simulation, beside the same round without privacy.

`.venv-peers/bin/python benchmarks/flower_round.py [--clients 20] [--local-steps 10 47]`
sends, in one simulation of one actor a core, first a turn of tacit's parties, then a round of plain
clients, and so on in turns: the same module (784-128-10), local steps, batches and records (images
of MNIST's shape, generated), averaged by equal weights. Plain clients are those that Flower's own
documentation has: a `ClientApp` whose `train` makes steps of `torch.optim.SGD`; the server is
`send_and_receive` and a mean in NumPy for both. The same experiment goes through `tacit.train`, on
all nodes at once, and without privacy as `fedavg`.

A line for each: median milliseconds a round, and milliseconds of cores that all processes of the
simulation (Flower's, Ray's, clients') spent in it, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_LOG_LEVEL": "ERROR"}
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import nn

import tacit
from tacit.hosts import flower
from tacit.hosts.by_hand import ServersMean

warnings.simplefilter("ignore", tacit.NotPrivateWarning)
RECORDS, BATCH, RATE = 3000, 64, 0.1
PARENT = Path(__file__).resolve().parent


def module() -> nn.Module:
    """784-128-10."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


@cache
def records(node: int) -> tuple[np.ndarray, np.ndarray]:
    """Of a node: images `[RECORDS, 1, 28, 28]` and labels."""
    draw = np.random.default_rng(node)
    images = draw.random((RECORDS, 1, 28, 28), dtype=np.float32)
    return images, draw.integers(0, 10, RECORDS)


def experiment(clients: int, local_steps: int, rounds: int, *, private: bool) -> dict[str, Any]:
    """Of all clients."""
    name = {"name": "dp-fedavg", "clip": 1.0} if private else {"name": "fedavg"}
    return {
        "task": {"model": "given", "outputs": 10},
        "nodes": {"count": clients},
        "algorithm": {**name, "learning_rate": RATE, "local_steps": local_steps},
        "privacy": {"epsilon": 8.0, "delta": 1e-5} if private else {"epsilon": "none"},
        "train": {"steps": rounds, "batch": BATCH, "dtype": "float32"},
    }


def party(context: Context) -> tacit.PrivateClient:
    """The node of the same number."""
    clients, steps, rounds = (int(each) for each in os.environ["FLOWER_ROUND"].split())
    node = int(context.node_config["partition-id"])
    return tacit.PrivateClient(
        experiment(clients, steps, rounds, private=True),
        node,
        records=[RECORDS] * clients,
        data=records(node),
        model=module(),
        out=Path(os.environ["FLOWER_FOLDER"]) / str(node),
    )


@cache
def plain() -> nn.Module:
    """The module of this process."""
    return module()


def fit(message: Message, context: Context) -> RecordDict:
    """A plain client's local steps."""
    images, labels = (
        torch.from_numpy(each) for each in records(context.node_config["partition-id"])
    )
    model = plain()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    order = torch.randperm(RECORDS)
    for step in range(message.content["config"]["steps"]):
        part = order[step * BATCH : (step + 1) * BATCH]
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images[part]), labels[part]).backward()
        optimiser.step()
    return RecordDict({"arrays": ArrayRecord(model.state_dict())})


def client(message: Message, context: Context) -> Message:
    """Either client."""
    if message.metadata.message_type == "train.plain":
        return Message(fit(message, context), reply_to=message)
    return flower.client_app(party)(message, context)


def spent() -> float:
    """Seconds of cores of this process and all that descend from it."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            stats[int(path.parent.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    ours, size = {os.getpid()}, 0
    while len(ours) > size:
        size = len(ours)
        ours |= {number for number, (parent, _) in stats.items() if parent in ours}
    return sum(stats[number][1] for number in ours) / os.sysconf("SC_CLK_TCK")


def server(clients: int, steps: int, rounds: int, told: Callable[[str], None]) -> ServerApp:
    """Both servers, in turns."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        parties = flower._parties(grid, clients, 600.0, 1)
        mean, turn, answer = ServersMean(clients), -1, ()
        state = ArrayRecord(module().state_dict())
        took: dict[str, list[tuple[float, float]]] = {"tacit": [], "plain": []}
        for _ in range(rounds):
            began, used = time.perf_counter(), spent()
            content = flower._content({"turn": turn}, answer)
            sent = [Message(content, each, flower.TURN) for each in parties.values()]
            replies = list(grid.send_and_receive(sent))
            read = [flower._read(each.content) for each in replies]
            messages = {terms["node"]: flower._message(arrays, terms) for arrays, terms in read}
            answer, turn = mean.answer(messages), messages[0].turn
            took["tacit"].append((time.perf_counter() - began, spent() - used))

            began, used = time.perf_counter(), spent()
            content = RecordDict({"arrays": state, "config": ConfigRecord({"steps": steps})})
            sent = [Message(content, each, "train.plain") for each in parties.values()]
            replies = list(grid.send_and_receive(sent))
            rows = [each.content["arrays"].to_torch_state_dict() for each in replies]
            named = {name: torch.stack([row[name] for row in rows]).mean(0) for name in rows[0]}
            state = ArrayRecord(named)
            took["plain"].append((time.perf_counter() - began, spent() - used))
        for name, pairs in took.items():
            wall, cores = (1000 * statistics.median(each) for each in zip(*pairs[2:], strict=True))
            told(f"{name}: {wall:.0f} ms a round, {cores:.0f} ms of cores")
        for place, what in enumerate(("time", "time of cores")):
            pairs = zip(took["tacit"][2:], took["plain"][2:], strict=True)
            ratios = [own[place] / other[place] for own, other in pairs]
            told(f"ratio of {what}, median: {statistics.median(ratios):.2f}")

    return app


def simulated(clients: int, steps: int, rounds: int, *, private: bool) -> float:
    """Milliseconds a round of `tacit.train`."""
    result = tacit.train(
        experiment(clients, steps, rounds, private=private),
        model=module(),
        nodes=[records(node) for node in range(clients)],
    )
    return 1000 * result.seconds / rounds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--local-steps", type=int, nargs="+", default=[10, 47])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--folder", type=Path, help="of ledgers; says on which disk")
    options = parser.parse_args()
    torch.set_num_threads(1)
    import flower_round  # so that actors find it by name

    for steps in options.local_steps:
        print(f"{options.clients} clients, {steps} local steps of {BATCH} records", flush=True)
        with tempfile.TemporaryDirectory(prefix="r-", dir=options.folder) as folder:
            os.environ["FLOWER_ROUND"] = f"{options.clients} {steps} {options.rounds + 1}"
            os.environ["FLOWER_FOLDER"] = folder
            os.environ["PYTHONPATH"] = os.pathsep.join([str(PARENT), *sys.path[1:2]])
            app = ClientApp()
            app.train("plain")(flower_round.client)
            app.train("tacit")(flower_round.client)
            app.query("tacit")(flower_round.client)
            with tempfile.TemporaryDirectory(prefix="ray-") as sockets:
                run_simulation(
                    server(options.clients, steps, options.rounds, lambda line: print(" ", line)),
                    app,
                    options.clients,
                    backend_config={
                        "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0},
                        "init_args": {
                            "num_cpus": os.cpu_count() or 1,
                            "object_store_memory": 256 * 2**20,
                            "log_to_driver": False,
                            "_temp_dir": sockets,
                        },
                    },
                )
        for name, private in (("dp-fedavg", True), ("fedavg", False)):
            wall = simulated(options.clients, steps, options.rounds, private=private)
            print(f"  {name} by tacit.train: {wall:.0f} ms a round", flush=True)


if __name__ == "__main__":
    main()
