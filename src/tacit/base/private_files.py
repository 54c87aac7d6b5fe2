"""Files that are their owner's alone: readable by nobody else, whole or not there, and durable.

Everything that is written into a run folder or a folder of ledgers passes through here, whatever
the umask of the process is: files have mode 0600 and folders 0700. A file is written under a
temporary name, brought to the disk and then renamed, so that a kill, a power cut or a full disk
leaves what was there before.

These functions raise `OSError` as the system does; `plain_errors` makes one plain line of it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tacit.errors import InputError

LOCK = "lock"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_FILE, _FOLDER = 0o600, 0o700


def write_private(
    path: Path, content: bytes, *, settled: bool = True, over: Path | None = None
) -> None:
    """The whole content or, whenever the process or the machine stops, what was there before.

    Unless `settled`, the caller waits for the disk itself, by `sync_folder`, to have the new one.
    `over` is a file of the folder that nobody needs: it ends, and the new one takes its place on
    the disk, which takes half the time of finding another.
    """
    if over is not None and over.stat().st_nlink > 1:
        over.unlink()  # what else is linked to it stays as it is
    elif over is not None:
        os.replace(over, _part(path))
    part = _write_part(path, content)
    os.replace(part, path)
    if settled:
        sync_folder(path.parent)


def write_passing(path: Path, content: bytes) -> None:
    """The same of a file that is written again soon: it does not wait for the disk.

    A kill of the process leaves a whole file all the same; when the machine stops, it may be
    damaged or lost.
    """
    os.replace(_write_part(path, content, durable=False), path)


def write_together(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Replace several files of a folder as one; the last of them vouches for the others.

    All of them are on the disk before the first is replaced, so that a full disk changes nothing.
    The last one is removed before, and is there again only when all are: whoever finds it finds
    the others that were written with it.
    """
    *others, last = contents
    parts: list[Path] = []
    try:
        for name, content in contents.items():
            parts.append(_write_part(folder / name, content))
    except BaseException:
        for part in parts:
            _discard(part)
        raise
    remove_files(folder, last)
    for name, part in zip(others, parts, strict=False):
        os.replace(part, folder / name)
    sync_folder(folder)
    os.replace(parts[-1], folder / last)
    sync_folder(folder)


def append_line(path: Path, line: bytes) -> None:
    """Add a line to a file, made if missing; a kill may cost this line, none before or after it.

    It does not wait for the disk, as `sync_folder` does.
    """
    descriptor = _open_private(path, os.O_APPEND)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        _write_all(descriptor, b"\n" * torn + line + b"\n")
    finally:
        os.close(descriptor)


def remove_files(folder: Path, *names: str) -> None:
    """Remove files of a folder that are there, durably."""
    present = [name for name in names if os.path.lexists(folder / name)]
    for name in present:
        os.unlink(folder / name)
    if present:
        sync_folder(folder)


def make_private_folder(path: Path) -> None:
    """Make a folder, and those above it; one that is there already stays as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mkdir(path, _FOLDER)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    os.chmod(path, _FOLDER)  # the umask may have taken from it


def new_private_file(path: str | Path) -> int:
    """The descriptor of a new, empty file; raises `FileExistsError` where one is there."""
    return _open_private(Path(path), os.O_EXCL | os.O_CLOEXEC)


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A new file under another name, which has its own name once it is written.

    A kill leaves the whole file or none of that name. It takes a file system with hard links.

    Raises:
        FileExistsError: the file was there; it is left as it is.
    """
    aside = path.with_name(f"{path.name}.{os.urandom(8).hex()}.new")
    os.close(new_private_file(aside))
    try:
        yield aside
        os.link(aside, path)
    finally:
        _discard(aside)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Bring to the disk which files a folder has; of a file, what it holds."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(
    folder: Path,
    where: str = "out",
    expected: str = "a run folder that no other process uses: one is running it now",
) -> Iterator[None]:
    """Hold a folder's lock within; the system releases it when the process ends, however it ends.

    `where` is the key or argument that named the folder, and `expected` is what is said where
    another process holds the lock.

    Raises:
        InputError: another process holds it, or the folder cannot be written.
    """
    with plain_errors(where, folder):
        descriptor = _open_private(folder / LOCK, 0)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            taken = error.errno in (errno.EACCES, errno.EAGAIN)
            reason = f"a folder that can be locked ({error.strerror})"
            raise InputError(where, str(folder), expected if taken else reason) from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def plain_errors(where: str, path: Path) -> Iterator[None]:
    """Say in one plain line that something cannot be written: a full disk, a lost folder.

    `where` is the key or argument that named the place.

    Raises:
        InputError: in place of every `OSError` within.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(where, str(path), f"cannot be written ({reason})") from None


def lacks_room(error: OSError) -> bool:
    """Whether a file could not be written since there is no room for it: no defect of ours."""
    return error.errno in _NO_ROOM


def _write_part(path: Path, content: bytes, *, durable: bool = True) -> Path:
    """The content under a temporary name, which is given, and if durable on the disk."""
    part = _part(path)
    descriptor = _open_private(part, 0)
    try:
        try:
            _write_all(descriptor, content)
            os.ftruncate(descriptor, len(content))  # of a longer file that was there
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        _discard(part)
        raise
    return part


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _open_private(path: Path, flags: int) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | flags, _FILE)
    try:
        os.fchmod(descriptor, _FILE)  # one that was there may be anyone's to read
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _discard(path: Path) -> None:
    with suppress(OSError):
        os.unlink(path)
