"""One record, however made, moves the sum that the machine returns by C at most: exactly.

A record that is not finite contributes exactly zero, so it serves as the null record: D and D' are
batches that differ in one slot. Both sums are read as the rational numbers that they are.
"""

import math
from contextlib import suppress

import pytest
import torch
from gradient_problems import FEW, Tied, assert_moved_at_most
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tacit.errors import InputError
from tacit.gradients import LOSSES, Dropout, Recurrent, build, record_coins

FLOAT32, FLOAT64 = torch.float32, torch.float64
NODES, RECORDS = 2, 5


class Tokens(nn.Module):
    """A layer over a sequence, whose positions are added up."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, inputs):
        outputs = self.inner(inputs).sum(dim=1)
        return outputs[:, :3]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.value = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, inputs):
        weights = torch.softmax(self.query(inputs) @ inputs.transpose(1, 2) / 3, dim=2)
        return (weights @ self.value(inputs)).mean(dim=1)


class Counted(nn.Module):
    """The rows of a record's ids, some of them the same, as often as the record says."""

    def __init__(self):
        super().__init__()
        self.rows, self.layer = nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(self, inputs):
        ids = inputs.nan_to_num(nan=0.0).clamp(-9, 9).round().long().remainder(5)
        return self.layer((self.rows(ids) * inputs.unsqueeze(2)).sum(dim=1))


class First(nn.Sequential):
    """The first of what a layer returns."""

    def forward(self, inputs):
        return super().forward(inputs)[0]


MODELS = {
    "linear": (lambda: nn.Linear(6, 3), (6,)),
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)), (6,)),
    "tokens, Gram matrices": (lambda: Tokens(nn.Linear(24, 20)), (4, 24)),
    "tokens, materialised": (lambda: Tokens(nn.Linear(5, 4)), (9, 5)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 3)),
        (1, 4, 4),
    ),
    "convolution, Gram matrices": (
        lambda: nn.Sequential(nn.Conv2d(6, 12, 3), nn.Flatten(), nn.Linear(24, 3)),
        (6, 3, 4),
    ),
    "convolutions, rectified and pooled": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2, 1),
            nn.Conv2d(4, 5, 2),
            nn.ReLU(),
            nn.Conv2d(5, 3, 2),
            nn.Flatten(),
        ),
        (1, 4, 4),
    ),
    "group normalisation": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3)
        ),
        (1, 4, 4),
    ),
    "layer normalisation": (
        lambda: Tokens(nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 4))),
        (4, 5),
    ),
    "attention": (Attention, (4, 8)),
    "embedding": (Counted, (8,)),
    "functional": (Tied, (6,)),
    "LSTM": (lambda: Tokens(First(Recurrent(nn.LSTM(4, 3, batch_first=True)))), (4, 4)),
    "GRU, both ways": (
        lambda: Tokens(First(Recurrent(nn.GRU(3, 2, batch_first=True, bidirectional=True)))),
        (3, 3),
    ),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(6, 9), nn.Tanh(), Dropout(0.4), nn.Linear(9, 3)),
        (6,),
    ),
    "dropout, functional": (lambda: nn.Sequential(Dropout(0.4), Tied()), (6,)),
}
_BUILT = {}
ARITHMETIC = pytest.mark.parametrize(
    ("dtype", "precision"),
    [(FLOAT32, "float32"), (FLOAT64, "float32"), (FLOAT32, "bf16")],
    ids=["float32", "float64", "bf16"],
)


def built(name, dtype, rows=None, precision="float32"):
    """The model, and weights of two nodes; `rows` is how many a record has at most."""
    if (name, dtype, rows, precision) not in _BUILT:
        make, shape = MODELS[name]
        with torch.random.fork_rng():
            torch.manual_seed(3)
            module = make()
        draws = torch.Generator().manual_seed(5)
        examples = torch.randn(4, *shape, generator=draws)
        targets = torch.randint(0, 3, (4,), generator=draws)
        loss = LOSSES["cross-entropy"]
        model = build(
            module,
            loss,
            examples,
            targets,
            dtype=dtype,
            device="cpu",
            unit_rows=rows,
            precision=precision,
        )
        at = model.start(NODES, dtype, "cpu")
        moved = at + 0.1 * torch.randn(at.shape, generator=draws).to(dtype)
        _BUILT[name, dtype, rows, precision] = model, moved
    return _BUILT[name, dtype, rows, precision]


def adversarial(shape, size, kind, draws):
    """A record whose positions, pixels or numbers are huge, tiny, or nearly cancel."""
    base = torch.randn(shape[1:] if len(shape) > 1 else shape, generator=draws, dtype=FLOAT64)
    signs = torch.where(torch.arange(shape[0]) % 2 == 0, 1.0, -1.0).double()
    signs = signs.view(-1, *(1,) * (len(shape) - 1))
    noise = torch.randn(shape, generator=draws, dtype=FLOAT64)
    made = [
        size * noise,
        size * base.expand(shape) * signs,
        size * base.expand(shape) * signs + noise,
        size * base.expand(shape) * (1 + 1e-7 * noise),
        size * noise.sign() * torch.rand(shape, generator=draws, dtype=FLOAT64).mul(-80).exp(),
    ]
    return made[kind]


@ARITHMETIC
@pytest.mark.parametrize("name", MODELS)
@FEW
@given(
    seed=st.integers(0, 2**31),
    size=st.sampled_from([-310, -44, -38, -20, 0, 2, 4, 8, 12, 15, 18, 19, 24, 30, 38, 100, 150]),
    kind=st.integers(0, 4),
    clip=st.sampled_from([1e-9, 0.3, 1.0, 1e6]),
    norm=st.sampled_from(["l2", "automatic", "l1", "coordinate"]),
    others=st.sampled_from(["ordinary", "all like it"]),
)
def test_a_record_moves_the_sum_by_the_bound_at_most(
    dtype, precision, name, seed, size, kind, clip, norm, others
):
    model, at = built(name, dtype, precision=precision)
    shape = MODELS[name][1]
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.randn(NODES, RECORDS, *shape, generator=draws, dtype=FLOAT64)
    if others == "all like it":
        for slot in range(RECORDS):
            inputs[:, slot] = adversarial(shape, 10.0**size, kind, draws)
    targets = torch.randint(0, 3, (NODES, RECORDS), generator=draws)
    mask = torch.ones(NODES, RECORDS, dtype=torch.bool)
    mask[1, 3] = False
    place = seed % 3
    versions = []
    coins = record_coins(seed, 0, 0, torch.arange(NODES), torch.arange(RECORDS).expand(NODES, -1))
    for record in (adversarial(shape, 10.0**size, kind, draws), inputs[0, place], math.nan):
        given_inputs = inputs.clone()
        given_inputs[:, place] = record
        batch = given_inputs.to(dtype), targets, mask
        versions.append(model.gradient(at, *batch, clip, norm=norm, coins=coins).total)
    assert all(bool(torch.isfinite(total).all()) for total in versions)
    changed, before, without = versions
    assert_moved_at_most(changed, without, clip, norm)
    assert_moved_at_most(before, without, clip, norm)
    assert_moved_at_most(changed, before, 2 * clip, norm)


ROWS = 4


def adversarial_unit(shape, size, kind, draws):
    """Rows `[ROWS, *shape]` that agree, that cancel, that do so nearly, or of which one is lost."""
    row = adversarial(shape, size, kind % 5, draws)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=FLOAT64).view(-1, *(1,) * len(shape))
    noise = torch.randn(ROWS, *shape, generator=draws, dtype=FLOAT64)
    lost = row.expand(ROWS, *shape).clone()
    lost[2] = math.nan
    return [row.expand(ROWS, *shape), row * signs, row * signs + noise, lost][kind % 4]


@ARITHMETIC
@pytest.mark.parametrize("name", MODELS)
@FEW
@given(
    seed=st.integers(0, 2**31),
    size=st.sampled_from([-310, -44, -20, 0, 2, 4, 8, 12, 19, 30, 38, 150]),
    kind=st.integers(0, 19),
    clip=st.sampled_from([1e-9, 0.3, 1e6]),
    norm=st.sampled_from(["l2", "automatic", "l1", "coordinate"]),
    gradient=st.sampled_from(["mean", "sum"]),
    least=st.integers(1, ROWS),
)
def test_a_person_with_any_rows_moves_the_sum_by_the_bound_at_most(
    dtype, precision, name, seed, size, kind, clip, norm, gradient, least
):
    model, at = built(name, dtype, ROWS, precision)
    shape = MODELS[name][1]
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.randn(NODES, RECORDS, ROWS, *shape, generator=draws, dtype=FLOAT64)
    targets = torch.randint(0, 3, (NODES, RECORDS, ROWS), generator=draws)
    counts = torch.randint(1, ROWS + 1, (NODES, RECORDS), generator=draws)
    mask = torch.ones(NODES, RECORDS, dtype=torch.bool)
    mask[1, 3] = False
    place = seed % 3
    coins = record_coins(seed, 0, 0, torch.arange(NODES), torch.arange(RECORDS).expand(NODES, -1))
    versions = []
    attack = adversarial_unit(shape, 10.0**size, kind, draws)
    for unit, rows in ((attack, ROWS), (attack, least), (inputs[0, place], 1), (math.nan, ROWS)):
        given_inputs, own = inputs.clone(), counts.clone()
        given_inputs[:, place], own[:, place] = unit, rows
        shares = (torch.arange(ROWS) < own[..., None]).double()
        shares = shares / own[..., None] if gradient == "mean" else shares
        batch = given_inputs.to(dtype), targets, mask
        found = model.gradient(at, *batch, clip, norm=norm, coins=coins, shares=shares)
        versions.append(found.total)
    assert all(bool(torch.isfinite(total).all()) for total in versions)
    *others, without = versions
    for one in others:
        assert_moved_at_most(one, without, clip, norm)
        assert_moved_at_most(one, others[0], 2 * clip, norm)


@pytest.mark.parametrize("inputs", [1e4, 1e8, 1e12, 1e18, 1e30])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=["float32", "float64"])
def test_positions_that_cancel_do_not_bypass_the_bound(dtype, inputs):
    """Four positions whose outer products cancel but for rounding, for which norms said 1."""
    layer = nn.Linear(64, 64, bias=False)
    model = build(
        Tokens(layer),
        LOSSES["cross-entropy"],
        torch.randn(3, 4, 64, generator=torch.Generator().manual_seed(1)),
        torch.tensor([0, 1, 2]),
        dtype=dtype,
        device="cpu",
    )
    at = model.start(1, dtype, "cpu")
    draws = torch.Generator().manual_seed(2)
    for seed in range(5):
        draws.manual_seed(seed)
        row = torch.randn(64, generator=draws, dtype=FLOAT64) * inputs
        other = torch.randn(64, generator=draws, dtype=FLOAT64) * inputs
        record = torch.stack([row, -row, other, -other]) + torch.randn(4, 64, generator=draws)
        spoilt = torch.full_like(record, math.nan)
        rest = torch.randn(4, 4, 64, generator=draws, dtype=FLOAT64)
        sums = [
            model.gradient(
                at,
                torch.stack([one, *rest]).unsqueeze(0).to(dtype),
                torch.tensor([[0, 1, 2, 0, 1]]),
                torch.ones(1, 5, dtype=torch.bool),
                1.0,
            ).total
            for one in (record, spoilt)
        ]
        assert_moved_at_most(*sums, 1.0)


@pytest.mark.parametrize("count", [129, 4_000, 40_000])
def test_many_aligned_records_do_not_move_a_sum_by_more(count):
    """Sums so large that single precision alone would lose, or double, what one record adds."""
    model, at = built("linear", FLOAT32)
    draws = torch.Generator().manual_seed(count)
    one = torch.randn(6, generator=draws)
    inputs = one.expand(NODES, count, 6) * (1 + 1e-3 * torch.rand(NODES, count, 1, generator=draws))
    targets = torch.zeros(NODES, count, dtype=torch.int64)
    mask = torch.ones(NODES, count, dtype=torch.bool)
    for place in (0, 77, count - 1):
        versions = []
        for record in (-3 * one, one, torch.full_like(one, math.nan)):
            changed = inputs.clone()
            changed[:, place] = record
            versions.append(model.gradient(at, changed, targets, mask, 0.01).total)
        opposite, alike, without = versions
        assert_moved_at_most(opposite, without, 0.01)
        assert_moved_at_most(alike, without, 0.01)
        assert_moved_at_most(opposite, alike, 0.02)


def test_a_million_coordinates():
    model = build(
        nn.Linear(10_000, 100, bias=False),
        LOSSES["cross-entropy"],
        torch.randn(3, 10_000, generator=torch.Generator().manual_seed(1)),
        torch.tensor([0, 1, 2]),
        dtype=FLOAT32,
        device="cpu",
    )
    at = model.start(1, FLOAT32, "cpu")
    draws = torch.Generator().manual_seed(2)
    inputs = torch.randn(1, 3, 10_000, generator=draws) * torch.tensor([1.0, 1e-3, 1e6])[:, None]
    mask = torch.ones(1, 3, dtype=torch.bool)
    spoilt = inputs.clone()
    spoilt[0, 0] = math.nan
    one, other = (
        model.gradient(at, values, torch.tensor([[0, 1, 2]]), mask, 1.0).total.double()
        for values in (inputs, spoilt)
    )
    length = (one - other).square().sum().sqrt()  # a sum of squares: to 1e-10 in float64
    assert 0.999 < float(length) <= 1 + 1e-9


def test_what_has_no_bound_contributes_nothing_and_is_seen():
    model, at = built("linear", FLOAT32)
    inputs = torch.ones(NODES, 3, 6)
    inputs[:, 1] = 3e38
    inputs[:, 2] = math.inf
    targets, mask = torch.zeros(NODES, 3, dtype=torch.int64), torch.ones(NODES, 3, dtype=torch.bool)
    found = model.gradient(at, inputs, targets, mask, 1.0)
    alone = model.gradient(at, inputs[:, :1], targets[:, :1], mask[:, :1], 1.0)
    torch.testing.assert_close(found.total, alone.total, rtol=1e-4, atol=1e-6)
    assert torch.isinf(found.norms).tolist() == [[False, True, True]] * NODES


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_products_of_less_than_single_precision_are_refused(precision):
    model, at = built("linear", FLOAT32)
    batch = torch.ones(NODES, 1, 6), torch.zeros(NODES, 1, dtype=torch.int64)
    mask = torch.ones(NODES, 1, dtype=torch.bool)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        with pytest.raises(ValueError, match="float32_matmul_precision"):
            model.gradient(at, *batch, mask, 1.0)
    finally:
        torch.set_float32_matmul_precision(before)


def test_autocast_does_not_reach_the_sums():
    model, at = built("mlp", FLOAT32)
    draws = torch.Generator().manual_seed(1)
    batch = torch.randn(NODES, 4, 6, generator=draws), torch.zeros(NODES, 4, dtype=torch.int64)
    mask = torch.ones(NODES, 4, dtype=torch.bool)
    right = model.gradient(at, *batch, mask, 1.0).total
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model.gradient(at, *batch, mask, 1.0).total, right)


class Rescaling(nn.Module):
    """Divides a whole batch by 255 if it looks like pixels: one record then changes all others."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, inputs):
        return self.layer(inputs / 255 if bool(inputs.max() > 10) else inputs)


class Relative(Rescaling):
    def forward(self, inputs):
        return self.layer(inputs / inputs.abs().amax().clamp(min=10))


@pytest.mark.parametrize("make", [Rescaling, Relative])
def test_a_module_in_which_an_extreme_record_changes_others_is_not_tapped(make):
    draws = torch.Generator().manual_seed(1)
    examples = torch.randn(4, 6, generator=draws), torch.tensor([0, 1, 2, 0])
    with suppress(InputError):  # torch.func may be unable to differentiate it
        model = build(make(), LOSSES["cross-entropy"], *examples, dtype=FLOAT64, device="cpu")
        assert model.path == "functional"
        moved_by_one(model, examples[1], draws)


class Shortened(nn.Module):
    """Leaves the second half of every text out if one record of the batch is all padding."""

    def __init__(self, blank):
        super().__init__()
        self.blank = blank
        self.words, self.layer = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, inputs):
        words = self.words(inputs)
        if bool((inputs == self.blank).all(dim=1).any()):
            words = words * torch.tensor([1.0, 1.0, 0.0, 0.0]).unsqueeze(1)
        return self.layer(words.mean(dim=1))


@pytest.mark.parametrize("blank", [0, 8, 99])
def test_a_module_in_which_a_text_may_change_others_is_refused(blank):
    """Also where no text of the trial is the one that does, as with 99."""
    examples = 2 + torch.arange(12).view(3, 4) % 5, torch.tensor([0, 1, 2])
    with pytest.raises(InputError, match="one record at a time"):
        build(Shortened(blank), LOSSES["cross-entropy"], *examples, dtype=FLOAT64, device="cpu")


def moved_by_one(model, targets, draws):
    at = model.start(1, FLOAT64, "cpu")
    inputs = torch.randn(1, 4, 6, generator=draws, dtype=FLOAT64)
    targets, mask = targets.unsqueeze(0), torch.ones(1, 4, dtype=torch.bool)
    before = model.gradient(at, inputs, targets, mask, 1.0).total
    inputs[0, 1] = 200.0
    after = model.gradient(at, inputs, targets, mask, 1.0).total
    assert_moved_at_most(before, after, 2.0)
