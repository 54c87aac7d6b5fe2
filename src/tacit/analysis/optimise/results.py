"""An optimised plan: what is asked of it, and what it answers.

It is frozen data, which `optimise_document` turns into JSON-ready data for a program.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tacit.analysis.optimise.bound import Estimates, Source
from tacit.analysis.optimise.noise import OptimiseSetting
from tacit.config import Config
from tacit.privacy.published import Budget
from tacit.report.documents.plan import (
    BoundPoint,
    BoundTheorem,
    OptimiseConstant,
    OptimiseDocument,
    OptimisedRun,
    PublishedRun,
)
from tacit.report.wording import number_text

MOST_STEPS = 100_000


@dataclass(frozen=True)
class OptimiseOptions:
    """What to choose, and from which constants.

    Args:
        batch: choose the batch as well.
        clip: choose the clipping bound as well.
        constants: L, b2, F0, x0 or G by hand; the rest is estimated.
        source: `test` estimates on public test records; `train` on the nodes' own, which is not
            private.
        records: how many records are read at most.
        most_steps: the longest run that is considered.
    """

    batch: bool = False
    clip: bool = False
    constants: Mapping[str, float] = field(default_factory=dict)
    source: Source = "test"
    records: int = 1000
    most_steps: int = MOST_STEPS


@dataclass(frozen=True)
class Choice:
    """A setting with certified noise, and what the bound says of it.

    Args:
        setting: the run.
        bound: Theorem 1 with the noise that is really needed.
        clipping_bias: squared bound of how far clipping moves the mean gradient at the start; not
            part of the theorem; None where no gradient norm was read.
    """

    setting: OptimiseSetting
    bound: float
    clipping_bias: float | None

    @property
    def objective(self) -> float:
        """What is minimised where the clip is chosen: bound and clipping bias."""
        return self.bound + (self.clipping_bias or 0.0)


@dataclass(frozen=True)
class PublishedOptimum:
    """Corollary 1: what the paper's own noise formula makes the best number of steps.

    Args:
        exact: K*, not rounded.
        steps: the whole number next to it with the smaller bound, 1 at least.
        bound: the bound there, with the claimed noise.
        noise_std: the claimed noise there, root mean square over nodes.
        gradient_bound: G.
        c2: the constant that the paper leaves open.
        certified: the same number of steps with the noise that is really needed, in the file's
            batch; None where it is beyond the longest run considered.
        one_record: likewise, with one record a step, for which the paper prints its formula.
    """

    exact: float
    steps: int
    bound: float
    noise_std: float
    gradient_bound: float
    c2: float
    certified: Choice | None = None
    one_record: Choice | None = None


@dataclass(frozen=True)
class Sensitivity:
    """A change of the experiment, all else equal, and what it gives.

    Args:
        change: in words.
        setting: the changed run with its certified noise.
        bound: Theorem 1 for it, at its own number of steps.
    """

    change: str
    setting: OptimiseSetting
    bound: float


@dataclass(frozen=True)
class OptimisePlan:
    """What would be best for the budgets, by the bound.

    Args:
        config: the experiment.
        options: what was asked.
        records: J of each node.
        budgets: of each node.
        estimates: the constants and where they come from.
        as_is: the experiment as it stands.
        claim: the published optimum.
        best: the certified optimum.
        curve: calibrated choices over the steps, in the file's batch and clip, ascending.
        batches: the best choice of each batch that was tried, by batch; empty if not asked.
        clips: the best choice of each clip that was tried, at the chosen batch; likewise.
        claimed_curve: (steps, bound with the claimed noise), ascending.
        least_steps: Theorem 1 says nothing below so many steps.
        sensitivity_analysis: what a change would buy, from the experiment as it stands.
    """

    config: Config
    options: OptimiseOptions
    records: tuple[int, ...]
    budgets: tuple[Budget, ...]
    estimates: Estimates
    as_is: Choice
    claim: PublishedOptimum
    best: Choice
    curve: tuple[Choice, ...]
    batches: tuple[Choice, ...]
    clips: tuple[Choice, ...]
    claimed_curve: tuple[tuple[int, float], ...]
    least_steps: float
    sensitivity_analysis: tuple[Sensitivity, ...]


WASTEFUL = 1.5  # accumulated noise over its least, above which larger batches are advised
_NOTABLE = 1.02  # a fall of the bound that is worth a word

_PRIVATE_CONSTANTS = (
    "constants were read off the nodes' own records, without noise: NO EPSILON COVERS THEM, nor "
    "what is chosen by them; use public records or values given by hand where this matters"
)


def optimise_document(plan: OptimisePlan) -> OptimiseDocument:
    """Everything an optimised plan says.

    The optimum, its `--set` flags, the constants with their provenance, the curves, what changes
    would buy, what the bound leaves out, and advice.
    """
    config, claim, estimates = plan.config, plan.claim, plan.estimates
    budgets = sorted({(budget.epsilon, budget.delta) for budget in plan.budgets})
    return OptimiseDocument(
        algorithm=config.algorithm.name,
        title=config.algorithm.definition.title,
        dataset=config.task.dataset,
        model=config.task.model,
        nodes=len(plan.records),
        records=tuple(sorted(set(plan.records))),
        budgets=tuple(budgets),
        parameters=estimates.parameters,
        relation=config.privacy.relation,
        sampling=config.train.sampling,
        constants=tuple(
            OptimiseConstant(
                name=constant.name,
                value=constant.value,
                kind=constant.kind,
                how=constant.how,
                private=constant.kind != "private",
            )
            for constant in estimates.constants
        ),
        warning=_PRIVATE_CONSTANTS if estimates.private else None,
        as_is=_run(plan.as_is),
        certified=_run(plan.best),
        published=PublishedRun(
            exact=claim.exact,
            steps=claim.steps,
            bound=claim.bound,
            noise_std=claim.noise_std,
            gradient_bound=claim.gradient_bound,
            c2=claim.c2,
            certified=None if claim.certified is None else _run(claim.certified),
            one_record=None if claim.one_record is None else _run(claim.one_record),
        ),
        curve=tuple(map(_run, plan.curve)),
        claimed_curve=tuple(
            BoundPoint(steps=steps, bound=bound) for steps, bound in plan.claimed_curve
        ),
        batches=tuple(map(_run, plan.batches)),
        clips=tuple(map(_run, plan.clips)),
        theorem=BoundTheorem(
            least_steps=plan.least_steps,
            excluded=plan.best.setting.steps < plan.least_steps,
        ),
        purchases=tuple(map(_run, plan.sensitivity_analysis)),
        learning_rate=math.sqrt(len(plan.records) / plan.best.setting.steps),
        flags=tuple(_flags(plan)),
        advice=tuple(_advice(plan)),
        not_modelled=tuple(_not_modelled(plan)),
    )


def _run(row: Choice | Sensitivity) -> OptimisedRun:
    """A choice, or a change of the experiment: its setting, and what the bound says of it."""
    setting = row.setting
    words: dict[str, Any] = (
        {"clipping_bias": row.clipping_bias} if isinstance(row, Choice) else {"change": row.change}
    )
    return OptimisedRun(
        **words,
        bound=row.bound,
        steps=setting.steps,
        batch=setting.batch,
        clip=setting.clip,
        noise_multiplier=setting.noise_multiplier,
        noise_std=setting.noise_std,
        accumulated_noise=setting.accumulated,
        over_least_noise=setting.waste,
        record_gradients=setting.record_gradients,
    )


def _flags(plan: OptimisePlan) -> list[str]:
    """The `--set` flags that apply the recommendation; none for what stays as it is."""
    best, as_is = plan.best.setting, plan.as_is.setting
    values = (
        ("train.steps", best.steps, as_is.steps),
        ("train.batch", best.batch, as_is.batch),
        ("algorithm.clip", best.clip, as_is.clip),
    )
    return [f"--set {key}={value}" for key, value, before in values if value != before]


def _advice(plan: OptimisePlan) -> list[str]:
    """What to do, most important first."""
    as_is, best, claim = plan.as_is, plan.best, plan.claim
    texts = []
    if as_is.setting.waste > WASTEFUL:
        texts.append(
            f"larger batches first: {number_text(as_is.setting.record_gradients)} record gradients "
            f"a node leave {number_text(as_is.setting.waste)} times the least noise that the "
            "budgets allow in the average of nodes and steps; with train.batch = 'all' the factor "
            "is 1"
        )
    if as_is.objective > _NOTABLE * best.objective:
        fall = 100 * (1 - best.objective / as_is.objective)
        what = "bound and clipping bias together fall" if plan.clips else "the bound falls"
        texts.append(f"{what} by {number_text(fall)} % with {' '.join(_flags(plan))}")
    if best.setting.steps >= plan.options.most_steps:
        texts.append(
            f"the optimum is the longest run that was tried, {best.setting.steps:,} steps: it may "
            "be beyond"
        )
    if claim.one_record is not None and claim.one_record.setting.noise_std > claim.noise_std:
        factor = claim.one_record.setting.noise_std / claim.noise_std
        texts.append(
            f"the published optimum ({claim.steps:,} steps of one record) rests on noise that is "
            f"{number_text(factor)} times too small for the budgets"
        )
    if claim.certified is not None and claim.certified.bound > _NOTABLE * best.bound:
        factor = claim.certified.bound / best.bound
        texts.append(
            f"with certified noise, the published number of steps ({claim.steps:,}) makes the "
            f"bound {number_text(factor)} times that of the certified optimum"
        )
    return texts


def _not_modelled(plan: OptimisePlan) -> list[str]:
    """What the bound does not know."""
    best, config = plan.best.setting, plan.config
    texts = [
        "the bound is of the mean squared gradient norm, not of accuracy, and it is loose: trust "
        "its direction, and try values around the optimum (on public records) where it matters",
        f"Theorem 1 needs at least {number_text(plan.least_steps)} steps before it says anything: "
        "its bound is used here as a yardstick, not as a guarantee",
        f"it is for the step size sqrt(n / K), here {_rate(plan)}; the file has "
        f"algorithm.learning_rate = {config.algorithm.options.settled_rate:g}",
        "it is for variance-reduced gradients: the variance of sampling a batch is left out",
    ]
    if plan.estimates.norms:
        above = sum(norm > best.clip for norm in plan.estimates.norms)
        share = 100 * above / len(plan.estimates.norms)
        texts.append(
            f"it is for gradients that are not clipped: at the start {share:.0f} % of the records "
            f"that were read exceed clip = {best.clip:g}"
        )
    if plan.clips:
        texts.append(
            "the clipping bias that is added is the squared mean excess of the norms at the start: "
            "far too much where clipping shortens all gradients alike, which only makes steps "
            "smaller; try the clip that was chosen beside the file's before using it"
        )
    if getattr(config.algorithm.options, "momentum", 0.0):
        texts.append("momentum is left out")
    if config.algorithm.options.warm_up or (
        config.algorithm.options.learning_rate_schedule != "constant"
    ):
        texts.append("it is for a constant step size: warm-up and decay are left out")
    if config.train.average != "none":
        texts.append("it is for the models of all steps: which average is taken is left out")
    return texts


def _rate(plan: OptimisePlan) -> str:
    return number_text(math.sqrt(len(plan.records) / plan.best.setting.steps))
