"""Passes of low precision: what stays in float32, and who changes what.

That no record moves a sum by more than C is in `test_gradients_sensitivity.py`, in bfloat16 too.
"""

import threading

import pytest
import torch
from gradient_problems import FEW, assert_moved_at_most
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gradients_sensitivity import MODELS, NODES, RECORDS, adversarial, built
from torch import nn

from tacit.data import StackedData
from tacit.errors import InputError
from tacit.gradients import LOSSES, build, record_coins
from tacit.gradients.precision import check_products, exact_products, passing
from tacit.gradients.table import GradientTable, clipped_difference
from tacit.gradients.table_storage import entry_shapes

FEWEST = settings(max_examples=FEW.max_examples // 3)
FLOAT32, CUDA = torch.float32, torch.device("cuda")
SIZES = [-44, -20, 0, 4, 12, 18, 19, 30, 38]


def batch_of(name, seed):
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.randn(NODES, RECORDS, *MODELS[name][1], generator=draws)
    targets = torch.randint(0, 3, (NODES, RECORDS), generator=draws)
    coins = record_coins(seed, 0, 0, torch.arange(NODES), torch.arange(RECORDS).expand(NODES, -1))
    return inputs, targets, torch.ones(NODES, RECORDS, dtype=torch.bool), coins, draws


@pytest.mark.parametrize("name", MODELS)
@FEWEST
@given(
    seed=st.integers(0, 2**31), size=st.sampled_from(SIZES), kind=st.integers(0, 5), clip=st.just(1)
)
def test_what_a_record_gives_is_the_same_to_the_bit_whoever_else_is_there(
    name, seed, size, kind, clip
):
    model, at = built(name, FLOAT32, precision="bf16")
    inputs, targets, mask, coins, draws = batch_of(name, seed)
    place, shape = seed % RECORDS, MODELS[name][1]
    given_parts = []
    for others in (None, kind):
        batch = inputs.clone()
        if others is not None:
            made = (
                adversarial(shape, 10.0**size, kind, draws) if kind < 5 else torch.tensor(torch.nan)
            )
            batch[:] = made.float()
            batch[:, place] = inputs[:, place]
        found = model.record_gradients(at, batch, targets, mask, float(clip), coins)
        given_parts.append(
            [found.factors[:, place], found.losses[:, place]]
            + [tensor[:, place] for part in found.parts for tensor in part.kept]
        )
    for alone, among in zip(*given_parts, strict=True):
        assert alone.dtype in (FLOAT32, torch.float64, torch.int64)
        assert torch.equal(alone, among)


@pytest.mark.parametrize("name", [name for name in MODELS if "dropout" not in name])
@FEWEST
@given(
    seed=st.integers(0, 2**31),
    size=st.sampled_from(SIZES),
    kind=st.integers(0, 4),
    clip=st.sampled_from([0.3, 1e6]),
    bound=st.sampled_from([0.1, None]),
)
def test_a_record_moves_differences_by_their_bound_at_most(name, seed, size, kind, clip, bound):
    model, at = built(name, FLOAT32, precision="bf16")
    inputs, targets, mask, _, draws = batch_of(name, seed)
    shapes = entry_shapes(model)
    points = at, at + 0.1 * torch.randn(at.shape, generator=draws)
    sums = []
    for record in (adversarial(MODELS[name][1], 10.0**size, kind, draws).float(), torch.nan):
        changed = inputs.clone()
        changed[:, seed % RECORDS] = record
        every = torch.full((NODES,), RECORDS)
        batch = changed, targets, mask
        sums.append(clipped_difference(model, shapes, points, batch, clip, bound, every).total)
    assert_moved_at_most(*sums, 2 * clip if bound is None else bound)


@pytest.mark.parametrize("name", [name for name in MODELS if "dropout" not in name])
@FEWEST
@given(seed=st.integers(0, 2**31), size=st.sampled_from(SIZES), kind=st.integers(0, 4))
def test_a_record_moves_the_total_of_a_table_by_the_bound_at_most(name, seed, size, kind):
    model, at = built(name, FLOAT32, precision="bf16")
    inputs, targets, mask, _, draws = batch_of(name, seed)
    totals = []
    for record in (adversarial(MODELS[name][1], 10.0**size, kind, draws).float(), torch.nan):
        changed = inputs.clone()
        changed[:, seed % RECORDS] = record
        counts = torch.full((NODES,), RECORDS)
        starts = counts.cumsum(0) - counts
        data = StackedData(changed.flatten(0, 1), targets.flatten(), starts, counts)
        table = GradientTable.build(model, data, at, 0.7, steps=3)
        every = torch.arange(RECORDS).expand(NODES, -1)
        table.replace(at + 0.1, every, mask, 0.7, None)
        totals.append(table.total())
    assert_moved_at_most(*totals, 0.7)


@pytest.mark.parametrize("name", MODELS)
def test_bf16_is_near_float32_and_gives_float32(name):
    inputs, targets, mask, coins, _ = batch_of(name, 1)
    found = []
    for precision in ("float32", "bf16", *(["tf32"] * (name in ("mlp", "functional")))):
        model, at = built(name, FLOAT32, precision=precision)
        found.append(model.gradient(at, inputs, targets, mask, 1.0, coins=coins))
    right, low, *same = found
    assert low.total.dtype == low.norms.dtype == low.losses.dtype == FLOAT32
    apart = float((low.total - right.total).norm() / right.total.norm())
    assert 1e-5 < apart < 0.03
    assert all(torch.equal(one.total, right.total) for one in same)  # a processor has no TF32


class Cautious(nn.Module):
    """Divides a whole batch by its largest number where passes are of low precision."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, inputs):
        if torch.is_autocast_enabled("cpu"):
            inputs = inputs / inputs.abs().amax().clamp(min=1)
        return self.layer(inputs)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_module_that_mixes_records_in_low_precision_alone_is_not_tapped(precision):
    examples = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    targets = torch.tensor([0, 1, 2, 0])
    model = build(
        Cautious(),
        LOSSES["cross-entropy"],
        examples,
        targets,
        dtype=FLOAT32,
        device="cpu",
        precision=precision,
    )
    assert model.path == ("functional" if precision == "bf16" else "taps")


def test_a_module_that_autocast_breaks_is_refused_with_what_it_says():
    class Strict(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, inputs):
            target = torch.zeros(len(inputs), 3)
            return target.index_copy_(0, torch.arange(len(inputs)), self.layer(inputs))

    examples = torch.ones(4, 6), torch.tensor([0, 1, 2, 0])
    with pytest.raises(InputError, match=r"task\.model"):
        build(
            Strict(),
            LOSSES["cross-entropy"],
            *examples,
            dtype=FLOAT32,
            device="cpu",
            precision="bf16",
        )


def switches():
    backends = torch.backends
    places = backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn
    return [place.fp32_precision for place in places]


needs_switches = pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="needs PyTorch 2.9"
)


@needs_switches
def test_switches_are_on_within_a_pass_and_then_as_they_were():
    before = switches()
    with exact_products(CUDA):
        assert switches() == ["ieee"] * 3
        with passing("tf32", CUDA):
            assert switches() == ["tf32"] * 3
        assert switches() == ["ieee"] * 3
        with passing("bf16", CUDA):
            assert switches() == ["ieee"] * 3
        with pytest.raises(KeyError), passing("tf32", CUDA):
            raise KeyError
        assert switches() == ["ieee"] * 3
    assert switches() == before
    assert torch.get_float32_matmul_precision() == "highest"
    with passing("tf32", torch.device("cpu")):
        assert switches() == before


@needs_switches
def test_no_thread_adds_up_while_another_is_in_a_pass_of_low_precision():
    inside, leave, seen = threading.Event(), threading.Event(), []

    def low():
        with passing("tf32", CUDA):
            inside.set()
            leave.wait(10)

    def adding():
        check_products()
        with exact_products(CUDA):
            seen.append(switches())

    threads = [threading.Thread(target=work) for work in (low, adding)]
    threads[0].start()
    assert inside.wait(10)
    threads[1].start()
    threads[1].join(0.2)
    assert threads[1].is_alive()
    assert not seen
    leave.set()
    for thread in threads:
        thread.join(10)
    assert seen == [["ieee"] * 3]


class InHalf(nn.Module):
    """A module whose own autocast has some layers compute in float16, while `half` says so."""

    half = True

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x):
        with torch.autocast("cpu", torch.float16, enabled=self.half):
            return self.last(torch.tanh(self.norm(self.first(x)))).float()


def half_model(precision="float32"):
    torch.manual_seed(0)
    inputs, targets = torch.randn(8, 4), torch.arange(8) % 3
    given = {"dtype": FLOAT32, "device": "cpu", "precision": precision}
    return build(InHalf(), LOSSES["cross-entropy"], inputs, targets, **given), inputs, targets


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_what_computes_in_half_precision_is_neither_normed_nor_added_so(precision):
    """Factors and sums in float16 would round by far more than the bound allows for."""
    with pytest.raises(InputError, match=r"task\.model .*float16"):
        half_model(precision)


def test_what_comes_to_half_precision_in_a_run_is_refused_before_it_is_added(monkeypatch):
    monkeypatch.setattr(InHalf, "half", False)
    model, inputs, targets = half_model()
    assert model.path == "taps"
    monkeypatch.setattr(InHalf, "half", True)
    at, mask = model.start(1, FLOAT32, "cpu"), torch.ones(1, 8, dtype=torch.bool)
    with pytest.raises(InputError, match="float16"):
        model.gradient(at, inputs[None], targets[None], mask, 0.01)
