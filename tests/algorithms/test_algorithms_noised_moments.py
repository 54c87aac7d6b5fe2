"""Noised moments against plain NumPy: what is summed, what is averaged, what is solved from it."""

import math

import numpy as np
import pytest
import recursion_oracle as oracle
import torch
from battery_experiments import experiment
from hypothesis import given, settings
from hypothesis import strategies as st
from recursion_runs import train
from torch import nn

import tacit
from few import few
from tacit.algorithms.noised_moments import BOUND
from tacit.config import load_config
from tacit.errors import InputError
from tacit.gradients import LOSSES, build, moments_of, weighted
from tacit.privacy.noise.gaussian import spacing
from tacit.training.loop import execute
from tacit.training.prepare import prepare

Array = oracle.Array
LOSS_NAMES = ("mse", "logistic", "cross-entropy")
OUTPUTS = {"mse": 2, "logistic": 1, "cross-entropy": 4}


# The oracle: record by record, from the formulas alone.


def bounded(inputs, bound):
    lengths = np.sqrt((inputs**2).sum(axis=1, keepdims=True))
    return inputs * np.minimum(1.0, bound / np.maximum(lengths, 1e-300))


def features(inputs, bound, constant=True):
    a = bounded(inputs, bound) / bound
    return np.column_stack([a, np.ones(len(a))]) / math.sqrt(2) if constant else a


def codes(loss, targets, target_bound=1.0):
    if loss == "mse":
        return bounded(targets.reshape(len(targets), -1), target_bound) / target_bound
    if loss == "logistic":
        return np.where(targets.reshape(-1, 1) > 0, 1.0, -1.0)
    classes = OUTPUTS[loss]
    return (np.eye(classes)[targets.astype(int)] - 1 / classes) / math.sqrt(1 - 1 / classes)


def moments(loss, inputs, targets, bound=BOUND, **more):
    """The mean of z over records, `[(p + outputs) p]`."""
    total = 0.0
    rows = zip(features(inputs, bound), codes(loss, targets, **more), strict=True)
    for a, c in rows:
        total = total + np.outer(np.concatenate([a, c]), a) / math.sqrt(2)
    return np.asarray(total).reshape(-1) / len(inputs)


def least_squares(loss, released, ridge, target_bound=1.0):
    """Fitted scores' weights `[outputs, p]` on the features."""
    count = OUTPUTS[loss]
    p = round((math.sqrt(count**2 + 4 * len(released)) - count) / 2)
    rows = released.reshape(-1, p) * math.sqrt(2)
    square = (rows[:p] + rows[:p].T) / 2
    values, vectors = np.linalg.eigh(square)
    inverse = vectors @ np.diag(1 / (np.maximum(values, 0) + ridge)) @ vectors.T
    scales = {
        "mse": target_bound,
        "logistic": 2.0,
        "cross-entropy": count * math.sqrt(1 - 1 / count),
    }
    return np.asarray(scales[loss] * rows[p:] @ inverse)


def means(task, **more):
    return np.array(
        [
            oracle.weight(task, node) * moments(task.loss, x.numpy(), y.numpy(), **more)
            for node, (x, y) in enumerate(task.nodes)
        ]
    )


@pytest.mark.parametrize("loss", LOSS_NAMES)
@pytest.mark.parametrize("name", ["noised-moments", "noised-moments-server"])
def test_recursion(name, loss):
    task, steps, final = oracle.problem(loss, 5), 3, 2
    server = name == "noised-moments-server"
    options = {} if server else {"final_mixing": final}
    topology = {} if server else {"graph": "exponential"}
    more = {"target_bound": 0.7} if loss == "mse" else {}
    found = train(task, name, {**options, **more}, steps=steps, topology=topology)
    x = means(task, **more)
    if server:
        x = np.tile(x.mean(axis=0), (5, 1))
    for k in range(0 if server else steps + final):
        x = oracle.exponential(5, k) @ x
    np.testing.assert_allclose(found.parameters.numpy(), x, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.consensus.numpy(), x.mean(axis=0), rtol=1e-9, atol=1e-12)
    inputs = task.nodes[0][0]
    for node in range(5):
        fit = least_squares(loss, x[node], 1e-6, 0.7)
        a = np.column_stack([inputs.numpy() / BOUND, np.ones(len(inputs))]) / math.sqrt(2)
        scores = found.model(node)(inputs).detach().numpy()
        np.testing.assert_allclose(scores, a @ fit.T, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("graph", ["star", "directed-ring"])
def test_push_sum_weights_are_taken_out(graph):
    task = oracle.problem("mse", 5)
    found = train(task, "noised-moments", {}, steps=1, topology={"graph": graph})
    edges = (
        [(0, i) for i in range(1, 5)] if graph == "star" else [(i, (i + 1) % 5) for i in range(5)]
    )
    build_matrix = oracle.metropolis if graph == "star" else oracle.splitting
    matrix = build_matrix(5, edges)
    right = matrix @ means(task) / (matrix @ np.ones(5))[:, None]
    np.testing.assert_allclose(found.parameters.numpy(), right, rtol=1e-9, atol=1e-12)


# What is solved.


def linear_data(count, noise=0.0):
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 3, generator=draw, dtype=torch.float64) / 4
    right = torch.tensor([0.5, -1.0, 2.0, 0.3], dtype=torch.float64)
    targets = inputs @ right[:3, None] + right[3]
    return inputs, targets + noise * torch.randn(count, 1, generator=draw).double(), right


def test_without_noise_it_is_least_squares():
    """Of all records together; a target that is far out counts as the bound."""
    inputs, targets, right = linear_data(60)
    nodes = [(inputs[i::3], targets[i::3]) for i in range(3)]
    config = experiment(
        "noised-moments",
        loss="mse",
        model="linear",
        steps=1,
        graph="complete",
        options={"target_bound": 9.0, "ridge": 1e-12},
        privacy={"epsilon": "none"},
    )
    config["task"]["input_bound"] = 5.0
    found = tacit.train(config, nodes=nodes)
    (weight, bias) = found.model().parameters()
    torch.testing.assert_close(weight[0], right[:3], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(bias, right[3:], rtol=1e-6, atol=1e-6)
    assert [name for name, _ in found.model().named_parameters()] == ["1.weight", "1.bias"]


@pytest.mark.parametrize("constant", [True, False])
def test_a_layer_without_bias_has_no_constant(constant):
    inputs, targets, right = linear_data(40)
    if not constant:
        targets = targets - right[3]
    found = tacit.train(
        {
            "task": {"loss": "mse", "input_bound": 4.0},
            "algorithm": {"name": "noised-moments", "target_bound": 9.0, "ridge": 1e-12},
            "privacy": {"epsilon": "none"},
            "train": {"steps": 1, "batch": "all", "dtype": "float64"},
        },
        model=nn.Linear(3, 1, bias=constant, dtype=torch.float64),
        nodes=[(inputs, targets)],
    )
    assert found.plan.parameters == ((4 * 5) if constant else (3 * 4))
    solved = torch.cat([part.reshape(-1) for part in found.model().parameters()])
    torch.testing.assert_close(solved, right if constant else right[:3], rtol=1e-6, atol=1e-6)


def planned(**more):
    sections = {
        "task": {"loss": "mse", "model": "linear"},
        "algorithm": {"name": "noised-moments"},
        "privacy": {"epsilon": 1.0, "delta": 1e-5},
        "train": {"steps": 1, "batch": "all"},
    }
    for name, keys in more.items():
        sections[name] = {**sections.get(name, {}), **keys}
    inputs, targets, _ = linear_data(400)
    nodes = [(inputs[i::4], targets[i::4]) for i in range(4)]
    return prepare(load_config(sections, count=4), nodes=nodes)


def test_the_ridge_follows_the_noise_of_the_mean_over_nodes():
    job = planned()
    assert job.model.moments is not None
    std = job.plan.release.noise_std(job.plan.nodes[0], 0) / 100 / math.sqrt(4)
    assert job.model.moments.deviation == pytest.approx(std)
    assert job.model.moments.used_ridge == pytest.approx(0.4 * std * math.sqrt(4))
    given = planned(algorithm={"ridge": 0.25})
    assert given.model.moments is not None
    assert given.model.moments.used_ridge == 0.25
    paired = planned(privacy={"noise": "pairwise"})
    assert paired.model.moments is not None
    assert paired.model.moments.deviation < 0.8 * std  # the noise of pairs cancels in the mean


def test_one_release_costs_the_same_however_many_steps_there_are():
    one, many = planned(), planned(train={"steps": 20})
    for short, long in zip(one.plan.nodes, many.plan.nodes, strict=True):
        assert short.epsilon is not None
        assert 0.99 < short.epsilon <= 1.0
        assert long.noise_scale == pytest.approx(short.noise_scale)
        assert long.epsilon == pytest.approx(short.epsilon)


def test_many_steps_bring_every_node_to_the_mean():
    task = oracle.problem("logistic", 6)
    near, far = (
        train(task, "noised-moments", {}, steps=steps, topology={"graph": "ring"}).parameters
        for steps in (60, 1)
    )
    assert float((near - near.mean(0)).norm()) < 1e-6 < 1e-3 < float((far - far.mean(0)).norm())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), noise=st.floats(0, 1e6), loss=st.sampled_from(LOSS_NAMES))
def test_whatever_is_released_is_solved_as_the_oracle_does(seed, noise, loss):
    """Also where noise leaves negative eigenvalues: scores stay below norms over the ridge."""
    count, draw = OUTPUTS[loss], np.random.default_rng(seed)
    made = moments_of(nn.Linear(3, count), LOSSES[loss], bound=2.0, target_bound=1.0, ridge=0.1)
    released = noise * draw.normal(size=(2, (4 + count) * 4))
    inputs = draw.normal(size=(5, 3))
    found = made.outputs(torch.from_numpy(released), torch.from_numpy(inputs)).numpy()
    a = np.column_stack([inputs / 2.0, np.ones(5)]) / math.sqrt(2)
    right = [a @ least_squares(loss, row, 0.1).T for row in released]
    np.testing.assert_allclose(found, right, rtol=1e-7, atol=1e-7 * max(1.0, noise))
    module = made.model(torch.from_numpy(released[1]))
    scores = module(torch.from_numpy(inputs)).detach().numpy()
    np.testing.assert_allclose(scores, right[1], rtol=1e-7, atol=1e-7 * max(1.0, noise))


# What is summed: the gradient of a linear function, of norm 1 at most.


def drawn(loss, seed, size):
    draw = torch.Generator().manual_seed(seed)
    inputs = size * torch.randn(6, 3, generator=draw, dtype=torch.float64)
    if loss == "mse":
        return inputs, size * torch.randn(6, 2, generator=draw, dtype=torch.float64)
    labels = torch.randint(OUTPUTS[loss] if loss != "logistic" else 2, (6,), generator=draw)
    return inputs, labels


@few(12, 40)
@given(
    seed=st.integers(0, 999),
    size=st.sampled_from([1e-3, 1.0, 50.0]),
    loss=st.sampled_from(LOSS_NAMES),
)
def test_a_record_gradient_is_its_moments_wherever_it_is_taken(seed, size, loss):
    inputs, targets = drawn(loss, seed, size)
    inputs = torch.from_numpy(bounded(inputs.numpy(), 1.5))
    made = moments_of(
        nn.Linear(3, OUTPUTS[loss]), LOSSES[loss], bound=1.5, target_bound=1.0, ridge=None
    )
    engine = build(made.module, made.loss, inputs, targets, dtype=torch.float64, device="cpu")
    at = torch.randn(1, engine.parameters_count, dtype=torch.float64)
    for record in range(len(inputs)):
        row = slice(record, record + 1)
        x, y = inputs[None, row], targets[None, row]
        mask = torch.ones(1, 1, dtype=torch.bool)
        total = engine.gradient(at, x, y, mask, None).total[0].numpy()
        z = moments(loss, inputs[row].numpy(), targets[row].numpy(), bound=1.5)
        np.testing.assert_allclose(-total, z, rtol=1e-9, atol=1e-12)
        assert np.linalg.norm(z) <= 1 + 1e-12
        if loss != "mse" and size == 50.0:
            assert np.linalg.norm(z) == pytest.approx(1.0)  # so that the bound is reached


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_adversarial_records_move_the_sum_by_the_bound_at_most(loss, dtype):
    """Also records that no bound of inputs was applied to: the clip is what is relied on."""
    inputs, targets = drawn(loss, 3, 1.0)
    made = moments_of(
        nn.Linear(3, OUTPUTS[loss]), LOSSES[loss], bound=1.0, target_bound=1.0, ridge=None
    )
    engine = build(made.module, made.loss, inputs.to(dtype), targets, dtype=dtype, device="cpu")
    at = torch.zeros(1, engine.parameters_count, dtype=dtype)
    mask = torch.ones(1, 6, dtype=torch.bool)

    def total(x, y):
        kept = y.to(dtype) if y.is_floating_point() else y
        return engine.gradient(at, x.to(dtype)[None], kept[None], mask, 1.0).total[0].double()

    before, moved = total(inputs, targets), 0.0
    for value in (0.0, -1.0, 1e10, -1e10, 1e18, 1e30, 1e38, 1e-40, math.inf, math.nan):
        for flip in (False, True):
            x, y = inputs.clone(), targets.clone()
            x[2] = value * x[2] if math.isfinite(value) and value else value
            if flip:
                y[2] = -1e20 * y[2] if loss == "mse" else 1 - y[2].clamp(max=1)
            shift = float((total(x, y) - before).norm())
            assert shift <= 2.0
            moved = max(moved, shift)
    assert moved > 0.5


# What is refused.


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"task": {"model": "mlp"}}, "task.model"),
        ({"algorithm": {"learning_rate": 0.5}}, "algorithm.learning_rate"),
        ({"algorithm": {"learning_rate_schedule": "linear"}}, "algorithm.learning_rate_schedule"),
        ({"algorithm": {"ridge": 0.0}}, "algorithm.ridge"),
        ({"algorithm": {"ridge": "least"}}, "algorithm.ridge"),
        ({"algorithm": {"target_bound": -1.0}}, "algorithm.target_bound"),
        ({"algorithm": {"final_mixing": -1}}, "algorithm.final_mixing"),
        ({"algorithm": {"momentum": 0.9}}, "algorithm.momentum"),
        (
            {"task": {"loss": "logistic"}, "algorithm": {"target_bound": 2.0}},
            "algorithm.target_bound",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change, where):
    with pytest.raises(InputError) as refused:
        planned(**change)
    assert refused.value.where == where


def of(model, loss=LOSSES["mse"]):
    return moments_of(model, loss, bound=1.0, target_bound=1.0, ridge=None)


def test_only_one_linear_layer_whose_weights_are_free_has_moments():
    frozen = nn.Linear(3, 1)
    frozen.bias.requires_grad_(False)
    for model in (
        nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)),
        nn.Sequential(nn.Linear(3, 1), nn.Sigmoid()),
        nn.ReLU(),
        frozen,
    ):
        with pytest.raises(InputError, match=r"task\.model .* one linear layer"):
            of(model)
    with pytest.raises(InputError, match=r"task\.model = '9000 inputs': makes 81,0"):
        of(nn.Linear(9000, 1, device="meta"))


def test_weights_of_classes_are_refused():
    with pytest.raises(InputError, match=r"task\.loss .* without task\.class_weights"):
        of(nn.Linear(3, 2), weighted(LOSSES["cross-entropy"], [1.0, 2.0]))


def test_batches_and_drowned_moments_are_warned_of():
    assert planned(privacy={"epsilon": 5.0}).plan.cautions == ()
    (warned,) = planned(privacy={"epsilon": 5.0}, train={"batch": 50}).plan.cautions
    assert "train.batch = 'all'" in warned
    (warned,) = planned(privacy={"epsilon": 0.01}).plan.cautions
    assert "little is left of what they say" in warned


# With secure sums, and in steps.


def test_secure_sums_give_the_servers_model_with_less_noise():
    server = {"name": "noised-moments-server"}
    clear = planned(algorithm=server)
    sums = planned(algorithm=server, privacy={"aggregation": "secure-sum"})
    assert sums.plan.nodes[0].noise_scale < 0.6 * clear.plan.nodes[0].noise_scale
    assert sums.model.moments is not None
    assert clear.model.moments is not None
    assert sums.model.moments.deviation < 0.6 * clear.model.moments.deviation
    later = planned(
        algorithm=server, privacy={"aggregation": "secure-sum"}, train={"steps": 3}
    )  # in whose further steps nobody sends
    assert later.plan.cautions == sums.plan.cautions == ()
    assert later.plan.nodes[0].noise_scale == pytest.approx(sums.plan.nodes[0].noise_scale)


def test_a_run_with_secure_sums_is_the_mean_of_messages_up_to_the_lattice():
    """The same draws: what differs is half a point of the lattice for each client."""
    given = {"epsilon": None, "noise_std": 0.4, "accounting": "none"}
    found = [
        execute(
            planned(
                algorithm={"name": "noised-moments-server", "clip": 1.0},
                privacy={**given, "noise_seed": 5, "aggregation": aggregation},
                train={"dtype": "float64"},
            )
        ).consensus
        for aggregation in ("secure-sum", "clear")
    ]
    assert float((found[0] - found[1]).abs().max()) <= 1.5 * spacing(0.4)
    assert float(found[0].abs().max()) > 5 * spacing(0.4)


def test_the_loss_of_moments_is_not_shown_as_the_tasks():
    task = oracle.problem("logistic", 3)
    found = train(task, "noised-moments", {"clip": 1.0}, steps=1)
    assert found.metrics["train_loss"] == [None] * len(found.metrics["step"])
    assert found.metrics["gradient_norm"][-1] is not None
