"""One process of a measurement: the loop of a run's steps, and nothing else of a run.

`python worker.py TASK` with a task as `processes.measure` writes it. Rank 0 hosts the store, on a
port that the system chooses, and prints it; the others read it from their standard input. Every
line is one JSON object.

| kind | what is timed |
|---|---|
| `steps` | steps of the algorithm, with the exchange between processes |
| `mix` | one gossip exchange of rows of the right size |

Each is timed in turns with the same without messages, `local`, so that a slow minute of the machine
falls on both.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from forecast_job import Within, block_context
from jobs import Work, job_of

from tacit.communication.cluster.channel import open_channel
from tacit.communication.colours import Released
from tacit.communication.exchange.between import BetweenProcesses, Graphs
from tacit.communication.peers import place
from tacit.training.job import Job

_LIMIT = 60.0  # seconds of any one wait


def _store(task: dict[str, Any]) -> dist.Store:
    """Hosted by rank 0 on a socket that it bound itself."""
    address, wait = task["address"], timedelta(seconds=_LIMIT)
    if task["rank"]:
        port = json.loads(sys.stdin.readline())["port"]
        return dist.TCPStore(address, port, is_master=False, timeout=wait)
    with socket.create_server((address, 0)) as listener:
        port = listener.getsockname()[1]
        hosted = dist.TCPStore(
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=wait,
            master_listen_fd=os.dup(listener.fileno()),
        )
    print(json.dumps({"port": port}), flush=True)
    return hosted


def _blame(rank: int, reason: str) -> Exception:
    return RuntimeError(f"rank {rank}: {reason}")


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Measure, and say what was found."""
    torch.set_num_threads(task["threads"])
    rank, processes = task["rank"], task["processes"]
    job = job_of(Work(**task["work"]))
    plan, placement = job.plan, place(len(job.plan.nodes), processes)
    hosted = placement.hosted(rank)
    if processes == 1:
        alone = Within(job, hosted)
        again = _steps(job, hosted, alone)
        _round(again, task["warm"])
        seconds = [_round(again, task["steps"]) for _ in range(task["rounds"])]
        return {"seconds": seconds, "bytes": 0.0, "local": seconds}
    store = _store(task)
    meet = _Meeting(store, processes)
    meet()
    os.environ["GLOO_SOCKET_IFNAME"] = task["interface"]
    channel = open_channel(
        store, rank, processes, torch.device("cpu"), _LIMIT, _blame, lambda other: None
    )
    graphs = Graphs(plan.mixing.at, len(plan.mixing.weights), plan.mixing.kind, plan.release.active)
    exchange = BetweenProcesses(
        channel, placement.ranks, graphs, dtype=job.dtype, device=torch.device("cpu")
    )
    again, less, over = _KINDS[task["kind"]](job, hosted, exchange)
    _round(again, task["warm"], over)
    _round(less, task["warm"], over)
    before = channel.bytes_sent
    local, seconds = [], []
    for _ in range(task["rounds"]):  # all do the same at the same time
        meet()
        local.append(_round(less, task["steps"], over))
        meet()
        seconds.append(_round(again, task["steps"], over))
    sent = (channel.bytes_sent - before) / (task["rounds"] * task["steps"])
    meet()
    channel.close()
    _leave(store, rank, processes)
    return {"seconds": seconds, "bytes": sent, "local": local}


def _leave(store: dist.Store, rank: int, processes: int) -> None:
    """The host of the store stays until nobody needs it; others say so, and wait for no answer."""
    if rank:
        store.set(f"gone/{rank}", "1")
        return
    store.wait([f"gone/{other}" for other in range(1, processes)], timedelta(seconds=_LIMIT))


class _Meeting:
    """All processes wait for each other: `meet()`."""

    def __init__(self, store: dist.Store, processes: int) -> None:
        self._store, self._processes, self._times = store, processes, 0

    def __call__(self) -> None:
        self._times += 1
        key = f"met/{self._times}"
        if self._store.add(key, 1) == self._processes:
            self._store.set(f"{key}/all", "1")
        self._store.wait([f"{key}/all"], timedelta(seconds=_LIMIT))


Step = Callable[[], None]
Summary = Callable[[list[float]], float]
Kind = tuple[Step, Step, Summary]
"""What is timed, the same without messages, and what stands for a round of it."""


def _steps(job: Job, hosted: tuple[int, ...], exchange: Any) -> Step:
    algorithm, options = job.config.algorithm.definition, job.config.algorithm.options
    context = block_context(job, hosted, exchange)
    start = job.model.start(len(hosted), job.dtype, job.device)
    state, k = algorithm.start(start, options, context), 0

    def again() -> None:
        nonlocal state, k
        state = algorithm.step(state, k % job.plan.steps, options, context)
        k += 1

    return again


def _whole_steps(job: Job, hosted: tuple[int, ...], exchange: Any) -> Kind:
    # A mean: graphs, and so steps, differ within a period.
    alone = _steps(job, hosted, Within(job, hosted))
    return _steps(job, hosted, exchange), alone, statistics.fmean


def _mixing(job: Job, hosted: tuple[int, ...], exchange: Any) -> Kind:
    value = job.model.start(len(hosted), job.dtype, job.device)
    within, sent = Within(job, hosted), Released(value)
    return (lambda: exchange.mix(0, sent)), (lambda: within.mix(0, sent)), statistics.median


_KINDS: dict[str, Callable[..., Kind]] = {"steps": _whole_steps, "mix": _mixing}


def _round(again: Step, steps: int, over: Summary = statistics.fmean) -> float:
    """Seconds of one of so many."""
    took = [0.0] if not steps else []
    for _ in range(steps):
        began = time.perf_counter()
        again()
        took.append(time.perf_counter() - began)
    return over(took)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))), flush=True)
