"""Models that return more than a prediction: the part is taken, the module stays the user's own."""

from collections import namedtuple
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from gradient_problems import OwnNorm
from torch import Tensor, nn

import tacit
from tacit.analysis.score import evaluate_run
from tacit.errors import InputError

WIDTH = 4
Pair = namedtuple("Pair", ["logits", "hidden"])


@dataclass
class Answer:
    logits: Tensor
    hidden: Tensor


RETURNS = {
    "dict": lambda logits, hidden: {"logits": logits, "hidden": hidden},
    "dataclass": Answer,
    "named tuple": Pair,
    "tuple": lambda logits, hidden: (logits, hidden),
    "list": lambda logits, hidden: [logits, hidden],
    "tensor": lambda logits, hidden: logits,
}


class Network(nn.Module):
    def __init__(self, returns="dict", normalise=nn.LayerNorm):
        super().__init__()
        torch.manual_seed(1)
        self.returns = returns
        self.body = nn.Sequential(nn.Linear(WIDTH, 5), normalise(5))
        self.head = nn.Linear(5, 2)

    def forward(self, inputs):
        hidden = self.body(inputs)
        return RETURNS[self.returns](self.head(hidden), hidden)


def build_network(outputs):
    return Network()


def first(returned):
    return returned["logits"]


def records():
    draws = torch.Generator().manual_seed(2)
    inputs = [torch.randn(12, WIDTH, generator=draws) for _ in range(2)]
    return [(part, (part[:, 0] > 0).long()) for part in inputs]


def run(model, *, task=None, **given):
    config = {
        "task": {"outputs": 2, **(task or {})},
        "topology": {"graph": "complete"},
        "algorithm": {"name": "dp2-sgd", "learning_rate": 0.3, "clip": 1.0},
        "privacy": {"epsilon": 8.0, "delta": 1e-3, "noise_seed": 1},
        "train": {"steps": 3, "batch": "all", "dtype": "float64"},
    }
    return tacit.train(config, model=model, nodes=records(), test=records()[0], **given)


@cache
def of_tensors(normalise):
    return run(Network("tensor", normalise))


@pytest.mark.parametrize("normalise", [nn.LayerNorm, OwnNorm], ids=["taps", "functional"])
@pytest.mark.parametrize(
    ("returns", "output"),
    [
        ("dict", "logits"),
        ("dataclass", "logits"),
        ("named tuple", "logits"),
        ("tuple", 0),
        ("list", 0),
        ("dict", 0),
        ("dict", first),
    ],
)
def test_training_is_that_of_the_prediction_alone(returns, output, normalise):
    right = of_tensors(normalise)
    found = run(Network(returns, normalise), output=output)
    assert found.parameters.equal(right.parameters)
    assert found.test_accuracy == right.test_accuracy
    trained, inputs = found.model(), records()[0][0].double()
    assert type(trained) is Network
    assert not trained.training
    own = Network(returns, normalise).double()
    own.load_state_dict(trained.state_dict())
    assert type(own.eval()(inputs)) is type(trained(inputs))  # all that it returned before


def test_a_file_names_the_output_and_a_run_can_be_scored(tmp_path):
    task = {"model": f"{__name__}:build_network", "output": "logits"}
    result = run(None, task=task, out=tmp_path / "run")
    found = evaluate_run(tmp_path / "run", f"{__name__}:given", trust=True)
    assert result.test_accuracy is not None
    assert found.accuracy == pytest.approx(result.test_accuracy["consensus"])
    by_name = run(None, task={**task, "output": f"{__name__}:first"})
    assert by_name.parameters.equal(result.parameters)


def given():
    return records()[1], records()[0]


def test_a_function_that_was_passed_cannot_be_found_again(tmp_path):
    task = {"model": f"{__name__}:build_network"}
    run(None, task=task, output=first, out=tmp_path / "run")
    with pytest.raises(InputError, match=r"task\.output = 'module:function'"):
        evaluate_run(tmp_path / "run", f"{__name__}:given", trust=True)


@pytest.mark.parametrize(
    ("returns", "keys"),
    [
        ("dict", "a dict with 'logits', 'hidden'"),
        ("dataclass", "a Answer with 'logits', 'hidden'"),
        ("named tuple", "a Pair with 'logits', 'hidden'"),
        ("tuple", "a tuple with 0, 1"),
    ],
)
def test_without_an_output_the_refusal_lists_the_keys(returns, keys):
    with pytest.raises(InputError, match=f"{keys}: say which part .* output=") as caught:
        run(Network(returns))
    assert caught.value.where == "task.model"


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("scores", "no part of what the model returns: dict with 'logits', 'hidden'"),
        (7, "no part of what the model returns"),
        (lambda returned: returned, "must be one tensor"),
        (lambda returned: 1 / 0, "ZeroDivisionError"),
        (3.5, "task.output"),
        (-1, "task.output"),
        (True, "task.output"),
        ("", "task.output"),
        ("no_such_module:first", "no module"),
    ],
)
def test_a_wrong_output_is_refused_in_one_line(output, text):
    with pytest.raises(InputError, match=text) as caught:
        run(Network(), output=output)
    assert caught.value.where == "task.output"
    assert "\n" not in str(caught.value)


def test_a_part_without_a_row_a_record_is_refused():
    with pytest.raises(InputError, match=r"a row a record, \[8, ...\]; it returned \[5, 8\]"):
        run(Network(), output=lambda returned: returned["hidden"].T)


def test_a_linear_model_with_an_output_is_not_taken_for_a_linear_model():
    """At weights of zero the output and its opposite are the same."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(200, WIDTH, generator=generator)
    targets = (inputs[:, 0] > 0).long()
    result = tacit.train(
        {
            "task": {"model": "linear", "outputs": 2},
            "algorithm": {"name": "d-psgd", "learning_rate": 0.5},
            "train": {"steps": 20, "batch": "all"},
        },
        nodes=[(inputs[:100], targets[:100]), (inputs[100:], targets[100:])],
        test=(inputs, targets),
        output=torch.neg,
    )
    right = torch.neg(result.model(0)(inputs)).argmax(1) == targets
    assert result.test_accuracy is not None
    assert result.test_accuracy["mean"] == pytest.approx(float(right.float().mean()), abs=1e-6)
    assert float(right.float().mean()) > 0.9


@pytest.mark.slow
def test_of_a_model_with_an_output_no_smoothness_is_proved():
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(40, WIDTH, generator=generator)
    nodes = [(inputs[:20], inputs[:20, :1].sign()), (inputs[20:], inputs[20:, :1].sign())]
    sections = {
        "task": {"model": "logistic", "loss": "logistic", "input_bound": 2.0, "outputs": 1},
        "algorithm": {"name": "fedspd-dp", "smoothness": 6.4, "clients_per_round": 1},
        "train": {"steps": 2, "batch": "all"},
    }
    assert tacit.train(sections, nodes=nodes).private
    with pytest.raises(InputError, match=r"algorithm\.smoothness"):
        tacit.train(sections, nodes=nodes, output=torch.sin)
