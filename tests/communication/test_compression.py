"""Compression against NumPy's stable sort, its contraction, and the bytes that are really sent."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from few import few
from public_masks import public_mask
from tacit.communication import compression
from tacit.communication.compression import (
    COMPRESSORS,
    Coding,
    PublicDraw,
    compress,
    kept,
    message_bytes,
)
from tacit.errors import InputError

DTYPES = [torch.float32, torch.float64]
# Few different values, so that ties are the rule.
TIED = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 1e-40, 3.5])
ROWS = arrays.arrays(
    np.float64,
    st.tuples(st.integers(1, 4), st.integers(1, 40)),
    elements=st.one_of(TIED, st.floats(-1e6, 1e6)),
)
KEEPS = st.one_of(st.floats(0.01, 1.0), st.sampled_from([0.3, 1 / 3, 0.5, 1.0]))


def coding(compressor, keep, *, seed=0, step=0):
    return Coding(compressor, keep, seed, step, 0, np.zeros(1, np.int64))


def sent(values, compressor, keep, *, seed=7, step=3):
    return compress(
        values, compressor=compressor, keep=keep, seed=seed, step=step, nodes=range(len(values))
    )


def stable_top_k(row, k):
    """The k largest in size, by a stable sort."""
    found = np.zeros_like(row)
    chosen = np.argsort(-abs(row), kind="stable")[:k]
    found[chosen] = row[chosen]
    return found


@pytest.mark.parametrize(
    ("keep", "d", "k"),
    [
        *[(0.3, 10, 3), (0.07, 100, 7), (0.1, 30, 3), (1e-9, 5, 1), (1.0, 5, 5), (0.31, 10, 4)],
        *[(5 / 6, 6, 5), (0.5, 7, 4), (0.4, 2_000_000, 800_000), (0.4000001, 2_000_000, 800_001)],
    ],
)
def test_so_many_are_kept(keep, d, k):
    assert kept(keep, d) == k


@given(d=st.integers(1, 10**9), data=st.data())
def test_a_rounded_quotient_keeps_its_numerator(d, data):
    k = data.draw(st.integers(1, d))
    assert kept(k / d, d) == k


@given(keep=st.floats(1e-6, 1.0), d=st.integers(1, 10**7))
def test_as_many_as_the_exact_ceiling_says(keep, d):
    exact = Fraction(keep) * d
    assert kept(keep, d) in {math.ceil(exact), max(1, round(exact))}
    assert abs(kept(keep, d) - exact) < 1


@given(rows=ROWS, keep=KEEPS, dtype=st.sampled_from(DTYPES))
def test_top_k_is_the_stable_sort(rows, keep, dtype):
    values = torch.from_numpy(rows).to(dtype)
    found = sent(values, "top-k", keep).values
    k = kept(keep, rows.shape[1])
    expected = np.stack([stable_top_k(row, k) for row in values.numpy()])
    assert np.array_equal(found.numpy(), expected)
    assert found.dtype == dtype
    # k of n d coordinates carry at least their share.
    left = (values - found).double().square().sum(1)
    whole = values.double().square().sum(1)
    assert bool((left <= (1 - k / rows.shape[1]) * whole * (1 + 1e-12)).all())


def test_top_k_of_many_values_with_many_ties():
    draw = np.random.default_rng(4)
    rows = draw.integers(-40, 40, (3, 60_000)).astype(np.float32)
    found = sent(torch.from_numpy(rows), "top-k", 0.217).values.numpy()
    k = kept(0.217, 60_000)
    assert np.array_equal(found, np.stack([stable_top_k(row, k) for row in rows]))


@pytest.mark.parametrize("compressor", ["top-k", "rand-k"])
def test_other_devices_find_the_same_edge(compressor, monkeypatch):
    draw = torch.Generator().manual_seed(8)
    values = torch.randint(-9, 9, (5, 700), generator=draw).float()
    expected = sent(values, compressor, 0.31).values
    monkeypatch.setattr(compression, "_kth_largest", compression._kth_largest_anywhere)
    assert torch.equal(sent(values, compressor, 0.31).values, expected)


def test_top_k_of_a_transposed_stack():
    values = torch.randn(30, 4, generator=torch.Generator().manual_seed(1)).t()
    expected = sent(values.contiguous(), "top-k", 0.2).values
    assert torch.equal(sent(values, "top-k", 0.2).values, expected)


def test_what_is_not_a_number_is_sent_first():
    row = torch.tensor([[1.0, math.nan, -math.inf, 5.0]])
    found = sent(row, "top-k", 0.5).values[0].tolist()
    assert math.isnan(found[1])
    assert [found[0], found[2], found[3]] == [0.0, -math.inf, 0.0]


@settings(deadline=None)
@given(rows=ROWS, keep=KEEPS, compressor=st.sampled_from(sorted(COMPRESSORS)))
def test_kept_values_are_unscaled_and_compressing_again_changes_nothing(rows, keep, compressor):
    values = torch.from_numpy(rows)
    before = values.clone()
    once = sent(values, compressor, keep)
    assert torch.equal(values, before)
    assert bool(((once.values == values) | (once.values == 0)).all())
    twice = sent(once.values, compressor, keep)
    assert torch.equal(twice.values, once.values)
    assert np.array_equal(twice.bytes, once.bytes)


@pytest.mark.parametrize("compressor", sorted(COMPRESSORS))
def test_keeping_all_is_the_identity_and_costs_no_places(compressor):
    values = torch.randn(3, 17, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = sent(values, compressor, 1.0)
    assert torch.equal(found.values, values)
    assert found.values.data_ptr() != values.data_ptr()
    assert found.bytes.tolist() == [17 * 8] * 3


@given(
    nodes=st.lists(st.integers(0, 99), min_size=1, max_size=5),
    compressor=st.sampled_from(sorted(COMPRESSORS)),
    keep=KEEPS,
)
@settings(max_examples=60, deadline=None)
def test_a_row_is_the_same_in_any_stack(nodes, compressor, keep):
    values = torch.randn(len(nodes), 33, generator=torch.Generator().manual_seed(5))
    stack = compress(values, compressor=compressor, keep=keep, seed=1, step=2, nodes=nodes, part=1)
    for i, node in enumerate(nodes):
        alone = compress(
            values[i : i + 1],
            compressor=compressor,
            keep=keep,
            seed=1,
            step=2,
            nodes=[node],
            part=1,
        )
        assert torch.equal(alone.values[0], stack.values[i])
        assert alone.bytes[0] == stack.bytes[i]


@pytest.mark.parametrize("compressor", ["rand-k", "bernoulli"])
def test_public_masks_differ_by_seed_step_node_and_part_and_ignore_the_values(compressor):
    def mask(seed, step, node, part):
        found = public_mask(
            200, compressor=compressor, keep=0.5, seed=seed, step=step, nodes=[node], part=part
        )
        return found.numpy().tobytes()

    places = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (1, 1, 0, 0)]
    assert len({mask(*place) for place in places}) == len(places)
    assert mask(0, 1, 2, 3) == mask(0, 1, 2, 3)
    ones = torch.ones(1, 200)
    for values in (ones, torch.arange(1.0, 201.0).view(1, 200)):
        found = compress(values, compressor=compressor, keep=0.5, seed=0, step=1, nodes=[2], part=3)
        assert (found.values != 0).numpy().tobytes() == mask(0, 1, 2, 3)


GOLDEN = [5397084254647914956, 1342799250401314670, 16636580017918369907]


def test_public_words_are_those_of_every_machine():
    """Philox4x64-10 under a BLAKE2b key: written down, since processes must agree on it."""
    assert PublicDraw(5, 6, 7).words(3).tolist() == GOLDEN
    assert np.array_equal(PublicDraw(5, 6, 7).words(50)[:3], PublicDraw(5, 6, 7).words(3))


def test_rand_k_takes_every_subset_equally_often():
    draws = 6_000
    values = torch.ones(draws, 5)
    found = sent(values, "rand-k", 0.4).values  # node after node
    codes = (found @ (2.0 ** torch.arange(5))).long().numpy()
    counts = np.bincount(codes, minlength=32)
    subsets = [code for code in range(32) if bin(code).count("1") == 2]
    assert counts.sum() == counts[subsets].sum() == draws
    assert stats.chisquare(counts[subsets]).pvalue > 1e-3


def test_rand_k_contracts_in_expectation_by_the_share_that_is_left():
    row = torch.randn(40, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    errors = []
    for step in range(30):
        found = sent(row.expand(200, 40), "rand-k", 0.3, step=step).values
        errors.append((found - row).square().sum(1))
    ratio = torch.cat(errors) / row.square().sum()
    spread = float(ratio.std()) / math.sqrt(len(ratio))
    assert abs(float(ratio.mean()) - (1 - 12 / 40)) < 4.5 * spread


def test_bernoulli_keeps_each_with_its_probability_independently():
    found = sent(torch.ones(400, 500), "bernoulli", 0.2).values.double()
    n = found.numel()
    assert abs(float(found.mean()) - 0.2) < 4.5 * math.sqrt(0.16 / n)
    centred = found - 0.2
    neighbours = float((centred[:, 1:] * centred[:, :-1]).mean())
    assert abs(neighbours) < 4.5 * 0.16 / math.sqrt(n)
    # Binomial counts: their variance is that of independent coins.
    variance = float(found.sum(1).var())
    assert abs(variance / (500 * 0.16) - 1) < 4.5 * math.sqrt(2 / 400)


@few(50, 150)
@given(
    rows=ROWS,
    keep=KEEPS,
    compressor=st.sampled_from(sorted(COMPRESSORS)),
    dtype=st.sampled_from(DTYPES),
    node=st.integers(0, 30),
)
def test_messages_are_as_long_as_counted_and_say_all(rows, keep, compressor, dtype, node):
    values = torch.from_numpy(rows[:1]).to(dtype)
    found = compress(values, compressor=compressor, keep=keep, seed=3, step=4, nodes=[node])
    written = coding(compressor, keep, seed=3, step=4)
    d = rows.shape[1]
    for row in (values[0], found.values[0]):
        message = written.write(row, node)
        assert len(message) == found.bytes[0]
        back = written.read(message, d, dtype, node)
        assert torch.equal(back, found.values[0])
        assert torch.equal(torch.signbit(back), torch.signbit(found.values[0]))


@pytest.mark.parametrize(
    ("keep", "places"),
    [(0.01, 4 * 10), (0.03, 4 * 30), (0.032, 125), (0.5, 125), (0.999, 125), (1.0, 0)],
)
def test_places_cost_the_cheaper_of_a_bitmap_and_indices(keep, places):
    values = torch.randn(2, 1000, generator=torch.Generator().manual_seed(6))
    k = kept(keep, 1000)
    assert sent(values, "top-k", keep).bytes.tolist() == [4 * k + places] * 2
    assert sent(values, "rand-k", keep).bytes.tolist() == [4 * k] * 2


def test_indices_beyond_32_bits_take_eight_bytes():
    d = (1 << 32) + 1
    counts = np.array([10, d // 2])
    assert message_bytes("top-k", counts, d, 4).tolist() == [10 * 12, 4 * (d // 2) + (d + 7) // 8]
    assert message_bytes("top-k", counts[:1], d - 1, 4).tolist() == [10 * 8]


def test_bernoulli_counts_what_it_sent():
    found = sent(torch.ones(20, 300, dtype=torch.float64), "bernoulli", 0.1)
    assert np.array_equal(found.bytes, 8 * (found.values != 0).sum(1).numpy())


def test_an_empty_stack_is_fine():
    for compressor in COMPRESSORS:
        found = compress(
            torch.ones(0, 4), compressor=compressor, keep=0.5, seed=0, step=0, nodes=[]
        )
        assert found.values.shape == (0, 4)
        assert found.bytes.shape == (0,)


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.0000001, math.nan, 40.0])
@pytest.mark.parametrize("compressor", sorted(COMPRESSORS))
def test_an_unusable_share_is_refused(compressor, keep):
    with pytest.raises(InputError, match=r"algorithm\.keep"):
        sent(torch.ones(1, 4), compressor, keep)
    with pytest.raises(InputError, match=r"algorithm\.keep"):
        coding(compressor, keep).write(torch.ones(4), 0)
    with pytest.raises(InputError, match=r"algorithm\.keep"):
        kept(keep, 4)


def test_other_bad_input_is_refused():
    with pytest.raises(InputError, match="did you mean 'top-k'"):
        sent(torch.ones(1, 4), "topk", 0.5)
    with pytest.raises(InputError, match="values"):
        compress(torch.ones(2, 4), compressor="none", keep=1.0, seed=0, step=0, nodes=[0])
    with pytest.raises(InputError, match="float32 or float64"):
        sent(torch.ones(1, 4, dtype=torch.int64), "none", 1.0)
    with pytest.raises(InputError, match="d = 0"):
        kept(0.5, 0)


@pytest.mark.parametrize(("compressor", "keep"), [("top-k", 0.1), ("top-k", 0.5), ("rand-k", 0.5)])
def test_messages_of_another_length_are_refused(compressor, keep):
    message = coding(compressor, keep).write(torch.arange(40.0), 0)
    for wrong in (message[:-1], torch.cat([message, message[:1]]), message[:0]):
        with pytest.raises(InputError, match="message"):
            coding(compressor, keep).read(wrong, 40, torch.float32, 0)


def test_a_place_outside_the_vector_is_refused():
    """What came over a network may name any place."""
    row, written = torch.arange(100.0), coding("top-k", 0.02)
    message = written.write(row, 0)
    message[:4] = torch.tensor([100, 0, 0, 0])
    with pytest.raises(InputError, match="a place below 100"):
        written.read(message, 100, row.dtype, 0)


def test_a_message_may_be_empty():
    values, nodes = torch.ones(1, 3), [0]
    chosen = (
        compress(values, compressor="bernoulli", keep=0.01, seed=seed, step=0, nodes=nodes)
        for seed in range(100)
    )
    coding = next(one.coding for one in chosen if one.bytes[0] == 0)
    assert coding.size(3, values.dtype, 0) == 0
    message = coding.write(values[0], 0)
    assert message.shape == (0,)
    assert torch.equal(coding.read(message, 3, values.dtype, 0), torch.zeros(3))
