"""What is searched: the section `[tune]` of an experiment file, and the settings that it names.

The settings are public: a grid, or so many points that are drawn from ranges with a public seed.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tacit.analysis.settings.changes import changed, flat_keys, grid_points, read_toml
from tacit.analysis.settings.runs import placeless
from tacit.config import Config, load_config, to_toml
from tacit.config.schema import LEDGER_KEYS, Section
from tacit.errors import InputError
from tacit.privacy.accounting.choosing import NegativeBinomialTrials, PoissonTrials, Trials
from tacit.report.compare_panels import compared
from tacit.report.measures import Measure

MOST_SETTINGS = 1000
# Keys that say whose records these are, what protects them and under which terms: they are of all
# trials, or what the trials release would not add up.
_FIXED_SECTIONS = ("privacy", "nodes", "faults")
_FIXED_KEYS = (
    "task.dataset",
    "task.data_dir",
    "task.schema",
    "task.test",
    "task.test_share",
    "task.metric",
    "train.seed",
    "train.device",
)
_RANDOM_ONLY = ("distribution", "expected_trials", "eta", "gamma")


class Tune(Section):
    """The section `[tune]`: what is searched, by which score, and how choosing is paid for.

    `cost` is "composed" (every trial may be seen, and all of them keep the budget together),
    "public" (trials run on public records, named by `set`) or "random-stopping" (a secret number
    of trials, of which the winner alone is seen).
    """

    search: Literal["grid", "random"] = "grid"
    grid: dict[str, Any] = Field(default_factory=dict)
    trials: Annotated[int, Field(ge=1, le=MOST_SETTINGS, strict=True)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 0
    score: str | None = None
    cost: Literal["public", "composed", "random-stopping"] = "composed"
    set: dict[str, Any] = Field(default_factory=dict)
    distribution: Literal["negative-binomial", "poisson"] = "negative-binomial"
    expected_trials: Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False)] | None = None
    eta: Annotated[float, Field(gt=-1, le=100, allow_inf_nan=False)] | None = None
    gamma: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None


@dataclass(frozen=True)
class Search:
    """A search that could be planned.

    Of the settings, each once, `choices` are by `section.key`, `trials` the experiments as the
    search runs them, with the whole budget, and `experiments` those on the private records, which a
    winner stands for. `score` is what trials are judged by: a metric, "test_accuracy" or
    "test_loss". `law` is that of the number of trials; None where it is fixed.
    """

    tune: Tune
    choices: tuple[Mapping[str, Any], ...]
    trials: tuple[Config, ...]
    experiments: tuple[Config, ...]
    score: str
    law: Trials | None

    @property
    def base(self) -> Config:
        """The experiment of the first setting, for what all have in common."""
        return self.experiments[0]

    @property
    def measure(self) -> Measure:
        """What the score is called, and which of two wins."""
        return compared(self.score)

    def digest(self) -> str:
        """Identifies the search, wherever its ledgers and data lie."""
        told = {
            "tune": self.tune.model_dump(mode="json"),
            "trials": [placeless(config, "a folder") for config in self.trials],
        }
        text = json.dumps(told, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def load_search(file: Path, overrides: Sequence[str] = ()) -> Search:
    """Read an experiment file with a section `[tune]`, of which no override is.

    Raises:
        InputError: naming the key, its value and what would be right.
    """
    raw = read_toml(file)
    if "tune" not in raw:
        expected = "is needed: say what is searched, as docs/how-to/tune.md shows"
        raise InputError("[tune]", "", expected)
    for override in overrides:
        if override.strip().startswith("tune."):
            raise InputError("--set", override, "is of the search: change it in the file")
    tune = Tune.model_validate(raw.pop("tune"))
    _check_section(tune)
    choices = _choices(tune)
    experiments = [_made(raw, choice, overrides, file) for choice in choices]
    settings = flat_keys(tune.set, "tune.set")
    trials = experiments
    if tune.cost == "public":
        # The overrides are of the private experiment: what `set` says of the trials stands.
        given = [f"{key}={json.dumps(at)}" for key, at in settings.items() if at != "unset"]
        trials = [
            _made(changed(raw, settings), choice, [*overrides, *given], file) for choice in choices
        ]
        trials = [without_ledger(config) for config in trials]
    kept: dict[str, int] = {}
    for place, config in enumerate(trials):  # overrides may make two one
        kept.setdefault(to_toml(config), place)
    places = list(kept.values())
    found = Search(
        tune=tune,
        choices=tuple(choices[place] for place in places),
        trials=tuple(trials[place] for place in places),
        experiments=tuple(experiments[place] for place in places),
        score=_score(tune, trials[0]),
        law=_law(tune, len(places)),
    )
    _check(found)
    return found


def without_ledger(config: Config) -> Config:
    """The experiment of a run that is charged to no ledger of data by itself."""
    return config.with_keys(privacy=dict.fromkeys(LEDGER_KEYS))


def _made(
    raw: Mapping[str, Any], choice: Mapping[str, Any], overrides: Sequence[str], file: Path
) -> Config:
    return load_config(changed(raw, choice), overrides=overrides, folder=file.parent)


def _check_section(tune: Tune) -> None:
    """Refuse keys that do nothing, and keys that are not to be searched."""
    given = tune.model_fields_set
    for key in _RANDOM_ONLY:
        if key in given and tune.cost != "random-stopping":
            expected = 'goes with cost = "random-stopping"'
            raise InputError(f"tune.{key}", getattr(tune, key), expected)
    if "set" in given and tune.cost != "public":
        raise InputError("tune.set", dict(tune.set), 'goes with cost = "public"')
    for key in ("trials", "seed"):
        if key in given and tune.search != "random":
            raise InputError(f"tune.{key}", getattr(tune, key), 'goes with search = "random"')
    if tune.search == "random" and tune.trials is None:
        raise InputError("tune.trials", None, 'is needed for search = "random": how many settings')
    if not tune.grid:
        raise InputError("tune.grid", {}, 'is needed: { "section.key" = [values] }')
    for key, values in flat_keys(tune.grid, "tune.grid").items():
        if key.partition(".")[0] in _FIXED_SECTIONS or key in _FIXED_KEYS:
            expected = "is the same in all trials: search keys of the method, model or training"
            raise InputError(f"tune.grid.{key}", values, expected)


def _choices(tune: Tune) -> list[dict[str, Any]]:
    if tune.search == "grid":
        points = grid_points(tune.grid, "tune.grid")
        if len(points) > MOST_SETTINGS:
            expected = f"at most {MOST_SETTINGS} settings"
            raise InputError("tune.grid", f"{len(points)} settings", expected)
        return points
    coins = random.Random(tune.seed)
    ranges = flat_keys(tune.grid, "tune.grid")
    return [
        {key: _drawn(coins, key, values) for key, values in ranges.items()}
        for _ in range(tune.trials or 0)
    ]


def _drawn(coins: random.Random, key: str, values: Any) -> Any:
    """A value of a list, or of a range `{ low, high, log }`, three digits of it."""
    where = f"tune.grid.{key}"
    if isinstance(values, list) and values:
        return coins.choice(values)
    is_range = isinstance(values, Mapping) and set(values) <= {"low", "high", "log"}
    low, high = (values.get(end) if is_range else None for end in ("low", "high"))
    numbers = [v for v in (low, high) if isinstance(v, int | float) and not isinstance(v, bool)]
    by_powers = isinstance(values, Mapping) and values.get("log", False) is True
    if len(numbers) < 2 or not -math.inf < numbers[0] < numbers[1] < math.inf:
        expected = "must be a list of values, or { low = L, high = H, log = true } with L below H"
        raise InputError(where, values, expected)
    if by_powers and numbers[0] <= 0:
        raise InputError(where, values, "needs low above 0 for log = true")
    share = coins.random()
    if by_powers:
        return float(f"{numbers[0] * (numbers[1] / numbers[0]) ** share:.3g}")
    drawn = numbers[0] + share * (numbers[1] - numbers[0])
    whole = isinstance(low, int) and isinstance(high, int)
    return round(drawn) if whole else float(f"{drawn:.3g}")


def _score(tune: Tune, config: Config) -> str:
    known = [*(config.task.metric or ()), "test_accuracy", "test_loss"]
    if tune.score is None:
        has_accuracy = config.task.loss in ("cross-entropy", "logistic")
        return known[0] if config.task.metric or has_accuracy else "test_loss"
    named = {"accuracy": "test_accuracy", "loss": "test_loss"}.get(tune.score, tune.score)
    if named not in known:
        listed = ", ".join(["accuracy", "loss", *(config.task.metric or ())])
        expected = f"must be one of {listed}; or add it to task.metric"
        raise InputError("tune.score", tune.score, expected)
    return named


def _law(tune: Tune, settings: int) -> Trials | None:
    if tune.cost != "random-stopping":
        return None
    mean = float(settings) if tune.expected_trials is None else tune.expected_trials
    if tune.distribution == "poisson":
        for key in ("eta", "gamma"):
            if getattr(tune, key) is not None:
                expected = 'goes with distribution = "negative-binomial"'
                raise InputError(f"tune.{key}", getattr(tune, key), expected)
        return PoissonTrials(mean)
    eta = 1.0 if tune.eta is None else tune.eta
    if tune.gamma is None:
        return NegativeBinomialTrials.of_mean(eta, mean)
    if tune.expected_trials is not None:
        raise InputError("tune.gamma", tune.gamma, "leave out either this or expected_trials")
    return NegativeBinomialTrials(eta, tune.gamma)


def _check(search: Search) -> None:
    """Refuse a search whose budget could not be kept, or whose trust does not hold."""
    base, tune = search.base, search.tune
    privacy = base.privacy
    for key, value, wrong in (
        ("accounting", privacy.accounting, privacy.accounting != "certified"),
        ("noise_std", privacy.noise_std, privacy.noise_std is not None),
        ("epsilon_per_round", privacy.epsilon_per_round, privacy.epsilon_per_round is not None),
        ("guess", privacy.guess, privacy.guess is not None),
        ("epsilon", privacy.epsilon, privacy.budget is None),
    ):
        if wrong and (key == "guess" or tune.cost != "public"):
            expected = "a search keeps one certified budget: set privacy.epsilon, and leave it out"
            raise InputError(f"privacy.{key}", value, expected)
    if tune.cost == "composed" and privacy.ledger is not None and privacy.ledger_epsilon is None:
        expected = (
            "is needed beside privacy.ledger: trials have budgets of their own, and that of the "
            "data is another"
        )
        raise InputError("privacy.ledger_epsilon", None, expected)
    for key in ("task.loss", "task.class_weights"):
        if search.score == "test_loss" and any(key in choice for choice in search.choices):
            expected = "changes what the loss is, by which trials are judged: name another score"
            raise InputError(f"tune.grid.{key}", [c.get(key) for c in search.choices], expected)
    if base.nodes.data == "by-rank":
        expected = 'a search runs in one process: use data = "split"'
        raise InputError("nodes.data", "by-rank", expected)
    if tune.cost == "random-stopping" and base.nodes.count > 1:
        expected = (
            'must be 1 for cost = "random-stopping": with more, the messages of every trial '
            'are seen, and its theorem holds only where the winner alone is; use "composed"'
        )
        raise InputError("nodes.count", base.nodes.count, expected)
