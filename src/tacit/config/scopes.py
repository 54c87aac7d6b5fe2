"""Which keys may differ, between sites and where a run goes on.

The mark of a key stands at its field, in `tacit.config.schema` or the options of an algorithm.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tacit.algorithms.options import Scope
from tacit.config.load import Config


def _marked(config: Config) -> dict[str, tuple[Scope, Any]]:
    kinds = {name: type(getattr(config, name)) for name in type(config).model_fields}
    kinds["algorithm"] = type(config.algorithm.options)
    return {
        f"{name}.{key}": (mark, field.default)
        for name, kind in kinds.items()
        for key, field in kind.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Scope)
    }


def site_keys(config: Config) -> frozenset[str]:
    """Keys that say where a site keeps its things and how it computes; all others must be equal."""
    return frozenset(key for key, (mark, _) in _marked(config).items() if mark.local)


def free_keys(config: Config) -> frozenset[str]:
    """Keys with which a run may go on that have another value, or are at another place."""
    return frozenset(key for key, (mark, _) in _marked(config).items() if mark.resumed)


def known_as(config: Config, keys: Iterable[str] | None = None) -> Config:
    """What an experiment is known by: without the values of `keys`, by default all with a mark."""
    marked = _marked(config)
    changed: dict[str, dict[str, Any]] = {}
    for key in marked if keys is None else keys:
        section, _, name = key.partition(".")
        values = getattr(config, section)
        value = getattr(values.options if section == "algorithm" else values, name, None)
        if value is not None:
            mark, default = marked[key]
            changed.setdefault(section, {})[name] = (
                default if mark.known_as is None else mark.known_as
            )
    return config.with_keys(**changed)
