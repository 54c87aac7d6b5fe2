"""Files that only their owner can read, and that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["appearing", "make_private_folder", "new_private_file"]


def make_private_folder(path: Path) -> None:
    """A folder for its owner alone, whatever the umask; one that is there is left as it is.

    Raises:
        OSError: it cannot be made.
    """
    if not path.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
            path.chmod(0o700)


def new_private_file(path: str | Path) -> int:
    """The descriptor of a new, empty file that its owner alone may read and write.

    Raises:
        OSError: it is there, or cannot be made.
    """
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A new private file under another name, which has its own name once it is written.

    A kill leaves the whole file or none of that name. It takes a file system with hard links.

    Raises:
        FileExistsError: the file was there; it is left as it is.
        OSError: it cannot be made.
    """
    aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
    os.close(new_private_file(aside))
    try:
        yield aside
        os.link(aside, path)
    finally:
        with suppress(OSError):
            os.unlink(aside)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
