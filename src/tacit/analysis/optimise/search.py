"""Choosing steps, and batch and clip where asked, for the nodes' budgets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from tacit.analysis.optimise.bound import (
    Batch,
    Estimates,
    OptimiseSetting,
    adapted,
    clipping_excess,
    estimate,
    geometric_steps,
    interpolated_deviation,
    setting_of,
)
from tacit.analysis.optimise.results import (
    PRIVATE_CONSTANTS,
    OptimiseOptions,
    advice,
    not_modelled,
    set_flags,
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
from tacit.report.documents.plan import (
    BoundPoint,
    BoundTheorem,
    OptimiseDocument,
    OptimisedRun,
    PublishedRun,
)
from tacit.training.job import Job
from tacit.training.plan import Plan
from tacit.training.planner import build_plan
from tacit.training.prepare import prepare

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


Runs = tuple[OptimisedRun, ...]


def optimise(
    config: Config,
    options: OptimiseOptions | None = None,
    *,
    model: nn.Module | None = None,
    nodes: Sequence[Any] | None = None,
    test: Any = None,
) -> OptimiseDocument:
    """Choose the steps (batch, clip) that minimise the bound within every node's budget.

    By default the steps alone are chosen. Model, nodes and public test records, on which the
    constants are estimated, are as in `tacit.train`. The answer has the optimum, its `--set` flags,
    the constants with their provenance, the curves, what changes would buy, what the bound leaves
    out, and advice.

    Raises:
        InputError: there is no budget to plan for, or no way to know the constants.
        BudgetError: no noise meets a node's budget.
    """
    options = options or OptimiseOptions()
    _check(config, options)
    # The optimum is asked for the noise that is needed, whichever noise the file would run.
    config = config.with_keys(privacy={"accounting": "certified", "noise_std": None})
    job = prepare(config, model=model, nodes=nodes, test=test)
    estimates = estimate(
        job, options.constants, source=options.source, records=options.records, norms=options.clip
    )
    own = setting_of(job.plan)
    problem = _Problem(job, estimates, options, {(own.steps, own.batch): own})
    as_is, published = _judged(problem, own), _published(problem)
    curve, batches, clips, certified = _searched(problem, own.batch)
    flags = set_flags(certified, as_is)
    lowest = least_steps(estimates.value("L"), problem.records)
    lengths = geometric_steps(curve[0].steps, curve[-1].steps, CLAIMED)
    claimed = {  # Theorem 1 with the noise of Theorem 2
        steps: claimed_variances(problem.budgets, steps, **problem.paper)
        for steps in sorted({published.steps, *lengths})
    }
    return OptimiseDocument(
        algorithm=job.config.algorithm.name,
        title=job.config.algorithm.definition.title,
        dataset=job.config.task.dataset,
        model=job.config.task.model,
        nodes=len(problem.records),
        records=tuple(sorted(set(problem.records))),
        budgets=tuple(sorted({(budget.epsilon, budget.delta) for budget in problem.budgets})),
        parameters=estimates.parameters,
        relation=job.config.privacy.relation,
        sampling=job.config.train.sampling,
        constants=estimates.constants,
        warning=PRIVATE_CONSTANTS if estimates.private else None,
        as_is=as_is,
        certified=certified,
        published=published,
        curve=curve,
        claimed_curve=tuple(
            BoundPoint(steps=steps, bound=convergence_bound(estimates.bound, noise, steps))
            for steps, noise in claimed.items()
        ),
        batches=batches if options.batch else (),
        clips=clips,
        theorem=BoundTheorem(least_steps=lowest, excluded=certified.steps < lowest),
        purchases=tuple(
            _judged(problem, setting, change=change) for change, setting in _changes(job.plan, own)
        ),
        learning_rate=math.sqrt(len(problem.records) / certified.steps),
        flags=flags,
        advice=tuple(advice(as_is, certified, published, flags, options)),
        not_modelled=tuple(not_modelled(job, certified, estimates.norms, lowest, options)),
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
        key, value = ("guess", settings.guess) if settings.guess else ("epsilon", "none")
        expected = "give the budget to plan for as privacy.epsilon: a number, or one a node"
        raise InputError(f"privacy.{key}", value, expected)
    chosen = config.algorithm.options
    for key in ("clip_schedule", "noise_schedule"):
        if getattr(chosen, key, None) is not None:
            raise InputError(
                f"algorithm.{key}",
                f"{config.train.steps} numbers",
                "is for one number of steps: leave it out, or choose a method whose schedule "
                "is a formula",
            )
    if options.records < 1:
        raise InputError("records", options.records, "must be 1 or more")
    if options.most_steps < 1:
        raise InputError("most_steps", options.most_steps, "must be 1 or more")


def _objective(run: OptimisedRun) -> float:
    """What is minimised: bound, and clipping bias where the clip is chosen."""
    return run.bound + (run.clipping_bias or 0.0)


def published_optimum(
    constants: BoundConstants, budgets: Sequence[Budget], *, gradient_bound: float, c2: float
) -> PublishedRun:
    """Corollary 1 for some budgets, without a certified counterpart.

    `exact` is K*, not rounded, and `steps` the whole number next to it with the smaller bound, 1 at
    least; `noise_std` is the claimed noise there, root mean square over nodes.
    """
    paper = {"gradient_bound": gradient_bound, "c2": c2}
    exact = published_steps(constants, budgets, **paper)
    bounds = {
        steps: convergence_bound(constants, claimed_variances(budgets, steps, **paper), steps)
        for steps in (max(1, math.floor(exact)), max(1, math.ceil(exact)))
    }
    steps = min(bounds, key=lambda count: bounds[count])
    noise = claimed_variances(budgets, steps, **paper)
    return PublishedRun(
        exact=exact,
        steps=steps,
        bound=bounds[steps],
        noise_std=math.sqrt(math.fsum(noise) / len(noise)),
        certified=None,
        one_record=None,
        **paper,
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
        return tuple(
            Budget(node.records, node.budget or 0.0, node.delta or 0.0)
            for node in self.job.plan.nodes
        )

    @property
    def paper(self) -> dict[str, float]:
        """G and c2 of Theorem 2."""
        c2 = self.job.config.privacy.published_constant
        return {"gradient_bound": self.estimates.value("G"), "c2": c2}


def _searched(problem: _Problem, own: Batch) -> tuple[Runs, Runs, Runs, OptimisedRun]:
    """The curve of the file's `own` batch; the best of each batch, and clip; the best of all."""
    batches = [own]
    if problem.options.batch:
        smallest, settled = min(problem.records), problem.job.config.train.settled_batch
        sizes: list[Batch] = sorted({max(1, round(rate * smallest)) for rate in RATES})
        batches += [size for size in [*sizes, "all"] if size != settled]
    settings = [
        _calibrated(problem, batch, COARSE if place else GRID)
        for place, batch in enumerate(batches)
    ]
    curves = [tuple(_judged(problem, setting) for setting in row) for row in settings]
    best = tuple(min(curve, key=_objective) for curve in curves)
    # The cheapest of those close to the best; the clipping bias is the same for all.
    least = min(run.bound for run in best)
    close = [place for place, run in enumerate(best) if run.bound <= NEAR_BEST * least]
    chosen = min(close, key=lambda place: best[place].record_gradients)
    clips = _best_clips(problem, settings[chosen]) if problem.options.clip else ()
    return curves[0], best, clips, min((best[chosen], *clips), key=_objective)


def _setting(problem: _Problem, steps: int, batch: Batch) -> OptimiseSetting:
    """The calibrated setting, from memory if it was asked for before."""
    key = (steps, batch)
    if key not in problem.known:
        plan = problem.job.plan
        problem.known[key] = adapted(plan.config, problem.records, plan.parameters, steps, batch)
    return problem.known[key]


def _judged(problem: _Problem, setting: OptimiseSetting, change: str | None = None) -> OptimisedRun:
    """A setting and its bound; the clipping bias as well, or the `change` that made it."""
    said: dict[str, Any] = {"change": change}
    if change is None:
        bias = (
            clipping_excess(problem.estimates.norms, setting.clip) ** 2
            if problem.options.clip
            else None
        )
        said = {"clipping_bias": bias}
    return OptimisedRun(
        **said,
        bound=convergence_bound(problem.estimates.bound, setting.variances, setting.steps),
        steps=setting.steps,
        batch=setting.batch,
        clip=setting.clip,
        noise_multiplier=setting.noise_multiplier,
        noise_std=setting.noise_std,
        accumulated_noise=setting.accumulated,
        over_least_noise=setting.waste,
        record_gradients=setting.record_gradients,
    )


def _calibrated(problem: _Problem, batch: Batch, points: int) -> list[OptimiseSetting]:
    """Calibrated settings over the steps, ascending, finer around the smallest bound."""
    grid = set(_grid(problem, points))
    grid |= {steps for steps, known in problem.known if known == batch}
    calibrated = [_setting(problem, steps, batch) for steps in sorted(grid)]
    while True:  # further ones while the best lies at an end of their range
        best = min(calibrated, key=lambda setting: _judged(problem, setting).bound).steps
        ends = {calibrated[0].steps: best // BEYOND, calibrated[-1].steps: best * BEYOND}
        longest = max(problem.options.most_steps, calibrated[-1].steps)
        steps = min(max(1, ends.get(best, best)), longest)
        if steps in {setting.steps for setting in calibrated}:
            return _refined(problem, calibrated)
        calibrated.append(_setting(problem, steps, batch))
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


def _clips(problem: _Problem) -> tuple[float, ...]:
    """The clipping bounds that are tried, ascending: of gradient norms, and the file's."""
    own = next(iter(problem.known.values())).clip
    middle, high = np.quantile(np.asarray(problem.estimates.norms), (0.5, HIGH_QUANTILE))
    candidates = (*(share * middle for share in FRACTIONS), high)
    rounded = {float(f"{norm:.2g}") for norm in candidates if norm > 0}
    return tuple(sorted({own, *rounded}))


def _best_clips(problem: _Problem, settings: Sequence[OptimiseSetting]) -> Runs:
    """The best run of each clipping bound, at the batch of settings of the file's own clip.

    Privacy depends on the noise multiplier alone, so that no calibration is repeated.
    """
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


def _published(problem: _Problem) -> PublishedRun:
    """Corollary 1, and what its number of steps gives with the noise that is really needed."""
    claim = published_optimum(problem.estimates.bound, problem.budgets, **problem.paper)
    if claim.steps > problem.options.most_steps:
        return claim
    certified, one_record = (
        _judged(problem, _setting(problem, claim.steps, batch))
        for batch in (problem.job.config.train.settled_batch, 1)
    )
    return claim.model_copy(update={"certified": certified, "one_record": one_record})


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
    half = config.with_keys(privacy={"epsilon": halves})
    yield "half the epsilon", setting_of(build_plan(half, records, parameters))
    yield "twice the steps", adapted(config, records, parameters, 2 * own.steps, own.batch)
    if own.batch != "all" and own.batch < max(records):
        larger = min(4 * own.batch, max(records))
        words = "four times the batch" if larger == 4 * own.batch else "every record a step"
        yield words, adapted(config, records, parameters, own.steps, larger)
