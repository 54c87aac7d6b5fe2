"""Reads IDX files, the format of MNIST: a big-endian header and an array of numbers.

The header is two zero bytes, one byte for the type of the numbers, one for the number of
dimensions, then each dimension as an unsigned 32-bit number (Y. LeCun, the MNIST page).
Whether a file is compressed is read from its content, since its name is not always right. No more
is read than the header announces, and a byte to see that nothing follows.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import IO

import numpy as np

from tacit.data.bounded import UNREADABLE, check_size, content
from tacit.errors import InputError

__all__ = ["read_idx", "read_labelled_images"]

_WHERE = "task.data_dir"
_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path, rank: int | None = None) -> np.ndarray:
    """The array in an IDX file, plain or gzip, in native byte order.

    Args:
        path: the file.
        rank: how many dimensions it must have; None for any number.

    Raises:
        InputError: if the file cannot be read, is no IDX file, has another rank, or holds
            fewer or more bytes than its header says.
    """
    try:
        with content(path) as (stream, packed):
            return _array(path, stream, packed, rank)
    except UNREADABLE as error:
        reason = f"a readable IDX file was expected: {type(error).__name__}: {error}"
        raise InputError(_WHERE, str(path), reason) from error


def _array(path: Path, stream: IO[bytes], packed: bool, rank: int | None) -> np.ndarray:
    first = stream.read(4)
    if len(first) < 4 or first[:2] != b"\0\0" or first[2] not in _TYPES:
        found = first.hex() or "an empty file"
        types = ", ".join(f"{code:02x}" for code in _TYPES)
        expected = f"an IDX file starts with 0000, a type ({types}) and a rank, not {found}"
        raise InputError(_WHERE, str(path), expected)
    dtype, found_rank = np.dtype(_TYPES[first[2]]), first[3]
    if rank is not None and found_rank != rank:
        expected = f"an array of {rank} dimensions was expected, found {found_rank}"
        raise InputError(_WHERE, str(path), expected)

    sizes = stream.read(4 * found_rank)
    start = 4 + 4 * found_rank
    if len(sizes) < start - 4:
        expected = f"a header of {start} bytes was expected, found {4 + len(sizes)} (truncated)"
        raise InputError(_WHERE, str(path), expected)
    shape = struct.unpack(f">{found_rank}I", sizes)
    size = dtype.itemsize * math.prod(shape)
    there = path.stat().st_size
    if packed:
        check_size(size, there)
        numbers = stream.read(size + 1)
        length = start + len(numbers)
    else:
        length = there
        if length == start + size:
            check_size(size)
            numbers = stream.read()
    if length != start + size:
        fault = "truncated" if length < start + size else "trailing data"
        shown = " x ".join(map(str, shape)) or "a single number"
        expected = f"{start + size} bytes were expected for {shown}, found {length} ({fault})"
        raise InputError(_WHERE, str(path), expected)
    try:
        array = np.frombuffer(numbers, dtype).reshape(shape)
    except ValueError as error:  # more dimensions, or larger ones, than numpy can address
        raise InputError(_WHERE, str(path), f"an array was expected, but {error}") from error
    return array.astype(dtype.newbyteorder("="))


def read_labelled_images(
    images: Path, labels: Path, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 `[records, height, width]` and labels uint8 `[records]` of two IDX files.

    Raises:
        InputError: as `read_idx`; also if the images have another height and width than
            `shape`, the numbers are no unsigned bytes, or the two files differ in records.
    """
    pixels, classes = read_idx(images, rank=3), read_idx(labels, rank=1)
    for path, array in ((images, pixels), (labels, classes)):
        if array.dtype != np.uint8:
            expected = f"unsigned bytes were expected, found {array.dtype}"
            raise InputError(_WHERE, str(path), expected)
    if pixels.shape[1:] != shape:
        expected = "images of {} x {} were expected, found {} x {}".format(
            *shape, *pixels.shape[1:]
        )
        raise InputError(_WHERE, str(images), expected)
    if len(pixels) != len(classes):
        expected = f"{len(pixels)} labels were expected for {images.name}, found {len(classes)}"
        raise InputError(_WHERE, str(labels), expected)
    return pixels, classes
