"""Reading files that anyone may have made: sizes are checked before they are allocated.

A few bytes of gzip may announce terabytes, and a header may announce what does not follow. So what
a file announces is compared with what it can hold and with the memory that is free, and no more is
read than was announced.
"""

from __future__ import annotations

import gzip
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from tacit.free_memory import host_bytes, in_words

__all__ = ["UNREADABLE", "UnfitFileError", "check_size", "content", "read_content", "read_member"]

#: What reading and decompressing raise, `UnfitFileError` included.
UNREADABLE = (OSError, EOFError, zlib.error)

_GZIP = b"\x1f\x8b"
# A byte of deflate, which gzip and zip hold, makes 1,032 at most.
_MOST_A_BYTE = 1032
_PIECE_BYTES = 1 << 20
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class UnfitFileError(OSError):
    """A file is not what it should be; says why, and quotes no record."""


def check_size(size: int, packed: int | None = None) -> None:
    """Refuse what a file announces, if it cannot be so or would not fit in memory.

    Args:
        size: bytes that it announces.
        packed: bytes of deflate that shall make them, if they are packed.

    Raises:
        UnfitFileError: it does not fit.
    """
    shown = in_words(min(size, 10**18))
    if packed is not None and size > _MOST_A_BYTE * packed:
        raise UnfitFileError(f"announces {shown}, which its {in_words(packed)} cannot hold")
    free = host_bytes()
    # Once as they are read, and once as the numbers of a run.
    if 2 * size > free:
        raise UnfitFileError(f"announces {shown}, for which {in_words(free)} of memory are too few")


@contextmanager
def content(path: Path) -> Iterator[tuple[IO[bytes], bool]]:
    """The content of a file as a stream, decompressed if it is gzip, and whether it is.

    Raises:
        OSError, EOFError, zlib.error: if it cannot be read or decompressed (`UNREADABLE`).
    """
    with path.open("rb") as file:
        packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        if not packed:
            yield file, False
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield cast(IO[bytes], unpacked), True


def read_content(path: Path, most: int) -> bytes:
    """All of a file, decompressed if it is gzip.

    Args:
        path: the file.
        most: how many bytes it may hold.

    Raises:
        OSError, EOFError, zlib.error: if it cannot be read or decompressed, or holds more.
    """
    found = bytearray()
    with content(path) as (stream, _):
        while piece := stream.read(_PIECE_BYTES):
            found += piece
            if len(found) > most:
                raise UnfitFileError(f"holds more than {in_words(most)}")
    return bytes(found)


def read_member(archive: zipfile.ZipFile, name: str) -> np.ndarray[Any, Any]:
    """The array in a member `name` of a NumPy archive, which is never unpickled.

    Raises:
        UnfitFileError: its size and what it announces do not agree, do not fit in memory, or it
            is no array of numbers or text.
        ValueError, EOFError, zlib.error, zipfile.BadZipFile: it is damaged.
    """
    info = archive.getinfo(name)
    if info.compress_type not in _PACKINGS:
        raise UnfitFileError(f"its member {name} is packed otherwise than NumPy packs")
    stored = info.compress_type == zipfile.ZIP_STORED
    if stored and info.file_size != info.compress_size:
        raise UnfitFileError(f"its member {name} has two sizes")
    check_size(info.file_size, None if stored else info.compress_size)
    with archive.open(info) as stream:
        shape, dtype = _array_header(stream, name)
        wanted, there = math.prod(shape) * dtype.itemsize, info.file_size - stream.tell()
    if wanted != there or min(shape, default=0) < 0:
        raise UnfitFileError(
            f"its member {name} announces an array of {in_words(min(wanted, 10**18))}, and "
            f"{in_words(there)} follow"
        )
    with archive.open(info) as stream:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def _array_header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array in NumPy's format; the stream then stands at its numbers."""
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        shape, _, dtype = readers[np.lib.format.read_magic(stream)](stream)
    except (zlib.error, EOFError, zipfile.BadZipFile):
        raise
    except Exception:  # a header is a Python expression: a damaged one may raise anything
        raise UnfitFileError(f"its member {name} is no array in the format of NumPy") from None
    if dtype.hasobject:
        raise UnfitFileError(f"its member {name} is an array of objects, which are not unpickled")
    return shape, dtype
