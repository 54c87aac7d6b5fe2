"""The forms of a layer's gradient agree with each other, whichever is chosen."""

import threading

import numpy as np
import pytest
import torch
from gradient_problems import assert_equal, problem
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tacit.gradients.contributions import Outer, Slot, materialise
from tacit.gradients.layers import processor
from tacit.gradients.layers.pooling import MaxPooling, poolings, rectified

SIZES = st.integers(1, 4)


@settings(max_examples=50, deadline=None)
@given(SIZES, SIZES, SIZES, SIZES, SIZES, SIZES, st.integers(0, 1))
def test_outer_and_materialised_agree(nodes, batch, groups, positions, width, height, beta):
    draws = torch.Generator().manual_seed(nodes + 7 * positions)

    def random(*shape):
        return torch.randn(*shape, generator=draws, dtype=torch.float64)

    size = groups * height * width
    slot = Slot("weight", (groups * height, width), 2, 2 + size)
    outer = Outer(
        slot,
        random(nodes, batch, groups, positions, width),
        random(nodes, batch, groups, positions, height),
    )
    dense = outer.materialised()
    torch.testing.assert_close(outer.sizes().bounds, dense.sizes().bounds)
    factors = random(nodes, batch)
    before = random(nodes, size + 3)
    totals = []
    for form in (outer, dense):
        total = before.clone()
        form.add_to(total, factors, beta)
        assert torch.equal(total[:, :2], before[:, :2])
        assert torch.equal(total[:, -1:], before[:, -1:])
        totals.append(total)
    torch.testing.assert_close(totals[0], totals[1])
    expected = beta * before[:, 2:-1] + torch.einsum(
        "nb,nbgto,nbgti->ngoi", factors, outer.gradients, outer.inputs
    ).reshape(nodes, size)
    torch.testing.assert_close(totals[0][:, 2:-1], expected)


def test_gram_matrices_keep_the_norm_where_positions_cancel_in_float32():
    """Positions with nearly the same input and gradients that sum to nearly nothing."""
    draws = torch.Generator().manual_seed(1)
    base = torch.randn(1, 1, 1, 1, 40, generator=draws) * 100
    inputs = base + 1e-3 * torch.randn(1, 1, 1, 6, 40, generator=draws)
    gradients = torch.randn(1, 1, 1, 6, 30, generator=draws)
    gradients = gradients - gradients.mean(dim=3, keepdim=True)
    outer = Outer(Slot("weight", (30, 40), 0, 1200), inputs, gradients)
    exact = (gradients.double().transpose(3, 4) @ inputs.double()).square().sum()
    assert float(exact) <= float(outer.sizes().bounds.sum()) <= 1.01 * float(exact)


def test_one_position_is_never_materialised_and_a_small_kernel_always():
    assert not materialise(1, 784, 128)
    assert materialise(196, 64, 16)
    assert materialise(25, 256, 32)
    assert not materialise(16, 4608, 512)


# Records shared among threads: all of them, each once, and on one thread where they are few.


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 20), st.sampled_from([0, 1 << 24]), st.integers(1, 4))
def test_every_record_is_worked_on_once(records, numbers, threads):
    seen = np.zeros(records, np.int64)

    def work(part):
        seen[part] += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: threads)
        processor.over_records(records, numbers, work)
    assert (seen == 1).all()


def test_few_numbers_stay_on_the_thread_that_asks(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    threads = []
    processor.over_records(8, 1000, lambda part: threads.append(threading.get_ident()))
    assert threads == [threading.get_ident()]


@pytest.mark.parametrize("channels_last", [True, False])
def test_channels_come_last(channels_last):
    layout = torch.channels_last if channels_last else torch.contiguous_format
    images = torch.arange(120.0).view(2, 3, 4, 5).contiguous(memory_format=layout)
    found = processor.last_channels(images)
    assert found.flags.c_contiguous
    assert np.array_equal(found, images.permute(0, 2, 3, 1).numpy())
    images[0, 0, 0, 0] = 7
    assert (found[0, 0, 0, 0] == 7) == channels_last


# Max-poolings and rectifiers that other layers take over: which, and that nothing else changes.


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


MODELS = {
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
