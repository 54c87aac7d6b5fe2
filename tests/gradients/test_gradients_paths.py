"""All paths against a loop over records, for every kind of module and loss."""

import pytest
import torch
from gradient_problems import FEW, OwnNorm, assert_equal, problem
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tacit.gradients.linear import MOST_WEIGHTS


class Residual(nn.Module):
    """In-place activations, a residual sum, and layers that are not called in their order."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 3)
        self.first = nn.Linear(4, 6)
        self.middle = nn.Linear(6, 6)

    def forward(self, x):
        x = torch.relu_(self.first(x))
        x = x + torch.nn.functional.silu(self.middle(x), inplace=True)
        return self.last(x)


class SameInput(nn.Module):
    """Three layers that read the same sequence, as in attention."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(3, 4) for _ in range(3))

    def forward(self, x):
        weights = (self.query(x) @ self.key(x).transpose(1, 2)).softmax(dim=2)
        return (weights @ self.value(x)).mean(dim=1)


class NormedResidual(nn.Module):
    """A residual block as in ResNet, with activations in place right after a normalisation."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 6, 3, stride=2, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(3, 6)
        self.second = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(2, 6)
        self.shortcut = nn.Sequential(nn.Conv2d(2, 6, 1, stride=2), nn.GroupNorm(6, 6))
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        inner = torch.relu_(self.first_norm(self.first(x)))
        inner = self.second_norm(self.second(inner))
        inner += self.shortcut(x)
        return self.last(torch.relu_(inner).mean(dim=(2, 3)))


class Viewed(nn.Module):
    """Calls `view` on images, which fails where they lie channels last."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 3, 2), nn.Conv2d(3, 4, 3, padding=1)
        self.last = nn.Linear(4 * 4 * 5, 3)

    def forward(self, x):
        x = self.second(torch.relu(self.first(x)))
        return self.last(x.view(len(x), -1))


def conv(*layers):
    return nn.Sequential(*layers, nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(3))


def ready(model, *shape):
    model(torch.zeros(1, *shape))
    return model


LINEAR = {
    "linear": (lambda: nn.Linear(4, 3), (4,)),
    "linear without bias": (lambda: nn.Linear(4, 3, bias=False), (4,)),
    "linear of images": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), (1, 3, 4)),
    "linear, wrapped": (
        lambda: nn.Sequential(nn.Identity(), nn.Sequential(nn.Flatten(), nn.Linear(37, 4))),
        (37,),
    ),
    "wide linear": (lambda: nn.Linear(MOST_WEIGHTS // 8 + 1, 8), (MOST_WEIGHTS // 8 + 1,)),
}

TAPPED = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), (4,)),
    "residual in place": (Residual, (4,)),
    "convolution": (lambda: ready(conv(nn.Conv2d(2, 3, 3)), 2, 6, 5), (2, 6, 5)),
    "convolution strided": (
        lambda: ready(
            conv(nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 2), bias=False)), 2, 6, 5
        ),
        (2, 6, 5),
    ),
    "convolution dilated": (
        lambda: ready(conv(nn.Conv2d(2, 4, 2, dilation=(2, 1), padding=1)), 2, 6, 5),
        (2, 6, 5),
    ),
    "convolution in groups": (
        lambda: ready(conv(nn.Conv2d(4, 6, 3, groups=2, padding=1)), 4, 5, 5),
        (4, 5, 5),
    ),
    "convolution by channel": (
        lambda: ready(conv(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 9, 1)), 4, 5, 5),
        (4, 5, 5),
    ),
    "convolution to one pixel": (
        lambda: ready(conv(nn.Conv2d(4, 6, 3, groups=2)), 4, 3, 3),
        (4, 3, 3),
    ),
    "convolution by Gram matrices": (
        lambda: ready(conv(nn.Conv2d(20, 24, 2, groups=2)), 20, 3, 2),
        (20, 3, 2),
    ),
    "convolutions, one after the other": (
        lambda: ready(
            conv(
                nn.Conv2d(2, 4, 4, stride=2, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2, 1),
                nn.Conv2d(4, 3, (2, 3), stride=(1, 2), padding=(1, 0), dilation=(2, 1)),
            ),
            2,
            9,
            8,
        ),
        (2, 9, 8),
    ),
    "convolution, then a view": (Viewed, (2, 5, 6)),
    "convolution over time": (
        lambda: ready(conv(nn.Conv1d(2, 4, 3, stride=2, padding=1, dilation=2)), 2, 9),
        (2, 9),
    ),
    "sequence, materialised": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Flatten(), nn.Linear(28, 3)),
        (7, 3),
    ),
    "sequence, Gram": (
        lambda: nn.Sequential(nn.Linear(20, 24), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3)),
        (2, 20),
    ),
    "same input": (SameInput, (5, 3)),
    "group norm of vectors": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Linear(6, 3)),
        (4,),
    ),
    "group norm of images, twice": (
        lambda: ready(
            conv(nn.GroupNorm(1, 2), nn.Conv2d(2, 4, 3), nn.GroupNorm(4, 4, eps=0.1)), 2, 4, 5
        ),
        (2, 4, 5),
    ),
    "group norm over time": (
        lambda: ready(conv(nn.Conv1d(2, 4, 2), nn.GroupNorm(2, 4)), 2, 5),
        (2, 5),
    ),
    "residual with group norms": (NormedResidual, (2, 5, 6)),
    "layer norm": (
        lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6), nn.LayerNorm(6, bias=False)),
        (4,),
    ),
    "layer norm of sequences": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Flatten(), nn.Linear(20, 3)),
        (5, 3),
    ),
    "layer norm of images": (
        lambda: ready(conv(nn.Conv2d(2, 3, 2), nn.LayerNorm((3, 4))), 2, 4, 5),
        (2, 4, 5),
    ),
    "norms without weights": (
        lambda: nn.Sequential(
            nn.LayerNorm(4, elementwise_affine=False),
            nn.Linear(4, 6),
            nn.GroupNorm(2, 6, affine=False),
            nn.Linear(6, 3),
        ),
        (4,),
    ),
}


class Scaled(nn.Module):
    """A parameter of its own beside a layer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.scale * self.layer(x)


class OutsideUse(nn.Module):
    """A layer's weight used outside the layer's forward."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x) + x @ self.layer.weight


class CalledTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


class Mixing(nn.Module):
    """Subtracts the batch mean: no module of a known kind says so."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x) + (x - x.mean(dim=0))


class NeverCalled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.spare = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x)


def tied():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    return model


def partly_frozen():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[0].bias.requires_grad_(False)
    return model


def partly_frozen_norm():
    model = nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Linear(6, 3))
    model[1].bias.requires_grad_(False)
    return model


class NormedTwice(nn.Module):
    """One normalisation after each of two convolutions."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 1)
        self.norm, self.last = nn.GroupNorm(2, 4), nn.Linear(4, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.norm(self.second(x)))
        return self.last(x.mean(dim=(2, 3)))


FUNCTIONAL = {
    "root mean square norm": (
        lambda: nn.Sequential(nn.Linear(4, 6), OwnNorm(6), nn.Linear(6, 3)),
        (4,),
        0,
        "OwnNorm",
    ),
    "group norm in two places": (NormedTwice, (2, 3, 3), 0, "twice"),
    "group norm, bias frozen": (partly_frozen_norm, (4,), 0, "1 has frozen"),
    "tied": (tied, (3,), 0, "shared"),
    "own parameter": (Scaled, (4,), 0, "Scaled"),
    "used outside": (OutsideUse, (3,), 0, "differ"),
    "called twice": (CalledTwice, (3,), 0, "twice"),
    "mixing": (Mixing, (3,), 0, "differ"),
    "never called": (NeverCalled, (3,), 0, "not called"),
    "partly frozen": (partly_frozen, (3,), 0, "frozen"),
    "padding same": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten(), nn.Linear(18, 3)),
        (1, 3, 3),
        0,
        "same",
    ),
    "padding reflect": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(18, 3)
        ),
        (1, 3, 3),
        0,
        "reflect",
    ),
}

CLIPS = [None, 1e-3, 0.7, 1e6]


@pytest.mark.parametrize("name", LINEAR)
def test_closed_form_equals_the_loop(name, oracle):
    make, shape = LINEAR[name]
    case = problem(make, shape)
    assert (case.stacked.path, case.stacked.reason) == ("closed form", "")
    for clip in CLIPS:
        assert_equal(case.gradient(clip), case.expected(oracle, clip), clip)


@pytest.mark.parametrize("name", TAPPED)
def test_taps_equal_the_loop(name, oracle):
    make, shape = TAPPED[name]
    case = problem(make, shape)
    assert (case.stacked.path, case.stacked.reason) == ("taps", "")
    for clip in CLIPS:
        assert_equal(case.gradient(clip), case.expected(oracle, clip), clip)


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional_equals_the_loop(name, oracle):
    make, shape, vocabulary, reason = FUNCTIONAL[name]
    case = problem(make, shape, vocabulary=vocabulary)
    assert case.stacked.path == "functional"
    assert reason in case.stacked.reason
    for clip in CLIPS:
        assert_equal(case.gradient(clip), case.expected(oracle, clip), clip)


@pytest.mark.parametrize(
    ("loss", "outputs"),
    [("cross-entropy", 4), ("mse", 1), ("mse", 3), ("huber", 3), ("logistic", 1)],
)
@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize(
    ("path", "first"),
    [("closed form", nn.Identity), ("taps", nn.LayerNorm), ("functional", OwnNorm)],
)
def test_every_loss(loss, outputs, clip, path, first, oracle):
    case = problem(lambda: nn.Sequential(first(4), nn.Linear(4, outputs)), (4,), loss=loss)
    assert case.stacked.path == path
    assert_equal(case.gradient(clip), case.expected(oracle, clip), clip)


def test_a_frozen_layer_stays_and_is_not_counted(oracle):
    def make():
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
        model[0].requires_grad_(False)
        return model

    case = problem(make, (4,))
    assert case.stacked.path == "taps"
    assert case.stacked.parameters_count == 5 * 3 + 3
    assert_equal(case.gradient(0.5), case.expected(oracle, 0.5), 0.5)
    trained = case.stacked.module(case.parameters[1])
    torch.testing.assert_close(trained[0].weight, case.model[0].weight.double())
    assert not trained[0].weight.requires_grad


@FEW
@given(
    nodes=st.integers(1, 4),
    batch=st.integers(1, 5),
    width=st.integers(1, 40),
    outputs=st.integers(2, 5),
    bias=st.booleans(),
    loss=st.sampled_from(["cross-entropy", "mse", "huber"]),
    clip=st.sampled_from(CLIPS),
    memory_bytes=st.sampled_from([1, 2000, 2**28]),
)
def test_random_linear_layers(nodes, batch, width, outputs, bias, loss, clip, memory_bytes, oracle):
    case = problem(
        lambda: nn.Linear(width, outputs, bias=bias),
        (width,),
        loss=loss,
        nodes=nodes,
        batch=batch,
        memory_bytes=memory_bytes,
    )
    assert case.stacked.path == "closed form"
    assert_equal(case.gradient(clip), case.expected(oracle, clip), clip)


@FEW
@given(
    nodes=st.integers(1, 4),
    batch=st.integers(1, 5),
    width=st.integers(1, 5),
    positions=st.integers(0, 3),
    bias=st.booleans(),
    clip=st.sampled_from(CLIPS),
    memory_bytes=st.sampled_from([1, 2000, 2**28]),
)
def test_random_shapes(nodes, batch, width, positions, bias, clip, memory_bytes, oracle):
    def make():
        last = nn.Linear(max(positions, 1) * 4, 2)
        return nn.Sequential(nn.Linear(width, 4, bias=bias), nn.ReLU(), nn.Flatten(), last)

    shape = (positions, width) if positions else (width,)
    case = problem(make, shape, nodes=nodes, batch=batch, memory_bytes=memory_bytes)
    assert_equal(case.gradient(clip), case.expected(oracle, clip), clip)
