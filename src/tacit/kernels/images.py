"""Loops over images that lie channels last: patches, their sums, and the largest of windows.

Every loop works on whole records, `[r, ...]`, one after the other, so that how records are shared
among threads changes nothing. Inner loops run over slices: numba asks of any other index whether it
counts from the end, and an inner loop with such questions is three to seven times slower.

Sizes of two numbers are of rows and columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.kernels.compile import compiled

Images = NDArray[Any]
Pair = tuple[int, ...]  # of two

NOWHERE = 255
"""In place of a place in a window: its largest number does not count."""


@compiled
def unfold(
    images: Images,
    columns: Images,
    rectified: bool,
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
) -> None:
    """Write the patches of images, with zeros around them.

    Args:
        images: `[r, height, width, channels]`, contiguous.
        columns: `[r, groups, down, right, kernel rows, kernel columns, channels / groups]`,
            contiguous; overwritten.
        rectified: whether numbers below zero count as zero.
        kernel: of the patches, as the rest.
        stride: from one patch to the next.
        padding: zeros before the first and after the last row and column of an image.
        dilation: from one number of a patch to the next.
    """
    records, height, width, channels = images.shape
    groups, down, right = columns.shape[1:4]
    depth = channels // groups
    wide = width + 2 * padding[1]
    padded = np.zeros((height + 2 * padding[0]) * wide * channels, images.dtype)
    zero = images.dtype.type(0)
    # Neighbours across lie side by side, and are copied in one go.
    whole = groups == 1 and dilation[1] == 1
    run = kernel[1] * depth if whole else depth
    pieces = 1 if whole else kernel[1]
    flat = columns.reshape(columns.size)
    start = 0
    for record in range(records):
        source = images[record].reshape(height * width * channels)
        for row in range(height):
            begin = ((row + padding[0]) * wide + padding[1]) * channels
            line = padded[begin : begin + width * channels]
            given = source[row * width * channels : (row + 1) * width * channels]
            for i in range(width * channels):
                line[i] = zero if rectified and given[i] <= zero else given[i]
        for group in range(groups):
            for i in range(down):
                for j in range(right):
                    for row in range(kernel[0]):
                        across = (i * stride[0] + row * dilation[0]) * wide + j * stride[1]
                        for piece in range(pieces):
                            begin = (across + piece * dilation[1]) * channels + group * depth
                            patch = flat[start : start + run]
                            values = padded[begin : begin + run]
                            for k in range(run):
                                patch[k] = values[k]
                            start += run


@compiled
def fold(
    columns: Images,
    images: Images,
    signs: Images,
    rectified: bool,
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
) -> None:
    """Write the sums of patches at their places: the transpose of `unfold`, without groups.

    Sizes are those of `unfold`. Arrays are contiguous: `columns`
    `[r, down, right, kernel rows, kernel columns, channels]`, and `images`
    `[r, height, width, channels]`, which are overwritten. What falls on the padding is left out. If
    `rectified`, the sum is zero where `signs`, of the shape of the images, are not above zero; else
    they are not read.
    """
    records, height, width, channels = images.shape
    down, right = columns.shape[1:3]
    wide = width + 2 * padding[1]
    padded = np.empty((height + 2 * padding[0]) * wide * channels, images.dtype)
    zero = images.dtype.type(0)
    whole = dilation[1] == 1
    run = kernel[1] * channels if whole else channels
    pieces = 1 if whole else kernel[1]
    flat = columns.reshape(columns.size)
    start = 0
    for record in range(records):
        padded[:] = zero
        for i in range(down):
            for j in range(right):
                for row in range(kernel[0]):
                    across = (i * stride[0] + row * dilation[0]) * wide + j * stride[1]
                    for piece in range(pieces):
                        begin = (across + piece * dilation[1]) * channels
                        patch = flat[start : start + run]
                        values = padded[begin : begin + run]
                        for k in range(run):
                            values[k] += patch[k]
                        start += run
        target = images[record].reshape(height * width * channels)
        sign = signs[record].reshape(height * width * channels)
        for row in range(height):
            begin = ((row + padding[0]) * wide + padding[1]) * channels
            line = padded[begin : begin + width * channels]
            taken = target[row * width * channels : (row + 1) * width * channels]
            known = sign[row * width * channels : (row + 1) * width * channels]
            for i in range(width * channels):
                taken[i] = zero if rectified and known[i] <= zero else line[i]


@compiled
def maxima(
    images: Images,
    largest: Images,
    places: NDArray[np.uint8],
    kernel: Pair,
    stride: Pair,
    rectified: bool,
) -> None:
    """Write the largest number of every window, and where in the window it is.

    As `torch.nn.functional.max_pool2d` has it: the first of equals, but the last of those that are
    not numbers.

    Args:
        images: `[r, height, width, channels]`, contiguous.
        largest: `[r, down, right, channels]`, contiguous; overwritten.
        places: likewise; `row * kernel columns + column`.
        kernel: of the windows; at most 255 numbers.
        stride: from one window to the next.
        rectified: whether numbers below zero count as zero, whose place is `NOWHERE`.
    """
    records, height, width, channels = images.shape
    down, right = largest.shape[1:3]
    nowhere, zero = np.uint8(NOWHERE), images.dtype.type(0)
    # Windows one step apart read runs of numbers that lie side by side: a row of them at a time.
    run = right * channels if stride[1] == 1 else channels
    pieces = right * channels // run
    for record in range(records):
        source = images[record].reshape(height * width * channels)
        for i in range(down):
            most, where = largest[record, i].reshape(-1), places[record, i].reshape(-1)
            for piece in range(pieces):
                best = most[piece * run : (piece + 1) * run]
                place = where[piece * run : (piece + 1) * run]
                for row in range(kernel[0]):
                    for column in range(kernel[1]):
                        across = piece * stride[1] + column
                        at = ((i * stride[0] + row) * width + across) * channels
                        values = source[at : at + run]
                        here = np.uint8(row * kernel[1] + column)
                        if here == 0:
                            for k in range(run):
                                best[k] = values[k]
                                place[k] = 0
                        else:
                            for k in range(run):
                                value, old = values[k], best[k]
                                more = (value > old) | (value != value)
                                best[k] = value if more else old
                                place[k] = here if more else place[k]
                if rectified:
                    for k in range(run):
                        less = best[k] <= zero
                        place[k] = nowhere if less else place[k]
                        best[k] = zero if less else best[k]


@compiled
def spread(
    gradients: Images, places: NDArray[np.uint8], images: Images, kernel: Pair, stride: Pair
) -> None:
    """Write the gradients by what `maxima` was given, from those by what it found.

    Gradients are `[r, down, right, channels]`, and images `[r, height, width, channels]`, which are
    overwritten; both are contiguous. Places, and the sizes of windows, are those of `maxima`.
    """
    records, height, width, channels = images.shape
    down, right = gradients.shape[1:3]
    zero = images.dtype.type(0)
    run = right * channels if stride[1] == 1 else channels
    pieces = right * channels // run
    for record in range(records):
        target = images[record].reshape(height * width * channels)
        target[:] = zero
        for i in range(down):
            given, where = gradients[record, i].reshape(-1), places[record, i].reshape(-1)
            for piece in range(pieces):
                gradient = given[piece * run : (piece + 1) * run]
                place = where[piece * run : (piece + 1) * run]
                for row in range(kernel[0]):
                    for column in range(kernel[1]):
                        across = piece * stride[1] + column
                        at = ((i * stride[0] + row) * width + across) * channels
                        values = target[at : at + run]
                        here = np.uint8(row * kernel[1] + column)
                        for k in range(run):
                            values[k] += gradient[k] if place[k] == here else zero
