"""Loops over images against PyTorch's operations, whatever the sizes, and however shared."""

import os
import threading
import time
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from tacit.kernels.compile import compiled, fused, inlined
from tacit.kernels.images import NOWHERE, fold, maxima, spread, unfold
from tacit.kernels.moduli import mirrored_moduli
from tacit.kernels.threads import over_threads, over_threads_of_products

RECORDS, CHANNELS = 3, 4
PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))
DTYPES = st.sampled_from([np.float32, np.float64])


def numbers(*shape, seed, dtype):
    """Small whole numbers, so that sums are exact and windows have several largest ones."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def channels_first(images):
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(images, -1, 1)))


@st.composite
def patches(draw):
    """Sides of images, kernel, stride, padding and dilation that go together."""
    sides = draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    kernel, stride, dilation = draw(PAIRS), draw(PAIRS), draw(PAIRS)
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    fits = zip(sides, padding, dilation, kernel, strict=True)
    assume(all(side + 2 * pad > spread * (size - 1) for side, pad, spread, size in fits))
    return sides, kernel, stride, padding, dilation


@settings(max_examples=40, deadline=None)
@given(patches(), st.booleans(), st.sampled_from([1, 2]), DTYPES, st.integers(0, 99))
def test_patches_and_their_sums_are_those_of_torch(case, rectified, groups, dtype, seed):
    sides, kernel, stride, padding, dilation = case
    images = numbers(RECORDS, *sides, CHANNELS, seed=seed, dtype=dtype)
    given_images = np.maximum(images, 0) if rectified else images
    expected = functional.unfold(channels_first(given_images), kernel, dilation, padding, stride)
    counts = [
        (side + 2 * pad - spread * (size - 1) - 1) // step + 1
        for side, pad, spread, size, step in zip(
            sides, padding, dilation, kernel, stride, strict=True
        )
    ]
    columns = np.full((RECORDS, groups, *counts, *kernel, CHANNELS // groups), 7, dtype)
    unfold(images, columns, rectified, kernel, stride, padding, dilation)
    split = expected.view(RECORDS, groups, CHANNELS // groups, *kernel, *counts)
    assert np.array_equal(columns, split.permute(0, 1, 5, 6, 3, 4, 2).numpy())

    given_columns = numbers(RECORDS, *counts, *kernel, CHANNELS, seed=seed + 1, dtype=dtype)
    rows = torch.from_numpy(given_columns).permute(0, 5, 3, 4, 1, 2).reshape(expected.shape)
    sums = functional.fold(rows, sides, kernel, dilation, padding, stride)
    if rectified:
        sums = torch.where(channels_first(images) > 0, sums, 0)
    found = np.full((RECORDS, *sides, CHANNELS), 7, dtype)
    fold(given_columns, found, images, rectified, kernel, stride, padding, dilation)
    assert np.array_equal(found, sums.permute(0, 2, 3, 1).numpy())


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(3, 7), st.integers(3, 7)),
    PAIRS,
    PAIRS,
    st.booleans(),
    DTYPES,
    st.integers(0, 99),
)
def test_largest_numbers_and_their_gradients_are_those_of_torch(
    sides, kernel, stride, rectified, dtype, seed
):
    """Also with equal numbers, and with some that are not finite."""
    images = numbers(RECORDS, *sides, CHANNELS, seed=seed, dtype=dtype)
    images[0, 0, :2], images[1, 1] = np.nan, np.inf
    leaf = channels_first(images).requires_grad_()
    largest = functional.max_pool2d(torch.relu(leaf) if rectified else leaf, kernel, stride)
    slopes = numbers(RECORDS, *largest.shape[2:], CHANNELS, seed=seed + 1, dtype=dtype)
    (expected,) = torch.autograd.grad(largest, leaf, channels_first(slopes))

    best, places = np.full_like(slopes, 7), np.full(slopes.shape, 7, np.uint8)
    maxima(images, best, places, kernel, stride, rectified)
    right = largest.detach().permute(0, 2, 3, 1).numpy()
    assert np.array_equal(best, right, equal_nan=True)
    assert ((places == NOWHERE) == (rectified & (right == 0))).all()
    found = np.full_like(images, 7)
    spread(slopes, places, found, kernel, stride)
    assert np.array_equal(found, expected.permute(0, 2, 3, 1).numpy())


@pytest.mark.parametrize("parts", [2, 3])
def test_records_do_not_depend_on_each_other(parts):
    settings_of_patches = (2, 2), (1, 1), (1, 1), (1, 1)
    images = numbers(6, 4, 4, CHANNELS, seed=1, dtype=np.float32)
    whole = np.empty((6, 1, 5, 5, 2, 2, CHANNELS), np.float32)
    unfold(images, whole, False, *settings_of_patches)
    shared = np.empty_like(whole)
    for rows in np.split(np.arange(6), parts):
        part = slice(rows[0], rows[-1] + 1)
        unfold(images[part], shared[part], False, *settings_of_patches)
    assert np.array_equal(shared, whole)


# What is compiled keeps IEEE 754: fused where it says so, and nowhere else.


@inlined
def _three(one):
    return one * np.float32(3.0)


@compiled
def _sums(one, other, added, fuse, out):
    for i in range(len(one)):
        if fuse:
            out[i] = fused(one[i], other[i], added[i])
        else:
            out[i] = one[i] * other[i] + added[i]


@compiled
def _tripled(values):
    for i in range(len(values)):
        values[i] = _three(values[i])


@pytest.mark.parametrize("fuse", [True, False])
def test_products_are_fused_with_sums_where_that_is_said_and_nowhere_else(fuse):
    draw = np.random.default_rng(0)
    one, other = (draw.standard_normal(4_000).astype(np.float32) for _ in range(2))
    added = -(one * other)  # what is left of the sum is what rounding the product lost
    added[::2] += draw.standard_normal(2_000).astype(np.float32)
    out = np.empty_like(one)
    _sums(one, other, added, fuse, out)
    if not fuse:
        assert np.array_equal(out, one * other + added)
        return
    assert np.count_nonzero(out != one * other + added) > 1_000
    for a, b, c, found in zip(*(x.tolist() for x in (one, other, added, out)), strict=True):
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        error = abs(Fraction(found) - exact)
        for near in (
            np.nextafter(np.float32(found), np.float32(side)) for side in (-np.inf, np.inf)
        ):
            assert error <= abs(Fraction(float(near)) - exact)


def test_parts_are_compiled_into_loops():
    values = np.arange(5, dtype=np.float32)
    _tripled(values)
    assert values.tolist() == [0, 3, 6, 9, 12]


# The moduli of wavelets at an angle and at minus it, against complex numbers.


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("every", "both", "mirrored"), [(5, 4, 3), (1, 1, 1), (7, 0, 0)])
def test_they_are_those_of_complex_numbers(every, both, mirrored, dtype):
    draws = np.random.default_rng(every)
    s = draws.normal(size=(2, 40, every)).astype(dtype)
    t = draws.normal(size=(2, 40, both)).astype(dtype)
    made = np.full((40, every + mirrored), np.nan, dtype)
    mirrored_moduli(*s, *t, made)
    sums = s[0] + 1j * s[1]
    other = np.zeros_like(sums)
    other[:, :both] = t[0] + 1j * t[1]
    wanted = np.abs(np.hstack([sums + 1j * other, (sums - 1j * other)[:, :mirrored]]))
    np.testing.assert_allclose(made, wanted, rtol=1e-6 if dtype is np.float32 else 1e-14)


def test_what_is_not_finite_stays_with_its_own_record():
    s, t = np.ones((2, 3, 5), np.float32), np.ones((2, 3, 4), np.float32)
    s[0, 1, 2] = np.nan
    made = np.empty((3, 8), np.float32)
    mirrored_moduli(*s, *t, made)
    assert np.isfinite(made[[0, 2]]).all()
    assert np.isnan(made[1, [2, 7]]).all()


# The pool of threads: all shares at once, errors kept, and a pool of its own after a fork.


def test_all_shares_are_worked_on_at_once():
    together, seen = threading.Barrier(5, timeout=30), set()

    def work(share):
        together.wait()
        seen.add(share)

    over_threads(work, list(range(5)))
    assert seen == set(range(5))


def test_a_single_share_stays_on_the_thread_that_asks():
    threads = []
    over_threads(lambda share: threads.append(threading.get_ident()), [0])
    assert threads == [threading.get_ident()]


@pytest.mark.parametrize("shares", [1, 3])
def test_an_error_is_raised_when_all_have_ended(shares):
    begun, ended = threading.Barrier(shares, timeout=30), []

    def work(share):
        begun.wait()
        if share == 0:
            raise ZeroDivisionError
        time.sleep(0.2)
        ended.append(share)

    with pytest.raises(ZeroDivisionError):
        over_threads(work, list(range(shares)))
    assert sorted(ended) == list(range(1, shares))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_threads_of_its_own():
    over_threads(lambda share: None, [0, 1])
    child = os.fork()
    if child == 0:
        seen = []
        try:
            over_threads(seen.append, [1, 2])
        finally:
            os._exit(0 if sorted(seen) == [1, 2] else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("shares", [1, 3])
def test_products_of_a_share_take_one_thread_and_record_no_gradients(shares):
    before, seen = torch.get_num_threads(), []

    def work(share):
        seen.append((torch.get_num_threads(), torch.is_grad_enabled()))

    try:
        torch.set_num_threads(3)
        over_threads_of_products(work, list(range(shares)))
        assert seen == [(3 if shares == 1 else 1, False)] * shares
        assert (torch.get_num_threads(), torch.is_grad_enabled()) == (3, True)
    finally:
        torch.set_num_threads(before)
