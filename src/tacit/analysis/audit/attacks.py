"""The audit: every attack on an experiment's own code, and what each of them proves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from tacit import privacy
from tacit.analysis.audit.bounds import epsilon_lower, epsilon_of_mu, error_rates, mu_lower
from tacit.analysis.audit.canaries import OPPOSED, Problem, law_of, problem_of
from tacit.analysis.audit.harness import ContextFactory, Observed, set_up
from tacit.analysis.audit.likelihood import Known, known_of
from tacit.analysis.audit.one_run import OneRun, run_once
from tacit.analysis.audit.report import AuditOptions, AuditReport
from tacit.analysis.audit.statistics import (
    LIKELIHOOD_RATIO,
    balance_merit,
    between_nodes,
    epsilon_merit,
    excess_merit,
    fix_and_count,
    repeated_noises,
    statistics_of,
)
from tacit.config import Config, load_config
from tacit.errors import InputError
from tacit.privacy import Relation
from tacit.report.documents.claims import Attack, Comparison
from tacit.training.plan import NodePlan, Plan
from tacit.training.prepare import Job, prepare
from tacit.training.run_folder.result import mechanism_line
from tacit.training.stacked_context import StackedContext

__all__ = ["DEFAULT_OPTIONS", "audit", "audit_file", "audit_job"]

RUNS = 2**24  # seeds that one problem may use
SMALLEST_DELTA = 1e-3  # by default: a smaller one takes more repetitions than people wait for
DELTAS = (0.02, 0.1, 0.3)  # where the certificate is put to the test as well

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Progress = Callable[[str, int, int], None]
Scores = tuple[dict[str, Array], Bools]
"""The value of each statistic, and whether D was there, of every repetition."""
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
        progress: hears what is done.

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
        progress: hears what is done.

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
    target = _choose_target(plan, options)
    designs = _designs(plan, target)
    each = len(designs) + int(options.canaries > 0)
    confidence = 1 - (1 - options.confidence) / each  # Bonferroni: all of them hold together
    target = replace(target, confidence=confidence)
    one_run = None
    if options.canaries:
        one_run = run_once(
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
    if one_run is not None:
        attacks.append(_one_run_attack(one_run, target))
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
class _Target:
    """What is audited, and against what.

    Args:
        node: one of the most exposed nodes.
        nodes: all that share its mechanism.
        relation: of neighbouring data sets, as its mechanism states it.
        steps: that are run.
        delta: at which epsilon is stated.
        certificate: certified epsilon at this delta, which comes first, and at some others.
        claimed: epsilon by the paper's formula at this delta; None without a formula.
        confidence: of each attack.
    """

    node: NodePlan
    nodes: tuple[int, ...]
    relation: Relation
    steps: int
    delta: float
    certificate: Mapping[float, float]
    claimed: float | None
    confidence: float


def _choose_target(plan: Plan, options: AuditOptions) -> _Target:
    """The nodes that leak most: of the highest certified epsilon, or the least noise.

    Raises:
        InputError: the plan adds no noise or does not clip, has fewer steps than are to be run,
            or a node has but one record.
    """
    if not plan.noisy:
        raise InputError("privacy.epsilon", "none", "no noise is added: there is nothing to audit")
    if plan.release.clip.bounds is None:
        raise InputError("algorithm.clip", None, "without a bound no epsilon holds: give a clip")
    if options.steps is not None and options.steps > plan.steps:
        raise InputError("steps", options.steps, f"the plan has {plan.steps}")
    if min(node.records for node in plan.nodes) < 2:
        raise InputError("nodes", 1, "every node needs two records or more to be audited")
    worst = max(plan.nodes, key=lambda node: (node.epsilon or 0.0, -node.noise_scale))
    same = [
        node.node
        for node in plan.nodes
        if (node.records, node.noise_scale) == (worst.records, worst.noise_scale)
    ]
    delta = options.delta
    if delta is None:
        delta = max(SMALLEST_DELTA, worst.delta or 0.0)
    steps = options.steps or plan.steps
    mechanism = plan.release.mechanism(worst, [(0, steps)])
    certificate = {delta: privacy.epsilon(mechanism, delta=delta)}
    for other in DELTAS:
        with suppress(InputError):  # without a certificate nothing is contradicted
            certificate[other] = privacy.epsilon(mechanism, delta=other)
    return _Target(
        node=worst,
        nodes=tuple(same),
        relation=mechanism.relation,
        steps=steps,
        delta=delta,
        certificate=certificate,
        claimed=plan.release.claimed(worst, steps, delta),
        confidence=options.confidence,
    )


@dataclass(frozen=True)
class _Design:
    """One attack with worst-case data: what is looked at, and how it becomes a bound."""

    name: str
    problem: Problem
    look: Callable[[Observed, Known, _Target, int], Scores]
    method: str = "clopper-pearson"


def _every_node(
    problem: Problem,
) -> Callable[[Observed, Known, _Target, int], Scores]:
    """Every audited node of every copy is a repetition; it is judged by its own messages."""
    statistics = statistics_of(problem)

    def look(observed: Observed, known: Known, target: _Target, seed: int) -> Scores:
        # The stacked numbers of the audited nodes.
        starts = len(observed.inserted) // observed.copies * np.arange(observed.copies)[:, None]
        chosen = (starts + np.asarray(target.nodes)).reshape(-1)
        seen = observed.seen.of(chosen)
        return {name: of(seen, known) for name, of in statistics.items()}, observed.inserted[chosen]

    return look


def _one_of_a_graph(observed: Observed, known: Known, target: _Target, seed: int) -> Scores:
    """One audited node of each copy is a repetition; it is compared with the others' messages.

    One only, so that no two repetitions share a message. The attacker knows all records but the
    one in question, so it compares with nodes that have no canary.
    """
    nodes = len(observed.inserted) // observed.copies
    targets = np.random.default_rng(seed + RUNS // 2).choice(target.nodes, observed.copies)
    y = observed.y.reshape(len(observed.y), observed.copies, nodes, -1)
    inserted = observed.inserted.reshape(observed.copies, nodes)
    scores = between_nodes(y, targets, ~inserted)
    return {"noise met twice": scores}, inserted[np.arange(observed.copies), targets]


def _designs(plan: Plan, target: _Target) -> tuple[_Design, ...]:
    """The attacks that suit the mechanism, the relation and the sampler."""
    zero_out = target.relation == privacy.ADD_OR_REMOVE_ONE
    whole, law = target.node.rate == 1, law_of(plan)
    in_batch = plan.config.train.sampling == "fixed" and not whole
    problem = problem_of(law, zero_out=zero_out, in_batch=in_batch)
    name, look = "worst-case gradient", _every_node(problem)
    designs = [_Design(name, problem, look), _Design(name, problem, look, "any-delta")]
    mechanism = plan.release.mechanism(target.node, [(0, target.steps)])
    if mechanism.kind == "gaussian":
        designs.append(_Design(name, problem, look, "gaussian-dp"))
    if len(plan.nodes) > 1:
        designs.append(_Design("compared with other nodes", problem, _one_of_a_graph, "any-delta"))
    if zero_out and not whole and law == "sum":
        designs.append(_Design("opposed gradient", OPPOSED, _every_node(OPPOSED), "any-delta"))
    return tuple(designs)


def _worst_cases(
    plan: Plan,
    target: _Target,
    designs: Sequence[_Design],
    options: AuditOptions,
    context: ContextFactory,
    progress: Progress,
) -> tuple[list[Attack], int]:
    """What every attack with worst-case data achieves, and how many noises were met twice."""
    repetitions = -(-options.repetitions * len(plan.nodes) // len(target.nodes))
    harness = set_up(plan, target.steps, repetitions, context)
    known = known_of(plan, target.node, target.steps)
    runs = -(-options.repetitions // (harness.copies * len(target.nodes)))
    attacks, repeated = [], 0
    for number, problem in enumerate(dict.fromkeys(design.problem for design in designs), 1):
        own = [design for design in designs if design.problem == problem]
        observations: list[list[Scores]] = [[] for _ in own]
        for run in range(runs):
            seed = _seed(options, number, run)
            observed = harness.observe(problem, seed)
            repeated += repeated_noises(observed.y, observed.copies)
            for design, parts in zip(own, observations, strict=True):
                parts.append(design.look(observed, known, target, seed))
            progress(own[0].name, run + 1, runs)
        for design, parts in zip(own, observations, strict=True):
            attacks.append(_attack(design, *_joined(parts), target))
    return attacks, repeated


def _joined(parts: Sequence[Scores]) -> Scores:
    """Scores and truth of all runs, one after the other."""
    return (
        {name: np.concatenate([scores[name] for scores, _ in parts]) for name in parts[0][0]},
        np.concatenate([inserted for _, inserted in parts]),
    )


def _seed(options: AuditOptions, problem: int, run: int) -> int:
    return (options.seed * 16 + problem) * RUNS + run


def _at_delta(target: _Target, epsilon: float) -> Comparison:
    certified = target.certificate[target.delta]
    return Comparison(delta=target.delta, epsilon=epsilon, certified=certified)


def _attack(design: _Design, scores: dict[str, Array], inserted: Bools, target: _Target) -> Attack:
    """The guesses of one attack on all repetitions, and the bound that they prove."""
    confidence, more = target.confidence, {}
    if design.method == "gaussian-dp":
        # The likelihood ratio is all that two Gaussians differ in.
        ratio = {name: values for name, values in scores.items() if name == LIKELIHOOD_RATIO}
        fixed = fix_and_count(ratio, inserted, merit=balance_merit, confidence=confidence)
        more = {"mu": mu_lower(fixed.counts, confidence=confidence)}
        epsilon = epsilon_of_mu(more["mu"], target.delta)
        hardest = _at_delta(target, epsilon)
    else:
        at_one_delta = design.method == "clopper-pearson"
        merit = epsilon_merit(target.delta) if at_one_delta else excess_merit(target.certificate)
        fixed = fix_and_count(scores, inserted, merit=merit, confidence=confidence)
        # The same two error rates bound epsilon at every delta.
        compared = [
            Comparison(
                delta=delta,
                epsilon=epsilon_lower(fixed.counts, delta=delta, confidence=confidence),
                certified=certified,
            )
            for delta, certified in target.certificate.items()
        ]
        epsilon = compared[0].epsilon
        hardest = max(compared, key=lambda comparison: comparison.epsilon - comparison.certified)
    counts = fixed.counts
    tpr, fpr = error_rates(counts, confidence)
    return Attack(
        name=design.name,
        statistic=fixed.statistic,
        method=design.method,
        epsilon=epsilon,
        hardest=hardest,
        confidence=confidence,
        repetitions=counts.positives + counts.negatives,
        guesses={
            "TPR": counts.true_positives / max(1, counts.positives),
            "TPR at least": tpr,
            "FPR": counts.false_positives / max(1, counts.negatives),
            "FPR at most": fpr,
            **more,
        },
        alarm=hardest.violated,
    )


def _one_run_attack(one_run: OneRun, target: _Target) -> Attack:
    epsilon = one_run.epsilon(delta=target.delta, confidence=target.confidence)
    hardest = _at_delta(target, epsilon)
    return Attack(
        name="one training, mislabelled records",
        statistic="gradient alignment",
        method="one-run",
        epsilon=epsilon,
        hardest=hardest,
        confidence=target.confidence,
        repetitions=one_run.canaries,
        guesses={"guessed": one_run.guesses, "correct": one_run.correct},
        alarm=hardest.violated,
    )
