"""Finds the files of a published data set in a folder, or downloads them to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit.data.download import DownloadError, content_sha256, download
from tacit.errors import InputError

__all__ = ["MIRROR_VARIABLE", "PublishedFile", "find_file", "obtain"]

#: Environment variable with a URL prefix, to be followed by `<dataset>/<file>`.
MIRROR_VARIABLE = "TACIT_MIRROR"

_WHERE = "task.data_dir"


@dataclass(frozen=True)
class PublishedFile:
    """One file of a data set, as it is published.

    Args:
        dataset: as in the experiment file.
        url: where it is; what follows the last slash is its name.
        sha256: the checksum that `digest` of the file must give.
        digest: of a file; by default of its content, decompressed if it is gzip.
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

    Args:
        file: which.
        data_dir: the folder that an error names as the value of `task.data_dir`.
        folders: where it may lie, best first.
        advice: what to do if it cannot be downloaded, after what was looked for and where.

    Raises:
        InputError: on `task.data_dir`, if it is nowhere and cannot be downloaded.
    """
    found = find_file(file.names, folders)
    if found is not None:
        return found
    target = folders[0] / file.name
    try:
        download(_address(file), target, file.sha256, digest=file.digest)
    except DownloadError as error:
        looked = " or ".join(map(str, folders))
        expected = f"{file.names[0]}[.gz] was not found in {looked}; {advice}"
        reason = f"{expected}; the download failed: {error}"
        raise InputError(_WHERE, str(data_dir), reason) from error
    return target


def _address(file: PublishedFile) -> str:
    mirror = os.environ.get(MIRROR_VARIABLE)
    return f"{mirror.rstrip('/')}/{file.dataset}/{file.name}" if mirror else file.url
