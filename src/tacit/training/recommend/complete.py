"""What an experiment leaves open, completed from public facts: one set of defaults for all doors.

An experiment that names no algorithm is open (`Config.given`). Then every key that was not said
holds what `tacit plan --recommend` proposes: model and features as soon as it is known how records
are shaped, all else once it is known how many each node has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from tacit.config import Config
from tacit.training.consensus import consensus_forecast
from tacit.training.plan import Plan
from tacit.training.planner import build_plan
from tacit.training.recommend.choices import (
    Given,
    Proposal,
    first_choices,
    merged,
    mixing_choices,
    path_choices,
    path_of,
    task_choices,
)
from tacit.training.recommend.facts import Facts
from tacit.training.recommend.forecast import mean_noise

_AGREED = 1.2  # noise in a node's own model over that in the mean, up to which rounds are enough


def with_task(config: Config, facts: Facts) -> Config:
    """An open experiment with its model and features; any other as it is."""
    if config.given is None:
        return config
    return config.with_defaults(merged({}, task_choices(config.given, facts)))


def with_settings(config: Config, facts: Facts, parameters: int) -> tuple[Config, tuple[str, ...]]:
    """An experiment in which nothing is open any more, and a line that says what was.

    The one given has its model, of d `parameters`, and its features already; the facts are of what
    the model gets.

    Raises:
        InputError: there is no plan of such settings.
        BudgetError: a node's budget cannot be met.
    """
    if config.given is None:
        return config, ()
    choices, _ = drafted(config.given, facts, parameters)
    values = ", ".join(f"{choice.name} = {choice.value}" for choice in choices)
    note = f"no algorithm is named, so the rest is as tacit plan --recommend proposes: {values}"
    return config.with_defaults(merged({}, choices), closed=True), (note,)


def drafted(given: Given, facts: Facts, parameters: int) -> tuple[list[Proposal], Plan]:
    """Choices for all that is open beside the task, and the plan of all of them.

    `given` has what the user has set and what is chosen of the task; the facts are of what the
    model gets, which has d `parameters`.
    """

    def planned(choices: Iterable[Proposal]) -> Plan:
        config = Config(**merged(given, choices)).with_names(facts.names)
        return build_plan(config, facts.records, parameters)

    start = Config(**merged(given, ()))
    known = first_choices(given, start, facts)
    # A plan's noise over C, and how it mixes, are the same for every clip and rate.
    any_path = path_choices(given, path_of(given, start, facts, 1.0), facts.norm)
    draft = planned([*known, *any_path])
    known += mixing_choices(given, draft.config, _rounds(draft))
    found = path_of(given, draft.config, facts, mean_noise(draft))
    choices = [*known, *path_choices(given, found, facts.norm)]
    return choices, planned(choices)


def _rounds(plan: Plan) -> int | str:
    """Gossip rounds of a step until no node's own model has much more noise than the mean.

    With noise of pairs the planner weighs both, by `topology.rounds = "auto"`.
    """
    if plan.release.pairs is not None:
        return "auto"
    nodes = len(plan.nodes)
    most = 1 if plan.config.algorithm.definition.no_rounds else math.ceil(math.log2(max(2, nodes)))
    for rounds in range(1, most + 1):
        forecast = consensus_forecast(replace(plan, rounds=rounds))
        if forecast is not None and forecast.figure <= _AGREED:
            return rounds
    return most
