"""Downloads from a real server on this machine: right, wrong, broken off, absent."""

import bz2
import gzip
import hashlib
import io
import os
from dataclasses import replace

import pytest
from rich.console import Console

from tacit.data import files, load, sources
from tacit.data.files import MIRROR_VARIABLE, DownloadError, content, content_sha256, download
from tacit.data.formats.idx import FILES, MNIST, load_idx_images
from tacit.errors import InputError


@pytest.fixture
def tiny_mnist(monkeypatch, image_files):
    """Make `mnist` a data set of nine records; its four files."""
    files = image_files()
    sums = tuple(hashlib.sha256(files[name]).hexdigest() for name in FILES)
    tiny = replace(MNIST, sha256=sums)
    rows = {**sources.SOURCES, "mnist": lambda request: load_idx_images(tiny, request.data_dir)}
    monkeypatch.setattr(sources, "SOURCES", rows)
    return files


def served(files):
    return {f"/mnist/{name}.gz": gzip.compress(content) for name, content in files.items()}


def everything_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_missing_files_are_downloaded_once(server, tiny_mnist, tmp_path, monkeypatch, capsys):
    server.files = served(tiny_mnist)
    monkeypatch.setenv(MIRROR_VARIABLE, f"{server.url}/")
    first = load("mnist", data_dir=tmp_path / "data")
    again = load("mnist", data_dir=tmp_path / "data")
    assert sorted(server.requests) == sorted(server.files)
    assert everything_in(tmp_path / "data") == {path[1:] for path in server.files}
    assert first.train.inputs.shape == (6, 1, 28, 28)
    assert first.test is not None
    assert len(first.test) == 3
    assert first.train.inputs.equal(again.train.inputs)
    labels = tiny_mnist["train-labels-idx1-ubyte"][8:]
    assert bytes(first.train.targets.tolist()) == labels
    assert capsys.readouterr() == ("", "")  # nothing where standard error is no terminal


def test_only_missing_files_are_downloaded(server, tiny_mnist, tmp_path, monkeypatch, write_folder):
    server.files = served(tiny_mnist)
    monkeypatch.setenv(MIRROR_VARIABLE, server.url)
    write_folder(tmp_path, {"train-images-idx3-ubyte": tiny_mnist["train-images-idx3-ubyte"]})
    load("mnist", data_dir=tmp_path)
    assert len(server.requests) == 3
    assert "/mnist/train-images-idx3-ubyte.gz" not in server.requests


def test_the_mirror_may_compress_otherwise_or_not_at_all(server, tiny_mnist, tmp_path, monkeypatch):
    server.files = {f"/mnist/{name}.gz": content for name, content in tiny_mnist.items()}
    monkeypatch.setenv(MIRROR_VARIABLE, server.url)
    assert len(load("mnist", data_dir=tmp_path).train) == 6


def wrong_content(server):
    server.files = {path: gzip.compress(b"other") for path in server.files}


def truncated_archive(server):
    server.files = {path: content[:-20] for path, content in server.files.items()}


def broken_transfer(server):
    server.missing_bytes = 100


def absent(server):
    server.files = {}


def down(server):
    server.url = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        (wrong_content, "SHA-256"),
        (truncated_archive, "EOFError"),
        (broken_transfer, "IncompleteRead"),
        (absent, "404"),
        (down, "ConnectionError"),
    ],
)
def test_a_failed_download_says_what_to_do_and_leaves_nothing(
    server, tiny_mnist, tmp_path, monkeypatch, fault, word
):
    server.files = served(tiny_mnist)
    fault(server)
    monkeypatch.setenv(MIRROR_VARIABLE, server.url)
    folder = tmp_path / "new" / "data"
    with pytest.raises(InputError) as caught:
        load("mnist", data_dir=folder)
    message = str(caught.value)
    assert caught.value.where == "task.data_dir"
    assert caught.value.value == str(folder)
    assert "\n" not in message
    assert word in message
    assert f"not found in {folder / 'mnist'} or {folder};" in message
    assert f"put the four mnist files in {folder / 'mnist'}" in message
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_of_the_folder_is_an_input_error(tiny_mnist, tmp_path, monkeypatch):
    monkeypatch.setenv(MIRROR_VARIABLE, "http://127.0.0.1:1")
    (tmp_path / "data").write_text("")
    with pytest.raises(InputError, match="NotADirectoryError"):
        load("mnist", data_dir=tmp_path / "data")


@pytest.mark.parametrize("mirror", ["not-an-address", "ftp://127.0.0.1", "http://[half"])
def test_a_malformed_mirror_is_an_input_error(tiny_mnist, tmp_path, monkeypatch, mirror):
    monkeypatch.setenv(MIRROR_VARIABLE, mirror)
    with pytest.raises(InputError, match="put the four mnist files in"):
        load("mnist", data_dir=tmp_path)


def test_a_failed_download_keeps_the_file_that_was_there(server, tmp_path):
    server.files = {"/file": b"wrong"}
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with pytest.raises(DownloadError, match="SHA-256"):
        download(f"{server.url}/file", target, hashlib.sha256(b"right").hexdigest())
    assert target.read_bytes() == b"old"


def test_progress_is_shown_on_a_terminal(server, tmp_path):
    content = bytes(300_000)
    server.files = {"/zeros": content}
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    sha256 = hashlib.sha256(content).hexdigest()
    download(f"{server.url}/zeros", tmp_path / "zeros", sha256, console)
    assert (tmp_path / "zeros").read_bytes() == content
    assert "zeros" in screen.getvalue()
    assert "300.0/300.0" in screen.getvalue()


def test_the_checksum_is_of_the_content(tmp_path):
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    plain.write_bytes(b"abc")
    packed.write_bytes(gzip.compress(b"abc"))
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2
    assert content_sha256(plain) == content_sha256(packed) == abc


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_what_unpacks_to_too_many_times_its_size_is_refused_while_it_unpacks(
    tmp_path, monkeypatch, pack
):
    rows = b"1,2,3\n" * 100_000
    path = tmp_path / "rows"
    path.write_bytes(pack(rows))
    with content(path) as (stream, packed):
        assert packed
        assert stream.read() == rows  # so few bytes are unpacked from any file
    monkeypatch.setattr(files, "_ALWAYS", 1000)
    most = files.MOST_TIMES * path.stat().st_size
    assert most < len(rows)
    with content(path) as (stream, _), pytest.raises(OSError, match="if you trust it, unpack it"):
        stream.read()
    random = os.urandom(10_000)
    path.write_bytes(pack(random))
    with content(path) as (stream, _):
        assert stream.read() == random
