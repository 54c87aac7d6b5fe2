"""Mechanisms as JSON-ready data, and back: what ledgers and statements hold.

Format version 2; version 1, which had no unit, no coordinates and fewer kinds, is still read.
Reading is strict: exactly the fields of the kind, so that no default fills a hole; and a statement
that would unfold to more than fits in memory is refused before it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import chain, groupby, repeat
from types import MappingProxyType
from typing import Any, cast

from tacit.errors import InputError
from tacit.privacy.mechanisms.base import Mechanism, few_enough, whole
from tacit.privacy.mechanisms.composed import MECHANISMS
from tacit.privacy.mechanisms.steps import FixedBatchGaussian, Gaussian, SampledGaussian

STATEMENT_VERSION = 2
_KEYS = MappingProxyType({"drawn_norm": "hit", "undrawn_norm": "miss"})
"""Keys of a statement that are not the names of their fields."""
_FIELDS = MappingProxyType({key: name for name, key in _KEYS.items()})
_DEEPEST = 16

# Version -> its mechanisms, and the fields that later versions brought.
_VERSIONS: Mapping[int, tuple[Sequence[type[Mechanism]], frozenset[str]]] = MappingProxyType(
    {
        1: ((Gaussian, SampledGaussian, FixedBatchGaussian), frozenset({"unit", "coordinates"})),
        STATEMENT_VERSION: (MECHANISMS, frozenset()),
    }
)


def to_statement(mechanism: Mechanism) -> dict[str, Any]:
    """A mechanism as JSON-ready data: kind, version, every number, schedules in runs.

    A schedule is `[[multiplier, steps], ...]` in the order of the steps; the parts of a
    composition are statements themselves.

    Raises:
        InputError: it is no mechanism, or nested too deep to be read back.
    """
    return _written(mechanism, 0)


def from_statement(statement: Mapping[str, Any]) -> Mechanism:
    """The mechanism of a statement made by `to_statement`, of this version or an earlier one.

    Raises:
        InputError: anything else; it names the field at fault.
    """
    return _read(statement, 0)


def _written(mechanism: Mechanism, depth: int) -> dict[str, Any]:
    if type(mechanism) not in MECHANISMS:
        raise InputError("mechanism", mechanism, "must be a mechanism")
    _check_depth(depth)
    values = {
        _KEYS.get(field.name, field.name): _WRITERS.get(field.name, _as_is)(
            getattr(mechanism, field.name), depth
        )
        for field in fields(cast("Any", mechanism))
    }
    return {"kind": mechanism.kind, "version": STATEMENT_VERSION, **values}


def _read(statement: Any, depth: int) -> Mechanism:
    _check_depth(depth)
    if not isinstance(statement, Mapping):
        raise InputError("mechanism", statement, "must be a statement: an object with a kind")
    given = dict(statement)
    version, name = given.pop("version", None), given.pop("kind", None)
    if type(version) is not int or version not in _VERSIONS:
        known = " or ".join(map(str, _VERSIONS))
        raise InputError(
            "version", version, f"must be {known}: a later release of tacit may read it"
        )
    known_mechanisms, later = _VERSIONS[version]
    kinds = {mechanism.kind: mechanism for mechanism in known_mechanisms}
    if not isinstance(name, str) or name not in kinds:
        raise InputError("kind", name, f"must be one of {', '.join(kinds)}")
    names = {field.name for field in fields(cast("Any", kinds[name]))} - later
    wanted = {_KEYS.get(field, field) for field in names}
    if given.keys() != wanted:
        odd = sorted(map(str, given.keys() ^ wanted))
        raise InputError(
            "mechanism", odd, f"a {name!r} statement of version {version} has each of its fields"
        )
    values = {
        _FIELDS.get(key, key): _READERS.get(key, _as_is)(value, depth)
        for key, value in given.items()
    }
    try:
        return kinds[name](**values)
    except InputError as error:
        if error.where not in _KEYS:
            raise
        raise InputError(_KEYS[error.where], error.value, error.expected) from None


def _check_depth(depth: int) -> None:
    if depth > _DEEPEST:
        raise InputError("mechanism", depth, f"must be nested at most {_DEEPEST} deep")


def _as_is(value: Any, _depth: int) -> Any:
    return value


def _runs(values: Iterable[float], _depth: int) -> list[list[float]]:
    """Neighbours that are equal, counted."""
    return [[value, sum(1 for _ in run)] for value, run in groupby(values)]


def _unrolled(runs: Any, _depth: int) -> Sequence[Any]:
    for run in _list("noise_multiplier", runs):
        if not isinstance(run, list | tuple) or len(run) != 2:
            raise InputError("noise_multiplier", run, "must be a run: [multiplier, steps]")
        whole("steps", run[1])
    few_enough("noise_multiplier", sum(count for _, count in runs))
    return tuple(chain.from_iterable(repeat(value, count) for value, count in runs))


def _list(where: str, values: Any) -> Sequence[Any]:
    if not isinstance(values, list | tuple):
        raise InputError(where, values, "must be a list")
    return values


_WRITERS: Mapping[str, Callable[[Any, int], Any]] = MappingProxyType(
    {
        "noise_multiplier": _runs,
        "participation": lambda part, depth: _written(part, depth + 1),
        "parts": lambda parts, depth: [_written(part, depth + 1) for part in parts],
    }
)
_READERS: Mapping[str, Callable[[Any, int], Any]] = MappingProxyType(
    {
        "noise_multiplier": _unrolled,
        "participation": lambda part, depth: _read(part, depth + 1),
        "parts": lambda parts, depth: [_read(part, depth + 1) for part in _list("parts", parts)],
    }
)
