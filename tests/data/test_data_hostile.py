"""Files that lie about their size, unpack to more than memory takes, or are damaged anywhere."""

import bz2
import gzip
import io
import pickle
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from tacit.data import files, load_own
from tacit.data.files import content_sha256
from tacit.data.formats import svmlight
from tacit.data.formats.adult import read_adult
from tacit.data.formats.cifar10 import ARCHIVE, load_cifar10, python_batch
from tacit.data.formats.idx import read_idx
from tacit.data.formats.svmlight import Declared, load_svmlight
from tacit.errors import InputError

MIB = 2**20
SECRET = 86421357  # a value of a private record: no line may hold it
INPUTS = np.full((6, 4), SECRET, np.float64)
TARGETS = np.array([0, 1, 0, 1, 1, 0])
SMALL = Declared(features=3, loss="logistic")


def zipped(content):
    """The same bytes at any time: they are part of a test's name."""
    return gzip.compress(content, mtime=0)


@contextmanager
def little_memory(most=8 * MIB):
    """What is allocated meanwhile by Python and NumPy stays below a limit."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < most


def refused(read, *words):
    with little_memory(), pytest.raises(InputError) as caught:
        read()
    line = str(caught.value)
    assert "\n" not in line
    assert str(SECRET) not in line
    for word in words:
        assert word in line


# Archives of NumPy


def npy(array, shape=None, dtype=None):
    """An array as NumPy writes it, under a header that may lie."""
    buffer = io.BytesIO()
    header = np.lib.format.header_data_from_array_1_0(array)
    header |= {} if shape is None else {"shape": shape}
    header |= {} if dtype is None else {"descr": dtype}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + array.tobytes()


def npz(path, inputs, *, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("inputs.npy", inputs)
        archive.writestr("targets.npy", npy(TARGETS))
    return str(path)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (npy(INPUTS, shape=(10**12, 4)), "announces an array of 32 TB, and 192 bytes follow"),
        (npy(INPUTS, shape=(10**200,)), "and 192 bytes follow"),
        (npy(INPUTS, shape=(5, 4)), "announces an array of 160 bytes, and 192 bytes follow"),
        (npy(INPUTS, shape=(-6, -4)), "announces an array of 192 bytes"),
        (npy(INPUTS, dtype="|O"), "array of objects, which are not unpickled"),
        (npy(INPUTS, dtype="V0"), "announces an array of 0 bytes"),
        (b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535, "no array in the format of NumPy"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "no array in the format of NumPy"),
        (b"\x93NUMPY\x09\x00", "no array in the format of NumPy"),
        (b"", "no array in the format of NumPy"),
    ],
)
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_lying_header_of_an_array_is_found_before_it_is_believed(tmp_path, inputs, words, method):
    source = npz(tmp_path / "3.npz", inputs, method=method)
    refused(lambda: load_own(source, (3,)), "nodes.source", f"node 3: {source}", words)


def announced(path, size):
    """An archive whose first member announces another size, where it lies and in the directory."""
    source = npz(path, npy(INPUTS))
    content = bytearray(path.read_bytes())
    for signature, place in ((b"PK\3\4", 22), (b"PK\1\2", 24)):
        struct.pack_into("<I", content, content.find(signature) + place, size)
    path.write_bytes(content)
    return source


@pytest.mark.parametrize("size", [0, 100, 2**31, 2**32 - 2])
def test_a_member_that_announces_another_size_is_refused(tmp_path, size):
    source = announced(tmp_path / "0.npz", size)
    refused(lambda: load_own(source, (0,)), f"node 0: {source} cannot be read as .npz")


def test_a_zip_bomb_is_refused_by_what_it_announces(tmp_path, monkeypatch):
    path = tmp_path / "0.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("inputs.npy", "w") as member:
            member.write(npy(np.zeros(0), shape=(8 * MIB,)))
            for _ in range(64):
                member.write(bytes(MIB))
        archive.writestr("targets.npy", npy(TARGETS))
    assert path.stat().st_size < MIB
    monkeypatch.setattr(files, "host_bytes", lambda: 100 * MIB)
    refused(
        lambda: load_own(str(path), (0,)), "announces 67.1 MB", "100 times as much is not unpacked"
    )


def test_other_packings_than_numpys_are_refused(tmp_path):
    source = npz(tmp_path / "0.npz", npy(INPUTS), method=zipfile.ZIP_LZMA)
    refused(lambda: load_own(source, (0,)), "packed otherwise")


def test_safetensors_must_fit_in_memory(tmp_path, monkeypatch):
    path = tmp_path / "0.safetensors"
    with path.open("wb") as file:
        file.truncate(2**40)  # takes no room on the disk
    refused(lambda: load_own(str(path), (0,)), "announces 1.1 TB")
    path.write_bytes(save({"inputs": INPUTS, "targets": TARGETS}))
    monkeypatch.setattr(files, "host_bytes", lambda: 100)
    refused(lambda: load_own(str(path), (0,)), "100 bytes of memory are too few")


# Compressed streams


def idx(*shape, content=b""):
    return struct.pack(f">HBB{len(shape)}I", 0, 0x08, len(shape), *shape) + content


def zeros(pack, start, count_mib):
    return b"".join(
        [pack.compress(start), *(pack.compress(bytes(MIB)) for _ in range(count_mib)), pack.flush()]
    )


def bomb(start, count_mib=64):
    """Gzip of some bytes and then zeros: a thousandth of what it unpacks to."""
    packed = zeros(zlib.compressobj(9, zlib.DEFLATED, 31), start, count_mib)
    assert len(packed) < MIB
    return packed


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (bomb(idx(4), 8), "found 13 (trailing data)"),
        (zipped(idx(2**32 - 1, 2**32 - 1)), "100 times as much is not unpacked"),
        (zipped(idx(*[2**32 - 1] * 255)), "100 times as much is not unpacked"),
        (idx(2**32 - 1, 2**32 - 1), "truncated"),
        (zipped(idx(5, content=b"1234")), "truncated"),
        (zipped(idx(4, content=b"12345")), "trailing data"),
        (idx(4, content=b"12345"), "found 13 (trailing data)"),
        (zipped(idx(4, content=b"1234"))[:-1], "readable IDX file"),
    ],
)
def test_no_more_of_an_idx_file_is_read_than_it_announces(tmp_path, content, words):
    path = tmp_path / "images"
    path.write_bytes(content)
    refused(lambda: read_idx(path), "task.data_dir", str(path), words)


def test_an_idx_file_must_fit_in_memory(tmp_path, monkeypatch):
    path = tmp_path / "images"
    monkeypatch.setattr(files, "host_bytes", lambda: 10_000)
    for content in (idx(9000, content=bytes(9000)), zipped(idx(9000, content=bytes(9000)))):
        path.write_bytes(content)
        refused(lambda: read_idx(path), "announces 9 kB, for which 10 kB of memory are too few")


def test_the_checksum_of_a_bomb_needs_little_memory(tmp_path):
    path = tmp_path / "file.gz"
    path.write_bytes(bomb(b""))
    with little_memory(), pytest.raises(OSError, match="100 times as much is not unpacked"):
        content_sha256(path)


def test_a_bomb_of_text_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "adult.data"
    path.write_bytes(bomb(b"39, State-gov\n", 80))
    with pytest.raises(InputError, match=r"unpacks to more than 16.8 MB"):
        read_adult(path)


@pytest.mark.parametrize("ending", ["gz", "bz2"])
def test_a_bomb_of_records_is_refused(tmp_path, ending, monkeypatch):
    (tmp_path / "small").write_text("1 1:1\n")
    load_svmlight("small", tmp_path, SMALL)  # what it imports is not counted
    lines = b"1 1:1\n" * (4 * MIB // 6)
    (tmp_path / f"set.{ending}").write_bytes({"gz": gzip, "bz2": bz2}[ending].compress(lines))
    monkeypatch.setattr(svmlight, "host_bytes", lambda: 2 * MIB)
    refused(
        lambda: load_svmlight(f"set.{ending}", tmp_path, SMALL),
        "holds more than 24966 records, and 2.1 MB of memory are too few",
    )


def test_a_line_without_an_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(svmlight, "_LONGEST_LINE", MIB)
    (tmp_path / "set.gz").write_bytes(bomb(b"1 1:1\n1 "))
    refused(lambda: load_svmlight("set.gz", tmp_path, SMALL), "line 2 is longer than 1.05 MB")


def test_a_batch_of_an_archive_may_not_announce_gigabytes(tmp_path):
    member = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
    member.size = 2**40
    (tmp_path / ARCHIVE.name).write_bytes(zipped(member.tobuf() + bytes(10240)))
    refused(lambda: load_cifar10(tmp_path), "announces 1099511627776 bytes")


def test_a_pickle_may_not_ask_for_a_memo_of_gigabytes():
    content = b"\x80\x02}r" + struct.pack("<I", 2**31) + b"."
    assert pickle.loads(content.replace(struct.pack("<I", 2**31), b"\1\0\0\0")) == {}
    with little_memory(), pytest.raises(ValueError, match="memo is longer"):
        python_batch(content)


# Damage anywhere

READERS = {
    "0.npz": lambda path: load_own(str(path), (0,)),
    "0.safetensors": lambda path: load_own(str(path), (0,)),
    "images": read_idx,
    "images.gz": read_idx,
    "set": lambda path: load_svmlight(path.name, path.parent, SMALL),
    "set.gz": lambda path: load_svmlight(path.name, path.parent, SMALL),
    "adult.data": read_adult,
}
ADULT = (
    b"39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
    b"Male, 2174, 0, 40, United-States, <=50K\n"
)


def whole(name, tmp_path):
    """A right file of each kind."""
    lines = b"1 1:0.5 3:2\n-1 2:1e3\n1 1:7\n"
    content = {
        "0.safetensors": save({"inputs": INPUTS, "targets": TARGETS}),
        "images": idx(3, 4, content=bytes(12)),
        "images.gz": zipped(idx(3, 4, content=bytes(12))),
        "set": lines,
        "set.gz": zipped(lines),
        "adult.data": ADULT * 3,
    }
    return (
        content[name] if name in content else Path(npz(tmp_path / name, npy(INPUTS))).read_bytes()
    )


def mutated(content, draw):
    """Some bytes are changed, cut out, doubled or put in."""
    changed = bytearray(content)
    for _ in range(int(draw.integers(1, 4))):
        at = int(draw.integers(0, max(1, len(changed))))
        length = int(draw.integers(1, 9))
        piece = draw.integers(0, 256, length, dtype=np.uint8).tobytes()
        match int(draw.integers(0, 5)):
            case 0:
                changed[at : at + 1] = piece[:1]
            case 1:
                changed[at : at + length] = piece
            case 2:
                del changed[at : at + length]
            case 3:
                changed[at:at] = changed[at : at + length]
            case _:
                changed[at : at + 4] = draw.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", b"9999"])
    return bytes(changed)


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused_in_one_line(name, tmp_path):
    original, path = whole(name, tmp_path), tmp_path / name
    path.write_bytes(original)
    READERS[name](path)
    draw = np.random.default_rng(zlib.crc32(name.encode()))
    said = []
    with little_memory(64 * MIB):
        for _ in range(150):
            path.write_bytes(mutated(original, draw))
            try:
                READERS[name](path)
            except InputError as error:
                said.append(str(error))
    assert len(said) > 20
    assert [line for line in said if "\n" in line or str(SECRET) in line] == []


@pytest.mark.parametrize("name", ["0.npz", "0.safetensors"])
def test_what_is_wrong_in_a_record_is_not_quoted(name, tmp_path):
    path = tmp_path / name
    inputs = INPUTS.copy()
    inputs[2, 1] = np.nan
    if name.endswith("npz"):
        npz(path, npy(inputs))
    else:
        path.write_bytes(save({"inputs": inputs, "targets": TARGETS}))
    refused(
        lambda: load_own(str(path), (0,)), f"node 0 ({path})", "1 of 6 records", "finite numbers"
    )
