"""What the numbers and words of a mechanism may be; everything else is an `InputError`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Integral, Real

from tacit.errors import InputError
from tacit.privacy.mechanisms.base import REPLACE_ONE

__all__ = [
    "MOST_STEPS",
    "count",
    "few_enough",
    "fixed_size",
    "multipliers",
    "number",
    "positive",
    "share",
    "whole",
    "word",
]

MOST_STEPS = 1 << 24
"""Steps that one schedule may have: 128 MiB of multipliers."""

_NOT_SCHEDULES = (str, bytes, bytearray, Mapping, Set)


def number(where: str, value: object) -> float:
    """A finite number, as a float; raises InputError on truth values, text and the rest."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(where, value, "must be a number")
    try:
        plain = float(value)
    except OverflowError:
        plain = math.inf
    if not math.isfinite(plain):
        raise InputError(where, value, "must be finite")
    return plain


def positive(where: str, value: object) -> float:
    """A finite number above 0; raises InputError on anything else."""
    plain = number(where, value)
    if not plain > 0:
        raise InputError(where, value, "must be positive")
    return plain


def share(where: str, value: object) -> float:
    """A rate in (0, 1]; raises InputError on anything else."""
    plain = number(where, value)
    if not 0 < plain <= 1:
        raise InputError(where, value, "must lie in (0, 1]")
    return plain


def whole(where: str, value: object) -> int:
    """A whole number of 1 or more; raises InputError on anything else."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(where, value, "must be a whole number")
    if value < 1:
        raise InputError(where, value, "must be 1 or more")
    return int(value)


def count(where: str, value: object) -> int:
    """A whole number of 0 or more, within 2^40; raises InputError on anything else."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(where, value, "must be a whole number")
    plain = int(value)
    if not 0 <= plain <= 1 << 40:
        raise InputError(where, value, "must lie in 0..2^40")
    return plain


def word(where: str, value: object, known: Sequence[str]) -> None:
    """Raises InputError unless the value is one of the known words."""
    if value not in known:
        raise InputError(where, value, f"must be {' or '.join(map(repr, known))}")


def fixed_size(relation: object) -> None:
    """Raises InputError unless the relation is `replace-one`, as a batch of fixed size needs."""
    if relation != REPLACE_ONE:
        raise InputError(
            "relation",
            relation,
            f"a batch of fixed size is accounted under {REPLACE_ONE!r} only: another record "
            "moves in for the one that is left out; use Poisson sampling",
        )


def multipliers(noise_multiplier: object, steps: object) -> tuple[float, ...]:
    """One noise multiplier a step, from one for all steps or from a flat schedule.

    Raises:
        InputError: no step, more than `MOST_STEPS`, lengths that disagree, or anything in the
            schedule but positive finite numbers.
    """
    length = None if steps is None else whole("steps", steps)
    if isinstance(noise_multiplier, Iterable):
        return _schedule(noise_multiplier, length)
    value = positive("noise_multiplier", noise_multiplier)
    few_enough("steps", length or 1)
    return (value,) * (length or 1)


def few_enough(where: str, steps: int) -> None:
    """Raises InputError for more steps than a schedule may have, before one is spelt out."""
    if steps > MOST_STEPS:
        expected = f"a mechanism of more than {MOST_STEPS:,} steps would not fit in memory"
        raise InputError(where, steps, expected)


def _schedule(values: Iterable[object], steps: int | None) -> tuple[float, ...]:
    if isinstance(values, _NOT_SCHEDULES):
        raise InputError("noise_multiplier", values, "must be a number, or a list of one a step")
    given = tuple(values)
    if not given:
        raise InputError("noise_multiplier", [], "needs one number a step")
    if steps not in (None, len(given)):
        raise InputError("steps", steps, f"must equal the length of the schedule, {len(given)}")
    few_enough("noise_multiplier", len(given))
    if set(map(type, given)) == {float}:  # a million steps with few distinct values
        for value in set(given):
            _multiplier(value)
        return given  # type: ignore[return-value]
    return tuple(map(_multiplier, given))


def _multiplier(value: object) -> float:
    if isinstance(value, Iterable) and not isinstance(value, str):
        raise InputError("noise_multiplier", value, "must be one number a step: schedules are flat")
    return positive("noise_multiplier", value)
