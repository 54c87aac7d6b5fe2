"""Which keys may differ, between sites and where a run goes on.

The mark of a key stands at its field, in `tacit.config.schema` or the options of an algorithm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from tacit.algorithms import ALGORITHMS
from tacit.algorithms.options import Scope
from tacit.config.load import Config


def _marked() -> Mapping[str, tuple[Scope, Any]]:
    fields = [
        (f"{name}.{key}", field)
        for name, section in Config.model_fields.items()
        for key, field in section.annotation.model_fields.items()  # type: ignore[union-attr]
    ]
    for row in ALGORITHMS.values():
        fields += [(f"algorithm.{key}", field) for key, field in row.options.model_fields.items()]
    return MappingProxyType(
        {
            key: (mark, field.default)
            for key, field in fields
            for mark in field.metadata
            if isinstance(mark, Scope)
        }
    )


_MARKED = _marked()
SITE_KEYS = frozenset(key for key, (mark, _) in _MARKED.items() if mark.local)
"""Keys that say where a site keeps its things and how it computes; all others must be equal."""
FREE_KEYS = frozenset(key for key, (mark, _) in _MARKED.items() if mark.resumed)
"""Keys with which a run may go on that have another value, or are at another place."""


def known_as(config: Config, keys: Iterable[str] = _MARKED) -> Config:
    """What an experiment is known by: without the values of keys that are no part of it.

    `keys` are these, by default all that have a mark.
    """
    changed: dict[str, dict[str, Any]] = {}
    for key in keys:
        section, _, name = key.partition(".")
        values = getattr(config, section)
        value = getattr(values.options if section == "algorithm" else values, name, None)
        if value is not None:
            mark, default = _MARKED[key]
            changed.setdefault(section, {})[name] = (
                default if mark.known_as is None else mark.known_as
            )
    return config.with_keys(**changed)
