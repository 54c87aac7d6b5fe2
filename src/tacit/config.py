"""The experiment file: TOML, or the same as a mapping, into one frozen and validated `Config`.

Every key is optional but `[task].dataset`; an unknown one is an error that names the nearest known
key. A `Config` is always resolved: what was left out holds its default, so that writing it out
(`to_toml`) tells the whole experiment.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from tacit.algorithms import ALGORITHMS
from tacit.config_checks import check
from tacit.config_sections import (
    DEFAULT_GRAPH,
    GIVEN,
    AlgorithmSection,
    Config,
    Faults,
    Nodes,
    Privacy,
    Task,
    Topology,
    Train,
)
from tacit.errors import InputError, nearest

__all__ = [
    "GIVEN",
    "AlgorithmSection",
    "Config",
    "Faults",
    "Nodes",
    "Privacy",
    "Task",
    "Topology",
    "Train",
    "load_config",
    "to_toml",
]

DEFAULT_EPSILON = 3.0


def load_config(
    source: str | Path | Mapping[str, Any] | Config,
    *,
    overrides: Iterable[str] = (),
    count: int | None = None,
    given_model: bool = False,
    saved: bool = False,
    folder: Path | None = None,
) -> Config:
    """Read, complete and validate an experiment.

    `privacy.ledger` becomes absolute: the budgets of an experiment file lie where the file says,
    wherever it is run from.

    Args:
        source: a path of a TOML file, the same as a mapping, or a `Config`.
        overrides: `section.key=value` strings, the value in TOML (a bare word is a string).
        count: the number of nodes whose data were passed as objects; `[nodes].count` and
            `[task].dataset` then follow it.
        given_model: whether the model was passed as an object.
        saved: whether this is the file of a run folder, whose data may have been objects.
        folder: that a relative `privacy.ledger` is seen from; by default that of the file, and the
            current one for a mapping and for overrides.

    Raises:
        InputError: naming the key, its value and what would be right.
    """
    raw = _read(source)
    here = Path()
    of_file = Path(source).parent if isinstance(source, (str, Path)) else here
    _place_ledger(raw, of_file if folder is None else folder)
    for override in overrides:
        _apply(raw, override)
    _place_ledger(raw, here)
    own = raw.get("nodes", {}).get("data") == "by-rank"
    if count is not None:
        raw.setdefault("nodes", {})["count"] = count
        task = raw.setdefault("task", {})
        if task.setdefault("dataset", GIVEN) != GIVEN:
            raise InputError("task.dataset", task["dataset"], "leave it out where nodes= is passed")
    elif not (saved or own) and raw.get("task", {}).get("dataset", GIVEN) == GIVEN:
        raise InputError(
            "task.dataset", raw.get("task", {}).get("dataset"), "name a data set, such as 'digits'"
        )
    if given_model:
        raw.setdefault("task", {})["model"] = GIVEN
    config = _parse(raw)
    check(config)
    return config


def to_toml(config: Config) -> str:
    """The resolved experiment as TOML, which `load_config` reads back to the same `Config`."""
    return tomli_w.dumps(_plain(config))


def _plain(config: Config) -> dict[str, Any]:
    """The experiment as nested dictionaries, without what is not set."""
    plain = config.model_dump(mode="json", exclude_none=True)
    chosen = config.algorithm
    plain["algorithm"] = {
        "name": chosen.name,
        **chosen.options.model_dump(mode="json", exclude_none=True),
    }
    return plain


def _read(source: str | Path | Mapping[str, Any] | Config) -> dict[str, Any]:
    if isinstance(source, Config):
        return _plain(source)
    if isinstance(source, Mapping):
        sections = {}
        for name, section in source.items():
            if not isinstance(section, Mapping):
                raise InputError(str(name), section, "must be a section with keys of its own")
            sections[str(name)] = dict(section)
        return sections
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise InputError(
            "experiment file", str(path), f"{reason}: give a readable TOML file"
        ) from None
    try:
        return _read(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise InputError("experiment file", str(path), f"is not valid TOML: {error}") from None


def _apply(raw: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    section, dot, name = key.strip().partition(".")
    if not (equals and dot and section and name):
        raise InputError("--set", override, "must read section.key=value")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    raw.setdefault(section, {})[name] = parsed


def _place_ledger(raw: dict[str, Any], folder: Path) -> None:
    """Make the path of the ledgers absolute, as seen from a folder; an absolute one stays."""
    privacy = raw.get("privacy")
    ledger = privacy.get("ledger") if isinstance(privacy, Mapping) else None
    if isinstance(ledger, str) and ledger:
        path = os.path.abspath(folder / os.path.expanduser(ledger))
        raw["privacy"] = {**raw["privacy"], "ledger": path}


def _parse(raw: dict[str, Any]) -> Config:
    if "figure" in raw:
        raise InputError("[figure]", "", "this file holds a figure: run it with `tacit compare`")
    sections = dict(raw)
    algorithm = dict(sections.pop("algorithm", {}))
    name = algorithm.pop("name", AlgorithmSection.model_fields["name"].default)
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise InputError("algorithm.name", name, nearest(str(name), ALGORITHMS))
    definition = ALGORITHMS[name]
    options = _validated(definition.options, algorithm, "algorithm")
    known = set(Config.model_fields)
    for section in sections:
        if section not in known:
            raise InputError(f"[{section}]", "", f"unknown section; {nearest(section, known)}")
    privacy = dict(sections.get("privacy", {}))
    given = {"noise_std", "epsilon_per_round"} & set(privacy)
    if definition.private and privacy.get("accounting") != "none" and not given:
        privacy.setdefault("epsilon", DEFAULT_EPSILON)
    topology = dict(sections.get("topology", {}))
    topology.setdefault("graph", DEFAULT_GRAPH[definition.weights])
    sections["topology"] = topology
    parts = {
        section: _validated(field.annotation, sections.get(section, {}), section)
        for section, field in Config.model_fields.items()
        if section not in ("algorithm", "privacy")
    }
    return Config(
        **parts,
        privacy=_validated(Privacy, privacy, "privacy"),
        algorithm=AlgorithmSection.model_construct(name=name, options=options),
    )


def _validated(model: Any, values: Mapping[str, Any], section: str) -> Any:
    """A section, or the first thing wrong with it as one line."""
    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        where = f"{section}.{key}"
        if first["type"] == "extra_forbidden":
            known = list(model.model_fields)
            listed = f"this takes: {', '.join(sorted(known))}"
            close = nearest(key, known)
            hint = f"{close} ({listed})" if close.startswith("did") else listed
            raise InputError(where, values[key], f"unknown key; {hint}") from None
        message = first["msg"].removeprefix("Value error, ").removeprefix("Input should ")
        if message.startswith("be "):
            message = "must " + message
        raise InputError(where, values.get(key), message) from None
    except TypeError as error:
        raise InputError(section, dict(values), str(error)) from None
