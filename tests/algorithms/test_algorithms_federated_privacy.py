"""What DP-SGD, DP-FedAvg and DP-ADMM leak: sensitivity, noise, and the epsilon that follows."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from recursion_runs import context_of, drawn_in, gaussian_epsilon, pld
from torch import nn

from planning_cases import gaussian_delta
from tacit import privacy
from tacit.algorithms.federated import clipped_rows, round_sampling
from tacit.config import load_config
from tacit.training.prepare import prepare

DELTA = 1e-5
PRIVATE = ("dp-sgd", "dp-fedavg", "dp-admm")


def job_of(name, nodes, options, given_privacy, **train):
    """A linear model without a bias that is zero, under the squared error.

    How mini-batches are drawn is left out where each holds all records.
    """
    if train.get("batch", "all") == "all":
        options = {key: value for key, value in options.items() if key != "sampling"}
    config = {
        "task": {"loss": "mse"},
        "algorithm": {"name": name, **options},
        "privacy": {"noise_seed": 3, **given_privacy},
        "train": {"batch": "all", "dtype": "float64", "steps": 4, **train},
    }
    module = nn.Linear(nodes[0][0].shape[1], 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(module.weight)
    return prepare(load_config(config, count=len(nodes)), model=module, nodes=nodes)


def noise(count, clients=1, inputs=3):
    draw = torch.Generator().manual_seed(count)
    options = {"generator": draw, "dtype": torch.float64}
    return [
        (torch.randn(count, inputs, **options), torch.randn(count, 1, **options))
        for _ in range(clients)
    ]


def after_one_step(job, k):
    """What step k makes of the start, for each client: its own model, or the server's."""
    algorithm, options = job.config.algorithm.definition, job.config.algorithm.options
    context = context_of(job)
    start = job.model.start(len(job.plan.nodes), job.dtype, job.device)
    state = algorithm.start(start.clone(), options, context)
    return algorithm.models(algorithm.step(state, k, options, context)) - start


# Sensitivity: the release of a single client, with the same coins on both data sets.

CLIP, RHO, ETA = 0.7, 2.0, 0.3
OPTIONS = {
    "dp-sgd": {"learning_rate": 1.0},
    "dp-fedavg": {"learning_rate": 0.4, "local_steps": 3, "sampling": "with-replacement"},
    "dp-admm": {"learning_rate": ETA, "penalty": RHO, "learning_rate_schedule": "inverse-sqrt"},
}
# How far the release moves when the sum of clipped gradients moves by one, times qJ.
UNIT = {"dp-sgd": 1.0, "dp-admm": 1 / (RHO + 2 / ETA)}  # step 3: eta_3 = eta / 2
K = 3


def released(name, data, batch, method):
    options = {"clip": CLIP, **OPTIONS[name]}
    still = {"epsilon": "none", "relation": "replace-one"}
    return after_one_step(job_of(name, [data], options, still, batch=batch, sampling=method), K)[0]


def drawn(name, data, batch, method):
    job = job_of(name, [data], OPTIONS[name], {"epsilon": "none"}, batch=batch, sampling=method)
    records, local_steps = drawn_in(job.plan), job.plan.release.local_steps
    return {int(i) for part in range(local_steps) for i in records(K, 0, part)}


def replaced(data, index, features, target):
    inputs, targets = data[0].clone(), data[1].clone()
    inputs[index], targets[index] = features, target
    return inputs, targets


LARGE = torch.tensor([1e3, 0.0, 0.0], dtype=torch.float64)
NULL = torch.zeros(3, dtype=torch.float64)


@pytest.mark.parametrize(("batch", "method"), [("all", "poisson"), (2, "poisson"), (2, "fixed")])
@pytest.mark.parametrize("relation", ["add-or-remove-one", "replace-one"])
@pytest.mark.parametrize("name", PRIVATE)
def test_sensitivity(name, relation, batch, method):
    """One record moves the release by no more than is accounted for, and adversarial ones do.

    Zero-out: with a fixed batch size nobody accounts for it, but these coins are the same.
    """
    (data,) = noise(6)
    index = min(drawn(name, data, batch, method))
    # All others pull one way.
    against = (LARGE.expand(6, 3) / 1e3, torch.full((6, 1), -1e3, dtype=torch.float64))
    draw = torch.Generator().manual_seed(5)
    pairs = [
        (data, torch.randn(3, generator=draw, dtype=torch.float64) * 10.0**power, 1.0)
        for power in (0, 2)
    ]
    pairs += [(against, LARGE, 1e6), (data, LARGE, 1e6)]
    moved = []
    for rest, features, target in pairs:
        other = (NULL, 0.0) if relation == "add-or-remove-one" else (-features, target)
        one = released(name, replaced(rest, index, features, target), batch, method)
        two = released(name, replaced(rest, index, *other), batch, method)
        moved.append(float((one - two).norm()))
    if name == "dp-fedavg":
        bound = 2 * CLIP
    else:
        size = 6 if batch == "all" else 2
        bound = (1 if relation == "add-or-remove-one" else 2) * CLIP * UNIT[name] / size
    assert 0.99 * bound < max(moved) <= bound


@pytest.mark.parametrize("method", ["poisson", "fixed"])
@pytest.mark.parametrize("name", PRIVATE)
def test_a_record_that_is_not_drawn_moves_nothing(name, method):
    (data,) = noise(9)
    (index, *_) = set(range(9)) - drawn(name, data, 2, method)
    one, two = (
        released(name, replaced(data, index, features, 1e6), 2, method)
        for features in (LARGE, NULL)
    )
    assert torch.equal(one, two)


def test_a_change_that_is_not_finite_counts_as_zero():
    infinite = torch.full((3,), 1e250, dtype=torch.float64)
    data = replaced(noise(4)[0], 1, infinite, 1e250)
    assert torch.equal(released("dp-fedavg", data, "all", "poisson"), torch.zeros_like(NULL))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    exponent=st.integers(-6, 12),
    seed=st.integers(0, 1000),
    bound=st.floats(1e-3, 1e3),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_clipped_rows_keep_the_bound_and_the_direction(exponent, seed, bound, dtype):
    rows = torch.randn(3, 50, generator=torch.Generator().manual_seed(seed)).to(dtype)
    rows = rows * 10.0**exponent
    found = clipped_rows(rows, bound).double()
    norms = rows.double().norm(dim=1, keepdim=True)
    assert bool((found.norm(dim=1) <= bound).all())
    right = rows.double() * (bound / norms).clamp(max=1.0)
    torch.testing.assert_close(found, right, rtol=1e-5, atol=0)


# How likely a round is to draw a record


@pytest.mark.parametrize(("batch", "steps"), [(1, 2), (2, 3), (3, 1), (5, 2), (4, 7), (10, 3)])
@pytest.mark.parametrize("disjoint", [True, False])
def test_round_sampling(batch, steps, disjoint):
    records = 10
    steps = min(steps, records // batch) if disjoint else steps
    options = {"local_steps": steps, "sampling": "disjoint" if disjoint else "with-replacement"}
    job = job_of("dp-fedavg", noise(records), options, {"noise_std": 1.0}, batch=batch)
    rate, count = round_sampling(job.plan.release.node_run(job.plan.nodes[0], [0]))
    share = Fraction(batch, records)
    exact = share * steps if disjoint else 1 - (1 - share) ** steps
    assert float(exact) * (1 - 1e-12) <= rate <= float(exact) * (1 + 3e-12)
    assert Fraction(count - 1, records) < exact <= Fraction(count, records)


@pytest.mark.parametrize("method", ["poisson", "fixed"])
@pytest.mark.parametrize("strategy", ["disjoint", "with-replacement"])
def test_records_are_drawn_as_often_as_is_accounted_for(strategy, method):
    rounds, records = 300, 20
    job = job_of(
        "dp-fedavg",
        noise(records),
        {"local_steps": 3, "sampling": strategy},
        {"epsilon": "none"},
        batch=4,
        sampling=method,
        steps=rounds,
    )
    found = drawn_in(job.plan)
    hits = sum(len({int(i) for part in range(3) for i in found(k, 0, part)}) for k in range(rounds))
    rate, _ = round_sampling(job.plan.release.node_run(job.plan.nodes[0], [0]))
    spread = math.sqrt(rate * (1 - rate) / (rounds * records))
    assert abs(hits / (rounds * records) - rate) < 4 * spread


# Noise, where it enters


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("clients", [None, 2])
def test_noise_std_is_that_of_the_release(name, clients):
    """In DP-SGD's and DP-ADMM's gradient means, and in DP-FedAvg's change: before the weight."""
    inputs, sizes = 4000, np.array([2, 3, 5])
    data = [
        (torch.randn(count, inputs, dtype=torch.float64), torch.zeros(count, 1).double())
        for count in sizes
    ]
    options = {"clip": 0.5, **OPTIONS[name]} | ({"clients_per_round": clients} if clients else {})
    job = job_of(name, data, options, {"noise_std": 0.05, "delta": DELTA})
    moved = after_one_step(job, K).numpy()
    active = job.plan.release.active(K)
    taking_part = np.ones(3, dtype=bool) if active is None else active
    error = 4 / math.sqrt(2 * inputs)
    if name == "dp-admm":
        for row in moved[taking_part]:
            assert row.std() == pytest.approx(0.05 * UNIT[name], rel=error)
        assert not moved[~taking_part].any()
    else:
        activity = job.plan.release.activity
        ever = np.ones(3, dtype=bool) if activity is None else activity.active.any(axis=0)
        counted = sizes / sizes[ever].mean()
        mean = 0.05 * math.hypot(*counted[taking_part]) / taking_part.sum()
        assert moved[0].std() == pytest.approx(mean, rel=error)
        assert (moved == moved[0]).all()


# Epsilon


@pytest.mark.parametrize("relation", ["add-or-remove-one", "replace-one"])
@pytest.mark.parametrize("name", PRIVATE)
def test_epsilon_of_whole_batches(name, relation):
    data = [*noise(4, 2), *noise(7, 3)]
    options = {"clip": 0.5, **OPTIONS[name], "clients_per_round": 2}
    given_privacy = {"noise_std": 0.6, "delta": DELTA, "relation": relation}
    job = job_of(name, data, options, given_privacy, steps=9)
    assert job.plan.release.activity is not None
    for node in job.plan.nodes:
        rounds = int(job.plan.release.activity.active[:, node.node].sum())
        # The sum's sensitivity over the noise in it; a changed model's over that in the change.
        moves = 1.0 if relation == "add-or-remove-one" else 2.0
        shift = 2 * 0.5 / 0.6 if name == "dp-fedavg" else moves * 0.5 / (0.6 * node.records)
        if rounds == 0:
            assert node.epsilon == 0.0
            continue
        assert node.epsilon == pytest.approx(
            gaussian_epsilon(shift * math.sqrt(rounds), DELTA), rel=1e-3
        )
    assert job.plan.release.mechanism(job.plan.nodes[0]).trust_model == "server"


@pytest.mark.parametrize("strategy", ["disjoint", "with-replacement"])
@pytest.mark.parametrize("name", PRIVATE)
def test_epsilon_of_poisson_batches(name, strategy):
    options = {"clip": 0.5, **OPTIONS[name]}
    rate, unit, std = 0.1, 0.5 / 2, 1.0
    if name == "dp-fedavg":
        options |= {"sampling": strategy}
        rate = 0.3 if strategy == "disjoint" else 1 - 0.9**3
        unit, std = 2 * 0.5, 3.0
    job = job_of(name, noise(20), options, {"noise_std": std, "delta": DELTA}, batch=2, steps=5)
    event = PoissonSampledDpEvent(rate, GaussianDpEvent(std / unit))
    right = pld((event, 5), delta=DELTA, grid=1e-4)
    assert job.plan.nodes[0].epsilon == pytest.approx(right, rel=2e-3)


@pytest.mark.parametrize("strategy", ["disjoint", "with-replacement"])
def test_one_round_of_fixed_batches_has_a_closed_form(strategy):
    """p delta_Gauss(a), 1 + p (a - 1) = e^epsilon: advanced joint convexity."""
    options = {"clip": 0.5, "local_steps": 3, "sampling": strategy}
    settings_ = {"noise_std": 0.9, "delta": DELTA, "relation": "replace-one"}
    job = job_of("dp-fedavg", noise(20), options, settings_, batch=2, sampling="fixed", steps=1)
    found = job.plan.nodes[0].epsilon
    assert found is not None
    # 0.3, and 1 - 0.9^3 = 0.271 rounded up to a whole number of 20 records.
    share = 6 / 20
    inner = math.log1p((math.exp(found) - 1) / share)
    assert share * gaussian_delta(2 * 0.5 / 0.9, inner) == pytest.approx(DELTA, rel=1e-2)


def test_poisson_batches_under_replace_one_are_two_opposite_contributions():
    options = {"clip": 0.5, "local_steps": 3, "sampling": "with-replacement"}
    settings_ = {"noise_std": 3.0, "delta": DELTA, "relation": "replace-one"}
    job = job_of("dp-fedavg", noise(20), options, settings_, batch=2, steps=4)
    stated = privacy.SampledGaussian(
        (1 - 0.9**3) * (1 + 1e-12),
        3.0 / (2 * 0.5),
        steps=4,
        relation="replace-one",
        trust_model="server",
        coordinates=3,
    )
    assert job.plan.nodes[0].epsilon == pytest.approx(privacy.epsilon(stated, delta=DELTA))
