"""DP-SGD, FedAvg and DP-FedAvg against NumPy loops, their special cases, and bad input."""

from fractions import Fraction

import federated_oracle as federated
import numpy as np
import pytest
import recursion_oracle as oracle
import torch
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from recursion_runs import assert_same, disagreeing, pld, train

import tacit
from tacit.algorithms.federated import clipped_rows
from tacit.config import Config
from tacit.errors import InputError
from tacit.training.prepare import prepare

RATE = 0.3
STEPS = 6
METHODS = ("dp-sgd", "fedavg", "dp-fedavg")
NOTHING = federated.proximal("none", 0.0)


def constant_rates(steps=STEPS):
    return [RATE] * steps


@pytest.mark.parametrize(
    ("clients", "clip", "regulariser"),
    [
        (None, None, "none"),
        (2, None, "l1"),
        (None, 0.4, "l2"),
        (2, 0.4, "elastic-net"),
        (2, 0.4, "box"),
        (2, 0.4, "none"),
    ],
)
def test_dp_sgd_recursion(clients, clip, regulariser):
    task = oracle.problem("cross-entropy", 5)
    options = {"learning_rate": RATE, "regulariser": regulariser}
    options |= {} if regulariser == "none" else {"regularisation": 0.2}
    options |= {"clip": clip} if clip else {}
    options |= {"clients_per_round": clients} if clients else {}
    result = train(task, "dp-sgd", options, batch=2)
    run = federated.rounds_of(result, task, constant_rates(), clip)
    assert {len(active) for active in run.active} == {clients or 5}
    right = federated.dp_sgd(run, federated.proximal(regulariser, 0.2))
    assert_same(result.consensus, right)
    assert_same(result.parameters, np.tile(right, (5, 1)))


@pytest.mark.parametrize("clients", [None, 3])
@pytest.mark.parametrize("name", METHODS)
def test_clients_without_records_get_the_model_and_send_nothing(name, clients):
    task = oracle.problem("logistic", 6).without(0, 4)
    options = {"learning_rate": RATE}
    options |= {"clients_per_round": clients} if clients else {}
    result = train(task, name, options, batch=1)
    run = federated.rounds_of(result, task, constant_rates())
    assert {client for active in run.active for client in active} == {1, 2, 3, 5}
    right = (
        federated.dp_sgd(run, NOTHING) if name == "dp-sgd" else federated.fedavg(run, 1, NOTHING)
    )
    np.testing.assert_allclose(result.consensus.numpy(), right, rtol=1e-12, atol=1e-12)
    assert torch.equal(result.parameters, result.consensus.expand(6, -1))


@pytest.mark.parametrize("method", ["poisson", "fixed"])
@pytest.mark.parametrize("sampling", ["disjoint", "with-replacement"])
@pytest.mark.parametrize("clients", [None, 3])
@pytest.mark.parametrize(("name", "clip"), [("fedavg", None), ("dp-fedavg", 0.15)])
def test_fedavg_recursion(name, clip, clients, sampling, method):
    task = oracle.problem("logistic", 5)
    options = {"learning_rate": RATE, "local_steps": 2, "sampling": sampling}
    options |= {"clip": clip} if clip else {}
    options |= {"clients_per_round": clients} if clients else {}
    result = train(task, name, options, batch=1, sampling=method)
    run = federated.rounds_of(result, task, constant_rates(), clip)
    assert_same(result.consensus, federated.fedavg(run, 2, NOTHING))
    both = [set(run.batches(k, 0, 4)) & set(run.batches(k, 1, 4)) for k in range(STEPS)]
    assert not any(both) if sampling == "disjoint" else run.divisors == [1.0] * 5
    if clip:
        free = federated.fedavg(federated.rounds_of(result, task, constant_rates()), 2, NOTHING)
        assert np.abs(result.consensus.numpy() - free).max() > 1e-2


@pytest.mark.parametrize("regulariser", ["l1", "l2", "elastic-net", "box"])
@pytest.mark.parametrize("name", ["fedavg", "dp-fedavg"])
def test_proximal_local_steps_and_schedules(name, regulariser):
    task = oracle.problem("mse", 3)
    options = {
        "learning_rate": RATE,
        "learning_rate_schedule": "inverse-sqrt",
        "local_steps": 3,
        "regulariser": regulariser,
        "regularisation": 0.3,
        "clients_per_round": 2,
    }
    result = train(task, name, options)
    rates = [RATE / (k + 1) ** 0.5 for k in range(STEPS)]
    run = federated.rounds_of(result, task, rates)
    right = federated.fedavg(run, 3, federated.proximal(regulariser, 0.3))
    assert_same(result.consensus, right)


# Special cases


def descent(task, steps):
    """Gradient descent on the mean over clients of their mean losses."""
    x = task.start
    for _ in range(steps):
        x = x - RATE * np.concatenate(
            [task.gradients(x, a.numpy(), b.numpy()) for a, b in task.nodes]
        ).mean(axis=0)
    return x


@pytest.mark.parametrize("name", METHODS)
def test_one_whole_local_step_is_central_gradient_descent(name):
    task = oracle.problem("cross-entropy", 4)
    options = {"learning_rate": RATE} | ({} if name == "dp-sgd" else {"local_steps": 1})
    assert_same(train(task, name, options).consensus, descent(task, STEPS))


@pytest.mark.parametrize("name", ["fedavg", "dp-fedavg"])
def test_a_single_client_goes_on_alone(name):
    task = oracle.problem("logistic", 1)
    result = train(task, name, {"learning_rate": RATE, "local_steps": 4})
    assert_same(result.consensus, descent(task, 4 * STEPS))


@pytest.mark.parametrize("name", METHODS)
def test_all_clients_a_round_are_no_choice(name):
    task = oracle.problem("mse", 4)
    chosen, all_of_them = (
        train(task, name, {"learning_rate": RATE, **more}, batch=1)
        for more in ({"clients_per_round": 4}, {})
    )
    assert torch.equal(chosen.parameters, all_of_them.parameters)


@pytest.mark.parametrize("name", METHODS)
def test_only_active_clients_send(name):
    task = oracle.problem("mse", 5)
    result = train(task, name, {"clients_per_round": 2}, batch=2)
    activity = result.plan.release.activity
    assert activity is not None
    size = 8 * result.plan.parameters
    assert result.bytes_sent == tuple(size * int(count) for count in activity.active.sum(axis=0))
    assert sum(result.bytes_sent) == 2 * STEPS * size


def test_proximal_dp_sgd_reaches_the_lasso():
    """The optimality conditions of the mean squared error plus lambda |x|_1."""
    data, lam = disagreeing(4), 0.38
    result = tacit.train(
        {
            "task": {"loss": "mse", "model": "linear"},
            "algorithm": {
                "name": "dp-sgd",
                "learning_rate": 0.2,
                "regulariser": "l1",
                "regularisation": lam,
            },
            "privacy": {"epsilon": "none"},
            "train": {"steps": 200, "batch": "all", "dtype": "float64", "evaluate_every": 200},
        },
        nodes=data,
    )
    x = result.consensus.numpy()
    features = np.concatenate([np.column_stack([a, np.ones(len(a))]) for a, _ in data])
    targets = np.concatenate([b[:, 0] for _, b in data])
    gradient = 2 * features.T @ (features @ x - targets) / len(targets)
    zero = x == 0
    assert 0 < zero.sum() < len(x)
    assert np.abs(gradient[zero]).max() <= lam
    np.testing.assert_allclose(gradient[~zero], -lam * np.sign(x[~zero]), atol=1e-9)


# Bad input


def refused(name, options, model=None, **more):
    task = oracle.problem("mse", 3)
    with pytest.raises(InputError) as caught:
        train(task, name, options, **more)
    return str(caught.value)


def test_disjoint_mini_batches_need_records():
    options = {"local_steps": 4, "sampling": "disjoint"}
    assert "node 0 has 2" in refused("dp-fedavg", options, batch=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("bound", "size"), [(1e-18, 1e26), (1e-3, 1e37), (1.0, 1e30), (1e-18, 1.0)]
)
def test_a_clipped_row_keeps_its_bound_however_small_its_factor(bound, size, dtype):
    draws = torch.Generator().manual_seed(3)
    rows = (torch.randn(20, 50, generator=draws, dtype=torch.float64) * size).to(dtype)
    kept = clipped_rows(rows, bound)
    for row in kept.double().tolist():
        assert sum(Fraction(value) ** 2 for value in row) <= Fraction(bound) ** 2


# The same clients in every round: who they are, what the server averages, and what each spends.


ALWAYS_SAME = ("dp-sgd", "dp-fedavg", "dp-admm", "fedspd-dp", "fedavg")
SAME = {"clients_per_round": 2, "participation": "same"}
ROUNDS, SLOPE, RHO = 6, 0.3, 5.0


@pytest.mark.parametrize("name", ALWAYS_SAME)
def test_the_clients_are_the_same_and_no_other_sends(name):
    task = oracle.problem("mse", 5)
    result = train(task, name, SAME, batch=2)
    active = federated.rounds_of(result, task, [SLOPE] * ROUNDS).active
    assert len(active) == ROUNDS
    assert len(active[0]) == 2
    assert active == [active[0]] * ROUNDS
    sent = {i for i, size in enumerate(result.bytes_sent) if size}
    assert sent == set(active[0])


def test_other_seeds_choose_others_and_drawn_ones_change():
    task = oracle.problem("mse", 5)
    chosen = {
        tuple(
            federated.rounds_of(
                train(task, "dp-sgd", SAME, batch=2, seed=seed), task, [SLOPE] * ROUNDS
            ).active[0]
        )
        for seed in range(8)
    }
    assert len(chosen) > 3
    drawn = train(task, "dp-sgd", {**SAME, "participation": "drawn"}, batch=2)
    active = federated.rounds_of(drawn, task, [SLOPE] * ROUNDS).active
    assert len({tuple(some) for some in active}) > 1


def test_dp_sgd_with_the_same_clients_is_a_recursion_of_them():
    task = oracle.problem("cross-entropy", 5)
    options = {"learning_rate": SLOPE, "clip": 0.4, **SAME}
    result = train(task, "dp-sgd", options, batch=2)
    run = federated.rounds_of(result, task, [SLOPE] * ROUNDS, 0.4)
    assert_same(result.consensus, federated.dp_sgd(run, federated.proximal("none", 0.0)))


def test_dp_admm_averages_its_clients_alone():
    """It is DP-ADMM on the chosen clients, as if there were no others."""
    task = oracle.problem("mse", 5)
    options = {"learning_rate": SLOPE, "penalty": RHO}
    result = train(task, "dp-admm", {**options, **SAME})
    active = federated.rounds_of(result, task, [SLOPE] * ROUNDS).active[0]
    alone = oracle.Problem(task.loss, task.module, [task.nodes[i] for i in active], task.gradients)
    whole = train(alone, "dp-admm", options)
    assert_same(result.consensus, whole.consensus.numpy())
    assert_same(result.parameters[active], whole.parameters.numpy())


def test_fedspd_averages_its_clients_alone():
    task = oracle.problem("logistic", 5)
    options = {"penalty": RHO, "inverse_step": 2.0, "local_steps": 2, "regulariser": "l1"}
    result = train(task, "fedspd-dp", {**options, **SAME})
    active = federated.rounds_of(result, task, [SLOPE] * ROUNDS).active[0]
    alone = oracle.Problem(task.loss, task.module, [task.nodes[i] for i in active], task.gradients)
    whole = train(alone, "fedspd-dp", options)
    assert_same(result.consensus, whole.consensus.numpy())


@pytest.mark.slow
def test_a_client_pays_for_all_rounds_or_for_none():
    sections = {
        "task": {"dataset": "digits", "model": "logistic"},
        "nodes": {"count": 6},
        "algorithm": {"name": "dp-sgd", **SAME},
        "privacy": {"noise_std": 0.05, "delta": 1e-4},
        "train": {"steps": 30, "batch": 24},
    }
    plan = prepare(Config.model_validate(sections)).plan
    activity = plan.release.activity
    assert activity is not None
    for node in plan.nodes:
        if not activity.active[0, node.node]:
            assert plan.release.epsilon(node, [(0, 30)]) == 0.0
            continue
        # No amplification by the choice of clients: by that of records alone.
        event = PoissonSampledDpEvent(node.rate, GaussianDpEvent(0.05 * node.expected_batch))
        assert node.epsilon == pytest.approx(pld((event, 30), grid=1e-4), rel=5e-3)


@pytest.mark.parametrize("name", ALWAYS_SAME)
def test_without_a_number_of_clients_it_is_refused(name):
    with pytest.raises(InputError, match="clients_per_round") as caught:
        Config.model_validate({"algorithm": {"name": name, "participation": "same"}})
    assert caught.value.where == "algorithm.participation"


def test_all_clients_are_everyone():
    task = oracle.problem("mse", 4)
    options = {"clients_per_round": 4, "participation": "same"}
    result = train(task, "dp-sgd", options)
    assert result.plan.release.activity is None
    assert np.all(np.array(result.bytes_sent) > 0)
    assert isinstance(result, tacit.Result)
