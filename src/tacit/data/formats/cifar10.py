"""CIFAR-10: 60,000 colour images of 32 x 32 in 10 classes (A. Krizhevsky, 2009).

Both published versions are read, as a folder or as the archive: the binary one
(`cifar-10-batches-bin`, `cifar-10-binary.tar.gz`) and the Python one (`cifar-10-batches-py`,
`cifar-10-python.tar.gz`). An archive is read where it lies: nothing of it is unpacked to a disk.
The Python version holds pickles, which could run any code; `python_batch` reads them without
looking up a single name.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.data.datasets import Dataset, TaskData
from tacit.data.files import (
    UNREADABLE,
    PublishedFile,
    UnfitFileError,
    content,
    file_sha256,
    find_file,
    obtain,
    read_content,
)
from tacit.errors import InputError, describe

ARCHIVE = PublishedFile(
    "cifar10",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    digest=file_sha256,
)
"""What is downloaded: the binary version, 170 MB, since it holds numbers and nothing else."""

_WHERE = "task.data_dir"
_CLASSES = 10
_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_MOST_BYTES = 1 << 26  # the published batches hold 31 million
_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
_TEST = ("test_batch",)

Batch = tuple[np.ndarray, np.ndarray]
"""Pixels uint8 `[records, 3072]`, and labels int64 `[records]`."""


@dataclass(frozen=True)
class Version:
    """One of the two ways in which the images are published.

    Args:
        folder: that the archive unpacks to.
        archive: its name.
        suffix: of the names of its batches.
        read: the content of one batch; raises ValueError, saying what would be right.
    """

    folder: str
    archive: str
    suffix: str
    read: Callable[[bytes], Batch]


def binary_batch(content: bytes) -> Batch:
    """A batch of the binary version: one byte of label, then 3,072 of pixels, a record.

    Raises:
        ValueError: if it is empty or does not end with a record.
    """
    size = 1 + _PIXELS
    if not content or len(content) % size:
        raise ValueError(f"a multiple of {size} bytes was expected, found {len(content)}")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    return records[:, 1:], records[:, 0].astype(np.int64)


def python_batch(content: bytes) -> Batch:
    """A batch of the Python version: a pickled dictionary with `data` and `labels`.

    A pickle names functions and calls them. Here the three names that the published files use
    stand for others that only keep what they are given, and every other name is refused, so that
    the file decides nothing but numbers.

    Raises:
        ValueError: if it is no pickle, asks for another name, or holds something else.
    """
    try:
        _check_places(content)
        loaded = _Restricted(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(f"a batch of CIFAR-10 was expected: {describe(error)}") from error
    match loaded:
        case {b"data": _Array(state=state), b"labels": list(labels)}:
            pixels = _pixels(state)
        case _:
            raise ValueError("a dictionary with an array 'data' and a list 'labels' was expected")
    if len(labels) != len(pixels) or not all(type(label) is int for label in labels):
        raise ValueError(f"{len(pixels)} whole numbers were expected as labels")
    return pixels, np.array(labels, dtype=np.int64)


def _check_places(content: bytes) -> None:
    """Refuse a pickle that keeps what it reads at a place beyond its own length.

    Python makes room for all places below, so that five bytes would take 64 GiB.
    """
    for operation, argument, _ in pickletools.genops(content):
        if operation.name.endswith("PUT") and int(argument or 0) > len(content):
            raise ValueError("its memo is longer than the pickle")


def _pixels(state: Any) -> np.ndarray:
    """The array of bytes that a pickled numpy array describes."""
    match state:
        case (int(), (int(records), 3072), _Type(name=b"u1"), False | 0, bytes(raw)):
            if records * _PIXELS == len(raw) > 0:
                return np.frombuffer(raw, np.uint8).reshape(records, _PIXELS)
    raise ValueError(f"'data' must be unsigned bytes of shape (records, {_PIXELS})")


class _Array:
    """Stands for a numpy array in a pickle: its version, shape, type, order and bytes."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Type:
    """Stands for a numpy type in a pickle; only its name matters."""

    def __init__(self, name: Any = None, *_: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        """The byte order and the like: bytes have none."""


def _reconstruct(*_: Any) -> _Array:
    return _Array()


_NAMES: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): "ndarray",  # an argument of _reconstruct
    ("numpy", "dtype"): _Type,
}


class _Restricted(pickle.Unpickler):
    """Reads pickles whose names are all known."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs")
        return _NAMES[module, name]


VERSIONS = (
    Version("cifar-10-batches-bin", "cifar-10-binary.tar.gz", ".bin", binary_batch),
    Version("cifar-10-batches-py", "cifar-10-python.tar.gz", "", python_batch),
)
"""Best first."""


def load_cifar10(data_dir: Path, archive: PublishedFile = ARCHIVE) -> TaskData:
    """Read CIFAR-10: inputs float32 `[records, 3, 32, 32]` in [0, 1], targets int64 `[records]`.

    A folder or archive of either version lies in the folder `cifar10` of `data_dir`, or in that
    itself; if none does, the binary archive is downloaded to the former.

    Raises:
        InputError: on `task.data_dir`, if a file is wrong, or missing and cannot be downloaded.
    """
    folders = [data_dir / "cifar10", data_dir]
    for version in VERSIONS:
        for folder in folders:
            if os.path.isdir(folder / version.folder):
                return _load(version, _from_folder(folder / version.folder))
    for version in VERSIONS:
        packed = find_file([version.archive], folders)
        if packed is not None:
            return _load(version, _from_archive(packed, version.folder))
    advice = f"put the archive {VERSIONS[0].archive} or {VERSIONS[1].archive} in {folders[0]}"
    found = obtain(archive, data_dir, folders, advice)
    return _load(VERSIONS[0], _from_archive(found, VERSIONS[0].folder))


Source = Callable[[str], tuple[str, bytes]]
"""Of the name of a batch, where it lies in words, and its content."""


def _load(version: Version, source: Source) -> TaskData:
    train, test = (
        _half(version, source, [f"{name}{version.suffix}" for name in names])
        for names in (_TRAIN, _TEST)
    )
    return TaskData("cifar10", train, test, classes=_CLASSES)


def _half(version: Version, source: Source, names: Iterable[str]) -> Dataset:
    pixels, labels = [], []
    for name in names:
        where, content = source(name)
        try:
            batch = version.read(content)
        except ValueError as error:
            raise InputError(_WHERE, where, str(error)) from error
        pixels.append(batch[0])
        labels.append(batch[1])
    inputs = torch.from_numpy(np.concatenate(pixels)).reshape(-1, *_SHAPE)
    return Dataset(inputs.to(torch.float32).div_(255), torch.from_numpy(np.concatenate(labels)))


def _from_folder(folder: Path) -> Source:
    def read(name: str) -> tuple[str, bytes]:
        path = folder / name
        with _readable(path):
            return str(path), read_content(path, _MOST_BYTES)

    return read


def _from_archive(path: Path, folder: str) -> Source:
    """The batches of an archive, read in one pass: going back would decompress it again."""
    wanted = {f"{folder}/{name}{suffix}" for name in (*_TRAIN, *_TEST) for suffix in ("", ".bin")}
    contents: dict[str, bytes] = {}
    with (
        _readable(path),
        content(path) as (stream, _),
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        for member in archive:
            name = member.name.removeprefix("./")
            file = archive.extractfile(member) if name in wanted and member.isfile() else None
            if file is not None:
                if member.size > _MOST_BYTES:
                    raise UnfitFileError(f"{name} announces {member.size} bytes, no batch")
                contents[name] = file.read()

    def read(name: str) -> tuple[str, bytes]:
        if f"{folder}/{name}" not in contents:
            raise InputError(_WHERE, str(path), f"must hold {folder}/{name}")
        return f"{path}: {folder}/{name}", contents[f"{folder}/{name}"]

    return read


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Say what was expected where a file cannot be read."""
    try:
        yield
    except (*UNREADABLE, tarfile.TarError) as error:
        reason = f"a file of CIFAR-10 was expected: {type(error).__name__}: {error}"
        raise InputError(_WHERE, str(path), reason) from error
