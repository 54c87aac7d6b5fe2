"""Every algorithm on several processes gives the numbers of the simulator.

Threads stand for processes here: the same exchange, messages and checks, over queues. Real process
groups are started in `tests/cluster/`.
"""

import copy
import itertools

import numpy as np
import pytest
import torch
from battery_experiments import experiment, part_of, quadratic
from battery_table import ROWS

from communication.cluster.ranks import ThreadChannel, run_threads
from tacit.algorithms import ALGORITHMS
from tacit.communication.exchange import BetweenProcesses
from tacit.communication.exchange.messages import HEADER_BYTES
from tacit.communication.masks import PairMasks
from tacit.communication.peers import Placement, place
from tacit.config import load_config
from tacit.privacy.noise.pairwise import fresh_pair_keys
from tacit.training.budget import node_keys
from tacit.training.prepare import prepare
from tacit.training.processes.communication import graphs_of, local_exchange
from tacit.training.rounds import advanced
from tacit.training.stacked_context import StackedContext

NODES, STEPS = 5, 4
CPU = torch.device("cpu")


def may_have_rounds(name):
    row = ALGORITHMS[name]
    return row.graph.weights != "server" and not row.graph.one_round


def job_of(case, empty=(), **changes):
    """A regression on five nodes, some without records, in float64, with seeded noise."""
    config = experiment(case, loss="mse", model="linear", steps=STEPS, batch=3, **changes)
    config["nodes"] = {"without_records": list(empty) or None}
    nodes = [
        (inputs[:0], targets[:0]) if node in empty else (inputs, targets)
        for node, (inputs, targets) in enumerate(quadratic(NODES, shared=False))
    ]
    return prepare(load_config(config, count=NODES), nodes=nodes)


def run(job, exchange, hosted):
    """The state after every step on some of the nodes, and the exchange."""
    algorithm, options = job.config.algorithm.definition, job.config.algorithm.options
    model = copy.deepcopy(job.model)
    keys = node_keys(job.plan, hosted)
    context = StackedContext(job.plan, model, part_of(job.train, hosted), keys, exchange, hosted)
    state = algorithm.start(model.start(len(hosted), job.dtype, CPU), options, context)
    for k in range(STEPS):
        state = advanced(job.plan, state, k, context)
    state = algorithm.mix(state, STEPS - 1, options, context, job.plan.rounds)
    return state, exchange


def on_threads(job, placement, tolerate=False):
    parties = [placement.hosted(rank)[0] for rank in range(placement.processes)]
    keys = fresh_pair_keys(itertools.combinations(sorted(parties), 2))

    def sit(seat):
        exchange = BetweenProcesses(
            seat.channel,
            placement.ranks,
            graphs_of(job),
            dtype=job.dtype,
            device=CPU,
            tolerate=tolerate,
            masks=PairMasks(parties[seat.rank], keys),
        )
        return run(job, exchange, placement.hosted(seat.rank))

    return run_threads(sit, placement.processes)


def together(parts, placement):
    """Rows of all nodes, in their order; of a server's state, which all share, one."""
    if all(len(part) == 1 for part in parts) and len(placement.ranks) > len(parts):
        for part in parts:
            torch.testing.assert_close(part, parts[0], rtol=0, atol=0)
        return parts[0]
    nodes = [n for rank in range(len(parts)) for n in placement.hosted(rank)]
    return torch.cat(list(parts))[np.argsort(nodes)]


def compare(job, placement):
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
def test_three_processes_give_the_simulators_numbers(case):
    compare(job_of(case), place(NODES, 3))


@pytest.mark.parametrize("case", [case for case in ROWS if may_have_rounds(ROWS[case].name)])
def test_several_gossip_rounds_and_lost_messages_give_the_simulators_numbers(case):
    graph = (
        "exponential" if ALGORITHMS[ROWS[case].name].graph.weights == "column-stochastic" else None
    )
    config = experiment(case, loss="mse", model="linear", steps=STEPS, batch=3, graph=graph)
    config["topology"]["rounds"], config["faults"] = 2, {"drop": 0.3}
    job = prepare(load_config(config, count=NODES), nodes=quadratic(NODES, shared=False))
    assert job.plan.rounds == 2
    compare(job, Placement((0, 1, 1, 2, 0)))


EMPTY_KINDS = ["privsgp", "do-adp", "dp-dda", "adp2-sgd", "dp-sgd", "dp-fedavg", "dp-srm"]
KINDS = ["privsgp", "choco-sgd", "dp-fedavg", "adp2-sgd", "fedspd-dp", "do-adp", "soteriafl-svrg"]


@pytest.mark.parametrize("placement", [(0, 0, 0, 1, 1), (0, 1, 2, 3, 4), (1, 0, 2, 0, 1)])
@pytest.mark.parametrize("case", [case for case in ROWS if ROWS[case].name in KINDS])
def test_any_placement_gives_the_simulators_numbers(case, placement):
    compare(job_of(case), Placement(placement))


@pytest.mark.parametrize("placement", [(0, 1, 2, 3, 4), (1, 0, 2, 0, 1)])
@pytest.mark.parametrize("case", [case for case in ROWS if ROWS[case].name in EMPTY_KINDS])
def test_a_process_without_records_gives_the_simulators_numbers(case, placement):
    compare(job_of(case, empty=(2, 4)), Placement(placement))


@pytest.mark.parametrize("placement", [(0, 1, 2, 3, 4), (0, 1, 1, 2, 0), (1, 0, 2, 0, 1)])
@pytest.mark.parametrize("few", [{}, {"clients_per_round": 2}], ids=["everybody", "two"])
@pytest.mark.parametrize("name", ["dp-sgd", "dp-fedavg"])
def test_secure_sums_give_the_simulators_bits(name, few, placement):
    case = next(case for case, row in ROWS.items() if row.name == name)
    config = experiment(case, loss="mse", model="linear", steps=STEPS, batch=3, options=few)
    config["privacy"] = {**config["privacy"], "aggregation": "secure-sum"}
    config["train"]["dtype"] = "float32"
    nodes = [
        (inputs.float(), targets.float()) for inputs, targets in quadratic(NODES, shared=False)
    ]
    job = prepare(load_config(config, count=NODES), nodes=nodes)
    compare(job, Placement(placement))
    (alone, _), outcomes = (
        run(job, local_exchange(job), range(NODES)),
        on_threads(job, Placement(placement)),
    )
    assert all(torch.equal(outcome.value[0].x, alone.x) for outcome in outcomes)


@pytest.mark.parametrize("graph", ["ring", "exponential", "complete", "directed-ring"])
def test_graphs_that_change_and_graphs_that_are_dense(graph):
    compare(job_of("privsgp", graph=graph), Placement((0, 1, 1, 2, 0)))


class Corrupting(ThreadChannel):
    """Rank 1 makes the first number of its second message one that is not finite."""

    def send(self, rank, message):
        self.count = getattr(self, "count", 0) + 1
        if self.rank == 1 and self.count == 2:
            message = message.clone()
            message[HEADER_BYTES : HEADER_BYTES + 8].view(torch.float64)[0] = float("nan")
        super().send(rank, message)


def corrupted(job, placement, *, tolerate):
    def sit(seat):
        exchange = BetweenProcesses(
            seat.channel, placement.ranks, graphs_of(job),
            dtype=job.dtype, device=CPU, tolerate=tolerate,
        )  # fmt: skip
        return run(job, exchange, placement.hosted(seat.rank))

    return run_threads(sit, placement.processes, channel=Corrupting)


@pytest.mark.parametrize("case", ["privsgp", "dp2-sgd", "adp2-sgd", "dp-fedavg"])
def test_a_bad_number_ends_the_run_and_names_its_sender(case):
    outcomes = corrupted(job_of(case), Placement((0, 0, 0, 1, 1)), tolerate=False)
    assert outcomes[0].code == 4
    assert outcomes[0].value.startswith("rank 1 sent a bad message at step ")
    assert outcomes[0].value.endswith("of node 3 are not finite")


def test_push_sum_loses_the_mass_of_a_message_that_is_dropped():
    """On a directed ring, node 4's halves go to node 0, in another process."""
    job, placement = job_of("privsgp", graph="directed-ring"), Placement((0, 0, 0, 0, 1))
    outcomes = corrupted(job, placement, tolerate=True)
    (own, exchange), (other, _) = (outcome.value for outcome in outcomes)
    assert exchange.dropped == {4: 1}
    masses = torch.cat([own.w, other.w])
    # Every weight was 1 when half of one was lost: the graph is regular.
    assert float(masses.sum()) == pytest.approx(NODES - 0.5, abs=1e-12)
    assert bool(torch.isfinite(torch.cat([own.x, other.x])).all())


@pytest.mark.parametrize("case", ["dp2-sgd", "adp2-sgd", "dp-fedavg", "fedspd-dp"])
def test_other_methods_go_on_without_a_message_that_is_dropped(case):
    outcomes = corrupted(job_of(case), Placement((0, 0, 0, 1, 1)), tolerate=True)
    states = [outcome.value[0] for outcome in outcomes]
    assert outcomes[0].value[1].dropped == {3: 1}
    for state in states:
        assert all(bool(torch.isfinite(part).all()) for part in state)


@pytest.mark.parametrize("compressor", ["none", "top-k", "rand-k", "bernoulli"])
@pytest.mark.parametrize("case", ["do-adp", "cpgt", "soteriafl-svrg"])
def test_compressed_messages_travel_compressed(case, compressor):
    """With a node a process, the wire carries what nodes are said to send, headers aside."""
    keep = {} if compressor == "none" else {"keep": 0.4}
    job = job_of(case, options={"compressor": compressor, **keep})
    placement, sent = place(NODES, NODES), dict.fromkeys(range(NODES), 0)

    class Weighing(ThreadChannel):
        def send(self, rank, message):
            kind = int(message[12:16].view(torch.int32))
            if kind in (1, 3):  # mixed, or for the server
                sent[self.rank] += len(message) - HEADER_BYTES
            super().send(rank, message)

    def sit(seat):
        exchange = BetweenProcesses(
            seat.channel, placement.ranks, graphs_of(job), dtype=job.dtype, device=CPU
        )
        return run(job, exchange, placement.hosted(seat.rank))

    outcomes = run_threads(sit, NODES, channel=Weighing)
    assert [outcome.code for outcome in outcomes] == [0] * NODES, outcomes
    counted = [int(outcome.value[1].bytes_sent[0]) for outcome in outcomes]
    server = job.plan.mixing.kind == "server"
    # A client in the process of the server itself needs no network.
    assert list(sent.values())[server:] == counted[server:]
