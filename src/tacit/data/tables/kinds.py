"""The kinds of columns that a schema declares, and how a field of each becomes numbers.

| kind | declared | becomes |
|---|---|---|
| `number` | `low`, `high` | one number in [-1, 1]: clamped to the bounds, then scaled |
| `date` | `low`, `high`, `parts` | likewise, by days; hour, weekday, month as points of a circle |
| `category` | `values` | a 0 / 1 for each value, one for others, one for missing |
| `boolean` | nothing | -1 or 1 |
| `ignore` | nothing | nothing |

Each is a map of one field by what is declared; nothing is fitted. `features` and `encode` agree:
one number for each name. `norm` is the largest squared norm that they can have.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import zoneinfo
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from tacit.data.tables.fields import Column as Fields
from tacit.data.tables.fields import field_text, refuse
from tacit.errors import InputError

Words = frozenset[str]
Into = NDArray[np.float32]
_MISSING = -1  # among codes
_REFUSED = (
    'must not be missing, or the schema must say what a missing value becomes: missing = "{}"'
)
TRUE = frozenset({"true", "yes", "1", "t", "y"})
FALSE = frozenset({"false", "no", "0", "f", "n"})


def _texts(value: Any) -> Any:
    return [field_text(one) for one in value] if isinstance(value, list | tuple) else value


Values = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_texts), Field(min_length=1)
]
Bound = Annotated[float, Field(allow_inf_nan=False)]
Scale = Literal["linear", "log"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _check_bounds(low: float, high: float) -> None:
    if not (low < high and math.isfinite(high - low)):
        raise ValueError(f"must have a low that is below its high; they are {low} and {high}")


def _check_distinct(values: Sequence[str]) -> None:
    if len(set(values)) < len(values):
        raise ValueError("must name every value once")


class _Feature(_Part):
    """What every kind of column has.

    `confirmed_public`: whether a person has confirmed that what is declared of this column is
    public; not set, what the schema says of all columns counts.
    """

    confirmed_public: bool | None = None

    @property
    def facts(self) -> str | None:
        """What is declared of it and must be public, in words; None: nothing but its kind."""
        return None

    @property
    def norm(self) -> float:
        """The largest square of the l2 norm of what a field becomes."""
        return 1.0

    def features(self, name: str) -> list[str]:
        """What the numbers of a field are."""
        return [name]


class NumberColumn(_Feature):
    """A number: clamped to [low, high], and these moved to -1 and 1.

    `scale = "log"`: by log(1 + x - low), for amounts of which most are small. `missing =
    "indicator"`: a missing number is replaced by `fill` (the middle of the bounds), and a further
    input says so.
    """

    kind: Literal["number"]
    low: Bound
    high: Bound
    scale: Scale = "linear"
    missing: Literal["refuse", "indicator"] = "refuse"
    fill: Bound | None = None

    @model_validator(mode="after")
    def _checked(self) -> NumberColumn:
        _check_bounds(self.low, self.high)
        if self.fill is not None and self.missing == "refuse":
            raise ValueError('takes fill only with missing = "indicator"')
        return self

    @property
    def facts(self) -> str | None:
        """Its bounds."""
        return f"the bounds {self.low:g} and {self.high:g}"

    @property
    def norm(self) -> float:
        """One, and more where a missing number has two inputs."""
        return 1.0 if self.missing == "refuse" else 1.0 + self.filled**2

    def features(self, name: str) -> list[str]:
        """The number, and whether it is missing where it may be."""
        return [name] if self.missing == "refuse" else [name, f"{name} is missing"]

    def encode(self, fields: Fields, words: Words, where: str, into: Into) -> None:
        """Write `[records, len(features)]`, within [-1, 1]."""
        values = fields.numbers(words, where, "must be finite numbers")
        absent = np.isnan(values)
        if self.missing == "refuse":
            refuse(absent, where, _REFUSED.format("indicator"))
            into[:, 0] = self._unit(values)
            return
        unit = self._unit(values)
        unit[absent] = self.filled
        into[:, 0], into[:, 1] = unit, absent

    @property
    def filled(self) -> float:
        """What stands for a missing value, within [-1, 1]."""
        fill = (self.low + self.high) / 2 if self.fill is None else self.fill
        return float(self._unit(np.array([fill]))[0])

    def _unit(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return _to_unit(np.clip(values, self.low, self.high), self.low, self.high, self.scale)


_CIRCLES: Mapping[str, Callable[[datetime.datetime], float]] = MappingProxyType(
    {
        "hour": lambda when: (when.hour + when.minute / 60 + when.second / 3600) / 24,
        "weekday": lambda when: when.weekday() / 7,
        "month": lambda when: (when.month - 1) / 12,
    }
)
"""Which share of a circle has passed."""


class DateColumn(_Feature):
    """A date as ISO 8601 writes it, or as the file's dialect says.

    `parts` are what a model sees of it: `day`, clamped to [low, high], and these moved to -1 and 1;
    `hour`, `weekday` and `month`, each the cosine and the sine of its place in a circle. An instant
    that names its offset from UTC is that of the clock in `zone`, and refused where none is
    declared: what day it is depends on the place.
    """

    kind: Literal["date"]
    low: datetime.date
    high: datetime.date
    parts: Annotated[
        tuple[Literal["day", "hour", "weekday", "month"], ...], Field(min_length=1)
    ] = ("day",)
    zone: str | None = None
    missing: Literal["refuse", "indicator"] = "refuse"

    @model_validator(mode="after")
    def _checked(self) -> DateColumn:
        _check_bounds(self.low.toordinal(), self.high.toordinal())
        _check_distinct(self.parts)
        if self.zone is not None and self.zone not in zoneinfo.available_timezones():
            raise ValueError("must have a zone such as 'UTC' or 'Europe/Vienna'")
        return self

    @property
    def facts(self) -> str | None:
        """Its bounds."""
        return f"the bounds {self.low} and {self.high}"

    @property
    def norm(self) -> float:
        """One for each part; a missing date has none, and what says so."""
        return float(len(self.parts))

    def features(self, name: str) -> list[str]:
        """The day, two numbers for each part of a circle, and whether it is missing."""
        found = [
            feature
            for part in self.parts
            for feature in (
                [name] if part == "day" else [f"{name} {part} cosine", f"{name} {part} sine"]
            )
        ]
        return [*found, f"{name} is missing"] if self.missing == "indicator" else found

    def encode(self, fields: Fields, words: Words, where: str, into: Into) -> None:
        """Write `[records, len(features)]`, within [-1, 1]."""
        low, high = self.low.toordinal(), self.high.toordinal()
        width = sum(1 if part == "day" else 2 for part in self.parts)

        def read(text: str | None) -> list[float] | None:
            if text is None or text in words:
                return [1.0, *[0.0] * width]
            when = self._instant(text, fields.notation.dates)
            if when is None:
                return None
            found = [0.0]
            for part in self.parts:
                if part == "day":
                    found.append(
                        2 * ((min(max(when.toordinal(), low), high) - low) / (high - low)) - 1
                    )
                else:
                    angle = 2 * math.pi * _CIRCLES[part](when)
                    found += [math.cos(angle), math.sin(angle)]
            return found

        rule = "must be dates such as 2024-05-31" + (
            "" if self.zone else ", without an offset from UTC (the schema declares no zone)"
        )
        found = fields.each(read, np.float64, where, rule).reshape(-1, 1 + width)
        if self.missing == "refuse":
            refuse(found[:, 0] == 1, where, _REFUSED.format("indicator"))
        into[:, :width] = found[:, 1:]
        if self.missing == "indicator":
            into[:, width] = found[:, 0]

    def _instant(self, text: str, formats: Sequence[str]) -> datetime.datetime | None:
        when = None
        for form in formats or ("",):
            try:
                read = datetime.datetime
                when = read.strptime(text, form) if form else read.fromisoformat(text)
                break
            except ValueError:
                continue
        if when is None or when.tzinfo is None:
            return when
        if self.zone is not None:
            with contextlib.suppress(OverflowError):  # at the ends of the calendar
                return when.astimezone(zoneinfo.ZoneInfo(self.zone))
        return None


class CategoryColumn(_Feature):
    """One of some declared values: a 0 / 1 for each.

    `unknown`: a value that was not declared is refused, or counts as one more, "other". `missing`:
    it is refused, or counts as one more. `embed`: instead it is one code, of which a model looks so
    many numbers up in a table that it trains.
    """

    kind: Literal["category"]
    values: Values
    unknown: Literal["refuse", "other"] = "refuse"
    missing: Literal["refuse", "category"] = "refuse"
    embed: Annotated[int, Field(ge=1, le=1024)] | None = None

    @model_validator(mode="after")
    def _checked(self) -> CategoryColumn:
        _check_distinct(self.values)
        return self

    @property
    def facts(self) -> str | None:
        """The list of its values."""
        return f"the list of {len(self.values)} values"

    def features(self, name: str) -> list[str]:
        """The values, `other`, and whether it is missing."""
        return [name] if self.embed else [f"{name} = {value}" for value in self.known]

    @property
    def known(self) -> tuple[str, ...]:
        """Its values, `(other)` and `(missing)` where there may be such, in the order of codes."""
        others = ("(other)",) if self.unknown == "other" else ()
        missing = ("(missing)",) if self.missing == "category" else ()
        return (*self.values, *others, *missing)

    def named(self, fields: Fields, words: Words, where: str) -> NDArray[np.str_]:
        """The value of every field, `(other)` and `(missing)` among them."""
        return np.array(self.known, np.str_)[self.codes(fields, words, where)]

    @property
    def norm(self) -> float:
        """None of a code."""
        return 0.0 if self.embed else 1.0

    def encode(self, fields: Fields, words: Words, where: str, into: Into) -> None:
        """Write `[records, len(features)]`, one 1 in a row; or the code."""
        codes = self.codes(fields, words, where)
        if self.embed:
            into[:, 0] = codes
        else:
            into[:] = 0
            into[np.arange(len(into)), codes] = 1

    def codes(self, fields: Fields, words: Words, where: str) -> NDArray[np.int64]:
        """The place of every field's value in `known`."""
        places: dict[str | None, int] = {value: place for place, value in enumerate(self.values)}
        other = len(self.values) if self.unknown == "other" else None

        def read(text: str | None) -> int | None:
            absent = text is None or (text in words and text not in places)
            return _MISSING if absent else places.get(text, other)

        rule = 'must be values that the schema declares, or it must say unknown = "other"'
        codes = fields.each(read, np.int64, where, rule)
        absent = codes == _MISSING
        if self.missing != "category":
            refuse(absent, where, _REFUSED.format("category"))
        return np.where(absent, len(self.known) - 1, codes)


class BooleanColumn(_Feature):
    """True or false (also yes / no, 1 / 0, t / f, y / n): 1 or -1; where it is missing, 0."""

    kind: Literal["boolean"]
    missing: Literal["refuse", "indicator"] = "refuse"

    def features(self, name: str) -> list[str]:
        """The value, and whether it is missing where it may be."""
        return [name] if self.missing == "refuse" else [name, f"{name} is missing"]

    def encode(self, fields: Fields, words: Words, where: str, into: Into) -> None:
        """Write `[records, len(features)]`, within [-1, 1]."""

        def read(text: str | None) -> float | None:
            return math.nan if text is None or text in words else truth(text)

        values = fields.each(read, np.float64, where, "must be true or false")
        absent = np.isnan(values)
        if self.missing == "refuse":
            refuse(absent, where, _REFUSED.format("indicator"))
            into[:, 0] = values
            return
        into[:, 0], into[:, 1] = np.where(absent, 0.0, values), absent


class IgnoredColumn(_Feature):
    """A column that is not used, such as a number that names the record."""

    kind: Literal["ignore"]

    @property
    def norm(self) -> float:
        """Nothing."""
        return 0.0

    def features(self, name: str) -> list[str]:
        """None."""
        return []

    def encode(self, fields: Fields, words: Words, where: str, into: Into) -> None:
        """Write nothing."""


Column = Annotated[
    NumberColumn | CategoryColumn | BooleanColumn | DateColumn | IgnoredColumn,
    Field(discriminator="kind"),
]


class ClassTarget(_Part):
    """A class is predicted: `labels` in order, class 0 first.

    `missing`: a record without a target is refused, or left out as if it were not there. `loss` and
    `metrics` are those of `[task]` that go with it: no metric that a rare class makes useless.
    """

    column: Annotated[str, Field(min_length=1)]
    kind: Literal["class"]
    labels: Annotated[Values, Field(min_length=2)]
    missing: Literal["refuse", "drop"] = "refuse"
    confirmed_public: bool | None = None
    loss: ClassVar[str] = "cross-entropy"
    note: ClassVar[None] = None
    unscaled: ClassVar[None] = None  # classes are no numbers
    unit: ClassVar[None] = None

    @model_validator(mode="after")
    def _checked(self) -> ClassTarget:
        _check_distinct(self.labels)
        return self

    @property
    def facts(self) -> str:
        """What is declared of it and must be public, in words."""
        return f"the list of {len(self.labels)} labels"

    @property
    def classes(self) -> int | None:
        """How many classes there are."""
        return len(self.labels)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Of the loss and of each class alike."""
        return ("auc", "balanced-accuracy") if len(self.labels) == 2 else ("balanced-accuracy",)

    def missing_in(self, fields: Fields, words: Words, where: str) -> NDArray[np.bool_]:
        """Which records have no target, `[records]`."""
        absent = words - {*self.labels}
        return fields.each(lambda text: text is None or text in absent, np.bool_, where, "")

    def encode(self, fields: Fields, words: Words, where: str) -> NDArray[Any]:
        """Int64 `[records]`, the class of every record.

        Where both labels are words for true and false, other words for them are taken as well.
        """
        places = {label: place for place, label in enumerate(self.labels)}
        truths = {truth(label): place for label, place in places.items()}
        named = len(places) == 2 == len(truths.keys() - {None})

        def read(text: str | None) -> int | None:
            found = None if text is None else places.get(text)
            return truths.get(truth(str(text))) if found is None and named else found

        rule = (
            "must be labels that the schema declares, and none may be missing, or the schema must "
            'leave such records out: missing = "drop"'
        )
        return fields.each(read, np.int64, where, rule)


class NumberTarget(_Part):
    """A number is predicted: clamped to [low, high], and these moved to -1 and 1.

    `scale` as in `NumberColumn`, `missing` as in `ClassTarget`. `unit` is what one of it is called,
    such as "days": people read it beside scores and predictions.
    """

    column: Annotated[str, Field(min_length=1)]
    kind: Literal["number"]
    low: Bound
    high: Bound
    scale: Scale = "linear"
    unit: Annotated[str, Field(min_length=1, max_length=40)] | None = None
    missing: Literal["refuse", "drop"] = "refuse"
    confirmed_public: bool | None = None
    classes: ClassVar[None] = None
    loss: ClassVar[str] = "mse"
    metrics: ClassVar[tuple[str, ...]] = ("mae", "r2")

    @model_validator(mode="after")
    def _checked(self) -> NumberTarget:
        _check_bounds(self.low, self.high)
        return self

    @property
    def facts(self) -> str:
        """What is declared of it and must be public, in words."""
        return f"the bounds {self.low:g} and {self.high:g}"

    @property
    def note(self) -> str | None:
        """What is good to know of the targets that a model sees."""
        unit = "its own unit" if self.unit is None else self.unit
        scaled = f"the target {self.column!r} is scaled from {self.low:g} to {self.high:g} "
        if self.scale == "log":
            return f"{scaled}by log(1 + x - {self.low:g}) onto -1 to 1; mae and rmse are in {unit}"
        error = f"an error of 0.1 is {0.05 * (self.high - self.low):g}"
        return f"{scaled}onto -1 to 1: {error}; mae and rmse are in {unit}"

    def missing_in(self, fields: Fields, words: Words, where: str) -> NDArray[np.bool_]:
        """Which records have no target, `[records]`."""
        return np.isnan(fields.numbers(words, where, _NUMBERS))

    def encode(self, fields: Fields, words: Words, where: str) -> NDArray[Any]:
        """Float32 `[records]`, within [-1, 1]."""
        values = fields.numbers(words, where, _NUMBERS)
        refuse(np.isnan(values), where, _NUMBERS)
        return self.scaled(values).astype(np.float32)

    def scaled(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers of the target's unit, clamped to its bounds, as a model sees them."""
        clipped = np.clip(numbers, self.low, self.high)
        return _to_unit(clipped, self.low, self.high, self.scale)

    def unscaled(self, outputs: ArrayLike) -> NDArray[np.float64]:
        """The inverse of `scaled`: what a model gives, of any shape, in the target's unit.

        Outputs beyond [-1, 1] stand for its bounds.
        """
        return from_unit(np.asarray(outputs, np.float64), self.low, self.high, self.scale)


_NUMBERS = (
    "must be finite numbers, and none may be missing, or the schema must leave such records out: "
    'missing = "drop"'
)
Target = Annotated[ClassTarget | NumberTarget, Field(discriminator="kind")]


class NodeColumn(_Part):
    """The column that says whose record it is: `values` in order, node 0 first."""

    column: Annotated[str, Field(min_length=1)]
    values: Values
    confirmed_public: bool | None = None

    @model_validator(mode="after")
    def _checked(self) -> NodeColumn:
        _check_distinct(self.values)
        return self

    @property
    def facts(self) -> str:
        """What is declared of it and must be public, in words."""
        return f"the list of {len(self.values)} nodes"

    def codes(self, fields: Fields, where: str) -> NDArray[np.int64]:
        """The place of every field's value in `values`."""
        places = {value: place for place, value in enumerate(self.values)}
        rule = "must be nodes that the schema declares, and none may be missing"
        read = lambda text: None if text is None else places.get(text)  # noqa: E731
        return fields.each(read, np.int64, f"column {self.column!r} of {where}", rule)

    def check(self, fields: Fields, node: int, where: str) -> None:
        """Refuse the records of another node than the one that they are given as.

        Raises:
            InputError: the node has no declared value.
            RecordsError: the column of some records says otherwise; says how many.
        """
        at = f"column {self.column!r} of {where}"
        if node >= len(self.values):
            expected = f"none is node {node}: declare one value a node, or ignore the column"
            raise InputError(f"{at}, [node] values", list(self.values), expected)
        own = self.values[node]
        rule = f"must be {own!r} in every record, which the schema declares for node {node}"
        fields.each(lambda text: True if text == own else None, np.bool_, at, rule)


class UnitColumn(_Part):
    """The column that says whose a record is, such as the number of a person.

    `name` is what one of them is called, as in "a patient".
    """

    column: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1, max_length=40)] = "person"

    def ids(self, fields: Fields, words: Words, where: str) -> NDArray[np.str_]:
        """The id of every field."""
        rule = "must say whose each record is, and none may be missing"
        read = lambda text: None if text is None or text in words else text  # noqa: E731
        return fields.each(read, np.str_, f"column {self.column!r} of {where}", rule)


def truth(text: str) -> float | None:
    """1 of a word for true, -1 of one for false; None: it is neither."""
    word = text.lower()
    if word in TRUE:
        return 1.0
    return -1.0 if word in FALSE else None


def _to_unit(
    values: NDArray[np.float64], low: float, high: float, scale: str = "linear"
) -> NDArray[np.float64]:
    """Values within [low, high] moved to [-1, 1], rounding included."""
    found = values - low  # and then in place: most of the time goes into memory
    if scale == "log":
        np.log1p(found, out=found)
    found /= math.log1p(high - low) if scale == "log" else high - low
    found *= 2
    found -= 1
    return np.clip(found, -1.0, 1.0, out=found)


def from_unit(
    values: NDArray[np.float64], low: float, high: float, scale: str
) -> NDArray[np.float64]:
    """The inverse of `_to_unit`; values beyond [-1, 1] stand for the bounds."""
    shares = (np.clip(values, -1.0, 1.0) + 1) / 2
    span = high - low
    above = np.expm1(shares * math.log1p(span)) if scale == "log" else shares * span
    return np.clip(low + above, low, high)
