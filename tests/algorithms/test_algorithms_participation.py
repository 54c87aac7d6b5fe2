"""The same clients in every round: who they are, what the server averages, and what each spends."""

import federated_oracle as federated
import numpy as np
import pytest
import recursion_oracle as oracle
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from recursion_runs import assert_same, pld, train

import tacit
from tacit.config import Config
from tacit.errors import InputError
from tacit.training.prepare import prepare

METHODS = ("dp-sgd", "dp-fedavg", "dp-admm", "fedspd-dp", "fedavg")
SAME = {"clients_per_round": 2, "participation": "same"}
STEPS, RATE, RHO = 6, 0.3, 5.0


@pytest.mark.parametrize("name", METHODS)
def test_the_clients_are_the_same_and_no_other_sends(name):
    task = oracle.problem("mse", 5)
    result = train(task, name, SAME, batch=2)
    active = federated.rounds_of(result, task, [RATE] * STEPS).active
    assert len(active) == STEPS
    assert len(active[0]) == 2
    assert active == [active[0]] * STEPS
    sent = {i for i, size in enumerate(result.bytes_sent) if size}
    assert sent == set(active[0])


def test_other_seeds_choose_others_and_drawn_ones_change():
    task = oracle.problem("mse", 5)
    chosen = {
        tuple(
            federated.rounds_of(
                train(task, "dp-sgd", SAME, batch=2, seed=seed), task, [RATE] * STEPS
            ).active[0]
        )
        for seed in range(8)
    }
    assert len(chosen) > 3
    drawn = train(task, "dp-sgd", {**SAME, "participation": "drawn"}, batch=2)
    active = federated.rounds_of(drawn, task, [RATE] * STEPS).active
    assert len({tuple(some) for some in active}) > 1


def test_dp_sgd_recursion():
    task = oracle.problem("cross-entropy", 5)
    options = {"learning_rate": RATE, "clip": 0.4, **SAME}
    result = train(task, "dp-sgd", options, batch=2)
    run = federated.rounds_of(result, task, [RATE] * STEPS, 0.4)
    assert_same(result.consensus, federated.dp_sgd(run, federated.proximal("none", 0.0)))


def test_dp_admm_averages_its_clients_alone():
    """It is DP-ADMM on the chosen clients, as if there were no others."""
    task = oracle.problem("mse", 5)
    options = {"learning_rate": RATE, "penalty": RHO}
    result = train(task, "dp-admm", {**options, **SAME})
    active = federated.rounds_of(result, task, [RATE] * STEPS).active[0]
    alone = oracle.Problem(task.loss, task.module, [task.nodes[i] for i in active], task.gradients)
    whole = train(alone, "dp-admm", options)
    assert_same(result.consensus, whole.consensus.numpy())
    assert_same(result.parameters[active], whole.parameters.numpy())


def test_fedspd_averages_its_clients_alone():
    task = oracle.problem("logistic", 5)
    options = {"penalty": RHO, "inverse_step": 2.0, "local_steps": 2, "regulariser": "l1"}
    result = train(task, "fedspd-dp", {**options, **SAME})
    active = federated.rounds_of(result, task, [RATE] * STEPS).active[0]
    alone = oracle.Problem(task.loss, task.module, [task.nodes[i] for i in active], task.gradients)
    whole = train(alone, "fedspd-dp", options)
    assert_same(result.consensus, whole.consensus.numpy())


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


@pytest.mark.parametrize("name", METHODS)
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
