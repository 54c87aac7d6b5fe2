"""What an experiment leaves open, completed from public facts: one set of defaults for all doors.

An experiment that names no algorithm is open (`Config.given`). Then every key that was not said
holds what `tacit plan --recommend` proposes: model and features as soon as it is known how records
are shaped, all else once it is known how many each node has.

The noise of a plan is known before anything runs; what it is to be compared with is the length of
the mean gradient, which depends on private records. **Public** test records stand in for them here,
and where there are none, nothing is said of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from tacit.config import Config
from tacit.models.architectures import find_loss
from tacit.report.documents.plan import ForecastNoise
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

_AGREED = 1.2  # noise in a node's own model over that in the mean, up to which rounds are enough


def with_task(config: Config, facts: Facts) -> Config:
    """An open experiment with its model and features; any other as it is."""
    if config.given is None:
        return config
    return config.with_defaults(merged({}, task_choices(config.given, facts)))


def with_settings(config: Config, facts: Facts, parameters: int) -> tuple[Config, tuple[str, ...]]:
    """An experiment in which nothing is open any more, and a line that says what was.

    The one given has its model, of d `parameters`, and its features already; the facts are of what
    the model gets. Refused as `build_plan` refuses.
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


def mean_noise(plan: Plan) -> float:
    """S of a plan: the noise of the mean over nodes and steps, in a coordinate, over C.

    Noise that cancels between nodes is not in it. Where all records take part in every step it
    does not depend on how many steps there are, but for rounding.
    """
    release = plan.release
    variances = []
    for k in range(plan.steps):
        active = release.active(k)
        nodes = [node for node in plan.nodes if active is None or active[node.node]]
        own = (release.own_multiplier(node, k) / node.divisor for node in nodes)
        variances.append(math.fsum(value**2 for value in own) / max(1, len(nodes)) ** 2)
    return math.sqrt(math.fsum(variances)) / plan.steps


def noise_forecast(trust_model: str, plan: Plan, found_signal: float | None) -> ForecastNoise:
    """The forecast of a plan with its noise, beside its `signal`."""
    noise = mean_noise(plan)
    length = math.sqrt(plan.parameters) * noise
    consensus = consensus_forecast(plan)
    return ForecastNoise(
        trust_model=trust_model,
        noise=noise,
        noise_norm=length,
        signal=found_signal,
        noise_over_signal=length / found_signal if found_signal else None,
        node_over_mean=None if consensus is None else consensus.figure,
        rounds=plan.rounds,
    )


def signal(facts: Facts, clip: float, class_weights: Sequence[float] | None = None) -> float | None:
    """The length of the mean clipped gradient over C at the start of a linear model.

    It is between 0 and 1, and None without public test records, whose inputs are as the model gets
    them; `clip` is C, and the class weights are those of the loss.

    The gradient of record i is R_i [x_i, 1]^T, R_i that of its loss by the outputs, which are 0. Of
    r records the squared length of the mean is too long by the variance of a record over r, which
    is taken off.
    """
    if facts.public is None or len(facts.public[0]) < 2:
        return None
    inputs, targets = facts.public
    inputs = inputs.flatten(1)
    inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)
    outputs = inputs.new_zeros(len(inputs), facts.outputs or 1, requires_grad=True)
    if targets.is_floating_point():
        targets = targets.double()
    loss = find_loss(facts.loss, class_weights=class_weights)
    (residuals,) = torch.autograd.grad(loss.per_record(outputs, targets).sum(), outputs)
    norms = residuals.norm(dim=1) * inputs.norm(dim=1)
    kept = (clip / norms.clamp_min(1e-300)).clamp_max(1.0)
    mean = (residuals * kept[:, None]).T @ inputs / len(inputs)
    lengths = (norms * kept).square().mean()
    squared = (len(inputs) * mean.square().sum() - lengths) / (len(inputs) - 1)
    return math.sqrt(max(0.0, float(squared))) / clip
