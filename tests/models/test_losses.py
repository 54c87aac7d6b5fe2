"""A task's loss and metric by name and by `module:function`, from the file to the evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tacit
from experiments import Sections, experiment, write_experiment, write_module
from experiments import tacit as command_line
from tacit.config import load_config
from tacit.config.schema import LOSS_NAMES
from tacit.errors import InputError
from tacit.gradients import LOSSES
from tacit.models.losses import find_loss

SOURCE = """
    value = 3

    def numbers():
        inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
        targets = torch.stack([inputs.sum(1), inputs[:, 0]], 1)
        return (inputs[:40], targets[:40]), (inputs[40:], targets[40:])

    def squares(outputs, targets):
        return (outputs - targets).square().mean()

    def summed(outputs, targets):
        return (outputs - targets).square().sum()

    def near(outputs, targets):
        return (outputs - targets).abs().amax(1) < 1

    def overall(outputs, targets):
        return (outputs - targets).abs().mean()

    def margin(outputs, targets):
        gaps = (1 - outputs.gather(1, targets[:, None]) + outputs).clamp(min=0)
        return (gaps.sum(1) - 1).mean() / 10

    def second(outputs, targets):
        return (outputs.topk(2).indices == targets[:, None]).any(1)

    def signs():
        (inputs, targets), test = numbers()
        return (inputs, (targets[:, 0] > 0).long()), (test[0], (test[1][:, 0] > 0).long())
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current directory; its name."""
    monkeypatch.chdir(tmp_path)
    return write_module(tmp_path, SOURCE)


def regression(here: str, **task: str) -> Sections:
    given = {"dataset": f"{here}:numbers", "model": "linear", **task}
    return experiment(task=given, algorithm={"learning_rate": 0.1, "clip": 1.0})


def test_a_name_is_the_loss_of_the_table() -> None:
    assert find_loss("mse") is LOSSES["mse"]
    with pytest.raises(InputError, match=r"task\.loss = 'mes'.*did you mean 'mse'.*module:func"):
        find_loss("mes")


def test_an_experiment_knows_the_names_of_the_table() -> None:
    assert tuple(LOSSES) == LOSS_NAMES
    with pytest.raises(InputError, match=r"task\.loss = 'hinge'.*module:function"):
        load_config(experiment(task={"loss": "hinge"}))


def test_a_users_loss_trains_as_the_built_in_of_the_same_formula(here: str) -> None:
    own = tacit.train(regression(here, loss=f"{here}:squares"))
    right = tacit.train(regression(here, loss="mse"))
    assert own.plan.parameters == right.plan.parameters == 2 * 5
    assert own.epsilon == right.epsilon
    torch.testing.assert_close(own.parameters, right.parameters, rtol=1e-5, atol=1e-6)
    assert own.test_loss == pytest.approx(right.test_loss, rel=1e-5)
    assert own.test_accuracy is right.test_accuracy is None


def test_a_users_loss_and_metric_from_the_file_to_the_evaluation(here: str, tmp_path: Path) -> None:
    task = {"model": "linear", "loss": f"{here}:margin", "metric": f"{here}:second"}
    file = write_experiment(tmp_path, task=task)
    answer = command_line("train", file, "--out", tmp_path / "run", "--quiet")
    assert answer.code == 0, answer.err
    score = command_line("evaluate", tmp_path / "run", "--json").json

    test = tacit.data.load("digits", data_dir=tmp_path, seed=0).test
    weights = load_file(tmp_path / "run" / "model.safetensors")
    outputs = (test.inputs.flatten(1) @ weights["1.weight"].T + weights["1.bias"]).numpy()
    assert outputs.shape == (360, 10)
    hits = losses = 0.0
    for row, label in zip(outputs, test.targets.tolist(), strict=True):
        hits += sorted(row, reverse=True).index(row[label]) < 2
        losses += sum(max(0.0, 1 - row[label] + row[j]) for j in range(10) if j != label) / 10
    assert score["accuracy"] == pytest.approx(hits / 360)
    assert score["loss"] == pytest.approx(losses / 360, rel=1e-4)
    saved = command_line("evaluate", tmp_path / "run")
    assert saved.out.startswith(f"digits: accuracy {hits / 360:.2%}")


def test_a_metric_serves_a_loss_without_accuracy(here: str) -> None:
    result = tacit.train(regression(here, loss="mse", metric=f"{here}:near"))
    model, (inputs, targets) = result.model(), (result.job.test.inputs, result.job.test.targets)
    right = [
        max(abs(o - t) for o, t in zip(*pair, strict=True)) < 1
        for pair in zip(model(inputs).tolist(), targets.tolist(), strict=True)
    ]
    assert result.test_accuracy["consensus"] == pytest.approx(sum(right) / 20)


def test_logistic_takes_integer_labels_from_0(here: str) -> None:
    task = {"dataset": f"{here}:signs", "model": "logistic", "loss": "logistic"}
    result = tacit.train(experiment(task=task, algorithm={"learning_rate": 1.0}))
    assert result.plan.parameters == 5
    outputs = result.model()(result.job.test.inputs).flatten().tolist()
    labels = result.job.test.targets.tolist()
    right = [(output > 0) == (label == 1) for output, label in zip(outputs, labels, strict=True)]
    assert result.test_accuracy["consensus"] == pytest.approx(sum(right) / len(right))
    assert sum(right) > 12


@pytest.mark.parametrize(
    ("key", "reference", "text"),
    [
        ("loss", ":squars", "has no function 'squars'; did you mean 'squares'"),
        ("loss", ":value", "has no function 'value'"),
        ("loss", "_missing:squares", "there is no module"),
        ("loss", ":", "must be module:function"),
        ("loss", ":summed", "each alone is"),
        ("loss", ":near", r"returned a tensor of shape \[1\]"),
        ("loss", ":numbers", "failed: TypeError"),
        ("metric", ":neer", "has no function 'neer'; did you mean 'near'"),
        ("metric", "_missing:near", "there is no module"),
        ("metric", ":overall", "one score a record"),
        ("metric", ":numbers", "TypeError"),
    ],
)
def test_what_cannot_be_used_is_one_line_on_its_key(
    here: str, tmp_path: Path, key: str, reference: str, text: str
) -> None:
    sections = regression(here, **{"loss": "mse", key: here + reference})
    with pytest.raises(InputError, match=text) as caught:
        tacit.train(sections, out=tmp_path / "run")
    assert (caught.value.where, caught.value.value) == (f"task.{key}", here + reference)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
