"""What an algorithm is: a row of the table, with its state and its step.

An algorithm is a pure pair, `start` and `step`, over an explicit state: a `NamedTuple` of tensors
with one row a node. The same pair runs on all nodes stacked in one process and on one or some
nodes in each of many: what differs is in the `StepContext` it is given. What else is particular to
it stands in the four `facets` of its row, and its options in a class of its own (`options`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from torch import Tensor, nn

from tacit.algorithms.context import StepContext
from tacit.algorithms.facets import GraphNeeds, PaperClaims, Participation, Releases, Setup
from tacit.algorithms.options import Options, Schedules, constant
from tacit.communication.colours import Released
from tacit.gradients import Loss, Moments
from tacit.topology.mixing import Mixing

State = TypeVar("State", bound=tuple[Tensor, ...])
Chosen = TypeVar("Chosen", bound=Options)


@dataclass(frozen=True, eq=False)
class PrimalDual:
    """What the augmented Lagrangian of a method with a server is made of, besides the losses.

    Args:
        models: x_i, `[nodes, d]`, those of this process.
        duals: lambda_i, `[nodes, d]`.
        server: x_0, `[1, d]`.
        penalty: rho.
        regulariser: R(x_0).
    """

    models: Tensor
    duals: Tensor
    server: Tensor
    penalty: float
    regulariser: float

    def terms(self, losses: Tensor, clients: int) -> float:
        """These nodes' part of the augmented Lagrangian, from their `losses` f_i(x_i), `[nodes]`.

            sum_i [f_i(x_i) + <lambda_i, x_0 - x_i> + rho |x_i - x_0|^2 / 2] + R(x_0) nodes / N

        N = `clients` are those of the whole run: the parts of all processes add up to the whole.
        """
        away = self.server.double() - self.models.double()
        linked = (self.duals.double() * away).sum() + self.penalty / 2 * away.square().sum()
        own = losses.double().sum() + linked
        return float(own) + self.regulariser * len(losses) / clients


@dataclass(frozen=True)
class TableRequest:
    """A table of gradients, kept in `directory`, or in memory where that is None.

    It has an entry for each mini-batch of `mini_batch` records, or for each record where that is
    None.
    """

    mini_batch: int | None = None
    directory: Path | None = None


def _x_of(state: Any) -> Tensor:
    models: Tensor = state.x
    return models


_SENTENCE = re.compile(r"([^:]+): ([^().]+)(?: \((.+?)\))?\.(?= |$)")


def _described(documentation: str | None, title: str) -> tuple[str, str]:
    """Summary and paper of the algorithm of that title, in the docstring of its module.

    Raises:
        ValueError: where it has no sentence of the form `TITLE: SUMMARY (PAPER).`.
    """
    if documentation is None:
        return "", ""
    paragraphs = (" ".join(part.split()) for part in documentation.split("\n\n"))
    sentences = [match.groups() for text in paragraphs if (match := _SENTENCE.match(text))]
    summary = next((summary for name, summary, _ in sentences if name == title), None)
    paper = next((paper for name, _, paper in sentences if name == title and paper), None)
    paper = paper or next((paper for _, _, paper in sentences if paper), None)
    if summary is None or paper is None:
        raise ValueError(
            f"{title}: a paragraph of the docstring must begin "
            f"'{title}: SUMMARY (PAPER).', such as '{title}: averages with the neighbours, then "
            "steps (Somebody and Somebody Else, ICML 2019).'"
        )
    return summary, paper


@dataclass(frozen=True)
class Algorithm(Generic[State, Chosen]):
    """One row of the table of algorithms.

    Args:
        name: as `[algorithm].name` gives it.
        title: as its paper writes it.
        documentation: what describes it, the docstring of its module, in one paragraph of which
            stands `TITLE: SUMMARY (PAPER).`, with its title; without a paper it is that of the
            first such paragraph. None where Python has dropped docstrings (`-OO`).
        start: state before the first step, from parameters `[nodes, d]`.
        step: state after step k.
        models: each node's model of a state, `[nodes, d]`, de-biased; `state.x` by default.
        private: whether it adds noise; if not, no epsilon is offered.
        schedules: clip and relative noise of each step, from options, clip and number of steps.
        default_clip: the clipping bound of a private run that gives none.
        steps_along: what a step does, in a few words, where it does nothing but step along noised
            gradients as they are: `tacit plan --recommend` has rules for these, and says that as
            its reason; empty: it does more.
        check: raises InputError for options that do not fit, and returns warnings.
        settled: of options, mixing matrices and d, the options with what these decide in
            numbers, and a note of it, or None. Raises InputError where they cannot.
        input_bound: the l2 norm of a record's inputs that its options rest on, where
            `[task].input_bound` gives none: longer ones are scaled down to it.
        moments: what makes the moments of records of a linear model and its loss, from the options,
            the model, the loss and the public bound of inputs: they are trained in its place; None:
            the model's own weights are.
        table: the gradient table that it needs, if any.
        differences: whether a step takes a record's gradient at two points, or at one and from a
            table, so that what a model draws by coins would be another in each.
        passes_in_float64: whether gradients are taken in float64, whatever the models are in.
        primal_dual: of a state and the options, what the augmented Lagrangian is made of; None:
            the method has no dual variables.
    """

    name: str
    title: str
    documentation: str | None
    options: type[Chosen]
    start: Callable[[Tensor, Chosen, StepContext], State]
    step: Callable[[State, int, Chosen, StepContext], State]
    models: Callable[[State], Tensor] = _x_of
    private: bool = True
    schedules: Callable[[Chosen, float | None, int], Schedules] = constant
    default_clip: float = 1.0
    graph: GraphNeeds = field(default_factory=GraphNeeds)
    releases: Releases = field(default_factory=Releases)
    claims: PaperClaims = field(default_factory=PaperClaims)
    participation: Participation = field(default_factory=Participation)
    steps_along: str = ""
    check: Callable[[Setup], tuple[str, ...]] = lambda setup: ()
    settled: Callable[[Chosen, Mixing, int], tuple[Chosen, str | None]] = (
        lambda options, mixing, d: (options, None)
    )
    input_bound: Callable[[Chosen], float | None] = lambda options: None
    moments: Callable[[Chosen, nn.Module, Loss, float], Moments] | None = None
    table: Callable[[Chosen], TableRequest | None] = lambda options: None
    differences: bool = False
    passes_in_float64: bool = False
    primal_dual: Callable[[State, Chosen], PrimalDual] | None = None

    def __post_init__(self) -> None:
        _described(self.documentation, self.title)
        if not issubclass(self.options, Options):
            raise ValueError(f"{self.title}: its options must be a subclass of Options")

    @property
    def summary(self) -> str:
        """One line for `tacit algorithms`."""
        return _described(self.documentation, self.title)[0]

    @property
    def paper(self) -> str:
        """Where it was published."""
        return _described(self.documentation, self.title)[1]

    @property
    def plain(self) -> bool:
        """Whether it does nothing but step along noised gradients: see `steps_along`."""
        return self.private and self.steps_along != ""

    @property
    def no_rounds(self) -> str:
        """Why its steps have one gossip round each; empty: they may have more.

        Further rounds send `state.x`, so that it must be the models, and made of what was noised,
        unless `gossip` says what they send.
        """
        if self.graph.weights == "server":
            return "has a server, and what it averages is every client's: nothing is left to mix"
        mixes_models = self.releases.models and self.models is _x_of
        if self.graph.one_round or self.graph.gossip is not None or mixes_models:
            return self.graph.one_round
        return "does not say what a round of gossip alone may send (`gossip`)"

    @property
    def restarts(self) -> bool:
        """Whether gossip-only rounds can go on from given models: see `restart`."""
        mixes_models = self.graph.gossip is None and self.models is _x_of
        return self.graph.restart is not None or mixes_models

    def restarted(self, state: State, models: Tensor) -> State:
        """The state with which gossip-only rounds go on from models `[nodes, d]`.

        Only for an algorithm that `restarts`.
        """
        if self.graph.restart is not None:
            restarted: State = self.graph.restart(state, models)
            return restarted
        old: Any = state
        new: State = old._replace(x=models)
        return new

    @property
    def setting(self) -> Literal["peer-to-peer", "federated"]:
        """Who talks to whom."""
        return "federated" if self.graph.weights == "server" else "peer-to-peer"

    def mix(self, state: State, k: int, options: Chosen, context: StepContext, extra: int) -> State:
        """The state after one gossip-only round: of functions of what was released, without cost.

        It follows step k, the last that was made, and the rounds of it so far; `extra` is its
        number among these, 1 or more (see `Exchange.mix`). With a server the state stays as it is:
        each step has ended with the server's average.
        """
        if self.graph.gossip is not None:
            after: State = self.graph.gossip(state, k, options, context, extra)
            return after
        if self.graph.weights == "server":
            return state
        old: Any = state
        (x,) = context.exchange.mix(k, Released(old.x), extra=extra)
        mixed: State = old._replace(x=x)
        return mixed
