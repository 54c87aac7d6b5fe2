"""Where a gradient table lies: how much memory there is for it, or files in its place."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.free_memory import host_bytes, in_words

__all__ = ["available_bytes", "mapped"]

_PROC = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")


def available_bytes(
    device: torch.device | str = "cpu", *, proc: Path = _PROC, groups: Path = _GROUPS
) -> int:
    """Bytes that could be allocated now without swapping, at most; an estimate, not a promise.

    On a CUDA device, its free memory; else the host's, see `tacit.free_memory`.

    Args:
        device: where the tensors would lie.
        proc: where the proc file system lies.
        groups: where the control groups lie.
    """
    device = torch.device(device)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return host_bytes(proc=proc, groups=groups)


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
