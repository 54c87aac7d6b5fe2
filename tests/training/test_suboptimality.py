"""f(x) - f* against scikit-learn's minimum, where it is asked for, and where it is refused."""

import json

import numpy as np
import pytest
import tomli_w
import torch
from sklearn.linear_model import LogisticRegression

import tacit
from communication.cluster.crew import rows_of, simulated, train
from experiments import tacit as command_line
from tacit.communication.peers import ALONE
from tacit.config import load_config
from tacit.data import Dataset, load, stack
from tacit.errors import InputError
from tacit.models.architectures import find_loss
from tacit.report.documents.metrics import PublicMeasurement
from tacit.training import suboptimality
from tacit.training.prepare import prepare
from tacit.training.suboptimality import (
    Objective,
    Suboptimality,
    least_value,
    ridge_of,
    suboptimality_of,
)

RIDGE = 0.05


def settings(**changes):
    """DO-ADP without noise on every record of nodes with equally many."""
    return {
        "task": {"dataset": "digits", "model": "logistic"} | changes.pop("task", {}),
        "nodes": {"count": 3, "partition": "equal", "per_node": 200} | changes.pop("nodes", {}),
        "algorithm": {"name": "do-adp", "learning_rate": 0.3, "weight_decay": RIDGE}
        | changes.pop("algorithm", {}),
        "privacy": {"epsilon": "none"},
        "train": {"steps": 300, "batch": "all", "evaluate_every": 100, "suboptimality": True}
        | changes.pop("train", {}),
        **changes,
    }


def objective():
    """Of the experiment, and its d."""
    job = prepare(load_config(settings()))
    ridge = ridge_of(job.config.algorithm.options)
    assert ridge == RIDGE
    found = suboptimality_of(job, job.plan.parameters)
    assert found is not None
    assert found.objective.ridge == ridge
    return found.objective, job.plan.parameters


@pytest.mark.parametrize("curved", [0, 1000], ids=["L-BFGS", "Newton"])
def test_the_least_value_is_that_of_scikit_learn(curved, monkeypatch):
    """Its ridge spares the bias, which is a column of ones here: 1 / C = J n lambda."""
    monkeypatch.setattr(suboptimality, "_CURVED", curved)
    f, d = objective()
    rows = f.data.inputs.flatten(1).double().numpy()
    with_ones = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
    solver = LogisticRegression(
        C=1 / (RIDGE * len(rows)), fit_intercept=False, tol=1e-10, max_iter=5000
    )
    solver.fit(with_ones, f.data.targets.numpy())
    weights = torch.from_numpy(solver.coef_)
    x = torch.cat([weights[:, :-1].reshape(-1), weights[:, -1]])
    assert len(x) == d
    least = least_value(f, torch.zeros(d))
    assert least == pytest.approx(f.value(x), abs=1e-8)
    assert least <= f.value(x) + 1e-12
    assert f.value(torch.zeros(d)) == pytest.approx(np.log(10))


@pytest.mark.parametrize("loss", ["cross-entropy", "mse", "logistic"])
def test_the_curvature_is_that_of_the_value(loss):
    """Against differences of the slope, of which the value's own tests speak."""
    draw = torch.Generator().manual_seed(5)
    outputs = 1 if loss == "logistic" else 3
    nodes = []
    for size in (7, 4):
        inputs = torch.randn(size, 2, generator=draw, dtype=torch.float64)
        if loss == "mse":
            targets = torch.randn(size, 3, generator=draw, dtype=torch.float64)
        else:
            targets = torch.randint(max(outputs, 2), (size,), generator=draw)
        nodes.append(Dataset(inputs, targets))
    data = stack(nodes, torch.float64, torch.device("cpu"))
    f = Objective(data, find_loss(loss), outputs, RIDGE, (1.5, 0.5))
    x = torch.randn(3 * outputs, generator=draw, dtype=torch.float64)
    found = f._curvature(x, f._parts())
    for place in range(len(x)):
        step = torch.zeros_like(x)
        step[place] = 1e-5
        ends = [f._value_and_slope(x + sign * step, f._parts())[1] for sign in (1, -1)]
        torch.testing.assert_close(found[place], (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found, found.T)


def test_no_start_finds_less():
    f, d = objective()
    least = least_value(f, torch.zeros(d))
    other = torch.randn(d, generator=torch.Generator().manual_seed(1))
    assert least_value(f, other) == pytest.approx(least, abs=1e-9)


UNEQUAL = {"partition": "dirichlet", "alpha": 0.5, "per_node": None}


@pytest.mark.parametrize("chosen", ["records", "equal"])
def test_nodes_count_as_weights_say_and_the_ridge_counts_once(chosen):
    """f by hand, of nodes of different sizes."""
    job = prepare(load_config(settings(nodes={**UNEQUAL, "weights": chosen})))
    found = suboptimality_of(job, job.plan.parameters)
    assert found is not None
    f, sizes = found.objective, job.train.sizes.double()
    assert len(set(sizes.tolist())) == 3
    x = torch.randn(job.plan.parameters, generator=torch.Generator().manual_seed(2)).double()
    weights, bias = x[:640].view(10, 64), x[640:]
    means = []
    for inputs, targets in zip(
        job.train.rows(), torch.split(job.train.targets, job.train.sizes.tolist()), strict=True
    ):
        outputs = inputs.flatten(1).double() @ weights.T + bias
        means.append(torch.nn.functional.cross_entropy(outputs, targets))
    shares = sizes / sizes.sum() if chosen == "records" else torch.ones(3).double() / 3
    right = shares @ torch.stack(means) + RIDGE / 2 * x @ x
    assert f.value(x) == pytest.approx(float(right), rel=1e-12)


@pytest.mark.filterwarnings("ignore::tacit.NotPrivateWarning")
def test_it_falls_to_zero_by_weights_where_sizes_differ(tmp_path):
    """Of records that are alike everywhere; equal weights have their least value elsewhere."""
    data = load("digits", data_dir=tmp_path).train
    nodes = [(data.inputs[a:b], data.targets[a:b]) for a, b in ((0, 60), (60, 300), (300, 1400))]
    own = {key: value for key, value in settings(train={"steps": 900}).items() if key != "nodes"}
    own["task"] = {"model": "logistic", "outputs": 10}
    for weights in ("records", "equal"):
        own["nodes"] = {"weights": weights}
        tacit.train(own, nodes=nodes, out=tmp_path / weights)
        *_, last = (tmp_path / weights / "metrics.jsonl").open()
        assert 0 <= json.loads(last)["suboptimality"] < 3e-3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::tacit.NotPrivateWarning")
def test_it_falls_to_zero_and_stands_in_the_rows(tmp_path):
    tacit.train(settings(), out=tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    found = [row["suboptimality"] for row in rows]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.5
    assert 0 <= found[-1] < 1e-4
    tacit.train(settings(train={"suboptimality": False}), out=tmp_path / "without")
    assert "suboptimality" not in (tmp_path / "without" / "metrics.jsonl").read_text()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": {"model": "mlp"}}, "no linear model"),
        ({"algorithm": {"name": "dp-dda", "weight_decay": None}}, None),
        ({"task": {"class_weights": [1.0] * 10}}, "class_weights"),
    ],
)
def test_what_it_cannot_be_told_of(changes, words):
    if words is None:
        sections = settings(**changes)
        del sections["algorithm"]["weight_decay"]
        sections["algorithm"] |= {"regulariser": "l1", "regularisation": 0.1}
        sections["privacy"] = {"epsilon": 1.0}
        words = "regulariser = 'l1'"
    else:
        sections = settings(**changes)
    with pytest.raises(InputError, match=words) as refused:
        load_config(sections)
    assert refused.value.where == "train.suboptimality"


SERVER = {"name": "fedavg", "learning_rate": 0.5, "local_steps": 2}


@pytest.mark.process
@pytest.mark.parametrize("algorithm", [{}, SERVER], ids=["gossip", "server"])
def test_processes_that_read_one_data_set_measure_the_same(tmp_path, algorithm):
    """The common model is the mean over the nodes of all processes, or the server's, of that step.

    Nodes are of different sizes, and the first process has two of the five.
    """
    sections = settings(
        nodes={"count": 5, "partition": "iid", "per_node": None},
        train={"steps": 12, "evaluate_every": 4, "dtype": "float64"},
    )
    del sections["nodes"]["per_node"]
    sections["algorithm"] = algorithm or sections["algorithm"]
    file = tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps(sections))
    answers = train(tmp_path, file, tmp_path / "run", 3)
    assert [answer.code for answer in answers] == [0] * 3, answers
    simulated(file, tmp_path / "alone")
    own, *others = (rows_of(tmp_path / "run" / f"rank-{rank:04d}") for rank in range(3))
    found = [row for row in own if "suboptimality" in row]
    alone = rows_of(tmp_path / "alone")
    assert [row["step"] for row in found] == [row["step"] for row in own] == [0, 4, 8, 12]
    for row, expected in zip(found, alone, strict=True):
        assert row["suboptimality"] == pytest.approx(expected["suboptimality"], rel=1e-9)
    assert found[-1]["suboptimality"] < found[1]["suboptimality"] < found[0]["suboptimality"]
    assert not any("suboptimality" in row for rows in others for row in rows)
    # What everybody gets has nothing of private records, by the fields that say so.
    for row in rows_of(tmp_path / "run"):
        private = {key for key in row if key not in PublicMeasurement.model_fields}
        assert {row[key] for key in private} <= {None}
        assert "suboptimality" not in row


def test_a_step_of_an_earlier_session_has_none_but_where_all_models_are_added_up():
    f, d = objective()
    x = torch.ones(d)
    measured = Suboptimality(f, 0.25)
    measured.keep(4, torch.zeros(d))
    assert measured.at(4, None) == pytest.approx(np.log(10) - 0.25)
    assert measured.at(4, None) is None
    assert measured.at(8, x) == f.value(x) - 0.25


def test_processes_that_were_given_records_refuse_it():
    """None of them has those of the others."""

    class Two:
        """What is asked of peers before anything is read."""

        processes, rank = 2, 0

    assert ALONE.processes == 1
    job = prepare(load_config(settings()))
    rows, targets = job.train.rows(), torch.split(job.train.targets, job.train.sizes.tolist())
    nodes = list(zip(rows, targets, strict=True))
    with pytest.raises(InputError, match="each process was given its own"):
        prepare(load_config(settings()), nodes=nodes, peers=Two())  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_figure_draws_it(tmp_path):
    file = tmp_path / "figure.toml"
    sections = settings(train={"steps": 20, "evaluate_every": 10})
    lines = [{"name": "all"}, {"name": "some", "set": {"algorithm.activation": 0.5}}]
    file.write_text(tomli_w.dumps({**sections, "figure": {"y": "suboptimality", "line": lines}}))
    answer = command_line("compare", file, "--out", tmp_path / "out", "--json")
    found = [line["points"][0]["figures"]["suboptimality"] for line in answer.json["lines"]]
    assert 0 < found[0]["mean"] < found[1]["mean"]
