"""Runs that are judged by what was asked for: from the argument to result, page and terminal."""

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, recall_score, roc_auc_score
from torch import nn

import tacit
from experiments import tacit as command_line
from experiments import write_experiment, write_module
from tacit.analysis.score import Score
from tacit.cli.tables import plan_document, plan_names
from tacit.errors import InputError
from tacit.models.probabilities import calibration_bins
from tacit.report.documents.run import read_result
from tacit.report.plan_page import plan_blocks, result_blocks
from tacit.report.terminal import terminal

FEATURES = 4


def patients(count, seed):
    """One in eight is ill, and the first feature tells it fairly well."""
    inputs = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    noise = torch.randn(count, generator=torch.Generator().manual_seed(seed + 1))
    return inputs, (inputs[:, 0] + 0.3 * noise > 1.2).long()


NODES = [patients(count, 10 * count) for count in (60, 80, 100)]
TEST = patients(300, 5)
SHARE = float((TEST[1] == 0).double().mean())


def settings(**task):
    return {
        "task": {"model": "logistic", "outputs": 2, **task},
        "topology": {"graph": "ring"},
        "algorithm": {"name": "dp2-sgd", "learning_rate": 2.0, "clip": 1.0},
        "privacy": {"noise_std": 0.02, "noise_seed": 1},
        "train": {"steps": 12, "batch": "all"},
    }


def trained(task=None, **given):
    arguments = {"nodes": NODES, "test": TEST, **given}
    return tacit.train(settings(**(task or {})), **arguments)


def found_ill(outputs, targets):
    """Recall of class 1."""
    return (outputs.argmax(1)[targets == 1] == 1).double().mean()


pytestmark = pytest.mark.filterwarnings("ignore::tacit.NotPrivateWarning")


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    out = tmp_path_factory.mktemp("judged") / "run"
    return trained(metric=["auc", found_ill, "balanced-accuracy"], out=out)


def test_each_metric_is_that_of_every_nodes_model(judged):
    inputs, targets = TEST
    names = ["auc", "found_ill", "balanced-accuracy"]
    assert list(judged.test_metrics) == names
    rows = []
    for node in (0, 1, 2, "consensus"):
        with torch.no_grad():
            outputs = judged.model(node)(inputs).double()
        predicted = outputs.argmax(1)
        rows.append(
            (
                roc_auc_score(targets, outputs.softmax(1)[:, 1]),
                recall_score(targets, predicted),
                balanced_accuracy_score(targets, predicted),
            )
        )
    for place, (name, baseline) in enumerate(zip(names, (0.5, 0.0, 0.5), strict=True)):
        scores = judged.test_metrics[name]
        *own, consensus = [row[place] for row in rows]
        assert scores.mean == pytest.approx(sum(own) / 3)
        assert scores.worst == pytest.approx(min(own))
        assert scores.consensus == pytest.approx(consensus)
        assert scores.baseline == baseline
    assert rows[0][0] > 0.9
    assert judged.test_accuracy is not None
    assert judged.test_accuracy["baseline"] == pytest.approx(SHARE)


def test_files_page_and_terminal_lead_with_the_first_one(judged, capsys):
    assert judged.out is not None
    document = json.loads((judged.out / "result.json").read_text())
    lines = (judged.out / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert list(document["test_metrics"]) == list(judged.test_metrics)
    assert document["test_metrics"] == last["test_metrics"]
    assert document["test_metrics"]["auc"]["mean"] == judged.test_metrics["auc"].mean
    assert len(document["test_metrics_by_node"]["auc"]) == 3
    assert judged.metrics["test_metrics"][-1]["auc"]["mean"] == judged.test_metrics["auc"].mean
    assert judged.leading == (judged.leading[0], judged.test_metrics["auc"])

    page = (judged.out / "report.html").read_text()
    assert "Test AUC, mean over nodes" in page
    assert "baseline 0.500" in page
    assert "Test AUC by steps" in page
    assert "test AUC</th>" in page
    assert "Test found_ill" in page

    terminal(result_blocks(read_result(judged.out / "result.json"), judged.out, ()))
    table = capsys.readouterr().out
    assert table.index("test AUC, mean over nodes") < table.index("found_ill")
    assert "test AUC, baseline" in table
    planned = plan_document(judged.job)
    terminal(plan_blocks(planned, plan_names(judged.job)))
    assert "AUC (baseline 0.500), found_ill, balanced accuracy" in " ".join(
        capsys.readouterr().out.replace("│", " ").split()
    )
    assert planned.metrics == ("auc", "found_ill", "balanced-accuracy")
    assert planned.baselines["auc"] == 0.5


def test_on_the_way_the_first_test_records_are_scored(judged):
    few = {**settings(metric="auc"), "train": {"steps": 2, "batch": "all", "evaluate_records": 40}}
    result = tacit.train(few, nodes=NODES, test=TEST)
    outputs = torch.zeros(40, 2)
    assert (
        result.metrics["test_metrics"][0]["auc"]["mean"]
        == 0.5
        == roc_auc_score(TEST[1][:40], outputs[:, 1])
    )
    with torch.no_grad():
        last = result.model()(TEST[0])
    right = roc_auc_score(TEST[1], (last[:, 1] - last[:, 0]).double())
    assert result.metrics["test_metrics"][-1]["auc"]["consensus"] == pytest.approx(right)


def test_a_file_names_metrics_that_evaluate_scores_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = write_module(
        tmp_path,
        """
        def top(outputs, targets):
            return (outputs.argmax(1) == targets).double().mean()
        """,
    )
    file = write_experiment(tmp_path, task={"metric": ["auc", f"{module}:top"]})
    document = command_line("train", file, "--out", tmp_path / "run", "--json").json
    scores = document["test_metrics"]
    assert list(scores) == ["auc", f"{module}:top"]
    assert scores[f"{module}:top"]["mean"] == pytest.approx(document["test_accuracy"]["mean"])
    again = command_line("evaluate", tmp_path / "run", "--trust", "--json").json
    assert again["metrics"]["auc"] == pytest.approx(scores["auc"]["consensus"], rel=1e-5)
    assert again["baselines"]["auc"] == 0.5
    line = command_line("evaluate", tmp_path / "run", "--trust").out
    assert line.startswith("digits: AUC 0.")
    assert ", baseline 0.500; top " in line
    assert "AUC" in command_line("plan", file).out


def test_a_loss_may_be_passed_as_an_object(tmp_path):
    own = trained(loss=nn.CrossEntropyLoss(), metric="auc", out=tmp_path / "run")
    named = trained(loss="cross-entropy", metric="auc")
    torch.testing.assert_close(own.parameters, named.parameters, rtol=1e-5, atol=1e-6)
    assert own.test_metrics["auc"].mean == pytest.approx(named.test_metrics["auc"].mean)
    assert own.test_accuracy is None
    assert 'loss = "given"' in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"loss": 3}, "^loss = 3"),
        ({"loss": nn.CrossEntropyLoss(weight=torch.ones(2))}, r"task\.class_weights"),
        ({"metric": "aucc"}, "did you mean 'auc'"),
        ({"metric": "r2"}, "needs targets that are numbers"),
        ({"metric": "auc", "test": None}, "there are none"),
        ({"metric": "auc", "test": (TEST[0], TEST[1] * 0)}, "all 300 have the same class"),
        ({"task": {"class_weights": [1.0, 2.0, 3.0]}}, "one weight a class: there are 2"),
        ({"task": {"class_weights": [1.0, -2.0]}}, r"task\.class_weights"),
        ({"task": {"class_weights": [1.0]}}, r"task\.class_weights"),
        ({"task": {"metric": []}}, r"task\.metric = \[\]"),
        ({"task": {"metric": ["auc", "auc"]}}, "each metric once"),
        ({"task": {"loss": "given"}}, "pass it as loss= again"),
    ],
)
def test_what_cannot_be_is_refused_before_training(given, text, tmp_path):
    with pytest.raises(InputError, match=text) as caught:
        trained(**given, out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def imbalanced(result):
    return [text for text in result.plan.warnings if "of one class" in text]


def test_accuracy_that_says_little_is_warned_of():
    (warning,) = imbalanced(trained())
    assert "metric = 'auc'" in warning
    assert "task.class_weights" in warning
    assert imbalanced(trained(metric="auc")) == []
    even = torch.arange(300) % 2
    assert imbalanced(trained(test=(TEST[0], even))) == []


def test_a_score_no_better_than_its_baseline_is_said_in_words(tmp_path, capsys):
    task = {"metric": ["accuracy", "brier", "log-loss", "calibration"]}
    noisy = {**settings(**task), "privacy": {"noise_std": 1e4, "noise_seed": 1}}
    tacit.train(noisy, nodes=NODES, test=TEST, out=tmp_path / "run")
    terminal(result_blocks(read_result(tmp_path / "run" / "result.json"), tmp_path, ()))
    told = " ".join(capsys.readouterr().out.split())
    for title in ("accuracy", "Brier score", "log loss"):
        assert f"the test {title} of" in told
    assert told.count("is no better than the baseline") == 3  # calibration has none
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("is no better than the baseline") == 1  # of the leading score
    assert page.count("; no better than a model that ignores its inputs") == 4  # and of the loss


def test_scores_of_other_records_say_that_they_are_no_better():
    score = Score(
        "more",
        9,
        {"auc": 0.8, "log-loss": 0.7, "calibration": 3.0},
        0.9,
        0.2,
        {"auc": 0.5, "log-loss": 0.6, "calibration": None, "accuracy": 0.9, "loss": 0.6},
    )
    first, *notes = score.describe().splitlines()
    assert first.endswith("on 9 records")
    assert [note.split(" of ")[0] for note in notes] == [
        "note: the test log loss",
        "note: the test accuracy",
    ]


def test_the_calibration_curve_is_of_the_consensus_model_and_all_test_records(judged):
    assert judged.out is not None
    outputs = judged.model()(TEST[0])
    bins = read_result(judged.out / "result.json").calibration
    told = [(own.predicted, own.observed, own.records) for own in bins]
    right = np.array(calibration_bins(outputs, TEST[1]))
    np.testing.assert_allclose(np.array(told), right, rtol=1e-5)
    assert sum(own.records for own in bins) == len(TEST[1])
    assert "Calibration of the consensus model" in (judged.out / "report.html").read_text()


def test_class_weights_find_the_rare_class(judged):
    weighted = trained({"class_weights": [1.0, 8.0]}, metric=found_ill)
    assert weighted.test_metrics["found_ill"].mean > judged.test_metrics["found_ill"].mean + 0.1
    assert weighted.job.model.path == "taps"
    even = trained({"class_weights": [4.0, 4.0]})
    torch.testing.assert_close(even.parameters, judged.parameters, rtol=1e-4, atol=1e-5)


def test_a_weighted_loss_has_no_smoothness_that_is_proved():
    federated = {
        "task": {"model": "logistic", "outputs": 1, "loss": "logistic"},
        "algorithm": {"name": "fedspd-dp", "smoothness": 1.0},
        "privacy": {"noise_std": 0.1, "accounting": "none"},
        "train": {"steps": 2, "batch": "all"},
    }
    tacit.train(federated, nodes=NODES)
    federated["task"] = {**federated["task"], "class_weights": [1.0, 8.0]}
    with pytest.raises(InputError, match=r"algorithm\.smoothness"):
        tacit.train(federated, nodes=NODES)


def test_private_models_are_scored_by_the_common_one():
    federated = {
        "task": {"model": "logistic", "outputs": 2},
        "algorithm": {"name": "fedspd-dp"},
        "privacy": {"noise_std": 0.01, "noise_seed": 1},
        "train": {"steps": 3, "batch": "all"},
    }
    scores = tacit.train(federated, nodes=NODES, test=TEST, metric="auc").test_metrics["auc"]
    assert scores.mean == scores.worst == scores.consensus
