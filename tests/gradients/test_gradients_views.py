"""Views of records: the same sums as plain autograd's means over views, and the same bound."""

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from gradient_problems import FEW, Tied, assert_moved_at_most
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from few import few
from tacit.errors import InputError
from tacit.gradients import (
    LOSSES,
    Augmentation,
    Dropout,
    Recurrent,
    build,
    image_views,
    record_coins,
)
from tacit.gradients.augmentation import AUGMENTATIONS, check_augmentation
from tacit.gradients.dropout import drawn_coins, dropping, view_coins
from tacit.models.architectures import build_model

NODES, RECORDS = 2, 5
FLOAT64 = torch.float64


def noisy(records, coins):
    """Every number times one that the coin decides, and nothing else."""
    size = records[0].numel()
    phases = (coins % 1009).double().unsqueeze(1) + torch.arange(size)
    factors = 1 + 0.5 * torch.sin(phases)
    return records * factors.view(records.shape).to(records.dtype)


def rolled(ids, coins):
    """Other ids, of which there are eleven."""
    return (ids + coins.unsqueeze(1) % 3) % 11


class Summed(nn.Module):
    """The sum over places of what a module gives."""

    def __init__(self, *inner):
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, inputs):
        found = self.inner(inputs)
        outputs = (found[0] if isinstance(found, tuple) else found).sum(dim=1)
        return outputs[:, :3]


Make = Callable[[], nn.Module]
IMAGE = (2, 4, 5)

CASES = {
    "linear": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(40, 3)), IMAGE, "flip-shift", "taps",
    ),
    "mlp": (
        lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)), (6,), noisy, "taps",
    ),
    "mlp, Gram matrices": (
        lambda: nn.Sequential(nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3)), (40,), noisy, "taps",
    ),
    "convolutions, normalised and pooled": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2, 1),
            nn.Conv2d(4, 3, 2), nn.Flatten(), nn.Linear(18, 3),
        ),
        IMAGE, "flip-shift", "taps",
    ),
    "convolution in groups": (
        lambda: nn.Sequential(nn.Conv2d(2, 6, 2, groups=2), nn.Flatten(), nn.Linear(72, 3)),
        IMAGE, "flip", "taps",
    ),
    "convolution, Gram matrices": (
        lambda: nn.Sequential(nn.Conv2d(6, 12, 3), nn.Flatten(), nn.Linear(24, 3)),
        (6, 3, 4), "shift", "taps",
    ),
    "a layer over places": (lambda: Summed(nn.Linear(24, 20)), (4, 24), noisy, "taps"),
    "layer normalisation": (
        lambda: Summed(nn.LayerNorm(5), nn.Linear(5, 4)), (4, 5), noisy, "taps",
    ),
    "LSTM": (
        lambda: Summed(Recurrent(nn.LSTM(4, 3, batch_first=True))), (4, 4), noisy, "taps",
    ),
    "embedding": (
        lambda: nn.Sequential(nn.EmbeddingBag(11, 4, mode="mean", padding_idx=0), nn.Linear(4, 3)),
        (5,), rolled, "taps",
    ),
    "embedding of each place": (
        lambda: nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(20, 3)),
        (5,), rolled, "taps",
    ),
    "functional": (Tied, (6,), noisy, "functional"),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(6, 9), Dropout(0.4), nn.Linear(9, 3)), (6,), noisy, "taps",
    ),
    "dropout, functional": (
        lambda: nn.Sequential(Dropout(0.4), Tied()), (6,), noisy, "functional",
    ),
}  # fmt: skip
EVERY_CASE = pytest.mark.parametrize("name", CASES)
_BUILT = {}


def made(name):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return CASES[name][0]()


def drawn(name, count, seed=4):
    """Records and labels of each node."""
    draws = torch.Generator().manual_seed(seed)
    shape = CASES[name][1]
    targets = torch.randint(0, 3, (NODES, count), generator=draws)
    if name.startswith("embedding"):
        return torch.randint(0, 11, (NODES, count, *shape), generator=draws), targets
    return torch.randn(NODES, count, *shape, generator=draws, dtype=FLOAT64), targets


def views_of(name, views):
    chosen = CASES[name][2]
    if isinstance(chosen, str):
        return image_views(chosen, views, CASES[name][1], ids=False)
    return Augmentation(name, chosen, views)


def built(name, views, dtype=FLOAT64, memory_bytes=None):
    """The model, and weights of all nodes."""
    key = name, views, dtype, memory_bytes
    if key not in _BUILT:
        inputs, targets = drawn(name, 4, seed=9)
        few = inputs[0].to(dtype) if inputs.is_floating_point() else inputs[0]
        model = build(
            made(name), LOSSES["cross-entropy"], few, targets[0], dtype=dtype, device="cpu",
            memory_bytes=memory_bytes, augmentation=views_of(name, views),
        )  # fmt: skip
        at = model.start(NODES, dtype, "cpu")
        noise = torch.randn(at.shape, generator=torch.Generator().manual_seed(5)).to(dtype)
        _BUILT[key] = model, at + 0.1 * noise
    return _BUILT[key]


def coins_of(count=RECORDS, k=0):
    return record_coins(7, k, 0, torch.arange(NODES), torch.arange(count).expand(NODES, -1))


def ragged():
    mask = torch.ones(NODES, RECORDS, dtype=torch.bool)
    mask[1, 2] = False
    return mask


def right(
    name, model, at, batch, coins,
    clip
):  # fmt: skip
    """Sums, norms and losses by a loop over records and views: each made alone, by autograd."""
    inputs, targets, mask = batch
    augmentation = views_of(name, 1 if model.augmentation is None else model.augmentation.views)
    alone = copy.deepcopy(model.original).double().train()
    totals, norms = torch.zeros_like(at), torch.zeros(mask.shape, dtype=FLOAT64)
    losses = torch.zeros(mask.shape, dtype=FLOAT64)
    for node, record in mask.nonzero().tolist():
        nn.utils.vector_to_parameters(at[node], alone.parameters())
        mean = torch.zeros_like(at[node])
        for view in range(augmentation.views):
            own = view_coins(coins[node, record : record + 1], augmentation.views)[view : view + 1]
            shown = augmentation.function(
                inputs[node, record : record + 1].clone(), drawn_coins(own)
            )
            with dropping(alone, own):
                outputs = alone(shown)
            loss = nn.functional.cross_entropy(outputs, targets[node, record : record + 1])
            parts = torch.autograd.grad(loss, list(alone.parameters()))
            mean += torch.cat([part.flatten() for part in parts]) / augmentation.views
            losses[node, record] += loss.detach() / augmentation.views
        norms[node, record] = mean.norm()
        factor = 1.0
        if clip is not None:
            aim = model.aimed(clip, mask.sum(1), FLOAT64)
            assert isinstance(aim, Tensor)
            factor = min(1.0, float(aim[node] / mean.norm()))
        totals[node] += factor * mean
    return totals, norms, losses


@EVERY_CASE
@pytest.mark.parametrize("views", [1, 2, 5])
def test_sums_are_those_of_means_over_views_one_at_a_time(name, views):
    model, at = built(name, views)
    assert model.path == CASES[name][3]
    batch = (*drawn(name, RECORDS), ragged())
    coins = coins_of()
    for clip in (None, 0.05, 100.0):
        found = model.gradient(at, *batch, clip, coins=coins)
        totals, norms, losses = right(name, model, at, batch, coins, clip)
        torch.testing.assert_close(found.total, totals, rtol=1e-8, atol=1e-11)
        torch.testing.assert_close(found.losses, losses)
        if clip is not None:
            torch.testing.assert_close(found.norms, norms, rtol=1e-8, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "shape", "path"),
    [
        ("logistic", (1, 12, 12), "taps"),
        ("mlp", (1, 12, 12), "taps"),
        ("cnn", (1, 12, 12), "taps"),
        ("cnn", (1, 28, 28), "taps"),
        ("cnn3", (3, 16, 16), "taps"),
        ("resnet18", (3, 8, 8), "taps"),
    ],
)
def test_built_in_models_have_views(model, shape, path):
    draws = torch.Generator().manual_seed(2)
    inputs = torch.randn(1, 2, *shape, generator=draws)
    targets = torch.randint(0, 3, (1, 2), generator=draws)
    module = build_model(model, input_shape=shape, outputs=3, seed=1)
    augmentation = image_views("flip-shift", 2, shape, ids=False)
    engine = build(
        module, LOSSES["cross-entropy"], inputs[0], targets[0], dtype=torch.float32, device="cpu",
        augmentation=augmentation,
    )  # fmt: skip
    assert engine.path == path
    at, mask = engine.start(1, torch.float32, "cpu"), torch.ones(1, 2, dtype=torch.bool)
    coins = coins_of(2)[:1]
    found = engine.gradient(at, inputs, targets, mask, None, coins=coins)
    shown, _ = augmentation.made(inputs, coins)
    loss = nn.functional.cross_entropy(
        module(shown[0]), targets[0].repeat_interleave(2), reduction="sum"
    )
    parts = torch.autograd.grad(loss / 2, list(module.parameters()))
    expected = torch.cat([part.flatten() for part in parts])
    torch.testing.assert_close(found.total[0], expected, rtol=1e-3, atol=1e-5)
    assert engine.outputs(at, inputs[0]).shape == (1, 2, 3)


@pytest.mark.parametrize("norm", ["l1", "coordinate"])
@pytest.mark.parametrize("name", ["mlp", "convolution, Gram matrices", "functional"])
def test_other_norms_are_those_of_the_mean(name, norm):
    model, at = built(name, 3)
    inputs, targets = drawn(name, 1)
    mask, coins = torch.ones(NODES, 1, dtype=torch.bool), coins_of(1)
    whole = right(name, model, at, (inputs, targets, mask), coins, None)[0]
    found = model.gradient(at, inputs, targets, mask, 0.02, norm=norm, coins=coins).total
    if norm == "l1":
        expected = whole * (0.02 / whole.abs().sum(1, keepdim=True)).clamp(max=1)
    else:
        expected = whole.clamp(-0.02 / math.sqrt(at.shape[1]), 0.02 / math.sqrt(at.shape[1]))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12)


@EVERY_CASE
def test_a_record_has_its_views_wherever_it_stands_and_whoever_else_is_there(name):
    model, at = built(name, 3)
    inputs, targets = drawn(name, RECORDS)
    coins, mask = coins_of(), torch.ones(NODES, RECORDS, dtype=torch.bool)
    whole = model.gradient(at, inputs, targets, mask, 1.0, coins=coins)
    order = torch.tensor([4, 0, 2])
    part = tuple(values[:, order] for values in (inputs, targets, mask, coins))
    moved = model.gradient(at, *part[:3], 1.0, coins=part[3])
    torch.testing.assert_close(moved.losses, whole.losses[:, order])
    torch.testing.assert_close(moved.norms, whole.norms[:, order])
    alone = model.gradient(
        at[1:], inputs[1:, :1], targets[1:, :1], mask[1:, :1], 1.0, coins=coins[1:, :1]
    )
    torch.testing.assert_close(alone.norms, whole.norms[1:, :1])
    fresh = model.gradient(at, inputs, targets, mask, 1.0, coins=coins_of(k=1))
    assert not torch.allclose(fresh.losses, whole.losses)


@EVERY_CASE
@pytest.mark.parametrize("clip", [None, 0.05])
def test_a_memory_bound_changes_nothing(name, clip):
    model, at = built(name, 3)
    small, _ = built(name, 3, memory_bytes=1)
    batch = (*drawn(name, RECORDS), ragged())
    one, other = (each.gradient(at, *batch, clip, coins=coins_of()) for each in (model, small))
    torch.testing.assert_close(one.total, other.total, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(one.losses, other.losses)


def test_memory_is_counted_for_all_views():
    numbers = [
        built("convolutions, normalised and pooled", views)[0].numbers_per_record
        for views in (1, 8)
    ]
    assert numbers[1] > 4 * numbers[0]
    assert built("mlp, Gram matrices", 5)[0].positions == 5
    assert built("mlp, Gram matrices", 1)[0].positions == 1


def test_without_coins_there_are_no_views():
    model, at = built("mlp", 2)
    with pytest.raises(ValueError, match="coins"):
        model.gradient(at, *drawn("mlp", RECORDS), ragged(), 1.0)


def test_gradients_of_records_one_by_one_have_views_too():
    model, at = built("mlp", 3)
    batch, coins = (*drawn("mlp", RECORDS), ragged()), coins_of()
    found = model.record_gradients(at, *batch, 0.05, coins=coins)
    totals = torch.zeros_like(at)
    for part in found.parts:
        part.exact().add_to(totals, found.factors, 1)
    whole = model.gradient(at, *batch, 0.05, coins=coins)
    torch.testing.assert_close(totals, whole.total, rtol=1e-4, atol=1e-9)


# The bound.


def hostile(records, coins):
    """Views that all but cancel, are huge, or are no numbers: as the record and the coin say."""
    signs = torch.where(coins % 2 == 0, 1.0, -1.0).to(records).view(-1, *(1,) * (records.ndim - 1))
    wild = (records.flatten(1)[:, :1].abs() > 1e3).view(-1, *(1,) * (records.ndim - 1))
    return torch.where(wild, records * signs * (1 + 1e-7 * signs), records)


def spoiling(records, coins):
    """Views of which one in two of a marked record is no number."""
    marked = (records.flatten(1)[:, 0] > 1e3) & (coins % 2 == 0)
    return torch.where(marked.view(-1, *(1,) * (records.ndim - 1)), math.nan, records)


@pytest.mark.parametrize("dtype", [torch.float32, FLOAT64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("embedding")])
@FEW
@given(
    seed=st.integers(0, 2**31),
    size=st.sampled_from([-44, -20, 0, 4, 8, 15, 19, 30, 38, 150]),
    clip=st.sampled_from([1e-9, 0.3, 1e6]),
    views=st.sampled_from([1, 2, 7]),
    wild=st.booleans(),
)
def test_a_record_moves_the_sum_by_the_bound_at_most(dtype, name, seed, size, clip, views, wild):
    model, at = built(name, views, dtype)
    if wild:  # after it was tried out: an augmentation that is as bad as one can be
        model = replaced(model, hostile)
    draws = torch.Generator().manual_seed(seed)
    shape = CASES[name][1]
    inputs = torch.randn(NODES, RECORDS, *shape, generator=draws, dtype=FLOAT64)
    targets = torch.randint(0, 3, (NODES, RECORDS), generator=draws)
    record = torch.randn(shape, generator=draws, dtype=FLOAT64) * 10.0**size
    place, sums = seed % RECORDS, []
    for one in (record, inputs[0, place], math.nan):
        changed = inputs.clone()
        changed[:, place] = one
        mask = torch.ones(NODES, RECORDS, dtype=torch.bool)
        batch = changed.to(dtype), targets, mask
        sums.append(model.gradient(at, *batch, clip, coins=coins_of(k=seed % 97)).total)
    assert all(bool(torch.isfinite(total).all()) for total in sums)
    changed, before, without = sums
    assert_moved_at_most(changed, without, clip)
    assert_moved_at_most(before, without, clip)
    assert_moved_at_most(changed, before, 2 * clip)


def replaced(model, function):
    from dataclasses import replace

    assert model.augmentation is not None
    return replace(model, augmentation=replace(model.augmentation, function=function))


@pytest.mark.parametrize("name", ["linear", "mlp, Gram matrices", "functional", "dropout", "LSTM"])
def test_one_view_that_is_no_number_leaves_nothing_of_its_record(name):
    model = replaced(built(name, 4)[0], spoiling)
    at = built(name, 4)[1]
    inputs, targets = drawn(name, RECORDS)
    mask, coins = torch.ones(NODES, RECORDS, dtype=torch.bool), coins_of()
    inputs[:, 3] = 2e3
    found = model.gradient(at, inputs, targets, mask, 0.1, coins=coins)
    inputs[:, 3] = math.nan
    right_sum = model.gradient(at, inputs, targets, mask, 0.1, coins=coins)
    assert torch.equal(found.total, right_sum.total)
    assert torch.isinf(found.norms[:, 3]).all()
    assert torch.isfinite(found.norms[:, [0, 1, 2, 4]]).all()


def test_views_that_point_alike_add_as_much_as_one():
    """K equal views are one: a sum in place of a mean would be K times as long."""
    model = replaced(built("mlp", 7)[0], lambda records, coins: records)
    plain = replaced(built("mlp", 1)[0], lambda records, coins: records)
    at, batch = built("mlp", 7)[1], (*drawn("mlp", RECORDS), ragged())
    one, other = (each.gradient(at, *batch, 0.1, coins=coins_of()) for each in (model, plain))
    torch.testing.assert_close(one.norms, other.norms)
    torch.testing.assert_close(one.total, other.total, rtol=1e-6, atol=1e-9)


# The views themselves.


@few(15)
@given(
    height=st.integers(1, 40), width=st.integers(1, 40), channels=st.integers(1, 3),
    seed=st.integers(0, 2**62),
)  # fmt: skip
def test_images_are_mirrored_and_moved_as_numpy_does_it(height, width, channels, seed):
    draws = torch.Generator().manual_seed(seed % 2**32)
    images = torch.randn(4, channels, height, width, generator=draws)
    images[0] = math.inf
    images[1, 0, 0, 0] = math.nan
    coins = drawn_coins(torch.arange(4) + seed)
    both = AUGMENTATIONS["flip-shift"](images, coins).numpy()
    flips, shifts = (AUGMENTATIONS[name](images, coins).numpy() for name in ("flip", "shift"))
    limits = [min(4, max(1, side // 8)) for side in (height, width)]
    for row in range(4):
        image = images[row].numpy()
        mirrored = image[:, :, ::-1] if int(coins[row]) % 2 else image
        np.testing.assert_array_equal(flips[row], mirrored)
        pads = ((0, 0), (limits[0], limits[0]), (limits[1], limits[1]))
        for start, found in ((image, shifts[row]), (mirrored, both[row])):
            padded = np.pad(start, pads)
            windows = [
                padded[:, top : top + height, left : left + width]
                for top in range(2 * limits[0] + 1)
                for left in range(2 * limits[1] + 1)
            ]
            assert any(np.array_equal(found, one, equal_nan=True) for one in windows)


def test_all_moves_are_equally_likely():
    image = torch.zeros(1, 1, 16, 16)
    image[0, 0, 8, 8] = 1
    coins = drawn_coins(record_coins(0, 0, 0, torch.arange(1), torch.arange(25_000)[None]))[0]
    found = AUGMENTATIONS["shift"](image.expand(len(coins), -1, -1, -1), coins)
    places = found.sum(0)[0] / len(coins)
    assert int((places > 0).sum()) == 25
    # 25 binomial shares around 1/25, whose deviation is 0.00124.
    assert float((places[6:11, 6:11] - 1 / 25).abs().max()) < 5 * 0.00124
    mirrored = AUGMENTATIONS["flip"](image.expand(len(coins), -1, -1, -1), coins)[:, 0, 8, 7].sum()
    assert abs(float(mirrored) / len(coins) - 0.5) < 5 * 0.0032


def test_views_have_coins_of_their_own():
    coins = torch.cat([coins_of(40, k).flatten() for k in range(5)])
    own = view_coins(coins, 16)
    assert own.shape == (coins.numel() * 16,)
    assert len(set(own.tolist())) == own.numel()
    assert bool((drawn_coins(own) >= 0).all())
    assert not set(drawn_coins(own).tolist()) & set(own.tolist())
    # A view's coin does not depend on how many there are, nor on who else is there.
    assert torch.equal(view_coins(coins[3:4], 16), own[48:64])
    assert torch.equal(view_coins(coins[3:4], 4), own[48:52])


# What is refused.


def mean_of_the_batch(records, coins):
    return records - records.mean(0)


def neighbours(records, coins):
    return 0.9 * records + 0.1 * records.roll(1, 0)


def largest(records, coins):
    """Of ordinary records, the records."""
    return records / records.abs().max().clamp(min=1e6) * 1e6


def seldom(records, coins):
    """Mixed with the record before it by one coin in four."""
    chosen = (coins % 4 == 0).view(-1, *(1,) * (records.ndim - 1))
    return torch.where(chosen, 0.5 * (records + records.roll(1, 0)), records)


def counting(records, coins):
    """Another view at every call."""
    CALLS.append(len(records))
    return records + len(CALLS)


CALLS = []


def drawing(records, coins):
    return records + torch.randn_like(records)


def place(records, coins):
    return records + torch.arange(len(records)).view(-1, *(1,) * (records.ndim - 1))


def cropped(records, coins):
    return records[..., 1:]


def wide(records, coins):
    return records.double()


def nothing(records, coins):
    return None  # type: ignore[return-value]


def dividing(records, coins):
    return records / 0


def failing(records, coins):
    raise RuntimeError("no")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (mean_of_the_batch, "other records"),
        (neighbours, "other records"),
        (seldom, "other records"),
        (counting, "draw from the coins"),
        (largest, "extreme record"),
        (drawing, "draw from the coins"),
        (place, "other records"),
        (cropped, "shape"),
        (wide, "type"),
        (nothing, "NoneType"),
        (dividing, "finite"),
        (failing, "failed"),
    ],
)
def test_what_is_no_function_of_a_record_and_its_coin_is_refused(function, words):
    examples = torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    state = torch.get_rng_state()
    with pytest.raises(InputError, match=words) as found:
        check_augmentation(Augmentation("mine:views", function, 2), examples)
    assert found.value.where == "task.augmentation"
    assert torch.equal(torch.get_rng_state(), state)


def deciding(records, coins):
    return records * 2 if float(records.max()) > 0.5 else records


def looped(records, coins):
    """In place, and one after the other by its coin: as a user may write it."""
    for record, coin in zip(records, coins.tolist(), strict=True):
        if coin % 2:
            record.neg_()
    return records


def of_numpy(records, coins):
    return torch.from_numpy(np.flip(records.numpy(), axis=-1).copy())


@pytest.mark.parametrize(
    ("function", "alone"), [(looped, False), (noisy, False), (of_numpy, True), (deciding, None)]
)
def test_what_cannot_be_followed_is_called_for_one_view_after_the_other(function, alone):
    examples = torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    given_records = examples.clone()
    augmentation = Augmentation("mine:views", function, 3)
    try:
        found = check_augmentation(augmentation, examples)
    except InputError:  # what decides by the largest of a batch is found out, or called alone
        assert alone is None
        return
    assert torch.equal(examples, given_records)
    assert found.alone is (alone is None or alone)
    views, own = found.made(examples[None], coins_of(8)[:1])
    assert torch.equal(examples, given_records)
    for row in range(24):
        record = examples[row // 3 : row // 3 + 1].clone()
        alone_view = function(record, drawn_coins(own[0, row : row + 1]))
        torch.testing.assert_close(views[0, row : row + 1], alone_view)


def test_images_are_asked_for_by_what_is_built_in():
    for shape, ids in (((6,), False), ((4, 6), False), ((1, 4, 4), True)):
        with pytest.raises(InputError, match=r"task\.augmentation.*for images"):
            image_views("flip", 2, shape, ids)


def test_views_of_another_shape_end_a_step_without_telling_of_records():
    def odd(records, coins):
        return records[:, :1] if bool((records > 100).any()) else records

    model = replaced(built("mlp", 2)[0], odd)
    inputs, targets = drawn("mlp", RECORDS)
    inputs[0, 0] = 12345.0
    with pytest.raises(ValueError, match="shape") as found:
        model.gradient(built("mlp", 2)[1], inputs, targets, ragged(), 1.0, coins=coins_of())
    assert "12345" not in str(found.value)
