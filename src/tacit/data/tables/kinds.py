"""The kinds of columns that a schema declares, and how a field of each becomes numbers.

| kind | declared | becomes |
|---|---|---|
| `number` | `low`, `high` | one number in [-1, 1]: clamped to the bounds, then scaled |
| `date` | `low`, `high` | likewise, by days |
| `category` | `values` | a 0 / 1 for each value, one for others, one for missing |
| `boolean` | nothing | -1 or 1 |
| `ignore` | nothing | nothing |

Each is a map of one field by what is declared; nothing is fitted. `features` and `encode` agree:
one number for each name. `norm` is the largest squared norm that they can have.
"""

from __future__ import annotations

import datetime
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from tacit.data.tables.fields import field_text, read_each, read_number
from tacit.errors import InputError

Texts = Sequence[str | None]
Words = frozenset[str]
_MISSING = math.nan  # among numbers that were read
_REFUSED = (
    'must not be missing, or the schema must say what a missing value becomes: missing = "{}"'
)
_TRUE = frozenset({"true", "yes", "1", "t", "y"})
_FALSE = frozenset({"false", "no", "0", "f", "n"})


def _texts(value: Any) -> Any:
    return [field_text(one) for one in value] if isinstance(value, list | tuple) else value


Values = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_texts), Field(min_length=1)
]
Bound = Annotated[float, Field(allow_inf_nan=False)]


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


class _Scaled(_Feature):
    """A number between two bounds, or what is counted as one."""

    missing: Literal["refuse", "indicator"] = "refuse"

    @abstractmethod
    def _read(self, text: str) -> float | None:
        """The number of a field; None if it has none."""

    @abstractmethod
    def _unit(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers that were read, within [-1, 1]."""

    @abstractmethod
    def _filled(self) -> float:
        """What stands for a missing value, within [-1, 1]."""

    @property
    def norm(self) -> float:
        return 1.0 if self.missing == "refuse" else 1.0 + self._filled() ** 2

    def features(self, name: str) -> list[str]:
        """The number, and whether it is missing where it may be."""
        return [name] if self.missing == "refuse" else [name, f"{name} is missing"]

    def encode(self, texts: Texts, words: Words, where: str) -> NDArray[np.float64]:
        """`[records, len(features)]`, within [-1, 1]."""
        values = np.array(_numbers(self._read, texts, words, where, self._rule))
        absent = np.isnan(values)
        if self.missing == "refuse":
            _refuse_missing(absent, where, "indicator")
            return self._unit(values)[:, None]
        unit = np.where(absent, self._filled(), self._unit(np.where(absent, self._middle, values)))
        return np.stack([unit, absent.astype(np.float64)], axis=1)

    @property
    @abstractmethod
    def _middle(self) -> float: ...

    @property
    @abstractmethod
    def _rule(self) -> str: ...


class NumberColumn(_Scaled):
    """A number: clamped to [low, high], and these moved to -1 and 1.

    `scale = "log"`: by log(1 + x - low), for amounts of which most are small. `missing =
    "indicator"`: a missing number is replaced by `fill` (the middle of the bounds), and a further
    input says so.
    """

    kind: Literal["number"]
    low: Bound
    high: Bound
    scale: Literal["linear", "log"] = "linear"
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
    def _middle(self) -> float:
        return (self.low + self.high) / 2 if self.fill is None else self.fill

    @property
    def _rule(self) -> str:
        return "must be finite numbers"

    def _filled(self) -> float:
        return float(self._unit(np.array([self._middle]))[0])

    def _read(self, text: str) -> float | None:
        return read_number(text)

    def _unit(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return _to_unit(np.clip(values, self.low, self.high), self.low, self.high, self.scale)


class DateColumn(_Scaled):
    """A date as ISO 8601 writes it: clamped to [low, high], and these moved to -1 and 1."""

    kind: Literal["date"]
    low: datetime.date
    high: datetime.date

    @model_validator(mode="after")
    def _checked(self) -> DateColumn:
        _check_bounds(self.low.toordinal(), self.high.toordinal())
        return self

    @property
    def facts(self) -> str | None:
        """Its bounds."""
        return f"the bounds {self.low} and {self.high}"

    @property
    def _middle(self) -> float:
        return (self.low.toordinal() + self.high.toordinal()) / 2

    @property
    def _rule(self) -> str:
        return "must be dates such as 2024-05-31"

    def _filled(self) -> float:
        return 0.0

    def _read(self, text: str) -> float | None:
        try:
            return float(datetime.datetime.fromisoformat(text).toordinal())
        except ValueError:
            return None

    def _unit(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        low, high = float(self.low.toordinal()), float(self.high.toordinal())
        return _to_unit(np.clip(values, low, high), low, high)


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

    @model_serializer(mode="wrap")
    def _plain(self, plain: SerializerFunctionWrapHandler) -> Any:
        found = plain(self)
        return {key: value for key, value in found.items() if key != "embed" or value is not None}

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

    def named(self, texts: Texts, words: Words, where: str) -> list[str]:
        """The value of every field, `(other)` and `(missing)` among them."""
        return [self.known[int(code)] for code in self._codes(texts, words, where)]

    def encode(self, texts: Texts, words: Words, where: str) -> NDArray[np.float64]:
        """`[records, len(features)]`, one 1 in a row; or the code."""
        codes = self._codes(texts, words, where)
        return codes[:, None].astype(np.float64) if self.embed else np.eye(len(self.known))[codes]

    @property
    def norm(self) -> float:
        """None of a code."""
        return 0.0 if self.embed else 1.0

    def _codes(self, texts: Texts, words: Words, where: str) -> NDArray[np.int64]:
        places: dict[str | None, float] = {
            value: float(place) for place, value in enumerate(self.values)
        }
        other = float(len(self.values)) if self.unknown == "other" else None

        def read(text: str | None) -> float | None:
            absent = text is None or (text in words and text not in places)
            return _MISSING if absent else places.get(text, other)

        rule = 'must be values that the schema declares, or it must say unknown = "other"'
        codes = np.array(read_each(texts, read, where, rule), dtype=np.float64)
        absent = np.isnan(codes)
        if self.missing == "refuse":
            _refuse_missing(absent, where, "category")
        return np.where(absent, len(self.known) - 1, codes).astype(np.int64)


class BooleanColumn(_Feature):
    """True or false (also yes / no, 1 / 0, t / f, y / n): 1 or -1; where it is missing, 0."""

    kind: Literal["boolean"]
    missing: Literal["refuse", "indicator"] = "refuse"

    def features(self, name: str) -> list[str]:
        """The value, and whether it is missing where it may be."""
        return [name] if self.missing == "refuse" else [name, f"{name} is missing"]

    def encode(self, texts: Texts, words: Words, where: str) -> NDArray[np.float64]:
        """`[records, len(features)]`, within [-1, 1]."""
        values = np.array(_numbers(_truth, texts, words, where, "must be true or false"))
        absent = np.isnan(values)
        if self.missing == "refuse":
            _refuse_missing(absent, where, "indicator")
            return values[:, None]
        return np.stack([np.where(absent, 0.0, values), absent.astype(np.float64)], axis=1)


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

    def encode(self, texts: Texts, words: Words, where: str) -> NDArray[np.float64]:
        """`[records, 0]`."""
        return np.zeros((len(texts), 0))


Column = Annotated[
    NumberColumn | CategoryColumn | BooleanColumn | DateColumn | IgnoredColumn,
    Field(discriminator="kind"),
]


class ClassTarget(_Part):
    """A class is predicted: `labels` in order, class 0 first."""

    column: Annotated[str, Field(min_length=1)]
    kind: Literal["class"]
    labels: Annotated[Values, Field(min_length=2)]
    confirmed_public: bool | None = None

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
    def loss(self) -> str:
        """The loss of `[task]` that goes with it."""
        return "cross-entropy"

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of `[task]` that go with it: none that a rare class makes useless."""
        return ("auc", "balanced-accuracy") if len(self.labels) == 2 else ("balanced-accuracy",)

    @property
    def note(self) -> str | None:
        """What is good to know of the targets that a model sees."""
        return None

    def encode(self, texts: Texts, words: Words, where: str) -> NDArray[Any]:
        """Int64 `[records]`, the class of every record."""
        places = {label: place for place, label in enumerate(self.labels)}
        rule = "must be labels that the schema declares, and none may be missing"
        return np.array(
            read_each(texts, lambda text: None if text is None else places.get(text), where, rule),
            dtype=np.int64,
        )


class NumberTarget(_Part):
    """A number is predicted: clamped to [low, high], and these moved to -1 and 1."""

    column: Annotated[str, Field(min_length=1)]
    kind: Literal["number"]
    low: Bound
    high: Bound
    confirmed_public: bool | None = None

    @model_validator(mode="after")
    def _checked(self) -> NumberTarget:
        _check_bounds(self.low, self.high)
        return self

    @property
    def facts(self) -> str:
        """What is declared of it and must be public, in words."""
        return f"the bounds {self.low:g} and {self.high:g}"

    @property
    def classes(self) -> int | None:
        """None."""
        return None

    @property
    def loss(self) -> str:
        """The loss of `[task]` that goes with it."""
        return "mse"

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of `[task]` that go with it."""
        return ("mae", "r2")

    @property
    def note(self) -> str | None:
        """What is good to know of the targets that a model sees."""
        half = (self.high - self.low) / 2
        return (
            f"the target {self.column!r} is scaled from {self.low:g} to {self.high:g} onto -1 to "
            f"1: an error of 0.1 is {0.1 * half:g}"
        )

    def encode(self, texts: Texts, words: Words, where: str) -> NDArray[Any]:
        """Float32 `[records]`, within [-1, 1]."""
        rule = "must be finite numbers, and none may be missing"

        def read(text: str | None) -> float | None:
            return None if text is None or text in words else read_number(text)

        values = np.array(read_each(texts, read, where, rule), dtype=np.float64)
        clipped = np.clip(values, self.low, self.high)
        return _to_unit(clipped, self.low, self.high).astype(np.float32)


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

    def named(self, texts: Texts, where: str) -> list[str]:
        """The value of every field."""
        known = set(self.values)
        rule = "must be nodes that the schema declares, and none may be missing"
        return read_each(texts, lambda text: text if text in known else None, where, rule)

    def check(self, texts: Texts, node: int, where: str) -> None:
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
        read_each(texts, lambda text: text if text == own else None, at, rule)


class UnitColumn(_Part):
    """The column that says whose a record is, such as the number of a person.

    `name` is what one of them is called, as in "a patient".
    """

    column: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1, max_length=40)] = "person"

    def ids(self, texts: Texts, words: Words, where: str) -> list[str]:
        """The id of every field."""
        rule = "must say whose each record is, and none may be missing"

        def read(text: str | None) -> str | None:
            return None if text is None or text in words else text

        return read_each(texts, read, f"column {self.column!r} of {where}", rule)


def _numbers(read: Any, texts: Texts, words: Words, where: str, rule: str) -> list[float]:
    """Numbers of fields, NaN where they are missing."""

    def read_or_missing(text: str | None) -> float | None:
        absent = text is None or text in words
        number: float | None = _MISSING if absent else read(text)
        return number

    return read_each(texts, read_or_missing, where, rule)


def _truth(text: str) -> float | None:
    word = text.lower()
    if word in _TRUE:
        return 1.0
    return -1.0 if word in _FALSE else None


def _refuse_missing(absent: NDArray[np.bool_], where: str, kind: str) -> None:
    marks = absent.tolist()
    if any(marks):
        read_each(
            [None if mark else "" for mark in marks],
            lambda text: text,
            where,
            _REFUSED.format(kind),
        )


def _to_unit(
    values: NDArray[np.float64], low: float, high: float, scale: str = "linear"
) -> NDArray[np.float64]:
    """Values within [low, high] moved to [-1, 1], rounding included."""
    share = (values - low) / (high - low)
    if scale == "log":
        share = np.log1p(values - low) / math.log1p(high - low)
    return np.clip(2 * share - 1, -1.0, 1.0)
