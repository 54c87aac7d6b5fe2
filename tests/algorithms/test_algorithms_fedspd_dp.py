"""FedSPD-DP against a NumPy loop, its special cases, and bad input."""

import math

import federated_oracle as federated
import numpy as np
import pytest
import recursion_oracle as oracle
import torch
from recursion_runs import assert_same, train
from torch import nn

import tacit
from tacit.config import load_config
from tacit.errors import BudgetError, InputError
from tacit.privacy.published import FedspdRun, fedspd_step_parameter
from tacit.training.prepare import prepare

Array = oracle.Array


def by_hand(run, options, gamma, prox):
    """The clients' own models and the server's, after all rounds; `gamma` of (round, client)."""
    count, rho, local = len(run.task.nodes), options["penalty"], options["local_steps"]
    start = run.task.start
    last, own, sent = [start] * count, [start] * count, [start] * count
    dual = [np.zeros_like(start)] * count
    server = start
    for k, clients in enumerate(run.active):
        for i in clients:
            divisor = gamma(k, i) + rho
            x = server if options["state"] == "public" else last[i]
            inner = []
            for part in range(local):
                g = run.gradient(i, x, k, part, run.clip)
                x = prox((gamma(k, i) * x + rho * server + dual[i] - g) / divisor, 1 / divisor)
                inner.append(x)
            last[i], own[i] = x, sum(inner) / local
            dual[i] = dual[i] + rho * (server - own[i])
            sent[i] = own[i] - dual[i] / rho
        server = sum(sent) / count
    return np.array(own), np.asarray(server)


@pytest.mark.parametrize("state", ["public", "private"])
@pytest.mark.parametrize("sampling", ["disjoint", "with-replacement"])
@pytest.mark.parametrize(
    ("method", "clients", "clip", "regulariser"),
    [
        ("fixed", 2, 0.4, "none"),
        ("poisson", 2, 0.4, "l1"),
        ("fixed", None, None, "box"),
        ("poisson", 3, None, "elastic-net"),
        ("fixed", 1, 0.4, "l2"),
    ],
)
def test_recursion(state, sampling, method, clients, clip, regulariser):
    task = oracle.problem("logistic", 5)
    options = {
        "penalty": 1.7,
        "inverse_step": 2.5,
        "local_steps": 2,
        "state": state,
        "sampling": sampling,
        "regulariser": regulariser,
        "regularisation": 0.01 if regulariser == "none" else 0.3,
    }
    options |= {"clip": clip} if clip else {}
    options |= {"clients_per_round": clients} if clients else {}
    result = train(task, "fedspd-dp", options, batch=2, sampling=method)
    run = federated.rounds_of(result, task, [], clip)
    assert {len(active) for active in run.active} == {clients or 5}
    own, server = by_hand(run, options, lambda k, i: 2.5, federated.proximal(regulariser, 0.3))
    assert_same(result.parameters, own)
    assert_same(result.consensus, server)
    sizes = np.array([task.start.nbytes * sum(i in a for a in run.active) for i in range(5)])
    assert list(result.bytes_sent) == sizes.tolist()
    other = by_hand(
        run,
        {**options, "state": "private" if state == "public" else "public"},
        lambda k, i: 2.5,
        federated.proximal(regulariser, 0.3),
    )[1]
    assert np.abs(server - other).max() > 1e-6


def test_the_papers_schedule_of_the_step_parameter():
    """Without noise: gamma_t = (2 sqrt(Q p (G^2 + 2 d_lambda^2 + 2 phi^2/b)) / d_X) sqrt(t)."""
    task = oracle.problem("mse", 5)
    options = {
        "penalty": 3.0,
        "inverse_step": "paper",
        "local_steps": 2,
        "state": "private",
        "clip": 0.8,
        "clients_per_round": 2,
        "diameter": 1.5,
        "dual_diameter": 0.7,
        "deviation": 2.0,
    }
    result = train(task, "fedspd-dp", options, batch=2, sampling="fixed")
    run = federated.rounds_of(result, task, [], 0.8)

    def gamma(k, client):
        drift = 0.8**2 + 2 * 0.7**2 + 2 * 2.0**2 / run.divisors[client]
        return float(2 * np.sqrt(2 * 2 / 5 * drift) / 1.5 * np.sqrt(k + 1))

    own, server = by_hand(run, options, gamma, federated.proximal("none", 0.0))
    assert_same(result.parameters, own)
    assert_same(result.consensus, server)


def test_the_schedule_grows_with_the_noise_as_printed():
    """With the published noise gamma_t is the printed one, whichever the round's epsilon."""
    nodes = [(torch.randn(12, 3), torch.sign(torch.randn(12))) for _ in range(4)]
    config = {
        "task": {"loss": "logistic", "model": "logistic"},
        "algorithm": {"name": "fedspd-dp", "inverse_step": "paper", "local_steps": 3, "clip": 0.5}
        | {"clients_per_round": 2, "penalty": 4.0},
        "privacy": {"epsilon_per_round": 0.6, "accounting": "published", "delta": 1e-3}
        | {"relation": "replace-one", "noise_seed": 1},
        "train": {"steps": 5, "batch": 2, "sampling": "fixed"},
    }
    job = prepare(load_config(config, count=4), nodes=nodes)
    node = job.plan.nodes[0]
    run = job.plan.release.claimed_run(node)
    printed = FedspdRun(
        records=12,
        batch=2,
        local_steps=3,
        clients=4,
        chosen=2,
        rounds=5,
        round_epsilon=0.6,
        delta=1e-3,
        penalty=4.0,
        dimension=4,
        gradient_bound=0.5,
        state="public",
    )
    assert run.round_epsilon == pytest.approx(0.6, rel=1e-8)
    assert fedspd_step_parameter(run, 3) == pytest.approx(fedspd_step_parameter(printed, 3))
    from tacit.algorithms.fedspd_dp import inverse_step

    found = inverse_step(
        job.config.algorithm.options,
        2,
        5,
        noise_std=job.plan.release.noise_std(node, 2),
        batch=2.0,
        coordinates=4,
        clients=4,
    )
    assert found == pytest.approx(fedspd_step_parameter(printed, 3), rel=1e-7)


def test_learning_rate_and_its_schedule_are_the_inverse_of_gamma():
    task = oracle.problem("mse", 3)
    options = {"learning_rate": 0.2, "learning_rate_schedule": "inverse-sqrt", "penalty": 2.0}
    result = train(task, "fedspd-dp", options)
    run = federated.rounds_of(result, task, [])
    known = {"penalty": 2.0, "local_steps": 1, "state": "public"}
    nothing = federated.proximal("none", 0.0)
    own, server = by_hand(run, known, lambda k, i: 5.0 * (k + 1) ** 0.5, nothing)
    assert_same(result.parameters, own)
    assert_same(result.consensus, server)


# Special cases


def test_one_client_and_one_step_move_along_the_gradient():
    """From lambda = 0: x = x^0 - g / (gamma + rho), and y = 2 x - x^0."""
    task = oracle.problem("logistic", 1)
    options = {"inverse_step": 3.0, "penalty": 2.0}
    result = train(task, "fedspd-dp", options, steps=1)
    g = task.gradients(task.start, *(values.numpy() for values in task.nodes[0])).mean(axis=0)
    x = task.start - g / 5.0
    assert_same(result.parameters[0], x)
    assert_same(result.consensus, 2 * x - task.start)


def test_without_noise_states_agree_until_a_client_moves_on():
    """In its first round every client starts from x^0, whichever its state."""
    task = oracle.problem("mse", 2)
    options = {"inverse_step": 4.0, "local_steps": 3}
    first, second = (
        train(task, "fedspd-dp", {**options, "state": state}, steps=1)
        for state in ("public", "private")
    )
    assert torch.equal(first.parameters, second.parameters)
    assert torch.equal(first.consensus, second.consensus)
    everyone = train(task, "fedspd-dp", {**options, "clients_per_round": 2}, steps=1)
    assert torch.equal(first.parameters, everyone.parameters)


def test_one_record_nodes_and_mini_batches_that_hold_everything():
    nodes = [(torch.tensor([[1.0, 2.0]]).double(), torch.tensor([[0.5]]).double()) for _ in "ab"]
    module = nn.Linear(2, 1, dtype=torch.float64)
    task = oracle.Problem("mse", module, nodes, oracle.mse_gradients)
    known = {"penalty": 20.0, "local_steps": 2, "state": "private"}
    given = {"local_steps": 2, "state": "private", "inverse_step": 4.0}
    result = train(task, "fedspd-dp", given)
    run = federated.rounds_of(result, task, [])
    own, server = by_hand(run, known, lambda k, i: 4.0, federated.proximal("none", 0.0))
    assert_same(result.parameters, own)
    assert_same(result.consensus, server)


def least_squares(nodes, inputs):
    """Clients that disagree; the Hessian and the linear part of the mean over clients."""
    draw = np.random.default_rng(4)
    module = nn.Linear(inputs, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(module.weight)
    data = [(draw.normal(size=(9, inputs)), draw.normal(size=(9, 1))) for _ in range(nodes)]
    hessian = np.mean([2 * a.T @ a / 9 for a, _ in data], axis=0)
    linear = np.mean([2 * a.T @ b[:, 0] / 9 for a, b in data], axis=0)
    tensors = [(torch.from_numpy(a), torch.from_numpy(b)) for a, b in data]
    return oracle.Problem("mse", module, tensors, oracle.mse_gradients), hessian, linear


@pytest.mark.parametrize("state", ["public", "private"])
@pytest.mark.parametrize("clients", [None, 2])
def test_it_converges_on_a_strongly_convex_quadratic(state, clients):
    task, hessian, linear = least_squares(3, 4)
    options = {"inverse_step": 6.0, "penalty": 2.0, "local_steps": 2, "state": state}
    options |= {"clients_per_round": clients} if clients else {}
    result = train(task, "fedspd-dp", options, steps=250)
    optimum = np.linalg.solve(hessian, linear)
    np.testing.assert_allclose(result.consensus.numpy(), optimum, atol=1e-6)
    np.testing.assert_allclose(result.parameters.numpy(), np.tile(optimum, (3, 1)), atol=1e-6)


def test_l1_of_every_client_gives_a_sparse_solution():
    """The optimality conditions of f + lambda |x|_1, f the clients' mean."""
    task, hessian, linear = least_squares(3, 6)
    lam = float(np.sort(np.abs(linear))[-3])
    options = {"inverse_step": 8.0, "penalty": 3.0, "local_steps": 2}
    options |= {"regulariser": "l1", "regularisation": lam}
    result = train(task, "fedspd-dp", options, steps=400)
    x = result.parameters[0].numpy()
    slopes = linear - hessian @ x
    kept = np.abs(x) > 1e-4
    assert 0 < kept.sum() < 6
    np.testing.assert_allclose(slopes[kept], lam * np.sign(x[kept]), atol=1e-3)
    assert (np.abs(slopes) <= lam + 1e-3).all()
    assert (np.abs(x[~kept]) < 1e-15).all()  # means of iterates that are zero in the end


# Running


def digits(**changes):
    base = {
        "task": {"dataset": "digits", "model": "logistic"},
        "nodes": {"count": 4},
        "algorithm": {"name": "fedspd-dp", "clients_per_round": 3},
        "privacy": {"noise_std": 0.02, "noise_seed": 7, "delta": 1e-3},
        "train": {"steps": 6, "batch": 8, "sampling": "fixed"},
    }
    base["privacy"]["relation"] = "replace-one"
    return {name: {**section, **changes.get(name, {})} for name, section in base.items()}


def test_it_learns_the_digits_under_a_budget():
    sections = digits(privacy={"epsilon": 8.0}, train={"steps": 40, "batch": "all"})
    del sections["privacy"]["noise_std"]
    result = tacit.train(sections)
    assert result.test_accuracy is not None
    assert result.test_accuracy["consensus"] > 0.7
    assert max(value or 0.0 for value in result.epsilon) <= 8.0


def test_a_smoothness_is_made_true_of_every_record():
    nodes = [(torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([1.0, -1.0]))]
    sections = digits(
        task={"dataset": "given", "loss": "logistic"},
        algorithm={"smoothness": 6.4, "clients_per_round": 1},
        nodes={"count": 1},
        train={"batch": "all"},
    )
    job = prepare(load_config(sections, count=1), nodes=nodes, test=nodes[0])
    bound = math.sqrt(4 * 6.4 - 1)
    assert float(job.train.inputs[0].norm()) == pytest.approx(bound, rel=1e-6)
    assert float(job.train.inputs[0].double().norm()) <= bound
    assert job.train.inputs[1].tolist() == [0.0, 1.0]
    assert job.test is not None
    assert torch.equal(job.test.inputs, job.train.inputs)
    assert "longer than 4.95984 in the l2 norm are scaled down" in " ".join(job.plan.notes)
    assert not job.plan.warnings[1:]


@pytest.mark.parametrize(
    ("smoothness", "bound", "words"),
    [
        (6.4, 5.0, r"at least \(B\^2 \+ 1\) / 4 = 6\.5 for task\.input_bound"),
        (0.25, None, "must be above 1/4"),
        (6.5, 5.0, None),
    ],
)
def test_a_smoothness_fits_the_declared_bound(smoothness, bound, words):
    """Whatever the records are: these two are far from the bound, and beyond it."""
    for scale in (1e-3, 1e6):
        nodes = [(scale * torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([1.0, -1.0]))]
        sections = digits(
            task={"dataset": "given", "loss": "logistic", "input_bound": bound},
            algorithm={"smoothness": smoothness, "clients_per_round": 1},
            nodes={"count": 1},
            train={"batch": "all"},
        )
        if bound is None:
            del sections["task"]["input_bound"]
        if words is None:
            assert not prepare(load_config(sections, count=1), nodes=nodes).plan.warnings[1:]
            continue
        with pytest.raises(InputError, match=words):
            prepare(load_config(sections, count=1), nodes=nodes)


def test_warnings_say_what_is_not_covered():
    sections = digits(task={"model": "mlp"}, algorithm={"state": "private", "inverse_step": 100.0})
    warnings = " ".join(prepare(load_config(sections)).plan.warnings)
    assert "not convex" in warnings
    assert "algorithm.smoothness" in warnings
    del sections["privacy"]["noise_std"]
    sections["privacy"]["epsilon"] = 1.0
    sections["train"]["steps"] = 60
    sections["task"]["model"] = "logistic"
    with pytest.raises(BudgetError):
        prepare(load_config(sections))
