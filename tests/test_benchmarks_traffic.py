"""Traffic between processes, against a loop over every edge, pair and client."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from planning_cases import plan_of

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks" / "cluster"))

from traffic import MESSAGE_BYTES, Traffic, traffic

GRAPHS = [
    {"graph": "exponential"},
    {"graph": "ring"},
    {"graph": "directed-ring"},
    {"graph": "star"},
    {"graph": "complete"},
    {"graph": "k-regular", "degree": 4},
]
COLUMN = {"exponential", "directed-ring"}


@dataclass(frozen=True)
class Ranks:
    """A placement: which rank each node is on."""

    ranks: tuple[int, ...]

    @property
    def processes(self):
        return max(self.ranks) + 1


def gossip(nodes, topology, **settings):
    name = "privsgp" if topology["graph"] in COLUMN else "dp2-sgd"
    algorithm = settings.pop("algorithm", {"name": name})
    return plan_of([20] * nodes, topology=topology, noise_std=0.1, algorithm=algorithm, **settings)


def needed(plan, ranks):
    """By hand: of each step, (node, rank it is on, rank that needs its row), along edges."""
    for graph in plan.mixing.schedule.graphs:
        yield {(a, ranks[a], ranks[b]) for a, b in graph.edges if ranks[a] != ranks[b]}


def check(found, steps, row):
    for rank in range(found.processes):
        out = [[entry for entry in step if entry[1] == rank] for step in steps]
        came = [[entry for entry in step if entry[2] == rank] for step in steps]
        to = np.mean([len({entry[2] for entry in step}) for step in out])
        of = np.mean([len({entry[1] for entry in step}) for step in came])
        assert found.messages_out[rank] == pytest.approx(to)
        assert found.messages_in[rank] == pytest.approx(of)
        rows_out, rows_in = np.mean([*map(len, out)]), np.mean([*map(len, came)])
        assert found.needed_out[rank] == pytest.approx(rows_out * row)
        assert found.bytes_out[rank] == pytest.approx(rows_out * row + to * 80)
        assert found.bytes_in[rank] == pytest.approx(rows_in * row + of * 80)


placements = st.integers(1, 4).flatmap(
    lambda processes: st.lists(
        st.integers(0, processes - 1), min_size=8 - processes, max_size=8 - processes
    ).map(lambda rest: (*range(processes), *rest))
)


PLANS = {topology["graph"]: gossip(8, topology) for topology in GRAPHS}


@pytest.mark.parametrize("graph", PLANS)
@given(ranks=placements)
@settings(max_examples=40, deadline=None)
def test_gossip_sends_each_row_once_to_every_process_that_needs_it(graph, ranks):
    numbers = 11 if graph in COLUMN else 10  # push-sum: and the weight
    found = traffic(PLANS[graph], Ranks(ranks), torch.float64)
    check(found, list(needed(PLANS[graph], ranks)), numbers * 8)


def test_a_one_peer_graph_on_one_node_a_process_is_one_message_each_way():
    found = traffic(gossip(8, {"graph": "exponential"}), Ranks(tuple(range(8))), torch.float32)
    assert found.messages_out.tolist() == found.messages_in.tolist() == [1.0] * 8
    assert found.needed_out.tolist() == [44.0] * 8
    assert found.bytes_out.tolist() == [44.0 + 80] * 8
    assert MESSAGE_BYTES == 80
    assert [phase.hops for phase in found.phases] == [2]


def test_the_periods_graphs_are_averaged():
    # Blocks 0-3 and 4-7: of hops 1, 2 and 4, so many nodes of a block send to the other.
    found = traffic(
        gossip(8, {"graph": "exponential"}), Ranks((0, 0, 0, 0, 1, 1, 1, 1)), torch.float64
    )
    assert found.phases[0].rows_out.tolist() == [[1, 1], [2, 2], [4, 4]]
    assert found.needed_out.tolist() == pytest.approx([7 / 3 * 88] * 2)


def test_one_process_sends_nothing():
    for plan in (gossip(4, {"graph": "ring"}), server(4), pairs(4)):
        found = traffic(plan, Ranks((0, 0, 0, 0)), torch.float32)
        assert found.messages_out.tolist() == found.bytes_in.tolist() == [0.0]
        assert all(phase.silent.all() for phase in found.phases)


def test_compressed_rows_count_as_what_they_take():
    chosen = {"name": "do-adp", "compressor": "rand-k", "keep": 0.5, "consensus_step": 0.1}
    plan = gossip(4, {"graph": "ring"}, algorithm=chosen, parameters=100)
    found = traffic(plan, Ranks((0, 1, 2, 3)), torch.float32)
    assert found.needed_out.tolist() == [2 * 50 * 4] * 4


def pairs(nodes):
    return plan_of(
        [20] * nodes,
        topology={"graph": "complete"},
        noise_std=0.1,
        algorithm={"name": "adp2-sgd"},
        train={"steps": 12},
    )


@given(ranks=placements)
@settings(max_examples=25, deadline=None)
def test_pairs_swap_their_rows(ranks):
    assert PAIRS.release.activity is not None
    assert PAIRS.release.activity.partner is not None
    steps = [
        {(a, ranks[a], ranks[b]) for a, b in enumerate(row.tolist()) if ranks[a] != ranks[b]}
        for row in PAIRS.release.activity.partner
    ]
    check(traffic(PAIRS, Ranks(ranks), torch.float32), steps, 40)


def server(nodes, steps=6, **options):
    return plan_of(
        [20] * nodes,
        topology={"graph": "star"},
        noise_std=0.1,
        algorithm={"name": "dp-sgd", **options},
        train={"steps": steps},
    )


PAIRS, SERVER = pairs(8), server(8, clients_per_round=3)


@given(ranks=placements)
@settings(max_examples=25, deadline=None)
def test_active_clients_send_to_the_server_and_every_process_gets_the_mean(ranks):
    assert SERVER.release.activity is not None
    placement = Ranks(ranks)
    steps = []
    for flags in SERVER.release.activity.active:
        up = {(node, ranks[node], 0) for node in np.flatnonzero(flags).tolist() if ranks[node]}
        steps.append((up, {(-1, 0, rank) for rank in range(1, placement.processes)}))
    found = traffic(SERVER, placement, torch.float64)
    up, down = (Traffic((phase,)) for phase in found.phases)
    check(up, [step[0] for step in steps], 80)
    check(down, [step[1] for step in steps], 80)
    assert [phase.hops for phase in found.phases] == [1, 1]
    assert found.bytes_out == pytest.approx(up.bytes_out + down.bytes_out)


def test_a_long_run_with_activity_is_sampled():
    found = traffic(server(4, 2500, clients_per_round=2), Ranks((0, 1, 2, 3)), torch.float32)
    assert found.phases[0].messages_out.shape == (1000, 4)
    assert found.messages_out[1] == pytest.approx(0.5, abs=0.06)
