"""What every algorithm of the table must do: a new row is tested by being in it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from battery_experiments import DELTA, PRIVATE, experiment, schedule_options
from sklearn.datasets import load_digits
from torch import nn

import tacit
from tacit.algorithms import ALGORITHMS
from tacit.config import load_config
from tacit.prepare import prepare
from tacit.run import execute

PUSH_SUM = [name for name, row in ALGORITHMS.items() if row.weights == "column-stochastic"]
SIZES = {"logistic": 64 * 10 + 10, "mlp": 64 * 128 + 128 + 128 * 10 + 10}


@functools.cache
def all_digits() -> tuple[torch.Tensor, torch.Tensor]:
    bunch = load_digits()
    images = torch.from_numpy(bunch.images).float().unsqueeze(1) / 16
    return images, torch.from_numpy(bunch.target).long()


def digits(nodes: int, records: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Images `[records, 1, 8, 8]` and labels; node 0 sees a nine, so that all classes are known."""
    images, labels = all_digits()
    first = int((labels == 9).nonzero()[0])
    parts = [slice(first + node * records, first + (node + 1) * records) for node in range(nodes)]
    return [(images[part], labels[part]) for part in parts]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", ["logistic", "mlp", "cnn"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_trains_each_model_in_each_dtype(name: str, model: str, dtype: str) -> None:
    config = experiment(name, model=model, dtype=dtype, options=schedule_options(name, 3))
    job = prepare(load_config(config, count=4), nodes=digits(4, 5))
    result = execute(job)
    assert result.parameters.dtype == getattr(torch, dtype)
    assert bool(torch.isfinite(result.parameters).all())
    size = sum(weight.numel() for weight in result.model(0).parameters())
    assert result.parameters.shape == (4, size)
    assert size == SIZES.get(model, size)
    assert result.steps == 3
    start = job.model.start(4, job.dtype, job.device)
    assert bool((result.parameters - start).norm(dim=1).gt(1e-3).all())


@pytest.mark.parametrize("name", PRIVATE)
def test_single_and_double_precision_agree(name: str) -> None:
    single, double = (
        tacit.train(experiment(name, dtype=dtype), nodes=digits(4, 5)).parameters
        for dtype in ("float32", "float64")
    )
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch", ["all", 2], ids=["whole", "sampled"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_noise_seed_repeats_the_run(name: str, batch: int | str) -> None:
    privacy = {"noise_std": 0.2, "accounting": "none", "noise_seed": 5}
    config = experiment(name, batch=batch, privacy=privacy)
    first, second = (tacit.train(config, nodes=digits(4, 5)) for _ in range(2))
    assert torch.equal(first.parameters, second.parameters)
    assert not first.private


@pytest.mark.parametrize("name", PRIVATE)
def test_seeds_and_secret_keys_give_different_noise(name: str) -> None:
    common = {"epsilon": 3.0, "delta": DELTA}
    settings = [{**common, "noise_seed": 1}, {**common, "noise_seed": 2}, common, common]
    runs = [tacit.train(experiment(name, privacy=each), nodes=digits(3, 5)) for each in settings]
    for one, other in itertools.combinations(runs, 2):
        assert bool((one.parameters != other.parameters).any(1).all())
    assert [run.private for run in runs] == [False, False, True, True]


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("records", [1, 4])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_few_nodes_and_few_records(name: str, nodes: int, records: int) -> None:
    result = tacit.train(experiment(name, steps=4, batch=1), nodes=digits(nodes, records))
    assert result.parameters.shape == (nodes, SIZES["logistic"])
    assert bool(torch.isfinite(result.parameters).all())
    assert all(node.rate == 1 / records for node in result.plan.nodes)
    assert min(result.bytes_sent) > 0 if nodes > 1 else result.bytes_sent == (0,)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_step_of_one_node_is_one_gradient_step(name: str) -> None:
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(6, 3, generator=draw, dtype=torch.float64)
    targets = torch.randn(6, 1, generator=draw, dtype=torch.float64)
    module = nn.Linear(3, 1, dtype=torch.float64)
    loss = (module(inputs) - targets).square().mean()
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    start = torch.cat([weight.detach().reshape(-1) for weight in module.parameters()])
    right = start - 0.1 * torch.cat([gradient.reshape(-1) for gradient in gradients])
    config = experiment(name, loss="mse", steps=1, privacy={"epsilon": "none"})
    found = tacit.train(config, model=module, nodes=[(inputs, targets)]).parameters
    torch.testing.assert_close(found, right[None], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_sampled_batches_with_noise(name: str, sampling: str) -> None:
    config = experiment(
        name,
        batch=2,
        sampling=sampling,
        options=schedule_options(name, 3),
        privacy={"noise_std": 0.1, "accounting": "none"},
    )
    result = tacit.train(config, nodes=digits(4, 6))
    assert bool(torch.isfinite(result.parameters).all())
    assert {node.rate for node in result.plan.nodes} == {2 / 6}
    assert result.epsilon == (None,) * 4


@pytest.mark.parametrize("name", PRIVATE)
def test_epsilon_falls_with_noise_and_rises_with_steps(name: str) -> None:
    def epsilon(noise_std: float, steps: int) -> float:
        privacy = {"noise_std": noise_std, "delta": DELTA}
        result = tacit.train(experiment(name, steps=steps, privacy=privacy), nodes=digits(2, 4))
        first, second = result.epsilon
        assert first == second
        assert first is not None
        return first

    assert epsilon(1.0, 3) > 1.5 * epsilon(2.0, 3) > 0
    assert epsilon(1.0, 6) > 1.2 * epsilon(1.0, 3)


# Special cases


@pytest.mark.parametrize("batch", ["all", 2], ids=["whole", "sampled"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("const-d2p", {}),
        ("dyn-c", {"clip_decay": 1.0}),
        ("dyn-mu", {"budget_growth": 1.0}),
        ("dyn-d2p", {"clip_decay": 1.0, "budget_growth": 1.0}),
        ("dyn-general", {}),
        ("dyn-general", {"clip_schedule": [0.7] * 4, "noise_schedule": [2.5] * 4}),
    ],
)
def test_without_schedules_all_are_privsgp(
    name: str, options: dict[str, Any], batch: int | str
) -> None:
    privacy = {"noise_std": 0.3, "noise_seed": 8, "delta": DELTA}
    if batch != "all":
        privacy["accounting"] = "none"

    def run(name: str, options: Mapping[str, Any]) -> tacit.Result:
        config = experiment(
            name, steps=4, batch=batch, options={"clip": 0.7, **options}, privacy=privacy
        )
        return tacit.train(config, nodes=digits(5, 4))

    found, right = run(name, options), run("privsgp", {})
    torch.testing.assert_close(found.parameters, right.parameters, rtol=1e-11, atol=1e-13)
    if batch == "all":
        assert found.epsilon == pytest.approx(right.epsilon, rel=1e-9)


@pytest.mark.parametrize("name", ["const-d2p", "dyn-d2p"])
def test_a_budget_buys_the_same_noise_without_schedules(name: str) -> None:
    factors = {"clip_decay": 1.0, "budget_growth": 1.0} if name == "dyn-d2p" else {}
    found, right = (
        tacit.train(
            experiment(each, steps=4, options={"clip": 0.7, **options}), nodes=digits(3, 4)
        ).parameters
        for each, options in ((name, factors), ("privsgp", {}))
    )
    assert torch.equal(found, right)


@pytest.mark.parametrize(("noisy", "plain"), [("privsgp", "sgp"), ("dp2-sgd", "d-psgd")])
def test_without_noise_it_is_the_non_private_method(noisy: str, plain: str) -> None:
    found, right = (
        tacit.train(experiment(name, privacy={"epsilon": "none"}), nodes=digits(4, 5)).parameters
        for name in (noisy, plain)
    )
    assert torch.equal(found, right)


def quadratic(nodes: int, *, shared: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Records of a linear regression; `shared` inputs give every node the same curvature."""
    draw = torch.Generator().manual_seed(4)
    made = []
    inputs = torch.randn(8, 3, generator=draw, dtype=torch.float64)
    for _ in range(nodes):
        if not shared:
            inputs = torch.randn(8, 3, generator=draw, dtype=torch.float64)
        made.append((inputs, torch.randn(8, 1, generator=draw, dtype=torch.float64)))
    return made


def gradient_descent(
    data: list[tuple[torch.Tensor, torch.Tensor]], steps: int, learning_rate: float
) -> torch.Tensor:
    """Weight and bias `[4]` after steps on the mean squared error of all records, from zero."""
    inputs = torch.cat([torch.column_stack([x, torch.ones(len(x))]) for x, _ in data])
    targets = torch.cat([y for _, y in data])[:, 0]
    point = torch.zeros(inputs.shape[1], dtype=torch.float64)
    for _ in range(steps):
        point = point - learning_rate * 2 * inputs.T @ (inputs @ point - targets) / len(inputs)
    return point


@pytest.mark.parametrize("name", PUSH_SUM)
def test_on_a_complete_graph_push_sum_is_central_gradient_descent(name: str) -> None:
    data = quadratic(4, shared=False)
    config = experiment(
        name, loss="mse", model="linear", steps=9, graph="complete", privacy={"epsilon": "none"}
    )
    found = tacit.train(config, nodes=data).parameters
    right = gradient_descent(data, 9, 0.1).expand(4, -1)
    torch.testing.assert_close(found, right, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_under_equal_curvature_the_mean_model_is_central_gradient_descent(name: str) -> None:
    data = quadratic(4, shared=True)
    config = experiment(
        name, loss="mse", model="linear", steps=9, graph="ring", privacy={"epsilon": "none"}
    )
    result = tacit.train(config, nodes=data)
    right = gradient_descent(data, 9, 0.1)
    torch.testing.assert_close(result.consensus, right, rtol=1e-11, atol=1e-12)
    assert bool((result.parameters - right).norm(dim=1).gt(1e-4).all())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_converges_on_a_strongly_convex_quadratic(name: str) -> None:
    optimum = torch.tensor([0.5, -1.0, 2.0, 0.3], dtype=torch.float64)
    data = [(x, x @ optimum[:3, None] + optimum[3]) for x, _ in quadratic(5, shared=False)]
    config = experiment(name, loss="mse", model="linear", steps=150, privacy={"epsilon": "none"})
    found = tacit.train(config, nodes=data).parameters
    assert float((found - optimum).norm(dim=1).max()) < float(optimum.norm()) / 100
