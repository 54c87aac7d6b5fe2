"""Checkpoints: what is read back, which are kept, what is gone back to, and what is refused."""

import shutil
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from few import few
from tacit.errors import FormatError, InputError
from tacit.training.run_folder.checkpoint import (
    Checkpoint,
    DamagedError,
    _content,
    discard_set_aside,
    file_of,
    latest,
    read,
    set_aside,
    sound,
    write,
)


def checkpoint(step):
    tensors = {
        "x": torch.arange(6.0).reshape(2, 3) * step,
        "w": torch.tensor([0.1, 1 / 3], dtype=torch.float64),
        "empty": torch.zeros(2, 0),
        "alone": torch.tensor(3),
        "flags": torch.tensor([True, False]),
        "transposed": torch.arange(6).reshape(2, 3).T,
    }
    return Checkpoint(step, tensors, seconds=step + 0.1, digest="d1", run="r1")


def test_a_checkpoint_reads_back_bit_for_bit(tmp_path):
    written = checkpoint(7)
    path = write(tmp_path, written)
    assert path == latest(tmp_path) == tmp_path / "checkpoint-00000007.safetensors"
    assert path.stat().st_mode & 0o777 == 0o600
    found = read(path, "d1", "r1")
    assert (found.step, found.seconds, found.digest, found.run) == (7, 7.1, "d1", "r1")
    assert found.tensors.keys() == written.tensors.keys()
    for name, value in written.tensors.items():
        assert found.tensors[name].dtype == value.dtype
        assert torch.equal(found.tensors[name], value)


def test_the_newest_two_are_kept(tmp_path):
    assert latest(tmp_path) is None
    for step in (1, 9, 10, 100):
        write(tmp_path, checkpoint(step))
    assert sound(tmp_path, "d1", "r1") == ([10, 100], [])
    newest = latest(tmp_path)
    assert newest is not None
    assert read(newest, "d1").step == 100


def test_one_that_was_just_written_is_kept_whatever_lies_beyond(tmp_path):
    """A run that went back behind damaged checkpoints must not delete its new ones."""
    for step in (40, 50, 60):
        write(tmp_path, checkpoint(step), keep=0)
    for step in (50, 60):
        file_of(tmp_path, step).write_bytes(b"damaged")
    write(tmp_path, checkpoint(45))
    assert sound(tmp_path, "d1", "r1")[0] == [40, 45]


def test_what_a_kill_leaves_half_written_is_never_the_latest(tmp_path):
    whole = write(tmp_path, checkpoint(3))
    (tmp_path / "checkpoint-00000004.safetensors.part").write_bytes(whole.read_bytes()[:50])
    assert latest(tmp_path) == whole
    after = write(tmp_path, checkpoint(4))
    assert latest(tmp_path) == after
    assert read(after, "d1").step == 4


def test_one_that_cannot_be_written_costs_no_older_one(tmp_path):
    for step in (1, 2):
        write(tmp_path, checkpoint(step))
    (tmp_path / "checkpoint-00000003.safetensors.part").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        write(tmp_path, checkpoint(3))
    assert sound(tmp_path, "d1", "r1") == ([1, 2], [])


@pytest.mark.parametrize("length", [0, 1, 7, 8, 40, -1])
def test_a_shortened_checkpoint_is_refused(tmp_path, length):
    path = write(tmp_path, checkpoint(3))
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DamagedError, match="cannot be read") as caught:
        read(path, "d1")
    assert caught.value.value == str(path)


@given(st.data())
@few(80, 300)
def test_a_changed_byte_is_noticed_or_changes_nothing(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("checkpoints")
    path, written = write(folder, checkpoint(3)), checkpoint(3)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        found = read(path, "d1", "r1")
    except DamagedError:
        assert sound_or_none(folder) is None
        return
    assert (found.step, found.seconds) == (written.step, written.seconds)
    assert found.tensors.keys() == written.tensors.keys()
    for name, value in written.tensors.items():
        assert torch.equal(found.tensors[name], value)


def sound_or_none(folder):
    try:
        return sound(folder, "d1", "r1")[0]
    except InputError:
        return None


def test_values_that_were_put_in_place_of_others_are_noticed(tmp_path):
    """A whole file by its own format, with the names, types and notes of a checkpoint."""
    from safetensors import safe_open

    path = write(tmp_path, checkpoint(3))
    with safe_open(str(path), framework="pt") as file:
        notes = file.metadata()
    tensors = load_file(path)
    for changed in (
        {**tensors, "x": tensors["x"] + 1},
        {**tensors, "x": tensors["x"].reshape(3, 2)},
        {**tensors, "y": tensors["x"].clone()},
        {name: value for name, value in tensors.items() if name != "w"},
    ):
        save_file(changed, path, notes)
        with pytest.raises(DamagedError, match="digest does not match"):
            read(path, "d1")
    for noted in ({**notes, "step": "4"}, {**notes, "seconds": "x"}, {"format_version": "1"}):
        save_file(tensors, path, noted)
        with pytest.raises(DamagedError, match="digest does not match"):
            read(path, "d1")
    save_file(tensors, path, notes)
    assert read(path, "d1").step == 3
    shutil.copy(path, file_of(tmp_path, 9))  # a step that it is not of
    with pytest.raises(DamagedError, match="digest does not match"):
        read(file_of(tmp_path, 9), "d1")


def test_damaged_ones_are_passed_over_for_an_older_one(tmp_path):
    for step in (10, 20, 30):
        write(tmp_path, checkpoint(step), keep=0)
    file_of(tmp_path, 30).write_bytes(file_of(tmp_path, 30).read_bytes()[:-5])
    assert sound(tmp_path, "d1", "r1") == ([10, 20], ["checkpoint-00000030.safetensors"])
    for step in (10, 20):
        file_of(tmp_path, step).write_bytes(b"")
    with pytest.raises(InputError, match="there is no older one") as caught:
        sound(tmp_path, "d1", "r1")
    assert caught.value.value == str(file_of(tmp_path, 30))


def test_other_checkpoints_are_refused(tmp_path):
    path = write(tmp_path, checkpoint(3))
    with pytest.raises(InputError, match="another experiment or data set"):
        read(path, "d2")
    with pytest.raises(InputError, match="another run of this experiment"):
        read(path, "d1", "r2")
    write(tmp_path, replace(checkpoint(2), digest="d2"))
    with pytest.raises(InputError, match="another experiment or data set"):
        sound(tmp_path, "d1", "r1")
    with pytest.raises(DamagedError, match="cannot be read"):
        read(tmp_path / "missing.safetensors", "d1")
    newer = tmp_path / "newer.safetensors"
    notes = {"format_version": "2", "digest": "d1"}
    tensors = {"x": torch.zeros(1)}
    save_file(tensors, newer, {**notes, "content": _content(notes, tensors)})
    with pytest.raises(FormatError, match=r"format_version = '2'.*the version that wrote it"):
        read(newer, "d1")
    newer.rename(file_of(tmp_path, 9))
    write(tmp_path, checkpoint(2))
    with pytest.raises(FormatError):  # to go on from an older one would charge its steps again
        sound(tmp_path, "d1", "r1")
    foreign = tmp_path / "foreign.safetensors"
    save_file({"x": torch.zeros(1)}, foreign)
    with pytest.raises(DamagedError, match="digest does not match"):
        read(foreign, "d1")


def test_later_checkpoints_are_set_aside_and_kept_until_all_have_got_as_far(tmp_path):
    for step in (20, 40, 60):
        write(tmp_path, checkpoint(step), keep=0)
    before = {step: file_of(tmp_path, step).read_bytes() for step in (20, 40, 60)}
    set_aside(tmp_path, after=20)
    assert sound(tmp_path, checkpoint(20).digest) == ([20], [])
    assert latest(tmp_path) == file_of(tmp_path, 20)

    # The run goes on, and is cut off and set back once more: nothing is written over.
    write(tmp_path, replace(checkpoint(40), seconds=0.5), keep=0)
    again = file_of(tmp_path, 40).read_bytes()
    set_aside(tmp_path, after=20)
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("*.earlier-*.safetensors")}
    assert kept == {
        "checkpoint-00000040.earlier-1.safetensors": before[40],
        "checkpoint-00000040.earlier-2.safetensors": again,
        "checkpoint-00000060.earlier-1.safetensors": before[60],
    }
    assert file_of(tmp_path, 20).read_bytes() == before[20]

    discard_set_aside(tmp_path, until=0)
    assert len(list(tmp_path.iterdir())) == 4
    discard_set_aside(tmp_path, until=40)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["checkpoint-00000020.safetensors", "checkpoint-00000060.earlier-1.safetensors"]
