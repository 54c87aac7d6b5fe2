"""CIFAR-10 from small folders and archives, made as the published ones are, and from bad ones."""

import hashlib
import io
import os
import pickle
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.analysis.compare.figure import FigureOptions, load_figure
from tacit.data import load
from tacit.data.files import MIRROR_VARIABLE
from tacit.data.formats.cifar10 import ARCHIVE, FOLDER, load_cifar10, python_batch
from tacit.errors import InputError
from tacit.training.prepare import prepare

NAMES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setenv(MIRROR_VARIABLE, "http://127.0.0.1:1")


def images(batch, records=3):
    """Pixels `[records, 3, 32, 32]` and labels of one batch."""
    generator = np.random.default_rng(batch)
    pixels = generator.integers(0, 256, (records, 3, 32, 32), dtype=np.uint8)
    return pixels, generator.integers(0, 10, records)


def word(text):
    """A string as Python 2 pickles it."""
    return b"U" + bytes([len(text)]) + text


def as_python(
    pixels,
    labels,
    *,
    module="numpy.core.multiarray",
    function="_reconstruct",
    dtype=b"u1",
    width=3072,
):
    """What Python 2 pickled in 2009, byte by byte: protocol 2, text and numbers alike strings."""

    def number(value):
        return b"J" + struct.pack("<i", value)

    raw = pixels.tobytes()
    kind = (
        b"cnumpy\ndtype\n(" + word(dtype) + number(0) + number(1) + b"tR"
        b"(" + number(3) + word(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    )
    array = (
        f"c{module}\n{function}\n".encode()
        + b"(cnumpy\nndarray\n("
        + number(0)
        + b"t"
        + word(b"b")
        + b"tR("
        + number(1)
        + (b"(" + number(len(pixels)) + number(width) + b"t")
        + kind
        + b"\x89T"
        + struct.pack("<i", len(raw))
        + raw
        + b"tb"
    )
    listed = b"](" + b"".join(number(int(label)) for label in labels) + b"e"
    return (
        b"\x80\x02}("
        + (word(b"batch_label") + word(b"training batch 1 of 5"))
        + (word(b"labels") + listed)
        + (word(b"data") + array)
        + (word(b"filenames") + b"](" + word(b"camion_s_000148.png") + b"e")
        + b"u."
    )


def batches(records=3):
    """The six files of the archive, by name."""
    return {name: as_python(*images(batch, records)) for batch, name in enumerate(NAMES)}


def write_folder(folder, files):
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def packed(files, prefix=""):
    """An archive of files, as bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{prefix}{FOLDER}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def check(folder, records=3):
    """A folder holds the images that were written, each pixel where it belongs."""
    data = load("cifar10", data_dir=folder)
    assert data.name == "cifar10"
    assert data.classes == 10
    assert data.test is not None
    for half, numbers in ((data.train, range(5)), (data.test, range(5, 6))):
        made = [images(number, records) for number in numbers]
        pixels = np.concatenate([batch[0] for batch in made])
        assert half.inputs.shape == (records * len(made), 3, 32, 32)
        assert half.inputs.dtype == torch.float32
        np.testing.assert_array_equal(half.inputs.numpy(), (pixels / 255.0).astype(np.float32))
        assert half.targets.dtype == torch.int64
        assert half.targets.tolist() == np.concatenate([batch[1] for batch in made]).tolist()


@pytest.mark.parametrize("place", ["cifar10", ""])
def test_a_folder_is_read(tmp_path, place):
    write_folder(tmp_path / place / FOLDER, batches())
    check(tmp_path)


@pytest.mark.parametrize("place", ["cifar10", ""])
@pytest.mark.parametrize("prefix", ["", "./"])
def test_an_archive_is_read_where_it_lies(tmp_path, place, prefix):
    (tmp_path / place).mkdir(exist_ok=True)
    path = tmp_path / place / ARCHIVE.name
    path.write_bytes(packed(batches(), prefix))
    check(tmp_path)
    assert [found for found in tmp_path.rglob("*") if found.is_file()] == [path]


def test_a_folder_comes_before_an_archive(tmp_path):
    (tmp_path / ARCHIVE.name).write_bytes(b"never opened")
    write_folder(tmp_path / "cifar10" / FOLDER, batches(records=2))
    write_folder(tmp_path / FOLDER, batches(records=4))
    check(tmp_path, records=2)


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_the_pickle_is_one_that_python_reads_alike(module):
    pixels, labels = images(0)
    content = as_python(pixels, labels, module=module)
    read, classes = python_batch(content)
    assert pickle.loads(content, encoding="bytes")[b"data"].tolist() == read.tolist()
    np.testing.assert_array_equal(read, pixels.reshape(3, 3072))
    np.testing.assert_array_equal(classes, labels)


class Evil:
    """What a pickle that runs a command looks like."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    ("call", "name"),
    [((os.system, "touch taken"), "system"), ((eval, "open('taken', 'w')"), "eval")],
)
def test_a_pickle_that_would_run_code_is_refused_before_it_does(
    tmp_path, monkeypatch, call, name, protocol
):
    monkeypatch.chdir(tmp_path)
    files = batches()
    files["data_batch_2"] = pickle.dumps({"data": Evil(*call)}, protocol)
    write_folder(tmp_path / FOLDER, files)
    with pytest.raises(InputError, match=f"it asks for .*{name}, which no batch needs") as refused:
        load("cifar10", data_dir=tmp_path)
    assert refused.value.where == "task.data_dir"
    assert refused.value.value == str(tmp_path / FOLDER / "data_batch_2")
    assert not (tmp_path / "taken").exists()


@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("numpy.core.multiarray", "scalar"),
        ("numpy", "load"),
        ("builtins", "getattr"),
        ("__builtin__", "eval"),
        ("tacit.data.formats.cifar10", "os.system"),
    ],
)
def test_every_other_name_is_refused(module, function):
    with pytest.raises(ValueError, match="which no batch needs"):
        python_batch(as_python(*images(0), module=module, function=function))


def test_an_array_of_objects_stays_a_refusal():
    with pytest.raises(ValueError, match="must be unsigned bytes"):
        python_batch(as_python(*images(0), dtype=b"O8"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "exhausted"),
        (b"no pickle at all", "was expected"),
        (as_python(*images(0))[:-1], "was expected"),
        (as_python(*images(0))[:5000], "was expected"),
        (pickle.dumps([1, 2]), "a dictionary with an array"),
        (pickle.dumps({b"data": b"x", b"labels": [1]}), "a dictionary with an array"),
        (as_python(*images(0), width=3071), "must be unsigned bytes of shape"),
        (as_python(images(0)[0][:, :2], images(0)[1]), "must be unsigned bytes of shape"),
        (as_python(*images(0), dtype=b"i8"), "must be unsigned bytes of shape"),
        (as_python(images(0)[0], images(0)[1][:2]), "3 whole numbers were expected as labels"),
        (as_python(images(0)[0][:0], images(0)[1][:0]), "must be unsigned bytes of shape"),
    ],
)
def test_a_damaged_pickle_is_refused(content, words):
    with pytest.raises(ValueError, match=words):
        python_batch(content)


def test_a_missing_batch_is_named(tmp_path):
    files = batches()
    del files["data_batch_4"]
    write_folder(tmp_path / "one" / FOLDER, files)
    with pytest.raises(InputError, match="FileNotFoundError") as refused:
        load("cifar10", data_dir=tmp_path / "one")
    assert "data_batch_4" in refused.value.value
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / ARCHIVE.name).write_bytes(packed(files))
    with pytest.raises(InputError, match=f"must hold {FOLDER}/data_batch_4"):
        load("cifar10", data_dir=tmp_path / "two")


def test_an_archive_can_reach_nothing_outside_itself(tmp_path):
    """Links and names that leave the archive are not batches, and nothing is written."""
    (tmp_path / "secret").write_bytes(as_python(*images(0)))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in batches():
            link = tarfile.TarInfo(f"{FOLDER}/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret")
            archive.addfile(link)
            archive.addfile(tarfile.TarInfo(f"../{name}"), io.BytesIO())
    folder = tmp_path / "in" / "here"
    folder.mkdir(parents=True)
    (folder / ARCHIVE.name).write_bytes(buffer.getvalue())
    with pytest.raises(InputError, match=r"must hold cifar-10-batches-py/data_batch_1"):
        load("cifar10", data_dir=folder)
    assert list((tmp_path / "in").iterdir()) == [folder]
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", packed({})[:10]],
    ids=["empty", "text", "head of an archive"],  # which holds the time
)
def test_what_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / ARCHIVE.name).write_bytes(content)
    with pytest.raises(InputError, match="a file of CIFAR-10 was expected") as refused:
        load("cifar10", data_dir=tmp_path)
    assert refused.value.value == str(tmp_path / ARCHIVE.name)


def test_a_truncated_archive_is_refused(tmp_path):
    (tmp_path / ARCHIVE.name).write_bytes(packed(batches())[:20_000])
    with pytest.raises(InputError, match="a file of CIFAR-10 was expected"):
        load("cifar10", data_dir=tmp_path)


def test_a_label_that_is_no_class_is_refused(tmp_path):
    files = batches()
    files["test_batch"] = as_python(images(0)[0], np.array([0, 10, 1]))
    write_folder(tmp_path / FOLDER, files)
    with pytest.raises(InputError, match=r"1 of \d+ records.*0 to 9"):
        load("cifar10", data_dir=tmp_path)


def test_the_archive_is_downloaded_once(server, tmp_path, monkeypatch):
    content = packed(batches())
    server.files = {f"/cifar10/{ARCHIVE.name}": content}
    monkeypatch.setenv(MIRROR_VARIABLE, server.url)
    archive = replace(ARCHIVE, sha256=hashlib.sha256(content).hexdigest())
    first = load_cifar10(tmp_path, archive)
    again = load_cifar10(tmp_path, archive)
    assert server.requests == [f"/cifar10/{ARCHIVE.name}"]
    assert (tmp_path / "cifar10" / ARCHIVE.name).read_bytes() == content
    assert first.train.inputs.equal(again.train.inputs)
    check(tmp_path)


def test_a_wrong_archive_is_not_kept(server, tmp_path, monkeypatch):
    server.files = {f"/cifar10/{ARCHIVE.name}": packed(batches())}
    monkeypatch.setenv(MIRROR_VARIABLE, server.url)
    folder = tmp_path / "data"
    with pytest.raises(InputError, match="SHA-256") as refused:
        load("cifar10", data_dir=folder)
    assert refused.value.where == "task.data_dir"
    assert refused.value.value == str(folder)
    assert f"not found in {folder / 'cifar10'} or {folder}; put the archive" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_figure_5_of_dyn_d2p_divides_all_images_among_forty_nodes(tmp_path):
    """The experiment file as it stands, of the files' size alone smaller: three images a node."""
    write_folder(tmp_path / FOLDER, batches(24))
    file = Path(__file__).parents[2] / "papers" / "dyn-d2p" / "figure-5-cifar10.toml"
    options = FigureOptions(overrides=[f"task.data_dir={tmp_path}"])
    lines = {line.name: line for line in load_figure([file], options).lines}
    run = lines["40 nodes, no noise"].settings[0].runs[0]
    assert (run.task.dataset, run.nodes.count, run.nodes.per_node) == ("cifar10", 40, 1250)
    assert run.nodes.count * 1250 == 50_000  # every training image as published
    nodes = run.nodes.model_copy(update={"per_node": 3})
    task = run.task.model_copy(update={"model": "logistic"})
    job = prepare(run.model_copy(update={"nodes": nodes, "task": task}))
    assert [node.records for node in job.plan.nodes] == [3] * 40
    whole = load_cifar10(tmp_path).train.inputs
    divided = job.train.inputs.reshape(120, -1)
    assert divided.unique(dim=0).equal(whole.reshape(120, -1).unique(dim=0))
