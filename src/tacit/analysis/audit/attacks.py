"""The audit: every attack on an experiment's own code, and what each of them proves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from tacit import privacy
from tacit.analysis.audit.bounds import epsilon_lower, epsilon_of_mu, error_rates, mu_lower
from tacit.analysis.audit.canaries import ALONE, OPPOSED, REPLACED, REPLACED_IN_BATCH, Problem
from tacit.analysis.audit.harness import ContextFactory, Observed, set_up
from tacit.analysis.audit.hypothesis_test import (
    Guesses,
    balance_merit,
    epsilon_merit,
    excess_merit,
    fix_and_count,
)
from tacit.analysis.audit.one_run import OneRun, run_once
from tacit.analysis.audit.report import Attack, AuditOptions, AuditReport, Comparison
from tacit.analysis.audit.statistics import (
    LIKELIHOOD_RATIO,
    Known,
    between_nodes,
    repeated_noises,
    statistics_of,
)
from tacit.analysis.audit.target import Target, choose_target
from tacit.config import Config, load_config
from tacit.errors import InputError
from tacit.training.plan import Plan
from tacit.training.prepare import Job, prepare
from tacit.training.run_folder.result import mechanism_line
from tacit.training.stacked_context import StackedContext

__all__ = ["DEFAULT_OPTIONS", "audit", "audit_file", "audit_job"]

RUNS = 2**24  # seeds that one problem may use

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Progress = Callable[[str, int, int], None]
"""(what, done, of how many)."""

DEFAULT_OPTIONS = AuditOptions()


def _silent(what: str, done: int, total: int) -> None:
    """No progress line."""


def audit_file(
    file: Path,
    overrides: Sequence[str] = (),
    options: AuditOptions = DEFAULT_OPTIONS,
    *,
    progress: Progress = _silent,
) -> AuditReport:
    """Audit an experiment file.

    Args:
        file: the experiment.
        overrides: `section.key=value` strings.
        options: how hard to look.
        progress: told what is done.

    Raises:
        InputError: as `audit`.
    """
    return audit(load_config(file, overrides=overrides), options=options, progress=progress)


def audit(
    config: Config,
    *,
    options: AuditOptions = DEFAULT_OPTIONS,
    model: nn.Module | None = None,
    nodes: Sequence[Any] | None = None,
    progress: Progress = _silent,
) -> AuditReport:
    """Attack what an experiment sends, and bound its epsilon from below.

    Args:
        config: the experiment.
        options: how hard to look.
        model: as `tacit.train` takes it.
        nodes: as `tacit.train` takes them.
        progress: told what is done.

    Raises:
        InputError: the experiment is wrong, adds no noise, does not clip, or its algorithm cannot
            be audited yet.
        BudgetError: a node's budget cannot be met.
    """
    job = prepare(config, model=model, nodes=nodes)
    return audit_job(job, options=options, progress=progress)


def audit_job(
    job: Job,
    *,
    options: AuditOptions = DEFAULT_OPTIONS,
    context: ContextFactory = StackedContext,
    progress: Progress = _silent,
) -> AuditReport:
    """`audit` of a prepared experiment, with the code that executes a step as an argument."""
    if job.config.faults.simulated:
        raise InputError(
            "faults", "simulated", "leave them out in an audit: what is lost tells an observer less"
        )
    began = time.perf_counter()
    plan = job.plan
    target = choose_target(plan, options)
    designs = _designs(plan, target)
    each = len(designs) + int(options.canaries > 0)
    confidence = 1 - (1 - options.confidence) / each  # Bonferroni: all of them hold together
    target = replace(target, confidence=confidence)
    found = None
    if options.canaries:
        found = run_once(
            job,
            nodes=target.nodes,
            steps=target.steps,
            relation=target.relation,
            canaries=options.canaries,
            seed=_seed(options, 0, 0),
            context=context,
            on_step=lambda k: progress("one training", k, target.steps),
        )
    attacks, repeated = _worst_cases(plan, target, designs, options, context, progress)
    if found is not None:
        attacks.append(_one_run_attack(found, target))
    return AuditReport(
        algorithm=plan.config.algorithm.name,
        relation=target.relation,
        mechanism=mechanism_line(plan) or "",
        nodes=target.nodes,
        steps=target.steps,
        delta=target.delta,
        confidence=options.confidence,
        claimed=target.claimed,
        certified=target.certificate[target.delta],
        attacks=tuple(attacks),
        repeated_noises=repeated,
        seconds=time.perf_counter() - began,
    )


@dataclass(frozen=True)
class _Design:
    """One attack with worst-case data: what is looked at, and how it becomes a bound."""

    name: str
    problem: Problem
    look: Callable[[Observed, Known, Target, int], tuple[dict[str, Array], Bools]]
    method: str = "clopper-pearson"


def _every_node(
    problem: Problem,
) -> Callable[[Observed, Known, Target, int], tuple[dict[str, Array], Bools]]:
    """Every audited node of every copy is a repetition; it is judged by its own messages."""
    statistics = statistics_of(problem)

    def look(
        seen: Observed, known: Known, target: Target, seed: int
    ) -> tuple[dict[str, Array], Bools]:
        chosen = _numbers(seen, target)
        y = seen.y[:, chosen]
        return {name: of(y, known) for name, of in statistics.items()}, seen.inserted[chosen]

    return look


def _one_of_a_graph(
    seen: Observed, known: Known, target: Target, seed: int
) -> tuple[dict[str, Array], Bools]:
    """One audited node of each copy is a repetition; it is compared with the others' messages.

    One only, so that no two repetitions share a message. The attacker knows all records but the
    one in question, so it compares with nodes that have no canary.
    """
    nodes = len(seen.inserted) // seen.copies
    targets = np.random.default_rng(seed + RUNS // 2).choice(target.nodes, seen.copies)
    y = seen.y.reshape(len(seen.y), seen.copies, nodes, -1)
    inserted = seen.inserted.reshape(seen.copies, nodes)
    scores = between_nodes(y, targets, ~inserted)
    return {"noise met twice": scores}, inserted[np.arange(seen.copies), targets]


def _numbers(seen: Observed, target: Target) -> NDArray[np.int64]:
    """The stacked numbers of the audited nodes."""
    nodes = len(seen.inserted) // seen.copies
    starts = nodes * np.arange(seen.copies)[:, None]
    return np.asarray((starts + np.asarray(target.nodes)).reshape(-1), np.int64)


def _designs(plan: Plan, target: Target) -> tuple[_Design, ...]:
    """The attacks that suit the relation and the sampler."""
    zero_out = target.relation == privacy.ADD_OR_REMOVE_ONE
    whole = target.node.rate == 1
    in_batch = plan.config.train.sampling == "fixed" and not whole
    problem = ALONE if zero_out else REPLACED_IN_BATCH if in_batch else REPLACED
    name, look = "worst-case gradient", _every_node(problem)
    found = [_Design(name, problem, look), _Design(name, problem, look, "any-delta")]
    if whole:
        found.append(_Design(name, problem, look, "gaussian-dp"))
    if len(plan.nodes) > 1:
        found.append(_Design("compared with other nodes", problem, _one_of_a_graph, "any-delta"))
    if zero_out and not whole:
        found.append(_Design("opposed gradient", OPPOSED, _every_node(OPPOSED), "any-delta"))
    return tuple(found)


def _worst_cases(
    plan: Plan,
    target: Target,
    designs: Sequence[_Design],
    options: AuditOptions,
    context: ContextFactory,
    progress: Progress,
) -> tuple[list[Attack], int]:
    """What every attack with worst-case data achieves, and how many noises were met twice."""
    wanted = -(-options.repetitions * len(plan.nodes) // len(target.nodes))
    harness = set_up(plan, target.steps, wanted, context)
    multipliers = [plan.noise_multiplier(target.node, k) for k in range(target.steps)]
    known = Known(
        target.node.rate, target.node.expected_batch, 1 / np.asarray(multipliers, np.float64)
    )
    runs = -(-options.repetitions // (harness.copies * len(target.nodes)))
    attacks, repeated = [], 0
    for number, problem in enumerate(dict.fromkeys(design.problem for design in designs), 1):
        own = [design for design in designs if design.problem == problem]
        looks: list[list[tuple[dict[str, Array], Bools]]] = [[] for _ in own]
        for run in range(runs):
            seed = _seed(options, number, run)
            seen = harness.observe(problem, seed)
            repeated += repeated_noises(seen.y, seen.copies)
            for design, kept in zip(own, looks, strict=True):
                kept.append(design.look(seen, known, target, seed))
            progress(own[0].name, run + 1, runs)
        for design, kept in zip(own, looks, strict=True):
            attacks.append(_BOUNDS[design.method](design, *_joined(kept), target))
    return attacks, repeated


def _joined(parts: Sequence[tuple[dict[str, Array], Bools]]) -> tuple[dict[str, Array], Bools]:
    """Scores and truth of all runs, one after the other."""
    return (
        {name: np.concatenate([scores[name] for scores, _ in parts]) for name in parts[0][0]},
        np.concatenate([inserted for _, inserted in parts]),
    )


def _seed(options: AuditOptions, problem: int, run: int) -> int:
    return (options.seed * 16 + problem) * RUNS + run


def _by_counting(
    design: _Design, scores: dict[str, Array], inserted: Bools, target: Target
) -> Attack:
    merit = epsilon_merit(target.delta)
    fixed = fix_and_count(scores, inserted, merit=merit, confidence=target.confidence)
    return _counted(design, fixed, target)


def _by_excess(
    design: _Design, scores: dict[str, Array], inserted: Bools, target: Target
) -> Attack:
    merit = excess_merit(target.certificate)
    fixed = fix_and_count(scores, inserted, merit=merit, confidence=target.confidence)
    return _counted(design, fixed, target)


def _counted(design: _Design, fixed: Guesses, target: Target) -> Attack:
    """The same two error rates bound epsilon at every delta."""
    compared = [
        Comparison(
            at, epsilon_lower(fixed.counts, delta=at, confidence=target.confidence), certified
        )
        for at, certified in target.certificate.items()
    ]
    hardest = max(compared, key=lambda it: it.epsilon - it.certified)
    return _attack(design, fixed, target, compared[0].epsilon, hardest, {})


def _by_gaussian(
    design: _Design, scores: dict[str, Array], inserted: Bools, target: Target
) -> Attack:
    """By the likelihood ratio, which is all that two Gaussians differ in."""
    ratio = {name: values for name, values in scores.items() if name == LIKELIHOOD_RATIO}
    fixed = fix_and_count(ratio, inserted, merit=balance_merit, confidence=target.confidence)
    mu = mu_lower(fixed.counts, confidence=target.confidence)
    epsilon = epsilon_of_mu(mu, target.delta)
    return _attack(design, fixed, target, epsilon, _at_delta(target, epsilon), {"mu": mu})


_BOUNDS: Mapping[str, Callable[[_Design, dict[str, Array], Bools, Target], Attack]] = {
    "clopper-pearson": _by_counting,
    "any-delta": _by_excess,
    "gaussian-dp": _by_gaussian,
}


def _at_delta(target: Target, epsilon: float) -> Comparison:
    return Comparison(target.delta, epsilon, target.certificate[target.delta])


def _attack(
    design: _Design,
    fixed: Guesses,
    target: Target,
    epsilon: float,
    hardest: Comparison,
    more: dict[str, float],
) -> Attack:
    counts = fixed.counts
    tpr, fpr = error_rates(counts, target.confidence)
    return Attack(
        name=design.name,
        statistic=fixed.statistic,
        method=design.method,
        epsilon=epsilon,
        hardest=hardest,
        confidence=target.confidence,
        repetitions=counts.positives + counts.negatives,
        guesses={
            "TPR": counts.true_positives / max(1, counts.positives),
            "TPR at least": tpr,
            "FPR": counts.false_positives / max(1, counts.negatives),
            "FPR at most": fpr,
            **more,
        },
    )


def _one_run_attack(found: OneRun, target: Target) -> Attack:
    epsilon = found.epsilon(delta=target.delta, confidence=target.confidence)
    return Attack(
        name="one training, mislabelled records",
        statistic="gradient alignment",
        method="one-run",
        epsilon=epsilon,
        hardest=_at_delta(target, epsilon),
        confidence=target.confidence,
        repetitions=found.canaries,
        guesses={"guessed": found.guesses, "correct": found.correct},
    )
