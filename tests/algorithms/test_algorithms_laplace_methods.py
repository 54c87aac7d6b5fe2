"""DPDO and CPGT: NumPy recursions, the noise where it enters, and what it costs."""

import math

import numpy as np
import pytest
import recursion_oracle as oracle
from recursion_runs import IRREGULAR, RATE, assert_same, least_squares, on_graph, trained

import tacit
from public_masks import public_mask
from tacit import privacy

STEPS, NODES = 8, 5
METHODS = ("dpdo", "cpgt")


def experiment(folder, name, **options):
    return on_graph(folder, name, steps=STEPS, **options)


def mean_gradient(task, node, at, clip):
    """Clipped in l1, record by record."""
    inputs, targets = (values.numpy() for values in task.nodes[node])
    found = task.gradients(at, inputs, targets)
    if clip is not None:
        norms = np.abs(found).sum(axis=1, keepdims=True)
        found = found * np.minimum(1, clip / norms)
    return found.mean(axis=0)


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("box", [None, 0.4])
def test_dpdo_recursion(box, clip, tmp_path):
    task = oracle.problem("logistic", NODES)
    options = {"rate_decay": 0.9, "noise_decay": 0.95}
    if box is not None:
        options |= {"regulariser": "box", "regularisation": box}
    if clip is not None:
        options["clip"] = clip
    found = trained(task, experiment(tmp_path, "dpdo", **options))
    z = np.tile(task.start, (NODES, 1))
    for k in range(STEPS):
        rows = []
        for i in range(NODES):
            x = z[i] - RATE * 0.9**k * mean_gradient(task, i, z[i], clip)
            rows.append(x if box is None else np.clip(x, -box, box))
        z = np.array([sum(IRREGULAR[i, j] * rows[j] for j in range(NODES)) for i in range(NODES)])
    assert_same(found.parameters, z)


def top(values, keep):
    """The largest in size, ties to the lowest index."""
    chosen = np.argsort(-np.abs(values), kind="stable")[: math.ceil(keep * len(values))]
    found = np.zeros_like(values)
    found[chosen] = values[chosen]
    return found


@pytest.mark.parametrize(
    ("compressor", "keep"), [("none", 1.0), ("top-k", 0.5), ("top-k", 1.0), ("rand-k", 0.5)]
)
def test_cpgt_recursion(compressor, keep, tmp_path):
    task = oracle.problem("logistic", NODES)
    options = {"consensus_step": 0.4, "tracking_step": 0.25, "compressor": compressor, "keep": keep}
    found = trained(task, experiment(tmp_path, "cpgt", **options))
    d = task.start.size

    def weighed(node, at):
        return oracle.weight(task, node) * mean_gradient(task, node, at, None)

    def sent(values, node, step, part):
        if compressor == "none":
            return values
        if compressor == "top-k":
            return top(values, keep)
        mask = public_mask(
            d, compressor=compressor, keep=keep, seed=2, step=step, nodes=[node], part=part
        )
        return np.asarray(values * mask[0].numpy())

    x = np.tile(task.start, (NODES, 1))
    x_copy, y_copy = np.zeros_like(x), np.zeros_like(x)
    g = np.array([weighed(i, x[i]) for i in range(NODES)])
    y = g.copy()
    for t in range(STEPS):
        for i in range(NODES):
            x_copy[i] += sent(x[i] - x_copy[i], i, t, 0)
            y_copy[i] += sent(y[i] - y_copy[i], i, t, 1)
        x_new, y_half = np.zeros_like(x), np.zeros_like(x)
        for i in range(NODES):
            pull_x = sum(IRREGULAR[i, j] * (x_copy[i] - x_copy[j]) for j in range(NODES))
            pull_y = sum(IRREGULAR[i, j] * (y_copy[i] - y_copy[j]) for j in range(NODES))
            x_new[i] = x[i] - 0.4 * pull_x - RATE * y[i]
            y_half[i] = y[i] - 0.25 * pull_y
        g_new = np.array([weighed(i, x_new[i]) for i in range(NODES)])
        x, y, g = x_new, y_half + g_new - g, g_new
    assert_same(found.parameters, x)


@pytest.mark.slow
def test_cpgt_finds_the_common_optimum_of_different_nodes(tmp_path):
    """Gradient tracking removes what different data do to gossip with a constant rate."""
    task = oracle.problem("mse", NODES)
    config = experiment(tmp_path, "cpgt", compressor="top-k", keep=0.5, learning_rate=0.1)
    config["task"] = {"loss": "mse"}
    config["train"]["steps"] = 900
    found = trained(task, config).parameters.numpy()
    np.testing.assert_allclose(found, np.tile(least_squares(task.nodes), (NODES, 1)), atol=5e-3)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("relation", ["add-or-remove-one", "replace-one"])
def test_epsilon_is_that_of_laplace_noise(name, relation, tmp_path):
    task = oracle.problem("logistic", NODES)
    config = experiment(tmp_path, name, clip=0.5)
    config["privacy"] = {"epsilon": 1.0, "delta": 1e-5, "relation": relation, "noise_seed": 1}
    result = trained(task, config)
    shift = 2.0 if relation == "replace-one" else 1.0
    for node, epsilon in zip(result.plan.nodes, result.epsilon, strict=True):
        levels = [result.plan.release.noise_multiplier(node, k) for k in range(STEPS)]
        assert epsilon is not None
        assert epsilon <= 1.0
        # Never above the pure bound, and not far below it over so few steps.
        pure = math.fsum(shift / level for level in levels)
        assert 0.3 * pure < epsilon <= pure * (1 + 1e-9)
        mechanism = result.plan.release.mechanism(node)
        assert isinstance(mechanism, privacy.Laplace)
        assert mechanism.relation == relation


@pytest.mark.parametrize("box", ["none", "box"])
def test_dpdo_moves_by_the_stated_sensitivity(box, tmp_path):
    """One record's label flips: x moves by at most 2 gamma C / J in l1, and attains it."""
    rng = np.random.default_rng(0)
    largest = 0.0
    for trial in range(9):
        inputs = rng.normal(size=(3, 4)) * rng.choice([0.1, 1, 20])
        targets = rng.choice([-1.0, 1.0], 3)
        other = targets.copy()
        other[trial % 3] *= -1
        options = {"clip": 0.7, "regulariser": box, "rate_decay": 0.5}
        options |= {} if box == "none" else {"regularisation": 0.3}
        config = experiment(tmp_path, "dpdo", **options)
        config["topology"] = {"graph": "ring"}
        config["task"] = {"loss": "logistic", "model": "logistic"}
        config["train"] |= {"steps": 1}
        one, two = (
            tacit.train(config, nodes=[(inputs, labels)]).parameters.numpy()[0]
            for labels in (targets, other)
        )
        moved = np.abs(one - two).sum()
        assert moved <= 2 * RATE * 0.7 / 3 * (1 + 1e-12)
        largest = max(largest, moved)
    assert largest > 1.9 * RATE * 0.7 / 3 or box == "box"


def test_the_papers_constant_spends_its_epsilon():
    """M_t = 2 C_2 sqrt(d) c p^t / (eps (p - q)); a step moves by 2 C_2 sqrt(d) gamma_t."""
    c, p, q, epsilon, bound = 0.7, 0.9, 0.8, 0.5, 3.0
    scales = [bound * c * p**t / (epsilon * (p - q)) for t in range(1, 2000)]
    moves = [bound * c * q ** (t - 1) for t in range(1, 2000)]
    total = sum(move / scale for move, scale in zip(moves, scales, strict=True))
    assert total == pytest.approx(epsilon, rel=1e-9)
    assert p / (scales[0] / moves[0] * (p - q)) == pytest.approx(epsilon, rel=1e-12)


def test_bytes_count_what_is_sent(tmp_path):
    task = oracle.problem("logistic", NODES)
    full, part = (
        trained(task, experiment(tmp_path, "cpgt", **options)).bytes_sent
        for options in ({}, {"compressor": "rand-k", "keep": 0.5})
    )
    assert [2 * few for few in part] == list(full)
