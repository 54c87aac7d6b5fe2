"""Proposing an experiment from public facts: `tacit plan --recommend FILE`.

From a task, nodes and a budget to a whole experiment, for which no private record was read. The
rules are those by which any open experiment is completed (`tacit.training.recommend`); here are the
forecasts for other trust models, and the experiment file with its reasons as comments.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tomli_w
import torch

from tacit.algorithms import ALGORITHMS
from tacit.config import Config, load_config, read_sections
from tacit.errors import BudgetError, InputError, nearest
from tacit.models.architectures import build_model
from tacit.report.documents.plan import ForecastNoise, ProposedKey, RecommendDocument
from tacit.report.plan_page import about
from tacit.training.job import DTYPES
from tacit.training.plan import Plan
from tacit.training.recommend.choices import (
    LINEAR,
    Given,
    Proposal,
    conflicts,
    merged,
    task_choices,
)
from tacit.training.recommend.complete import drafted, mean_noise, noise_forecast, signal
from tacit.training.recommend.facts import Facts, facts_of
from tacit.training.records import load_records, warn_of_private

Trust = Literal["all-messages", "pairwise", "secure-sum"]
TRUST_MODELS: tuple[Trust, ...] = ("all-messages", "pairwise", "secure-sum")

_WIDTH = 100  # of a line of the file
_KEYS = {"pairwise": ("noise", "pairwise"), "secure-sum": ("aggregation", "secure-sum")}


@dataclass(frozen=True)
class Recommendation:
    """A whole experiment, and what speaks for it: as a document.

    `given` is what the user has set, and `choices` what is proposed for the rest; the plan of both
    is within every node's budget.
    """

    given: Given
    choices: tuple[Proposal, ...]
    plan: Plan
    document: RecommendDocument

    @property
    def config(self) -> Config:
        """The experiment, of which nothing is left open."""
        return self.plan.config


def recommend(
    source: str | Path | Mapping[str, Any],
    *,
    overrides: Iterable[str] = (),
    trust: str | None = None,
) -> Recommendation:
    """Propose what an experiment leaves open, from public facts alone.

    The source says at least the task; nodes and budget have their defaults where it does not say
    them. `overrides` are `section.key=value` strings. `trust` is one of `TRUST_MODELS`; None means
    what the experiment says, and `all-messages` where it says nothing.

    Raises:
        InputError: the experiment contradicts itself, or there is no rule for it.
        BudgetError: a node's budget cannot be met.
    """
    given = _with_trust(read_sections(source, overrides=overrides), trust)
    config = load_config(given)
    _check(config)
    return recommend_for(given, read_facts(config))


def recommend_for(given: Given, facts: Facts) -> Recommendation:
    """The same, for facts that are known; `given` has the trust model as well."""
    task = task_choices(given, facts)
    chosen = merged(given, task)
    start = Config(**chosen)
    facts = facts.seen_through(start.task.feature_map, DTYPES[start.train.dtype])
    parameters = parameters_of(start, facts)
    rest, plan = drafted(chosen, facts, parameters)
    config, choices = plan.config, (*task, *rest)
    clip = plan.release.clip.bound(0)
    length = None
    if config.task.model in LINEAR and clip is not None:
        length = signal(facts, clip, config.task.class_weights)
    forecasts, missing = _forecasts(chosen, facts, parameters, plan, length)
    document = RecommendDocument(
        file=None,
        nodes=facts.nodes,
        records=(min(facts.records), max(facts.records)),
        parameters=plan.parameters,
        input_norm=facts.norm,
        proposed=tuple(
            ProposedKey(key=choice.name, value=choice.value, reason=choice.reason)
            for choice in choices
        ),
        trust_model=plan.release.trust_model,
        forecasts=tuple(forecasts),
        unavailable=missing,
        conflicts=tuple(conflicts(given, config, facts, mean_noise(plan))),
        warnings=plan.warnings,
        notes=plan.notes,
    )
    return Recommendation(given, choices, plan, document)


def _with_trust(given: Given, trust: str | None) -> dict[str, dict[str, Any]]:
    """What the user has set, with the trust model of a flag; refused where the two differ."""
    sections = {name: dict(section) for name, section in given.items()}
    if trust is None:
        return sections
    if trust not in TRUST_MODELS:
        raise InputError("--trust", trust, nearest(trust, TRUST_MODELS))
    privacy = sections.setdefault("privacy", {})
    for name, (key, value) in _KEYS.items():
        said = privacy.get(key)
        if said is not None and (said == value) != (trust == name):
            raise InputError("--trust", trust, f"the experiment says privacy.{key} = {said!r}")
    if trust in _KEYS:
        key, value = _KEYS[trust]
        privacy[key] = value
    return sections


def _check(config: Config) -> None:
    """Refuse what there is no rule for.

    Raises:
        InputError: on `algorithm.name`, `privacy.epsilon` or `privacy.accounting`.
    """
    name = config.algorithm.name
    if not config.algorithm.definition.plain:
        ruled = [row.name for row in ALGORITHMS.values() if row.plain]
        expected = (
            f"the rules were measured for {', '.join(ruled)} alone: leave it out, "
            "or choose one of these"
        )
        if name not in ALGORITHMS:
            expected += "; if yours does no more than step along noised gradients, let its row say "
            expected += "so (`steps_along`)"
        raise InputError("algorithm.name", name, expected)
    if not config.privacy.noisy:
        expected = "there is no noise to weigh against: give the budget of each node, such as 1.0"
        raise InputError("privacy.epsilon", "none", expected)


def _forecasts(
    given: Given, facts: Facts, parameters: int, chosen: Plan, length: float | None
) -> tuple[list[ForecastNoise], dict[str, str]]:
    """The forecast of every trust model, that of the chosen one from its very plan."""
    forecasts: list[ForecastNoise] = []
    missing: dict[str, str] = {}
    for trust in TRUST_MODELS:
        try:
            seen_by = chosen.release.trust_model
            own = ("all-messages" if seen_by == "server" else seen_by) == trust  # which sees all
            plan = chosen if own else drafted(_as_trust(given, trust), facts, parameters)[1]
        except (InputError, BudgetError) as error:
            missing[trust] = str(error)
            continue
        forecasts.append(noise_forecast(trust, plan, length))
    return forecasts, missing


def _as_trust(given: Given, trust: Trust) -> dict[str, dict[str, Any]]:
    """Task, nodes, budget and length of an experiment, under another trust model."""
    budget = ("epsilon", "delta", "relation", "noise_std", "epsilon_per_round")
    privacy = {key: value for key, value in given.get("privacy", {}).items() if key in budget}
    kept = {name: dict(given[name]) for name in ("task", "nodes", "train") if name in given}
    clip = {key: value for key, value in given.get("algorithm", {}).items() if key == "clip"}
    return _with_trust({**kept, "privacy": privacy, "algorithm": clip}, trust)


def read_facts(config: Config) -> Facts:
    """The public facts of an experiment.

    The nodes' records are loaded as `tacit plan` does it, counted, and let go.

    Raises:
        InputError: something is wrong with the data, the schema or their settings, or nothing
            public says how many classes there are.
    """
    hosted = range(config.nodes.count)
    dtype = DTYPES[config.train.dtype]
    loaded = load_records(config, None, None, None, dtype, torch.device("cpu"), hosted)
    if loaded.test is not None:
        warn_of_private("test", loaded.test.inputs, loaded.train.inputs)
    facts = facts_of(config, loaded, loaded.train.counts.tolist())
    if facts.outputs is None:
        raise InputError(
            "task.outputs",
            None,
            "write how many classes there are, such as task.outputs = 10: neither the data set nor "
            "public test records say it, and labels of the nodes' own records are private",
        )
    return facts


def parameters_of(config: Config, facts: Facts) -> int:
    """d: the numbers of the model that are trained."""
    model = build_model(
        config.task.model,
        input_shape=facts.shape,
        outputs=facts.outputs or 1,
        seed=config.train.seed,
    )
    return sum(value.numel() for value in model.parameters() if value.requires_grad)


def default_path(file: Path) -> Path:
    """Where the experiment goes: beside the file that it is for, `NAME.recommended.toml`."""
    return file.with_name(f"{file.name.removesuffix('.toml')}.recommended.toml")


def recommended_text(found: Recommendation, file: str) -> str:
    """The experiment file: complete, and commented with the reasons; it will lie at `file`."""
    lines = [
        f"# Proposed by tacit plan --recommend, from public facts alone: {about(found.document)}.",
        "# What has no comment is as it was set.",
        f"# See what it costs:  tacit plan {file}",
        f"# Train:              tacit train {file}",
    ]
    lines = [part for line in lines for part in _wrapped(line)]
    for section in type(found.config).model_fields:
        written = [_line(key, value) for key, value in found.given.get(section, {}).items()]
        for choice in found.choices:
            if choice.section == section:
                line = _line(choice.key, choice.value)
                together = f"{line:<24} # {choice.reason}"
                apart = [*_wrapped(f"# {choice.reason}"), line]
                written += [together] if len(together) <= _WIDTH else apart
        if written:
            lines += ["", f"[{section}]", *written]
    return "\n".join([*lines, ""])


def write_recommended(found: Recommendation, path: Path) -> None:
    """Write the experiment file; nothing is overwritten.

    Raises:
        InputError: on `--out`, the file exists or cannot be written.
    """
    text = recommended_text(found, str(path))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError("--out", str(path), f"cannot be written: {error.strerror}") from None


def _line(key: str, value: Any) -> str:
    text = tomli_w.dumps({key: value}).strip()
    # A list is written over several lines, and one is as good.
    return " ".join(part.strip() for part in text.splitlines()) if "\n" in text else text


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, _WIDTH, subsequent_indent="#   ", break_long_words=False)
