"""Push-sum and gossip against their papers' recursions, as independent NumPy loops compute them.

Where the other algorithms are is in `battery_table`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import battery_table
import numpy as np
import pytest
import recursion_oracle as oracle
import recursion_runs
import torch
from recursion_runs import assert_same, drawn_in
from torch import nn
from torch.func import functional_call

from tacit.algorithms import ALGORITHMS

Array = oracle.Array
STEPS = 7
LEARNING_RATE = 0.3
CLIP = 0.4  # shorter than most gradients of the problems


def constant(clip, steps):
    return [clip] * steps


def falling(decay):
    """C_k = C_0 rho_c^{-k/K}."""
    return lambda clip, steps: [clip * decay ** (-k / steps) for k in range(steps)]


def uneven(clip, steps):
    return [clip * (1 + (3 * k) % 4) / 2 for k in range(steps)]


@dataclass(frozen=True)
class Row:
    """An algorithm's options, and the clipping bounds that its paper gives for C_0."""

    options: Mapping[str, Any] = field(default_factory=dict)
    clips: Callable[[float, int], Sequence[float]] = constant


ROWS = {
    "sgp": Row(),
    "privsgp": Row(),
    "const-d2p": Row(),
    "dyn-mu": Row({"budget_growth": 4.0}),
    "dyn-c": Row({"clip_decay": 5.0}, falling(5.0)),
    "dyn-d2p": Row({"clip_decay": 3.0, "budget_growth": 2.0}, falling(3.0)),
    "dyn-general": Row(clips=uneven),
    "d-psgd": Row(),
    "dp2-sgd": Row(),
}
GOSSIP = ("d-psgd", "dp2-sgd")
PUSH_SUM = tuple(name for name in ROWS if name not in GOSSIP)


def clip_options(name, clips):
    """How an experiment file asks for these bounds."""
    if clips is None:
        return {}
    return {"clip_schedule": list(clips)} if name == "dyn-general" else {"clip": clips[0]}


RING = [(i, (i + 1) % 5) for i in range(5)]
COMPLETE = [(i, j) for i in range(5) for j in range(i)]
STAR = [(0, i) for i in range(1, 5)]
IRREGULAR = [(0, 1), (0, 2), (0, 3), (1, 2), (2, 0), (2, 4), (3, 4), (4, 0)]
VARYING = [[(0, 1), (0, 2), (3, 4)], [(1, 3), (2, 0), (4, 0), (4, 1)], [(1, 0), (2, 3), (2, 4)]]
CHAIN = [(0, 1), (1, 2), (1, 3), (3, 4)]


@dataclass(frozen=True)
class Graph:
    """A graph by its name in `[topology]` or by its file, with the oracle's matrices."""

    name: str
    nodes: int
    matrix: Callable[[int], Array]
    file: Sequence[oracle.Edges] = ()

    def topology(self, folder):
        if not self.file:
            return {"graph": self.name}
        path = folder / "graph.txt"
        path.write_text("\n\n".join("\n".join(f"{a} {b}" for a, b in edges) for edges in self.file))
        return {"graph": f"file:{path}"}


GRAPHS = [
    Graph("exponential", 5, lambda k: oracle.exponential(5, k)),
    Graph("exponential", 8, lambda k: oracle.exponential(8, k)),
    Graph("complete", 5, lambda k: oracle.metropolis(5, COMPLETE)),
    Graph("ring", 5, lambda k: oracle.metropolis(5, RING)),
    Graph("directed-ring", 5, lambda k: oracle.splitting(5, RING)),
    Graph("star", 5, lambda k: oracle.metropolis(5, STAR)),
    Graph("irregular", 5, lambda k: oracle.splitting(5, IRREGULAR), [IRREGULAR]),
    Graph("varying", 5, lambda k: oracle.splitting(5, VARYING[k % 3]), VARYING),
]
BY_NAME = {graph.name: graph for graph in GRAPHS}


def graph_id(graph):
    return f"{graph.name}-{graph.nodes}"


def train(task, name, topology, options, **settings):
    options = {"learning_rate": LEARNING_RATE, **options}
    return recursion_runs.train(
        task, name, options, topology=topology, **{"steps": STEPS, **settings}
    )


def test_every_algorithm_that_refers_to_this_file_has_a_row_here():
    file = Path(__file__).name
    here = {row.name: row.recursion for row in battery_table.ROWS.values() if file in row.recursion}
    tests = {True: "test_gossip_recursion", False: "test_push_sum_recursion"}
    assert here == {name: f"{file}::{tests[name in GOSSIP]}" for name in ROWS}
    assert {name for name in ROWS if ALGORITHMS[name].graph.weights == "doubly-stochastic"} == set(
        GOSSIP
    )


@pytest.mark.parametrize("clip", [None, CLIP], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("graph", GRAPHS, ids=graph_id)
@pytest.mark.parametrize("name", PUSH_SUM)
def test_push_sum_recursion(name, graph, clip, tmp_path):
    task = oracle.problem("logistic", graph.nodes)
    row = ROWS[name]
    clips = None if clip is None else row.clips(clip, STEPS)
    options = {**row.options, **clip_options(name, clips)}
    found = train(task, name, graph.topology(tmp_path), options).parameters
    run = oracle.Run(task, graph.matrix, STEPS, LEARNING_RATE, clips)
    x, w = oracle.push_sum(run)
    assert_same(found, oracle.de_biased(x, w))
    if graph.file:
        assert np.abs(w - 1).max() > 0.2
        assert np.abs(x - oracle.de_biased(x, w)).max() > 1e-3
    if clip is not None:
        assert oracle.clipped_share(task, clip) > 0.5
        unclipped = oracle.de_biased(*oracle.push_sum(replace(run, clips=None)))
        assert np.abs(found.numpy() - unclipped).max() > 1e-3


@pytest.mark.parametrize("empty", [(0,), (2, 4)], ids=str)
@pytest.mark.parametrize("graph", ["directed-ring", "varying"])
@pytest.mark.parametrize("name", ROWS)
def test_nodes_without_records_mix_and_add_nothing(name, graph, empty, tmp_path):
    chosen = BY_NAME["ring" if name in GOSSIP else graph]
    task = oracle.problem("mse", 5).without(*empty)
    clips = ROWS[name].clips(CLIP, STEPS)
    momentum = {} if name in GOSSIP else {"momentum": 0.6, "final_mixing": 2}
    options = {**ROWS[name].options, **clip_options(name, clips), **momentum}
    found = train(task, name, chosen.topology(tmp_path), options).parameters
    run = oracle.Run(task, chosen.matrix, STEPS, LEARNING_RATE, clips)
    if name in GOSSIP:
        right = oracle.gossip(run)
    else:
        right = oracle.de_biased(*oracle.push_sum(run, **momentum))
    np.testing.assert_allclose(found.numpy(), right, rtol=1e-12, atol=1e-12)
    assert np.abs(right[list(empty)] - task.start).max() > 1e-2


@pytest.mark.parametrize("clip", [None, CLIP], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("final_mixing", [0, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("loss", ["logistic", "mse", "cross-entropy"])
def test_push_sum_losses_momentum_and_final_mixing(loss, momentum, final_mixing, clip, tmp_path):
    graph = BY_NAME["varying"]
    task = oracle.problem(loss, graph.nodes)
    options = {"momentum": momentum, "final_mixing": final_mixing}
    clips = None if clip is None else [clip] * STEPS
    found = train(
        task, "privsgp", graph.topology(tmp_path), {**options, **clip_options("privsgp", clips)}
    ).parameters
    run = oracle.Run(task, graph.matrix, STEPS, LEARNING_RATE, clips)
    assert_same(found, oracle.de_biased(*oracle.push_sum(run, **options)))
    if momentum or final_mixing:
        assert np.abs(found.numpy() - oracle.de_biased(*oracle.push_sum(run))).max() > 1e-4


@pytest.mark.parametrize("name", PUSH_SUM)
def test_every_push_sum_method_has_momentum_and_final_mixing(name):
    task = oracle.problem("mse", 5)
    clips = ROWS[name].clips(CLIP, STEPS)
    options = {**ROWS[name].options, **clip_options(name, clips)}
    added = {"momentum": 0.6, "final_mixing": 2}
    found = train(task, name, {"graph": "exponential"}, {**options, **added}).parameters
    run = oracle.Run(task, lambda k: oracle.exponential(5, k), STEPS, LEARNING_RATE, clips)
    assert_same(found, oracle.de_biased(*oracle.push_sum(run, **added)))


@pytest.mark.parametrize("clip", [None, CLIP], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("loss", ["logistic", "mse", "cross-entropy"])
@pytest.mark.parametrize("name", GOSSIP)
def test_gossip_recursion(name, loss, clip):
    task = oracle.problem(loss, 5)
    clips = None if clip is None else [clip] * STEPS
    found = train(task, name, {"graph": "ring"}, clip_options(name, clips)).parameters
    run = oracle.Run(task, BY_NAME["ring"].matrix, STEPS, LEARNING_RATE, clips)
    assert_same(found, oracle.gossip(run))


WEIGHTS = {
    "metropolis": oracle.metropolis,
    "laplacian": oracle.laplacian,
    "uniform": oracle.uniform,
}


@pytest.mark.parametrize(
    ("graph", "edges", "weights"),
    [
        (graph, edges, weights)
        for graph, edges in {
            "ring": RING,
            "complete": COMPLETE,
            "star": STAR,
            "chain": CHAIN,
        }.items()
        for weights in WEIGHTS
        if weights != "uniform" or graph in ("ring", "complete")
    ],
)
@pytest.mark.parametrize("name", [*GOSSIP, "privsgp"])
def test_symmetric_weights(name, graph, edges, weights, tmp_path):
    task = oracle.problem("logistic", 5)
    matrix = WEIGHTS[weights](5, edges)
    both_ways = [*edges, *((b, a) for a, b in edges)]
    drawn = Graph(graph, 5, lambda k: matrix, [both_ways] if graph == "chain" else ())
    topology = {**drawn.topology(tmp_path), "mixing": weights}
    found = train(task, name, topology, {}).parameters
    run = oracle.Run(task, drawn.matrix, STEPS, LEARNING_RATE)
    right = oracle.gossip(run) if name in GOSSIP else oracle.push_sum(run)[0]
    assert_same(found, right)


def autograd_gradients(module):
    """Gradients of cross-entropy, one record at a time, as torch differentiates them."""
    names = [name for name, _ in module.named_parameters()]
    shapes = [weight.shape for weight in module.parameters()]

    def gradients(parameters, inputs, targets):
        sizes = [shape.numel() for shape in shapes]
        pieces = torch.from_numpy(parameters.copy()).split(sizes)
        weights = [
            piece.view(shape).requires_grad_() for piece, shape in zip(pieces, shapes, strict=True)
        ]
        rows = []
        for record, label in zip(inputs, targets, strict=True):
            output = functional_call(
                module, dict(zip(names, weights, strict=True)), (torch.tensor(record)[None],)
            )
            loss = -output.log_softmax(1)[0, int(label)]
            rows.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, weights)]))
        return torch.stack(rows).numpy()

    return gradients


@pytest.mark.parametrize("clip", [None, 0.5], ids=["unclipped", "clipped"])
def test_network_against_autograd(clip, tmp_path):
    graph = BY_NAME["varying"]
    linear = oracle.problem("cross-entropy", graph.nodes)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4)).double()
    task = replace(linear, module=module, gradients=autograd_gradients(module))
    clips = None if clip is None else falling(3.0)(clip, STEPS)
    options = {**ROWS["dyn-d2p"].options, **clip_options("dyn-d2p", clips)}
    found = train(task, "dyn-d2p", graph.topology(tmp_path), options).parameters
    run = oracle.Run(task, graph.matrix, STEPS, LEARNING_RATE, clips)
    assert_same(found, oracle.de_biased(*oracle.push_sum(run)))
    if clip is not None:
        assert oracle.clipped_share(task, clip) > 0.5


@pytest.mark.parametrize("method", ["poisson", "fixed"])
@pytest.mark.parametrize("name", ROWS)
def test_a_batch_sum_is_divided_by_the_expected_batch(name, method):
    task = oracle.problem("mse", 5)
    row = ROWS[name]
    clips = row.clips(CLIP, STEPS)
    options = {**row.options, **clip_options(name, clips)}
    result = train(task, name, {"graph": "ring"}, options, batch=3, sampling=method)
    batch = drawn_in(result.plan)
    divisors = [min(3, count) for count in oracle.record_counts(5)]
    run = oracle.Run(task, BY_NAME["ring"].matrix, STEPS, LEARNING_RATE, clips, batch, divisors)
    right = oracle.gossip(run) if name in GOSSIP else oracle.push_sum(run)[0]
    assert_same(result.parameters, right)
    sizes = {len(batch(k, node)) for k in range(STEPS) for node in range(5)}
    assert sizes == {2, 3} if method == "fixed" else len(sizes) > 3


def test_a_step_without_any_record_moves_nothing_but_mixes():
    task = oracle.problem("mse", 1)
    inputs, targets = task.nodes[0]
    alone = replace(task, nodes=[(inputs.repeat(6, 1), targets.repeat(6, 1))])
    result = train(alone, "privsgp", {"graph": "exponential"}, {}, batch=1, steps=12)
    drawn = drawn_in(result.plan)
    chosen = [drawn(k, 0) for k in range(12)]
    assert min(len(records) for records in chosen) == 0
    run = oracle.Run(
        alone, lambda k: np.eye(1), 12, LEARNING_RATE, None, lambda k, node: chosen[k], [1.0]
    )
    assert_same(result.parameters, oracle.push_sum(run)[0])
