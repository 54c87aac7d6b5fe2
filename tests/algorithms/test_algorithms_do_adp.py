"""DO-ADP and CHOCO-SGD against a NumPy loop over nodes, their special cases, and their bytes."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import recursion_oracle as oracle
import torch
from recursion_runs import (
    IRREGULAR,
    RATE,
    activity_of,
    assert_same,
    context_of,
    drawn_in,
    least_squares,
    on_graph,
    trained,
)

from public_masks import public_mask
from tacit.algorithms.do_adp import spectrum
from tacit.config import load_config
from tacit.errors import InputError
from tacit.privacy.published.do_adp import do_adp_consensus_step
from tacit.training.prepare import prepare
from tacit.training.run_folder.result import bytes_per_step, message_bytes

Array = oracle.Array
SEED, STEPS = 4, 9
OPTIONS = {"compressor": "top-k", "keep": 0.3, "momentum": 0.15}
COMPRESSORS = ["none", "top-k", "rand-k", "bernoulli"]


def sending(name, keep):
    """The options of a compressor."""
    return {"compressor": name, "keep": 1.0 if name == "none" else keep}


def compressor(name, keep):
    """(difference `[d]`, step, node) -> what is sent of it."""

    def top_k(values, step, node):
        count = int(np.ceil(keep * len(values)))
        chosen = np.argsort(-np.abs(values), kind="stable")[:count]
        sent = np.zeros_like(values)
        sent[chosen] = values[chosen]
        return sent

    def masked(values, step, node):
        mask = public_mask(
            len(values), compressor=name, keep=keep, seed=SEED, step=step, nodes=[node], part=0
        )
        return np.asarray(np.where(mask[0].numpy(), values, 0.0))

    known = {"none": lambda values, step, node: values, "top-k": top_k}
    return known.get(name, masked)


def recursion(run, active, compress, beta, gamma, decay=0.0):
    """x `[nodes, d]` at the end, as the paper has it; every node keeps every copy."""
    count = len(run.task.nodes)
    x = np.tile(run.task.start, (count, 1))
    m, copies = np.zeros_like(x), np.zeros_like(x)
    for t in range(run.steps):
        matrix, following, sent = run.matrix(t), x.copy(), np.zeros_like(x)
        for i in range(count):
            for j in range(count):
                following[i] += gamma * matrix[i, j] * (copies[j] - copies[i])
            m[i] = beta * m[i]
            if active[t, i]:
                m[i] += run.mean_gradient(i, x[i], t) + decay * x[i]
                following[i] -= run.learning_rate * m[i]
                sent[i] = compress(following[i] - copies[i], t, i)
        x, copies = following, copies + sent
    return x


@pytest.mark.parametrize("graph", ["ring", "complete", "k-regular"])
@pytest.mark.parametrize(("keep", "p"), [(1.0, 1.0), (0.3, 0.8)])
def test_the_consensus_step_of_the_theorem(graph, keep, p):
    """gamma from the spectrum of the W that runs, by the paper's formula in its own symbols."""
    config = experiment(
        None, "do-adp", consensus_step="paper", activation=p, **sending("top-k", keep)
    )
    config["topology"] = {"graph": graph} | ({"degree": 4} if graph == "k-regular" else {})
    result = trained(oracle.problem("cross-entropy", 7), config)
    W = result.plan.mixing.weights[0].matrix()
    d = result.plan.parameters
    k = np.ceil(keep * d)
    rho = 1 - sorted(abs(np.linalg.eigvals(W)))[-2]
    phi = np.linalg.norm(np.eye(7) - W, 2)
    right = (
        rho * p * k / (d * (16 * rho + rho**2 + 4 * phi**2 + 2 * rho * phi**2) - 8 * rho * p * k)
    )
    options = result.plan.config.algorithm.options
    assert options.consensus_step == pytest.approx(right, rel=1e-8)
    assert 0 < options.consensus_step < 1 / 8
    same = trained(
        oracle.problem("cross-entropy", 7),
        {**config, "algorithm": {**config["algorithm"], "consensus_step": options.consensus_step}},
    )
    assert torch.equal(same.parameters, result.parameters)


def test_the_theorems_consensus_step_is_zero_where_nothing_mixes():
    """A graph of two nodes, whose W has the eigenvalues 1 and -1 with weights 0 and 1."""
    weights = SimpleNamespace(matrix=lambda: np.array([[0.0, 1.0], [1.0, 0.0]]))
    mixing = SimpleNamespace(weights=(weights,))
    gap, distance = spectrum(mixing)
    assert (gap, distance) == pytest.approx((0, 2))
    assert do_adp_consensus_step(gap, distance, 1.0) == pytest.approx(0)


def experiment(folder, name, *, loss="cross-entropy", train=(), **options):
    config = on_graph(folder, name, steps=STEPS, loss=loss, seed=SEED, **options)
    return {**config, "train": {**config["train"], **dict(train)}}


def a_run(task, **changes):
    matrix = changes.pop("matrix", IRREGULAR)
    return replace(oracle.Run(task, lambda k: matrix, STEPS, RATE), **changes)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_recursion_with_a_ridge_term(name, tmp_path):
    """The gradient of 0.2 ||x||^2 / 2 at x itself, of active nodes, after the clip."""
    task = oracle.problem("cross-entropy", 5)
    options = {**sending(name, 0.3), "momentum": 0.4, "consensus_step": 0.6, "weight_decay": 0.2}
    result = trained(task, experiment(tmp_path, "do-adp", **options, activation=0.6, clip=0.4))
    active = activity_of(result)
    run = a_run(task, clips=[0.4] * STEPS)
    right = recursion(run, active, compressor(name, 0.3), 0.4, 0.6, 0.2)
    assert_same(result.parameters, right)
    assert np.abs(right - recursion(run, active, compressor(name, 0.3), 0.4, 0.6)).max() > 1e-3


@pytest.mark.parametrize("clip", [None, 0.4], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("p", [1.0, 0.6])
@pytest.mark.parametrize("name", COMPRESSORS)
def test_recursion(name, p, clip, tmp_path):
    task = oracle.problem("cross-entropy", 5)
    options = {**sending(name, 0.3), "momentum": 0.4, "consensus_step": 0.6}
    config = experiment(tmp_path, "do-adp", **options, activation=p, clip=clip)
    result = trained(task, config)
    active = activity_of(result) if p < 1 else np.ones((STEPS, 5), dtype=bool)
    run = a_run(task, clips=None if clip is None else [clip] * STEPS)
    right = recursion(run, active, compressor(name, 0.3), 0.4, 0.6)
    assert_same(result.parameters, right)
    assert result.consensus.numpy() == pytest.approx(right.mean(axis=0), abs=1e-9)


@pytest.mark.parametrize("method", ["poisson", "fixed"])
def test_recursion_of_batches(method, tmp_path):
    task = oracle.problem("mse", 5)
    config = experiment(
        tmp_path,
        "choco-sgd",
        loss="mse",
        clip=0.5,
        **OPTIONS,
        train={"batch": 3, "sampling": method},
    )
    result = trained(task, config)
    divisors = [min(3, count) for count in oracle.record_counts(5)]
    run = a_run(task, clips=[0.5] * STEPS, batches=drawn_in(result.plan), divisors=divisors)
    always = np.ones((STEPS, 5), dtype=bool)
    assert_same(result.parameters, recursion(run, always, compressor("top-k", 0.3), 0.15, 0.3))


@pytest.mark.parametrize("gamma", [1.0, 0.4])
@pytest.mark.parametrize("name", COMPRESSORS)
def test_where_everything_is_sent_it_is_gossip_with_momentum(name, gamma, tmp_path):
    """x <- (1 - gamma) x + gamma W x - alpha m; D-PSGD itself with gamma = 1 and beta = 0."""
    task = oracle.problem("cross-entropy", 5)
    options = {"compressor": name, "keep": 1.0, "consensus_step": gamma}
    found = trained(task, experiment(tmp_path, "choco-sgd", **options, momentum=0.5)).parameters
    run = a_run(task)
    x, m, matrix = np.tile(task.start, (5, 1)), np.zeros((5, 16)), run.matrix(0)
    for k in range(STEPS):
        m = 0.5 * m + np.array([run.mean_gradient(i, x[i], k) for i in range(5)])
        x = (1 - gamma) * x + gamma * matrix @ x - RATE * m
    assert_same(found, x)
    plain = trained(task, experiment(tmp_path, "choco-sgd", **options, momentum=0.0)).parameters
    if gamma == 1:
        assert_same(plain, oracle.gossip(run))
        d_psgd = trained(task, experiment(tmp_path, "d-psgd")).parameters
        torch.testing.assert_close(plain, d_psgd, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_converges_on_a_strongly_convex_quadratic(name):
    """Records differ from node to node, half of the nodes are active, a third is sent."""
    task = oracle.problem("mse", 8)
    best = least_squares(task.nodes)
    options = {**sending(name, 0.3), "activation": 0.5, "momentum": 0.15, "consensus_step": 0.15}
    config = experiment(
        None,
        "do-adp",
        loss="mse",
        **options,
        learning_rate=0.1,
        learning_rate_schedule="linear",
        train={"steps": 500, "evaluate_every": 500},
    )
    result = trained(task, config)
    off = np.linalg.norm(result.parameters.numpy() - best, axis=1)
    assert off.max() < 0.06 * np.linalg.norm(task.start - best)


def walk(job, steps):
    """The states of the first steps, and the exchange that counted their bytes."""
    algorithm, options = job.config.algorithm.definition, job.config.algorithm.options
    context = context_of(job)
    start = job.model.start(len(job.plan.nodes), job.dtype, job.device)
    states = [algorithm.start(start, options, context)]
    for k in range(steps):
        states.append(algorithm.step(states[-1], k, options, context))
    return states, context.exchange


def ready(task, config):
    settings = load_config(config, count=len(task.nodes), given_model=True)
    return prepare(settings, model=task.module, nodes=task.nodes)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", COMPRESSORS)
def test_bytes_and_copies(name, dtype, tmp_path):
    task = oracle.problem("cross-entropy", 5)
    if dtype == "float32":
        nodes = [(inputs.float(), targets) for inputs, targets in task.nodes]
        task = replace(task, module=task.module.float(), nodes=nodes)
    options = {**sending(name, 0.3), "activation": 0.6}
    job = ready(task, experiment(tmp_path, "do-adp", **options, train={"dtype": dtype}))
    states, exchange = walk(job, STEPS)
    assert job.plan.release.activity is not None
    active = job.plan.release.activity.active
    matrix = torch.from_numpy(IRREGULAR).to(states[0].x.dtype)
    degrees = (matrix > 0).sum(dim=0).numpy() - 1
    right, item = np.zeros(5), states[0].x.element_size()
    for k, (before, after) in enumerate(pairwise(states)):
        silent = torch.from_numpy(~active[k])
        moved = after.copy - before.copy
        assert not bool(moved[silent].any())
        torch.testing.assert_close(after.near, matrix @ after.copy)
        for node in np.flatnonzero(active[k]):
            known = {"none": 16 * item, "top-k": 5 * item + 2, "rand-k": 5 * item}
            drawn = compressor(name, 0.3)(np.ones(16), k, node).sum() * item
            right[node] += degrees[node] * known.get(name, drawn)
    assert exchange.bytes_sent.tolist() == right.tolist()


def test_one_compressed_step_takes_a_share_of_a_dense_one(tmp_path):
    """p k / d, and a bit for each coordinate: the last is 1/32 of a dense float32 message."""
    task = oracle.problem("cross-entropy", 5)
    options = {**sending("top-k", 0.25), "activation": 0.8}
    config = experiment(tmp_path, "do-adp", **options, train={"steps": 400})
    job = ready(task, config)
    _, sparse = walk(job, 400)
    dense = 400 * 16 * 8 * (np.count_nonzero(IRREGULAR, axis=0) - 1)
    assert sparse.bytes_sent.sum() / dense.sum() == pytest.approx(0.8 * (0.25 + 1 / 64), rel=0.05)
    forecast = bytes_per_step(job.plan, message_bytes(job.plan, 8) / 8, 8).numpy() * 400
    np.testing.assert_array_equal(forecast.round(), sparse.bytes_sent)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("steps", [1, 4])
def test_few_nodes_and_steps_and_one_record(nodes, steps):
    task = oracle.problem("mse", 3)
    some = replace(task, nodes=[(x[: 1 + node], y[: 1 + node]) for node, (x, y) in
                                enumerate(task.nodes[:nodes])])  # fmt: skip
    config = experiment(None, "choco-sgd", loss="mse", **OPTIONS, train={"steps": steps})
    run = a_run(some, matrix=np.full((nodes, nodes), 1 / nodes), steps=steps)
    always = np.ones((steps, nodes), dtype=bool)
    right = recursion(run, always, compressor("top-k", 0.3), 0.15, 0.3)
    assert_same(trained(some, config).parameters, right)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_consensus_step_that_outruns_random_masks_is_warned_of(name):
    task = oracle.problem("cross-entropy", 5)
    for gamma, warned in ((0.2, name in ("rand-k", "bernoulli")), (0.15, False)):
        options = {**sending(name, 0.3), "activation": 0.5, "consensus_step": gamma}
        warnings = ready(task, experiment(None, "do-adp", **options)).plan.warnings
        assert any("consensus_step" in line for line in warnings) == warned


def test_a_share_without_a_compressor_is_refused():
    task = oracle.problem("cross-entropy", 5)
    with pytest.raises(InputError, match=r"algorithm\.keep = 0\.3: needs a compressor"):
        ready(task, experiment(None, "choco-sgd", keep=0.3))


def test_graphs_that_cannot_be(tmp_path):
    task = oracle.problem("cross-entropy", 5)
    changing = experiment(tmp_path, "do-adp")
    first, second = (f"{a} {b}\n{b} {a}\n" for a, b in ((0, 1), (1, 2)))
    (tmp_path / "graph.txt").write_text(f"{first}\n{second}")
    with pytest.raises(InputError, match="changes from step to step"):
        ready(task, changing)
    directed = {**changing, "topology": {"graph": "directed-ring"}}
    with pytest.raises(InputError, match="needs symmetric weights"):
        ready(task, directed)
    with pytest.raises(InputError, match=r"algorithm\.activation"):
        load_config(experiment(None, "choco-sgd", activation=0.5), count=3)
