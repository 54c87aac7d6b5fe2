"""Files that others may have written: opened only if they are plain, and read within a bound.

A path may come from another party, and lead to a pipe that never ends, to a device, or to more
than memory holds. `OSError` is raised as the system raises it, with a reason of one line. TOML is
read here too, so that an experiment can be looked into before PyTorch is loaded.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

from tacit.base.free_memory import host_bytes, in_words
from tacit.errors import InputError


def open_plain(path: str | Path, most: int | None = None) -> io.BufferedReader:
    """A plain file, to be read; nothing waits for a pipe, and no device is read.

    It may hold `most` bytes, by default any number.

    Raises:
        OSError: it cannot be opened, is no plain file, or holds more.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a zero byte
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    found, reason, number = os.fstat(descriptor), "", errno.EINVAL
    if stat.S_ISDIR(found.st_mode):
        reason, number = os.strerror(errno.EISDIR), errno.EISDIR
    elif not stat.S_ISREG(found.st_mode):
        reason = "is no plain file"
    elif most is not None and found.st_size > most:
        reason = f"holds more than {in_words(most)}"
    if reason:
        os.close(descriptor)
        raise OSError(number, reason, str(path))
    return os.fdopen(descriptor, "rb")


def read_plain(path: str | Path, most: int) -> bytes:
    """All of a plain file, which may hold `most` bytes.

    Raises:
        OSError: as `open_plain`.
    """
    with open_plain(path, most) as file:
        return file.read(os.fstat(file.fileno()).st_size)  # what is added meanwhile is left out


def check_plain(path: str | Path) -> None:
    """Refuse what a library must not open: no plain file, or more than memory holds twice.

    Raises:
        OSError: as `open_plain`; also if it is too large.
    """
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
    # To ask takes milliseconds, and a small one always fits.
    if size > 2**22 and 2 * size > (free := host_bytes()):
        reason = f"holds {in_words(size)}, for which {in_words(free)} of memory are too few"
        raise OSError(errno.EINVAL, reason, str(path))


_MOST_BYTES = 2**24
_TABLES = (".csv", ".csv.gz", ".tsv", ".parquet", ".pq")
_KINDS = {
    "schema": ("target", "is the schema of a table: name the experiment, whose task.schema is it"),
    "experiment": ("task", "is an experiment: a schema is what its task.schema names"),
}

# What tomllib takes for a dotted key grows with the square of its parts; no key here has three.
_LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:"[^"\n]*"|'[^'\n]*'|[\w-]++)[ \t]*+\.[ \t]*+){30}""")


def read_toml(path: Path, where: str, wanted: str) -> dict[str, Any]:
    """Read a file of TOML.

    `where` is what an error names, and `wanted` is what the file should be: `experiment` or
    `schema`.

    Raises:
        InputError: it cannot be read, is no TOML, or is another file than the one that is wanted:
            says which.
    """
    if path.name.lower().endswith(_TABLES):
        flag = "parquet" if path.suffix.lower() in (".parquet", ".pq") else "csv"
        expected = f"is a table: `tacit init --{flag} {path}` writes an experiment and a schema"
        raise InputError(where, str(path), expected)
    if (path / "config.toml").is_file():
        expected = f"is the folder of a run, whose experiment is {path / 'config.toml'}"
        raise InputError(where, str(path), expected)
    try:
        values = parse_toml(read_plain(path, _MOST_BYTES).decode("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(where, str(path), f"is not valid TOML: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise InputError(where, str(path), f"{reason}: give a readable TOML file") from None
    for kind, (section, expected) in _KINDS.items():
        if kind != wanted and section in values and _KINDS[wanted][0] not in values:
            raise InputError(where, str(path), expected)
    return values


def parse_toml(text: str) -> dict[str, Any]:
    """Read TOML.

    Raises:
        TOMLDecodeError: it is none, or none that is sensible here.
    """
    if _LONG_KEY.search(text):
        raise tomllib.TOMLDecodeError("it has a key of too many parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("it is nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:
        raise tomllib.TOMLDecodeError("it has an integer of thousands of digits") from None


def own_part(run: Path) -> Path:
    """Of a run of several processes of which one ran here, that one's folder; else the run's."""
    whole = os.path.isfile(run / "config.toml") or not os.path.isdir(run)
    parts = [] if whole else [path for path in run.glob("rank-*") if path.is_dir()]
    return parts[0] if len(parts) == 1 else run
