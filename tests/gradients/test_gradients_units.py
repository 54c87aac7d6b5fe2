"""Records that are all rows of a person: a loop over persons in NumPy's plain way, and the same."""

import copy

import pytest
import torch
from test_gradients_sensitivity import MODELS
from torch import nn
from torch.func import functional_call

from tacit.gradients import LOSSES, build, image_views, record_coins
from tacit.gradients.dropout import dropping, view_coins
from tacit.gradients.table import GradientTable, clipped_difference
from tacit.gradients.table_storage import entry_shapes

NODES, PERSONS, ROWS = 2, 6, 4
FLOAT64 = torch.float64


def made(name):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return MODELS[name][0]()


def built(name, **options):
    draws = torch.Generator().manual_seed(5)
    examples = torch.randn(4, *MODELS[name][1], generator=draws)
    loss = LOSSES["cross-entropy"]
    labels = torch.tensor([0, 1, 2, 0])
    options = {"dtype": FLOAT64, "device": "cpu", "unit_rows": ROWS, **options}
    return build(made(name), loss, examples, labels, **options)


class People:
    """Persons with 1 to `ROWS` rows, as `StackedData` hands them out."""

    def __init__(self, shape, gradient, seed=4):
        draws = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(NODES, PERSONS, ROWS, *shape, generator=draws, dtype=FLOAT64)
        self.targets = torch.randint(0, 3, (NODES, PERSONS, ROWS), generator=draws)
        self.rows = torch.randint(1, ROWS + 1, (NODES, PERSONS), generator=draws)
        self.rows[:, 0], self.rows[:, 1] = 1, ROWS
        there = (torch.arange(ROWS) < self.rows[..., None]).double()
        self.given = there / self.rows[..., None] if gradient == "mean" else there
        self.mask = torch.ones(NODES, PERSONS, dtype=torch.bool)
        self.mask[1, 2] = False
        for node, person in (there == 0).any(dim=2).nonzero().tolist():
            last = int(self.rows[node, person]) - 1
            self.inputs[node, person, last:] = self.inputs[node, person, last].clone()

    @property
    def counts(self):
        return torch.tensor([PERSONS] * NODES)

    def gather(self, indices):
        return tuple(
            torch.stack([own[rows] for own, rows in zip(values, indices, strict=True)])
            for values in (self.inputs, self.targets)
        )

    def shares(self, indices):
        return torch.stack([own[rows] for own, rows in zip(self.given, indices, strict=True)])

    @property
    def batch(self):
        return self.inputs, self.targets, self.mask


def by_hand(name, model, at, people, coins=None):
    """Every person's gradient, not clipped, `[nodes, persons, d]`, and losses: one row at a time.

    A module in float64, plain autograd, and additions of float64 vectors: nothing of the engine.
    """
    module = copy.deepcopy(made(name)).double().train()
    loss = nn.CrossEntropyLoss()
    gradients = torch.zeros(NODES, PERSONS, at.shape[1], dtype=FLOAT64)
    losses = torch.zeros(NODES, PERSONS, dtype=FLOAT64)
    for node in range(NODES):
        for person in range(PERSONS):
            for row in range(int(people.rows[node, person])):
                own = {
                    slot.name: slot.view(at)[node].clone().requires_grad_()
                    for slot in model.layout.slots
                }
                coin = None if coins is None else coins[node, person, row].view(1)
                with dropping(module, coin):
                    shown = people.inputs[node, person, row].unsqueeze(0)
                    outputs = functional_call(module, own, (shown,))
                value = loss(outputs, people.targets[node, person, row].view(1))
                parts = torch.autograd.grad(value, list(own.values()))
                share = people.given[node, person, row]
                gradients[node, person] += share * torch.cat([p.flatten() for p in parts])
                losses[node, person] += share * value.detach()
    return gradients, losses


def clipped(gradients, mask, clip):
    norms = gradients.norm(dim=2, keepdim=True)
    return (gradients * (clip / norms).clamp(max=1.0)) * mask.unsqueeze(2)


@pytest.mark.parametrize("gradient", ["mean", "sum"])
@pytest.mark.parametrize("name", MODELS)
def test_sums_are_those_of_a_loop_over_persons(name, gradient):
    model = built(name)
    people = People(MODELS[name][1], gradient)
    at = model.start(NODES, FLOAT64, "cpu")
    at += 0.1 * torch.randn(at.shape, generator=torch.Generator().manual_seed(1), dtype=FLOAT64)
    numbers = torch.arange(PERSONS).expand(NODES, -1)
    coins = record_coins(0, 3, 0, torch.arange(NODES), numbers)
    own = view_coins(coins, ROWS).view(NODES, PERSONS, ROWS)
    gradients, losses = by_hand(name, model, at, people, own)
    norms = gradients.norm(dim=2)
    assert norms.min() > 0
    for clip in (0.5 * float(norms.min()), float(norms.median()), 2 * float(norms.max()), None):
        found = model.gradient(at, *people.batch, clip, coins=coins, shares=people.given)
        whole = gradients * people.mask.unsqueeze(2)
        right = whole if clip is None else clipped(gradients, people.mask, clip)
        torch.testing.assert_close(found.total, right.sum(dim=1), rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(found.losses, losses * people.mask, rtol=1e-9, atol=0)
        if clip is not None:
            torch.testing.assert_close(found.norms, norms * people.mask, rtol=1e-8, atol=0)


def test_rows_that_have_no_share_are_not_read():
    """In the loop of linear models nothing of a padded row matters, not even a NaN."""
    model = built("linear")
    assert model.path == "closed form"
    people = People(MODELS["linear"][1], "mean")
    at = model.start(NODES, FLOAT64, "cpu")
    right = model.gradient(at, *people.batch, 0.3, shares=people.given)
    spoilt = people.inputs.masked_fill((people.given == 0)[..., None], float("nan"))
    found = model.gradient(at, spoilt, *people.batch[1:], 0.3, shares=people.given)
    assert torch.equal(found.total, right.total)


def test_a_person_with_one_row_is_a_record():
    for name in ("linear", "mlp", "convolution", "functional"):
        shape = MODELS[name][1]
        draws = torch.Generator().manual_seed(2)
        inputs = torch.randn(NODES, PERSONS, *shape, generator=draws, dtype=FLOAT64)
        targets = torch.randint(0, 3, (NODES, PERSONS), generator=draws)
        mask = torch.ones(NODES, PERSONS, dtype=torch.bool)
        one, many = built(name, unit_rows=None), built(name)
        at = one.start(NODES, FLOAT64, "cpu")
        right = one.gradient(at, inputs, targets, mask, 0.3)
        rows = inputs.unsqueeze(2).expand(-1, -1, ROWS, *shape)
        shares = torch.zeros(NODES, PERSONS, ROWS)
        shares[..., 0] = 1.0
        labels = targets.unsqueeze(2).expand(-1, -1, ROWS)
        found = many.gradient(at, rows, labels, mask, 0.3, shares=shares)
        torch.testing.assert_close(found.total, right.total, rtol=1e-8, atol=1e-10)


def test_persons_do_not_move_when_others_have_more_rows():
    """Losses and norms of all others are the same to the bit, on every path."""
    for name in MODELS:
        if name.startswith("dropout"):
            continue
        model, people = built(name), People(MODELS[name][1], "mean")
        at = model.start(NODES, FLOAT64, "cpu")
        alone = model.gradient(at, *people.batch, 0.3, shares=people.given)
        shares = people.given.clone()
        shares[:, 1] = torch.tensor([1.0] + [0.0] * (ROWS - 1))
        other = model.gradient(at, *people.batch, 0.3, shares=shares)
        kept = [person for person in range(PERSONS) if person != 1]
        assert torch.equal(alone.norms[:, kept], other.norms[:, kept]), name
        assert torch.equal(alone.losses[:, kept], other.losses[:, kept]), name


def test_persons_and_views_are_one_mechanism():
    name = "convolution"
    augmentation = image_views("flip-shift", 2, MODELS[name][1], ids=False)
    model = built(name, augmentation=augmentation)
    people = People(MODELS[name][1], "mean")
    at = model.start(NODES, FLOAT64, "cpu")
    numbers = torch.arange(PERSONS).expand(NODES, -1)
    coins = record_coins(0, 3, 0, torch.arange(NODES), numbers)
    found = model.gradient(at, *people.batch, 0.3, coins=coins, shares=people.given)
    rows = people.inputs.flatten(1, 2)
    shown, _ = augmentation.made(rows, view_coins(coins, ROWS))
    wide = built(name, unit_rows=2 * ROWS)
    inputs = shown.view(NODES, PERSONS, 2 * ROWS, *MODELS[name][1])
    labels = people.targets.repeat_interleave(2, dim=2)
    shares = people.given.repeat_interleave(2, dim=2) / 2
    right = wide.gradient(at, inputs, labels, people.mask, 0.3, shares=shares)
    torch.testing.assert_close(found.total, right.total, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mini_batch", [None, 2])
@pytest.mark.parametrize("name", ["linear", "mlp", "convolution", "functional"])
def test_a_table_has_an_entry_a_person(name, mini_batch):
    model, people = built(name), People(MODELS[name][1], "mean")
    people.mask[:] = True
    at = model.start(NODES, FLOAT64, "cpu")
    draws = torch.Generator().manual_seed(1)
    later = at + 0.2 * torch.randn(at.shape, generator=draws, dtype=FLOAT64)
    clip = 0.4
    old, new = (
        clipped(by_hand(name, model, point, people)[0], people.mask, clip) for point in (at, later)
    )
    table = GradientTable.build(model, people, at, clip, steps=3, mini_batch=mini_batch)
    torch.testing.assert_close(table.total(), old.sum(dim=1), rtol=1e-7, atol=1e-9)
    drawn = torch.tensor([[0, 1], [2, 0]])
    mask = torch.ones_like(drawn, dtype=torch.bool)
    found = table.replace(later, drawn, mask, clip, None)
    step = mini_batch or 1
    right = torch.zeros_like(at)
    for node, entries in enumerate(drawn.tolist()):
        for entry in entries:
            own = slice(entry * step, entry * step + step)
            right[node] += (new[node, own] - old[node, own]).sum(dim=0)
    torch.testing.assert_close(found.difference, right, rtol=1e-7, atol=1e-9)


def test_differences_by_an_anchor_are_clipped_by_person():
    name = "mlp"
    model, people = built(name), People(MODELS[name][1], "sum")
    at = model.start(NODES, FLOAT64, "cpu")
    draws = torch.Generator().manual_seed(1)
    later = at + 0.2 * torch.randn(at.shape, generator=draws, dtype=FLOAT64)
    old, new = (
        clipped(by_hand(name, model, point, people)[0], people.mask, 0.4) for point in (at, later)
    )
    for bound in (None, 0.05):
        found = clipped_difference(
            model,
            entry_shapes(model),
            (later, at),
            people.batch,
            0.4,
            bound,
            people.counts,
            people.given,
        )
        each = new - old
        if bound is not None:
            each = clipped(each, people.mask, bound).nan_to_num()
        torch.testing.assert_close(found.total, each.sum(dim=1), rtol=1e-7, atol=1e-9)


def test_shares_are_asked_for():
    people = People(MODELS["mlp"][1], "mean")
    model = built("mlp")
    at = model.start(NODES, FLOAT64, "cpu")
    with pytest.raises(ValueError, match="shares"):
        model.gradient(at, *people.batch, 0.3)
    one = built("mlp", unit_rows=None)
    with pytest.raises(ValueError, match="shares"):
        one.gradient(at, *people.batch, 0.3, shares=people.given)
