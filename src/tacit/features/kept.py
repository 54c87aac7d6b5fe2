"""Features of a node that are kept in a file, so that they need not be computed again.

They say as much as the records that they are made of: files are their owner's alone, in the
folder that `[task].features_cache` names, and whoever deletes the records deletes them too. A file
is named after the node, its records and the map. It is used only if all of these are as they were:

- the digest of the node's records, in their order, and the digest of what the map gives for the
  first and the last block of them, which are computed anew;
- shape, type and digest of the features in the file, as they were written.

Any other file is no error: features are computed, and the file is replaced. Files of the same node
with other records are removed. Of several processes that share a folder one computes a node's
features, and the others wait for it. The digests have no secret: they tell damage and change, and
whoever may write to the folder can forge them, as they could the records.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tacit.base.plain_files import check_plain
from tacit.base.private_files import make_private_folder, plain_errors, remove_files, write_private
from tacit.features.maps import FeatureMap

_WHERE = "task.features_cache"
_FORMAT = "1"
_SIZE = 16
_ROOM = 4096  # bytes of a header, at most
_NAME = re.compile(r"node-(\d+)-([0-9a-f]{32})-([0-9a-f]{32})\.safetensors")

Read = Callable[[slice], Tensor]
"""Some of a node's inputs, by their numbers."""


class Kept:
    """A folder of features, its owner's alone, which is made where it is missing.

    Raises:
        InputError: on `task.features_cache`, if it cannot be made.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        with plain_errors(_WHERE, self.folder):
            make_private_folder(self.folder)

    def write(
        self, features: FeatureMap, node: int, stored: Tensor, read: Read, out: Tensor
    ) -> None:
        """Write a node's features as `FeatureMap.write` does, from the right file if there is one.

        `stored` are the node's records as they are kept, `[records, ...]`, and `read` gives some of
        them as the map takes them. Features are written into `out`, `[records, *shape]`.

        Raises:
            InputError: on `task.features_cache`, if a file cannot be written.
        """
        records, ends = _digest(stored), _ends(features, read, len(out))
        name = f"node-{node}-{records}-{ends}.safetensors"
        path = self.folder / name
        with self._alone(node):
            with plain_errors(_WHERE, path):
                self._remove_others(node, records)
                if _restore(path, out):
                    return
            features.write(read, len(out), out)
            values = out.detach().to("cpu").contiguous()
            metadata = {"format_version": _FORMAT, "content": _digest(values)}
            with plain_errors(_WHERE, path):
                write_private(path, save({"features": values}, metadata))

    @contextmanager
    def _alone(self, node: int) -> Iterator[None]:
        """Keep other processes from a node's files; one that waits finds them made."""
        path = self.folder / f"node-{node}.lock"
        with plain_errors(_WHERE, path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(
                    descriptor, fcntl.LOCK_EX
                )  # it ends with the process, however that ends
            except BaseException:
                os.close(descriptor)
                raise
        try:
            yield
        finally:
            os.close(descriptor)

    def _remove_others(self, node: int, records: str) -> None:
        """Remove what is kept of records that the node no longer has."""
        found = map(_NAME.fullmatch, os.listdir(self.folder))
        gone = [
            match[0]
            for match in found
            if match is not None and match[1] == str(node) and match[2] != records
        ]
        remove_files(self.folder, *gone)


def _ends(features: FeatureMap, read: Read, records: int) -> str:
    """A digest of what a map gives for the first and the last records, and of what it is."""
    found = hashlib.blake2b(digest_size=_SIZE)
    found.update(f"{features.name} {features.identity} {features.shape} {features.dtype}".encode())
    last = (records - 1) // features.block * features.block
    for start in sorted({0, last}):
        stop = min(start + features.block, records)
        made = torch.empty(stop - start, *features.shape, dtype=features.dtype)
        inputs = read(slice(start, stop))
        features.write(inputs.__getitem__, len(inputs), made)
        found.update(_digest(made).encode())
    return found.hexdigest()


def _restore(path: Path, out: Tensor) -> bool:
    """Whether a file holds what was written into it, and that is now in `out`."""
    size = out.numel() * out.element_size()
    try:
        if path.is_symlink() or not 0 <= path.stat().st_size - size <= _ROOM:
            return False
        check_plain(path)
        with safe_open(str(path), framework="pt") as file:
            written = file.metadata() or {}
            if written.get("format_version") != _FORMAT or list(file.keys()) != ["features"]:
                return False
            values = file.get_tensor("features")
    except (OSError, SafetensorError, RuntimeError):
        return False
    fits = values.shape == out.shape and values.dtype == out.dtype
    if not fits or _digest(values) != written.get("content"):
        return False
    out.copy_(values)
    return True


def _digest(values: Tensor) -> str:
    """Of the bytes of a tensor, its shape and its type."""
    plain = values.detach().to("cpu").contiguous()
    found = hashlib.blake2b(f"{plain.dtype} {list(plain.shape)} ".encode(), digest_size=_SIZE)
    found.update(plain.view(-1).view(torch.uint8).numpy().data if plain.numel() else b"")
    return found.hexdigest()
