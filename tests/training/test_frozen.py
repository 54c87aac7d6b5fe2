"""Frozen layers: constant, not counted, and neither sent nor noised."""

import copy

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import tacit
from experiments import experiment, strict_json, write_experiment, write_module
from experiments import tacit as command_line
from gradients.gradient_problems import OwnNorm
from tacit.config import load_config
from tacit.errors import InputError
from tacit.training.loop import execute
from tacit.training.prepare import prepare
from tacit.training.run_folder.predictor import load_model

NODES, RECORDS = 3, 12


def features():
    """What someone trained on public data: a convolution, a normalisation, a linear layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        layers = [nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(4 * 36, 6)).double()


def head():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)
        return nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)).double()


def records():
    draws = torch.Generator().manual_seed(7)
    return [
        (
            torch.randn(RECORDS, 1, 8, 8, generator=draws, dtype=torch.float64),
            torch.randint(0, 3, (RECORDS,), generator=draws),
        )
        for _ in range(NODES)
    ]


CONFIG = experiment(
    task={"dataset": None, "model": None},
    nodes={"count": None},
    algorithm={"clip": 0.5, "momentum": 0.3},
    train={"dtype": "float64", "steps": 5, "batch": 4},
)


@pytest.mark.parametrize("path", ["taps", "functional"])
def test_it_is_training_of_the_rest_on_what_the_frozen_part_gives(path, tmp_path):
    extractor, rest = features(), head()
    if path == "functional":
        rest = nn.Sequential(OwnNorm(6).double(), rest[1])
    whole = nn.Sequential(copy.deepcopy(extractor).requires_grad_(False), rest)
    before = copy.deepcopy(whole.state_dict())
    given = records()
    found = tacit.train(CONFIG, model=whole, nodes=given, test=given[0], out=tmp_path / "run")
    with torch.no_grad():
        seen = [(extractor(inputs), targets) for inputs, targets in given]
    right = tacit.train(CONFIG, model=rest, nodes=seen, test=seen[0])

    assert found.job.model.path == right.job.model.path == path
    assert found.plan.parameters == sum(p.numel() for p in rest.parameters())
    assert found.parameters.shape == (NODES, found.plan.parameters)
    assert found.epsilon == right.epsilon
    assert found.bytes_sent == right.bytes_sent
    torch.testing.assert_close(found.parameters, right.parameters, rtol=1e-9, atol=1e-12)
    assert found.test_loss == pytest.approx(right.test_loss)

    for node in (0, "consensus"):
        trained = found.model(node)
        state = trained.state_dict()
        assert all(
            torch.equal(state[f"0.{key}"], before[f"0.{key}"]) for key in extractor.state_dict()
        )
        vector = found.consensus if node == "consensus" else found.parameters[node]
        assert torch.equal(nn.utils.parameters_to_vector(trained[1].parameters()), vector)
        assert not any(p.requires_grad for p in trained[0].parameters())
        assert all(p.requires_grad for p in trained[1].parameters())
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(saved[key], value) for key, value in trained.state_dict().items())
    nodes = load_file(tmp_path / "run" / "nodes.safetensors")["parameters"]
    assert torch.equal(nodes, found.parameters)
    assert all(torch.equal(whole.state_dict()[key], value) for key, value in before.items())


def test_a_layer_of_which_a_part_is_frozen_is_no_layer_for_taps():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).double()
    model[1].bias.requires_grad_(False)
    with torch.no_grad():
        model[1].bias.fill_(0.25)
    result = tacit.train(CONFIG, model=model, nodes=records())
    assert result.job.model.path == "functional"
    assert "1 has frozen" in result.job.model.reason
    assert result.plan.parameters == 64 * 3
    assert result.model(1)[1].bias.tolist() == [0.25] * 3
    assert not torch.equal(result.model(1)[1].weight, model[1].weight)


def test_a_model_that_is_frozen_as_a_whole_is_refused():
    with pytest.raises(InputError, match="no trainable parameters; set requires_grad") as caught:
        tacit.train(CONFIG, model=head().requires_grad_(False), nodes=records())
    assert caught.value.where == "task.model"


FACTORY = """
def network(input_shape, outputs):
    frozen = nn.Linear(64, 8).requires_grad_(False)
    return nn.Sequential(nn.Flatten(), frozen, nn.Tanh(), nn.Linear(8, outputs))
"""


def test_a_frozen_part_survives_stopping_resuming_and_loading(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = f"{write_module(tmp_path, FACTORY)}:network"
    file = write_experiment(tmp_path, task={"model": model}, train={"steps": 4, "batch": 8})
    job = prepare(load_config(file))
    straight = execute(job, out=tmp_path / "straight")
    asked = iter([False, True])
    stopped = execute(
        prepare(load_config(file)), out=tmp_path / "run", should_stop=lambda: next(asked)
    )
    assert (stopped.status, stopped.steps) == ("stopped", 2)
    answer = command_line("train", file, "--out", tmp_path / "run", "--resume", "--quiet")
    assert answer.code == 0, answer.err
    resumed = load_file(tmp_path / "run" / "model.safetensors")
    for key, value in load_file(tmp_path / "straight" / "model.safetensors").items():
        assert torch.equal(resumed[key], value)
    assert torch.equal(resumed["1.weight"], job.model.original[1].weight)
    assert straight.plan.parameters == 8 * 10 + 10
    content = strict_json((tmp_path / "run" / "result.json").read_text())
    assert content["parameters"] == 90
    loaded = load_model(tmp_path / "run", trust=True)
    inputs = job.test.inputs[:5]
    torch.testing.assert_close(loaded(inputs), straight.model().eval()(inputs))
    score = command_line("evaluate", tmp_path / "run", "--trust", "--json").json
    assert score["accuracy"] == pytest.approx(content["test_accuracy"]["consensus"], abs=1e-6)
