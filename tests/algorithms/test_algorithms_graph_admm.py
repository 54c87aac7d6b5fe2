"""ADMM on a graph against a NumPy loop, where it converges to, and what each iteration costs."""

import math

import numpy as np
import pytest
import recursion_oracle as oracle
from hypothesis import given
from hypothesis import strategies as st
from recursion_runs import (
    EDGES,
    IRREGULAR,
    RATE,
    assert_same,
    disagreeing,
    drawn_in,
    graph_file,
    least_squares,
    on_graph,
    trained,
)

import tacit
from tacit import privacy
from tacit.algorithms.graph_admm import ModifiedAdmmOptions, schedules, weights_of
from tacit.errors import InputError

ETA, LAMBDA, STEPS, NODES = 0.7, 0.2, 9, 5
ROWS = ("ddp-admm-gradient", "dp-madmm-gradient", "dp-radmm-gradient")
SLOPES = {
    "none": lambda x: 0 * x,
    "l1": lambda x: LAMBDA * np.sign(x),
    "l2": lambda x: LAMBDA * x,
    "elastic-net": lambda x: LAMBDA * (np.sign(x) + x),
}


def experiment(folder, name, **options):
    return on_graph(folder, name, steps=STEPS, **{"penalty": ETA, **options})


def recursion(run, *, growth=1.0, theta=ETA, recycled=False, slope="none"):
    """Models `[nodes, d]`: each minimiser is found from the problem that it solves, edge by edge.

    The objective of node i is <g, x> + R's linearisation + |x - x_i|^2 / (2 gamma) + 2 <lambda, x>
    + eta sum_j w_ij |x - (x_i + x_j) / 2|^2, a quadratic: its Hessian is h I, and the minimiser is
    minus its gradient at 0 over h.
    """
    count = len(run.task.nodes)
    x = [run.task.start.copy() for _ in range(count)]
    dual = [np.zeros_like(run.task.start) for _ in range(count)]
    g = [np.zeros_like(run.task.start) for _ in range(count)]
    for t in range(run.steps):
        eta, w = ETA * growth**t, run.matrix(t)
        if not recycled or t % 2 == 0:
            g = [run.mean_gradient(i, x[i], t) for i in range(count)]
        following = []
        for i in range(count):
            linear = g[i] + SLOPES[slope](x[i]) + 2 * dual[i] - x[i] / run.learning_rate
            curvature = 1 / run.learning_rate
            for j in range(count):
                linear = linear - 2 * eta * w[i, j] * (x[i] + x[j]) / 2
                curvature += 2 * eta * w[i, j]
            following.append(-linear / curvature)
        x = following
        for i in range(count):
            for j in range(count):
                dual[i] = dual[i] + theta / 2 * w[i, j] * (x[i] - x[j])
    return np.array(x)


WAYS = [
    ("ddp-admm-gradient", {}, {}),
    ("dp-madmm-gradient", {"penalty_growth": 1.1}, {"growth": 1.1}),
    ("dp-madmm-gradient", {"dual_step": 0.3}, {"growth": 1.01, "theta": 0.3}),
    ("dp-radmm-gradient", {}, {"recycled": True}),
]


@pytest.mark.parametrize("batch", ["all", 2])
@pytest.mark.parametrize("clip", [None, 0.4])
@pytest.mark.parametrize(("name", "options", "expected"), WAYS)
def test_recursion(name, options, expected, clip, batch, tmp_path):
    task = oracle.problem("logistic", NODES)
    given = {**options, **({"clip": clip} if clip else {})}
    config = experiment(tmp_path, name, **given)
    config["train"]["batch"] = batch
    result = trained(task, config)
    plan = result.plan
    run = oracle.Run(
        task,
        lambda k: IRREGULAR,
        STEPS,
        learning_rate=RATE,
        clips=None if clip is None else [clip] * STEPS,
        batches=None if batch == "all" else drawn_in(plan),
        divisors=[node.expected_batch for node in plan.nodes],
        equal=True,
    )
    right = recursion(run, **expected)
    assert_same(result.parameters, right)
    assert np.abs(right - right.mean(0)).max() > 1e-3  # the dual variables have something to do
    size = 8 * plan.parameters  # everybody sends in every step
    degrees = [sum(node in edge for edge in EDGES) for node in range(NODES)]
    assert result.bytes_sent == tuple(size * STEPS * degree for degree in degrees)


@pytest.mark.parametrize("regulariser", SLOPES)
def test_regularisers(regulariser, tmp_path):
    task = oracle.problem("mse", NODES)
    weight = {} if regulariser == "none" else {"regularisation": LAMBDA}
    config = experiment(tmp_path, "dp-radmm-gradient", regulariser=regulariser, **weight)
    config["task"] = {"loss": "mse"}
    result = trained(task, config)
    run = oracle.Run(task, lambda k: IRREGULAR, STEPS, learning_rate=RATE, equal=True)
    right = recursion(run, recycled=True, slope=regulariser)
    assert_same(result.parameters, right)


@pytest.mark.parametrize("drop", [None, 0.2])
@pytest.mark.parametrize("name", ROWS)
def test_converges_to_the_minimiser_of_a_heterogeneous_quadratic(name, drop, tmp_path):
    """Also where links fail, both ways at once: dual variables go on summing to zero."""
    data = disagreeing(NODES)
    config = experiment(tmp_path, name, learning_rate=0.15, penalty=1.0)
    config["task"] = {"loss": "mse", "model": "linear"}
    config["train"] |= {"steps": 600, "evaluate_every": 600}
    if drop is not None:
        config["faults"] = {"drop": drop}
    if name == "dp-madmm-gradient":
        config["algorithm"]["penalty_growth"] = 1.001
    result = tacit.train(config, nodes=data)
    minimiser = least_squares(data)
    np.testing.assert_allclose(result.parameters.numpy(), np.tile(minimiser, (NODES, 1)), atol=1e-6)


def certified(folder, name, **options):
    task = oracle.problem("logistic", NODES)
    config = experiment(folder, name, clip=1.0, **options)
    config["privacy"] = {"noise_std": 1.0, "delta": 1e-4, "noise_seed": 2}
    return trained(task, config)


def test_recycled_iterations_cost_nothing(tmp_path):
    result = certified(tmp_path, "dp-radmm-gradient")
    fresh = math.ceil(STEPS / 2)
    for node, epsilon in zip(result.plan.nodes, result.epsilon, strict=True):
        right = privacy.epsilon(privacy.Gaussian(node.records * 1.0, fresh), delta=1e-4)
        assert epsilon == pytest.approx(right, rel=1e-5)
    twice = certified(tmp_path, "ddp-admm-gradient")
    assert all(a < b for a, b in zip(result.epsilon, twice.epsilon, strict=True))


def test_who_sees_the_messages_works_out_a_recycled_iteration(tmp_path):
    """From x^0 and x^1 alone, without a record and without the noise: it reveals nothing."""
    task = oracle.problem("logistic", NODES)
    config = experiment(tmp_path, "dp-radmm-gradient", clip=1.0)
    config["privacy"] = {"noise_std": 1.0, "delta": 1e-4, "noise_seed": 2}
    sent = []
    for steps in (1, 2):
        config["train"]["steps"] = steps
        result = trained(task, config)
        sent.append(result.parameters.numpy())
    start, laplacian = np.tile(task.start, (NODES, 1)), np.eye(NODES) - IRREGULAR
    length = 1 / RATE + 2 * ETA
    gradient = (start - sent[0]) * length
    spread = laplacian @ sent[0]
    right = sent[0] - (gradient + 2 * (ETA / 2 * spread) + ETA * spread) / length
    np.testing.assert_allclose(sent[1], right, rtol=1e-9, atol=1e-9)
    assert np.abs(sent[1] - sent[0]).max() > 0.1  # in which there is noise


def test_an_iteration_costs_less_the_higher_its_penalty(tmp_path):
    """Zero-concentrated: sum_k 1 / (2 (s q1^k q2^k)^2), with s that of the first step."""
    growth, decay = 1.3, 0.9
    result = certified(tmp_path, "dp-madmm-gradient", penalty_growth=growth, noise_decay=decay)
    for node, epsilon in zip(result.plan.nodes, result.epsilon, strict=True):
        multipliers = [node.records * (growth * decay) ** k for k in range(STEPS)]
        right = privacy.epsilon(privacy.Gaussian(multipliers), delta=1e-4)
        assert epsilon == pytest.approx(right, rel=1e-5)
    rising = certified(tmp_path, "dp-madmm-gradient", penalty_growth=growth).epsilon
    flat = certified(tmp_path, "dp-madmm-gradient", penalty_growth=1.0).epsilon
    assert all(a < b for a, b in zip(rising, flat, strict=True))


_SIZES = st.floats(1e-38, 1e38)


@given(_SIZES, st.floats(1, 1e38), st.floats(1e-12, 1), st.integers(1, 400))
def test_schedules_are_refused_or_of_usable_size(penalty, growth, decay, steps):
    """Never a number that has overflowed, nor noise that has vanished."""
    options = ModifiedAdmmOptions(penalty=penalty, penalty_growth=growth, noise_decay=decay)
    last, most = steps - 1, math.log(1e38)
    if math.log(penalty) + last * math.log(growth) > most or -last * math.log(decay) > most:
        with pytest.raises(InputError, match=r"algorithm\.(penalty_growth|noise_decay)"):
            schedules(options, 1.0, steps)
        return
    shape = schedules(options, 1.0, steps).noise_shape
    penalties = [weights_of(options, k)[0] for k in range(steps)]
    assert penalties == sorted(penalties)
    assert penalties[-1] <= 1.001e38
    assert all(1e-39 < value < 1e77 for value in shape)
    ratios = [value / eta * penalty for value, eta in zip(shape, penalties, strict=True)]
    assert ratios == pytest.approx([decay**k for k in range(steps)])


@pytest.mark.parametrize("name", ROWS)
def test_a_directed_graph_is_refused(name, tmp_path):
    """A directed ring has doubly stochastic weights, which is not enough."""
    task = oracle.problem("logistic", NODES)
    config = experiment(tmp_path, name)
    ring = [(node, (node + 1) % NODES) for node in range(NODES)]
    config["topology"] = {"graph": graph_file(tmp_path, ring)}
    with pytest.raises(InputError, match="symmetric weights") as caught:
        trained(task, config)
    assert caught.value.where == "topology.graph"
