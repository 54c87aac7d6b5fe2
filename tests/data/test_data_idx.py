"""The IDX reader against a writer of its own and against damaged files."""

import gzip
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tacit.data.formats.idx import read_idx, read_labelled_images
from tacit.errors import InputError

LABELS = np.arange(5, dtype=np.uint8)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "some-file"


def refused(path, *words, rank=None):
    with pytest.raises(InputError) as caught:
        read_idx(path, rank)
    assert caught.value.where == "task.data_dir"
    assert caught.value.value == str(path)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in caught.value.expected


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data(), compressed=st.booleans())
def test_reads_what_was_written(idx_bytes, data, compressed):
    shapes = st_numpy.array_shapes(min_dims=1, max_dims=4, max_side=4)
    array = data.draw(st_numpy.arrays("u1", shapes))
    content = idx_bytes(array)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "array"
        path.write_bytes(gzip.compress(content) if compressed else content)
        read = read_idx(path)
    assert read.dtype == np.uint8
    assert read.flags.writeable
    np.testing.assert_array_equal(read, array)


@settings(max_examples=150, deadline=None)
@given(
    code=st.sampled_from([0x08, 0x0E, 0x0A]),
    sizes=st.lists(st.sampled_from([0, 1, 3, 2**32 - 1]), max_size=70),
    tail=st.binary(max_size=20),
)
def test_any_header_is_read_or_refused(code, sizes, tail):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "array"
        path.write_bytes(struct.pack(f">HBB{len(sizes)}I", 0, code, len(sizes), *sizes) + tail)
        try:
            shape = read_idx(path).shape
        except InputError:
            return
    assert shape == tuple(sizes)
    assert code == 0x08


def test_the_name_says_nothing_about_compression(tmp_path, idx_bytes):
    plain, packed = tmp_path / "plain.gz", tmp_path / "packed"
    plain.write_bytes(idx_bytes(LABELS))
    packed.write_bytes(gzip.compress(idx_bytes(LABELS)))
    np.testing.assert_array_equal(read_idx(plain), LABELS)
    np.testing.assert_array_equal(read_idx(packed), LABELS)


def test_refuses_a_truncated_file(path, idx_bytes):
    path.write_bytes(idx_bytes(LABELS)[:-1])
    refused(path, "13 bytes", "found 12", "truncated")


def test_refuses_a_truncated_header(path, idx_bytes):
    path.write_bytes(idx_bytes(LABELS)[:6])
    refused(path, "header of 8 bytes", "found 6", "truncated")


def test_refuses_trailing_data(path, idx_bytes):
    path.write_bytes(idx_bytes(LABELS) + b"x")
    refused(path, "13 bytes", "found 14", "trailing data")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "an empty file"),
        (b"\x80\x04K\x01", "80044b01"),
        *((bytes((0, 0, code, 1)), f"0000{code:02x}01") for code in range(0x09, 0x0F)),
    ],
)
def test_refuses_a_wrong_magic_number(path, content, found):
    path.write_bytes(content)
    refused(path, "an IDX file of unsigned bytes starts with 000008", found)


def test_refuses_another_rank(path, idx_bytes):
    path.write_bytes(idx_bytes(LABELS))
    refused(path, "3 dimensions", "found 1", rank=3)


@pytest.mark.parametrize("damage", [lambda packed: packed[:-9], lambda packed: packed[:15] + b"?"])
def test_refuses_a_damaged_archive(path, idx_bytes, damage):
    path.write_bytes(damage(gzip.compress(idx_bytes(LABELS))))
    refused(path, "readable IDX file")


def test_refuses_a_file_that_cannot_be_read(tmp_path):
    refused(tmp_path / "missing", "FileNotFoundError")
    refused(tmp_path, "IsADirectoryError")


def labelled_images(folder, idx_bytes, images, labels):
    paths = folder / "images", folder / "labels"
    for path, array in zip(paths, (images, labels), strict=True):
        path.write_bytes(idx_bytes(array))
    return paths


def test_reads_labelled_images(tmp_path, idx_bytes):
    images = np.arange(5 * 6, dtype=np.uint8).reshape(5, 2, 3)
    paths = labelled_images(tmp_path, idx_bytes, images, LABELS)
    pixels, classes = read_labelled_images(*paths, (2, 3))
    np.testing.assert_array_equal(pixels, images)
    np.testing.assert_array_equal(classes, LABELS)


@pytest.mark.parametrize(
    ("images", "labels", "file", "words"),
    [
        (np.zeros((4, 2, 3), "u1"), LABELS, "labels", "4 labels were expected for images, found 5"),
        (np.zeros((5, 3, 2), "u1"), LABELS, "images", "2 x 3 were expected, found 3 x 2"),
        (np.zeros((5, 6), "u1"), LABELS, "images", "3 dimensions was expected, found 2"),
        (np.zeros((5, 2, 3), "u1"), np.zeros((5, 1), "u1"), "labels", "found 2"),
        (np.zeros((5, 2, 3), "f4"), LABELS, "images", "unsigned bytes starts with"),
        (np.zeros((5, 2, 3), "u1"), LABELS.astype("i4"), "labels", "unsigned bytes starts with"),
    ],
)
def test_refuses_images_and_labels_that_do_not_fit(
    tmp_path, idx_bytes, images, labels, file, words
):
    paths = labelled_images(tmp_path, idx_bytes, images, labels)
    with pytest.raises(InputError, match=words) as caught:
        read_labelled_images(*paths, (2, 3))
    assert caught.value.value == str(tmp_path / file)
