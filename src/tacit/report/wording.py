"""How numbers are written on the page: never in a way that flatters the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import TypeVar

Shared = TypeVar("Shared", bound=Hashable)
One = TypeVar("One")

NOTHING = "–"
_NARROW_SPACE = "\u202f"
_BYTE_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def epsilon_text(value: float | None) -> str:
    """Write an epsilon or a delta with 3 significant digits, rounded up.

    >>> epsilon_text(2.9912)
    '3.00'
    >>> epsilon_text(1e-5)
    '1e-5'
    """
    return NOTHING if value is None else _significant(value, ROUND_CEILING)


def lower_text(value: float | None) -> str:
    """Write a lower bound with 3 significant digits, rounded down.

    >>> lower_text(3.4099)
    '3.40'
    """
    return NOTHING if value is None else _significant(value, ROUND_FLOOR)


def figure_up(value: float) -> float:
    """The least number of two significant digits that is not below one of 0 or more."""
    return _figure(value, ROUND_CEILING)


def figure_down(value: float) -> float:
    """The largest number of two significant digits that is not above one of 0 or more."""
    return _figure(value, ROUND_FLOOR)


def number_text(value: float | None) -> str:
    """Write any other number with 3 significant digits, rounded to the nearest.

    >>> number_text(0.061349)
    '0.0613'
    """
    return NOTHING if value is None else _significant(value, ROUND_HALF_EVEN)


def range_text(
    first: float | None, last: float | None, text: Callable[[float | None], str] = number_text
) -> str:
    """Write two numbers as a range, or as one where they look the same.

    >>> range_text(4.2104, 2.7301), range_text(1.0, 1.0001)
    ('4.21 to 2.73', '1.00')
    """
    ends = text(first), text(last)
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def count_text(count: int, noun: str) -> str:
    """Write how many there are of something.

    >>> count_text(1, "node"), count_text(1234, "node")
    ('1 node', '1,234 nodes')
    """
    return f"{count:,} {noun if count == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Several of something, by the rule.

    >>> plural("patient"), plural("company"), plural("box")
    ('patients', 'companies', 'boxes')
    """
    if noun.endswith("y") and noun[-2:-1] not in tuple("aeiou"):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "z", "ch", "sh")) else f"{noun}s"


def with_article(noun: str) -> str:
    """One of something, by the letter that it begins with.

    >>> with_article("patient"), with_article("employee"), with_article("user")
    ('a patient', 'an employee', 'a user')
    """
    return f"{'an' if noun[:1].lower() in tuple('aeio') else 'a'} {noun}"


def alike(pairs: Iterable[tuple[Shared, One]]) -> dict[Shared, list[One]]:
    """What has the same in common, together: nodes of which the same is said.

    >>> alike([("small", 0), ("large", 1), ("small", 2)])
    {'small': [0, 2], 'large': [1]}
    """
    groups: dict[Shared, list[One]] = {}
    for shared, one in pairs:
        groups.setdefault(shared, []).append(one)
    return groups


def node_list(numbers: Sequence[int], names: Sequence[str | None] = ()) -> str:
    """Node numbers, neighbours as a range, with their names, if they have any.

    >>> node_list([0, 1, 2, 5])
    '0-2, 5'
    >>> node_list([0, 1], ["north", "south"])
    '0-1 (north, south)'
    """
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    text = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
    known = [name for name in names if name is not None]
    shown = ", ".join(known if len(known) < 7 else [*known[:5], f"and {len(known) - 5} more"])
    return f"{text} ({shown})" if shown else text


def one_in_text(rate: float) -> str:
    """Write a small chance as one audit in so many, rounded to the safe side: fewer.

    >>> one_in_text(1e-6), one_in_text(1 - 0.95)
    ('1 audit in 1,000,000', '1 audit in 20')
    """
    # A hair, so that 1 - 0.95, which is a little more than 1/20, is 1 in 20.
    return f"1 audit in {math.floor(1 / rate * (1 + 1e-9)):,}"


def percent_text(share: float | None) -> str:
    """Write a share of 1 as a percentage with one decimal, to the nearest."""
    return NOTHING if share is None else f"{100 * share:.1f}{_NARROW_SPACE}%"


def percent_up_text(share: float) -> str:
    """Write a share of 1 as a percentage with one decimal, rounded up and at most 100."""
    return f"{min(100.0, math.ceil(1000 * share) / 10):.1f}{_NARROW_SPACE}%"


def bytes_text(count: float | None) -> str:
    """Write a number of bytes in decimal units (1 MB is a million bytes).

    >>> bytes_text(1_234_567).replace(chr(0x202F), " ")
    '1.23 MB'
    """
    if count is None:
        return NOTHING
    power = 0
    # 999.5 would be written as 1000 of its unit
    while count >= 999.5 and power < len(_BYTE_UNITS) - 1:
        count /= 1000
        power += 1
    digits = f"{count:.0f}" if power == 0 else number_text(count)
    return f"{digits}{_NARROW_SPACE}{_BYTE_UNITS[power]}"


def duration_text(seconds: float | None) -> str:
    """Write seconds as a reader says them.

    >>> duration_text(3725).replace(chr(0x202F), " ")
    '1 h 02 min'
    """
    if seconds is None:
        return NOTHING
    space = _NARROW_SPACE
    if seconds < 59.95:
        return f"{seconds:.1f}{space}s" if seconds >= 1 else f"{1000 * seconds:.0f}{space}ms"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}{space}min{space}{whole % 60:02d}{space}s"
    minutes = round(seconds / 60)
    return f"{minutes // 60}{space}h{space}{minutes % 60:02d}{space}min"


def guess_bound(epsilon: float, delta: float) -> float:
    """Bound the probability of a right guess between two neighbouring data sets at even odds.

    For any (epsilon, delta) mechanism, P(S) <= e^epsilon Q(S) + delta both ways bounds the total
    variation distance by (e^epsilon - 1 + 2 delta) / (e^epsilon + 1) (Kairouz, Oh and Viswanath,
    2015, theorem 2.1); the best guess is right with probability (1 + that) / 2.
    """
    odds_against = math.exp(-max(epsilon, 0.0))
    return min(1.0, (1 + delta * odds_against) / (1 + odds_against))


def _figure(value: float, rounding: str) -> float:
    if not math.isfinite(value) or value == 0:
        return value
    return float(_rounded(value, 2, rounding))


def _significant(value: float, rounding: str) -> str:
    if not math.isfinite(value):
        return "infinite" if value > 0 else NOTHING
    if value == 0:
        return "0"
    rounded = _rounded(value, 3, rounding)
    exponent = rounded.adjusted()
    if -3 <= exponent < 6:
        return f"{rounded:f}"
    mantissa = f"{rounded.scaleb(-exponent):f}"
    return f"{mantissa.rstrip('0').rstrip('.')}e{exponent}"


def _rounded(value: float, digits: int, rounding: str) -> Decimal:
    """A number that is not 0, with so many significant digits.

    Of the shortest decimal that stands for the float: 0.1 is written 0.100, not 0.101.
    """
    rounded = Context(digits, rounding).plus(Decimal(repr(float(value))))
    return rounded.quantize(Decimal(1).scaleb(rounded.adjusted() + 1 - digits))
