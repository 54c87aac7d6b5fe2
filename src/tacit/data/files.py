"""Files of data sets: found in a folder or downloaded, checked, and read within bounds.

A downloaded file gets its name only once its content was checked. Files may be anybody's work, so
sizes are checked before they are allocated: a few bytes of gzip may announce terabytes, and a
header may announce what does not follow. What a file announces is compared with what it can hold
and with the memory that is free, and no more is read than was announced. What is unpacked may be
so many times as large as its file (`MOST_TIMES`), and no more.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import io
import math
import os
import tempfile
import textwrap
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TransferSpeedColumn,
)

from tacit.base.free_memory import host_bytes, in_words
from tacit.base.plain_files import open_plain
from tacit.errors import InputError

#: What reading and decompressing raise, `UnfitFileError` included.
UNREADABLE = (OSError, EOFError, zlib.error)

_OPENERS: Mapping[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open}
#: How many times as large as its file what is unpacked may be: text and images make 3 to 30.
MOST_TIMES = 100
_ALWAYS = 1 << 24  # bytes that may be unpacked from any file
_PIECE_BYTES = 1 << 20
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class UnfitFileError(OSError):
    """A file is not what it should be; says why, and quotes no record."""


def check_size(size: int, packed: int | None = None) -> None:
    """Refuse what a file announces, if it cannot be so or would not fit in memory.

    `size` is how many bytes it announces, and `packed` how many bytes of deflate shall make them,
    if they are packed.

    Raises:
        UnfitFileError: it does not fit.
    """
    shown = in_words(min(size, 10**18))
    if packed is not None and size > _most_of(packed):
        raise UnfitFileError(
            f"announces {shown}, and {in_words(packed)} of it are there: {_UNPACK}"
        )
    free = host_bytes()
    # Once as they are read, and once as the numbers of a run.
    if 2 * size > free:
        raise UnfitFileError(f"announces {shown}, for which {in_words(free)} of memory are too few")


_UNPACK = f"more than {MOST_TIMES} times as much is not unpacked (if you trust it, unpack it)"


def _most_of(packed: int) -> int:
    return max(_ALWAYS, MOST_TIMES * packed)


class _Unpacked(io.RawIOBase):
    """What is unpacked from a file, up to so many bytes; no more is ever asked for."""

    def __init__(self, stream: IO[bytes], packed: int) -> None:
        self._stream, self._packed, self._left = stream, packed, _most_of(packed)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._stream.read(len(buffer))
        self._left -= len(piece)
        if self._left < 0:
            raise UnfitFileError(
                f"unpacks to more than {in_words(_most_of(self._packed))}, and "
                f"{in_words(self._packed)} of it are there: {_UNPACK}"
            )
        buffer[: len(piece)] = piece
        return len(piece)


@contextmanager
def content(path: Path) -> Iterator[tuple[BinaryIO, bool]]:
    """The content of a plain file as a stream, unpacked if it is gzip or bzip2, and whether it is.

    Raises:
        OSError, EOFError, zlib.error: if it cannot be read or unpacked (`UNREADABLE`), or is larger
            than its file may make it.
    """
    with open_plain(path) as file:
        opener = _OPENERS.get(file.read(2))
        file.seek(0)
        if opener is None:
            yield file, False
            return
        with opener(file) as stream:
            bounded = _Unpacked(stream, os.fstat(file.fileno()).st_size)
            yield io.BufferedReader(bounded, _PIECE_BYTES), True


def read_content(path: Path, most: int) -> bytes:
    """All of a file, unpacked if it is gzip or bzip2; at most `most` bytes.

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


_CHUNK_BYTES = 1 << 16
#: Environment variable with a URL prefix, to be followed by `<dataset>/<file>`.
MIRROR_VARIABLE = "TACIT_MIRROR"


class DownloadError(Exception):
    """A file could not be downloaded; its text is one line that says why."""


def download(
    url: str,
    target: Path,
    sha256: str,
    console: Console | None = None,
    *,
    digest: Callable[[Path], str] | None = None,
) -> None:
    """Download `url` to `target`, with progress on a terminal (by default that of standard error).

    The file appears under its name only when it is complete and its checksum is `sha256`, in
    hexadecimal, as `digest` of a file gives it (`content_sha256` by default). Whatever happens, no
    part of it stays, nor a folder that was made for it.

    Raises:
        DownloadError: if there is no answer, the transfer breaks off, the checksum differs, or
            the folder cannot be written.
    """
    import pooch  # here, since most runs download nothing

    made = [folder for folder in target.parents if not folder.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as folder:
            part = Path(folder) / target.name
            shown = console or Console(stderr=True)
            text = TextColumn("{task.description}")
            columns = text, BarColumn(), DownloadColumn(), TransferSpeedColumn()
            with Progress(*columns, console=shown, disable=not shown.is_terminal) as progress:
                bar = _ProgressBar(progress, progress.add_task(part.name, total=None))
                fetch = pooch.HTTPDownloader(progressbar=bar, chunk_size=_CHUNK_BYTES)
                fetch(url, str(part), None)
            found = (digest or content_sha256)(part)
            if found != sha256:
                raise DownloadError(f"{url}: SHA-256 of its content is {found}, not {sha256}")
            part.replace(target)
    # requests raises OSError for a broken transfer and ValueError for a malformed address
    except (*UNREADABLE, ValueError) as error:
        reason = f"{url}: {type(error).__name__}: {error}"
        raise DownloadError(textwrap.shorten(reason, 300, placeholder=" ...")) from error
    finally:
        for outer in made:  # innermost first: what was made for a file that never came
            with contextlib.suppress(OSError):
                outer.rmdir()


def content_sha256(path: Path) -> str:
    """SHA-256 of a file's content, decompressed if it is gzip, in hexadecimal.

    Of the content and not of the archive: mirrors compress the same data differently, and some
    servers decompress it on the way.
    """
    digest = hashlib.sha256()
    with content(path) as (stream, _):
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file as it is, in hexadecimal, read in pieces."""
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass
class _ProgressBar:
    """One task of a `rich` progress, with the interface that pooch asks of a progress bar."""

    progress: Progress
    task: TaskID

    @property
    def total(self) -> float | None:
        return self.progress.tasks[0].total

    @total.setter
    def total(self, size: int) -> None:
        self.progress.update(self.task, total=size or None)  # 0: the server did not say

    def update(self, size: int) -> None:
        self.progress.update(self.task, advance=size)

    def reset(self) -> None:
        self.progress.update(self.task, completed=0)

    def close(self) -> None:
        self.progress.refresh()


@dataclass(frozen=True)
class PublishedFile:
    """One file of a data set, as it is published: what follows the last slash of `url` is its name.

    `sha256` is the checksum that `digest` of the file must give: by default of its content,
    decompressed if it is gzip.
    """

    dataset: str
    url: str
    sha256: str
    digest: Callable[[Path], str] = content_sha256

    @property
    def name(self) -> str:
        """The file's name where it is published."""
        return self.url.rpartition("/")[2]

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the same content may have in a folder: unpacked, and packed."""
        plain = self.name.removesuffix(".gz")
        return (plain, f"{plain}.gz")


def find_file(names: Iterable[str], folders: Iterable[Path]) -> Path | None:
    """The first file of one of the names in the first folder that has one; None if none has."""
    listed = list(names)
    for folder in folders:
        for name in listed:
            path = folder / name
            if os.path.isfile(path):  # False, where Path.is_file raises, in a locked folder
                return path
    return None


def obtain(file: PublishedFile, data_dir: Path, folders: Sequence[Path], advice: str) -> Path:
    """The path of a file, downloaded to the first of the folders if it is in none of them.

    `folders` are where it may lie, best first. An error names `data_dir` as the value of
    `task.data_dir`, and gives `advice` on what to do after what was looked for and where.

    Raises:
        InputError: on `task.data_dir`, if it is nowhere and cannot be downloaded.
    """
    found = find_file(file.names, folders)
    if found is not None:
        return found
    target = folders[0] / file.name
    mirror = os.environ.get(MIRROR_VARIABLE)
    address = f"{mirror.rstrip('/')}/{file.dataset}/{file.name}" if mirror else file.url
    try:
        download(address, target, file.sha256, digest=file.digest)
    except DownloadError as error:
        looked = " or ".join(map(str, folders))
        expected = f"{file.names[0]}[.gz] was not found in {looked}; {advice}"
        reason = f"{expected}; the download failed: {error}"
        raise InputError("task.data_dir", str(data_dir), reason) from error
    return target
