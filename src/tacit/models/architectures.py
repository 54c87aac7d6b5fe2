"""The models of the papers, or a user's own by `module:factory`; and the loss of a task.

| name | what it is | start |
|---|---|---|
| `logistic`, `linear` | Flatten, Linear (the same; the loss makes the difference) | 0 |
| `mlp` | Flatten, Linear(in, 128), ReLU, Linear(128, outputs) | torch's |
| `cnn` | two convolutions, two dense layers, as [1] has for Fashion-MNIST | torch's |
| `cnn3` | three convolutions, one dense layer, as [2] has for MNIST | torch's |
| `resnet18` | ResNet-18 with group normalisation, for CIFAR-10 as the papers have it | He's |

[1], Zhu, Huang, Wang, Ji and Xu, does not print the sizes of its network. These are the ones common
in private learning since Papernot et al. 2020 (arXiv:2007.14191): 26,010 parameters on
`(1, 28, 28)`. [2], Huo, Liu, Ding, Johansson and Shi, does not either; `cnn3` is a small choice of
ours: 3 x 3 kernels of stride 2 with 16, 32 and 48 channels, 26,362 parameters on `(1, 28, 28)`.

`resnet18` is the network of He et al. 2016 (arXiv:1512.03385) as is usual for small images: a first
convolution of 3 x 3 and stride 1 and no max-pooling before the four stages; 11,173,962 parameters
for ten classes. Batch normalisation, which mixes records and so can have no clipped gradient of one
record, is replaced by group normalisation (Wu and He 2018, arXiv:1803.08494) with their 32 groups.
It starts as torchvision's does: He normal in the fan-out for convolutions.

`Embedded` takes categories beside numbers, each by an embedding of its own, for another model.

`find_loss` finds the loss of a task: by name, or a user's own. `find_output` finds the part of a
model's output that is the prediction.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import unquote

import torch
from torch import Tensor, nn

from tacit.errors import InputError, nearest
from tacit.gradients import LOSSES, Loss, Output, loss_from_mean, picked, weighted
from tacit.models.imports import call_function, import_function

NUMBERS = "numbers"
"""What a record calls its numbers, beside the codes of its categories by their names."""

_BEFORE = "of "  # else a column called `type` would be an attribute that every module has

HIDDEN = 128
"""Width of the hidden layer of `mlp`."""

LARGE_IMAGE = 20
"""Images at least this high and wide get the strided kernels of the published network."""

SMALLEST_IMAGE = 4

SMALLEST_RESNET_IMAGE = 8
"""Halved three times, an image keeps at least one pixel."""

_RECORDS_AT_ONCE = 1024

GROUPS = 32
"""Groups of a normalisation, as in its paper; fewer where that would leave one channel a group."""

Factory = Callable[[tuple[int, ...], int], nn.Module]


def input_dtype(model: nn.Module, inputs: Tensor, dtype: torch.dtype) -> torch.dtype:
    """The type in which a model takes records: that of the run, or int64 for integers that are ids.

    Ids, such as those of an embedding, they are only where the model takes them as integers and
    fails on the same as floating numbers, which is what any other model gets. Tries a copy on
    `inputs`, a few records `[few, ...]`.
    """
    if inputs.is_floating_point():
        return dtype
    weight = next(model.parameters(), torch.zeros(()))
    records = inputs.to(weight.device)
    ids = not _passes(model, records.to(weight.dtype)) and _passes(model, records.long())
    return torch.int64 if ids else dtype


def failures(model: nn.Module, inputs: Tensor) -> int:
    """How many records `[records, ...]` a model fails on, as with an id that it has no row for."""
    device = next(model.parameters(), inputs).device
    parts = torch.split(inputs.to(device), _RECORDS_AT_ONCE)
    return sum(
        sum(not _passes(model, record.unsqueeze(0)) for record in part)
        for part in parts
        if not _passes(model, part)
    )


def _passes(model: nn.Module, inputs: Tensor) -> bool:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            copy.deepcopy(model)(inputs)
        except Exception:  # whatever the user's module raises
            return False
    return True


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


def _image(name: str, input_shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """Channels, height and width of a record, if it is an image of at least that size."""
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        raise InputError(
            "task.model",
            name,
            f"it needs images (channels, height, width) of at least {smallest} x {smallest}; "
            f"records have the shape {input_shape}",
        )
    channels, height, width = input_shape
    return channels, height, width


def _cnn(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    channels, height, width = _image("cnn", input_shape, SMALLEST_IMAGE)
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


def _cnn3(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    channels, height, width = _image("cnn3", input_shape, SMALLEST_IMAGE)
    layers: list[nn.Module] = []
    for made in (16, 32, 48):
        layers += [nn.Conv2d(channels, made, 3, stride=2, padding=1), nn.ReLU()]
        channels, height, width = made, (height + 1) // 2, (width + 1) // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, outputs))


class _ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions and what came in, each normalised."""

    def __init__(self, channels: int, made: int, stride: int) -> None:
        super().__init__()
        self.first = _normalised(channels, made, 3, stride)
        self.second = _normalised(made, made, 3, 1)
        same = stride == 1 and channels == made
        self.shortcut = nn.Identity() if same else _normalised(channels, made, 1, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        inner: Tensor = self.second(torch.relu(self.first(inputs)))
        return torch.relu(inner + self.shortcut(inputs))


def _normalised(channels: int, made: int, kernel: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(channels, made, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(convolution, nn.GroupNorm(min(GROUPS, made // 2), made))


def resnet18(input_shape: tuple[int, ...], outputs: int, width: int = 64) -> nn.Module:
    """ResNet-18 for small images, with group normalisation, as `[task].model = "resnet18"`.

    Args:
        input_shape: `(channels, height, width)` of a record, at least 8 high and wide.
        outputs: the number of classes, or of numbers to predict.
        width: channels of the first stage, doubled by each of the other three; 64 in the paper.
            Even and at most 64, or a multiple of 32.

    Raises:
        InputError: on `task.model` for other records.
    """
    channels, _, _ = _image("resnet18", input_shape, SMALLEST_RESNET_IMAGE)
    layers: list[nn.Module] = [_normalised(channels, width, 3, 1), nn.ReLU()]
    channels = width
    for stage in range(4):
        made = width * 2**stage
        layers += [
            _ResidualBlock(channels, made, 1 if stage == 0 else 2),
            _ResidualBlock(made, made, 1),
        ]
        channels = made
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, outputs)
    )


class Embedded(nn.Module):
    """Looks codes up in tables `{name: (rows, width)}`, and gives all numbers to another model."""

    def __init__(self, tables: Mapping[str, tuple[int, int]], model: nn.Module) -> None:
        super().__init__()
        self.tables = nn.ModuleDict(
            {_key(name): nn.Embedding(*size) for name, size in tables.items()}
        )
        self.model = model

    def forward(self, record: Mapping[str, Tensor]) -> Tensor:
        """Outputs for numbers `[records, m]` and, by name, codes `[records]`."""
        codes = {_key(name): values for name, values in record.items()}
        rows = [table(codes[key]) for key, table in self.tables.items()]
        outputs: Tensor = self.model(torch.cat([record[NUMBERS], *rows], dim=1))
        return outputs


def tables_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """The tables of such a model, by its state."""
    found: dict[str, tuple[int, int]] = {}
    for name, values in tensors.items():
        if name.startswith(f"tables.{_BEFORE}") and values.ndim == 2:
            rows, width = values.shape
            key = name.removeprefix(f"tables.{_BEFORE}").removesuffix(".weight")
            found[unquote(key)] = rows, width
    return found


def _key(name: str) -> str:
    """The name of a column as that of a module, which has no dots."""
    return _BEFORE + name.replace("%", "%25").replace(".", "%2E")


MODELS: dict[str, Factory] = {
    "logistic": _linear,
    "linear": _linear,
    "mlp": _mlp,
    "cnn": _cnn,
    "cnn3": _cnn3,
    "resnet18": resnet18,
}


def build_model(
    name: str,
    *,
    input_shape: tuple[int, ...],
    outputs: int,
    seed: int,
    tables: Mapping[str, tuple[int, int]] | None = None,
) -> nn.Module:
    """A model by name, its start a function of `seed` alone.

    Args:
        name: a key of `MODELS`, or `module:factory`. The module is looked for in the current
            directory first; the factory gets `input_shape` and `outputs` as keyword arguments as
            far as it takes them.
        input_shape: the shape of one record, such as `(1, 28, 28)`.
        outputs: the number of classes, or of numbers to predict.
        seed: of the initial weights. torch's global generators are left as they were.
        tables: rows and widths of the embeddings of those inputs of a record that are codes.

    Raises:
        InputError: on `task.model` for an unknown name, data the model cannot take, or a factory
            that cannot be found, fails, or does not return an `nn.Module`.
    """
    check_name(name)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if name in MODELS and tables:
            widths = sum(width for _, width in tables.values())
            numbers = math.prod(input_shape) - len(tables) + widths
            return Embedded(tables, MODELS[name]((numbers,), outputs))
        if name in MODELS:
            return MODELS[name](input_shape, outputs)
        model = call_function(name, "task.model", input_shape=input_shape, outputs=outputs)
    if not isinstance(model, nn.Module):
        found = type(model).__name__
        expected = f"the factory must return a torch.nn.Module; it returned a {found}"
        raise InputError("task.model", name, expected)
    return model


def check_name(name: str) -> None:
    """Refuse what names no model.

    Raises:
        InputError: on `task.model`.
    """
    if ":" not in name and name not in MODELS:
        expected = f"not a model; {nearest(name, MODELS)} (or 'module:factory' for your own)"
        raise InputError("task.model", name, expected)


def find_loss(
    name: str,
    function: Callable[[Tensor, Tensor], Tensor] | None = None,
    class_weights: Sequence[float] | None = None,
) -> Loss:
    """The loss that `[task].loss` names.

    Args:
        name: a key of `LOSSES`, or `module:function`: (outputs `[r, ...]`, targets `[r, ...]`) ->
            the mean loss over the records, a scalar. The module is looked for in the current
            directory first.
        function: such a function that was passed as an object, if one was.
        class_weights: what a record counts by, one a class; see `weighted`.

    Raises:
        InputError: on `task.loss` for an unknown name, a function that cannot be found, or one that
            was passed as an object and is not here. Whether a function returns what it should is
            seen by the loss's `check`.
    """
    if function is not None:
        loss = loss_from_mean(getattr(function, "__name__", type(function).__name__), function)
    elif name == "given":
        raise InputError("task.loss", name, "was passed as an object: pass it as loss= again")
    elif ":" in name:
        loss = loss_from_mean(name, import_function(name, "task.loss"))
    elif name in LOSSES:
        loss = LOSSES[name]
    else:
        expected = f"not a loss; {nearest(name, LOSSES)} (or 'module:function' for your own)"
        raise InputError("task.loss", name, expected)
    return loss if class_weights is None else weighted(loss, class_weights)


def find_output(name: str | int | None) -> Output | None:
    """The function that takes the prediction from what the model returns.

    `name` is that of `[task].output`: a key, a position, or `module:function`, looked for as a loss
    is; None where the model returns its prediction alone.

    Raises:
        InputError: on `task.output` for a function that cannot be found.
    """
    if name is None:
        return None
    if isinstance(name, str) and ":" in name:
        return import_function(name, "task.output")
    return picked(name)
