"""What is asked of an optimised plan, and what it answers: frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tacit.analysis.optimise.bound import Budget
from tacit.analysis.optimise.constants import Estimates, Source
from tacit.analysis.optimise.noise import OptimiseSetting
from tacit.config import Config

__all__ = [
    "MOST_STEPS",
    "Choice",
    "OptimiseOptions",
    "OptimisePlan",
    "PublishedOptimum",
    "Sensitivity",
]

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
