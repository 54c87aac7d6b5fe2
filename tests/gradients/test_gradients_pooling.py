"""Max-poolings and rectifiers that other layers take over: which, and that nothing else changes."""

from collections.abc import Callable

import pytest
import torch
from gradient_problems import assert_equal, problem
from torch import nn

from tacit.gradients.layers import processor
from tacit.gradients.layers.pooling import MaxPooling, poolings, rectified


def convolutions(*middle, channels=4):
    """Images (1, 7, 7) in, three outputs; `middle` keeps or halves the sides."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        *middle,
        nn.Conv2d(4, 3, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(3),
    )


class Skipping(nn.Module):
    """What a rectifier makes is used twice, outside of any sequence."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3, padding=1))

    def forward(self, images):
        return images + self.inner(images)


class Walking(nn.Module):
    """It calls the parts of a sequence itself, and reads what the rectifier makes once more."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))

    def forward(self, images):
        rectifier, convolution = self.inner
        images = rectifier(images)
        return images + convolution(images)


def shared():
    """One rectifier in two places."""
    one = nn.ReLU()
    return convolutions(one, nn.Conv2d(4, 4, 3, padding=1), one)


MODELS: dict[str, tuple[Callable[[], nn.Module], int, set[str]]] = {
    "rectifier, pooling": (lambda: convolutions(nn.ReLU(), nn.MaxPool2d(2, 1)), 1, {"2"}),
    "in place": (lambda: convolutions(nn.ReLU(inplace=True), nn.MaxPool2d((2, 1))), 1, {"2"}),
    "pooling, rectifier": (lambda: convolutions(nn.MaxPool2d(2), nn.ReLU()), 1, {"3"}),
    "pooling, rectifier in place": (
        lambda: convolutions(nn.MaxPool2d(2), nn.ReLU(inplace=True)),
        1,
        set(),
    ),
    "rectifier": (lambda: convolutions(nn.ReLU()), 0, {"2"}),
    "padded pooling": (lambda: convolutions(nn.ReLU(), nn.MaxPool2d(3, 2, 1)), 0, {"2"}),
    "skipping": (lambda: convolutions(Skipping()), 0, set()),
    "walking": (lambda: convolutions(Walking()), 0, {"1.inner.1"}),
    "shared": (shared, 0, set()),
    "frozen": (lambda: convolutions(nn.ReLU(), nn.Conv2d(4, 4, 1).requires_grad_(False)), 0, {"2"}),
}


def made(name):
    model = MODELS[name][0]()
    model(torch.zeros(1, 1, 7, 7))  # settles the width of the last layer
    return model


@pytest.mark.parametrize("name", MODELS)
def test_which_rectifiers_and_poolings_are_taken_over(name):
    _, pools, rectifying = MODELS[name]
    model = made(name)
    found = rectified(model)
    assert set(found) == rectifying
    assert len(poolings(model, found)) == pools


@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_the_loop(name, clip, loops, oracle, monkeypatch):
    if not loops:
        monkeypatch.setattr(processor, "serves", lambda values: False)
    case = problem(lambda: made(name), (1, 7, 7))
    assert case.stacked.path == "taps"
    assert_equal(case.gradient(clip), case.expected(oracle, clip), clip)


def test_a_listener_hears_what_the_rectifier_returns():
    model = made("rectifier, pooling")
    model[1].register_forward_hook(lambda *_: None)
    assert rectified(model) == {}
    assert [pooling.rectified for pooling in poolings(model)] == [False]


def test_poolings_take_images_that_lie_otherwise():
    pooling = MaxPooling("1", (2, 2), (1, 1), rectified=True)
    images = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(1))
    last = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(pooling.forward(images), pooling.forward(last))
    assert pooling.forward(last[0]).shape == (3, 3, 4)
