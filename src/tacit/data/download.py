"""Downloads one file, checks what is in it, and only then gives it its name."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TransferSpeedColumn,
)

from tacit.data.bounded import UNREADABLE, content

__all__ = ["DownloadError", "content_sha256", "download", "file_sha256"]

_CHUNK_BYTES = 1 << 16


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
    """Download `url` to `target`, with progress on a terminal.

    The file appears under its name only when it is complete and right; whatever happens, no
    part of it stays, nor a folder that was made for it.

    Args:
        url: where it is.
        target: where it goes; its folder is made.
        sha256: the checksum that the file must have.
        console: where progress is shown, if it is a terminal; standard error by default.
        digest: the checksum of a file, in hexadecimal; `content_sha256` by default.

    Raises:
        DownloadError: if there is no answer, the transfer breaks off, the checksum differs, or
            the folder cannot be written.
    """
    made = [folder for folder in target.parents if not folder.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as folder:
            part = Path(folder) / target.name
            _fetch(url, part, console or Console(stderr=True))
            found = (digest or content_sha256)(part)
            if found != sha256:
                raise DownloadError(f"{url}: SHA-256 of its content is {found}, not {sha256}")
            part.replace(target)
    # requests raises OSError for a broken transfer and ValueError for a malformed address
    except (*UNREADABLE, ValueError) as error:
        reason = f"{url}: {type(error).__name__}: {error}"
        raise DownloadError(textwrap.shorten(reason, 300, placeholder=" ...")) from error
    finally:
        _remove_empty(made)


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove those folders that are empty, innermost first: made for a file that never came."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


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
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(url: str, part: Path, console: Console) -> None:
    import pooch  # here, since most runs download nothing

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = _ProgressBar(progress, progress.add_task(part.name, total=None))
        fetch = pooch.HTTPDownloader(progressbar=bar, chunk_size=_CHUNK_BYTES)
        fetch(url, str(part), None)


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
