"""MNIST and Fashion-MNIST: four IDX files, looked for in a folder, otherwise downloaded.

An IDX file is a big-endian header and an array of numbers. The header is two zero bytes, one byte
for the type of the numbers (08, unsigned bytes, in all of these files), one for the number of
dimensions, then each dimension as an unsigned 32-bit number (Y. LeCun, the MNIST page). Whether a
file is compressed is read from its content, since its name is not always right. No more is read
than the header announces, and a byte to see that nothing follows.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch

from tacit.data.datasets import Dataset, TaskData
from tacit.data.files import UNREADABLE, PublishedFile, check_size, content, obtain
from tacit.errors import InputError

_WHERE = "task.data_dir"
_START = b"\0\0\x08"  # unsigned bytes


def read_idx(path: Path, rank: int | None = None) -> np.ndarray:
    """The array of unsigned bytes in an IDX file, plain or gzip.

    It must have `rank` dimensions; None takes any number.

    Raises:
        InputError: if the file cannot be read, is no IDX file of unsigned bytes, has another rank,
            or holds fewer or more bytes than its header says.
    """
    try:
        with content(path) as (stream, packed):
            return _array(path, stream, packed, rank)
    except UNREADABLE as error:
        reason = f"a readable IDX file was expected: {type(error).__name__}: {error}"
        raise InputError(_WHERE, str(path), reason) from error


def _array(path: Path, stream: IO[bytes], packed: bool, rank: int | None) -> np.ndarray:
    first = stream.read(4)
    if len(first) < 4 or first[:3] != _START:
        found = first.hex() or "an empty file"
        expected = f"an IDX file of unsigned bytes starts with 000008 and a rank, not {found}"
        raise InputError(_WHERE, str(path), expected)
    found_rank = first[3]
    if rank is not None and found_rank != rank:
        expected = f"an array of {rank} dimensions was expected, found {found_rank}"
        raise InputError(_WHERE, str(path), expected)

    sizes = stream.read(4 * found_rank)
    start = 4 + 4 * found_rank
    if len(sizes) < start - 4:
        expected = f"a header of {start} bytes was expected, found {4 + len(sizes)} (truncated)"
        raise InputError(_WHERE, str(path), expected)
    shape = struct.unpack(f">{found_rank}I", sizes)
    size = math.prod(shape)
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
        return np.frombuffer(numbers, np.uint8).reshape(shape).copy()
    except ValueError as error:  # more dimensions, or larger ones, than numpy can address
        raise InputError(_WHERE, str(path), f"an array was expected, but {error}") from error


def read_labelled_images(
    images: Path, labels: Path, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 `[records, height, width]` and labels uint8 `[records]` of two IDX files.

    Raises:
        InputError: as `read_idx`; also if the images have another height and width than
            `shape`, or the two files differ in records.
    """
    pixels, classes = read_idx(images, rank=3), read_idx(labels, rank=1)
    if pixels.shape[1:] != shape:
        expected = "images of {} x {} were expected, found {} x {}".format(
            *shape, *pixels.shape[1:]
        )
        raise InputError(_WHERE, str(images), expected)
    if len(pixels) != len(classes):
        expected = f"{len(pixels)} labels were expected for {images.name}, found {len(classes)}"
        raise InputError(_WHERE, str(labels), expected)
    return pixels, classes


_SHAPE = (28, 28)
_CLASSES = 10
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@dataclass(frozen=True)
class IdxImages:
    """A data set of images in four IDX files, each at `url` as `<file>.gz`.

    `sha256` is of the content (decompressed) of each. `takes_bare_files`: whether a file that lies
    in `data_dir` itself is taken for this data set. Both data sets use the same file names, so only
    one can have them; the other needs a folder of its name.
    """

    name: str
    url: str
    sha256: tuple[str, ...]
    takes_bare_files: bool


MNIST = IdxImages(
    name="mnist",
    url="https://ossci-datasets.s3.amazonaws.com/mnist/",
    sha256=(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    takes_bare_files=True,
)

FASHION_MNIST = IdxImages(
    name="fashion-mnist",
    url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    sha256=(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    takes_bare_files=False,
)


def load_idx_images(source: IdxImages, data_dir: Path) -> TaskData:
    """Read a data set of images: inputs float32 `[records, 1, 28, 28]` in [0, 1], targets int64.

    Raises:
        InputError: if a file is wrong, or is missing and cannot be downloaded.
    """
    own, named = data_dir / source.name, data_dir.resolve().name
    others = {other.name for other in (MNIST, FASHION_MNIST)} - {source.name}
    # A folder that is named like the other data set surely holds the other's files.
    bare = named == source.name or (source.takes_bare_files and named not in others)
    folders = [own, data_dir] if bare else [own]
    advice = f"put the four {source.name} files in {own}"
    published = (
        PublishedFile(source.name, f"{source.url.rstrip('/')}/{file}.gz", sha256)
        for file, sha256 in zip(FILES, source.sha256, strict=True)
    )
    paths = (obtain(file, data_dir, folders, advice) for file in published)
    halves = []
    for images in paths:
        pixels, classes = read_labelled_images(images, next(paths), _SHAPE)
        inputs = torch.from_numpy(pixels).unsqueeze(1).to(torch.float32).div_(255)
        halves.append(Dataset(inputs, torch.from_numpy(classes).to(torch.int64)))
    return TaskData(source.name, halves[0], halves[1], classes=_CLASSES)
