"""The gradient table against a table of materialised gradients, one record at a time."""

import copy
import math
from dataclasses import dataclass, replace

import pytest
import torch
from gradient_problems import FEW
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tacit.base.free_memory import host_bytes, in_words
from tacit.data import StackedData
from tacit.errors import InputError
from tacit.gradients import LOSSES, StackedModel, build
from tacit.gradients.table import GradientTable
from tacit.gradients.table_storage import available_bytes, entries_of, table_need

FLOAT64 = torch.float64
SIZES = (7, 1, 4)
CLIP = 0.6
# Clipping aims lower by what rounding may add, 5e-9 of it where positions may cancel.
EXACT = {"rtol": 2e-8, "atol": 2e-8}


def linear():
    return nn.Linear(6, 3)


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3, bias=False))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(12, 8),
        nn.Tanh(),
        nn.Linear(8, 3),
    )


def few_positions():
    """A convolution of two positions whose factors are smaller than its gradient."""
    return nn.Sequential(nn.Conv1d(4, 12, 3), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3))


class Gain(nn.Module):
    """Known to no tap."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, 6))

    def forward(self, inputs):
        return self.gain * inputs


def other():
    return nn.Sequential(Gain(), nn.Linear(6, 3))


MODELS = {
    "linear": (linear, (6,)),
    "mlp": (mlp, (2, 4)),
    "cnn": (cnn, (1, 4, 4)),
    "few-positions": (few_positions, (4, 4)),
    "functional": (other, (6,)),
}
EVERY = pytest.mark.parametrize("name", list(MODELS))


@dataclass(frozen=True)
class Case:
    module: nn.Module
    model: StackedModel
    data: StackedData
    at: Tensor

    def table(self, clip=CLIP, **options):
        return GradientTable.build(self.model, self.data, self.at, clip, steps=10, **options)


def case(name, *, sizes=SIZES, dtype=FLOAT64, memory_bytes=2**26):
    make, shape = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(5)
        module = make()
    draws = torch.Generator().manual_seed(6)
    counts = torch.tensor(sizes)
    data = StackedData(
        torch.randn(sum(sizes), *shape, generator=draws, dtype=dtype),
        torch.randint(0, 3, (sum(sizes),), generator=draws),
        counts.cumsum(0) - counts,
        counts,
    )
    model = build(
        module,
        LOSSES["cross-entropy"],
        data.inputs[:3],
        data.targets[:3],
        dtype=dtype,
        device="cpu",
        memory_bytes=memory_bytes,
    )
    at = model.start(len(sizes), dtype, "cpu")
    return Case(module, model, data, at + 0.2 * torch.randn(at.shape, generator=draws, dtype=dtype))


def moved(case, seed, size=0.3):
    draws = torch.Generator().manual_seed(100 + seed)
    return case.at + size * torch.randn(case.at.shape, generator=draws, dtype=case.at.dtype)


def batch(sizes, width, seed):
    """Ragged: every node takes a drawn number of its entries; masked slots hold an entry."""
    draws = torch.Generator().manual_seed(200 + seed)
    indices = torch.zeros(len(sizes), width, dtype=torch.int64)
    mask = torch.zeros(len(sizes), width, dtype=torch.bool)
    for node, size in enumerate(sizes):
        count = int(torch.randint(0, min(width, size) + 1, (), generator=draws))
        slots = torch.randperm(width, generator=draws)[:count]
        indices[node] = size - 1
        indices[node, slots] = torch.randperm(size, generator=draws)[:count]
        mask[node, slots] = True
    return indices, mask


def scaled(vector, bound):
    norm = vector.norm()
    return vector * (bound / norm) if bound is not None and norm > bound else vector


class Brute:
    """A table of whole gradients in float64, by plain autograd."""

    def __init__(self, case, clip, mini_batch=1):
        self.case, self.clip, self.mini_batch = case, clip, mini_batch
        self.module = copy.deepcopy(case.module).double()
        self.entries = [
            [self.entry(case.at, node, entry) for entry in range(-(-size // mini_batch))]
            for node, size in enumerate(case.data.sizes.tolist())
        ]

    def gradient(self, at, node, record):
        row = int(self.case.data.offsets[node]) + record
        parameters = list(self.module.parameters())
        with torch.no_grad():
            nn.utils.vector_to_parameters(at[node].double(), parameters)
        outputs = self.module(self.case.data.inputs[row : row + 1].double())
        loss = nn.functional.cross_entropy(outputs, self.case.data.targets[row : row + 1])
        found = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, parameters)])
        return scaled(found, self.clip)

    def entry(self, at, node, entry):
        start = entry * self.mini_batch
        stop = min(start + self.mini_batch, int(self.case.data.sizes[node]))
        return torch.stack([self.gradient(at, node, r) for r in range(start, stop)]).sum(dim=0)

    def replace(self, at, indices, mask, bound):
        result = torch.zeros(at.shape, dtype=FLOAT64)
        for node, slot in mask.nonzero().tolist():
            entry = int(indices[node, slot])
            new = self.entry(at, node, entry)
            result[node] += scaled(new - self.entries[node][entry], bound)
            self.entries[node][entry] = new
        return result

    def total(self):
        return torch.stack([torch.stack(entries).sum(dim=0) for entries in self.entries])


def recomputed(table, case):
    """The sum of the entries: what renewing all of them adds to zeros, less what to them."""
    state = {name: values.clone() for name, values in table.tensors().items()}
    sizes = case.data.sizes
    indices = torch.arange(int(sizes.max())).expand(len(sizes), -1)
    mask = indices < sizes.unsqueeze(1)
    added = []
    for start in ({name: torch.zeros_like(values) for name, values in state.items()}, state):
        other = case.table()
        other.load(start)
        added.append(other.replace(case.at, indices, mask, CLIP, None).difference)
    return added[0] - added[1]


@EVERY
@pytest.mark.parametrize("clip", [CLIP, None])
@pytest.mark.parametrize("bound", [None, 0.2])
def test_a_table_is_what_a_table_of_whole_gradients_is(name, clip, bound):
    problem = case(name)
    table, brute = problem.table(clip), Brute(problem, clip)
    torch.testing.assert_close(table.total(), brute.total(), **EXACT)
    for step in range(4):
        at = moved(problem, step)
        indices, mask = batch(list(SIZES), 5, step)
        found = table.replace(at, indices, mask, clip, bound)
        right = brute.replace(at, indices, mask, bound)
        torch.testing.assert_close(found.difference, right, **EXACT)
        torch.testing.assert_close(table.total(), brute.total(), **EXACT)


@EVERY
def test_norms_and_losses_are_those_of_the_gradient(name):
    problem = case(name)
    at, (indices, mask) = moved(problem, 0), batch(list(SIZES), 5, 1)
    found = problem.table().replace(at, indices, mask, CLIP, 0.2)
    right = problem.model.gradient(at, *problem.data.gather(indices * mask), mask, CLIP)
    torch.testing.assert_close(found.batch.norms, right.norms, **EXACT)
    torch.testing.assert_close(found.batch.losses, right.losses, **EXACT)
    assert torch.equal(found.mask, mask)
    assert found.batch.total is found.difference


@EVERY
@pytest.mark.parametrize("bound", [None, 0.2])
def test_float32_agrees_with_whole_gradients_in_float64(name, bound):
    problem = case(name, dtype=torch.float32)
    table, brute = problem.table(), Brute(problem, CLIP)
    for step in range(3):
        at, (indices, mask) = moved(problem, step), batch(list(SIZES), 5, step)
        found = table.replace(at, indices, mask, CLIP, bound).difference
        assert found.dtype == table.total().dtype == FLOAT64
        right = brute.replace(at, indices, mask, bound)
        torch.testing.assert_close(found, right, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(table.total(), brute.total(), rtol=1e-4, atol=2e-5)


@EVERY
def test_chunks_change_nothing(name):
    small, large = (case(name, memory_bytes=size) for size in (1, 2**26))
    one, other = small.table(), large.table()
    at, (indices, mask) = moved(small, 0), batch(list(SIZES), 5, 2)
    found, right = (table.replace(at, indices, mask, CLIP, 0.2) for table in (one, other))
    torch.testing.assert_close(found.difference, right.difference, **EXACT)
    torch.testing.assert_close(found.batch.norms, right.batch.norms, **EXACT)
    torch.testing.assert_close(one.total(), other.total(), **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, FLOAT64])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_the_running_total_stays_the_sum_of_the_entries(name, dtype):
    problem = case(name, dtype=dtype)
    table = problem.table()
    for step in range(50):
        indices, mask = batch(list(SIZES), 3, step)
        table.replace(moved(problem, step), indices, mask, CLIP, 0.1 if step % 2 else None)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    assert float(table.total().norm()) > 0.1
    torch.testing.assert_close(
        table.total(), recomputed(table, problem), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("name", ["linear", "cnn", "functional"])
@pytest.mark.parametrize("size", [1, 3, 20])
@pytest.mark.parametrize("bound", [None, 0.2])
def test_mini_batches_are_sums_of_their_records(name, size, bound):
    problem = case(name)
    table, brute = problem.table(mini_batch=size), Brute(problem, CLIP, size)
    counts = entries_of(SIZES, size)
    assert counts == [len(entries) for entries in brute.entries]
    torch.testing.assert_close(table.total(), brute.total(), **EXACT)
    for step in range(3):
        at, (indices, mask) = moved(problem, step), batch(counts, 4, step)
        found = table.replace(at, indices, mask, CLIP, bound)
        torch.testing.assert_close(
            found.difference, brute.replace(at, indices, mask, bound), **EXACT
        )
        torch.testing.assert_close(table.total(), brute.total(), **EXACT)
        assert found.mask.shape == found.batch.norms.shape == found.batch.losses.shape
        assert bool((found.batch.losses[~found.mask] == 0).all())
        records = [
            min(size, SIZES[node] - int(indices[node, slot]) * size)
            for node, slot in mask.nonzero().tolist()
        ]
        assert int(found.mask.sum()) == sum(records)


def test_mini_batches_of_one_are_records():
    problem = case("mlp")
    one, other = problem.table(mini_batch=1), problem.table()
    at, (indices, mask) = moved(problem, 0), batch(list(SIZES), 5, 0)
    found, right = (t.replace(at, indices, mask, CLIP, 0.2).difference for t in (one, other))
    torch.testing.assert_close(found, right, **EXACT)


@EVERY
@pytest.mark.parametrize("mini_batch", [None, 3])
@pytest.mark.parametrize("dtype", [torch.float32, FLOAT64])
def test_the_need_is_what_is_allocated(name, mini_batch, dtype):
    problem = case(name, dtype=dtype)
    need = table_need(problem.model, SIZES, dtype, mini_batch=mini_batch)
    tensors = problem.table(mini_batch=mini_batch).tensors()
    assert need.bytes == sum(values.numel() * values.element_size() for values in tensors.values())
    assert need.entries == sum(entries_of(SIZES, mini_batch))
    # Nothing lies behind a view.
    assert need.bytes == sum(values.untyped_storage().nbytes() for values in tensors.values())


def test_a_two_layer_network_keeps_neither_records_nor_biases():
    """784-128-10: output gradients of 128 and 10, and 128 hidden values."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    images, labels = torch.rand(2, 1, 28, 28), torch.tensor([1, 2])
    model = build(
        module, LOSSES["cross-entropy"], images, labels, dtype=torch.float32, device="cpu"
    )
    need = table_need(model, [1200] * 50, torch.float32, mini_batch=None)
    assert need.numbers_per_record == 128 + 128 + 10
    assert need.bytes == 60_000 * 266 * 4 + 50 * model.parameters_count * 8
    assert need.kind == "factored"
    assert need.describe() == (
        "gradient table: 60,000 records, 266 numbers each (factors and vectors), 105 MB"
    )
    dense = table_need(model, [1200] * 50, torch.float32, mini_batch=1200)
    assert (dense.kind, dense.numbers_per_record, dense.entries) == ("mini-batches", 101_770, 50)
    assert "50 mini-batches, 101,770 numbers each (whole gradients)" in dense.describe()


def test_kinds_and_forms():
    shapes = {name: table_need(case(name).model, [1], FLOAT64, mini_batch=None) for name in MODELS}
    assert {name: need.kind for name, need in shapes.items()} == {
        "linear": "factored",
        "mlp": "factored",
        "cnn": "factored",
        "few-positions": "factored",
        "functional": "dense",
    }
    assert {name: need.numbers_per_record for name, need in shapes.items()} == {
        "linear": 3,  # the record and the output gradients, of which the bias has the same
        "mlp": 5 + 5 + 3,
        "cnn": (27 + 3) + (12 + 8) + (8 + 3),
        "few-positions": 2 * (12 + 12) + 12 + 24 + 3,
        "functional": 6 + 18 + 3,
    }


@EVERY
def test_files_hold_what_memory_holds(name, tmp_path):
    problem = case(name)
    folder = tmp_path / "deep" / "table"
    table, right = problem.table(directory=folder), problem.table()
    for step in range(3):
        at, (indices, mask) = moved(problem, step), batch(list(SIZES), 4, step)
        found, expected = (
            one.replace(at, indices, mask, CLIP, 0.2).difference for one in (table, right)
        )
        assert torch.equal(found, expected)
    assert torch.equal(table.total(), right.total())
    for key, values in right.tensors().items():
        assert torch.equal(table.tensors()[key], values)
    need = table_need(problem.model, SIZES, FLOAT64, mini_batch=None)
    sizes = [path.stat().st_size for path in folder.iterdir()]
    assert sum(sizes) == need.bytes - problem.at.numel() * 8
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    # Another table in the same place starts anew and leaves the first one what it has.
    before = {key: values.clone() for key, values in table.tensors().items()}
    assert torch.equal(problem.table(directory=folder).total(), problem.table().total())
    assert all(torch.equal(before[key], values) for key, values in table.tensors().items())


def test_a_folder_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"algorithm\.table_directory.*of gradients"):
        case("linear").table(directory=tmp_path / "file" / "table")


@EVERY
@pytest.mark.parametrize("mini_batch", [None, 2])
def test_a_loaded_table_goes_on_identically(name, mini_batch):
    problem = case(name)
    counts = entries_of(SIZES, mini_batch)
    first = problem.table(mini_batch=mini_batch)
    first.replace(moved(problem, 0), *batch(counts, 4, 0), CLIP, 0.2)
    state = {key: values.clone() for key, values in first.tensors().items()}
    second = GradientTable.build(
        problem.model, problem.data, moved(problem, 9), CLIP, steps=10, mini_batch=mini_batch
    )
    second.load(state)
    assert torch.equal(second.total(), first.total())
    for step in range(1, 4):
        at, (indices, mask) = moved(problem, step), batch(counts, 4, step)
        found, right = (t.replace(at, indices, mask, CLIP, 0.2) for t in (second, first))
        assert torch.equal(found.difference, right.difference)
        assert torch.equal(second.total(), first.total())


def test_a_state_of_another_table_is_refused():
    table = case("mlp").table()
    with pytest.raises(InputError, match="checkpoint"):
        table.load(case("mlp", sizes=(2, 2, 2)).table().tensors())
    with pytest.raises(InputError, match="checkpoint"):
        table.load({"total": table.total()})


@EVERY
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e200])
@pytest.mark.parametrize("mini_batch", [None, 2])
def test_a_record_without_finite_gradient_is_a_zero(name, bad, mini_batch):
    problem = case(name, sizes=(4, 3))
    inputs = problem.data.inputs.clone()
    inputs[1] = bad  # node 0, record 1
    broken = replace(problem, data=replace(problem.data, stored=inputs))
    # Without that record: node 0 has three.
    kept = torch.tensor([0, 2, 3, 4, 5, 6])
    data = problem.data
    three = StackedData(
        data.inputs[kept], data.targets[kept], torch.tensor([0, 3]), torch.tensor([3, 3])
    )
    table = broken.table(mini_batch=mini_batch)
    right = replace(problem, data=three).table()
    torch.testing.assert_close(table.total(), right.total(), **EXACT)
    counts = entries_of([4, 3], mini_batch)
    indices = torch.arange(max(counts)).expand(2, -1)
    mask = indices < torch.tensor(counts).unsqueeze(1)
    at = moved(problem, 0)
    found = table.replace(at, indices, mask, CLIP, None).difference
    every = torch.arange(3).expand(2, -1)
    expected = right.replace(at, every, torch.ones_like(every, dtype=torch.bool), CLIP, None)
    torch.testing.assert_close(found, expected.difference, **EXACT)
    torch.testing.assert_close(table.total(), right.total(), **EXACT)


def test_a_gradient_that_turns_infinite_takes_its_entry_away():
    problem = case("mlp", sizes=(2,))
    table = problem.table()
    at = problem.at.clone()
    at[0, -1] = math.inf
    one = torch.tensor([[0]]), torch.tensor([[True]])
    before = table.total()
    found = table.replace(at, *one, CLIP, None).difference
    brute = Brute(problem, CLIP)
    torch.testing.assert_close(found[0], -brute.entries[0][0], **EXACT)
    torch.testing.assert_close(table.total()[0], brute.entries[0][1], **EXACT)
    assert float(before.norm()) > 0
    back = table.replace(problem.at, *one, CLIP, None).difference
    torch.testing.assert_close(back[0], brute.entries[0][0], **EXACT)


@settings(max_examples=2 * FEW.max_examples)
@given(
    seed=st.integers(0, 2**31),
    name=st.sampled_from(list(MODELS)),
    dtype=st.sampled_from([torch.float32, FLOAT64]),
    step=st.floats(-16, 1),
    bound=st.floats(-12, 1),
    scale=st.floats(-3, 6),
)
def test_a_clipped_difference_is_within_its_bound_and_only_shorter(
    seed, name, dtype, step, bound, scale
):
    """One record, new and old from nearly equal to unrelated, bounds over 13 orders."""
    problem = case(name, sizes=(1,), dtype=dtype)
    problem.data.inputs.mul_(10.0**scale)
    limit = CLIP * 10.0**bound
    table = problem.table()
    draws = torch.Generator().manual_seed(seed)
    noise = torch.randn(problem.at.shape, generator=draws, dtype=dtype)
    at = problem.at + 10.0**step * noise
    one = torch.tensor([[0]]), torch.tensor([[True]])
    old = {key: values.clone() for key, values in table.tensors().items()}
    free = problem.table().replace(at, *one, CLIP, None).difference.double()
    table.load(old)
    found = table.replace(at, *one, CLIP, limit).difference.double()
    size = float(found.norm())
    assert size <= limit
    # A multiple, between 0 and 1, of the difference; all of it where that is well within.
    whole = float(free.norm())
    rounding = 1e-6 if dtype == torch.float32 else 1e-14
    ratio = size / whole if whole else 0.0
    assert ratio <= 1 + 1e-4 or size <= rounding
    torch.testing.assert_close(found, ratio * free, rtol=0, atol=rounding)
    if whole < 0.9 * limit and limit > 1e-4:
        torch.testing.assert_close(found, free, rtol=1e-6, atol=rounding)
    if whole > limit > 1e-3:
        assert size > 0.99 * limit
    # The entry and the total follow the difference as it is.
    torch.testing.assert_close(
        table.total().double(), problem.table().total().double() + free, rtol=0, atol=10 * rounding
    )


@pytest.mark.parametrize("dtype", [torch.float32, FLOAT64])
@pytest.mark.parametrize("name", ["linear", "mlp", "few-positions"])
def test_stored_entries_are_within_the_bound(name, dtype):
    for clip in (1e-6, 1e-2, 1e3):
        problem = case(name, sizes=(1,) * 20, dtype=dtype)
        norms = problem.table(clip).tensors()["total"].norm(dim=1)
        assert bool((norms <= clip).all())
        assert clip > 1 or bool((norms > 0.999 * clip).all())


@EVERY
def test_equal_new_and_old_differ_by_nothing(name):
    problem = case(name)
    table = problem.table()
    indices = torch.arange(4).expand(3, -1)
    mask = indices < problem.data.sizes.unsqueeze(1)
    before = table.total()
    found = table.replace(problem.at, indices * mask, mask, CLIP, 1e-9).difference
    assert float(found.norm()) < 1e-12
    torch.testing.assert_close(table.total(), before, rtol=0, atol=1e-14)


@EVERY
def test_an_empty_batch_changes_nothing(name):
    problem = case(name)
    table = problem.table()
    before = {key: values.clone() for key, values in table.tensors().items()}
    nothing = torch.zeros(3, 0, dtype=torch.int64), torch.zeros(3, 0, dtype=torch.bool)
    hidden = torch.zeros(3, 2, dtype=torch.int64), torch.zeros(3, 2, dtype=torch.bool)
    for indices, mask in (nothing, hidden):
        found = table.replace(moved(problem, 0), indices, mask, CLIP, 0.2)
        assert torch.equal(found.difference, torch.zeros_like(problem.at))
        assert found.batch.losses.shape == found.mask.shape == mask.shape
    assert all(torch.equal(before[key], values) for key, values in table.tensors().items())


def test_masked_slots_count_for_nothing_whatever_they_hold():
    problem = case("mlp")
    one, other = problem.table(), problem.table()
    indices, mask = batch(list(SIZES), 5, 1)
    garbage = torch.where(mask, indices, -(10**6))
    at = moved(problem, 0)
    found, right = (
        table.replace(at, slots, mask, CLIP, None).difference
        for table, slots in ((one, garbage), (other, indices))
    )
    assert torch.equal(found, right)
    assert torch.equal(one.total(), other.total())


def test_entries_that_are_not_there_or_are_twice_there_are_defects():
    table = case("linear").table()
    at = case("linear").at
    yes = torch.ones(3, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match="does not have"):
        table.replace(at, torch.tensor([[0, 1], [0, 1], [0, 1]]), yes, CLIP, None)
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    with pytest.raises(ValueError, match="twice"):
        table.replace(at, torch.tensor([[0, 1], [0, 0], [2, 2]]), mask, CLIP, None)


@pytest.mark.parametrize(
    ("clip", "bound", "key"),
    [(0.0, None, r"algorithm\.clip "), (1.0, math.nan, r"algorithm\.clip_difference")],
)
def test_bounds_that_bound_nothing_are_refused(clip, bound, key):
    problem = case("linear")
    with pytest.raises(InputError, match=key.strip()):
        problem.table().replace(problem.at, *batch(list(SIZES), 2, 0), clip, bound)


def test_mini_batches_of_nothing_are_refused():
    problem = case("linear")
    with pytest.raises(InputError, match=r"algorithm\.table_batch"):
        problem.table(mini_batch=0)
    with pytest.raises(InputError, match=r"algorithm\.table_batch"):
        table_need(problem.model, SIZES, FLOAT64, mini_batch=0)


def test_records_may_be_numbers_of_words():
    draws = torch.Generator().manual_seed(1)
    module = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 3))
    data = StackedData(
        torch.randint(0, 5, (7, 3), generator=draws),
        torch.randint(0, 3, (7,), generator=draws),
        torch.tensor([0, 4]),
        torch.tensor([4, 3]),
    )
    words = (data.inputs, data.targets)
    model = build(module, LOSSES["cross-entropy"], *words, dtype=FLOAT64, device="cpu")
    at = model.start(2, FLOAT64, "cpu")
    table = GradientTable.build(model, data, at, CLIP, steps=10)
    indices = torch.arange(4).expand(2, -1)
    mask = indices < data.sizes.unsqueeze(1)
    rows = data.gather(indices * mask)
    start = model.gradient(at, *rows, mask, CLIP).total
    torch.testing.assert_close(table.total(), start, **EXACT)
    later = model.gradient(at + 0.1, *rows, mask, CLIP).total
    found = table.replace(at + 0.1, indices, mask, CLIP, None).difference
    torch.testing.assert_close(found, later - start, **EXACT)


class Capped(nn.Module):
    """The identity for all but huge inputs."""

    def forward(self, inputs):
        return inputs.clamp(max=1e6)


def test_a_record_that_its_layer_does_not_take_as_it_is_contributes_nothing():
    problem = case("linear", sizes=(3,))
    data = problem.data
    capped = build(
        nn.Sequential(Capped(), problem.module),
        LOSSES["cross-entropy"],
        data.inputs,
        data.targets,
        dtype=FLOAT64,
        device="cpu",
    )
    right = problem.table().total()
    torch.testing.assert_close(
        GradientTable.build(capped, data, problem.at, CLIP, steps=10).total(), right, **EXACT
    )
    entries = Brute(problem, CLIP).entries[0]
    data.inputs[1, 2] = 2e6
    table = GradientTable.build(capped, data, problem.at, CLIP, steps=10)
    torch.testing.assert_close(table.total()[0], entries[0] + entries[2], **EXACT)
    mask = torch.ones(1, 3, dtype=torch.bool)
    found = table.replace(problem.at, torch.arange(3).unsqueeze(0), mask, CLIP, None)
    assert torch.isinf(found.batch.norms).tolist() == [[False, True, False]]


def test_available_memory_is_the_least_of_system_and_groups(tmp_path):
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    5000 kB\n")
    (proc / "self" / "cgroup").write_text("4:cpu,memory:/job/step\n0::/inner\n")
    assert host_bytes(proc=proc, groups=groups) == 5000 * 1024

    def group(folder, limit, used, names, stat):
        folder.mkdir(parents=True)
        (folder / names[0]).write_text(limit + "\n")
        (folder / names[1]).write_text(used + "\n")
        (folder / "memory.stat").write_text(stat)

    first = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    group(groups / "memory" / "job", "4000000", "1000000", first, "total_inactive_file 5000\n")
    assert host_bytes(proc=proc, groups=groups) == 3_005_000
    group(groups / "inner", "max", "1", ("memory.max", "memory.current"), "")
    assert host_bytes(proc=proc, groups=groups) == 3_005_000
    (groups / "memory.max").write_text("2000000\n")
    (groups / "memory.current").write_text("1999000\n")
    assert host_bytes(proc=proc, groups=groups) == 1000
    (groups / "memory.current").write_text("3000000\n")
    assert host_bytes(proc=proc, groups=groups) == 0


def test_available_memory_here():
    assert 2**20 < available_bytes() < 2**60


@pytest.mark.parametrize(
    ("count", "words"),
    [(12, "12 bytes"), (64_321_000, "64.3 MB"), (2.2e12, "2.2 TB"), (1e20, "1e+05 PB")],
)
def test_bytes_in_words(count, words):
    assert in_words(count) == words
