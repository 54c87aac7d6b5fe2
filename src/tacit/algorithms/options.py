"""Options of algorithms: those that all have, what they may be, and the schedules they make.

An algorithm adds its own in a subclass of its file; options that several have are typed here and
in `parts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from tacit.errors import InputError
from tacit.privacy.mechanisms.clipping import ClipRule


def _moderate(value: float) -> float:
    """A number of the range of float32; the papers' formulas of it stay within that of float64."""
    if not 1e-38 <= value <= 1e38:
        raise ValueError("must be a number from 1e-38 to 1e38")
    return value


# The options that several algorithms share: one name and one meaning everywhere.
Size = Annotated[float, Field(allow_inf_nan=False), AfterValidator(_moderate)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(gt=0, le=1)]
WarmUp = Annotated[int, Field(ge=0, le=10**9)]  # steps

RateSchedule = Literal["constant", "linear", "cosine", "inverse-sqrt"]
RateRule = Literal["sqrt(n/K)"]
MedianRule = Literal["median"]

_RATES: Mapping[RateSchedule, Callable[[float], float]] = MappingProxyType(
    {
        "constant": lambda share: 1.0,
        "linear": lambda share: 1.0 - share,
        "cosine": lambda share: (1.0 + math.cos(math.pi * share)) / 2,
        "inverse-sqrt": lambda share: 1.0,  # of k, not of k / K: see `step_size`
    }
)


@dataclass(frozen=True)
class Scope:
    """Marks a key that is no part of what a run is known by: it changes nothing that is released.

    `local` says that each site has its own, where all others are the same at every site; `resumed`
    that a run may go on with another. `known_as` stands for a value that is given, in what the run
    is known by; None: the default of the key does.
    """

    local: bool = False
    resumed: bool = True
    known_as: Any = None


LOCAL, FREE = Scope(local=True), Scope()


class Options(BaseModel):
    """Options that every algorithm has; an algorithm adds its own in a subclass of its file.

    `takes_median` says whether `clip` bounds the l2 norm of single records' gradients, and may be
    the median of these on public records: see `tacit.training.settled`.
    """

    # Built when it is first used: a run uses those of one algorithm.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    learning_rate: Size | RateRule = 0.05
    learning_rate_schedule: RateSchedule = "constant"
    warm_up: WarmUp = 0
    clip: Size | MedianRule | None = None
    clip_norm: ClipRule = "l2"

    takes_median: ClassVar[bool] = False

    @field_validator("learning_rate", mode="before")
    @classmethod
    def _learning_rate(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "sqrt(n/K)":
            raise ValueError("must be a positive number, or 'sqrt(n/K)'")
        return value

    @field_validator("clip", mode="before")
    @classmethod
    def _clip(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "median":
            also = ", or 'median'" if cls.takes_median else ""
            raise ValueError(f"must be a positive number{also}")
        return value

    @property
    def settled_rate(self) -> float:
        """The learning rate of a plan's experiment, in which no rule is left open."""
        assert not isinstance(self.learning_rate, str)
        return self.learning_rate

    @property
    def settled_clip(self) -> float | None:
        """The clipping bound of a plan's experiment, likewise."""
        assert self.clip != "median"
        return self.clip


@dataclass(frozen=True)
class Idle:
    """Metadata of an option that does nothing beside some values of others.

    There, where `when` is true of all options, only its default is taken, and `remedy` tells people
    what to do about it: see `refuse_idle`.
    """

    when: Callable[[Any], bool]
    remedy: str


def refuse_idle(options: Options) -> None:
    """Refuse an option that was given and would do nothing.

    Raises:
        InputError: on that option.
    """
    for key, field_info in type(options).model_fields.items():
        value = getattr(options, key)
        for mark in field_info.metadata:
            if isinstance(mark, Idle) and value != field_info.default and mark.when(options):
                raise InputError(f"algorithm.{key}", value, mark.remedy)


def step_size(options: Options, k: int, steps: int) -> float:
    """The learning rate of step k of K, by `warm_up` and `learning_rate_schedule`.

    In the first W = `warm_up` steps it rises, gamma (k + 1) / W. Then comes the schedule, over the
    K - W steps that are left, with k and K counted from there: `constant`; `linear`, gamma
    (1 - k/K); `cosine`, gamma (1 + cos(pi k / K)) / 2; `inverse-sqrt`, gamma / sqrt(k + 1).
    """
    warm_up = options.warm_up
    if k < warm_up:
        return options.settled_rate * ((k + 1) / warm_up)
    made, left = k - warm_up, steps - warm_up
    if options.learning_rate_schedule == "inverse-sqrt":
        return options.settled_rate / math.sqrt(made + 1)
    return options.settled_rate * _RATES[options.learning_rate_schedule](made / left)


@dataclass(frozen=True)
class Schedules:
    """What an algorithm asks of clipping and noise, step by step; the plan scales and freezes it.

    Args:
        clip: clipping bound of each step, `[steps]`; None does not clip.
        noise_shape: relative noise **multiplier** of each step, `[steps]`: the plan multiplies it
            by one scale a node, which the budget determines.
        local_steps: mini-batches that a step draws, Q.
        disjoint: whether those of a step share no record.
    """

    clip: tuple[float, ...] | None
    noise_shape: tuple[float, ...]
    local_steps: int = 1
    disjoint: bool = True


def constant(options: Options, clip: float | None, steps: int) -> Schedules:
    """The same clipping bound and noise at every step."""
    return Schedules(None if clip is None else (clip,) * steps, (1.0,) * steps)
