"""The experiment file: TOML, or the same as a mapping, into one frozen and validated `Config`.

Every key is optional but `[task].dataset`; an unknown one is an error that names the nearest known
key. A `Config` is free of contradictions, however it was made. Where it names an algorithm, it is
always resolved: what was left out holds its default, so that writing it out (`to_toml`) tells the
whole experiment. Where it names none it is open (`Config.given`), and a plan completes it.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import tomli_w
from pydantic import PrivateAttr

from tacit.algorithms import ALGORITHMS, DEFAULT, plain_method
from tacit.base.plain_files import parse_toml, read_toml
from tacit.config import checks
from tacit.config.schema import (
    GIVEN,
    AlgorithmSection,
    Faults,
    Nodes,
    PerNode,
    Privacy,
    Promise,
    Section,
    StatementSection,
    Task,
    Topology,
    Train,
)
from tacit.config.tables import complete_for_table
from tacit.errors import InputError, is_meant, nearest
from tacit.privacy.mechanisms.clipping import ASSUMED

Each = TypeVar("Each")

_NOT_RUN = {"figure": "tacit compare", "compare": "tacit compare", "tune": "tacit tune"}
_OTHER_WORDS = {  # of other programs; None: no key is the same
    **dict.fromkeys(("nodes", "num_nodes", "clients", "num_clients"), "nodes.count"),
    **dict.fromkeys(("epochs", "noise_multiplier")),
    "eps": "privacy.epsilon",
    "lr": "algorithm.learning_rate",
    "max_grad_norm": "algorithm.clip",
}
_MAY_BE_MISSING = ("promise", "statement")
DEFAULT_EPSILON = 3.0
DEFAULT_PAIRWISE = {"colluding": 1, "pair_noise": "auto"}
DEFAULT_PARTNERS = {"partners": "graph", "rounds": "auto"}
DEFAULT_SECURE_SUM = {"colluding": 1}
DEFAULT_VIEWS = {"views": 4}
DEFAULT_GRAPH = {"column-stochastic": "exponential", "doubly-stochastic": "ring", "server": "star"}


class Config(Section):
    """A whole experiment.

    Each section may be left out, given as an object, or as a mapping of what a file has in it.

    Raises:
        InputError: naming the key, its value and what would be right.
    """

    task: Task
    nodes: Nodes
    topology: Topology
    algorithm: AlgorithmSection
    privacy: Privacy
    train: Train
    faults: Faults
    promise: Promise
    statement: StatementSection
    _given: dict[str, dict[str, Any]] | None = PrivateAttr(default=None)

    def __init__(self, /, **sections: Any) -> None:
        kinds: dict[str, Any] = {
            name: field.annotation for name, field in type(self).model_fields.items()
        }
        for name in sections:
            if name not in kinds:
                raise InputError(f"[{name}]", "", f"unknown section; {nearest(name, kinds)}")
        given = _said(sections)
        if given is not None:
            sums = given.get("privacy", {}).get("aggregation") == "secure-sum"
            method = plain_method("server") if sums else DEFAULT
            sections = {**sections, "algorithm": {"name": method, **given.get("algorithm", {})}}
        made = {name: kind.model_validate(sections.get(name, {})) for name, kind in kinds.items()}
        if not made["algorithm"].is_read:  # of a run: it was completed, and checked, before that
            super().__init__(**made)
            return
        definition, privacy = made["algorithm"].definition, made["privacy"]
        if made["topology"].graph is None:
            graph = DEFAULT_GRAPH[definition.graph.weights]
            made["topology"] = made["topology"].model_copy(update={"graph": graph})
        # No noise at all is only had by `epsilon = "none"`.
        if definition.private and privacy.epsilon is None and not privacy.noisy:
            made["privacy"] = privacy.model_copy(update={"epsilon": DEFAULT_EPSILON})
        if privacy.noise == "pairwise":
            made["privacy"] = _completed(made["privacy"], DEFAULT_PAIRWISE)
            made["topology"] = _completed(made["topology"], DEFAULT_PARTNERS)
        if privacy.aggregation == "secure-sum":
            made["privacy"] = _completed(made["privacy"], DEFAULT_SECURE_SUM)
        bound = definition.input_bound(made["algorithm"].options)
        if definition.name not in ALGORITHMS and bound is not None:
            # So that who reads the run's folder needs nothing of the algorithm.
            made["task"] = _completed(made["task"], {"input_bound": bound})
        made["task"], made["nodes"] = complete_for_table(made["task"], made["nodes"])
        names = made["nodes"].names
        if names is not None and "count" not in made["nodes"].model_fields_set:
            made["nodes"] = made["nodes"].model_copy(update={"count": len(names)})
        if made["task"].augmentation is not None:
            made["train"] = _completed(made["train"], DEFAULT_VIEWS)
        super().__init__(**made)
        self._given = given
        if given is not None and self.faults.tolerate:
            expected = (
                "must be named beside faults.tolerate, since what is chosen for an open experiment "
                "rests on the records of all sites: let `tacit plan --recommend` complete the file "
                "without faults.tolerate, and add it to what it writes"
            )
            raise InputError("algorithm.name", None, expected)
        checks.check_declared(self.task)
        checks.check_names(self.task, self.nodes)
        checks.check_organisations(self.statement.organisations, self.nodes.names, self.nodes.count)
        checks.check_calibration(self.task, self.algorithm, self.privacy, self.faults)
        checks.check_views(self.task, self.train, self.algorithm)
        checks.check_unit(self.task, self.algorithm, self.privacy, self.train)
        if self.train.suboptimality:
            checks.check_suboptimality(self.task, self.nodes, self.algorithm)
        checks.check(
            self.nodes, self.topology, self.algorithm, self.privacy, self.train, self.faults
        )
        checks.check_promise(self.algorithm, self.promise)

    @property
    def given(self) -> Mapping[str, Mapping[str, Any]] | None:
        """What was said of an open experiment, section by section: one that names no algorithm.

        All that was not said is then completed from public facts, once the data are there, as
        `tacit plan --recommend` proposes it (`tacit.training.recommend`). None: an algorithm is
        named, and each key that was left out holds its default.
        """
        return self._given

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """The same with some sections replaced; what is open, and is not changed, stays open."""
        copy = super().model_copy(update=update, deep=deep)
        if self._given is not None and copy.algorithm.name == self.algorithm.name:
            copy._given = dict(self._given)
            for name in update or {}:
                old, new = _values(getattr(self, name)), _values(getattr(copy, name))
                changed = {key: value for key, value in new.items() if value != old[key]}
                copy._given[name] = {**copy._given.get(name, {}), **changed}
        return copy

    def with_keys(self, **sections: Mapping[str, Any]) -> Self:
        """The same with other values of some keys, by section; they are not checked anew."""
        changed = {name: getattr(self, name).model_copy(update=sections[name]) for name in sections}
        return self.model_copy(update=changed)

    def with_defaults(
        self, defaults: Mapping[str, Mapping[str, Any]], *, closed: bool = False
    ) -> Config:
        """The same with values for keys that were left open; `closed`: nothing is open any more."""
        update: dict[str, Any] = {}
        for name, values in defaults.items():
            section = getattr(self, name)
            if name == "algorithm":
                options = section.options.model_dump(exclude_unset=True)
                update[name] = AlgorithmSection(**{"name": section.name, **options, **values})
            else:
                update[name] = section.model_copy(update=values)
        copy = self.model_copy(update=update)
        said = self._given or {}
        names = {**said, **defaults}
        copy._given = (
            None
            if closed
            else {name: {**defaults.get(name, {}), **said.get(name, {})} for name in names}
        )
        return copy

    @property
    def input_bound(self) -> float | None:
        """The l2 norm that no record's inputs exceed: as given, or as the algorithm needs it."""
        if self.task.input_bound is not None or not self.algorithm.is_read:
            return self.task.input_bound
        return self.algorithm.definition.input_bound(self.algorithm.options)

    def per_node(self, values: Each | tuple[Each, ...] | dict[str, Each]) -> tuple[Each, ...]:
        """One value a node: the one place where whose number is whose is decided.

        It is an InputError where they go by name, and nothing says the nodes' names.
        """
        if isinstance(values, Mapping):
            if self.nodes.names is None:
                listed = ", ".join(list(values)[:3])
                expected = (
                    f"must say whose each node is, node 0 first, since numbers go by name ({listed}"
                    "); in Python, nodes= as a mapping says it too"
                )
                raise InputError("nodes.names", None, expected)
            return tuple(values[name] for name in self.nodes.names)
        return values if isinstance(values, tuple) else (values,) * self.nodes.count

    def by_node(self, values: Sequence[float]) -> PerNode:
        """The other way round: one value a node as a setting, by name where nodes have names."""
        if len(set(values)) == 1:
            return values[0]
        names = self.nodes.names
        return tuple(values) if names is None else dict(zip(names, values, strict=True))

    def with_names(self, names: Sequence[str] | None) -> Config:
        """The experiment whose nodes have these names, if there are any; an InputError where it has
        others.
        """
        if names is None or self.nodes.names == tuple(names):
            return self
        if self.nodes.names is not None:
            expected = f"must be those of the schema or data, node 0 first: {', '.join(names)}"
            raise InputError("nodes.names", ", ".join(self.nodes.names), expected)
        return self.with_keys(nodes={"names": tuple(names)})

    @property
    def weights(self) -> Literal["records", "equal", "noise"] | tuple[float, ...]:
        """How much each node's mean loss counts: `nodes.weights`, or by default.

        By default that is "records", which trains what training on all records together would. It
        is "equal" where a method has no weights, and where a run may begin without a site, whose
        number of records nobody knows then.
        """
        given = self.nodes.weights
        if given is not None:
            return given if isinstance(given, str) else self.per_node(given)
        unweighed = self.algorithm.definition.participation.no_weights is not None
        may_begin_without = self.faults.tolerate and self.plans_each_node_alone
        return "equal" if unweighed or may_begin_without else "records"

    @property
    def goes_on_without(self) -> bool:
        """Whether the run can go on without a site, as far as these settings say.

        Not where nodes share noise or masks: who is left out could be an excuse to know them all.
        """
        return self.faults.tolerate and self._shares_nothing

    @property
    def _shares_nothing(self) -> bool:
        return self.privacy.noise == "independent" and self.privacy.aggregation == "clear"

    @property
    def takes_back(self) -> bool:
        """Whether a site without which it went on can take part again, at no cost of privacy.

        It can where clients keep nothing between rounds, so that it goes on with the server's
        model. Random allocation would draw the epoch anew in the middle of which all meet again.
        """
        return self.goes_on_without and self._stateless

    @property
    def _stateless(self) -> bool:
        clients = self.algorithm.definition.participation.stateless_clients
        return clients and self.train.sampling != "allocation"

    @property
    def begins_without(self) -> bool:
        """Whether it can begin without a site, whose number of records nobody knows then."""
        known_alone = self.plans_each_node_alone and self.weights not in ("records", "noise")
        return self.faults.tolerate and known_alone

    @property
    def plans_each_node_alone(self) -> bool:
        """Whether the noise of a node rests on no other node's number of records, in any digit.

        A run whose `faults.tolerate` is false keeps to it, too: it may be changed in a run, and
        `begins_without` then holds.
        """
        return self._shares_nothing and self._stateless and self.train.batch != "auto"

    @property
    def not_private_reason(self) -> str | None:
        """Why a run of it guarantees nothing to anybody; None where it does."""
        privacy = self.privacy
        if self.algorithm.is_read and not self.algorithm.definition.private:
            return f"{self.algorithm.name} adds no noise"
        if not privacy.noisy:
            return "no noise is added"
        if privacy.noise_seed is not None:
            return "seeded noise: anyone who knows the seed can subtract it"
        if privacy.accounting == "none":
            return "the noise is not accounted, and nothing is certified"
        if self.algorithm.options.clip_norm == ASSUMED:
            return (
                "the bound of gradients is assumed (algorithm.clip_norm = 'assumed'): nothing "
                "keeps a record's gradient to it, and no epsilon holds"
            )
        return None

    @property
    def accounted(self) -> bool:
        """Whether an epsilon is certified: where noise is accounted and gradients are clipped."""
        settings, options = self.privacy, self.algorithm.options
        return settings.noisy and settings.accounting != "none" and options.clip_norm != ASSUMED


def _said(sections: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    """What an open experiment says by itself; None where an algorithm is named."""
    algorithm = sections.get("algorithm", {})
    if not isinstance(algorithm, Mapping) or "name" in algorithm:
        return None
    options = algorithm.get("options") or {}
    if not isinstance(options, Mapping):  # of a definite algorithm
        return None
    said = {
        name: {key: getattr(section, key) for key in section.model_fields_set}
        if isinstance(section, Section)
        else dict(section)
        for name, section in sections.items()
        if isinstance(section, Mapping | Section)
    }
    alone = {key: value for key, value in algorithm.items() if key != "options"}
    said["algorithm"] = {**options, **alone}
    return {name: keys for name, keys in said.items() if keys}


def _values(section: Section) -> dict[str, Any]:
    """The keys of a section; of an algorithm, its options."""
    return dict(section.options if isinstance(section, AlgorithmSection) else section)


def _completed(section: Section, defaults: Mapping[str, Any]) -> Section:
    """The section with defaults for those of its keys that are not set."""
    missing = {key: value for key, value in defaults.items() if getattr(section, key) is None}
    return section.model_copy(update=missing) if missing else section


def load_config(
    source: str | Path | Mapping[str, Any] | Config,
    *,
    overrides: Iterable[str] = (),
    count: int | None = None,
    names: Sequence[str] | None = None,
    given_model: bool = False,
    task: Mapping[str, Any] | None = None,
    loss: str | None = None,
    saved: bool = False,
    trusted: bool = True,
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
        names: of those nodes, where they were passed by name.
        given_model: whether the model was passed as an object.
        task: keys of `[task]` that were passed as arguments, which count more than the file's.
        loss: that goes with data passed as objects, where none is given.
        saved: whether this is the file of a run folder, whose data may have been objects.
        trusted: whether an algorithm of somebody's own may be imported, whose options are otherwise
            taken as they stand (`AlgorithmSection.unread`).
        folder: that a relative `privacy.ledger` is seen from; by default that of the file, and the
            current one for a mapping and for overrides.

    Raises:
        InputError: naming the key, its value and what would be right.
    """
    raw = read_sections(source, overrides=overrides, folder=folder)
    own = raw.get("nodes", {}).get("data") == "by-rank"
    if count is not None:
        raw.setdefault("nodes", {})["count"] = count
        section = raw.setdefault("task", {})
        if section.setdefault("dataset", GIVEN) != GIVEN:
            raise InputError(
                "task.dataset", section["dataset"], "leave it out where nodes= is passed"
            )
    if loss is not None:
        raw.setdefault("task", {}).setdefault("loss", loss)
    if given_model:
        raw.setdefault("task", {})["model"] = GIVEN
    if task:
        raw["task"] = dict(raw.get("task", {})) | dict(task)
    for name, command in _NOT_RUN.items():
        if name in raw:
            expected = f"is for `{command}`: run that on this file, or take the section out"
            raise InputError(f"[{name}]", "", expected)
    if not trusted and "algorithm" in raw:
        raw["algorithm"] = AlgorithmSection.unread(raw["algorithm"])
    config = Config(**raw).with_names(names)
    if count is None and not (saved or own) and config.task.dataset == GIVEN:
        given = raw.get("task", {}).get("dataset")  # said last: a key that is misspelt comes before
        raise InputError("task.dataset", given, "name a data set, such as 'digits'")
    if config.given is None and config.algorithm.is_read:
        checks.check_named(config.topology, config.algorithm, config.faults, config.nodes.count)
    return config


def read_sections(
    source: str | Path | Mapping[str, Any] | Config,
    *,
    overrides: Iterable[str] = (),
    folder: Path | None = None,
) -> dict[str, dict[str, Any]]:
    """What an experiment says by itself, section by section: not completed, and not checked.

    The arguments are those of `load_config`; `privacy.ledger` becomes absolute here, too.
    """
    raw: dict[str, Any] = _read(source)
    here = Path()
    of_file = Path(source).parent if isinstance(source, (str, Path)) else here
    _place_ledger(raw, of_file if folder is None else folder)
    for override in overrides:
        _apply(raw, override)
    _place_ledger(raw, here)
    return raw


def flat(config: Config) -> dict[str, Any]:
    """The values of a resolved experiment by their keys (`privacy.epsilon`), as TOML has them."""
    return {
        f"{section}.{key}": value
        for section, values in _plain(config).items()
        for key, value in values.items()
    }


def to_toml(config: Config) -> str:
    """The resolved experiment as TOML, which `load_config` reads back to the same `Config`.

    Of an open one (`Config.given`) it is what was said of it, so that it is read back as open.
    """
    return tomli_w.dumps(_plain(config))


def _plain(config: Config) -> dict[str, Any]:
    """The experiment as nested dictionaries, without what is not set."""
    plain = config.model_dump(mode="json", exclude_none=True)
    chosen = plain["algorithm"]
    whole = {  # no section of a file that has none
        name: values for name, values in plain.items() if values or name not in _MAY_BE_MISSING
    }
    whole["algorithm"] = {"name": chosen["name"], **chosen["options"]}
    if config.given is None:
        return whole
    return {
        name: {key: value for key, value in section.items() if key in config.given[name]}
        for name, section in whole.items()
        if name in config.given
    }


def _read(source: str | Path | Mapping[str, Any] | Config) -> dict[str, Any]:
    if isinstance(source, Config):
        return _plain(source)
    if isinstance(source, Mapping):
        sections = {}
        for name, section in source.items():
            if not isinstance(section, Mapping):
                home = key_meant(str(name))
                hint = "" if home is None else f": did you mean {home}, a key of that section?"
                expected = f"must be a section with keys of its own{hint}"
                raise InputError(str(name), section, expected)
            sections[str(name)] = dict(section)
        return sections
    return _read(read_toml(Path(source), "experiment file", "experiment"))


def key_meant(word: str) -> str | None:
    """The key of an experiment that a word without its section means: `privacy.epsilon`."""
    sections: dict[str, Any] = {
        name: field.annotation.model_fields  # type: ignore[union-attr]
        for name, field in Config.model_fields.items()
    }
    options = {key for row in ALGORITHMS.values() for key in row.options.model_fields}
    homes = dict.fromkeys(sorted(options), "algorithm")
    homes |= {key: name for name, keys in sections.items() for key in keys if key not in homes}
    if (known := word.lower().replace("-", "_")) in _OTHER_WORDS:
        return _OTHER_WORDS[known]
    meant = is_meant(word, homes)
    return None if meant is None else f"{homes[meant]}.{meant}"


def _apply(raw: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    section, dot, name = key.strip().partition(".")
    if not (equals and dot and section and name):
        home = None if dot else key_meant(section)
        hint = "" if home is None else f": did you mean {home}={value.strip()}?"
        raise InputError("--set", override, f"must read section.key=value{hint}")
    try:
        parsed = parse_toml(f"value = {value}")["value"]
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
