"""Loops over images against PyTorch's operations, whatever the sizes, and however shared."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from tacit.kernels.images import NOWHERE, fold, maxima, spread, unfold

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
