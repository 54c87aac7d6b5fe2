"""DP-ADMM against a NumPy loop, and where it converges to."""

import federated_oracle as federated
import numpy as np
import pytest
import recursion_oracle as oracle
from recursion_runs import assert_same, disagreeing, least_squares, train

import tacit

RATE, RHO, LAMBDA = 0.3, 1.7, 0.2
STEPS = 6
SUBGRADIENTS = {
    "none": lambda x: 0 * x,
    "l1": lambda x: LAMBDA * np.sign(x),
    "l2": lambda x: LAMBDA * x,
    "elastic-net": lambda x: LAMBDA * (np.sign(x) + x),
}
RATES = {
    "constant": lambda k: RATE,
    "inverse-sqrt": lambda k: RATE / (k + 1) ** 0.5,
    "linear": lambda k: RATE * (1 - k / STEPS),
}


def options(**more):
    return {"learning_rate": RATE, "penalty": RHO, **more}


@pytest.mark.parametrize("batch", ["all", 2])
@pytest.mark.parametrize("clip", [None, 0.4])
@pytest.mark.parametrize("clients", [None, 2])
def test_recursion(clients, clip, batch):
    task = oracle.problem("cross-entropy", 5)
    chosen = options(**({"clip": clip} if clip else {}))
    chosen |= {"clients_per_round": clients} if clients else {}
    result = train(task, "dp-admm", chosen, batch=batch)
    run = federated.rounds_of(result, task, [RATE] * STEPS, clip)
    models, server = federated.admm(run, RHO, SUBGRADIENTS["none"])
    assert_same(result.parameters, models)
    assert_same(result.consensus, server)
    assert np.abs(models - server).max() > 1e-3
    if clients:
        size = 8 * result.plan.parameters
        active = [sum(i in chosen for chosen in run.active) for i in range(5)]
        assert result.bytes_sent == tuple(size * count for count in active)


@pytest.mark.parametrize("regulariser", SUBGRADIENTS)
@pytest.mark.parametrize("schedule", RATES)
def test_regularisers_and_schedules(schedule, regulariser):
    task = oracle.problem("mse", 3)
    weight = {} if regulariser == "none" else {"regularisation": LAMBDA}
    chosen = options(learning_rate_schedule=schedule, regulariser=regulariser, **weight)
    result = train(task, "dp-admm", chosen)
    run = federated.rounds_of(result, task, [RATES[schedule](k) for k in range(STEPS)])
    models, server = federated.admm(run, RHO, SUBGRADIENTS[regulariser])
    assert_same(result.parameters, models)
    assert_same(result.consensus, server)


def test_the_first_round_is_a_gradient_step():
    """With x~_i = x_0 and no dual variable: of length 1 / (rho + 1 / eta)."""
    task = oracle.problem("mse", 1)
    inputs, targets = (values.numpy() for values in task.nodes[0])
    result = train(task, "dp-admm", options(), steps=1)
    gradient = task.gradients(task.start, inputs, targets).mean(axis=0)
    step = gradient / (RHO + 1 / RATE)
    assert_same(result.parameters, (task.start - step)[None])
    # The message is 2 x~ - x_0 then: x~ less the dual variable rho (x_0 - x~) over rho.
    assert_same(result.consensus, task.start - 2 * step)


@pytest.mark.parametrize("clients", [None, 2])
def test_converges_to_the_minimiser_of_a_heterogeneous_quadratic(clients):
    data = disagreeing(3)
    result = tacit.train(
        {
            "task": {"loss": "mse", "model": "linear"},
            "algorithm": {
                "name": "dp-admm",
                "learning_rate": 0.15,
                "penalty": 1.0,
                **({"clients_per_round": clients} if clients else {}),
            },
            "privacy": {"epsilon": "none"},
            "train": {"steps": 400, "batch": "all", "dtype": "float64", "evaluate_every": 400},
        },
        nodes=data,
    )
    minimiser = least_squares(data)
    np.testing.assert_allclose(result.consensus.numpy(), minimiser, atol=1e-6)
    np.testing.assert_allclose(result.parameters.numpy(), np.tile(minimiser, (3, 1)), atol=1e-6)
