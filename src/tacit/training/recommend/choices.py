"""What is proposed, key by key, each with its reason; what the user has set stays.

Choices are made in three parts: those that follow from the task, then gossip rounds, then clip and
rate, which follow from the noise of a plan that has all the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tacit.config import Config
from tacit.errors import InputError
from tacit.gradients.losses import OF_NUMBERS
from tacit.report.wording import number_text
from tacit.training.recommend.facts import Facts
from tacit.training.recommend.rules import (
    MOMENTUM,
    STEPS,
    WIDE_CLIP,
    TravelPath,
    averaging,
    path,
)

Given = Mapping[str, Mapping[str, Any]]
"""What the user has set: section, then key, then value."""

LINEAR = ("logistic", "linear")
"""Models for which the rules were measured."""

_RANKS = ("auc", "average-precision")
_FAR = 3.0  # a rate is called far off if it is as many times too large or too small
_LONG_CLIP = 0.3  # over |x|
_FEW_STEPS = 25
_SMALL_IMAGE = 4
_LARGE_IMAGE = 16
_USUAL_DELTA = 1e-5
_TO_CALIBRATE = 200  # public records at least


@dataclass(frozen=True)
class Proposal:
    """A key of the experiment that is proposed: its value as TOML has it, and why, in one line."""

    section: str
    key: str
    value: Any
    reason: str

    @property
    def name(self) -> str:
        """As errors name it, such as `train.steps`."""
        return f"{self.section}.{self.key}"


def merged(given: Given, choices: Iterable[Proposal]) -> dict[str, dict[str, Any]]:
    """The sections, with what is proposed for what the user has not set."""
    sections = {name: dict(section) for name, section in given.items()}
    for choice in choices:
        sections.setdefault(choice.section, {}).setdefault(choice.key, choice.value)
    return sections


def first_choices(given: Given, config: Config, facts: Facts) -> list[Proposal]:
    """All but features, model, clip, rate and gossip rounds; `config` is `given`, with defaults."""
    row = config.algorithm.definition
    steps = given.get("train", {}).get("steps", STEPS)
    below = math.floor(math.log10(0.1 / max(facts.records)))  # the largest power of ten
    delta = min(_USUAL_DELTA, float(f"1e{below}"))
    choices = [
        Proposal("nodes", "count", facts.nodes, "as the data or the defaults have it"),
        Proposal("algorithm", "name", row.name, row.steps_along),
        Proposal("privacy", "delta", delta, "far below 1 over a node's number of records"),
        Proposal(
            "train", "steps", STEPS, "under one budget, more of them cost time and gain little"
        ),
        Proposal(
            "train", "batch", "all", "every record at every step: the least noise for a budget"
        ),
        Proposal(
            "train",
            "average",
            averaging(steps) if row.restarts else "none",
            "of models: free, and evens out late noise",
        ),
    ]
    if len(set(facts.records)) > 1:
        reason = "a small site adds as little noise as it teaches; 'equal' would let it drown all"
        choices.append(Proposal("nodes", "weights", "records", reason))
    # Those that set noise in place of epsilon.
    if not given.get("privacy", {}).keys() & {"guess", "noise_std", "epsilon_per_round"}:
        reason = "the usual budget, of each node"
        choices.append(Proposal("privacy", "epsilon", config.privacy.epsilon, reason))
    if "momentum" in row.options.model_fields:
        reason = "averages noised gradients, and costs no privacy"
        choices.append(Proposal("algorithm", "momentum", MOMENTUM, reason))
    if row.graph.weights == "server":
        return _open(given, choices)
    reason = "the safe default: epsilon holds against whoever sees every message"
    choices.append(Proposal("privacy", "noise", "independent", reason))
    if config.privacy.noise == "pairwise":
        reason = "how many nodes may pool all that they know"
        choices.append(Proposal("privacy", "colluding", 1, reason))
    reason = "few messages a round, and mixed in few rounds"
    choices.append(Proposal("topology", "graph", config.topology.graph, reason))
    return _open(given, choices)


def mixing_choices(given: Given, config: Config, rounds: int | str) -> list[Proposal]:
    """Gossip rounds, of which `rounds` in a step are enough."""
    if config.algorithm.definition.graph.weights == "server":
        return []
    final = math.ceil(math.log2(max(2, config.nodes.count)))
    reason = "gossip is free of privacy: rounds until nodes hardly stand apart"
    if rounds == "auto":
        reason = "the plan weighs them with the noise of pairs"
    choices = [Proposal("topology", "rounds", rounds, reason)]
    if "final_mixing" in type(config.algorithm.options).model_fields:
        reason = "rounds after the last step, so that every node has the mean of all models"
        choices.append(Proposal("algorithm", "final_mixing", final, reason))
    return _open(given, choices)


def path_of(given: Given, config: Config, facts: Facts, noise: float) -> TravelPath:
    """Clip and rate, with what the user has set of them, where the noise is s.

    The facts are of what the model gets.
    """
    options, own = config.algorithm.options, given.get("algorithm", {})
    task, linear = config.task, config.task.model in LINEAR
    table, squared = task.feature_map is None and not facts.image, task.loss in OF_NUMBERS
    return path(
        noise,
        facts.norm,
        config.train.steps,
        getattr(options, "momentum", 0.0),
        options.learning_rate_schedule,
        clip=_number(own, "clip"),
        learning_rate=_number(own, "learning_rate"),
        linear=linear,
        whole=linear and (table or squared),
        squared=squared,
        ranks=(config.task.metric or ("",))[0] in _RANKS,
    )


def _number(own: Mapping[str, Any], key: str) -> float | None:
    """What the user has set of an option, None where it is open; a rule is refused."""
    value = own.get(key)
    if isinstance(value, str):
        expected = "must be a number here, or left out: it is what is recommended"
        raise InputError(f"algorithm.{key}", value, expected)
    return value


def path_choices(given: Given, found: TravelPath, norm: float) -> list[Proposal]:
    """Clip and rate as choices."""
    share = found.clip / norm
    clip = f"{number_text(share)} of the usual length of a record's inputs, {number_text(norm)}: "
    if share >= WIDE_CLIP:
        clip += "few gradients are clipped, so that outputs mean what they say"
    else:
        clip += "nearly every gradient is clipped, and all records count alike"
    rate = (
        f"models may move by {number_text(found.travel / norm)} in all, which leaves noise of "
        f"{number_text(found.output_noise)} in an output before gradients take it back"
    )
    return _open(
        given,
        [
            Proposal("algorithm", "clip", found.clip, clip),
            Proposal("algorithm", "learning_rate", found.learning_rate, rate),
        ],
    )


def conflicts(given: Given, config: Config, facts: Facts, noise: float) -> list[str]:
    """What the user has set and the rules would not, each one line; the rest is as in `path_of`."""
    told, norm = [], facts.norm
    own = given.get("algorithm", {})
    free = {**given, "algorithm": {k: v for k, v in own.items() if k != "learning_rate"}}
    wanted = path_of(free, config, facts, noise).learning_rate
    rate, clip = own.get("learning_rate"), own.get("clip")
    if rate is not None and not wanted / _FAR <= rate <= wanted * _FAR:
        told.append(
            f"algorithm.learning_rate = {rate:g} is kept; with the other settings the rules would "
            f"set {wanted:g}"
        )
    usual = path_of({}, config, facts, noise).clip
    if clip is not None and clip > max(_LONG_CLIP * norm, usual):
        told.append(
            f"algorithm.clip = {clip:g} is kept; it is long beside inputs of length "
            f"{number_text(norm)}, and noise grows with it: the rules would set {usual:g}"
        )
    if config.train.steps < _FEW_STEPS and "steps" in given.get("train", {}):
        told.append(
            f"train.steps = {config.train.steps} is kept; fewer than {_FEW_STEPS} steps are too "
            f"few to learn in, and {STEPS} cost no more privacy"
        )
    if config.train.batch != "all" and "batch" in given.get("train", {}):
        told.append(
            f"train.batch = {config.train.batch} is kept; with 'all' the budget asks for less noise"
        )
    if config.task.model not in LINEAR:
        told.append(
            f"task.model = '{config.task.model}' is kept; the rules for clip and rate were "
            "measured on linear models, and a model of more parameters gets more noise in all"
        )
    return told


def _open(given: Given, choices: Iterable[Proposal]) -> list[Proposal]:
    return [choice for choice in choices if choice.key not in given.get(choice.section, {})]


def task_choices(given: Given, facts: Facts) -> list[Proposal]:
    """Features, model, and what sets the level of probabilities, of inputs as they are stored."""
    reason = "few parameters, and so little noise in all: d decides how long the noise is"
    name = "linear" if facts.loss in OF_NUMBERS else "logistic"
    choices = [Proposal("task", "model", name, reason)]
    side = min(facts.shape[1:], default=0) if facts.image else 0
    if side >= _SMALL_IMAGE and "model" not in given.get("task", {}):
        features = "scattering" if side >= _LARGE_IMAGE else "scattering:1"
        reason = "a fixed public map, under which a linear model sees shapes: it costs no privacy"
        choices.append(Proposal("task", "features", features, reason))
    two = (facts.loss, facts.outputs) in (("logistic", 1), ("cross-entropy", 2))
    public = 0 if facts.public is None else len(facts.public[0])
    if two and not facts.image and public >= _TO_CALIBRATE:
        reason = "half of the public test records set the level of probabilities, at no cost"
        choices.append(Proposal("task", "calibrate", "public", reason))
    return _open(given, choices)
