"""Every algorithm on several processes gives the numbers of the simulator.

Threads stand for processes here: the same exchange, messages and checks, over queues. Real process
groups are started in `tests/cluster/`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from battery_experiments import experiment, quadratic
from battery_table import ROWS
from cluster.ranks import Hub, Outcome, Seat, ThreadChannel, run_threads
from tacit.compression import compress
from tacit.config import load_config
from tacit.data import StackedData
from tacit.exchange import BetweenProcesses, Graphs, InProcessExchange
from tacit.exchange.messages import HEADER_BYTES, read_header
from tacit.links import graphs_of, local_exchange
from tacit.placement import Placement, place
from tacit.prepare import Job, prepare
from tacit.spending import node_keys
from tacit.topology import build_mixing, build_schedule
from tacit.world import StackedWorld

NODES, STEPS = 5, 4
CPU = torch.device("cpu")


def job_of(case: str, **changes: Any) -> Job:
    """A regression on five nodes, in float64, with seeded noise."""
    config = experiment(case, loss="mse", model="linear", steps=STEPS, batch=3, **changes)
    return prepare(load_config(config, count=NODES), nodes=quadratic(NODES, shared=False))


def run(job: Job, exchange: Any, hosted: Sequence[int]) -> tuple[Any, Any]:
    """The state after every step on some of the nodes, and the exchange."""
    algorithm, options = job.config.algorithm.definition, job.config.algorithm.options
    model = copy.deepcopy(job.model)
    keys = node_keys(job.plan, hosted)
    world = StackedWorld(job.plan, model, part_of(job.train, hosted), keys, exchange, hosted)
    state = algorithm.start(model.start(len(hosted), job.dtype, CPU), options, world)
    for k in range(STEPS):
        state = algorithm.step(state, k, options, world)
    state = algorithm.mix(state, STEPS, world)
    return state, exchange


def part_of(train: StackedData, hosted: Sequence[int]) -> StackedData:
    """The records of some nodes."""
    rows = [torch.arange(int(train.sizes[node])) + int(train.offsets[node]) for node in hosted]
    sizes = train.sizes[list(hosted)]
    every = torch.cat(rows)
    return StackedData(train.inputs[every], train.targets[every], sizes.cumsum(0) - sizes, sizes)


def on_threads(job: Job, placement: Placement, tolerate: bool = False) -> list[Outcome]:
    def sit(seat: Seat) -> Any:
        exchange = BetweenProcesses(
            seat.channel,
            placement.ranks,
            graphs_of(job),
            dtype=job.dtype,
            device=CPU,
            tolerate=tolerate,
        )
        return run(job, exchange, placement.hosted(seat.rank))

    return run_threads(sit, placement.processes)


def together(parts: Sequence[torch.Tensor], placement: Placement) -> torch.Tensor:
    """Rows of all nodes, in their order; of a server's state, which all share, one."""
    if all(len(part) == 1 for part in parts) and len(placement.ranks) > len(parts):
        for part in parts:
            torch.testing.assert_close(part, parts[0], rtol=0, atol=0)
        return parts[0]
    nodes = [n for rank in range(len(parts)) for n in placement.hosted(rank)]
    return torch.cat(list(parts))[np.argsort(nodes)]


def compare(job: Job, placement: Placement) -> None:
    """State and bytes of all nodes, against the simulator's."""
    alone, simulated = run(job, local_exchange(job), range(NODES))
    outcomes = on_threads(job, placement)
    assert [outcome.code for outcome in outcomes] == [0] * len(outcomes), outcomes
    states = [outcome.value[0] for outcome in outcomes]
    for name, right in alone._asdict().items():
        parts = [getattr(state, name) for state in states]
        server = len(right) == 1
        found = parts[0] if server else together(parts, placement)
        torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-14)
        if server:
            assert all(torch.equal(part, parts[0]) for part in parts)
    nodes = [n for rank in range(placement.processes) for n in placement.hosted(rank)]
    sent = np.concatenate([outcome.value[1].bytes_sent for outcome in outcomes])
    assert sent[np.argsort(nodes)].tolist() == simulated.bytes_sent.tolist()


@pytest.mark.parametrize("case", ROWS)
def test_three_processes_give_the_simulators_numbers(case: str) -> None:
    compare(job_of(case), place(NODES, 3))


KINDS = ["privsgp", "choco-sgd", "dp-fedavg", "adp2-sgd", "fedspd-dp", "do-adp", "soteriafl-svrg"]


@pytest.mark.parametrize("placement", [(0, 0, 0, 1, 1), (0, 1, 2, 3, 4), (1, 0, 2, 0, 1)])
@pytest.mark.parametrize("case", [case for case in ROWS if ROWS[case].name in KINDS])
def test_any_placement_gives_the_simulators_numbers(case: str, placement: tuple[int, ...]) -> None:
    compare(job_of(case), Placement(placement))


@pytest.mark.parametrize("graph", ["ring", "exponential", "complete", "directed-ring"])
def test_graphs_that_change_and_graphs_that_are_dense(graph: str) -> None:
    compare(job_of("privsgp", graph=graph), Placement((0, 1, 1, 2, 0)))
