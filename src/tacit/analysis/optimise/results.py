"""An optimised plan: what is asked of it, and what it says in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tacit.analysis.optimise.bound import Source
from tacit.report.documents.plan import OptimisedRun, PublishedRun
from tacit.report.wording import number_text
from tacit.training.job import Job

MOST_STEPS = 100_000


@dataclass(frozen=True)
class OptimiseOptions:
    """What to choose beside the steps, from which constants, for runs of `most_steps` at most.

    Of L, b2, F0, x0 and G what is not given is estimated, on so many `records` at most: public test
    records (`test`), or the nodes' own (`train`), which is not private.
    """

    batch: bool = False
    clip: bool = False
    constants: Mapping[str, float] = field(default_factory=dict)
    source: Source = "test"
    records: int = 1000
    most_steps: int = MOST_STEPS


WASTEFUL = 1.5  # accumulated noise over its least, above which larger batches are advised
_NOTABLE = 1.02  # a fall of the bound that is worth a word

PRIVATE_CONSTANTS = (
    "constants were read off the nodes' own records, without noise: NO EPSILON COVERS THEM, nor "
    "what is chosen by them; use public records or values given by hand where this matters"
)


def set_flags(best: OptimisedRun, as_is: OptimisedRun) -> tuple[str, ...]:
    """The `--set` flags that apply the recommendation; none for what stays as it is."""
    keys = {"train.steps": "steps", "train.batch": "batch", "algorithm.clip": "clip"}
    values = {key: (getattr(best, name), getattr(as_is, name)) for key, name in keys.items()}
    return tuple(f"--set {key}={new}" for key, (new, old) in values.items() if new != old)


def advice(
    as_is: OptimisedRun,
    best: OptimisedRun,
    claim: PublishedRun,
    flags: Sequence[str],
    options: OptimiseOptions,
) -> Iterator[str]:
    """What to do, most important first."""
    if as_is.over_least_noise > WASTEFUL:
        yield (
            f"larger batches first: {number_text(as_is.record_gradients)} record gradients "
            f"a node leave {number_text(as_is.over_least_noise)} times the least noise that the "
            "budgets allow in the average of nodes and steps; with train.batch = 'all' the factor "
            "is 1"
        )
    now, then = (run.bound + (run.clipping_bias or 0.0) for run in (as_is, best))
    if now > _NOTABLE * then:
        fall = 100 * (1 - then / now)
        what = "bound and clipping bias together fall" if options.clip else "the bound falls"
        yield f"{what} by {number_text(fall)} % with {' '.join(flags)}"
    if best.steps >= options.most_steps:
        yield (
            f"the optimum is the longest run that was tried, {best.steps:,} steps: it may be beyond"
        )
    if claim.one_record is not None and claim.one_record.noise_std > claim.noise_std:
        factor = claim.one_record.noise_std / claim.noise_std
        yield (
            f"the published optimum ({claim.steps:,} steps of one record) rests on noise that is "
            f"{number_text(factor)} times too small for the budgets"
        )
    if claim.certified is not None and claim.certified.bound > _NOTABLE * best.bound:
        factor = claim.certified.bound / best.bound
        yield (
            f"with certified noise, the published number of steps ({claim.steps:,}) makes the "
            f"bound {number_text(factor)} times that of the certified optimum"
        )


def not_modelled(
    job: Job, best: OptimisedRun, norms: Sequence[float], least: float, options: OptimiseOptions
) -> Iterator[str]:
    """What the bound does not know; `norms` are of gradients, `least` the steps it needs."""
    chosen, train = job.config.algorithm.options, job.config.train
    rate = math.sqrt(len(job.plan.nodes) / best.steps)
    yield (
        "the bound is of the mean squared gradient norm, not of accuracy, and it is loose: trust "
        "its direction, and try values around the optimum (on public records) where it matters"
    )
    yield (
        f"Theorem 1 needs at least {number_text(least)} steps before it says anything: "
        "its bound is used here as a yardstick, not as a guarantee"
    )
    yield (
        f"it is for the step size sqrt(n / K), here {number_text(rate)}; the file has "
        f"algorithm.learning_rate = {chosen.settled_rate:g}"
    )
    yield "it is for variance-reduced gradients: the variance of sampling a batch is left out"
    if norms:
        share = 100 * sum(norm > best.clip for norm in norms) / len(norms)
        yield (
            f"it is for gradients that are not clipped: at the start {share:.0f} % of the records "
            f"that were read exceed clip = {best.clip:g}"
        )
    if options.clip:
        yield (
            "the clipping bias that is added is the squared mean excess of the norms at the start: "
            "far too much where clipping shortens all gradients alike, which only makes steps "
            "smaller; try the clip that was chosen beside the file's before using it"
        )
    if getattr(chosen, "momentum", 0.0):
        yield "momentum is left out"
    if chosen.warm_up or chosen.learning_rate_schedule != "constant":
        yield "it is for a constant step size: warm-up and decay are left out"
    if train.average != "none":
        yield "it is for the models of all steps: which average is taken is left out"
