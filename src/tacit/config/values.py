"""What Python programs give as settings, as plain numbers and lists; and whole numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal

from pydantic import BeforeValidator

AverageKind = Literal["none", "tail", "exponential"]

# A decimal number of a length and size that an exact fraction of it stays small.
_DECIMAL = re.compile(r"(\d{0,20}\.)?\d{1,20}(e-?\d{1,2})?")

_MOST_NUMBERS = 1_000_000  # of a setting: one for each node or step
_DEEPEST = 2  # lists within lists: of the faults of nodes


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings, with arrays and their scalars as lists and numbers.

    NumPy, PyTorch and pandas all have `tolist`, `ndim` and `shape`; none of them is imported. What
    cannot be read, such as a tensor without numbers, stays as it is, and is refused later.
    """
    return {key: _plain(value) for key, value in values.items()}


def _plain(value: Any, depth: int = 0) -> Any:
    if type(value) in (list, tuple):
        within = depth < _DEEPEST
        return type(value)(_plain(item, depth + 1) for item in value) if within else value
    size = getattr(value, "ndim", None)
    read = getattr(value, "tolist", None)
    if not isinstance(size, int) or size > 1 or not callable(read):
        return value
    try:
        return read() if size == 0 or len(value) <= _MOST_NUMBERS else value
    except Exception:  # whatever such an object raises when it is read
        return value


def whole_number(value: Any) -> Any:
    """A float such as `1e3`, which a file may have, as the whole number that it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = BeforeValidator(whole_number)
"""Marks an `Annotated` integer that may also be written as `1e3` or `1000.0`."""


def average_rule(value: Any) -> tuple[AverageKind, Fraction]:
    """What `[train] average` says: its kind, and the share or the decay, exactly as it is written.

    It is a ValueError where it says nothing of the kind.
    """
    expected = (
        "must be 'none', 'tail:SHARE' with the share of the last steps, such as 'tail:0.5', or "
        "'exponential:DECAY' with a decay between 0 and 1, such as 'exponential:0.99'"
    )
    if not isinstance(value, str):
        raise ValueError(expected)
    if value == "none":
        return "none", Fraction(0)
    kind, _, number = value.partition(":")
    if kind not in ("tail", "exponential") or not _DECIMAL.fullmatch(number):
        raise ValueError(expected)
    share = Fraction(number)
    # As it counts, in float64: what rounds to 0 or 1 is neither a share nor a decay.
    if kind == "tail" and float(share) > 0 and share <= 1:
        return "tail", share
    if kind == "exponential" and 0 < float(share) < 1:
        return "exponential", share
    raise ValueError(expected)
