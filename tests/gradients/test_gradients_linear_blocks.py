"""Wide linear models by blocks of records: against taps, in exact numbers, and what they leave."""

import math

import pytest
import torch
from gradient_problems import FEW, FLOAT64, generator
from hypothesis import given
from hypothesis import strategies as st
from test_gradients_linear import (
    DTYPES,
    EVERY_LOSS,
    FLOAT32,
    WIDTH,
    assert_a_record_moves_the_sum,
    assert_need_not_be_contiguous,
    assert_outputs_are_those_of_each,
    assert_reads_no_memory,
    assert_taps_do,
    built,
    by_taps,
    targets_of,
)
from torch import nn

from tacit.gradients import LOSSES, build, linear, stacked

CLOSE = {FLOAT32: {"rtol": 1e-2, "atol": 1e-4}, FLOAT64: {"rtol": 1e-9, "atol": 1e-11}}


@pytest.fixture
def narrow():
    """Layers of any size are wide, and blocks are of 16 records: eight of them a chunk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "MOST_WEIGHTS", 0)
        patch.setattr(stacked, "LEAST_RECORDS", 1)
        patch.setattr(linear, "_BLOCK_BYTES", 1)
        yield


NARROW = pytest.mark.usefixtures("narrow")


@NARROW
@DTYPES
@EVERY_LOSS
@FEW
@given(
    seed=st.integers(0, 2**31),
    size=st.integers(-4, 3),
    clip=st.sampled_from([None, 1e-3, 0.5, 1e4]),
    norm=st.sampled_from([*linear.LOOP_NORMS, "coordinate"]),
    count=st.sampled_from([1, 5, 17, 130, 300]),
    bias=st.booleans(),
    each=st.booleans(),
    spoilt=st.sampled_from([None, math.nan, math.inf, -math.inf, 3e38]),
)
def test_blocks_do_what_taps_do(
    dtype, loss, outputs, seed, size, clip, norm, count, bias, each, spoilt
):
    model, draws = built(loss, outputs, dtype, bias), generator(seed)
    assert model.reads_rows(count, norm) == (norm != "coordinate")
    inputs = (10.0**size * torch.randn(3, count, WIDTH, generator=draws, dtype=FLOAT64)).to(dtype)
    targets = targets_of(loss, outputs, (3, count), draws)
    mask = torch.rand(3, count, generator=draws) < 0.8
    mask[2, count // 2 :] = False  # whole blocks without a record
    at = model.start(3, dtype, "cpu")
    at += 0.5 * torch.randn(at.shape, generator=draws).to(dtype)
    if spoilt is not None and clip is not None:
        inputs[1, 0, 2] = spoilt
    bound = clip * torch.tensor([1.0, 0.3, 7.0]) if clip is not None and each else clip
    assert_taps_do(model, (at, inputs, targets, mask, bound), clip, norm, CLOSE[dtype])


@NARROW
@DTYPES
@EVERY_LOSS
@FEW
@given(
    seed=st.integers(0, 2**31),
    size=st.sampled_from([-310, -44, -38, -20, 0, 2, 8, 15, 18, 19, 24, 30, 38, 100, 150, 300]),
    spread=st.sampled_from([0, 40]),
    clip=st.sampled_from([1e-17, 1e-9, 0.3, 1e6, 1e17]),
    norm=st.sampled_from(linear.LOOP_NORMS),
    count=st.sampled_from([1, 5, 20, 128, 130, 300]),
)
def test_a_record_moves_the_sum_of_blocks_by_the_bound_at_most(dtype, loss, outputs, **drawn):
    assert_a_record_moves_the_sum(dtype, loss, outputs, **drawn)


@NARROW
@DTYPES
@FEW
@given(
    seed=st.integers(0, 2**31),
    spoilt=st.sampled_from([math.nan, math.inf, -math.inf, 3e38, 1e30, 0.0, 1e-40]),
    place=st.integers(0, 199),
)
def test_a_record_changes_nothing_that_is_said_of_others(dtype, seed, spoilt, place):
    """Scores come from products of whole blocks, norms and losses of others must not know of it."""
    model, draws = built("cross-entropy", 4, dtype), generator(seed)
    inputs = torch.randn(1, 200, WIDTH, generator=draws).to(dtype)
    targets = torch.randint(0, 4, (1, 200), generator=draws)
    mask = torch.ones(1, 200, dtype=torch.bool)
    at = model.start(1, dtype, "cpu")
    changed = inputs.clone()
    changed[0, place] = spoilt
    one, other = (model.gradient(at, given, targets, mask, 1.0) for given in (inputs, changed))
    rest = torch.arange(200) != place
    assert torch.equal(one.norms[:, rest], other.norms[:, rest])
    assert torch.equal(one.losses[:, rest], other.losses[:, rest])


@pytest.mark.parametrize("count", [256, 4_000])
def test_many_aligned_records_of_a_wide_layer_do_not_move_a_sum_by_more(count):
    """Unpatched, at 16,400 weights; sums in which single precision alone would lose a record."""
    model = built("cross-entropy", 8, FLOAT32, width=2_050)
    assert model.reads_rows(count, "l2")
    draws, clip = generator(count), 0.01
    at = model.start(1, FLOAT32, "cpu")
    one = torch.randn(2_050, generator=draws)
    inputs = one * (1 + 1e-3 * torch.rand(1, count, 1, generator=draws))
    targets = torch.zeros(1, count, dtype=torch.int64)
    mask = torch.ones(1, count, dtype=torch.bool)
    for place in (0, 77, count - 1):
        sums = []
        for record in (-3 * one, one, torch.full_like(one, math.nan)):
            changed = inputs.clone()
            changed[:, place] = record
            sums.append(model.gradient(at, changed, targets, mask, clip).total[0].double())
        opposite, alike, without = sums
        # Differences and their squares, in float64: to 1e-9 of the length.
        for left, right, most in (
            (opposite, without, 1),
            (alike, without, 1),
            (opposite, alike, 2),
        ):
            assert 0.9 * clip < float((left - right).norm()) * 2 <= 2 * most * clip * (1 + 1e-9)


@NARROW
@DTYPES
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("count", [3, 200])
def test_what_masked_slots_hold_changes_no_bit(dtype, clip, count):
    model, draws = built("cross-entropy", 4, dtype), generator(1)
    at = model.start(3, dtype, "cpu")
    inputs = torch.randn(3, count, WIDTH, generator=draws).to(dtype)
    targets = torch.randint(0, 4, (3, count), generator=draws)
    mask = torch.rand(3, count, generator=draws) < 0.6
    mask[1], mask[2] = False, True
    others = inputs.clone(), targets.clone()
    others[0][~mask], others[1][~mask] = math.nan, 10**12
    told = [model.gradient(at, *batch, mask, clip) for batch in ((inputs, targets), others)]
    for name in ("total", "norms", "losses"):
        assert torch.equal(getattr(told[0], name), getattr(told[1], name))
    assert not bool(told[0].total[1].any())
    assert not bool(told[0].losses[~mask].any())
    assert clip is None or not bool(told[0].norms[~mask].any())


@NARROW
def test_without_clipping_a_record_that_is_not_finite_shows():
    model = built("cross-entropy", 4, FLOAT32)
    inputs = torch.ones(2, 20, WIDTH)
    inputs[0, 3] = math.nan
    batch = inputs, torch.zeros(2, 20, dtype=torch.int64), torch.ones(2, 20, dtype=torch.bool)
    total = model.gradient(model.start(2, FLOAT32, "cpu"), *batch, None).total
    assert bool(torch.isnan(total[0]).any())
    assert bool(torch.isfinite(total[1]).all())


@NARROW
@pytest.mark.parametrize("label", [-1, 4, 2**62])
def test_a_label_that_is_no_class_reads_no_memory_of_others(label):
    assert_reads_no_memory(label)


@NARROW
@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize("threads", [2, 3, 5, 64])
@pytest.mark.parametrize("count", [1, 127, 129, 700])
def test_threads_share_all_records_and_are_left_as_they_were(nodes, threads, count):
    model, draws = built("cross-entropy", 4, FLOAT64), generator(2)
    inputs = torch.randn(nodes, count, WIDTH, generator=draws, dtype=FLOAT64)
    targets = torch.randint(0, 4, (nodes, count), generator=draws)
    mask = torch.rand(nodes, count, generator=draws) < 0.9
    at = model.start(nodes, FLOAT64, "cpu")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        right = model.gradient(at, inputs, targets, mask, 0.5)
        torch.set_num_threads(threads)
        found = model.gradient(at, inputs, targets, mask, 0.5)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found.total, right.total, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(found.norms, right.norms, rtol=1e-13, atol=0.0)
    torch.testing.assert_close(found.losses, right.losses, rtol=1e-13, atol=0.0)


@NARROW
def test_rows_of_nodes_are_read_as_padded_batches_are():
    model, draws = built("mse", 3, FLOAT32), generator(4)
    sizes = [300, 128, 1, 17]
    rows = [torch.randn(size, WIDTH, generator=draws) for size in sizes]
    mask = torch.arange(300) < torch.tensor(sizes).unsqueeze(1)
    padded = torch.full((4, 300, WIDTH), math.nan)
    for node, own in enumerate(rows):
        padded[node, : len(own)] = own
    targets = torch.randn(4, 300, 3, generator=draws)
    at = model.start(4, FLOAT32, "cpu")
    found, right = (model.gradient(at, given, targets, mask, 0.5) for given in (rows, padded))
    for name in ("total", "norms", "losses"):  # a block of one row is another kind of product
        torch.testing.assert_close(getattr(found, name), getattr(right, name))
    with pytest.raises(ValueError, match="reads rows"):
        by_taps(model).gradient(at, rows, targets, mask, 0.5)


@NARROW
@DTYPES
@pytest.mark.parametrize(
    "given", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int64]
)
def test_records_of_any_type_are_taken_by_blocks(dtype, given):
    model, draws = built("mse", 3, dtype), generator(1)
    inputs = torch.randn(2, 40, WIDTH, generator=draws, dtype=FLOAT64).mul(9).abs().to(given)
    targets = torch.randn(2, 40, 3, generator=draws, dtype=FLOAT64)
    batch = model.start(2, dtype, "cpu"), inputs, targets, torch.ones(2, 40, dtype=torch.bool), 0.5
    found, right = (
        each.gradient(*batch[:1], inputs.to(dtype), *batch[2:]).total
        for each in (model, by_taps(model))
    )
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)
    assert torch.equal(model.gradient(*batch).total, found)


@NARROW
def test_batches_of_blocks_need_not_be_contiguous():
    assert_need_not_be_contiguous(40)


@NARROW
def test_images_are_flattened_and_results_go_where_they_are_wanted():
    draws = generator(6)
    images = torch.randn(2, 30, 2, 3, 4, generator=draws)
    labels = torch.randint(0, 3, (2, 30), generator=draws)
    module = nn.Sequential(nn.Flatten(), nn.Linear(24, 3))
    loss = LOSSES["cross-entropy"]
    model = build(module, loss, images[0], labels[0], dtype=FLOAT32, device="cpu")
    batch = images, labels, torch.ones(2, 30, dtype=torch.bool), 0.5
    at = model.start(2, FLOAT32, "cpu")
    out = torch.full_like(at, math.nan)
    found = model.gradient(at, *batch, out=out)
    assert found.total is out
    torch.testing.assert_close(out, by_taps(model).gradient(at, *batch).total)


@NARROW
def test_autocast_does_not_reach_the_sums_of_blocks():
    model, draws = built("cross-entropy", 4, FLOAT32), generator(1)
    batch = torch.randn(2, 40, WIDTH, generator=draws), torch.zeros(2, 40, dtype=torch.int64)
    mask = torch.ones(2, 40, dtype=torch.bool)
    at = model.start(2, FLOAT32, "cpu")
    right = model.gradient(at, *batch, mask, 1.0).total
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model.gradient(at, *batch, mask, 1.0).total, right)


@NARROW
@pytest.mark.parametrize("bias", [True, False])
def test_outputs_of_all_nodes_in_one_product_are_those_of_each(bias):
    assert_outputs_are_those_of_each(bias)


def test_small_layers_and_small_batches_are_not_cut_into_blocks():
    small, wide = (built("cross-entropy", 8, FLOAT32, width=width) for width in (2_040, 2_060))
    assert not small.reads_rows(10_000, "l2")
    assert wide.reads_rows(linear.LEAST_RECORDS, "l1")
    assert not wide.reads_rows(linear.LEAST_RECORDS - 1, "l2")
    assert not wide.reads_rows(10_000, "coordinate")
    assert not by_taps(wide).reads_rows(10_000, "l2")
