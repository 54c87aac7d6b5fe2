"""TOML that somebody else wrote: read in bounded time and memory.

It stands alone, so that a file can be looked into before PyTorch is loaded.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

__all__ = ["parse_toml"]

# What tomllib takes for a dotted key grows with the square of its parts; no key here has three.
_LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:"[^"\n]*"|'[^'\n]*'|[\w-]++)[ \t]*+\.[ \t]*+){30}""")


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
