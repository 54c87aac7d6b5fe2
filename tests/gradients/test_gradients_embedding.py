"""Embeddings by taps: against a loop over records, and their sparse form against the whole one."""

import math

import pytest
import torch
from gradient_problems import FLOAT64, assert_equal, generator, problem
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from few import few
from tacit.data import StackedData
from tacit.errors import InputError
from tacit.gradients import LOSSES, build
from tacit.gradients.clipping import clip_records
from tacit.gradients.contributions import Slot, layout_of
from tacit.gradients.layers.embedding import Lookup, merged
from tacit.gradients.paths import tapped_layers
from tacit.gradients.table import GradientTable, clipped_difference
from tacit.gradients.table_storage import entry_shapes

ROWS = 7


class Words(nn.Module):
    """The mean of words, normalised, classified."""

    def __init__(self, padding=None):
        super().__init__()
        self.embed = nn.Embedding(ROWS, 4, padding_idx=padding)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, ids):
        embedded = self.embed(ids).flatten(1, -2)
        return self.head(self.norm(embedded.mean(dim=1)))


class Attention(nn.Module):
    """One block of a transformer, with places embedded too."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(ROWS, 4), nn.Embedding(9, 4)
        self.before, self.after = nn.LayerNorm(4), nn.LayerNorm(4)
        self.query, self.key, self.value = (nn.Linear(4, 4, bias=False) for _ in range(3))
        self.wide, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, ids):
        places = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        stream = self.words(ids) + self.places(places)
        seen = self.before(stream)
        mixed = functional.scaled_dot_product_attention(
            self.query(seen), self.key(seen), self.value(seen)
        )
        return self.head(functional.gelu(self.wide(self.after(stream + mixed))).mean(dim=1))


class Unused(nn.Module):
    """An embedding that the output does not depend on."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(ROWS, 4), nn.Linear(5, 3)

    def forward(self, ids):
        self.embed(ids)
        return self.head(functional.one_hot(ids, ROWS)[:, :, :5].to(self.head.weight).sum(1))


def bags(mode, padding=None):
    return nn.Sequential(
        nn.EmbeddingBag(ROWS, 4, mode=mode, padding_idx=padding), nn.Tanh(), nn.Linear(4, 3)
    )


MODELS = {
    "words": (Words, (6,)),
    "words, long": (Words, (40,)),
    "words, padded": (lambda: Words(2), (6,)),
    "words, on a page": (Words, (2, 3)),
    "one place": (Words, (1,)),
    "an id a record": (
        lambda: nn.Sequential(nn.Embedding(ROWS, 4), nn.Tanh(), nn.Linear(4, 3)),
        (),
    ),
    "one after the other": (
        lambda: nn.Sequential(nn.Embedding(ROWS, 4), nn.Flatten(), nn.Linear(24, 3)),
        (6,),
    ),
    "attention": (Attention, (6,)),
    "unused": (Unused, (6,)),
    "bags, sum": (lambda: bags("sum"), (6,)),
    "bags, mean": (lambda: bags("mean"), (6,)),
    "bags, padded": (lambda: bags("mean", padding=2), (3,)),
    "bags, padded sum": (lambda: bags("sum", padding=2), (3,)),
}
EVERY = pytest.mark.parametrize("name", MODELS)


def case_of(name, *, memory_bytes=2**28, dtype=FLOAT64):
    make, shape = MODELS[name]
    case = problem(make, shape, vocabulary=ROWS, memory_bytes=memory_bytes, dtype=dtype)
    assert case.stacked.path == "taps", case.stacked.reason
    return case


def batch_of(case):
    return case.parameters, case.inputs, case.targets, case.mask


def each_gradient(case, parameters):
    """Every record's own gradient as autograd has it, `[nodes, b, d]`."""
    model = case.model.to(parameters.dtype)
    found = torch.zeros(*case.mask.shape, parameters.shape[1], dtype=parameters.dtype)
    for node, record in torch.ones_like(case.mask).nonzero().tolist():
        views = case.stacked.layout.views(parameters[node : node + 1])
        weights = {key: view[0].clone().requires_grad_() for key, view in views.items()}
        outputs = functional_call(model, weights, (case.inputs[node, record][None],))
        loss = functional.cross_entropy(outputs, case.targets[node, record][None])
        gradients = torch.autograd.grad(
            loss, list(weights.values()), allow_unused=True, materialize_grads=True
        )
        found[node, record] = torch.cat([gradient.reshape(-1) for gradient in gradients])
    return found


@EVERY
@pytest.mark.parametrize(
    ("clip", "memory_bytes"), [(None, 1), (1e-3, 2**28), (0.5, 1), (0.5, 2**28), (1e6, 2**28)]
)
def test_sums_equal_a_loop_over_records(name, clip, memory_bytes, oracle):
    case = case_of(name, memory_bytes=memory_bytes)
    assert_equal(case.gradient(clip), case.expected(oracle, clip), clip)


@EVERY
def test_sums_equal_the_loop_in_float32(name, oracle):
    case = case_of(name, dtype=torch.float32)
    exact = [values.double() if values.is_floating_point() else values for values in batch_of(case)]
    for clip in (None, 0.5):
        found = case.gradient(clip).total.double()
        right = oracle(case.model, case.loss, *exact, clip).total
        # Clipping aims lower by what the sum may lose to rounding: see `clipping`.
        assert float((found - right).norm() / right.norm()) < (1e-6 if clip is None else 5e-5)


def limited(gradient, norm, clip):
    """One record's `[d]`, as the definitions have it."""
    if norm == "coordinate":
        most = clip / math.sqrt(len(gradient))
        return gradient.clamp(-most, most)
    return gradient * min(1.0, clip / max(float(gradient.abs().sum()), 1e-300))


@EVERY
@pytest.mark.parametrize("norm", ["l1", "coordinate"])
def test_other_norms_equal_the_loop(name, norm):
    case = case_of(name)
    each = each_gradient(case, case.parameters)
    for clip in (1e-3, 0.7, 1e6):
        limits = torch.stack([limited(row, norm, clip) for row in each.flatten(0, 1)])
        right = (limits.view(each.shape) * case.mask.unsqueeze(2)).sum(dim=1)
        found = case.stacked.gradient(*batch_of(case), clip, norm=norm)
        torch.testing.assert_close(found.total, right, rtol=1e-10, atol=1e-10)


@EVERY
def test_gradients_of_records_are_those_of_autograd(name):
    case = case_of(name)
    each = each_gradient(case, case.parameters) * case.mask.unsqueeze(2)
    found = case.stacked.record_gradients(*batch_of(case), None)
    whole = torch.cat([part.materialised().values for part in found.parts], dim=2)
    order = [part.slot.start for part in found.parts]
    assert sorted(order) == order
    torch.testing.assert_close(whole * found.factors.unsqueeze(2), each, rtol=1e-10, atol=1e-10)
    clipped = case.stacked.record_gradients(*batch_of(case), 0.5)
    torch.testing.assert_close(clipped.norms, each.norm(dim=2), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["words, padded", "attention"])
def test_a_table_keeps_what_autograd_has(name):
    case = case_of(name)
    nodes, count = case.mask.shape
    everyone = torch.ones_like(case.mask)
    data = StackedData(
        case.inputs.flatten(0, 1),
        case.targets.flatten(),
        torch.arange(nodes) * count,
        torch.full((nodes,), count),
    )

    def clipped(at):
        each = each_gradient(case, at)
        return each * (0.5 / each.norm(dim=2, keepdim=True)).clamp(max=1.0)

    before, after = case.parameters, case.parameters * 1.1
    old, new = clipped(before), clipped(after)
    table = GradientTable.build(case.stacked, data, before, 0.5, steps=1)
    torch.testing.assert_close(table.total(), old.sum(1), rtol=1e-10, atol=1e-10)
    found = table.replace(after, torch.arange(count).expand(nodes, count), everyone, 0.5, None)
    torch.testing.assert_close(found.difference, (new - old).sum(1), rtol=1e-10, atol=1e-10)

    shapes = entry_shapes(case.stacked)
    batch = case.inputs, case.targets, everyone
    anchored = clipped_difference(
        case.stacked, shapes, (after, before), batch, 0.5, None, everyone.sum(dim=1)
    )
    torch.testing.assert_close(anchored.total, (new - old).sum(1), rtol=1e-10, atol=1e-10)


def test_the_padding_row_has_no_gradient_and_an_empty_text_no_gradient_by_words():
    case = case_of("words, padded")
    rows = case.stacked.layout.slots[0].view(case.gradient(0.5).total)
    assert bool((rows[:, 2] == 0).all())
    assert bool((rows[:, 3] != 0).any())
    inputs = torch.full_like(case.inputs, 2)
    found = case.stacked.gradient(case.parameters, inputs, case.targets, case.mask, 0.5)
    assert bool((case.stacked.layout.slots[0].view(found.total) == 0).all())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ids_may_be_of_either_kind(dtype):
    case = case_of("words")
    inputs = case.inputs.to(dtype)
    found = case.stacked.gradient(case.parameters, inputs, case.targets, case.mask, 0.5)
    assert torch.equal(found.total, case.gradient(0.5).total)


@pytest.mark.parametrize("name", ["words", "bags, mean"])
@pytest.mark.parametrize("wrong", [-1, ROWS])
def test_an_id_without_a_row_is_refused(name, wrong):
    case = case_of(name)
    inputs = case.inputs.clone()
    inputs[1, 0, 3] = wrong
    with pytest.raises(InputError) as refused:
        case.stacked.gradient(case.parameters, inputs, case.targets, case.mask, 0.5)
    assert f"hold ids that it has no row for: ids must be 0 to {ROWS - 1}" in refused.value.expected


def test_masked_slots_may_hold_ids_without_a_row():
    case = case_of("words")
    inputs = torch.where(case.mask.unsqueeze(2), case.inputs, 1000)
    found = case.stacked.gradient(case.parameters, inputs, case.targets, case.mask, 0.5)
    assert torch.equal(found.total, case.gradient(0.5).total)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e308])
def test_a_record_that_looks_up_what_is_not_finite_contributes_nothing(bad):
    case = case_of("one after the other")
    inputs = case.inputs.clamp(max=ROWS - 2)
    inputs[0, 2, 1] = ROWS - 1
    parameters = case.parameters.clone()
    case.stacked.layout.slots[0].view(parameters)[0, ROWS - 1] = bad
    without = case.mask.clone()
    without[0, 2] = False
    found, right = (
        case.stacked.gradient(parameters, inputs, case.targets, mask, 0.5)
        for mask in (case.mask, without)
    )
    assert torch.isfinite(found.norms).sum() == found.norms.numel() - 1
    torch.testing.assert_close(found.total, right.total, rtol=1e-12, atol=1e-12)


def built(embedding):
    ids = torch.randint(0, ROWS, (4, 5), generator=generator(1))
    model = nn.Sequential(embedding, nn.Flatten(), nn.LazyLinear(3))
    model(ids)
    return build(
        model, LOSSES["cross-entropy"], ids, torch.arange(4) % 3, dtype=FLOAT64, device="cpu"
    )


def test_the_largest_of_rows_is_not_tapped():
    model = bags("max")
    assert tapped_layers(model, layout_of(model), True) == "0 takes the max of rows"


@pytest.mark.parametrize(
    "option", [{"max_norm": 0.1}, {"scale_grad_by_freq": True}, {"sparse": True}]
)
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_options_that_gradients_of_records_cannot_have_are_refused(option, kind):
    with pytest.raises(InputError, match=next(iter(option)).split("_")[0]) as refused:
        built(kind(ROWS, 4, **option))
    assert refused.value.where == "task.model"


SIZES = st.integers(1, 4)


@few(20, 60)
@given(SIZES, SIZES, st.integers(1, 9), SIZES, st.integers(1, 5), st.integers(0, 1), st.integers())
def test_looked_up_rows_agree_with_the_whole_gradient(nodes, batch, places, size, rows, beta, seed):
    draws = generator(seed % 2**31)

    def random(*shape):
        return torch.randn(*shape, generator=draws, dtype=FLOAT64)

    slot = Slot("weight", (rows, size), 2, 2 + rows * size)
    ids = torch.randint(0, rows, (nodes, batch, places), generator=draws)
    gradients = random(nodes, batch, places, size)
    whole = torch.zeros(nodes, batch, rows, size, dtype=FLOAT64)
    for node, record, place in torch.ones_like(ids).nonzero().tolist():
        whole[node, record, ids[node, record, place]] += gradients[node, record, place]

    found = Lookup(slot, *merged(ids, gradients))
    kept = found.gradients.abs().amax(dim=3) > 0
    for node, record in torch.ones(nodes, batch).nonzero().tolist():
        alive = found.ids[node, record][kept[node, record]].tolist()
        assert sorted(alive) == sorted(set(ids[node, record].tolist()))
    torch.testing.assert_close(found.materialised().values, whole.flatten(2))
    torch.testing.assert_close(found.sizes().bounds, whole.square().sum(dim=(2, 3)))
    torch.testing.assert_close(found.absolute_sums(), whole.abs().sum(dim=(2, 3)))
    torch.testing.assert_close(found.outer().materialised().values, whole.flatten(2))
    finite = random(nodes, batch) > 0
    torch.testing.assert_close(
        found.cleaned(finite).materialised().values, whole.flatten(2) * finite.unsqueeze(2)
    )
    factors, before = random(nodes, batch), random(nodes, rows * size + 3)
    if not beta:
        before[:, 2:-1] = math.nan
    for form in (found, Lookup(slot, ids, gradients), found.materialised()):
        total = before.clone()
        form.add_to(total, factors, beta)
        right = torch.einsum("nb,nbvs->nvs", factors, whole).flatten(1)
        torch.testing.assert_close(total[:, 2:-1], right + (before[:, 2:-1] if beta else 0.0))
        assert torch.equal(total[:, :2], before[:, :2])
        assert torch.equal(total[:, -1:], before[:, -1:])


@few(20, 60)
@given(st.integers(0, 2**31), st.floats(-6, 6), st.floats(0, 8), st.sampled_from(["l2", "l1"]))
def test_places_that_cancel_do_not_break_the_bound_in_float32(seed, clip, size, norm):
    """Many places of few rows, whose large gradients add up to small ones."""
    draws = generator(seed)
    ids = torch.randint(0, 3, (1, 1, 30), generator=draws)
    gradients = torch.randn(1, 1, 30, 5, generator=draws)
    order = ids.squeeze().sort().indices
    gradients[0, 0, order[1::2]] = -gradients[0, 0, order[::2]]
    gradients = gradients * 10.0**size + torch.randn(1, 1, 30, 5, generator=draws)
    part = Lookup(Slot("weight", (3, 5), 0, 15), *merged(ids, gradients))
    mask = torch.ones(1, 1, dtype=torch.bool)
    parts, factors, _ = clip_records([part], mask, 10.0**clip, norm)
    total = torch.empty(1, 15)
    parts[0].add_to(total, factors, 0)
    order_of = 2 if norm == "l2" else 1
    assert float(torch.linalg.vector_norm(total.double(), ord=order_of)) <= 10.0**clip
