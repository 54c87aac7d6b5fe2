"""Experiments that differ from a base in some keys: lists of values, and what a change makes."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.base import plain_files
from tacit.errors import InputError

UNSET = "unset"


def flat_keys(changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`section.key` to value; a table under a section's name is read the same way.

    Raises:
        InputError: a key is named otherwise.
    """
    flat: dict[str, Any] = {}
    for key, value in changes.items():
        if isinstance(value, Mapping) and "." not in key:
            flat |= {f"{key}.{inner}": item for inner, item in value.items()}
        elif re.fullmatch(r"[^.]+\.[^.]+", key):
            flat[key] = value
        else:
            raise InputError(f"{where}.{key}", value, 'must be named as "section.key"')
    return flat


def changed(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of an experiment with some keys replaced, or taken out by "unset"."""
    sections = {section: dict(keys) for section, keys in raw.items()}
    for where, value in changes.items():
        section, _, key = where.partition(".")
        sections.setdefault(section, {})
        if value == UNSET:
            sections[section].pop(key, None)
        else:
            sections[section][key] = value
    return sections


def grid_points(grid: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Every combination of a grid's values, the last key changing first.

    Raises:
        InputError: a key is wrong, or its values are no list or an empty one.
    """
    flat = flat_keys(grid, where)
    for key, values in flat.items():
        if not isinstance(values, list | tuple) or not values:
            raise InputError(f"{where}.{key}", values, "must be a list of values")
    return [dict(zip(flat, chosen, strict=True)) for chosen in itertools.product(*flat.values())]


def choice_text(choice: Mapping[str, Any]) -> str:
    """A grid's point in words: `clip 2.0, learning_rate 0.1`."""
    return ", ".join(
        f"{key.partition('.')[2]} {value if isinstance(value, str) else json.dumps(value)}"
        for key, value in choice.items()
    )


def read_toml(path: Path) -> dict[str, Any]:
    """The sections of a TOML file.

    Raises:
        InputError: it cannot be read, is no TOML, or holds more than sections.
    """
    raw = plain_files.read_toml(path, "FILE", "experiment")
    for name, section in raw.items():
        if not isinstance(section, dict):
            raise InputError(name, section, "must be a section with keys of its own")
    return raw
