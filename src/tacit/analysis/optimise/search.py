"""Choosing steps, and batch and clip where asked, for the nodes' budgets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from tacit.analysis.optimise.bound import Estimates, clipping_excess, estimate
from tacit.analysis.optimise.noise import (
    Batch,
    OptimiseSetting,
    adapted,
    changed,
    geometric_steps,
    interpolated_deviation,
    setting_of,
)
from tacit.analysis.optimise.results import (
    Choice,
    OptimiseOptions,
    OptimisePlan,
    PublishedOptimum,
    Sensitivity,
)
from tacit.config import Config
from tacit.errors import InputError
from tacit.privacy.published import (
    BoundConstants,
    Budget,
    claimed_variances,
    convergence_bound,
    least_steps,
    optimal_steps,
    published_steps,
)
from tacit.training.plan import Plan
from tacit.training.planner import build_plan
from tacit.training.prepare import Job, prepare

GRID = 9  # calibrated numbers of steps of the file's own batch
COARSE = 5  # and of each other batch
REFINED = 2  # further ones, each where the interpolated bound is least
APART = 1.05  # unless a calibrated one is within 5 % of it
SPAN_DOWN, SPAN_UP = 10.0, 30.0  # the grid around the optimum of full batches
RATES = (0.01, 0.05, 0.2)  # sampling rates that are tried besides the file's and 1
FRACTIONS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)  # of the median gradient norm: clips that are tried
HIGH_QUANTILE = 0.9  # and this quantile
NEAR_BEST = 1.05  # a smaller batch is preferred while it is within 5 % of the best
BEYOND = 3  # factor of the next point beyond an end of the grid where the best lies there
CLAIMED = 60  # points of the claimed curve, which costs nothing
FINE = 400  # points of the interpolated curve


def optimise(
    config: Config,
    options: OptimiseOptions | None = None,
    *,
    model: nn.Module | None = None,
    nodes: Sequence[Any] | None = None,
    test: Any = None,
) -> OptimisePlan:
    """Choose the steps (batch, clip) that minimise PrivSGP-VR's bound within every node's budget.

    Args:
        config: the experiment; a private algorithm with an epsilon for every node.
        options: what to choose; steps alone by default.
        model: as in `tacit.train`.
        nodes: likewise.
        test: likewise; public records, on which the constants are estimated.

    Raises:
        InputError: there is no budget to plan for, or no way to know the constants.
        BudgetError: no noise meets a node's budget.
    """
    options = options or OptimiseOptions()
    _check(config, options)
    # The optimum is asked for the noise that is needed, whichever noise the file would run.
    config = changed(config, privacy={"accounting": "certified", "noise_std": None})
    job = prepare(config, model=model, nodes=nodes, test=test)
    estimates = estimate(
        job, options.constants, source=options.source, records=options.records, norms=options.clip
    )
    own = setting_of(job.plan)
    problem = _Problem(job, estimates, options, {(own.steps, own.batch): own})
    claim = _claim(problem)
    curve = _curve(problem, own.batch, GRID)
    curves = [curve]
    if options.batch:
        curves += [_curve(problem, batch, COARSE) for batch in _batches(problem)]
    batches = [(min(row, key=_objective), row) for row in curves]
    # The cheapest of those close to the best; the clipping bias is the same for all.
    least = min(best.bound for best, _ in batches)
    close = [row for row in batches if row[0].bound <= NEAR_BEST * least]
    chosen, chosen_curve = min(close, key=lambda row: row[0].setting.record_gradients)
    clips = _best_clips(problem, chosen_curve) if options.clip else ()
    bound = estimates.bound
    claimed_curve = []
    ends = curve[0].setting.steps, curve[-1].setting.steps
    for steps in sorted({claim.steps, *geometric_steps(*ends, CLAIMED)}):
        noise = claimed_variances(
            problem.budgets,
            steps,
            gradient_bound=estimates.value("G"),
            c2=job.config.privacy.published_constant,
        )
        claimed_curve.append((steps, convergence_bound(bound, noise, steps)))
    return OptimisePlan(
        config=job.config,
        options=options,
        records=tuple(problem.records),
        budgets=problem.budgets,
        estimates=estimates,
        as_is=_judged(problem, own),
        claim=claim,
        best=min((chosen, *clips), key=_objective),
        curve=curve,
        batches=tuple(best for best, _ in batches) if options.batch else (),
        clips=clips,
        claimed_curve=tuple(claimed_curve),
        least_steps=least_steps(estimates.value("L"), problem.records),
        sensitivity_analysis=tuple(
            Sensitivity(change, setting, convergence_bound(bound, setting.variances, setting.steps))
            for change, setting in _changes(job.plan, own)
        ),
    )


def _check(config: Config, options: OptimiseOptions) -> None:
    algorithm, settings = config.algorithm.definition, config.privacy
    if not algorithm.private:
        raise InputError(
            "algorithm.name",
            algorithm.name,
            "adds no noise, so that there is no budget to plan for: choose a private algorithm",
        )
    if settings.budget is None:
        raise InputError(
            "privacy.epsilon", "none", "give the budget to plan for: a number, or one a node"
        )
    chosen = config.algorithm.options
    for key in ("clip_schedule", "noise_schedule"):
        if getattr(chosen, key, None) is not None:
            raise InputError(
                f"algorithm.{key}",
                f"{config.train.steps} numbers",
                "is for one number of steps: leave it out, or give the schedule by a formula "
                "(dyn-d2p)",
            )
    if options.records < 1:
        raise InputError("records", options.records, "must be 1 or more")
    if options.most_steps < 1:
        raise InputError("most_steps", options.most_steps, "must be 1 or more")


def _objective(choice: Choice) -> float:
    return choice.objective


def published_optimum(
    constants: BoundConstants, budgets: Sequence[Budget], *, gradient_bound: float, c2: float
) -> PublishedOptimum:
    """Corollary 1 for some budgets, without a certified counterpart."""

    def bound(steps: int) -> float:
        noise = claimed_variances(budgets, steps, gradient_bound=gradient_bound, c2=c2)
        return convergence_bound(constants, noise, steps)

    exact = published_steps(constants, budgets, gradient_bound=gradient_bound, c2=c2)
    steps = min({max(1, math.floor(exact)), max(1, math.ceil(exact))}, key=bound)
    noise = claimed_variances(budgets, steps, gradient_bound=gradient_bound, c2=c2)
    return PublishedOptimum(
        exact=exact,
        steps=steps,
        bound=bound(steps),
        noise_std=math.sqrt(math.fsum(noise) / len(noise)),
        gradient_bound=gradient_bound,
        c2=c2,
    )


@dataclass(frozen=True)
class _Problem:
    """One experiment, what is known of it, and the settings that were calibrated so far."""

    job: Job
    estimates: Estimates
    options: OptimiseOptions
    known: dict[tuple[int, Batch], OptimiseSetting]

    @property
    def records(self) -> list[int]:
        """J of each node."""
        return [node.records for node in self.job.plan.nodes]

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """Of each node."""
        return tuple(
            Budget(node.records, node.budget or 0.0, node.delta or 0.0)
            for node in self.job.plan.nodes
        )


def _setting(problem: _Problem, steps: int, batch: Batch) -> OptimiseSetting:
    """The calibrated setting, from memory if it was asked for before."""
    key = (steps, batch)
    if key not in problem.known:
        plan = problem.job.plan
        problem.known[key] = adapted(plan.config, problem.records, plan.parameters, steps, batch)
    return problem.known[key]


def _judged(problem: _Problem, setting: OptimiseSetting) -> Choice:
    """A setting and its bound."""
    bound = convergence_bound(problem.estimates.bound, setting.variances, setting.steps)
    bias = None
    if problem.options.clip:
        bias = clipping_excess(problem.estimates.norms, setting.clip) ** 2
    return Choice(setting, bound, bias)


def _curve(problem: _Problem, batch: Batch, points: int) -> tuple[Choice, ...]:
    """Calibrated choices over the steps, finer around the smallest bound."""
    grid = set(_grid(problem, points))
    grid |= {steps for steps, known in problem.known if known == batch}
    calibrated = [_setting(problem, steps, batch) for steps in sorted(grid)]
    settings = _refined(problem, _extended(problem, calibrated))
    return tuple(_judged(problem, setting) for setting in settings)


def _extended(problem: _Problem, settings: Sequence[OptimiseSetting]) -> list[OptimiseSetting]:
    """Settings of one batch, with further ones while the best lies at an end of their range."""
    calibrated = list(settings)
    while True:
        best = min(calibrated, key=lambda setting: _judged(problem, setting).bound).steps
        steps = {calibrated[0].steps: best // BEYOND, calibrated[-1].steps: best * BEYOND}.get(
            best, best
        )
        steps = min(max(1, steps), max(problem.options.most_steps, calibrated[-1].steps))
        if steps in {setting.steps for setting in calibrated}:
            return calibrated
        calibrated.append(_setting(problem, steps, calibrated[0].batch))
        calibrated.sort(key=lambda setting: setting.steps)


def _grid(problem: _Problem, points: int) -> list[int]:
    """Steps around the optimum of full batches, whose noise is K times a constant.

    Smaller batches need more noise at few steps, which moves their optimum up.
    """
    own = next(iter(problem.known.values()))
    nodes, clips = len(own.variances), _clips(problem) if problem.options.clip else (own.clip,)
    optima = [
        optimal_steps(problem.estimates.bound, [nodes * (own.floor * clip / own.clip) ** 2] * nodes)
        for clip in clips
    ]
    most = float(problem.options.most_steps)
    low = min(max(1.0, min(optima) / SPAN_DOWN), max(1.0, most / SPAN_DOWN))
    return geometric_steps(low, min(most, max(8.0 * low, max(optima) * SPAN_UP)), points)


def _refined(
    problem: _Problem, settings: Sequence[OptimiseSetting], clip: float | None = None
) -> list[OptimiseSetting]:
    """Settings of one batch with a few more, each where the interpolated bound is least."""
    calibrated = sorted(settings, key=lambda setting: setting.steps)
    nodes = len(calibrated[0].variances)
    for _ in range(REFINED):
        factor = 1.0 if clip is None else clip / calibrated[0].clip
        deviation = interpolated_deviation(calibrated)
        steps = np.unique(np.round(np.geomspace(calibrated[0].steps, calibrated[-1].steps, FINE)))
        bounds = [
            convergence_bound(problem.estimates.bound, [(factor * std) ** 2] * nodes, count)
            for std, count in zip(deviation(steps), steps, strict=True)
        ]
        best = int(steps[int(np.argmin(bounds))])
        nearest = min(abs(math.log(best / setting.steps)) for setting in calibrated)
        if nearest <= math.log(APART):
            break
        calibrated.append(_setting(problem, best, calibrated[0].batch))
        calibrated.sort(key=lambda setting: setting.steps)
    return calibrated


def _batches(problem: _Problem) -> list[Batch]:
    """The batches that are tried besides the file's."""
    smallest, own = min(problem.records), problem.job.config.train.settled_batch
    sizes: list[Batch] = sorted({max(1, round(rate * smallest)) for rate in RATES})
    return [size for size in [*sizes, "all"] if size != own]


def _clips(problem: _Problem) -> tuple[float, ...]:
    """The clipping bounds that are tried, ascending: of gradient norms, and the file's."""
    own = next(iter(problem.known.values())).clip
    middle, high = np.quantile(np.asarray(problem.estimates.norms), (0.5, HIGH_QUANTILE))
    candidates = (*(share * middle for share in FRACTIONS), high)
    rounded = {float(f"{norm:.2g}") for norm in candidates if norm > 0}
    return tuple(sorted({own, *rounded}))


def _best_clips(problem: _Problem, curve: Sequence[Choice]) -> tuple[Choice, ...]:
    """The best choice of each clipping bound, at the batch of a curve of the file's own clip.

    Privacy depends on the noise multiplier alone, so that no calibration is repeated.
    """
    settings = [choice.setting for choice in curve]
    return tuple(
        min(
            (
                _judged(problem, setting.scaled(clip))
                for setting in _refined(problem, settings, clip)
            ),
            key=_objective,
        )
        for clip in _clips(problem)
    )


def _claim(problem: _Problem) -> PublishedOptimum:
    """Corollary 1, and what its number of steps gives with the noise that is really needed."""
    config, estimates = problem.job.config, problem.estimates
    claim = published_optimum(
        estimates.bound,
        problem.budgets,
        gradient_bound=estimates.value("G"),
        c2=config.privacy.published_constant,
    )
    if claim.steps > problem.options.most_steps:
        return claim
    certified = _judged(problem, _setting(problem, claim.steps, config.train.settled_batch))
    one_record = _judged(problem, _setting(problem, claim.steps, 1))
    return replace(claim, certified=certified, one_record=one_record)


def _changes(plan: Plan, own: OptimiseSetting) -> Iterator[tuple[str, OptimiseSetting]]:
    """The experiment as it stands and changed in one thing at a time, for the same constants.

    That is the simplest assumption: a new node is like the average one, new records are like the
    old.
    """
    config, parameters = plan.config, plan.parameters
    records = [node.records for node in plan.nodes]
    yield "as it stands", own
    # Its noise is the others' average: nobody else's noise changes.
    nodes = len(own.variances)
    shrunk = math.sqrt(nodes / (nodes + 1))
    yield (
        "one more node",
        replace(
            own,
            variances=(*own.variances, math.fsum(own.variances) / nodes),
            accumulated=own.accumulated * shrunk,
            floor=own.floor * shrunk,
        ),
    )
    twice = build_plan(config, [2 * count for count in records], parameters)
    yield "twice the records", setting_of(twice)
    assert config.privacy.budget is not None  # a plan without a budget gets no advice
    halves = config.by_node([value / 2 for value in config.per_node(config.privacy.budget)])
    half = changed(config, privacy={"epsilon": halves})
    yield "half the epsilon", setting_of(build_plan(half, records, parameters))
    yield "twice the steps", adapted(config, records, parameters, 2 * own.steps, own.batch)
    if own.batch != "all" and own.batch < max(records):
        larger = min(4 * own.batch, max(records))
        words = "four times the batch" if larger == 4 * own.batch else "every record a step"
        yield words, adapted(config, records, parameters, own.steps, larger)
