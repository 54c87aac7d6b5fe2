"""A party as Flower's apps make it, and a simulation of such parties: run by test_flower.py."""

from __future__ import annotations

import json
import os
import tempfile
from functools import cache
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import tacit
from tacit.hosts.flower import client_app, server_app


@cache
def asked() -> dict:
    """What the test wrote down: the experiment, its folder and clients."""
    return json.loads(Path(os.environ["TACIT_PARTIES"]).read_text())


def party(context) -> tacit.PrivateClient:
    """The node of the same number, in a folder of its own."""
    node = int(context.node_config["partition-id"])
    return tacit.PrivateClient(asked()["experiment"], node, out=f"{asked()['folder']}/{node}")


def simulate(server, client, clients: int) -> None:
    """Flower's simulation, with a process a core."""
    from flwr.simulation import run_simulation

    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # short: ray's sockets lie in it
        run_simulation(
            server,
            client,
            clients,
            backend_config={
                "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0},
                "init_args": {
                    "num_cpus": 2,
                    "object_store_memory": 256 * 2**20,
                    "log_to_driver": bool(os.environ.get("RAY_LOG")),
                    "_temp_dir": folder,
                },
            },
        )


if __name__ == "__main__":
    from flower_parties import asked, party

    count = asked()["clients"]
    server = server_app(count, out=Path(asked()["folder"]) / "server", timeout=120.0)
    simulate(server, client_app(party), count)
