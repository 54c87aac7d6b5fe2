"""DP-DDA against a NumPy recursion, with partial activity and regularisers."""

import math

import numpy as np
import pytest
import recursion_oracle as oracle
from recursion_runs import IRREGULAR, RATE, activity_of, assert_same, on_graph, trained

from tacit import privacy

STEPS = 9


def shrunk(x, by):
    return np.sign(x) * np.maximum(np.abs(x) - by, 0)


PROX = {
    "none": lambda x, by: x,
    "l1": shrunk,
    "l2": lambda x, by: x / (1 + by),
    "elastic-net": lambda x, by: shrunk(x, by) / (1 + by),
}


def recursion(task, matrix, active, p, name, weight):
    """x `[nodes, d]` at the end, without noise."""
    count = len(task.nodes)
    x0 = np.tile(task.start, (count, 1))
    x, z = x0.copy(), np.zeros_like(x0)
    for t in range(STEPS):
        following = np.zeros_like(z)
        for i in range(count):
            for j in range(count):
                following[i] += matrix[i, j] * z[j]
            if active[t, i]:
                inputs, targets = (values.numpy() for values in task.nodes[i])
                mean = task.gradients(x[i], inputs, targets).mean(axis=0)
                following[i] += oracle.weight(task, i) * mean
        z = following
        a = math.sqrt(t + 1) / RATE
        x = PROX[name](x0 - z / a, weight * p * (t + 1) / a)
    return x


def experiment(folder, **options):
    return on_graph(folder, "dp-dda", steps=STEPS, **options)


@pytest.mark.parametrize("p", [1.0, 0.6])
@pytest.mark.parametrize("name", PROX)
def test_recursion(name, p, tmp_path):
    task = oracle.problem("logistic", 5)
    weight = 0.0 if name == "none" else 0.05
    given = {} if name == "none" else {"regularisation": weight}
    config = experiment(tmp_path, activation=p, regulariser=name, **given)
    result = trained(task, config)
    active = activity_of(result) if p < 1 else np.ones((STEPS, 5), dtype=bool)
    assert_same(result.parameters, recursion(task, IRREGULAR, active, p, name, weight))


def test_l1_makes_models_sparse(tmp_path):
    task = oracle.problem("logistic", 5)
    for weight in task.module.parameters():
        weight.data.zero_()
    config = experiment(tmp_path, regulariser="l1", regularisation=0.3)
    found = trained(task, config).parameters
    assert bool((found == 0).any())


def test_only_active_steps_cost(tmp_path):
    task = oracle.problem("logistic", 5)
    config = experiment(tmp_path, activation=0.5)
    config["privacy"] = {"noise_std": 1.0, "delta": 1e-4, "noise_seed": 2}
    result = trained(task, config)
    assert result.plan.release.activity is not None
    for node, epsilon in zip(result.plan.nodes, result.epsilon, strict=True):
        count = int(result.plan.release.activity.active[:, node.node].sum())
        right = privacy.epsilon(privacy.Gaussian(node.records * 1.0, count), delta=1e-4)
        assert epsilon == pytest.approx(right, rel=1e-5)
