"""Features that are kept in a folder: private, used when right, computed anew when not."""

import stat
from dataclasses import replace

import pytest
import torch

from tacit.errors import InputError
from tacit.features.kept import Kept
from tacit.features.maps import FeatureMap

SIZE = 50


def doubled():
    return FeatureMap(
        name="some:map",
        function=lambda inputs: 2 * inputs,
        record_shape=(3,),
        shape=(3,),
        block=16,
        identity="one",
        dtype=torch.float32,
    )


def records(seed=0):
    return torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(seed))


def kept(folder, features, inputs, node=3):
    """The features, and how often the map was asked for a block."""
    calls = []

    def counted(block):
        calls.append(1)
        return features.function(block)

    counting = replace(features, function=counted)
    out = torch.empty(len(inputs), 3)
    Kept(folder).write(counting, node, inputs, lambda rows: inputs[rows], out)
    return out, len(calls)


def test_they_are_computed_once(tmp_path):
    folder, inputs = tmp_path / "kept", records()
    first, all_blocks = kept(folder, doubled(), inputs)
    assert torch.equal(first, 2 * inputs)
    assert all_blocks == 2 + 4  # the first and the last block, and then all
    again, ends = kept(folder, doubled(), inputs)
    assert torch.equal(again, first)
    assert ends == 2


def test_they_are_their_owners_alone(tmp_path):
    folder = tmp_path / "kept"
    kept(folder, doubled(), records())
    (file,) = folder.glob("*.safetensors")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_other_records_remove_them_and_other_maps_and_nodes_do_not(tmp_path):
    folder = tmp_path / "kept"
    kept(folder, doubled(), records(0), node=1)
    kept(folder, doubled(), records(0), node=11)
    (folder / "node-1-mine.txt").write_text("not one of ours")
    before = set(folder.glob("*.safetensors"))
    kept(folder, replace(doubled(), identity="another"), records(0), node=1)
    assert len(set(folder.glob("*.safetensors")) - before) == 1
    made, _ = kept(folder, doubled(), records(1), node=1)
    assert torch.equal(made, 2 * records(1))
    names = sorted(path.name.rpartition("-")[0][:8] for path in folder.glob("*.safetensors"))
    assert len(names) == 2  # of node 1 with its new records, and of node 11
    assert "node-11-" in names
    assert (folder / "node-1-mine.txt").exists()


def test_one_record_that_changed_is_other_records(tmp_path):
    folder, inputs = tmp_path / "kept", records()
    kept(folder, doubled(), inputs)
    inputs[25, 1] += 1.0
    made, calls = kept(folder, doubled(), inputs)
    assert torch.equal(made, 2 * inputs)
    assert calls == 2 + 4


def test_a_map_that_changed_its_mind_is_another(tmp_path):
    """Though it has the old name and identity: its first and last features differ."""
    folder, inputs = tmp_path / "kept", records()
    kept(folder, doubled(), inputs)
    changed = replace(doubled(), function=lambda block: 2 * block + 1e-6)
    made, _ = kept(folder, changed, inputs)
    assert torch.equal(made, 2 * inputs + 1e-6)


@pytest.mark.parametrize("damage", ["cut", "flipped", "text", "empty", "longer", "pickled", "link"])
def test_a_damaged_or_foreign_file_is_replaced(tmp_path, damage):
    folder, inputs = tmp_path / "kept", records()
    kept(folder, doubled(), inputs)
    (file,) = folder.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    sound = bytes(content)
    if damage == "cut":
        file.write_bytes(content[:-8])
    elif damage == "flipped":
        content[-5] ^= 1
        file.write_bytes(content)
    elif damage == "link":
        aside = tmp_path / "elsewhere"
        aside.write_bytes(sound)
        file.unlink()
        file.symlink_to(aside)
    elif damage == "pickled":
        torch.save(2 * inputs, file)
    else:
        file.write_bytes({"text": b"text", "empty": b"", "longer": sound + bytes(9000)}[damage])
    made, calls = kept(folder, doubled(), inputs)
    assert torch.equal(made, 2 * inputs)
    assert calls == 2 + 4
    assert not file.is_symlink()
    assert file.stat().st_size == len(sound)
    assert kept(folder, doubled(), inputs)[1] == 2


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"^task\.features_cache = .*cannot be written"):
        Kept(tmp_path / "file" / "kept")
