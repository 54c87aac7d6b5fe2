"""What an algorithm is: a row of the table, its options, its schedules, its state and its step.

An algorithm is a pure pair, `start` and `step`, over an explicit state: a `NamedTuple` of tensors
with one row a node. The same pair runs on all nodes stacked in one process and on one or some
nodes in each of many: what differs is in the `World` it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from tacit.exchange import Exchange
from tacit.privacy.published import Formula

__all__ = [
    "Algorithm",
    "Clip",
    "FinalMixing",
    "Growth",
    "LearningRate",
    "Momentum",
    "Options",
    "Schedules",
    "World",
    "constant",
]

State = TypeVar("State", bound=tuple[Tensor, ...])
Chosen = TypeVar("Chosen", bound="Options")

# The options that several algorithms share: one name and one meaning everywhere.
LearningRate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Clip = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
FinalMixing = Annotated[int, Field(ge=0, le=100_000)]
Growth = Annotated[float, Field(ge=1, allow_inf_nan=False)]


class Options(BaseModel):
    """Options that every algorithm has; an algorithm adds its own in a subclass of its file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: LearningRate = 0.05
    clip: Clip | None = None


@dataclass(frozen=True)
class Schedules:
    """What an algorithm asks of clipping and noise, step by step; the plan scales and freezes it.

    Args:
        clip: clipping bound of each step, `[steps]`; None does not clip.
        noise_shape: relative noise **multiplier** of each step, `[steps]`: the plan multiplies it
            by one scale a node, which the budget determines.
    """

    clip: tuple[float, ...] | None
    noise_shape: tuple[float, ...]


def constant(options: Options, clip: float | None, steps: int) -> Schedules:
    """The same clipping bound and noise at every step."""
    return Schedules(None if clip is None else (clip,) * steps, (1.0,) * steps)


class World(Protocol):
    """All that a step may use besides its state; it derives from the plan, with nothing of its own.

    `nodes` are those of this process.
    """

    @property
    def exchange(self) -> Exchange:
        """How messages move between nodes."""

    def batch_gradient(self, at: Tensor, k: int) -> Tensor:
        """Sum of clipped record gradients over step k's batch, `[nodes, d]`, at parameters `at`."""

    def add_noise(self, total: Tensor, k: int) -> Tensor:
        """`total` plus step k's Gaussian noise for a sum, in place, `[nodes, d]`."""

    def divide(self, total: Tensor) -> Tensor:
        """`total` over each node's *expected* batch size, in place, `[nodes, d]`."""


def _no_rounds(options: Options) -> int:
    return 0


@dataclass(frozen=True)
class Algorithm(Generic[State, Chosen]):
    """One row of the table of algorithms.

    Args:
        name: as `[algorithm].name` gives it.
        title: as its paper writes it.
        paper: where it was published.
        summary: one line for `tacit algorithms`.
        setting: who talks to whom.
        weights: what its mixing matrices must be.
        private: whether it adds noise; if not, no epsilon is offered.
        options: its options, with defaults.
        default_clip: the clipping bound of a private run that gives none.
        schedules: clip and relative noise of each step, from options and number of steps.
        start: state before the first step, from parameters `[nodes, d]`.
        step: state after step k.
        mix: one gossip-only round.
        final_rounds: how many of those follow the last step.
        models: each node's model of a state, `[nodes, d]`, de-biased.
        formula: the privacy formula its paper prints; None if it prints none.
    """

    name: str
    title: str
    paper: str
    summary: str
    setting: Literal["peer-to-peer", "federated"]
    weights: Literal["column-stochastic", "doubly-stochastic"]
    private: bool
    options: type[Chosen]
    schedules: Callable[[Chosen, float | None, int], Schedules]
    start: Callable[[Tensor, Chosen], State]
    step: Callable[[State, int, Chosen, World], State]
    models: Callable[[State], Tensor]
    mix: Callable[[State, int, World], State]
    final_rounds: Callable[[Chosen], int] = _no_rounds
    formula: Formula | None = None
    default_clip: float = 1.0
