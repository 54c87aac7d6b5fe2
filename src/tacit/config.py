"""The experiment file: TOML, or the same as a mapping, into one frozen and validated `Config`.

Every key is optional but `[task].dataset`; an unknown one is an error that names the nearest known
key. A `Config` is always resolved: what was left out holds its default, so that writing it out
(`to_toml`) tells the whole experiment.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tacit.algorithms import ALGORITHMS, Algorithm, Options
from tacit.errors import InputError, nearest

__all__ = [
    "GIVEN",
    "AlgorithmSection",
    "Config",
    "Nodes",
    "Privacy",
    "Task",
    "Topology",
    "Train",
    "load_config",
    "to_toml",
]

GIVEN = "given"  # a data set or model that was passed as an object
DEFAULT_EPSILON = 3.0
MOST_STEPS = 10_000_000  # a plan holds clip and noise of every step in memory

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1, strict=True)]
Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]  # what TOML and every generator hold


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Task(_Section):
    """What is learnt, and from which data."""

    dataset: str = GIVEN
    model: str = "mlp"
    loss: Literal["cross-entropy", "mse", "logistic"] = "cross-entropy"
    data_dir: str = "data"


class Nodes(_Section):
    """How many nodes, and how the records are split among them."""

    count: Count = 16
    partition: str = "iid"
    alpha: Positive | None = None
    per_node: Count | None = None


class Topology(_Section):
    """Who may talk to whom, and with which weights."""

    graph: str = "exponential"
    mixing: Literal["metropolis", "laplacian", "uniform"] | None = None
    degree: Count | None = None


class AlgorithmSection(_Section):
    """Name of the algorithm, and its options, which the algorithm itself defines."""

    name: str = "dyn-d2p"
    options: Options = Field(default_factory=Options)

    @property
    def definition(self) -> Algorithm[Any, Any]:
        """The row of the table."""
        return ALGORITHMS[self.name]


class Privacy(_Section):
    """Each node's budget, or a given noise, and how it is accounted."""

    epsilon: Literal["none"] | float | tuple[float, ...] = "none"
    delta: float | tuple[float, ...] = 1e-5
    noise_std: Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)] | None = None
    published_constant: Positive = 1.0
    accounting: Literal["certified", "published", "none"] = "certified"
    relation: Literal["add-or-remove-one", "replace-one"] = "add-or-remove-one"
    noise_seed: Seed | None = None
    ledger: Annotated[str, Field(min_length=1)] | None = None
    ledger_epsilon: float | tuple[float, ...] | None = None
    ledger_delta: float | tuple[float, ...] | None = None

    @field_validator("epsilon", mode="before")
    @classmethod
    def _epsilon(cls, value: Any) -> Any:
        expected = "must be a positive number, a list with one for each node, or 'none'"
        return value if value == "none" else _numbers(value, expected, 0.0, float("inf"))

    @field_validator("ledger_epsilon", mode="before")
    @classmethod
    def _ledger_epsilon(cls, value: Any) -> Any:
        expected = "must be a positive number, or a list with one for each node"
        return value if value is None else _numbers(value, expected, 0.0, float("inf"))

    @field_validator("delta", "ledger_delta", mode="before")
    @classmethod
    def _delta(cls, value: Any) -> Any:
        if value is None:
            return value
        expected = "must lie strictly between 0 and 1, or be a list with one such for each node"
        return _numbers(value, expected, 0.0, 1.0)

    @property
    def noisy(self) -> bool:
        """Whether noise is added."""
        return self.epsilon != "none" or self.noise_std is not None


class Train(_Section):
    """How long, on which batches, in which numbers."""

    steps: Annotated[int, Field(ge=1, le=MOST_STEPS, strict=True)] = 500
    batch: Literal["all"] | Count = 64
    sampling: Literal["poisson", "fixed"] = "poisson"
    seed: Seed = 0
    dtype: Literal["float32", "float64"] = "float32"
    device: str = "cpu"
    evaluate_every: Count | None = None
    evaluate_records: Count = 1000
    checkpoint_every: Count | None = None

    @field_validator("batch", mode="before")
    @classmethod
    def _batch(cls, value: Any) -> Any:
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if value != "all" and not whole:
            raise ValueError("must be a whole number of 1 or more, or 'all'")
        return value


class Config(_Section):
    """A whole experiment."""

    task: Task = Field(default_factory=Task)
    nodes: Nodes = Field(default_factory=Nodes)
    topology: Topology = Field(default_factory=Topology)
    algorithm: AlgorithmSection = Field(default_factory=AlgorithmSection)
    privacy: Privacy = Field(default_factory=Privacy)
    train: Train = Field(default_factory=Train)

    def per_node(self, values: float | tuple[float, ...]) -> tuple[float, ...]:
        """One value a node, of a number or a list."""
        return values if isinstance(values, tuple) else (values,) * self.nodes.count


def load_config(
    source: str | Path | Mapping[str, Any] | Config,
    *,
    overrides: Iterable[str] = (),
    count: int | None = None,
    given_model: bool = False,
    saved: bool = False,
) -> Config:
    """Read, complete and validate an experiment.

    Args:
        source: a path of a TOML file, the same as a mapping, or a `Config`.
        overrides: `section.key=value` strings, the value in TOML (a bare word is a string).
        count: the number of nodes whose data were passed as objects; `[nodes].count` and
            `[task].dataset` then follow it.
        given_model: whether the model was passed as an object.
        saved: whether this is the file of a run folder, whose data may have been objects.

    Raises:
        InputError: naming the key, its value and what would be right.
    """
    raw = _read(source)
    for override in overrides:
        _apply(raw, override)
    if count is not None:
        raw.setdefault("nodes", {})["count"] = count
        task = raw.setdefault("task", {})
        if task.setdefault("dataset", GIVEN) != GIVEN:
            raise InputError("task.dataset", task["dataset"], "leave it out where nodes= is passed")
    elif not saved and raw.get("task", {}).get("dataset", GIVEN) == GIVEN:
        raise InputError(
            "task.dataset", raw.get("task", {}).get("dataset"), "name a data set, such as 'digits'"
        )
    if given_model:
        raw.setdefault("task", {})["model"] = GIVEN
    config = _parse(raw)
    _check_privacy(config)
    _check_budgets(config)
    _check_ledger(config.privacy)
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


def _parse(raw: dict[str, Any]) -> Config:
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
    if definition.private and privacy.get("accounting") != "none" and "noise_std" not in privacy:
        privacy.setdefault("epsilon", DEFAULT_EPSILON)
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


def _numbers(value: Any, expected: str, low: float, high: float) -> float | tuple[float, ...]:
    """A number, or a tuple of them, strictly inside (low, high)."""
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    numbers = list(value) if listed else [value]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise ValueError(expected)
        if not low < number < high:
            raise ValueError(expected)
    if not numbers:
        raise ValueError(expected)
    return tuple(float(number) for number in numbers) if listed else float(numbers[0])


def _check_budgets(config: Config) -> None:
    for key in ("epsilon", "delta", "ledger_epsilon", "ledger_delta"):
        value = getattr(config.privacy, key)
        if isinstance(value, tuple) and len(value) != config.nodes.count:
            raise InputError(
                f"privacy.{key}",
                f"a list of {len(value)}",
                f"needs one number for each of the {config.nodes.count} nodes",
            )


def _check_ledger(privacy: Privacy) -> None:
    """Refuse books that would say less than was leaked."""
    if privacy.ledger is None:
        for key in ("ledger_epsilon", "ledger_delta"):
            if getattr(privacy, key) is not None:
                raise InputError(
                    f"privacy.{key}",
                    getattr(privacy, key),
                    "is the budget of a ledger: name its folder in privacy.ledger",
                )
        return
    reasons = {
        "without noise nothing bounds what leaves a node": not privacy.noisy,
        "privacy.accounting = 'none' leaves nothing to book": privacy.accounting == "none",
        "privacy.noise_seed lets anyone subtract the noise": privacy.noise_seed is not None,
    }
    for reason, holds in reasons.items():
        if holds:
            expected = f"keeps a budget that such a run would betray: {reason}; change one of them"
            raise InputError("privacy.ledger", privacy.ledger, expected)


def _check_privacy(config: Config) -> None:
    """Refuse settings of noise, sampling and accounting that contradict each other."""
    privacy, algorithm = config.privacy, config.algorithm.definition
    if privacy.noisy and not algorithm.private:
        key = "epsilon" if privacy.epsilon != "none" else "noise_std"
        raise InputError(
            f"privacy.{key}",
            getattr(privacy, key),
            f"{algorithm.name} adds no noise: leave it out, or choose a private algorithm",
        )
    if privacy.accounting == "none" and privacy.epsilon != "none":
        raise InputError(
            "privacy.accounting", "none", "keeps a given noise: give noise_std, not epsilon"
        )
    if privacy.accounting == "published" and privacy.noise_std is not None:
        raise InputError(
            "privacy.accounting",
            "published",
            "takes the noise from the paper's formula and epsilon: leave noise_std out",
        )
    if privacy.accounting == "published" and algorithm.formula is None and algorithm.private:
        raise InputError(
            "privacy.accounting",
            "published",
            f"the papers print no formula for {algorithm.name}: use 'certified'",
        )
    fixed = config.train.sampling == "fixed" and config.train.batch != "all"
    accounted = privacy.noisy and privacy.accounting != "none"
    if fixed and accounted and privacy.relation != "replace-one":
        raise InputError(
            "train.sampling",
            "fixed",
            "a batch of fixed size is accounted under privacy.relation = 'replace-one' only, since "
            "another record moves in for the one left out; use 'poisson', or that relation",
        )
