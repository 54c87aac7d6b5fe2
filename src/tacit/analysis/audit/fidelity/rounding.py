"""Figures of private records as they are written down: to two digits, to the safe side."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

_DIGITS = 2


def up(value: float) -> float:
    """The least number of two significant digits that is not below one of 0 or more."""
    return _rounded(value, ROUND_CEILING)


def down(value: float) -> float:
    """The largest number of two significant digits that is not above one of 0 or more."""
    return _rounded(value, ROUND_FLOOR)


def _rounded(value: float, direction: str) -> float:
    if not math.isfinite(value) or value == 0:
        return value
    exact = Decimal(repr(value))  # so that what has two digits stays as it is
    unit = Decimal(1).scaleb(exact.adjusted() + 1 - _DIGITS)
    return float(exact.quantize(unit, rounding=direction))
