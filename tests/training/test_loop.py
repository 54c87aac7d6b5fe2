"""`tacit.train` and `tacit.training.loop.execute`: what a run gives back, and how it ends badly."""

import copy
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

import tacit
from experiments import experiment, strict_json, tree, write_experiment, write_module
from experiments import tacit as command_line
from tacit.config import load_config
from tacit.errors import BudgetError, DivergenceError, InputError
from tacit.privacy.ledger.ledger import Ledger, step_runs
from tacit.training.loop import execute
from tacit.training.planner import build_plan
from tacit.training.prepare import prepare
from tacit.training.run_folder.checkpoint import latest, read
from tacit.training.run_folder.result import bytes_per_step, mechanism_line, shared_conditions

NODES, RECORDS, FEATURES, CLASSES = 3, 8, 5, 2


def given(**changes):
    """The base experiment for data that are passed as objects."""
    task = {"dataset": None, "outputs": CLASSES, **changes.pop("task", {})}
    return experiment(task=task, **changes)


def records(count, seed):
    inputs = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs.sum(1) > 0).long()


PAIRS = [records(RECORDS, node) for node in range(NODES)]
TEST = records(20, 99)


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES))


def vector_of(module):
    return nn.utils.parameters_to_vector(module.parameters()).detach()


@pytest.fixture(scope="module")
def module():
    return network()


@pytest.fixture(scope="module")
def result(module):
    return tacit.train(
        given(algorithm={"learning_rate": 0.2}), model=module, nodes=PAIRS, test=TEST
    )


# What comes back.


def test_every_nodes_model_is_in_the_order_of_the_modules_parameters(result, module):
    size = sum(parameter.numel() for parameter in module.parameters())
    assert result.parameters.shape == (NODES, size)
    torch.testing.assert_close(result.consensus, result.parameters.mean(0), rtol=0, atol=0)
    inputs = TEST[0]
    for node, vector in enumerate(result.parameters):
        trained = result.model(node)
        assert torch.equal(vector_of(trained), vector)
        first, first_bias, second, second_bias = torch.split(vector, [4 * FEATURES, 4, 8, 2])
        hidden = torch.tanh(inputs @ first.view(4, FEATURES).T + first_bias)
        torch.testing.assert_close(trained(inputs), hidden @ second.view(2, 4).T + second_bias)
    assert torch.equal(vector_of(result.model()), result.consensus)
    assert torch.equal(vector_of(result.model("consensus")), result.consensus)


def test_the_passed_module_is_the_start_and_is_left_alone(result, module):
    untouched = network()
    assert torch.equal(vector_of(module), vector_of(untouched))
    assert all(parameter.grad is None for parameter in module.parameters())
    assert module.training
    # The seed of the experiment does not draw the start of a module that is given.
    reseeded = tacit.train(
        given(algorithm={"learning_rate": 0.2}, train={"seed": 9}),
        model=untouched,
        nodes=PAIRS,
        test=TEST,
    )
    assert torch.equal(reseeded.parameters, result.parameters)
    # With a step of nothing, the nodes stay where they started.
    still = tacit.train(given(algorithm={"learning_rate": 1e-30}), model=module, nodes=PAIRS)
    torch.testing.assert_close(still.parameters, vector_of(module).repeat(NODES, 1))


def test_changing_a_trained_copy_changes_nothing_else(result):
    before = result.parameters.clone()
    with torch.no_grad():
        for parameter in result.model(0).parameters():
            parameter.zero_()
    assert torch.equal(result.parameters, before)
    assert torch.equal(vector_of(result.model(0)), before[0])


def test_frozen_parameters_are_neither_trained_nor_counted():
    model = network()
    model[0].requires_grad_(False)
    trained = tacit.train(given(), model=model, nodes=PAIRS)
    assert trained.parameters.shape == (NODES, 10)
    copied = trained.model(1)
    assert torch.equal(copied[0].weight, model[0].weight)
    assert not torch.equal(copied[2].weight, model[2].weight)


def test_metrics_are_series_of_one_length(result):
    lengths = {name: len(values) for name, values in result.metrics.items()}
    assert set(lengths.values()) == {7}
    assert result.metrics["step"] == [0, 1, 2, 3, 4, 5, 6]
    assert result.metrics["consensus_distance"][0] == pytest.approx(0.0, abs=1e-6)
    assert result.metrics["train_loss"][0] is None  # no batch was drawn yet
    assert all(loss > 0 for loss in result.metrics["train_loss"][1:])
    spent = [row["max"] for row in result.metrics["epsilon"]]
    assert spent[0] == 0.0
    assert all(one < other for one, other in pairwise(spent))
    assert spent[-1] == max(epsilon or 0.0 for epsilon in result.epsilon)


def test_the_last_measurement_is_the_results(result):
    assert result.test_accuracy == result.metrics["test_accuracy"][-1]
    assert result.test_accuracy is not None
    right = [
        float((result.model(node)(TEST[0]).argmax(1) == TEST[1]).float().mean())
        for node in range(NODES)
    ]
    assert result.test_accuracy["mean"] == pytest.approx(np.mean(right))
    assert result.test_accuracy["worst"] == pytest.approx(min(right))


def test_epsilon_and_claims_have_one_row_a_node():
    budgets = [1.0, 2.0, 4.0]
    deltas = [1e-5, 1e-4, 1e-3]
    result = tacit.train(
        given(privacy={"noise_std": None, "epsilon": budgets, "delta": deltas}), nodes=PAIRS
    )
    assert [claim.node for claim in result.claims] == [0, 1, 2]
    assert [claim.budget for claim in result.claims] == budgets
    assert [claim.delta for claim in result.claims] == deltas
    assert tuple(claim.certified for claim in result.claims) == result.epsilon
    for epsilon, budget in zip(result.epsilon, budgets, strict=True):
        assert epsilon is not None
        assert 0.99 * budget < epsilon <= budget
    assert all(claim.claimed is not None for claim in result.claims)
    assert all(claim.audited is None for claim in result.claims)


def test_what_is_not_accounted_reports_no_epsilon():
    for changes in (
        {"algorithm": {"name": "sgp"}, "privacy": {"noise_std": None}},
        {"privacy": {"accounting": "none"}},
    ):
        result = tacit.train(given(**changes), nodes=PAIRS)
        assert result.epsilon == (None,) * NODES
        assert result.metrics["epsilon"] == [None] * 7
        assert not result.private


def test_bytes_are_those_of_one_peer_a_step():
    result = tacit.train(given(train={"dtype": "float64"}), nodes=PAIRS, model=network())
    numbers = result.parameters.shape[1] + 1  # the model, and the push-sum weight
    assert result.bytes_sent == (6 * numbers * 8,) * NODES


def test_float64_runs_in_float64():
    result = tacit.train(given(train={"dtype": "float64"}), nodes=PAIRS)
    assert result.parameters.dtype == torch.float64
    assert result.model().state_dict()["1.weight"].dtype == torch.float64


# What goes in.


@pytest.mark.parametrize(
    "form",
    [
        lambda inputs, targets: (inputs.numpy(), targets.numpy()),
        lambda inputs, targets: [inputs, targets],
        lambda inputs, targets: tacit.Dataset(inputs, targets),
        lambda inputs, targets: TensorDataset(inputs, targets),
    ],
    ids=["arrays", "list", "Dataset", "torch Dataset"],
)
def test_records_may_be_given_in_several_forms(form, result, module):
    nodes = [form(*pair) for pair in PAIRS]
    other = tacit.train(
        given(algorithm={"learning_rate": 0.2}), model=module, nodes=nodes, test=form(*TEST)
    )
    assert torch.equal(other.parameters, result.parameters)
    assert other.test_accuracy == result.test_accuracy


def test_the_experiment_may_be_a_mapping_a_file_or_a_config(tmp_path, result, module):
    changes = {"task": {"dataset": None}, "algorithm": {"learning_rate": 0.2}}
    file = write_experiment(tmp_path, **changes)
    parsed = load_config(file, count=NODES, given_model=True)
    for source in (str(file), file, parsed):
        other = tacit.train(source, model=module, nodes=PAIRS, test=TEST)
        assert torch.equal(other.parameters, result.parameters)


def test_given_objects_are_left_alone():
    sections, nodes, test = given(), copy.deepcopy(PAIRS), copy.deepcopy(TEST)
    tacit.train(sections, nodes=nodes, test=test)
    assert sections == given()
    for used, before in zip([*nodes, test], [*PAIRS, TEST], strict=True):
        assert all(torch.equal(one, other) for one, other in zip(used, before, strict=True))


def test_nodes_may_hold_different_numbers_of_records():
    nodes = [records(count, count) for count in (2, 9, 30)]
    result = tacit.train(given(), nodes=nodes)
    assert [node.records for node in result.plan.nodes] == [2, 9, 30]
    # The same noise in the mean costs the small node most.
    spent = [epsilon or 0.0 for epsilon in result.epsilon]
    assert spent[0] > spent[1] > spent[2] > 0


def test_without_test_records_nothing_is_measured_on_them():
    result = tacit.train(given(), nodes=PAIRS)
    assert (result.test_accuracy, result.test_loss) == (None, None)
    assert result.metrics["test_accuracy"] == result.metrics["test_loss"] == [None] * 7


def test_other_test_records_may_be_given_for_a_named_data_set():
    inputs = torch.zeros(4, 1, 8, 8)
    result = tacit.train(experiment(), test=(inputs, torch.zeros(4, dtype=torch.long)))
    assert result.test_accuracy is not None
    assert result.test_accuracy["consensus"] in (0.0, 1.0)  # all four are the same record


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"nodes": []}, "nodes"),
        ({"nodes": [PAIRS[0], 5]}, "nodes[1]"),
        ({"nodes": [PAIRS[0], (torch.zeros(0, 5), torch.zeros(0))]}, "nodes[1]"),
        ({"nodes": [PAIRS[0], (PAIRS[1][0] / 0, PAIRS[1][1])]}, "nodes[1]"),
        ({"nodes": PAIRS, "test": (torch.zeros(4, 6), torch.zeros(4).long())}, "test"),
        ({"nodes": PAIRS, "test": (torch.full((4, 5), torch.nan), torch.zeros(4).long())}, "test"),
        ({"nodes": PAIRS, "model": nn.Linear(6, 2)}, "task.model"),
        ({"nodes": PAIRS, "model": nn.BatchNorm1d(5)}, "task.model"),
        ({"nodes": PAIRS, "model": "mlp"}, "model"),
        ({}, "task.dataset"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_on_is_named(arguments, where, tmp_path):
    with pytest.raises(InputError) as caught:
        tacit.train(given(), **arguments, out=tmp_path / "run")
    assert caught.value.where == where
    assert "\n" not in str(caught.value)
    assert tree(tmp_path) == set()


def test_records_of_another_shape_are_refused():
    with pytest.raises(InputError, match="inputs \\[4\\]"):
        tacit.train(given(), nodes=[PAIRS[0], (torch.zeros(3, 4), torch.zeros(3).long())])


def test_a_budget_that_cannot_be_met_names_the_nodes(tmp_path):
    with pytest.raises(BudgetError, match=r"node 2: .*above the budget of 0\.001"):
        tacit.train(
            given(privacy={"epsilon": [50.0, 50.0, 0.001], "noise_std": 1.0}),
            nodes=PAIRS,
            out=tmp_path / "run",
        )
    assert tree(tmp_path) == set()


# What is written.


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = tacit.train(given(), nodes=PAIRS)
    assert result.out is None
    assert tree(tmp_path) == set()


def test_a_folder_changes_no_number(tmp_path):
    silent = tacit.train(given(), nodes=PAIRS, test=TEST)
    run = tmp_path / "deep" / "run"
    written = tacit.train(given(), nodes=PAIRS, test=TEST, out=run)
    assert written.out == run
    assert torch.equal(written.parameters, silent.parameters)
    assert written.epsilon == silent.epsilon
    assert torch.equal(load_file(run / "nodes.safetensors")["parameters"], silent.parameters)
    content = strict_json((run / "result.json").read_text())
    assert content["epsilon"] == list(silent.epsilon)
    assert content["test_accuracy"] == silent.test_accuracy
    with pytest.raises(InputError, match="exists already"):
        tacit.train(given(), nodes=PAIRS, out=run)


def test_given_data_resume_too(tmp_path):
    whole = tacit.train(given(), nodes=PAIRS, model=network())
    job = prepare(load_config(given(), count=NODES, given_model=True), model=network(), nodes=PAIRS)
    asked = iter([False, True])
    execute(job, out=tmp_path / "run", should_stop=lambda: next(asked))
    again = tacit.train(given(), nodes=PAIRS, model=network(), out=tmp_path / "run", resume=True)
    assert torch.equal(again.parameters, whole.parameters)
    assert again.epsilon == whole.epsilon


def test_evaluating_and_saving_often_changes_no_model():
    rare = {"evaluate_every": 100, "checkpoint_every": 100}
    often = {"evaluate_every": 1, "checkpoint_every": 1}
    one, other = (tacit.train(given(train=kind), nodes=PAIRS, test=TEST) for kind in (rare, often))
    assert torch.equal(one.parameters, other.parameters)
    assert one.epsilon == other.epsilon
    assert one.metrics["step"] == [0, 6]


def test_progress_is_told_after_every_step():
    job = prepare(load_config(given(), count=NODES), nodes=PAIRS, test=TEST)
    told = []
    result = execute(job, on_step=told.append)
    assert [moment.step for moment in told] == [1, 2, 3, 4, 5, 6]
    assert {moment.steps for moment in told} == {6}
    spent = [moment.epsilon or 0.0 for moment in told]
    assert spent == sorted(spent)
    assert spent[-1] == max(epsilon or 0.0 for epsilon in result.epsilon)


# Divergence.


def diverging(**changes):
    task = {"dataset": None, "model": "linear", "loss": "mse"}
    return experiment(task=task, **{"algorithm": {"learning_rate": 1e30}, **changes})


NUMBERS = [(inputs, inputs.sum(1, keepdim=True)) for inputs, _ in PAIRS]


def test_divergence_keeps_the_last_good_state_and_says_what_to_lower(tmp_path):
    run = tmp_path / "run"
    config = diverging(
        algorithm={"name": "sgp", "learning_rate": 1e9},
        privacy={"noise_std": None},
        train={"checkpoint_every": 1, "evaluate_every": 100},
    )
    with pytest.raises(DivergenceError, match="the model of node 0") as caught:
        tacit.train(config, nodes=NUMBERS, out=run)
    assert "lower algorithm.learning_rate (now 1e+09)" in str(caught.value)
    kept = latest(run)
    assert kept is not None
    assert str(kept) in str(caught.value)
    digest = prepare(load_config(config, count=NODES), nodes=NUMBERS).plan.digest()
    saved = read(kept, digest)
    assert saved.step == 1
    assert bool(torch.isfinite(saved.tensors["x"]).all())
    content = strict_json((run / "result.json").read_text())
    assert (content["status"], content["steps"]) == ("diverged", 2)
    assert content["message"] == str(caught.value)
    assert content["test_accuracy"] is None
    assert "model.safetensors" not in tree(run)
    assert "report.html" in tree(run)


def test_a_diverged_run_has_no_model_to_evaluate(tmp_path):
    changes = {"algorithm": {"learning_rate": 1e38}, "privacy": {"noise_std": 100.0}}
    job, run = prepare(load_config(experiment(**changes))), tmp_path / "run"
    with pytest.raises(DivergenceError):
        execute(job, out=run)
    assert strict_json((run / "result.json").read_text())["status"] == "diverged"
    answer = command_line("evaluate", run)
    assert answer.code == 2
    assert "the run diverged" in answer.refusal


def test_what_a_diverged_run_released_is_on_the_books(tmp_path):
    run = tmp_path / "run"
    # One noised step of this size leaves the range of float32.
    config = diverging(algorithm={"learning_rate": 1e38}, privacy={"noise_std": 100.0})
    with pytest.raises(DivergenceError, match="nothing was saved"):
        tacit.train(config, nodes=NUMBERS, out=run)
    assert latest(run) is None
    content = strict_json((run / "result.json").read_text())
    assert (content["status"], content["steps"]) == ("diverged", 1)
    assert all(epsilon > 0 for epsilon in content["epsilon"])
    with Ledger.open(run / "ledger.sqlite", digest=None) as ledger:
        charged = {node: step_runs(own) for node, own in ledger.charged().items()}
    # That it ended follows from what it released: the figure of one step does not cover that.
    assert charged == dict.fromkeys(range(NODES), ((0, 6, 1),))
    assert content["charged_steps"] == 6
    assert "all 6 planned steps stay charged" in content["message"]
    with pytest.raises(DivergenceError):
        tacit.train(config, nodes=NUMBERS)


def test_the_command_line_answers_divergence_with_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = write_module(
        tmp_path,
        """
        def numbers():
            inputs = torch.arange(40.0).reshape(20, 2)
            return (inputs, inputs.sum(1, keepdim=True)), None
        """,
    )
    file = write_experiment(
        tmp_path,
        task={"dataset": f"{name}:numbers", "model": "linear", "loss": "mse"},
        algorithm={"name": "sgp", "learning_rate": 1e30},
        privacy={"noise_std": None},
    )
    answer = command_line("train", file, "--out", tmp_path / "run", "--quiet")
    assert answer.code == 2
    assert "the model of node 0" in answer.refusal
    assert "algorithm.learning_rate" in answer.refusal
    for command in ("evaluate", "report"):
        after = command_line(command, tmp_path / "run")
        assert after.code == (2 if command == "evaluate" else 0)


def test_a_claim_is_about_the_steps_that_ran():
    sections = experiment(privacy={"epsilon": 1.0, "delta": 1e-3}, train={"steps": 8})
    job = prepare(load_config(sections))
    asked = iter([False, False, True])
    stopped = execute(job, should_stop=lambda: next(asked))
    whole = execute(job)
    assert stopped.steps == 3
    for early, late in zip(stopped.claims, whole.claims, strict=True):
        assert early.claimed is not None
        assert late.claimed is not None
        # PrivSGP's formula grows with the root of the steps.
        assert early.claimed == pytest.approx(late.claimed * (3 / 8) ** 0.5)
        assert early.certified is not None
        assert late.certified is not None
        assert early.certified < late.certified
    series = [row["max"] for row in whole.metrics["claimed_epsilon"]]
    assert series[0] == 0.0
    assert series == sorted(series)


# Runs that guarantee nothing.


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "seeded noise: anyone who knows the seed can subtract it"),
        (
            {"privacy": {"noise_seed": None, "accounting": "none"}},
            "the noise is not accounted, and nothing is certified",
        ),
        (
            {"privacy": {"noise_seed": None, "noise_std": None, "epsilon": "none"}},
            "no noise is added",
        ),
        (
            {"privacy": {"noise_seed": None, "noise_std": None}, "algorithm": {"name": "sgp"}},
            "sgp adds no noise",
        ),
        (
            {"privacy": {"noise_seed": None, "noise_std": 1e-9}},
            "there is too little noise for any finite epsilon",
        ),
    ],
)
def test_a_run_that_is_not_private_warns_its_caller(changes, reason):
    for spelling in (given(**changes), tacit.Config(**given(**changes))):
        with pytest.warns(tacit.NotPrivateWarning) as caught:
            result = tacit.train(spelling, model=network(), nodes=PAIRS)
        (warning,) = caught
        assert str(warning.message) == f"this run is NOT PRIVATE: {reason}"
        assert warning.filename == __file__
        assert result.private is False
        assert result.plan.warnings[0] == str(warning.message)


def test_a_private_run_warns_of_nothing_and_a_refused_one_neither():
    private = given(privacy={"noise_seed": None})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tacit.train(private, model=network(), nodes=PAIRS).private is True
        with pytest.raises(BudgetError):
            tacit.train(given(privacy={"epsilon": 1e-6}), model=network(), nodes=PAIRS)


@pytest.mark.slow
def test_thousands_of_nodes_are_trained(tmp_path):
    draw = torch.Generator().manual_seed(3)
    nodes = [
        (torch.randn(2, 3, generator=draw), torch.randint(0, 2, (2,), generator=draw))
        for _ in range(1500)
    ]
    done = tacit.train(
        {
            "task": {"model": "logistic", "outputs": 2},
            "algorithm": {"name": "privsgp", "clip": 1.0},
            "privacy": {"epsilon": 2.0, "delta": 1e-2, "noise_seed": 4},
            "train": {"steps": 2, "batch": "all"},
        },
        nodes=nodes,
        out=tmp_path / "run",
    )
    assert done.parameters.shape == (1500, 8)
    assert bool(torch.isfinite(done.parameters).all())
    assert set(done.epsilon) == {done.epsilon[0]}
    assert done.epsilon[0] <= 2.0
    assert len(list((tmp_path / "run").glob("checkpoint-*"))) > 0


# What a result says of a plan: whether it is private, by which mechanism, at what traffic.


NO_NOISE = {"algorithm": {"name": "sgp"}, "privacy": {"noise_std": None}}
FIXED = {"privacy": {"relation": "replace-one"}, "train": {"batch": 10, "sampling": "fixed"}}


def plan_of(records=None, **changes):
    return build_plan(load_config(experiment(**changes)), records or [50, 50, 50, 50], 5)


@pytest.mark.parametrize(
    ("changes", "private", "reason"),
    [
        ({"privacy": {"noise_seed": None}}, True, None),
        ({}, False, "seeded noise"),
        ({"privacy": {"noise_seed": None, "accounting": "none"}}, False, "not accounted"),
        (NO_NOISE, False, "adds no noise"),
        (
            {"privacy": {"noise_std": None, "noise_seed": None, "epsilon": "none"}},
            False,
            "no noise",
        ),
    ],
)
def test_private_is_noise_from_secret_keys_that_is_accounted(changes, private, reason):
    plan = plan_of(**changes)
    why = plan.config.not_private_reason
    assert (why is None) == private
    assert [warning for warning in plan.warnings if "NOT PRIVATE" in warning] == (
        [] if private else [f"this run is NOT PRIVATE: {why}"]
    )
    assert (why is None) if reason is None else (why is not None and reason in why)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (NO_NOISE, None),
        ({}, "Gaussian on every record at every step, noise multiplier 2.5, 6 steps"),
        (
            {"train": {"batch": 10}},
            "Poisson-sampled Gaussian, rate 0.2, noise multiplier 0.5, 6 steps",
        ),
        (
            FIXED,
            "Gaussian on batches of fixed size without replacement, noise multiplier 0.5, 6 steps",
        ),
    ],
)
def test_the_mechanism_in_one_line(changes, line):
    assert mechanism_line(plan_of(**changes)) == line


def test_a_schedule_and_unequal_nodes_are_told_by_their_ends():
    falling = plan_of(
        [25, 50, 100, 200], algorithm={"name": "dyn-mu", "clip": 1}, train={"batch": 20}
    )
    line = mechanism_line(falling)
    assert line is not None
    assert "rate 0.1 to 0.8" in line
    assert "noise multiplier 1 falling to" in line  # 0.05 in the mean of 20, at every node


def test_traffic_is_the_mean_over_the_graphs_period():
    numbers, size = 6, 4
    one_peer = bytes_per_step(plan_of(), numbers, size)
    assert one_peer.tolist() == [24.0] * 4
    complete = bytes_per_step(plan_of(topology={"graph": "complete"}), numbers, size)
    assert complete.tolist() == [3 * 24.0] * 4
    star = plan_of(algorithm={"name": "dp2-sgd"}, topology={"graph": "star"})
    assert sorted(bytes_per_step(star, numbers, size).tolist()) == [24.0, 24.0, 24.0, 72.0]


def test_conditions_are_those_of_the_node_where_fewest_hold():
    plan = plan_of([20, 50, 500, 5000], algorithm={"name": "dyn-d2p"})
    held = [sum(condition.holds for condition in node.conditions) for node in plan.nodes]
    assert sum(condition.holds for condition in shared_conditions(plan)) == min(held)


# For people and in notebooks.


def test_a_result_is_a_few_lines():
    result = tacit.train(experiment(privacy={"noise_seed": None}))
    lines = repr(result).splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "run",
        "test accuracy",
        "test loss",
        "privacy",
    ]
    assert "PrivSGP on digits, 4 nodes, 6 of 6 steps in " in lines[0]
    assert lines[-1].startswith("privacy        certified epsilon 0.47")
    seeded = tacit.train(experiment())
    assert repr(seeded).splitlines()[-1].startswith("privacy        NOT PRIVATE: seeded noise")
    html = seeded._repr_html_()
    assert html.startswith("<table><tr><th")
    assert "NOT PRIVATE: seeded noise" in html


def test_the_series_are_a_frame_of_what_is_public_unless_asked():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    result = tacit.train(experiment())
    frame = result.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.index) == result.metrics["step"]
    means = [row["mean"] for row in result.metrics["test_accuracy"]]
    assert list(frame["test_accuracy.mean"]) == means
    assert not [name for name in frame.columns if "loss" in name and "test" not in name]
    every = result.to_pandas(private=True)
    assert list(every["private.train_loss"])[1:] == result.metrics["train_loss"][1:]
    assert set(every.columns) - set(frame.columns) == {
        name for name in every.columns if name.startswith("private.")
    }
    other = result.to_polars()
    assert isinstance(other, polars.DataFrame)
    assert other["epsilon.max"].to_list() == list(frame["epsilon.max"])


def test_models_are_in_evaluation_mode():
    result = tacit.train(experiment())
    assert not any(result.model(node).training for node in ("consensus", 0, -1))
