"""Functions that are recorded: what they read, what is refused, and that bits stay what they are.

No device is here: a record is made by `again`, which calls the function once more on the tensors
that a CUDA graph would read, and writes into those that it would write.
"""

import contextlib
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from elsewhere import META, elsewhere
from tacit import gradients
from tacit.gradients import captured, contributions, stacked
from tacit.gradients.captured import Captured, hindrance

NODES, WIDTH = 3, 5


def again(function, arguments):
    results = tuple(result.clone() for result in function(*arguments))

    def replay():
        for own, result in zip(results, function(*arguments), strict=True):
            own.copy_(result)

    return results, replay


@pytest.fixture
def on_cpu(monkeypatch):
    """The CPU takes the way of a device, which knows no flags before they are read."""
    for module in (contributions, stacked, gradients.clipping, gradients.table):
        monkeypatch.setattr(module, "all_known_true", lambda flags: False)
    monkeypatch.setattr(captured, "hindrance", lambda function, arguments: "")
    return Captured(devices=("cpu",), record=again)


def networks():
    return {
        "mlp": nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4)),
        "cnn": nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.GroupNorm(2, 4),
            nn.Conv2d(4, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4, 4),
        ),
        "dropout": nn.Sequential(
            nn.Flatten(), nn.Linear(64, 8), gradients.Dropout(0.5), nn.Linear(8, 4)
        ),
        "functional": nn.Sequential(nn.Flatten(), Scaled()),
    }  # fmt: skip


class Scaled(nn.Module):
    """No rule covers it."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, 64))

    def forward(self, inputs):
        return (inputs.unsqueeze(1) * self.scale).tanh().sum(2)


def made(name, dtype=torch.float32):
    torch.manual_seed(3)
    module = networks()[name]
    inputs, labels = records(1)
    return gradients.build(
        module, gradients.LOSSES["cross-entropy"], inputs[0], labels[0], dtype=dtype, device="cpu"
    )


def records(seed, width=WIDTH):
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(NODES, width, 1, 8, 8, generator=draw)
    return inputs, torch.randint(4, (NODES, width), generator=draw)


def arguments(model, seed, width=WIDTH):
    """Parameters, records, a mask that leaves some out, and coins where they are needed."""
    draw = torch.Generator().manual_seed(seed)
    inputs, labels = records(seed, width)
    start = model.start(NODES, torch.float32, "cpu")
    mask = torch.rand(NODES, width, generator=draw) < 0.7
    mask[:, 0] = torch.tensor([True, True, False])
    coins = torch.randint(2**40, (NODES, width), generator=draw)
    return (
        (start + 0.1 * torch.randn(start.shape, generator=draw), inputs, labels, mask),
        {"counts": 40, "coins": coins if model.needs_coins else None},
    )


def bits(batch):
    return [batch.total, batch.norms, batch.losses]


@pytest.mark.parametrize("name", networks())
def test_replays_give_the_bits_of_calls(name, on_cpu, monkeypatch):
    """With other parameters, records, masks, coins and clipping bounds than were recorded."""
    model = made(name)
    eager = [
        bits(model.gradient(*given, clip, **more))
        for clip, (given, more) in zip(
            (1.0, 0.25, 3.0), (arguments(model, seed) for seed in (5, 6, 7)), strict=True
        )
    ]
    object.__setattr__(model, "captured", on_cpu)
    kept = []
    for clip, seed in ((1.0, 5), (0.25, 6), (3.0, 7)):
        given, more = arguments(model, seed)
        kept.append(bits(model.gradient(*given, clip, **more)))
    for found, right in zip(kept, eager, strict=True):
        assert all(torch.equal(*pair) for pair in zip(found, right, strict=True))
    assert len(on_cpu._records) == 1
    given, more = arguments(model, 8, WIDTH + 1)
    model.gradient(*given, 1.0, **more)
    model.gradient(*given, None, **more)
    assert (len(on_cpu._records), on_cpu.reasons) == (3, {})


@pytest.mark.parametrize("name", networks())
def test_a_record_reads_its_arguments_and_constants_alone(name, on_cpu):
    model = made(name)
    object.__setattr__(model, "captured", on_cpu)
    given, more = arguments(model, 5)
    model.gradient(*given, 1.0, **more)
    (made_record,) = on_cpu._records.values()
    constant = {
        value.untyped_storage().data_ptr()
        for module in (model.engine.module, model.exact.module)
        for value in (*module.parameters(), *module.buffers())
    } | {value.untyped_storage().data_ptr() for value in model.examples}
    own = {
        value.untyped_storage().data_ptr()
        for value in (*made_record.arguments, *made_record.results)
        if value is not None
    }
    with Reads() as reads:
        made_record.replay()
    assert reads.foreign <= own | constant
    assert reads.foreign & own


class Reads(TorchDispatchMode):
    """Collects the memory of tensors that operations are given and none within has made."""

    def __init__(self):
        super().__init__()
        self.foreign, self._made, self._kept = set(), set(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = torch.utils._pytree.tree_leaves((args, kwargs or {}))
        for value in given:
            if isinstance(value, torch.Tensor):
                place = value.untyped_storage().data_ptr()
                if value.numel() and place not in self._made:
                    self.foreign.add(place)
        result = func(*args, **(kwargs or {}))
        for value in torch.utils._pytree.tree_leaves(result):
            if isinstance(value, torch.Tensor):
                place = value.untyped_storage().data_ptr()
                if place not in self.foreign:
                    self._made.add(place)
                    self._kept.append(value)  # or its memory would be another's
        return result


@pytest.mark.parametrize("name", networks())
def test_nothing_hinders_a_gradient(name, monkeypatch):
    monkeypatch.setattr(torch, "autocast", lambda *device, **options: contextlib.nullcontext())
    model = made(name)
    given, more = arguments(model, 5)
    given = [value.to(META) for value in given]
    coins = None if more["coins"] is None else more["coins"].to(META)
    model = replace(elsewhere(model), loop=None)

    def function(parameters, inputs, labels, mask, coins):
        return tuple(
            bits(model.gradient(parameters, inputs, labels, mask, 1.0, counts=40, coins=coins))
        )

    assert hindrance(function, (*given, coins)) == ""


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: (x * x.sum().item(),), "DataDependent"),
        (lambda x: (x[x > 0],), "Dynamic"),
        (lambda x: (x + torch.rand(3),), "draws random numbers"),
        (lambda x: (nn.functional.dropout(x),), "draws random numbers"),
        (lambda x: (x * random.random(),), "on the host"),
        (lambda x: (x * np.random.rand(),), "on the host"),
        (lambda x: (x * np.random.randn(),), "on the host"),
        (lambda x: (torch.from_numpy(x.numpy()),), "numpy"),
        (lambda x: (x.to(META),), "a copy from"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_record_could_not_repeat_is_called_as_it_is(function, reason):
    kept = Captured(devices=("cpu",), record=again)
    assert kept.call(function, 0, (torch.ones(3),))[0] is not None
    assert reason in next(iter(kept.reasons.values()))
    assert not kept._records


def test_a_function_that_cannot_be_recorded_is_called_as_it_is():
    def refused(function, arguments):
        raise RuntimeError("operation not permitted when stream is capturing")

    kept = Captured(devices=("cpu",), record=refused)
    assert kept.call(lambda x: (x + 1,), 0, (torch.ones(2),))[0].tolist() == [2, 2]
    assert "not permitted" in next(iter(kept.reasons.values()))


def test_results_stay_when_the_record_is_replayed():
    kept = Captured(devices=("cpu",), record=again)
    (first,) = kept.call(lambda x: (x + 1,), 0, (torch.ones(2),))
    (second,) = kept.call(lambda x: (x + 1,), 0, (torch.zeros(2),))
    assert (first.tolist(), second.tolist()) == ([2, 2], [1, 1])


@pytest.mark.parametrize("name", networks())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_more_padding_changes_no_more_than_the_order_of_sums(name, dtype):
    """As on a device, where batches are padded to a public width: what is added is zero.

    A matrix product of another length may add in another order; whatever padding holds, the bits
    are the same.
    """
    tolerance = {"rtol": 64 * torch.finfo(dtype).eps, "atol": 64 * torch.finfo(dtype).eps}
    model = made(name, dtype)
    (start, inputs, labels, mask), more = arguments(model, 5)
    start = start.to(dtype)
    for clip in (0.5, None):
        right = model.gradient(start, inputs, labels, mask, clip, **more)
        for width in (6, 8, 40):
            wide = [
                torch.cat([value, value.new_full((NODES, width - WIDTH, *value.shape[2:]), 1)], 1)
                for value in (inputs, labels, mask.int())
            ]
            coins = more["coins"]
            if coins is not None:
                coins = torch.cat([coins, coins.new_zeros(NODES, width - WIDTH)], 1)
            found = model.gradient(
                start, *wide[:2], wide[2].bool() & (torch.arange(width) < WIDTH), clip,
                counts=40, coins=coins,
            )  # fmt: skip
            torch.testing.assert_close(found.total, right.total, **tolerance)
            torch.testing.assert_close(
                found.norms[:, : right.norms.shape[1]], right.norms, **tolerance
            )
            assert not bool(found.losses[:, WIDTH:].any())
            wide[0][:, WIDTH:] = float("nan")
            other = model.gradient(
                start, *wide[:2], wide[2].bool() & (torch.arange(width) < WIDTH), clip,
                counts=40, coins=coins,
            )  # fmt: skip
            assert torch.equal(found.total, other.total)
