"""Checkpoints: the explicit state of an algorithm, written so that a kill leaves the last intact.

A checkpoint holds private state (un-noised momentum has none here, but later algorithms' tables
do): it is the node's own, and not covered by epsilon. It belongs to the process that wrote it, for
its nodes and in its run, and is never taken from elsewhere.

A digest of all that it holds stands in it, and tells damage. It has no secret: whoever may write
to the folder can forge it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from tacit.base.plain_files import check_plain
from tacit.base.private_files import plain_errors, remove_files, sync_folder, write_private
from tacit.errors import FormatError, InputError

FORMAT_VERSION = 1
KEPT = 2
_NAME = re.compile(r"checkpoint-(\d+)\.safetensors")
_SET_ASIDE = re.compile(r"checkpoint-(\d+)\.earlier-\d+\.safetensors")


class DamagedError(InputError):
    """A checkpoint is not what was written."""


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on.

    Args:
        step: steps completed.
        tensors: the algorithm's state by field, and what the exchange counted.
        digest: of the plan it belongs to, and of which of its nodes.
        run: identity of the run in its ledger; empty where nothing is accounted.
    """

    step: int
    tensors: Mapping[str, Tensor]
    seconds: float
    digest: str
    run: str = ""


def write(
    folder: Path, checkpoint: Checkpoint, *, keep: int | None = None, settled: bool = True
) -> Path:
    """Write durably under a temporary name, then rename; then delete what is older.

    The one before stays as well, and so do those of step `keep` and later, however many they are.
    Unless `settled`, its new name is on the disk only when the caller has called `sync_folder`, and
    it is written over the one before that: none but the last can be gone on from.

    Raises:
        InputError: it cannot be written; the older ones are as they were.
    """
    path = file_of(folder, checkpoint.step)
    metadata = {
        "format_version": str(FORMAT_VERSION),
        "step": str(checkpoint.step),
        "seconds": repr(checkpoint.seconds),
        "digest": checkpoint.digest,
        "run": checkpoint.run,
    }
    tensors = {name: value.contiguous().cpu() for name, value in checkpoint.tensors.items()}
    with plain_errors("checkpoint", path):
        arrays = {name: value.numpy() for name, value in tensors.items()}
        content = save(arrays, {**metadata, "content": _content(metadata, tensors)})
        older = [other for other in _all(folder) if _step(other) < checkpoint.step]
        unneeded = [old for old in older[: 1 - KEPT] if keep is None or _step(old) < keep]
        over = None if settled or not unneeded else unneeded.pop()
        write_private(path, content, settled=settled, over=over)
        for old in unneeded:  # without waiting for the disk: one that comes back does no harm
            old.unlink()
    return path


def file_of(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return folder / f"checkpoint-{step:08d}.safetensors"


def whole(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder that are not damaged; none where it is missing."""
    steps = []
    for path in _all(folder) if folder.is_dir() else ():
        with suppress(DamagedError):
            _read_whole(path)
            steps.append(_step(path))
    return steps


def sound(folder: Path, digest: str, run: str | None = None) -> tuple[list[int], list[str]]:
    """Which checkpoints of a run folder can be gone on from, and the names of the damaged ones.

    The first are given by their steps, ascending. All must have this `digest`, and belong to the
    run of this identity; None: to any.

    Raises:
        InputError: one belongs to another experiment, data set or run; or all are damaged.
    """
    steps, damaged = [], []
    reason = ""
    found = _all(folder)
    if found:  # a process that was killed may have renamed one, and not waited for the disk
        sync_folder(folder)
    for path in found:
        try:
            steps.append(read(path, digest, run).step)
        except DamagedError as error:
            damaged.append(path.name)
            reason = error.expected
    if damaged and not steps:
        expected = f"{reason}, and there is no older one: put a copy of it back, or delete it to "
        expected += "begin again with step 0, where what was charged stays charged"
        raise InputError("checkpoint", str(folder / damaged[-1]), expected)
    return steps, damaged


def set_aside(folder: Path, *, after: int) -> None:
    """Rename checkpoints of later steps, which are about to be run again.

    They belong to the run as it went before, whose state must not be mixed with that of the run as
    it goes on; under their new names, `checkpoint-STEP.earlier-1.safetensors`, they are kept, and
    taken for nothing else.
    """
    with plain_errors("checkpoint", folder):
        for path in _all(folder):
            if _step(path) > after:
                number = 1
                while (kept := path.with_suffix(f".earlier-{number}.safetensors")).exists():
                    number += 1
                path.rename(kept)


def discard_set_aside(folder: Path, *, until: int) -> None:
    """Delete what was set aside, of steps that every process has got to again."""
    matches = {path.name: _SET_ASIDE.fullmatch(path.name) for path in folder.iterdir()}
    passed = [name for name, match in matches.items() if match and int(match[1]) <= until]
    with plain_errors("checkpoint", folder):
        remove_files(folder, *passed)


def latest(folder: Path) -> Path | None:
    """The newest checkpoint of a run folder."""
    checkpoints = _all(folder)
    return checkpoints[-1] if checkpoints else None


def read(path: Path, digest: str, run: str | None = None) -> Checkpoint:
    """Read a checkpoint of the plan and nodes of this digest.

    It must belong to the run of this identity; None: to any.

    Raises:
        DamagedError: it is not what was written, or has another format version by damage.
        FormatError: another version of tacit wrote it.
        InputError: it belongs to another plan, to other nodes or to another run.
    """
    metadata, tensors = _read_whole(path)
    if metadata["digest"] != digest:
        raise InputError("checkpoint", str(path), "belongs to another experiment or data set")
    if run not in (None, metadata["run"]):
        raise InputError("checkpoint", str(path), "belongs to another run of this experiment")
    seconds = float(metadata["seconds"])
    return Checkpoint(int(metadata["step"]), tensors, seconds, digest, metadata["run"])


def _read_whole(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """What a file holds, of whichever run it is; raises a `DamagedError` as `read` does."""
    try:
        check_plain(path)
        with safe_open(str(path), framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        noted = metadata.pop("content", None)
    # A damaged header may name what is not there, or sizes and types that no tensor has.
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DamagedError("checkpoint", str(path), f"cannot be read ({reason})") from None
    version = metadata.get("format_version")
    whole = noted == _content(metadata, tensors)
    if version != str(FORMAT_VERSION) and whole:  # no older one stands for it
        raise FormatError(str(path), version, FORMAT_VERSION)
    if not whole or metadata["step"] != str(_step(path)):
        raise DamagedError("checkpoint", str(path), "is damaged: its digest does not match")
    return metadata, tensors


def _content(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _step(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return -1 if match is None else int(match[1])


def _all(folder: Path) -> list[Path]:
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=_step)
