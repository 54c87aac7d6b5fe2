"""Typed access to the fields of a JSON object, with errors that name the file and the field."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from tacit.errors import InputError

__all__ = ["Fields"]

_ABSENT = object()


@dataclass(frozen=True)
class Fields:
    """A JSON object that was read from a file.

    Every method takes the name of a field and raises `InputError` where it is absent or of
    another type. The methods that start with `optional` accept `null` and give `None` for it;
    they also give `None` for a number that is not finite.

    Args:
        where: what the reader sees in an error: the file, then the path of the object in it.
        values: the object as parsed.
    """

    where: str
    values: Mapping[str, object]

    @classmethod
    def of(cls, value: object, where: str) -> Fields:
        """Take a parsed value that must be an object; raises `InputError` if it is not."""
        if not isinstance(value, dict):
            raise InputError(where, value, "must be a JSON object")
        return cls(where, value)

    def path(self, name: str) -> str:
        """Name a field as an error shows it."""
        return f"{self.where}: {name}"

    def raw(self, name: str) -> object:
        """Give the value of a field, whatever its type."""
        value = self.values.get(name, _ABSENT)
        if value is _ABSENT:
            raise InputError(self.path(name), None, "this field is missing")
        return value

    def text(self, name: str) -> str:
        """Give a string."""
        value = self.raw(name)
        if not isinstance(value, str):
            raise InputError(self.path(name), value, "must be a string")
        return value

    def optional_text(self, name: str) -> str | None:
        """Give a string, or `None`."""
        return None if self.raw(name) is None else self.text(name)

    def flag(self, name: str) -> bool:
        """Give a truth value."""
        value = self.raw(name)
        if not isinstance(value, bool):
            raise InputError(self.path(name), value, "must be true or false")
        return value

    def count(self, name: str) -> int:
        """Give an integer of 0 or more."""
        return _count(self.raw(name), self.path(name))

    def optional_number(self, name: str) -> float | None:
        """Give a finite number, or `None`."""
        return _optional_number(self.raw(name), self.path(name))

    def items(self, name: str) -> list[object]:
        """Give a list."""
        return _items(self.raw(name), self.path(name))

    def texts(self, name: str) -> tuple[str, ...]:
        """Give a list of strings."""
        values = self.items(name)
        for value in values:
            if not isinstance(value, str):
                raise InputError(self.path(name), value, "must be a list of strings")
        return tuple(str(value) for value in values)

    def counts(self, name: str, length: int) -> tuple[int, ...]:
        """Give a list of `length` integers of 0 or more."""
        return tuple(_count(value, self.path(name)) for value in self._exactly(name, length))

    def optional_numbers(self, name: str, length: int) -> tuple[float | None, ...]:
        """Give a list of `length` finite numbers, each of which may be `None`."""
        return tuple(
            _optional_number(value, self.path(name)) for value in self._exactly(name, length)
        )

    def edges(self, name: str) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Give a list of graphs, each a list of `[source, target]` pairs."""
        where = self.path(name)
        return tuple(
            tuple(_pair(pair, where) for pair in _items(graph, where)) for graph in self.items(name)
        )

    def child(self, name: str) -> Fields:
        """Give an object."""
        return Fields.of(self.raw(name), self.path(name))

    def optional_child(self, name: str) -> Fields | None:
        """Give an object, or `None`."""
        return None if self.raw(name) is None else self.child(name)

    def children(self, name: str) -> tuple[Fields, ...]:
        """Give a list of objects."""
        return tuple(Fields.of(value, self.path(name)) for value in self.items(name))

    def _exactly(self, name: str, length: int) -> list[object]:
        values = self.items(name)
        if len(values) != length:
            raise InputError(
                self.path(name), len(values), f"must have one entry a node: {length} entries"
            )
        return values


def _items(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise InputError(where, value, "must be a list")
    return value


def _count(value: object, where: str) -> int:
    # bool is a subclass of int, but true is not a count
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InputError(where, value, "must be an integer of 0 or more")
    return value


def _optional_number(value: object, where: str) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InputError(where, value, "must be a number or null")
    # a comparison, since math.isfinite fails on integers that no float can hold
    finite = -sys.float_info.max <= value <= sys.float_info.max
    return float(value) if finite else None


def _pair(value: object, where: str) -> tuple[int, int]:
    ends = _items(value, where)
    if len(ends) != 2:
        raise InputError(where, value, "must hold [source, target] pairs")
    return _count(ends[0], where), _count(ends[1], where)
