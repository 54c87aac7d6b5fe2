"""The augmented Lagrangian of a run, against the formula record by record, and who may see it."""

import json
import math

import federated_oracle as federated
import numpy as np
import pytest
import recursion_oracle as oracle
import torch
from hypothesis import given
from hypothesis import strategies as st
from recursion_runs import train

import tacit
from experiments import tacit as command_line
from tacit.algorithms.base import PrimalDual
from tacit.algorithms.parts import prox, regulariser_value
from tacit.analysis.compare.figure import SERIES
from tacit.callbacks import Callback
from tacit.errors import InputError
from tacit.report.compare_panels import MEASURE_TITLES

RHO, LAMBDA, STEPS = 3.0, 0.2, 6
NAMES = ("none", "l1", "l2", "elastic-net", "box")


def losses(task, models):
    """f_i(x_i), by the module with these weights, one client after the other."""
    found = []
    for (inputs, targets), model in zip(task.nodes, models, strict=True):
        torch.nn.utils.vector_to_parameters(torch.from_numpy(model), task.module.parameters())
        outputs = task.module(inputs).squeeze(1)
        wanted = targets.reshape(outputs.shape)
        each = torch.nn.functional.softplus(-wanted * outputs)
        found.append(float(each.mean().detach()))
    return found


@pytest.mark.parametrize("regulariser", ["none", "l1"])
@pytest.mark.parametrize("clients", [None, 2])
def test_dp_admm(clients, regulariser):
    """Without noise the duals follow from the models: lambda += rho (x_0 - x) in active rounds."""
    task = oracle.problem("logistic", 5)
    start = task.start.copy()
    options = {"penalty": RHO, "learning_rate": 0.4, "regulariser": regulariser}
    options |= {"regularisation": LAMBDA} if regulariser != "none" else {}
    options |= {"clients_per_round": clients} if clients else {}
    result = train(task, "dp-admm", options, evaluate_every=1)
    run = federated.rounds_of(result, task, [0.4] * STEPS)
    count, server = 5, start
    x, dual = [start] * count, [np.zeros_like(start)] * count
    slope = LAMBDA if regulariser == "l1" else 0.0

    def lagrangian():
        away = [server - own for own in x]
        linked = sum(d @ a + RHO / 2 * a @ a for d, a in zip(dual, away, strict=True))
        return sum(losses(task, np.array(x))) + linked + slope * np.abs(server).sum()

    right = [lagrangian()]
    for k, active in enumerate(run.active):
        for i in active:
            g = run.gradient(i, x[i], k, 0, None) + slope * np.sign(x[i])
            x[i] = (RHO * server + dual[i] - g + x[i] / 0.4) / (RHO + 1 / 0.4)
            dual[i] = dual[i] + RHO * (server - x[i])
        server = sum(x[i] - dual[i] / RHO for i in range(count)) / count
        right.append(lagrangian())
    assert result.metrics["augmented_lagrangian"] == pytest.approx(right, rel=1e-9)


@pytest.mark.parametrize("state", ["public", "private"])
def test_fedspd_dp_begins_at_the_sum_of_losses_and_falls(state):
    task = oracle.problem("logistic", 4)
    start = losses(task, np.tile(task.start, (4, 1)))
    options = {"penalty": RHO, "inverse_step": 2.0, "state": state, "regulariser": "l2"}
    options |= {"regularisation": LAMBDA}
    result = train(task, "fedspd-dp", options, evaluate_every=1, steps=40)
    series = result.metrics["augmented_lagrangian"]
    x_0 = task.start
    assert series[0] == pytest.approx(sum(start) + LAMBDA / 2 * x_0 @ x_0, rel=1e-9)
    # With every record in every round the last values stand still: a saddle point.
    assert series[-1] < series[0]
    assert series[-1] == pytest.approx(series[-2], abs=1e-3)


@pytest.mark.parametrize("name", ["dp-sgd", "fedavg", "privsgp"])
def test_methods_without_duals_have_none(name):
    result = train(oracle.problem("mse", 3), name, {"learning_rate": 0.1})
    assert set(result.metrics["augmented_lagrangian"]) == {None}


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**31))
def test_the_parts_of_processes_add_up(first, second, seed):
    draw = torch.Generator().manual_seed(seed)
    count, d = first + second, 3

    def tensor(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    x, dual, server, each = tensor(count, d), tensor(count, d), tensor(1, d), tensor(count)
    whole = PrimalDual(x, dual, server, RHO, 1.7).terms(each, count)
    parts = [
        PrimalDual(x[rows], dual[rows], server, RHO, 1.7).terms(each[rows], count)
        for rows in (slice(0, first), slice(first, count))
    ]
    assert sum(parts) == pytest.approx(whole, rel=1e-12, abs=1e-12)


@given(
    st.sampled_from(NAMES),
    st.lists(st.floats(-3, 3), min_size=1, max_size=4),
    st.floats(0.01, 2),
    st.floats(0.01, 2),
)
def test_the_operator_minimises_the_value(name, values, step, weight):
    """The prox of R is the least point of R(u) + |u - x|^2 / (2 step): R is the one it is of."""
    x = torch.tensor([values], dtype=torch.float64)
    least = prox(name, x, step, weight)

    def objective(u):
        return regulariser_value(name, u, weight) + float((u - x).square().sum()) / (2 * step)

    best = objective(least)
    for other in (x, torch.zeros_like(x), least + 0.01, least - 0.01, 0.9 * least):
        assert best <= objective(other) + 1e-12


def test_an_unknown_regulariser_is_refused():
    with pytest.raises(InputError, match=r"algorithm\.regulariser"):
        regulariser_value("l3", torch.zeros(1), 0.1)


def test_callbacks_do_not_hear_of_it():
    task = oracle.problem("logistic", 3)
    seen = []

    class Listener(Callback):
        def on_metrics(self, row):
            seen.append(repr(row))

    tacit.train(
        {
            "task": {"loss": "logistic"},
            "algorithm": {"name": "fedspd-dp", "penalty": RHO, "inverse_step": 2.0},
            "privacy": {"epsilon": "none"},
            "train": {"steps": 3, "batch": "all", "dtype": "float64", "evaluate_every": 1},
        },
        model=task.module,
        nodes=task.nodes,
        callbacks=[Listener()],
    )
    assert seen
    assert not any("lagrangian" in text for text in seen)


def test_a_figure_draws_it(tmp_path):
    file, out = tmp_path / "figure.toml", tmp_path / "out"
    file.write_text(
        "[task]\ndataset = 'digits'\nmodel = 'logistic'\n[nodes]\ncount = 3\n"
        "[algorithm]\nname = 'fedspd-dp'\n[privacy]\nepsilon = 'none'\n"
        "[train]\nsteps = 4\nbatch = 20\nevaluate_every = 2\n"
        "[figure]\ny = 'augmented_lagrangian'\n[[figure.line]]\nname = 'one'\n"
    )
    answer = command_line("compare", str(file), "--out", str(out))
    assert answer.code == 0, answer.err
    document = json.loads((out / "compare.json").read_text())
    (line,) = document["lines"]
    first, *_, last = (point["mean"] for point in line["curve"])
    assert first == pytest.approx(3 * math.log(10), rel=0.05)
    assert line["points"][0]["figures"]["augmented_lagrangian"]["mean"] == last
    assert "augmented Lagrangian (private" in (out / "compare.html").read_text()
    assert set(MEASURE_TITLES) == set(SERIES)
