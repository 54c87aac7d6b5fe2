"""The models by name and by `module:factory`."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tacit.errors import InputError
from tacit.models import MODELS, build_model


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "parameters"),
    [
        ("logistic", (5,), 1, 6),
        ("linear", (2, 3), 4, 28),
        ("mlp", (1, 28, 28), 10, 101_770),
        ("mlp", (64,), 10, 128 * 65 + 1290),
        ("cnn", (1, 28, 28), 10, 26_010),
        ("cnn", (1, 8, 8), 10, 160 + 4640 + 32 * (32 * 36 + 1) + 330),
        ("cnn", (3, 32, 32), 10, 3088 + 8224 + 32 * (32 * 25 + 1) + 330),
        ("cnn", (1, 4, 4), 2, 160 + 4640 + 32 * (32 * 4 + 1) + 66),
        ("cnn", (1, 19, 40), 2, None),
        ("cnn", (1, 20, 20), 2, None),
    ],
)
def test_shapes_and_sizes(
    name: str, shape: tuple[int, ...], outputs: int, parameters: int | None
) -> None:
    model = build_model(name, input_shape=shape, outputs=outputs, seed=1)
    assert model(torch.zeros(3, *shape)).shape == (3, outputs)
    if parameters is not None:
        assert size(model) == parameters


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_start_depends_on_the_seed_alone(name: str) -> None:
    def start(seed: int) -> torch.Tensor:
        model = build_model(name, input_shape=(1, 8, 8), outputs=3, seed=seed)
        return nn.utils.parameters_to_vector(model.parameters()).detach()

    before = torch.get_rng_state()
    first = start(7)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(3)
    assert torch.equal(first, start(7))
    if name in {"linear", "logistic"}:
        assert not first.any()
    else:
        assert not torch.equal(first, start(8))


@pytest.mark.parametrize("shape", [(64,), (8, 8), (1, 3, 8), (1, 2, 2)])
def test_cnn_needs_images(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"task\.model = 'cnn'.*at least 4 x 4.*shape \("):
        build_model("cnn", input_shape=shape, outputs=2, seed=0)


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(InputError, match=r"did you mean 'mlp'\?"):
        build_model("mpl", input_shape=(2,), outputs=2, seed=0)


FACTORIES = """
import torch
from torch import nn

value = 3

def network(input_shape, outputs):
    return nn.Linear(input_shape[0], outputs)

def only_outputs(*, outputs, bias=True):
    return nn.Linear(5, outputs, bias=bias)

def anything(**given):
    return nn.Linear(given["input_shape"][0], given["outputs"])

def nothing():
    return nn.Linear(2, 2)

def number():
    return 3

def broken():
    raise RuntimeError("out of\\nluck")

def needs_more(width):
    return nn.Linear(width, 2)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of factories in the current directory; its name."""
    name = f"factories_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(FACTORIES)
    (tmp_path / f"{name}_broken.py").write_text("import torch\n1 / 0\n")
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.parametrize(
    ("factory", "parameters"),
    [("network", 12), ("only_outputs", 18), ("anything", 12), ("nothing", 6)],
)
def test_a_users_factory(here: str, factory: str, parameters: int) -> None:
    name = f"{here}:{factory}"
    first = build_model(name, input_shape=(3,), outputs=3, seed=5)
    again = build_model(name, input_shape=(3,), outputs=3, seed=5)
    assert size(first) == parameters
    assert torch.equal(
        nn.utils.parameters_to_vector(first.parameters()),
        nn.utils.parameters_to_vector(again.parameters()),
    )


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (":netwrk", "has no function 'netwrk'; did you mean 'network'"),
        (":value", "has no function 'value'"),
        (":number", "must return a torch.nn.Module; it returned a int"),
        (":broken", "the function raised RuntimeError: out of"),
        (":needs_more", "the function raised TypeError"),
        (":", "must be module:function"),
        ("_broken:network", "importing the module raised ZeroDivisionError"),
        ("_missing:network", "there is no module"),
    ],
)
def test_a_factory_that_fails_is_one_line_on_task_model(here: str, suffix: str, text: str) -> None:
    with pytest.raises(InputError, match=text) as caught:
        build_model(here + suffix, input_shape=(3,), outputs=3, seed=0)
    assert caught.value.where == "task.model"
    assert "\n" not in str(caught.value)
