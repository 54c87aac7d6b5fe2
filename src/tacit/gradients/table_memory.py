"""Where a gradient table lies: how much memory there is for it, or files in its place."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.errors import InputError

__all__ = ["available_bytes", "in_words", "mapped"]

_PROC = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def available_bytes(
    device: torch.device | str = "cpu", *, proc: Path = _PROC, groups: Path = _GROUPS
) -> int:
    """Bytes that could be allocated now without swapping, at most; an estimate, not a promise.

    On a CUDA device, its free memory. Else the least of what the system could give (Linux's
    `MemAvailable`; elsewhere all memory there is) and what is left under every memory limit of the
    process's control groups (cgroup v1 and v2).

    Args:
        device: where the tensors would lie.
        proc: where the proc file system lies.
        groups: where the control groups lie.
    """
    device = torch.device(device)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min([_system_bytes(proc), *_group_bytes(proc, groups)])


def in_words(count: float) -> str:
    """A number of bytes for people, decimal units: `64.3 MB`."""
    power = 0
    while count >= 1000 and power < len(_UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.3g} {_UNITS[power]}"


def mapped(
    directory: Path, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Tensors of zeros that lie in files `NAME.bin`, new ones, readable by their owner only.

    The space is reserved, so that a full disk is found here and not at a later write.

    Raises:
        InputError: on `algorithm.table_directory` if the files cannot be made.
    """
    kind = np.dtype(str(dtype).removeprefix("torch."))
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return {
            name: _file_of_zeros(directory / f"{name}.bin", shape, kind)
            for name, shape in shapes.items()
        }
    except OSError as error:
        wanted = in_words(sum(math.prod(shape) for shape in shapes.values()) * kind.itemsize)
        raise InputError(
            "algorithm.table_directory",
            str(directory),
            f"must be a folder to write {wanted} of gradients into ({error.strerror or error})",
        ) from None


def _file_of_zeros(path: Path, shape: tuple[int, ...], kind: np.dtype[Any]) -> Tensor:
    # Another table may still hold a file of this name: it keeps what it has.
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        size = math.prod(shape) * kind.itemsize
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
        else:
            os.truncate(file, size)
    finally:
        os.close(file)
    return torch.from_numpy(np.memmap(path, kind, "r+", shape=shape))


def _system_bytes(proc: Path) -> int:
    for line in _lines(proc / "meminfo"):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _group_bytes(proc: Path, groups: Path) -> Iterator[int]:
    """What is left under each limit, from the process's group up to the root."""
    for line in _lines(proc / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, limit, used = groups, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root = groups / "memory"
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        inner = root / path.lstrip("/")
        # A container sees its own group as the root, whatever path it is told.
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(root):
                values = [next(iter(_lines(folder / name)), "max") for name in (limit, used)]
                if all(value.isdecimal() for value in values):
                    yield max(0, int(values[0]) - int(values[1]) + _cached(folder))


def _cached(folder: Path) -> int:
    """What a group holds of files and would give up first; its usage counts it."""
    counts = dict(line.split() for line in _lines(folder / "memory.stat"))
    return int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
