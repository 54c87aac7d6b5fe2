"""Attacks on what an experiment's own code releases, and the lower bound that each of them proves.

A statistic tends to be larger on D than on D'. None of them needs to be right for a bound to hold:
each is one attack, and what it achieves is counted. The likelihood ratio is the best there is where
the code does what the plan says; the others look for what a defect would leave. What was released,
`y`, is `[steps, nodes, width]` in units of the noise of its step.

An attack is fixed on one part of the repetitions, and its guesses are counted on the rest
(`fix_and_count`). Statistic and threshold are chosen on the first part; the second part is counted
once. So what is chosen cannot flatter what is counted.

Two things are stated with the counts. At the confidence of the report they bound epsilon from
below. At the confidence of an alarm, which leaves all attacks of an audit together half of
`ALARM_RATE`, they may contradict the certificate: no correct program does that more often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tacit import privacy
from tacit.algorithms.facets import Apart
from tacit.analysis.audit.canaries import Canary, OneRun
from tacit.analysis.audit.colluders import colluders_of
from tacit.analysis.audit.fidelity.finding import ALARM_RATE
from tacit.analysis.audit.laboratory import (
    ALONE,
    CANARY,
    CROWD,
    OPPOSED,
    Harness,
    Problem,
    in_small,
    listened,
    problem_of,
    rule_of,
    set_up,
)
from tacit.analysis.audit.likelihood import Known, known_of, likelihood_ratio
from tacit.analysis.audit.recorder import ContextFactory, Trace
from tacit.analysis.audit.report import AuditOptions
from tacit.analysis.audit.trade_off import (
    MOST_EPSILON,
    Counts,
    epsilon_bounds_of,
    epsilon_lower,
    epsilon_of_any,
    epsilon_of_family,
    epsilon_of_mu,
    error_rates,
    loudness,
    mu_lower,
    of_mechanisms,
    rate_above,
    rate_below,
    refutes,
)
from tacit.errors import InputError
from tacit.privacy import Relation
from tacit.report.documents.claims import Attack, Comparison
from tacit.training.plan import Plan
from tacit.training.release import NodePlan

Array = NDArray[np.float64]
LIKELIHOOD_RATIO = "likelihood ratio"


def _largest_value(problem: Problem, y: Array, known: Known) -> Array:
    """Of all steps: what outgrows the clipping bound, or falls short of the batch expected."""
    values = known.signs[:, None] * y[:, :, CANARY]
    if problem == OPPOSED:
        values = known.batch * known.drawn[:, None] - y[:, :, CROWD]
    # Of those steps in which something was released.
    return np.asarray(np.where(np.isfinite(values), values, -np.inf).max(0), np.float64)


STATISTICS: Mapping[str, Callable[[Problem, Array, Known], Array]] = {
    LIKELIHOOD_RATIO: likelihood_ratio,
    "largest value": _largest_value,
}
"""By name: (problem, what was released, what is known beforehand) -> scores `[nodes]`."""

Bools = NDArray[np.bool_]
LEARNING_SHARE = 0.4
MOST_THRESHOLDS = 2000

Merit = Callable[[Array, Array], Array]
"""(true positive rates, false positive rates) -> what the attack would prove, elementwise."""


def excess_merit(certificate: Mapping[float, float]) -> Merit:
    """An attack is as good as what it proves beyond the certified epsilons, at the worst delta."""

    def merit(tpr: Array, fpr: Array) -> Array:
        beyond = [
            epsilon_bounds_of(tpr, fpr, delta) - min(epsilon, MOST_EPSILON)
            for delta, epsilon in certificate.items()
        ]
        return np.asarray(np.max(beyond, axis=0), np.float64)

    return merit


def balance_merit(tpr: Array, fpr: Array) -> Array:
    """An attack is as good as its two errors are alike.

    Between Gaussians every threshold shows the same mu; where the errors are alike it is known
    best.
    """
    return np.asarray(-np.abs(tpr + fpr - 1), np.float64)


def fix_and_count(
    scores: Mapping[str, Array], inserted: Bools, *, merit: Merit, confidence: float
) -> tuple[str, Counts]:
    """Choose the best statistic and threshold on the first repetitions, count on the others.

    Scores are `[repetitions]` for every statistic; `inserted`, bool `[repetitions]`, is True on D.
    The confidence is that of the bound that is to be stated. The statistic is returned by its name.
    """
    learning = int(LEARNING_SHARE * len(inserted))
    chosen = [
        (*_best_threshold(values[:learning], inserted[:learning], merit, confidence), name)
        for name, values in scores.items()
    ]
    _, threshold, name = max(chosen)
    guessed, truth = scores[name][learning:] >= threshold, inserted[learning:]
    return name, Counts(
        positives=int(truth.sum()),
        true_positives=int((guessed & truth).sum()),
        negatives=int((~truth).sum()),
        false_positives=int((guessed & ~truth).sum()),
    )


def _best_threshold(
    scores: Array, inserted: Bools, merit: Merit, confidence: float
) -> tuple[tuple[float, float], float]:
    """(merit with its confidence, merit at even odds), and the threshold that has the most.

    It lies half-way between neighbouring scores; where there are many, quantiles are tried.
    """
    values = np.unique(scores)
    middles = (values[1:] + values[:-1]) / 2
    if len(values) < 2:
        thresholds = np.append(values, np.inf)  # all or nothing
    elif len(middles) <= MOST_THRESHOLDS:
        thresholds = np.asarray(middles, np.float64)
    else:
        picked = np.linspace(0, len(middles) - 1, MOST_THRESHOLDS).astype(np.int64)
        ends = np.concatenate([np.arange(100), len(middles) - 1 - np.arange(100)])
        thresholds = np.asarray(middles[np.union1d(picked, ends)], np.float64)
    on, off = np.sort(scores[inserted]), np.sort(scores[~inserted])
    hits = len(on) - np.searchsorted(on, thresholds, side="left")
    false = len(off) - np.searchsorted(off, thresholds, side="left")
    # Where a part of the repetitions proves nothing yet, the likelier attack is taken.
    sure, likely = (
        merit(rate_below(hits, len(on), alpha), rate_above(false, len(off), alpha))
        for alpha in ((1 - confidence) / 2, 0.5)
    )
    best = max(range(len(thresholds)), key=lambda i: (sure[i], likely[i]))
    return (float(sure[best]), float(likely[best])), float(thresholds[best])


# What is attacked.

RUNS = 2**24  # seeds that one problem may use
SMALLEST_DELTA = 1e-3  # by default: a smaller one takes more repetitions than people wait for
DELTAS = (0.02, 0.1, 0.3)  # where the certificate is put to the test as well

Progress = Callable[[str, int, int], None]
"""(what, done, of how many)."""
OF_SUMS = ("sampled-gaussian", "random-allocation-gaussian", "laplace")
"""Kinds of mechanisms of sums of clipped gradients over batches."""

MOST_ATTACKS = 8  # of one audit, among which confidence and alarm rate are divided
ALARM_CONFIDENCE = 1 - ALARM_RATE / 2 / MOST_ATTACKS
KINDS: Mapping[Canary, str] = {
    "mislabelled": "mislabelled records",
    "unlike": "records unlike any other",
}
LEAST_REPETITIONS, MOST_REPETITIONS = 200, 2000  # by default
NODE_STEPS = 150_000  # of the repetitions on one pair of data sets, by default
COINS_PER_STEP, DRAWN_PER_STEP = 3000, 40  # that cost as much as all else in a step of a node
LEAST_DRAWN, MOST_DRAWN = 2, 500_000  # steps; records of all of them
COINS_A_DRAW = 30  # that cost as much as a record that is drawn
KEPT_RUNS = 2  # of the laboratory, whose traces the tests of fidelity read


@dataclass(frozen=True)
class Target:
    """What is audited, and against what.

    Args:
        node: one of the most exposed nodes.
        nodes: all that share its mechanism.
        relation: of neighbouring data sets, as its mechanism states it.
        delta: at which epsilon is stated.
        certificate: certified epsilon at this delta, which comes first, and at some others.
        claimed: epsilon by the paper's formula at this delta; None without a formula.
        confidence: of each attack.
        colluding: how many nodes pool what they know; the certificate is the one against so many.
            None where there is no noise of pairs.
        guaranteed: certified epsilon at this delta against as many as the plan is about; likewise.
    """

    node: NodePlan
    nodes: tuple[int, ...]
    relation: Relation
    steps: int
    delta: float
    certificate: Mapping[float, float]
    claimed: float | None
    confidence: float
    colluding: int | None = None
    guaranteed: float | None = None


def choose_target(plan: Plan, options: AuditOptions) -> Target:
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
    release, colluding = plan.release, None
    if release.pairs is not None:
        colluding = release.pairs.colluding if options.colluding is None else options.colluding
        if colluding >= len(plan.nodes):
            raise InputError("colluding", colluding, f"must be below {len(plan.nodes)}, the nodes")
        release = release.against(colluding)
    elif options.colluding is not None:
        raise InputError(
            "colluding",
            options.colluding,
            "nodes who pool what they know learn no more of other nodes than all messages show: "
            "leave it out where the noise of nodes is independent",
        )
    same = [
        node.node
        for node in plan.nodes
        if (node.records, node.noise_scale) == (worst.records, worst.noise_scale)
        and (colluding is None or node == worst)
    ]
    delta = max(SMALLEST_DELTA, worst.delta or 0.0) if options.delta is None else options.delta
    steps = options.steps or plan.steps
    mechanism = release.assumed_mechanism(worst, [(0, steps)])
    certificate = {delta: math.inf}  # where the bound is assumed, no epsilon holds
    if release.clip.enforced:
        certificate[delta] = privacy.epsilon(mechanism, delta=delta)
        for other in DELTAS:
            with suppress(InputError):  # without a certificate nothing is contradicted
                certificate[other] = privacy.epsilon(mechanism, delta=other)
    guaranteed = None  # of as many as the plan is about, who may be others than those who attack
    if plan.release.pairs is not None:
        guaranteed = privacy.epsilon(plan.release.mechanism(worst, [(0, steps)]), delta=delta)
    target = Target(
        node=worst,
        nodes=tuple(same),
        relation=mechanism.relation,
        steps=steps,
        delta=delta,
        certificate=certificate,
        claimed=plan.release.claimed(worst, steps, delta),
        confidence=options.confidence,
        colluding=colluding,
        guaranteed=guaranteed,
    )
    each = len(_designs(plan, target)) + int(options.canaries > 0) + int(options.signals > 0)
    assert each <= MOST_ATTACKS
    # Bonferroni: all of them hold together.
    return replace(target, confidence=1 - (1 - options.confidence) / each)


@dataclass(frozen=True)
class _Design:
    """One attack with worst-case data, and how its guesses become a bound."""

    name: str
    problem: Problem
    method: str = "clopper-pearson"


def _designs(plan: Plan, target: Target) -> tuple[_Design, ...]:
    """The attacks that suit the mechanism, the relation and the sampler."""
    mechanism = plan.release.assumed_mechanism(target.node, [(0, target.steps)])
    problem = problem_of(plan, mechanism)
    name = "worst-case gradient"
    designs = [_Design(name, problem), _Design(name, problem, "any-delta")]
    if mechanism.kind == "gaussian":
        designs.append(_Design(name, problem, "gaussian-dp"))
    releases = plan.config.algorithm.definition.releases
    sums = mechanism.kind in OF_SUMS and releases.models and releases.clips == "gradients"
    if mechanism.relation == privacy.ADD_OR_REMOVE_ONE and target.node.rate < 1 and sums:
        designs.append(_Design("opposed gradient", OPPOSED, "any-delta"))
    # Where no epsilon is certified, there is no other delta at which it could be contradicted.
    certified = plan.release.clip.enforced
    return tuple(design for design in designs if certified or design.method != "any-delta")


def worst_cases(
    plan: Plan,
    target: Target,
    options: AuditOptions,
    context: ContextFactory,
    progress: Progress,
) -> tuple[list[Attack], list[Trace], list[Trace], Harness]:
    """Attack the laboratory with all designs that suit the plan.

    Every audited node of every copy is a repetition; it is judged by its own releases.

    Returns:
        What every attack achieves, none where no bound would be proved; traces of the first runs;
        traces that say who was drawn of all records that a node has; and the laboratory.
    """
    designs, small = _designs(plan, target), in_small(plan)
    # Where what is released depends on public values other than by a linear function, nodes that
    # share such values are no independent repetitions, but copies of the graph are, or nothing is
    # (`docs/proofs/audits.md`, The laboratory). Of pairs, an estimate of one node has the noise of
    # others in it.
    apart: Apart = "copies"
    if plan.release.pairs is None:
        chosen = plan.config.algorithm
        apart = chosen.definition.releases.apart(chosen.options)
    if apart == "copies":
        target = replace(target, nodes=(target.node.node,))
    node = small.nodes[target.node.node]
    repetitions = options.repetitions or _affordable(small, node, target.steps, apart)
    nodes = -(-repetitions * len(plan.nodes) // len(target.nodes))
    colluders = colluders_of(small, node, target.colluding or 0, target.steps)
    harness = set_up(small, target.steps, nodes, context, colluders)
    runs = -(-repetitions // (harness.copies * len(target.nodes)))
    attacks: list[Attack] = []
    traces: list[Trace] = []
    for number, problem in enumerate(dict.fromkeys(design.problem for design in designs), 1):
        own = [design for design in designs if design.problem == problem]
        parts: list[tuple[dict[str, Array], Bools]] = []
        known: Known | None = None  # the same in every run
        for run in range(runs):
            observed = harness.observe(problem, seed_of(options, number, run))
            if len(traces) < KEPT_RUNS:
                traces.append(observed.trace)
            known = known or known_of(small, node, observed.whole, colluders)
            rows = observed.rows(target.nodes)
            y = observed.y[:, rows]
            scores = {name: of(problem, y, known) for name, of in STATISTICS.items()}
            parts.append((scores, observed.inserted[rows]))
            progress(own[0].name, run + 1, runs)
        scores = {name: np.concatenate([each[name] for each, _ in parts]) for name in STATISTICS}
        inserted = np.concatenate([there for _, there in parts])
        attacks.extend(_attack(design, scores, inserted, target) for design in own)
    drawn = traces
    if small != plan:  # who is drawn is asked of as many records as there are
        # Steps and nodes whose records are drawn in some seconds: of one graph, or of its copies.
        each = sum(node.expected_batch + node.records / COINS_A_DRAW for node in plan.nodes)
        most = MOST_DRAWN / (each * plan.release.local_steps)
        steps = int(min(target.steps, max(LEAST_DRAWN, most)))
        whole = set_up(plan, steps, len(plan.nodes) * max(1, int(most / steps)), context)
        problem, kept = designs[0].problem, range(KEPT_RUNS)
        drawn = [whole.observe(problem, seed_of(options, 14, run)).trace for run in kept]
    return [] if apart == "no" else attacks, traces, drawn, harness


def _affordable(plan: Plan, node: NodePlan, steps: int, apart: str) -> int:
    """Repetitions that take some ten seconds: what one costs grows with steps and records.

    Where each takes a copy of the graph, nodes make it dearer, and some more time is taken.
    """
    coins, drawn = node.records / COINS_PER_STEP, node.expected_batch / DRAWN_PER_STEP
    cost = steps * plan.release.local_steps * (1 + coins + drawn)
    cost *= math.sqrt(len(plan.nodes)) if apart == "copies" else 1.0
    return int(min(MOST_REPETITIONS, max(LEAST_REPETITIONS, NODE_STEPS / cost)))


def seed_of(options: AuditOptions, problem: int, run: int) -> int:
    """Of noise and coins of one run: another one for every run of every audit."""
    return (options.seed * 16 + problem) * RUNS + run


def _at_delta(target: Target, epsilon: float) -> Comparison:
    certified = target.certificate[target.delta]
    return Comparison(delta=target.delta, epsilon=epsilon, certified=certified)


def _attack(design: _Design, scores: dict[str, Array], inserted: Bools, target: Target) -> Attack:
    """The guesses of one attack on all repetitions, and the bound that they prove."""
    confidence, more = target.confidence, {}
    if design.method == "gaussian-dp":
        # The likelihood ratio is all that two Gaussians differ in.
        ratio = {name: values for name, values in scores.items() if name == LIKELIHOOD_RATIO}
        statistic, counts = fix_and_count(
            ratio, inserted, merit=balance_merit, confidence=confidence
        )
        more = {"mu": mu_lower(counts, confidence=confidence)}
        epsilon = epsilon_of_mu(more["mu"], target.delta)
        hardest = _at_delta(target, epsilon)
        surely = epsilon_of_mu(mu_lower(counts, confidence=ALARM_CONFIDENCE), target.delta)
        alarm = _at_delta(target, surely).violated
    else:
        at_one_delta = design.method == "clopper-pearson"
        merit = excess_merit({target.delta: 0.0} if at_one_delta else target.certificate)
        statistic, counts = fix_and_count(scores, inserted, merit=merit, confidence=confidence)
        compared = _compared(counts, target, confidence)
        epsilon = compared[0].epsilon
        alarm = any(one.violated for one in _compared(counts, target, ALARM_CONFIDENCE))
        hardest = max(compared, key=lambda comparison: comparison.epsilon - comparison.certified)
    tpr, fpr = error_rates(counts, confidence)
    return Attack(
        name=design.name,
        statistic=statistic,
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
        alarm=alarm,
    )


def _compared(counts: Counts, target: Target, confidence: float) -> list[Comparison]:
    """Lower bounds beside the certificate; the same two error rates hold at every delta."""
    return [
        Comparison(
            delta=delta,
            epsilon=epsilon_lower(counts, delta=delta, confidence=confidence),
            certified=certified,
        )
        for delta, certified in target.certificate.items()
    ]


def one_run_attacks(one_run: OneRun, plan: Plan, target: Target) -> list[Attack]:
    """What one training with canaries proves: whatever ran, and of the plan with other noise.

    Both bounds come from one count, and each refutes from some count on: with the same confidence
    they hold together.
    """
    guessed, times = one_run.guessed, one_run.times
    release = plan.release.against(target.colluding or 0)

    def mechanisms(factor: float) -> list[privacy.Mechanism]:
        node = replace(target.node, noise_scale=target.node.noise_scale * factor)
        return [release.assumed_mechanism(node, [(0, target.steps)])]

    stated = {"delta": target.delta, "confidence": target.confidence}
    any_epsilon = epsilon_of_any(guessed, **stated, times=times)
    epsilon, factor = epsilon_of_family(guessed, mechanisms, **stated, times=times)
    own = of_mechanisms(mechanisms(1.0), times=times)
    certified = release.clip.enforced  # else the mechanism is none that is certified
    alarm = certified and refutes(guessed, own, level=1 - ALARM_CONFIDENCE)
    counted = {"guessed": float(guessed.guesses), "correct": float(guessed.correct)}
    less = {} if factor is None else {"noise less than": factor}
    found = (("one-run", any_epsilon, counted), ("one-run-f-dp", epsilon, counted | less))
    stopped = one_run.stopped_after
    ran = "one training" if stopped is None else f"the first {stopped} steps of one training"
    return [
        Attack(
            name=f"{ran}, {KINDS[one_run.kind]}",
            statistic="gradient alignment",
            method=method,
            epsilon=epsilon,
            hardest=_at_delta(target, epsilon),
            confidence=target.confidence,
            repetitions=guessed.canaries,
            guesses=guesses,
            alarm=alarm,
        )
        for method, epsilon, guesses in (found if certified else found[:1])
    ]


LEAST, MOST_NUMBERS = 32, 4 * 10**7  # signals of a node; numbers of all noise: some ten seconds


def signals_attack(
    plan: Plan, target: Target, options: AuditOptions, context: ContextFactory
) -> Attack:
    """The lower bound that one run with about `options.signals` signals in all proves.

    Agrawal et al., *Let's Ask Gauss* (arXiv 2606.12733), take signals as Gaussian in the limit of
    many steps. Noised sums, whose draws are looked up, are: `docs/proofs/audits.md`, *Signals*.

    Raises:
        InputError: on `signals`, for a mechanism of another kind.
    """
    release, whole = plan.release, [(0, target.steps)]
    mechanism = release.assumed_mechanism(target.node, whole)
    seen = release.algorithm.releases.bound_is_tight and release.shared is None
    known = mechanism.kind in ("gaussian", "sampled-gaussian") and rule_of(plan) is None
    clipped = release.clip.enforced and release.clip.norm != "coordinate"
    if not (seen and known and clipped and problem_of(plan, mechanism) == ALONE):
        expected = "are for sums of single records' gradients, add-or-remove-one, seen under noise"
        raise InputError("signals", options.signals, f"{expected} of each node's own: leave it out")
    most = MOST_NUMBERS // (target.steps * len(plan.nodes))
    each = max(LEAST, min(-(-options.signals // len(target.nodes)), most))
    seed, lab = seed_of(options, 13, 0), set_up(plan, target.steps, len(plan.nodes), context)
    included = np.random.default_rng(seed).random((len(plan.nodes), each)) < 0.5
    scores, planned = listened(lab, target.nodes, included, seed)
    there, scores = included[list(target.nodes)], scores[list(target.nodes)]

    def bound(confidence: float) -> tuple[float, float]:
        factor = planned / loudness(scores[there], scores[~there], 1 - confidence)
        quieter = replace(target.node, noise_scale=target.node.noise_scale * min(factor, 1e9))
        ran = release.assumed_mechanism(quieter, whole)
        return privacy.epsilon_bounds(ran, delta=target.delta)[0], factor

    epsilon, factor = bound(target.confidence)
    return Attack(
        name="Gaussian signals in one run",
        statistic="mean over deviation",
        method="gaussian-signals",
        epsilon=epsilon,
        hardest=_at_delta(target, epsilon),
        confidence=target.confidence,
        repetitions=there.size,
        guesses={"noise less than": min(factor, 1e9)},
        alarm=_at_delta(target, bound(ALARM_CONFIDENCE)[0]).violated,
    )
