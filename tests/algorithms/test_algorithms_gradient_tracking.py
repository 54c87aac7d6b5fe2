"""Private gradient tracking against a NumPy loop, over graphs that change and weigh unevenly."""

import numpy as np
import pytest
import recursion_oracle as oracle
import recursion_runs
from recursion_runs import RATE, assert_same

STEPS = 7
VARYING = [[(0, 1), (0, 2), (3, 4)], [(1, 3), (2, 0), (4, 0), (4, 1)], [(1, 0), (2, 3), (2, 4)]]
GRAPHS = {
    "exponential": lambda k: oracle.exponential(5, k),
    "varying": lambda k: oracle.splitting(5, VARYING[k % 3]),
}


def push_diging(run, momentum, final_mixing):
    """Push-DIGing with a heavy ball: u over v at the end, and the sums of trackers, gradients."""
    count = len(run.task.nodes)
    u, v = np.tile(run.task.start, (count, 1)), np.ones(count)
    m, y, g, sums = np.zeros_like(u), np.zeros_like(u), np.zeros_like(u), []
    for k in range(run.steps + final_mixing):
        matrix = run.matrix(k)
        if k < run.steps:
            new = np.array([run.mean_gradient(i, u[i] / v[i], k) for i in range(count)])
            y, g = y + new - g, new
            m = momentum * m + y
            u = u - run.learning_rate * m
            sums.append((y.sum(axis=0), g.sum(axis=0)))
            y = matrix @ y
        u, v = matrix @ u, matrix @ v
    return u / v[:, None], sums


@pytest.mark.parametrize(("momentum", "final_mixing"), [(0.0, 0), (0.6, 2)])
@pytest.mark.parametrize("clip", [None, 0.4], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_recursion(graph, clip, momentum, final_mixing, tmp_path):
    task, topology = oracle.problem("logistic", 5), {"graph": graph}
    if graph == "varying":
        path = tmp_path / "graph.txt"
        path.write_text("\n\n".join("\n".join(f"{a} {b}" for a, b in edges) for edges in VARYING))
        topology = {"graph": f"file:{path}"}
    options = {"learning_rate": RATE, "momentum": momentum, "final_mixing": final_mixing}
    options |= {} if clip is None else {"clip": clip}
    found = recursion_runs.train(
        task, "private-gradient-tracking", options, topology=topology, steps=STEPS
    )
    run = oracle.Run(task, GRAPHS[graph], STEPS, RATE, None if clip is None else [clip] * STEPS)
    right, sums = push_diging(run, momentum, final_mixing)
    assert_same(found.parameters, right)
    for tracked, gradients in sums:
        np.testing.assert_allclose(tracked, gradients, atol=1e-12)
    untracked = oracle.de_biased(*oracle.push_sum(run, momentum, final_mixing))
    assert np.abs(right - untracked).max() > 1e-3


def test_nodes_of_different_minimisers_agree_at_a_constant_rate():
    """Without noise gossip along own gradients ends apart, and tracking in the common minimiser."""
    data = recursion_runs.disagreeing(4)
    best = recursion_runs.least_squares(data)
    module = oracle.problem("mse", 4).module.__class__(3, 1).double()
    away = {}
    for name in ("private-gradient-tracking", "privsgp"):
        config = recursion_runs.plain("mse", name, {"learning_rate": 0.05}, steps=600)
        found = recursion_runs.tacit.train(config, model=module, nodes=data)
        away[name] = float(np.abs(found.parameters.numpy() - best).max())
    assert away["private-gradient-tracking"] < 1e-6 < 1e-2 < away["privsgp"]
