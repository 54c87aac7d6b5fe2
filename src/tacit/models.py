"""The models of the papers, and a user's own by `module:factory`.

| name | what it is | start |
|---|---|---|
| `logistic`, `linear` | Flatten, Linear (the same; the loss makes the difference) | 0 |
| `mlp` | Flatten, Linear(in, 128), ReLU, Linear(128, outputs) | torch's |
| `cnn` | two convolutions, two dense layers, as Dyn-D2P has for Fashion-MNIST | torch's |

The paper of Dyn-D2P does not print the sizes of its network. These are the ones common in private
learning since Papernot et al. 2020 (arXiv:2007.14191): 26,010 parameters on `(1, 28, 28)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from tacit.errors import InputError, nearest
from tacit.user_code import call_function

__all__ = ["MODELS", "build_model"]

HIDDEN = 128
"""Width of the hidden layer of `mlp`."""

LARGE_IMAGE = 20
"""Images at least this high and wide get the strided kernels of the published network."""

SMALLEST_IMAGE = 4

Factory = Callable[[tuple[int, ...], int], nn.Module]


def _linear(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    layer = nn.Linear(math.prod(input_shape), outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def _mlp(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, outputs),
    )


def _cnn(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    if len(input_shape) != 3 or min(input_shape[1:]) < SMALLEST_IMAGE:
        raise InputError(
            "task.model",
            "cnn",
            f"it needs images (channels, height, width) of at least {SMALLEST_IMAGE} x "
            f"{SMALLEST_IMAGE}; records have the shape {input_shape}",
        )
    channels, height, width = input_shape
    if min(height, width) >= LARGE_IMAGE:
        first = nn.Conv2d(channels, 16, 8, stride=2, padding=3)
        second = nn.Conv2d(16, 32, 4, stride=2)
    else:
        first = nn.Conv2d(channels, 16, 3, padding=1)
        second = nn.Conv2d(16, 32, 3, padding=1)
    features = nn.Sequential(
        first,
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        second,
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
    )
    with torch.no_grad():
        size = features(torch.zeros(1, *input_shape)).shape[1]
    return nn.Sequential(*features, nn.Linear(size, 32), nn.ReLU(), nn.Linear(32, outputs))


MODELS: dict[str, Factory] = {
    "logistic": _linear,
    "linear": _linear,
    "mlp": _mlp,
    "cnn": _cnn,
}


def build_model(name: str, *, input_shape: tuple[int, ...], outputs: int, seed: int) -> nn.Module:
    """A model by name, its start a function of `seed` alone.

    Args:
        name: a key of `MODELS`, or `module:factory`. The module is looked for in the current
            directory first; the factory gets `input_shape` and `outputs` as keyword arguments as
            far as it takes them.
        input_shape: the shape of one record, such as `(1, 28, 28)`.
        outputs: the number of classes, or of numbers to predict.
        seed: of the initial weights. torch's global generators are left as they were.

    Raises:
        InputError: on `task.model` for an unknown name, data the model cannot take, or a factory
            that cannot be found, fails, or does not return an `nn.Module`.
    """
    if ":" in name:
        with _seeded(seed):
            return _from_factory(name, input_shape, outputs)
    if name not in MODELS:
        raise InputError(
            "task.model",
            name,
            f"not a model; {nearest(name, MODELS)} (or 'module:factory' for your own)",
        )
    with _seeded(seed):
        return MODELS[name](input_shape, outputs)


def _from_factory(name: str, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    model = call_function(name, "task.model", input_shape=input_shape, outputs=outputs)
    if not isinstance(model, nn.Module):
        raise InputError(
            "task.model",
            name,
            f"the factory must return a torch.nn.Module; it returned a {type(model).__name__}",
        )
    return model


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Within, torch's global generator starts from `seed`; afterwards it is as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
