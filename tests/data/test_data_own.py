"""A process reads the records of its own nodes, and of no other.

Records are known again by their numbers, whatever else has changed about them.
"""

import hashlib
import io
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from tacit.config import load_config
from tacit.data import Dataset, Schema, load, load_own, partition, record_layout
from tacit.data.own import digests_of_all, record_digests, unit_digests
from tacit.data.units import unit_ids
from tacit.errors import InputError, RecordsError
from tacit.training.prepare import prepare
from tacit.training.records import node_records

INPUTS = np.arange(12.0).reshape(4, 3)
TARGETS = np.array([0, 2, 1, 2])


@pytest.fixture(scope="module")
def digits():
    """The digits of four nodes, as the simulator would divide them."""
    loaded = load("digits", data_dir=Path("data"), seed=3)
    parts = partition("iid", loaded, 4, 3)
    return [Dataset(loaded.train.inputs[part], loaded.train.targets[part]) for part in parts]


def save_npz(path, **arrays):
    np.savez(path, **(arrays or {"inputs": INPUTS, "targets": TARGETS}))
    return str(path)


def test_npz_files_hold_what_was_written(digits, tmp_path):
    for node, data in enumerate(digits):
        save_npz(tmp_path / f"{node}.npz", inputs=data.inputs.numpy(), targets=data.targets.numpy())
    for nodes in [(0, 1, 2, 3), (2,), (3, 1)]:
        read = load_own(f"{tmp_path}/{{node}}.npz", nodes)
        assert len(read) == len(nodes)
        for node, data in zip(nodes, read, strict=True):
            assert data.inputs.dtype == digits[node].inputs.dtype
            assert torch.equal(data.inputs, digits[node].inputs)
            assert torch.equal(data.targets, digits[node].targets)


def test_safetensors_files_hold_what_was_written(digits, tmp_path):
    for node, data in enumerate(digits):
        folder = tmp_path / f"site-{node}"
        folder.mkdir()
        save_file(
            {"inputs": data.inputs.contiguous(), "targets": data.targets},
            folder / f"of-{node}.safetensors",
        )
    read = load_own(f"{tmp_path}/site-{{node}}/of-{{node}}.safetensors", (1, 2))
    for node, data in zip((1, 2), read, strict=True):
        assert torch.equal(data.inputs, digits[node].inputs)
        assert torch.equal(data.targets, digits[node].targets)


def test_a_function_gets_the_number_of_each_node(tmp_path, monkeypatch):
    (tmp_path / "own_data_by_function.py").write_text(
        "import numpy as np\n"
        "asked = []\n"
        "def load(node):\n"
        "    asked.append(node)\n"
        "    return np.full((2 + node, 3), float(node)), np.arange(2 + node)\n"
    )
    monkeypatch.chdir(tmp_path)
    read = load_own("own_data_by_function:load", (4, 1))
    assert [len(data) for data in read] == [6, 3]
    assert [float(data.inputs[0, 0]) for data in read] == [4.0, 1.0]
    assert sys.modules["own_data_by_function"].asked == [4, 1]


def test_paths_are_relative_and_know_the_home(tmp_path, monkeypatch):
    save_npz(tmp_path / "0.npz")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for source in ("{node}.npz", "~/{node}.npz", "0.npz"):
        assert len(load_own(source, (0,))[0]) == len(INPUTS)
    assert load_own("{node}.npz", ()) == []


def test_other_nodes_files_need_not_exist(tmp_path):
    save_npz(tmp_path / "2.npz")
    assert len(load_own(f"{tmp_path}/{{node}}.npz", (2,))) == 1
    with pytest.raises(InputError, match="node 1: there is no file"):
        load_own(f"{tmp_path}/{{node}}.npz", (2, 1))


@pytest.mark.process
def test_no_file_of_another_node_is_opened(tmp_path):
    """As Python's own audit of every file that is opened and every folder that is listed sees."""
    endings = ("npz", "safetensors")
    for node in range(4):
        save_npz(tmp_path / f"{node}.npz")
        tensors = {"inputs": torch.tensor(INPUTS), "targets": torch.tensor(TARGETS)}
        save_file(tensors, tmp_path / f"{node}.safetensors")
    code = f"""
import sys
from tacit.data import load_own
folder, touched = {str(tmp_path)!r}, []
def record(event, arguments):
    if event in ("open", "os.listdir", "os.scandir", "os.rename", "os.link"):
        touched.append(str(arguments[0]))
sys.addaudithook(record)
for ending in {endings}:
    load_own(folder + "/{{node}}." + ending, (1, 2))
print("\\n".join(path for path in touched if path.startswith(folder)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    )
    expected = [str(tmp_path / f"{node}.{ending}") for ending in endings for node in (1, 2)]
    assert done.stdout.split() == expected


class Trap:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def object_array(trap):
    buffer = io.BytesIO()
    inputs = np.empty(2, dtype=object)
    inputs[:] = [trap, trap]
    np.savez(buffer, inputs=inputs, targets=np.array([0, 1]))
    return buffer.getvalue()


def whole_pickle(trap):
    return pickle.dumps({"inputs": trap, "targets": [0]})


@pytest.mark.parametrize("content", [object_array, whole_pickle])
@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_nothing_is_unpickled(content, ending, tmp_path):
    trap = tmp_path / "sprung"
    path = tmp_path / f"0.{ending}"
    path.write_bytes(content(Trap(trap)))
    with pytest.raises(InputError) as caught:
        load_own(str(path), (0,))
    assert caught.value.where == "nodes.source"
    assert f"node 0: {path} cannot be read as .{ending}" in str(caught.value)
    assert not trap.exists()


def broken(content):
    """A byte amid the compressed numbers is turned round."""
    middle = len(content) // 4
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


def compressed():
    buffer = io.BytesIO()
    np.savez_compressed(buffer, inputs=np.random.default_rng(0).random((50, 50)), targets=TARGETS)
    return buffer.getvalue()


def not_deflate():
    """The compressed numbers begin with a kind of block that there is not."""
    content = bytearray(compressed())
    start = 30 + sum(struct.unpack("<HH", content[26:30]))  # behind the header, name and extra
    content[start] = 0b111
    return bytes(content)


def encrypted():
    """Every member is marked as encrypted, where its header and where the directory say so."""
    content = bytearray(compressed())
    for signature, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        place = content.find(signature)
        while place >= 0:
            content[place + flags] |= 1
            place = content.find(signature, place + 1)
    return bytes(content)


def one_array():
    buffer = io.BytesIO()
    np.save(buffer, INPUTS)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK",
        b"\0" * 64,
        compressed()[:500],
        broken(compressed()),
        not_deflate(),
        encrypted(),
        one_array(),
    ],
    ids=["empty", "short", "zeros", "torn", "flipped", "not-deflate", "encrypted", "npy"],
)
@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_a_damaged_file_is_named(content, ending, tmp_path):
    path = tmp_path / f"7.{ending}"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_own(f"{tmp_path}/{{node}}.{ending}", (7,))
    assert f"node 7: {path} cannot be read as .{ending}" in str(caught.value)


def test_a_locked_or_odd_path_is_no_file(tmp_path):
    (tmp_path / "0.npz").mkdir()
    for source in (f"{tmp_path}/0.npz", f"{tmp_path}/{'a' * 300}.npz", f"{tmp_path}/a\0b.npz"):
        with pytest.raises(InputError, match="node 0: there is no file"):
            load_own(source, (0,))


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"inputs": INPUTS}, "must hold an array 'targets'; it holds: inputs"),
        ({"x": INPUTS, "y": TARGETS}, "must hold an array 'inputs'; it holds: x, y"),
    ],
)
def test_a_missing_array_is_named(arrays, expected, tmp_path):
    source = save_npz(tmp_path / "3.npz", **arrays)
    with pytest.raises(InputError) as caught:
        load_own(source, (3,))
    assert (caught.value.where, caught.value.value) == ("nodes.source", source)
    assert f"node 3: {source} {expected}" in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "targets", "expected"),
    [
        (INPUTS, TARGETS[:3], "4 inputs, 3 targets"),
        (np.where(INPUTS == 4, np.nan, INPUTS), TARGETS, "1 of 4 records"),
        (np.array(["a", "b"]), TARGETS[:2], "must be an array of numbers"),
        (INPUTS, np.array(1), "first dimension of records"),
    ],
)
def test_records_are_checked_as_all_others(inputs, targets, expected, tmp_path):
    save_npz(tmp_path / "5.npz", inputs=inputs, targets=targets)
    with pytest.raises(InputError) as caught:
        load_own(f"{tmp_path}/{{node}}.npz", (5,))
    assert caught.value.where == f"node 5 ({tmp_path}/5.npz)"
    assert expected in str(caught.value)


def test_a_file_may_have_no_records_and_says_their_shape(tmp_path):
    for node, count in ((0, 4), (1, 0)):
        save_npz(tmp_path / f"{node}.npz", inputs=INPUTS[:count], targets=TARGETS[:count])
    some, none = load_own(f"{tmp_path}/{{node}}.npz", (0, 1))
    assert len(none) == 0
    assert record_layout(none) == record_layout(some)
    assert len(record_digests(none.inputs, b"key")) == 0
    save_npz(tmp_path / "1.npz", inputs=INPUTS[:0, :1], targets=TARGETS[:0])
    with pytest.raises(InputError, match="as those of node 0"):
        load_own(f"{tmp_path}/{{node}}.npz", (0, 1))


def test_a_member_that_is_no_array_is_refused(tmp_path):
    path = tmp_path / "0.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inputs", b"1 2 3")
        archive.writestr("targets", b"1 2 3")
    with pytest.raises(InputError, match="its member inputs is no array"):
        load_own(str(path), (0,))


@pytest.mark.parametrize(
    ("inputs", "targets", "expected"),
    [
        (INPUTS[:, :2], TARGETS, "record inputs = 'floating [2]': must be floating [3]"),
        (INPUTS.astype(np.uint8), TARGETS, "record inputs = 'integer [3]': must be floating [3]"),
        (INPUTS, TARGETS * 1.0, "record targets = 'floating []': must be integer []"),
        (INPUTS, TARGETS[:, None], "record targets = 'integer [1]': must be integer []"),
    ],
)
def test_nodes_of_one_process_hold_records_of_one_layout(inputs, targets, expected, tmp_path):
    save_npz(tmp_path / "1.npz")
    save_npz(tmp_path / "4.npz", inputs=inputs, targets=targets)
    with pytest.raises(InputError) as caught:
        load_own(f"{tmp_path}/{{node}}.npz", (1, 4))
    assert f"node 4 ({tmp_path}/4.npz), {expected}, as those of node 1" in str(caught.value)
    # Alone, either is a data set.
    assert len(load_own(f"{tmp_path}/{{node}}.npz", (4,))[0]) == 4


def test_a_layout_says_nothing_of_the_number_of_records():
    layouts = [
        record_layout(Dataset(torch.zeros(count, 8, 8), torch.zeros(count, dtype=torch.int64)))
        for count in (1, 9)
    ]
    assert layouts[0] == layouts[1]
    assert layouts[0] == {"record inputs": "floating [8, 8]", "record targets": "integer []"}


def test_two_nodes_never_read_one_file(tmp_path):
    source = save_npz(tmp_path / "all.npz")
    with pytest.raises(InputError) as caught:
        load_own(source, (2, 3))
    assert (caught.value.where, caught.value.value) == ("nodes.source", source)
    assert "must have {node} in it" in str(caught.value)
    assert "nodes 2 and 3 of this process would read the same records" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("data/{node}.npy", "did you mean '.npz'?"),
        ("data/{node}.txt", "known are: .npz, .safetensors"),
        ("data/{node}.csv", "is a table: name its schema in task.schema"),
        ("data/{node}.CSV.gz", "is a table: name its schema in task.schema"),
        ("data/{node}", "module:function"),
        ("data:{node}.pkl", "module:function"),
    ],
)
def test_an_unknown_ending_lists_the_known_ones(source, expected):
    with pytest.raises(InputError) as caught:
        load_own(source, (0,))
    assert (caught.value.where, caught.value.value) == ("nodes.source", source)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("def load(): return [[1.0]], [0]", "must take the node's number, as in def load(node)"),
        ("def load(node, folder): return [[1.0]], [0]", "must take the node's number"),
        ("def load(node, /): return [[1.0]], [0]", "must take the node's number"),
        ("def load(node): raise OSError('no disk')", "the function raised OSError: no disk"),
        ("def load(node): return None", "must be a Dataset, a pair (inputs, targets)"),
        ("def read(node): return [[1.0]], [0]", "has no function 'load'"),
    ],
)
def test_a_function_that_is_wrong_says_why(body, expected, tmp_path, monkeypatch):
    name = f"own_data_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        load_own(f"{name}:load", (6,))
    assert expected in str(caught.value)


def test_a_function_may_take_more_than_the_number(tmp_path, monkeypatch):
    (tmp_path / "own_data_options.py").write_text(
        "def load(node, scale=2.0): return [[scale * node]], [0]\n"
        "def any_of(**settings): return [[float(settings['node'])]], [0]\n"
    )
    monkeypatch.chdir(tmp_path)
    assert load_own("own_data_options:load", (3,))[0].inputs.tolist() == [[6.0]]
    assert load_own("own_data_options:any_of", (3,))[0].inputs.tolist() == [[3.0]]


KEY = b"a secret key"


def test_a_digest_is_that_of_the_numbers():
    """The oracle: BLAKE2b with the key, of the record as float32, least significant byte first,

    without zeros at its ends.
    """
    inputs = torch.tensor([[0.5, -0.0, 3.0], [1.0, 2.0, 1e30]])
    found = record_digests(inputs, KEY)
    for row, digest in zip(((0.5, 0.0, 3.0), (1.0, 2.0, 1e30)), found, strict=True):
        content = np.array(row, "<f4").tobytes().strip(b"\0")
        known = hashlib.blake2b(content, digest_size=8, key=KEY).digest()
        assert int(digest) == int.from_bytes(known, "little")


def test_digests_of_all_parts_are_those_of_each():
    """Parts of no record, of few, and of more than are converted at a time."""
    rows = torch.arange(3 * 9010.0).reshape(-1, 3)
    parts = torch.split(rows, [0, 4, 4095, 1, 4097, 10, 0, 803])
    known = record_digests(rows, KEY)
    assert (digests_of_all([parts[1].double(), *parts[2:]], KEY) == known).all()
    assert len(digests_of_all([parts[0]] * 2, KEY)) == 0


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(-1000, 1000), min_size=4, max_size=4), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_type_shape_and_order_do_not_matter(rows, random):
    inputs = torch.tensor(rows)
    known = record_digests(inputs, KEY)
    for dtype in (torch.float32, torch.float64, torch.int16, torch.int64):
        assert (record_digests(inputs.to(dtype), KEY) == known).all()
    assert (record_digests(inputs.reshape(-1, 2, 2), KEY) == known).all()
    order = torch.randperm(len(inputs))
    assert (record_digests(inputs[order], KEY) == known[order.numpy()]).all()
    # Equal records and no others have equal digests.
    bare = [np.trim_zeros(row).tolist() for row in np.array(rows)]
    same = [[one == other for other in bare] for one in bare]
    assert ((known[:, None] == known[None, :]) == np.array(same)).all()


def test_what_float32_cannot_tell_apart_is_the_same_record():
    third = torch.full((1, 3), 1 / 3, dtype=torch.float64)
    assert record_digests(third, KEY) == record_digests(third.float(), KEY)
    assert record_digests(third, KEY) == record_digests(third + 1e-12, KEY)
    assert record_digests(third, KEY) != record_digests(third + 1e-6, KEY)


def test_the_width_of_a_record_does_not_matter():
    """A file that leaves zeros out is as wide as its widest record, and may count from 0 or 1."""
    inputs = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0], [0.0, 0.0, 0.0]])
    known = record_digests(inputs, KEY)
    zeros = torch.zeros(3, 2)
    for wider in ([inputs, zeros], [zeros, inputs], [zeros, inputs, zeros]):
        assert (record_digests(torch.cat(wider, dim=1), KEY) == known).all()
    assert len(set(known.tolist())) == 3
    assert record_digests(torch.tensor([[1.0, 2.0, 0.0]]), KEY) != known[0]


def test_another_key_gives_other_digests():
    inputs = torch.arange(12.0).reshape(4, 3)
    assert not set(record_digests(inputs, KEY)) & set(record_digests(inputs, b"another"))


@pytest.mark.parametrize("count", [0, 1, 4096, 4097])
def test_every_record_has_one(count):
    inputs = torch.arange(count * 2, dtype=torch.float32).reshape(count, 2)
    assert len(set(record_digests(inputs, KEY).tolist())) == count


SCHEMA = Schema.of(
    {
        "confirmed_public": True,
        "target": {"column": "died", "kind": "class", "labels": ["0", "1"]},
        "node": {"column": "site", "values": ["north", "south"]},
        "columns": {"age": {"kind": "number", "low": 0, "high": 100}},
    }
)


def write_site(path, *sites):
    lines = [f"{site},{20 + row},{row % 2}" for row, site in enumerate(sites)]
    path.write_text("\n".join(["site,age,died", *lines, ""]))


def test_a_node_reads_no_other_sites_file(tmp_path):
    write_site(tmp_path / "0.csv", "north", "north")
    write_site(tmp_path / "1.csv", "south", "south", "north")
    write_site(tmp_path / "2.csv", "north")
    source = f"{tmp_path}/{{node}}.csv"
    assert len(load_own(source, (0,), SCHEMA)[0]) == 2
    with pytest.raises(RecordsError) as caught:
        load_own(source, (1,), SCHEMA)
    assert caught.value.where == f"column 'site' of node 1 ({tmp_path}/1.csv)"
    assert (caught.value.value, "must be 'south'" in str(caught.value)) == (
        "1 of 3 records (the first is row 3)",
        True,
    )
    assert "north" not in str(caught.value)
    with pytest.raises(InputError, match="none is node 2: declare one value a node"):
        load_own(source, (2,), SCHEMA)
    # A table without the column is taken at its word.
    (tmp_path / "1.csv").write_text("age,died\n20,0\n30,1\n")
    assert len(load_own(source, (1,), SCHEMA)[0]) == 2


def run_of(folder, ending, **sections):
    own = {"count": 2, "data": "by-rank", "source": f"{folder}/{{node}}.{ending}"}
    task = {"model": "logistic", **sections}
    return load_config({"task": task, "nodes": own, "algorithm": {"name": "dp-sgd"}})


def test_frames_of_another_site_are_refused_too():
    frame = pd.DataFrame({"site": ["north", "south"], "age": [40, 50], "died": [0, 1]})
    config = load_config({"task": {"model": "logistic"}, "nodes": {"count": 2}}, count=2)
    with pytest.raises(
        RecordsError, match=r"column 'site' of nodes\[1\] = '1 of 2 records \(the first is row 1\)'"
    ):
        prepare(config, nodes=[frame[:1], frame], schema=SCHEMA)


def test_equal_files_are_a_warning_on_the_own_screen(tmp_path, caplog):
    for node, order in enumerate(([0, 1, 2, 3], [3, 1, 0, 2])):
        save_npz(tmp_path / f"{node}.npz", inputs=INPUTS[order], targets=TARGETS[order])
    said = f"the records of node 1 ({tmp_path}/1.npz) are those of node 0 ({tmp_path}/0.npz)"
    job = prepare(run_of(tmp_path, "npz", outputs=3))
    assert said in caplog.text
    assert said not in str(job.plan)  # which others are told of
    caplog.clear()
    save_npz(tmp_path / "1.npz", inputs=INPUTS + 1, targets=TARGETS)
    prepare(run_of(tmp_path, "npz", outputs=3))
    assert "are those of" not in caplog.text


THREE = {**SCHEMA.model_dump(), "node": {"column": "site", "values": ["north", "south", "west"]}}


@pytest.mark.parametrize("given", ["by-rank", "mapping"])
@pytest.mark.parametrize(
    ("names", "sites", "refused"),
    [
        (("north", "west"), ("north", "west"), None),
        (
            ("south", "west"),
            ("south", "north"),
            r"'site' of .*1.* = '1 of 1 records \(the first is row 1\)'.*be 'west'",
        ),
        (("west", "north"), ("west", "north"), "nodes.names = 'west, north'.*order: north, south"),
        (("north", "east"), ("north", "south"), "nodes.names = 'north, east'"),
        (None, ("north", "south"), "nodes.count = 2: column 'site' .* has 3 declared values"),
    ],
)
def test_nodes_are_all_of_the_schema_or_those_that_are_named(
    given, names, sites, refused, tmp_path
):
    for node, site in enumerate(sites):
        write_site(tmp_path / f"{node}.csv", site)
    files = [tmp_path / f"{node}.csv" for node in range(len(sites))]

    def plan():
        nodes = dict(zip(names, files, strict=True)) if given == "mapping" and names else files
        records, schema, named = node_records(nodes, Schema.of(THREE))
        if given == "mapping":
            config = load_config({"task": {"model": "logistic"}}, count=2, names=named)
            return prepare(config, nodes=records, schema=schema).plan
        own = {"count": 2, "data": "by-rank", "source": f"{tmp_path}/{{node}}.csv"}
        own |= {"names": list(names)} if names else {}
        config = load_config({"task": {"model": "logistic"}, "nodes": own})
        return prepare(config, schema=schema).plan

    if refused is None or (given == "mapping" and names == ("west", "north")):
        assert plan().config.nodes.names == ("north", "west")  # as the schema orders them
        return
    with pytest.raises(InputError, match=refused):
        plan()


@pytest.mark.parametrize("public", [False, True])
def test_a_party_may_have_several_nodes(public, tmp_path):
    for node, site in enumerate(("north", "west", "west")):
        write_site(tmp_path / f"{node}.csv", site)
    write_site(tmp_path / "public.csv", *["south"] * 30)
    own = {"data": "by-rank", "source": f"{tmp_path}/{{node}}.csv"}
    names = ["north", "west", "west"]
    task = {"dataset": f"csv:{tmp_path}/public.csv"} if public else {}
    task |= {"model": "logistic"}
    nodes = {**own, "names": names}
    config = load_config({"task": task, "nodes": nodes})
    assert prepare(config, schema=Schema.of(THREE)).plan.config.nodes.names == tuple(names)


DISTINCT = np.arange(32.0).reshape(16, 2)
FEW = np.arange(32.0).reshape(16, 2) % 4  # of few values, which occur at every node


@pytest.mark.parametrize(
    ("own", "other", "mostly"),
    [
        (DISTINCT, [*DISTINCT[::-1], (99, 99)], True),
        (DISTINCT, DISTINCT[:5], True),
        (DISTINCT, [*DISTINCT, *(DISTINCT + 100), *(DISTINCT + 200)], True),
        (DISTINCT, [*DISTINCT[:8], *(DISTINCT[8:] + 100)], False),
        (DISTINCT, DISTINCT[:2], False),
        (FEW, FEW[:9], False),
    ],
)
def test_files_that_are_mostly_equal_are_a_warning_too(own, other, mostly, tmp_path, caplog):
    for node, inputs in enumerate((own, other)):
        save_npz(tmp_path / f"{node}.npz", inputs=inputs, targets=np.zeros(len(inputs), int))
    prepare(run_of(tmp_path, "npz", outputs=3))
    assert (f"are mostly those of node 0 ({tmp_path}/0.npz)" in caplog.text) is mostly
    assert ("those of" in caplog.text) is mostly


def test_targets_of_another_shape_name_the_nodes_file(tmp_path):
    for node in (0, 1):
        save_npz(tmp_path / f"{node}.npz", inputs=INPUTS, targets=TARGETS[:, None])
    with pytest.raises(InputError) as caught:
        prepare(run_of(tmp_path, "npz", outputs=3))
    assert caught.value.where == f"node 0 ({tmp_path}/0.npz)"
    assert caught.value.value == "targets [4, 1] of torch.int64"
    save_npz(tmp_path / "1.npz", inputs=INPUTS, targets=np.array([0, 1, 7, 7]))
    save_npz(tmp_path / "0.npz")
    with pytest.raises(RecordsError) as wrong:
        prepare(run_of(tmp_path, "npz", outputs=3))
    assert wrong.value.where == f"node 1 ({tmp_path}/1.npz)"
    assert wrong.value.value == "2 of 4 records"


def test_an_id_is_known_again_however_it_is_written_and_is_no_record():
    """As text or number, in other case, between blanks, composed or not; never as a row's bytes."""
    ids = unit_ids([17, "Zoë"], 2, "units")
    known = unit_digests(ids, KEY)
    for same in (["17", "zoë"], [17.0, "ZOË "], [" １７", "Zoe\N{COMBINING DIAERESIS}"]):
        values = np.array(same, dtype=object)
        assert (unit_digests(unit_ids(values, 2, "units"), KEY) == known).all()
    for other in (["017", "Zoe"], ["7", "Z"]):
        assert not np.isin(unit_digests(other, KEY), known).any()
    assert not np.isin(unit_digests(ids, b"another"), known).any()
    # Four letters are the bytes of a float32: its record has another digest.
    row = torch.from_numpy(np.frombuffer(b"anna", "<f4").copy()).reshape(1, 1)
    plain = hashlib.blake2b(b"anna", digest_size=8, key=KEY).digest()
    assert int(record_digests(row, KEY)[0]) == int.from_bytes(plain, "little")
    assert record_digests(row, KEY)[0] != unit_digests(["anna"], KEY)[0]
