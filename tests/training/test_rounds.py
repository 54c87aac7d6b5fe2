"""Several gossip rounds a step, against loops of their own; their bytes, and who refuses them."""

from dataclasses import replace

import numpy as np
import pytest

import tacit
from algorithms import recursion_oracle as oracle
from tacit.algorithms import ALGORITHMS
from tacit.config import load_config
from tacit.errors import InputError
from tacit.topology.mixing import build_mixing
from tacit.topology.own import build_schedule
from tacit.training.faults import effective, fault_plan
from tacit.training.planner import build_plan
from tacit.training.processes.agreement import planned
from tacit.training.run_folder.result import bytes_per_step

NODES, STEPS, RATE = 5, 6, 0.3
ONE_WAY = [[(0, 1), (0, 2), (3, 4)], [(1, 3), (2, 0), (4, 0), (4, 1)], [(1, 0), (2, 3), (2, 4)]]
BOTH_WAYS = [[(0, 1), (1, 2), (3, 4)], [(0, 3), (2, 4)], [(1, 3), (0, 2), (0, 4)]]
SERVERS = {name for name, row in ALGORITHMS.items() if row.graph.weights == "server"}
COPIES = {"choco-sgd", "do-adp", "cpgt"}
DUALS = {"ddp-admm-gradient", "dp-madmm-gradient", "dp-radmm-gradient"}
MATCHINGS = {"dpdl"}
SEVERAL = set(ALGORITHMS) - SERVERS - COPIES - DUALS - MATCHINGS
Array = oracle.Array


def file_of(graphs, folder, *, both):
    path = folder / "graphs.txt"
    sets = [[*edges, *((b, a) for a, b in edges if both)] for edges in graphs]
    path.write_text("\n\n".join("\n".join(f"{a} {b}" for a, b in edges) for edges in sets))
    return f"file:{path}"


def trained(task, graph, rounds, **algorithm):
    return tacit.train(
        {
            "task": {"loss": task.loss},
            "topology": {"graph": graph, "rounds": rounds},
            "algorithm": {"learning_rate": RATE, **algorithm},
            "privacy": {"epsilon": "none"},
            "train": {"steps": STEPS, "batch": "all", "dtype": "float64"},
        },
        model=task.module,
        nodes=task.nodes,
    )


@pytest.mark.parametrize("rounds", [2, 3, 4])
def test_push_sum_mixes_with_a_new_graph_in_every_round(rounds, tmp_path):
    task, momentum, final = oracle.problem("mse", NODES), 0.6, 2
    graph = file_of(ONE_WAY, tmp_path, both=False)
    options = {"name": "privsgp", "momentum": momentum, "final_mixing": final}
    found = trained(task, graph, rounds, **options)
    run = oracle.Run(task, lambda t: oracle.splitting(NODES, ONE_WAY[t % 3]), STEPS, RATE)
    x, w = np.tile(task.start, (NODES, 1)), np.ones(NODES)
    m, turn = np.zeros_like(x), 0
    for k in range(STEPS + 1):
        last = k == STEPS
        if not last:
            g = np.array([run.mean_gradient(i, x[i] / w[i], k) for i in range(NODES)])
            m = momentum * m + g
            x = x - RATE * m
        for _ in range(final if last else rounds):
            x, w, turn = run.matrix(turn) @ x, run.matrix(turn) @ w, turn + 1
    np.testing.assert_allclose(found.parameters.numpy(), x / w[:, None], rtol=1e-9, atol=1e-9)
    assert not found.parameters.equal(trained(task, graph, 1, **options).parameters)


def gossip(task, run, rounds):
    """DP2-SGD: the step mixes the old models, and what the step gives is mixed further."""
    x, turn = np.tile(task.start, (NODES, 1)), 0
    for k in range(STEPS):
        g = np.array([run.mean_gradient(i, x[i], k) for i in range(NODES)])
        x, turn = run.matrix(turn) @ x - RATE * g, turn + 1
        for _ in range(rounds - 1):
            x, turn = run.matrix(turn) @ x, turn + 1
    return x


def projected(task, run, rounds):
    """DPDO without noise and decay: what a round sends has made its step. It has no weights."""
    run = replace(run, equal=True)
    z, turn = np.tile(task.start, (NODES, 1)), 0
    for k in range(STEPS):
        z = z - RATE * np.array([run.mean_gradient(i, z[i], k) for i in range(NODES)])
        for _ in range(rounds):
            z, turn = run.matrix(turn) @ z, turn + 1
    return z


def dual_averaging(task, run, rounds):
    """DP-DDA: gradients are taken at models that follow from z after all rounds."""
    start = np.tile(task.start, (NODES, 1))
    x, z, turn = start, np.zeros_like(start), 0
    for k in range(STEPS):
        g = np.array([run.mean_gradient(i, x[i], k) for i in range(NODES)])
        z, turn = run.matrix(turn) @ z + g, turn + 1
        for _ in range(rounds - 1):
            z, turn = run.matrix(turn) @ z, turn + 1
        x = start - z * RATE / np.sqrt(k + 1)
    return x


LOOPS = {
    "d-psgd": (gossip, {}),
    "dp2-sgd": (gossip, {}),
    "dpdo": (projected, {"rate_decay": 1.0, "noise_decay": 1.0}),
    "dp-dda": (dual_averaging, {}),
}


@pytest.mark.parametrize("name", LOOPS)
def test_gossip_mixes_with_a_new_graph_in_every_round(name, tmp_path):
    loop, options = LOOPS[name]
    task, graph = oracle.problem("mse", NODES), file_of(BOTH_WAYS, tmp_path, both=True)
    run = oracle.Run(task, lambda t: oracle.metropolis(NODES, BOTH_WAYS[t % 3]), STEPS, RATE)
    for rounds in (1, 2, 4):
        found = trained(task, graph, rounds, name=name, **options).parameters.numpy()
        np.testing.assert_allclose(found, loop(task, run, rounds), rtol=1e-9, atol=1e-9)


def test_a_node_that_finished_begins_its_next_gradient_after_the_rounds_of_its_wave():
    task, rounds = oracle.problem("mse", NODES), 3
    found = trained(task, "ring", rounds, name="adp2-sgd")
    edges = [(i, (i + 1) % NODES) for i in range(NODES)]
    run = oracle.Run(task, lambda t: oracle.metropolis(NODES, edges), STEPS, RATE)
    waves = found.plan.release.activity
    assert waves is not None
    assert waves.partner is not None
    x = np.tile(task.start, (NODES, 1))
    at = x.copy()
    for k in range(STEPS):
        g = np.array([run.mean_gradient(i, at[i], k) for i in range(NODES)])
        finished = waves.active[k][:, None]
        x = (x + x[waves.partner[k]]) / 2 - RATE * g * finished
        for _ in range(rounds - 1):
            x = run.matrix(0) @ x
        at = np.where(finished, x, at)
    assert 0 < waves.active.sum() < waves.active.size
    np.testing.assert_allclose(found.parameters.numpy(), x, rtol=1e-9, atol=1e-9)


def plan_of(name, **topology):
    chosen = ALGORITHMS[name]
    noise = {"noise_std": 0.1, "noise_seed": 1} if chosen.private else {}
    settings = load_config(
        {
            "task": {"model": "linear", "loss": "mse"},
            "nodes": {"count": NODES},
            "topology": topology,
            "algorithm": {"name": name},
            "privacy": noise,
            "train": {"steps": STEPS, "batch": "all"},
        },
        count=NODES,
    )
    return build_plan(settings, [4] * NODES, 3)


def test_a_server_and_public_copies_have_one_round_and_the_others_several():
    kinds = (SERVERS, COPIES, DUALS, MATCHINGS, SEVERAL)
    assert sum(map(len, kinds)) == len(ALGORITHMS) == 33
    for name in ALGORITHMS:
        assert plan_of(name).rounds == plan_of(name, rounds=1).rounds == 1
        assert plan_of(name, rounds="auto").rounds == 1
        if name in SEVERAL:
            assert plan_of(name, rounds=3).rounds == 3
            continue
        with pytest.raises(InputError, match=r"topology.rounds = 3: .*; leave it out") as refused:
            plan_of(name, rounds=3)
        others = "dual variable" if name in DUALS else "public copies"
        others = "matching" if name in MATCHINGS else others
        assert ("server" if name in SERVERS else others) in str(refused.value)


def test_models_that_are_private_are_sent_in_no_round_that_they_do_not_ask_for():
    """A row of a user's own, whose messages hold something else than its models."""
    row = ALGORITHMS["dp2-sgd"]
    assert not row.no_rounds
    for own in (
        replace(row, releases=replace(row.releases, models=False)),
        replace(row, models=lambda state: state.x),
    ):
        assert "gossip" in own.no_rounds
        assert not replace(
            own, graph=replace(own.graph, gossip=ALGORITHMS["dp-dda"].graph.gossip)
        ).no_rounds


@pytest.mark.parametrize("value", [0, -1, 1001, 1.5, True, "many"])
def test_rounds_that_are_none_are_refused(value):
    with pytest.raises(InputError, match=r"topology.rounds = .*from 1 to 1000, or 'auto'"):
        plan_of("privsgp", rounds=value)


def test_the_rounds_are_a_part_of_what_a_plan_is():
    one, two = plan_of("privsgp"), plan_of("privsgp", rounds=2)
    assert one.digest() != two.digest()
    assert planned(one) != planned(two)
    assert one.contraction is not None
    assert one.contraction > 0
    assert two.contraction == pytest.approx(one.contraction**2)


@pytest.mark.parametrize(
    ("name", "graph"), [("privsgp", "exponential"), ("dp2-sgd", "star"), ("adp2-sgd", "ring")]
)
def test_bytes_are_forecast_as_they_are_sent(name, graph):
    task = oracle.problem("mse", NODES)
    sent = {r: np.array(trained(task, graph, r, name=name).bytes_sent) for r in (1, 3)}
    result = trained(task, graph, 3, name=name)
    row = ALGORITHMS[name]
    numbers = row.graph.message_numbers(
        result.plan.config.algorithm.options, result.plan.parameters
    )
    forecast = bytes_per_step(result.plan, numbers, 8).numpy() * STEPS
    np.testing.assert_allclose(forecast, sent[3])
    degrees = result.plan.mixing.out_degrees(0)
    assert (sent[3] - sent[1]).tolist() == (2 * STEPS * degrees * numbers * 8).tolist()


def test_messages_are_lost_round_by_round_and_nodes_are_away_step_by_step():
    sections = {
        "topology": {"graph": "ring", "rounds": 3},
        "algorithm": {"name": "dp2-sgd"},
        "privacy": {"epsilon": "none"},
        "faults": {"drop": 0.4, "down": [[2, 1, 2]]},
    }
    mixing = build_mixing(build_schedule("ring", 8))
    faults = fault_plan(load_config(sections, count=8), mixing, 3)
    assert faults is not None
    at = effective(mixing, faults)
    alone = [bool(at(t).diagonal[2] == 1) for t in range(9)]
    assert all(alone[3:6])  # the rounds of step 1
    assert not all(alone)
    lost = {tuple(map(tuple, faults.lost_edges(t))) for t in range(3)}
    assert len(lost) == 3  # of one step
    assert faults.up(1) is not None
    assert not faults.up(1)[2]
    assert faults.up(0)[2]
    assert faults.up(2)[2]
