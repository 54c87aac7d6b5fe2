"""Checkpoints: what is read back, which are kept, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tacit.checkpoint import (
    Checkpoint,
    discard_set_aside,
    latest,
    path_of,
    read,
    set_aside,
    steps,
    write,
    write_atomically,
)
from tacit.errors import InputError


def checkpoint(step: int) -> Checkpoint:
    tensors = {
        "x": torch.arange(6.0).reshape(2, 3) * step,
        "w": torch.tensor([0.1, 1 / 3], dtype=torch.float64),
        "empty": torch.zeros(2, 0),
        "transposed": torch.arange(6).reshape(2, 3).T,
    }
    return Checkpoint(step, tensors, seconds=step + 0.1, digest="d1")


def test_a_checkpoint_reads_back_bit_for_bit(tmp_path: Path) -> None:
    written = checkpoint(7)
    path = write(tmp_path, written)
    assert path == latest(tmp_path) == tmp_path / "checkpoint-00000007.safetensors"
    found = read(path, "d1")
    assert (found.step, found.seconds, found.digest) == (7, 7.1, "d1")
    assert found.tensors.keys() == written.tensors.keys()
    for name, value in written.tensors.items():
        assert found.tensors[name].dtype == value.dtype
        assert torch.equal(found.tensors[name], value)


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    assert latest(tmp_path) is None
    for step in (1, 9, 10, 100):
        write(tmp_path, checkpoint(step))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["checkpoint-00000010.safetensors", "checkpoint-00000100.safetensors"]
    newest = latest(tmp_path)
    assert newest is not None
    assert read(newest, "d1").step == 100


def test_what_a_kill_leaves_half_written_is_never_the_latest(tmp_path: Path) -> None:
    sound = write(tmp_path, checkpoint(3))
    (tmp_path / "checkpoint-00000004.safetensors.part").write_bytes(sound.read_bytes()[:50])
    assert latest(tmp_path) == sound
    after = write(tmp_path, checkpoint(4))
    assert latest(tmp_path) == after
    assert read(after, "d1").step == 4


@pytest.mark.parametrize("length", [0, 1, 7, 8, 40, -1])
def test_a_shortened_checkpoint_is_refused(tmp_path: Path, length: int) -> None:
    path = write(tmp_path, checkpoint(3))
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(InputError, match="cannot be read") as caught:
        read(path, "d1")
    assert caught.value.value == str(path)


def test_other_checkpoints_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, checkpoint(3))
    with pytest.raises(InputError, match="another experiment or data set"):
        read(path, "d2")
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "missing.safetensors", "d1")
    newer = tmp_path / "newer.safetensors"
    save_file({"x": torch.zeros(1)}, newer, {"format_version": "2", "digest": "d1"})
    with pytest.raises(InputError, match="has format version 2"):
        read(newer, "d1")
    foreign = tmp_path / "foreign.safetensors"
    save_file({"x": torch.zeros(1)}, foreign)
    with pytest.raises(InputError, match="has format version None"):
        read(foreign, "d1")


def test_writing_replaces_the_whole_file_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"first, and longer")
    write_atomically(path, b"second")
    assert path.read_bytes() == b"second"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]
    (tmp_path / "taken.part").mkdir()
    (tmp_path / "taken").write_bytes(b"before")
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "taken", b"after")
    assert (tmp_path / "taken").read_bytes() == b"before"


def test_later_checkpoints_are_set_aside_and_kept_until_all_have_got_as_far(tmp_path: Path) -> None:
    for step in (20, 40, 60):
        write(tmp_path, checkpoint(step), keep=0)
    before = {step: path_of(tmp_path, step).read_bytes() for step in (20, 40, 60)}
    set_aside(tmp_path, after=20)
    assert steps(tmp_path) == [20]
    assert latest(tmp_path) == path_of(tmp_path, 20)

    # The run goes on, and is cut off and set back once more: nothing is written over.
    write(tmp_path, replace(checkpoint(40), seconds=0.5), keep=0)
    again = path_of(tmp_path, 40).read_bytes()
    set_aside(tmp_path, after=20)
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("*.earlier-*.safetensors")}
    assert kept == {
        "checkpoint-00000040.earlier-1.safetensors": before[40],
        "checkpoint-00000040.earlier-2.safetensors": again,
        "checkpoint-00000060.earlier-1.safetensors": before[60],
    }
    assert path_of(tmp_path, 20).read_bytes() == before[20]

    discard_set_aside(tmp_path, until=0)
    assert len(list(tmp_path.iterdir())) == 4
    discard_set_aside(tmp_path, until=40)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "checkpoint-00000020.safetensors",
        "checkpoint-00000060.earlier-1.safetensors",
    ]
