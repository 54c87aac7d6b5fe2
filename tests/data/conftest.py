"""Real image files, and tiny files in the same format."""

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from data_server import serving

# Type codes as in the description of the format, kept apart from the reader's own table.
CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}

IdxBytes = Callable[[np.ndarray], bytes]
WriteImages = Callable[..., dict[str, bytes]]


@pytest.fixture
def server():
    """A server on this machine, without files."""
    with serving() as answers:
        yield answers


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    """Reach servers of the tests directly, also where a proxy is configured."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def real_files(*names):
    """The folder with real data sets; without one of them a test is passed over."""
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("TACIT_DATA_DIR", beside))
    for name in names:
        if not (folder / name).is_dir():
            pytest.skip(f"no folder {folder / name}: set TACIT_DATA_DIR to the real files")
    return folder


@pytest.fixture(scope="session")
def data_dir():
    """The folder with the real `mnist/` and `fashion-mnist/`."""
    return real_files("mnist", "fashion-mnist")


@pytest.fixture(scope="session")
def adult_dir():
    """The folder with the real `adult/`."""
    return real_files("adult")


@pytest.fixture(scope="session")
def idx_bytes():
    """A writer of IDX files."""

    def write(array):
        code = CODES[array.dtype.str[1:]]
        header = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
        return header + array.astype(array.dtype.newbyteorder(">")).tobytes()

    return write


@pytest.fixture(scope="session")
def image_files(idx_bytes):
    """Writer of the four files of an image data set with a few records, as bytes by name."""

    def write(*, train=6, test=3, seed=0):
        generator = np.random.default_rng(seed)
        files = {}
        for half, records in (("train", train), ("t10k", test)):
            images = generator.integers(0, 256, (records, 28, 28), dtype=np.uint8)
            labels = generator.integers(0, 10, records, dtype=np.uint8)
            files[f"{half}-images-idx3-ubyte"] = idx_bytes(images)
            files[f"{half}-labels-idx1-ubyte"] = idx_bytes(labels)
        return files

    return write


@pytest.fixture(scope="session")
def write_folder():
    """Write files into a new folder; names that end in `.gz` are compressed."""

    def write(folder, files):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            packed = gzip.compress(content) if name.endswith(".gz") else content
            (folder / name).write_bytes(packed)

    return write
