"""CIFAR-10: 60,000 colour images of 32 x 32 in 10 classes (A. Krizhevsky, 2009).

The Python archive (`cifar-10-python.tar.gz`) is read where it lies, nothing of it is unpacked to a
disk, or the folder that it unpacks to (`cifar-10-batches-py`). It holds pickles, which could run
any code; `python_batch` reads them without looking up a single name.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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
    obtain,
    read_content,
)
from tacit.errors import InputError, describe

ARCHIVE = PublishedFile(
    "cifar10",
    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    digest=file_sha256,
)
"""What is downloaded, of 171 MB."""
FOLDER = "cifar-10-batches-py"

_WHERE = "task.data_dir"
_CLASSES = 10
_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_MOST_BYTES = 1 << 26  # the published batches hold 31 million
_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
_TEST = ("test_batch",)

Batch = tuple[np.ndarray, np.ndarray]
"""Pixels uint8 `[records, 3072]`, and labels int64 `[records]`."""


def python_batch(content: bytes) -> Batch:
    """A batch: a pickled dictionary with `data` and `labels`.

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


_NAMES: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy", "ndarray"): "ndarray",  # an argument of _reconstruct
    ("numpy", "dtype"): _Type,
}


class _Restricted(pickle.Unpickler):
    """Reads pickles whose names are all known."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs")
        return _NAMES[module, name]


def load_cifar10(data_dir: Path, archive: PublishedFile = ARCHIVE) -> TaskData:
    """Read CIFAR-10: inputs float32 `[records, 3, 32, 32]` in [0, 1], targets int64 `[records]`.

    The folder or archive lies in the folder `cifar10` of `data_dir`, or in that itself; if neither
    does, the archive is downloaded to the former.

    Raises:
        InputError: on `task.data_dir`, if a file is wrong, or missing and cannot be downloaded.
    """
    folders = [data_dir / "cifar10", data_dir]
    unpacked = next((folder / FOLDER for folder in folders if os.path.isdir(folder / FOLDER)), None)
    if unpacked is not None:
        source = _from_folder(unpacked)
    else:
        advice = f"put the archive {archive.name} in {folders[0]}"
        source = _from_archive(obtain(archive, data_dir, folders, advice))
    train, test = (_half(source, names) for names in (_TRAIN, _TEST))
    return TaskData("cifar10", train, test, classes=_CLASSES)


Source = Callable[[str], tuple[str, bytes]]
"""Of the name of a batch, where it lies in words, and its content."""


def _half(source: Source, names: Iterable[str]) -> Dataset:
    pixels, labels = [], []
    for name in names:
        where, content = source(name)
        try:
            batch = python_batch(content)
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


def _from_archive(path: Path) -> Source:
    """The batches of an archive, read in one pass: going back would decompress it again."""
    wanted = {f"{FOLDER}/{name}" for name in (*_TRAIN, *_TEST)}
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
        if f"{FOLDER}/{name}" not in contents:
            raise InputError(_WHERE, str(path), f"must hold {FOLDER}/{name}")
        return f"{path}: {FOLDER}/{name}", contents[f"{FOLDER}/{name}"]

    return read


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Say what was expected where a file cannot be read."""
    try:
        yield
    except (*UNREADABLE, tarfile.TarError) as error:
        reason = f"a file of CIFAR-10 was expected: {type(error).__name__}: {error}"
        raise InputError(_WHERE, str(path), reason) from error
