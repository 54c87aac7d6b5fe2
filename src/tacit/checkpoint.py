"""Checkpoints: the explicit state of an algorithm, written so that a kill leaves the last intact.

A checkpoint holds private state (un-noised momentum has none here, but later algorithms' tables
do): it is the node's own, and not covered by epsilon.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tacit.errors import InputError

__all__ = [
    "FORMAT_VERSION",
    "Checkpoint",
    "discard_set_aside",
    "latest",
    "path_of",
    "read",
    "set_aside",
    "steps",
    "write",
    "write_atomically",
]

FORMAT_VERSION = 1
KEPT = 2
_NAME = re.compile(r"checkpoint-(\d+)\.safetensors")
_SET_ASIDE = re.compile(r"checkpoint-(\d+)\.earlier-\d+\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on.

    Args:
        step: steps completed.
        tensors: the algorithm's state by field, and what the exchange counted.
        seconds: spent in training so far.
        digest: of the plan it belongs to.
    """

    step: int
    tensors: Mapping[str, Tensor]
    seconds: float
    digest: str


def write(folder: Path, checkpoint: Checkpoint, *, keep: int | None = None) -> Path:
    """Write durably under a temporary name, then rename; keeps the last two checkpoints.

    Args:
        folder: of the run.
        checkpoint: what to write.
        keep: a step; its checkpoint and later ones are kept as well, however many they are.
    """
    path = path_of(folder, checkpoint.step)
    metadata = {
        "format_version": str(FORMAT_VERSION),
        "step": str(checkpoint.step),
        "seconds": repr(checkpoint.seconds),
        "digest": checkpoint.digest,
    }
    tensors = {name: value.contiguous().cpu() for name, value in checkpoint.tensors.items()}
    write_atomically(path, save(tensors, metadata))
    for old in _all(folder)[:-KEPT]:
        if keep is None or _step(old) < keep:
            old.unlink(missing_ok=True)
    return path


def steps(folder: Path) -> list[int]:
    """Of the checkpoints of a run folder, ascending."""
    return [_step(path) for path in _all(folder)]


def path_of(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return folder / f"checkpoint-{step:08d}.safetensors"


def set_aside(folder: Path, *, after: int) -> None:
    """Rename checkpoints of later steps, which are about to be run again.

    They belong to the run as it went before, whose state must not be mixed with that of the run as
    it goes on; under their new names, `checkpoint-STEP.earlier-1.safetensors`, they are kept, and
    taken for nothing else.
    """
    for path in _all(folder):
        if _step(path) > after:
            number = 1
            while (kept := path.with_suffix(f".earlier-{number}.safetensors")).exists():
                number += 1
            path.rename(kept)


def discard_set_aside(folder: Path, *, until: int) -> None:
    """Delete what was set aside, of steps that every process has got to again."""
    for path in folder.iterdir():
        found = _SET_ASIDE.fullmatch(path.name)
        if found is not None and int(found[1]) <= until:
            path.unlink(missing_ok=True)


def latest(folder: Path) -> Path | None:
    """The newest checkpoint of a run folder."""
    found = _all(folder)
    return found[-1] if found else None


def read(path: Path, digest: str) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        InputError: it is damaged, of another format version, or belongs to another plan.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError("checkpoint", str(path), f"cannot be read ({error})") from None
    if metadata.get("format_version") != str(FORMAT_VERSION):
        raise InputError(
            "checkpoint",
            str(path),
            f"has format version {metadata.get('format_version')}; this is tacit for version "
            f"{FORMAT_VERSION}",
        )
    if metadata["digest"] != digest:
        raise InputError("checkpoint", str(path), "belongs to another experiment or data set")
    return Checkpoint(int(metadata["step"]), tensors, float(metadata["seconds"]), digest)


def write_atomically(path: Path, content: bytes) -> None:
    """The whole content or, whenever the process is killed, what was there before."""
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _step(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    assert found is not None
    return int(found[1])


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))
