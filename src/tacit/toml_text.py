"""TOML that somebody else wrote: read in bounded time and memory.

It needs errors alone, so that a file can be looked into before PyTorch is loaded.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from tacit.errors import InputError

__all__ = ["parse_toml", "read_toml"]

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

    Args:
        path: of the file.
        where: what an error names.
        wanted: what it should be, `experiment` or `schema`.

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
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise InputError(where, str(path), f"must be at most {_MOST_BYTES:,} bytes")
        values = parse_toml(content.decode("utf-8"))
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
