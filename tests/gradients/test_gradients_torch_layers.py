"""docs/reference/layers.md has a row for every layer of `torch.nn`, as it is found to be here.

`python tests/gradients/test_gradients_torch_layers.py` writes its table anew.
"""

import inspect
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.loss import _Loss
from torch.nn.parameter import is_lazy

import tacit
from tacit.errors import InputError
from tacit.gradients import LOSSES, build

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "layers.md"
HEAD = "| layers | clipped gradients | why | after `tacit.fix` |\n|---|---|---|---|\n"
NONE = {
    "Module": "no layer",
    "Container": "no layer",
    "RNNBase": "no layer",
    "RNNCellBase": "no layer",
    "Sequential": "as the layers in it",
    "ModuleList": "as the layers in it",
    "ModuleDict": "as the layers in it",
    "ParameterList": "as the layers in it",
    "ParameterDict": "as the layers in it",
    "DataParallel": "not needed: nodes are stacked",
    "AdaptiveLogSoftmaxWithLoss": "takes the targets, and so is a loss",
}


class Called(nn.Module):
    """A module that is called with its input several times, or of whose output a part is taken."""

    def __init__(self, module: nn.Module, times: int = 1) -> None:
        super().__init__()
        self.inner, self.times = module, times

    def forward(self, inputs: Any) -> Any:
        found = self.inner(*[inputs] * self.times)
        return found[0] if isinstance(found, tuple) else found


class Unpooled(nn.Module):
    """A max-pooling, and what undoes it."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.pool = getattr(nn, f"MaxPool{dimensions}d")(2, return_indices=True)
        self.undo = getattr(nn, f"MaxUnpool{dimensions}d")(2)

    def forward(self, inputs: Any) -> Any:
        return self.undo(*self.pool(inputs))


VECTOR, SEQUENCE, IMAGE = (6,), (5, 4), (4, 8, 8)
FIELDS = {1: (4, 16), 2: IMAGE, 3: (2, 6, 6, 6)}
Case = tuple[Callable[[], nn.Module], tuple[int, ...]]
NUMBERED = {
    "Conv": (..., 4, 3),
    "ConvTranspose": (..., 4, 3),
    "LazyConv": (4, 3),
    "LazyConvTranspose": (4, 3),
    "BatchNorm": (...,),
    "LazyBatchNorm": (),
    "InstanceNorm": (..., 1e-5, 0.1, True),
    "LazyInstanceNorm": (),
    "MaxPool": (2,),
    "AvgPool": (2,),
    "LPPool": (2, 2),
    "AdaptiveAvgPool": (2,),
    "AdaptiveMaxPool": (2,),
    "ReflectionPad": (1,),
    "ReplicationPad": (1,),
    "CircularPad": (1,),
    "ZeroPad": (1,),
    "ConstantPad": (1, 0.5),
    "Dropout": (),
}
PLAIN = {
    "Linear": (VECTOR, (6, 4)),
    "LazyLinear": (VECTOR, (4,)),
    "Identity": (VECTOR, ()),
    "FractionalMaxPool2d": (IMAGE, (2, None, 0.5)),
    "FractionalMaxPool3d": (FIELDS[3], (2, None, 0.5)),
    "SyncBatchNorm": (IMAGE, (4,)),
    "GroupNorm": (IMAGE, (2, 4)),
    "LayerNorm": (SEQUENCE, (4,)),
    "RMSNorm": (SEQUENCE, (4,)),
    "LocalResponseNorm": (IMAGE, (2,)),
    "CrossMapLRN2d": (IMAGE, (2,)),
    "Embedding": ((5,), (11, 4)),
    "EmbeddingBag": ((5,), (11, 4)),
    "Threshold": (IMAGE, (0.1, 0.2)),
    "GLU": (IMAGE, (1,)),
    "Softmax": (IMAGE, (1,)),
    "LogSoftmax": (IMAGE, (1,)),
    "Softmin": (IMAGE, (1,)),
    "ChannelShuffle": (IMAGE, (2,)),
    "PixelShuffle": (IMAGE, (2,)),
    "PixelUnshuffle": (IMAGE, (2,)),
    "Upsample": (IMAGE, (None, 2)),
    "UpsamplingNearest2d": (IMAGE, (None, 2)),
    "UpsamplingBilinear2d": (IMAGE, (None, 2)),
    "Unflatten": (IMAGE, (1, (2, 2))),
    "Unfold": (IMAGE, (2,)),
}
ALONE = [
    *("ReLU", "ReLU6", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Sigmoid", "LogSigmoid"),
    *("Hardsigmoid", "Hardswish", "Hardshrink", "Hardtanh", "Softplus", "Softshrink", "Softsign"),
    *("Tanh", "Tanhshrink", "LeakyReLU", "PReLU", "RReLU", "Softmax2d", "Flatten", "Dropout"),
    *("AlphaDropout", "FeatureAlphaDropout"),
]


def encoder(kind: str) -> nn.Module:
    made = getattr(nn, f"Transformer{kind}Layer")
    return made(4, 2, 8, dropout=0.0, batch_first=True)


def cases() -> dict[str, Case]:
    """Each layer in a small module, and the shape of a record."""
    found = {}

    def add(name: str, shape: tuple[int, ...], make: Callable[[], nn.Module]) -> None:
        found[name] = make, shape

    for name, (shape, given) in PLAIN.items():
        add(name, shape, lambda name=name, given=given: getattr(nn, name)(*given))
    for name in ALONE:
        add(name, IMAGE, lambda name=name: getattr(nn, name)())
    for dimensions, shape in FIELDS.items():
        add(f"MaxUnpool{dimensions}d", shape, lambda d=dimensions: Unpooled(d))
        for kind, given in NUMBERED.items():
            values = [shape[0] if value is ... else value for value in given]
            name = f"{kind}{dimensions}d"
            add(name, shape, lambda name=name, values=values: getattr(nn, name)(*values))
    for kind in ("RNN", "LSTM", "GRU"):
        add(kind, SEQUENCE, lambda k=kind: Called(getattr(nn, k)(4, 4, batch_first=True)))
        add(f"{kind}Cell", VECTOR, lambda k=kind: Called(getattr(nn, f"{k}Cell")(6, 4)))
    add("Bilinear", VECTOR, lambda: Called(nn.Bilinear(6, 6, 4), 2))
    add("CosineSimilarity", SEQUENCE, lambda: Called(nn.CosineSimilarity(), 2))
    add("PairwiseDistance", SEQUENCE, lambda: Called(nn.PairwiseDistance(), 2))
    add("Fold", IMAGE, lambda: nn.Sequential(nn.Unfold(2), nn.Fold((8, 8), 2)))
    add(
        "MultiheadAttention",
        SEQUENCE,
        lambda: Called(nn.MultiheadAttention(4, 2, batch_first=True), 3),
    )
    add("TransformerEncoderLayer", SEQUENCE, lambda: encoder("Encoder"))
    add("TransformerEncoder", SEQUENCE, lambda: nn.TransformerEncoder(encoder("Encoder"), 1))
    add("TransformerDecoderLayer", SEQUENCE, lambda: Called(encoder("Decoder"), 2))
    add(
        "TransformerDecoder",
        SEQUENCE,
        lambda: Called(nn.TransformerDecoder(encoder("Decoder"), 1), 2),
    )
    add(
        "Transformer",
        SEQUENCE,
        lambda: Called(nn.Transformer(4, 2, 1, 1, 8, dropout=0.0, batch_first=True), 2),
    )
    return found


def found_of(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> tuple[str, str, str]:
    """How the gradients of a classifier with this layer are found, why, and after `tacit.fix`."""
    torch.manual_seed(0)
    layer = make()
    ids = any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in layer.modules())
    inputs = torch.randint(11, (6, *shape)) if ids else torch.randn(6, *shape)
    width = 3
    if not any(map(is_lazy, layer.parameters())):
        made = layer(inputs)
        width = made.reshape(6, -1).shape[1]
        if made.ndim == 1:
            layer = nn.Sequential(layer, nn.Unflatten(0, (-1, 1)))
    network = nn.Sequential(layer, nn.Flatten(), nn.Linear(width, 3))

    def way(module: nn.Module) -> tuple[str, str]:
        loss, targets = LOSSES["cross-entropy"], torch.arange(6) % 3
        try:
            path = build(module, loss, inputs, targets, dtype=torch.float32, device="cpu").path
        except InputError as error:
            return "refused", error.expected.partition("; ")[0].partition(" (of a ")[0]
        if path == "functional":
            return "one record at a time", "no rule of its own, but `torch.func` takes it"
        return "stacked", ""

    how, why = way(network)
    fixed = ""
    if how == "refused" and not any(map(is_lazy, network.parameters())):
        fixed = way(tacit.fix(network))[0]
    return how, why, fixed


def rows() -> dict[tuple[str, str, str], list[str]]:
    """Layers by what is found of them."""
    known = {
        name
        for name, kind in vars(nn).items()
        if inspect.isclass(kind) and issubclass(kind, nn.Module)
    }
    found = defaultdict(list)
    tried = cases()
    for name in sorted(known):
        if name in NONE:
            found["-", NONE[name], ""].append(name)
        elif issubclass(getattr(nn, name), _Loss) or name.endswith("Loss") or name == "NLLLoss2d":
            found["-", "a loss: `loss=`, or `task.loss`", ""].append(name)
        else:
            found[found_of(*tried[name])].append(name)
    return found


def table() -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = rows()
    order = ("stacked", "one record at a time", "refused", "-")
    lines = [
        f"| {', '.join(f'`{name}`' for name in names)} | {how} | {why} | {fixed} |\n"
        for (how, why, fixed), names in sorted(
            found.items(), key=lambda row: (order.index(row[0][0]), row[1])
        )
    ]
    return HEAD + "".join(lines)


@pytest.mark.slow
def test_the_page_says_of_every_layer_what_is_found():
    assert PAGE.read_text(encoding="utf-8").partition(HEAD)[2] == table().removeprefix(HEAD)


if __name__ == "__main__":
    before = PAGE.read_text(encoding="utf-8").partition(HEAD)[0]
    PAGE.write_text(before + table(), encoding="utf-8")
