"""What an algorithm is: a row of the table, its options, its schedules, its state and its step.

An algorithm is a pure pair, `start` and `step`, over an explicit state: a `NamedTuple` of tensors
with one row a node. The same pair runs on all nodes stacked in one process and on one or some
nodes in each of many: what differs is in the `StepContext` it is given. What its messages leak is
stated by its `mechanism`, beside the step that sends them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator
from torch import Tensor, nn

from tacit import privacy
from tacit.algorithms.accounting import NodeRun, claimed_sums, noised_sums
from tacit.algorithms.context import StepContext
from tacit.algorithms.promise import PromisedRun
from tacit.communication.colours import Released
from tacit.errors import InputError
from tacit.gradients import Loss, Moments
from tacit.privacy.mechanisms.clipping import CLIP_NORMS, ClipNorm, ClipRule
from tacit.privacy.noise.independent import GAUSSIAN, Noise
from tacit.privacy.published import PublishedFormula
from tacit.report.documents.plan import PlannedPromise
from tacit.topology.consensus import GossipOrder
from tacit.topology.mixing import Mixing

State = TypeVar("State", bound=tuple[Tensor, ...])
Chosen = TypeVar("Chosen", bound="Options")


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

Weights = Literal["column-stochastic", "doubly-stochastic", "server"]
RateSchedule = Literal["constant", "linear", "cosine", "inverse-sqrt"]
RateRule = Literal["sqrt(n/K)"]
MedianRule = Literal["median"]

Law = Literal["sum", "table", "snapshot", "anchors", "steps", "change", "iterates", "carried"]
"""How a noised value depends on one record.

`sum`: by its clipped gradient where it is drawn. `table`, `snapshot`, `anchors`: see
`algorithms.variance_reduction.estimators`. `steps`: as `anchors`, but with differences to the point
of the step before. `change`: by the clipped change of a whole model, whose gradients are not
clipped. `iterates`: by local steps of one round, in which the value moves without gradients too.
`carried`: by those, and by what un-noised state carries on.
"""
Apart = Literal["nodes", "copies", "no"]
"""Whose noised values do not depend on each other's: those of nodes; those of runs of the whole
graph, if not; or none, where all clients of a server share it."""

_RATES: Mapping[RateSchedule, Callable[[float], float]] = MappingProxyType(
    {
        "constant": lambda share: 1.0,
        "linear": lambda share: 1.0 - share,
        "cosine": lambda share: (1.0 + math.cos(math.pi * share)) / 2,
        "inverse-sqrt": lambda share: 1.0,  # of k, not of k / K: see `step_size`
    }
)


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
        if isinstance(value, str) and not (value == "median" and cls.takes_median):
            choices = "a positive number, or 'median'" if cls.takes_median else "a positive number"
            also = ": 'median' is for dp-sgd alone" if value == "median" else ""
            raise ValueError(f"must be {choices}{also}")
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

    There only its default is taken: see `refuse_idle`.

    Args:
        when: of all options, whether it does nothing.
        remedy: what to do about it, for people.
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


@dataclass(frozen=True)
class Setup:
    """The experiment as its algorithm sees it before anything runs.

    Args:
        options: of the algorithm.
        nodes: how many.
        steps: K.
        seed: the public one.
        neighbours: of each node, in the graph of step 0, ascending.
        records: J of each node.
        parameters: d.
        model, loss: as `[task]` names them.
        accounted: whether epsilon is certified.
        relation: of neighbouring data sets.
        sampling: how batches are drawn.
        input_bound: the public l2 norm that no record's inputs exceed; None: there is none.
    """

    options: Any
    nodes: int
    steps: int
    seed: int
    neighbours: tuple[tuple[int, ...], ...]
    records: Sequence[int]
    parameters: int
    model: str
    loss: str
    accounted: bool
    relation: privacy.Relation
    sampling: Literal["poisson", "fixed", "allocation"]
    input_bound: float | None


def _once(options: Any) -> int:
    return 1


def _alike(options: Any, k: int, steps: int, clip: float | None) -> float:
    return 1.0


def _sums(options: Any) -> Law:
    return "sum"


def _nodes(options: Any) -> Apart:
    return "nodes"


def _as_it_is(options: Any, k: int) -> float:
    return 1.0


@dataclass(frozen=True)
class NoisePath:
    """How the noise of a step moves models, where that is linear: see `topology.consensus`.

    Args:
        order: of a step.
        rate: gamma_k, from options, k and K.
        scale: what multiplies a model's noise after k steps, from options and k.
        held: in how many steps the noise of one is applied, from options.
        weight: deviation of step k's noise over that of `StepContext.add_noise` for a sum, from
            options, k, K and the clipping bound.
    """

    order: GossipOrder
    rate: Callable[[Any, int, int], float] = step_size
    scale: Callable[[Any, int], float] = _as_it_is
    held: Callable[[Any], int] = _once
    weight: Callable[[Any, int, int, float | None], float] = _alike


@dataclass(frozen=True, eq=False)
class Activity:
    """Who takes part in which step: drawn before the run, from the public seed.

    Since everybody knows it, participation earns no amplification: a node's mechanism is that of
    the steps in which it is active, whose number the plan knows.

    Args:
        active: bool `[steps, nodes]`.
        partner: int64 `[steps, nodes]`, whom a node is paired with (itself: nobody); None where
            an algorithm has no pairs.
        notes: what came of it, for people: name to value.
    """

    active: NDArray[np.bool_]
    partner: NDArray[np.int64] | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)


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
        """These nodes' part of the augmented Lagrangian.

            sum_i [f_i(x_i) + <lambda_i, x_0 - x_i> + rho |x_i - x_0|^2 / 2] + R(x_0) nodes / N

        Args:
            losses: f_i(x_i), `[nodes]`.
            clients: N, of the whole run: the parts of all processes add up to the whole.
        """
        away = self.server.double() - self.models.double()
        linked = (self.duals.double() * away).sum() + self.penalty / 2 * away.square().sum()
        own = losses.double().sum() + linked
        return float(own) + self.regulariser * len(losses) / clients


@dataclass(frozen=True)
class TableRequest:
    """A table of gradients.

    Args:
        mini_batch: records of one entry; None stores one entry a record.
        directory: where to keep it; None keeps it in memory.
    """

    mini_batch: int | None = None
    directory: Path | None = None


def any_clip(options: Options) -> Sequence[ClipNorm]:
    """Every norm: each bounds the l2 norm, which is all that a noised sum needs."""
    return CLIP_NORMS


def radial_clip(options: Options) -> Sequence[ClipNorm]:
    """The l2 norm, whether short gradients are lengthened or not."""
    return ("l2", "automatic")


def l2_clip(options: Options) -> Sequence[ClipNorm]:
    """The l2 norm alone."""
    return ("l2",)


def common_mean(models: Tensor, state: Any) -> Tensor:
    """The mean of all nodes' models `[nodes, d]`, which their messages give away: `[d]`."""
    return models.mean(0)


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
            f"'{title}: SUMMARY (PAPER).', such as 'SGP: stochastic gradient push, without noise "
            "(Assran, Loizou, Ballas and Rabbat, ICML 2019).'"
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
        weights: what its mixing matrices must be; `server` for federated methods.
        options: its options, with defaults.
        start: state before the first step, from parameters `[nodes, d]`.
        step: state after step k.
        private: whether it adds noise; if not, no epsilon is offered.
        schedules: clip and relative noise of each step, from options, clip and number of steps.
        models: each node's model of a state, `[nodes, d]`, de-biased; `state.x` by default.
        gossip: one gossip-only round, from state, step k, options, context and the number of the
            round in step k (1 or more), where that mixes something else than `state.x` alone.
        final_rounds: how many of those follow the last step.
        restart: a state whose models are the given ones `[nodes, d]`, from which those rounds go on
            where the average of a node's models is wanted (`[train] average`), from the state after
            the last step; where `state.x` is both what is mixed and the models, it is replaced.
        noise_path: how noise moves models; None: not linearly, or not through gossip.
        one_round: why its steps have one gossip round each, `[topology].rounds`; empty: they may
            have more.
        released_models: whether the models are functions of what was noised. Where they are not,
            they are a node's own: scores that leave it, and what stops a run, are the common
            model's.
        consensus: the common model `[d]`, from those models and the state; by default their mean.
        mechanism: what an observer sees of a node, and may learn from it.
        clip_norms: for which `clip_norm` the mechanism is proved, with given options; `any_clip`
            where a step takes nothing but sums of clipped gradients. By default `l2_clip`.
        bound_is_tight: whether an observer sees the noised sums themselves, so that what the
            mechanism can leak at worst is what the algorithm leaks at worst.
        law: how what it noises depends on one record, from the options.
        falls: whether what it noises falls where gradients rise.
        apart: whose noised values do not depend on each other's, given who holds which record, from
            the options. What is public, and depends on what others released, may decide only
            linearly over them, or where gradients are taken (`docs/proofs/audits.md`).
        hides: whether its messages hold back a part of what was noised, from the options: whoever
            reads them knows less than its noised values tell.
        noise: what `StepContext.add_noise` adds.
        no_weights: why all nodes count alike in what it minimises, which follows "which"; None: its
            steps are linear in noised gradients, and `StepContext.divide` weighs these.
        no_pairwise: why noise of pairs that cancels does not go with it, which follows "which";
            None: it does, since its messages are functions of noised sums and its nodes' models
            mix them linearly. (With a server there is none in any case.)
        no_secure_sum: of a method with a server, why it cannot do with the sums of a round's
            messages, which follows "which"; None: it can, and asks for them where
            `StepContext.only_sums` says so.
        no_empty: why every node must have records, likewise; None: one that has none adds nothing
            to a sum. What has no weights counts on all nodes, too.
        formula: the privacy formula its paper prints; None if it prints none.
        claimed_run: what the formula reads.
        claimed_round: the epsilon of one round that its paper claims, of the same; None without.
        activity: who takes part when; None: everybody always.
        silent: whether a node that is not active sends nothing to its neighbours; by default it
            goes on mixing. With a server or a partner it is silent in any case.
        fixed_graph: whether the graph must be the same at every step.
        cost_depends_on_step: whether what a step costs depends on its number beyond its noise, so
            that nodes that are active at different steps are costed apart.
        input_bound: the l2 norm of a record's inputs that its options rest on, where
            `[task].input_bound` gives none: longer ones are scaled down to it.
        moments: what makes the moments of records of a linear model and its loss, from the options,
            the model, the loss and the public bound of inputs: they are trained in its place; None:
            the model's own weights are.
        convex: whether its theory is for convex losses only, which is warned of.
        check: raises InputError for options that do not fit, and returns warnings.
        settled: of options, mixing matrices and d, the options with what these decide in
            numbers, and a note of it, or None. Raises InputError where they cannot.
        table: the gradient table that it needs, if any.
        promise_constants: keys of `[promise]` that the convergence bound of its paper reads.
        promise: what the theorems of its paper promise of a run; None: nothing is known of any.
        not_covered: of the options, what epsilon does not cover beside what it never does.
        message_numbers: numbers in one message of a node before it is compressed, for `tacit plan`;
            with options that compress, a multiple of d.
        default_clip: the clipping bound of a private run that gives none.
        primal_dual: of a state and the options, what the augmented Lagrangian is made of; None:
            the method has no dual variables.
        stateless_clients: of a method with a server, whether its model is all that is kept between
            rounds, so that a client that was left out can go on with it.
        one_pass: whether a node reads its records in one step alone, so that all of them are the
            batch of a private run that leaves it open.
    """

    name: str
    title: str
    documentation: str | None
    weights: Weights
    options: type[Chosen]
    start: Callable[[Tensor, Chosen, StepContext], State]
    step: Callable[[State, int, Chosen, StepContext], State]
    private: bool = True
    schedules: Callable[[Chosen, float | None, int], Schedules] = constant
    models: Callable[[State], Tensor] = _x_of
    gossip: Callable[[State, int, Chosen, StepContext, int], State] | None = None
    final_rounds: Callable[[Chosen], int] = lambda options: 0
    restart: Callable[[State, Tensor], State] | None = None
    noise_path: NoisePath | None = None
    one_round: str = ""
    released_models: bool = True
    consensus: Callable[[Tensor, State], Tensor] = common_mean
    mechanism: Callable[[NodeRun], privacy.Mechanism] = noised_sums
    clip_norms: Callable[[Chosen], Sequence[ClipNorm]] = l2_clip
    bound_is_tight: bool = False
    law: Callable[[Chosen], Law] = _sums
    falls: bool = False
    apart: Callable[[Chosen], Apart] = _nodes
    hides: Callable[[Chosen], bool] = lambda options: False
    noise: Noise = GAUSSIAN
    no_weights: str | None = None
    no_empty: str | None = None
    no_pairwise: str | None = None
    no_secure_sum: str | None = "asks its server for more than the sums of a round"
    formula: PublishedFormula[Any] | None = None
    claimed_run: Callable[[NodeRun], Any] = claimed_sums
    claimed_round: Callable[[Any], float] | None = None
    activity: Callable[[Setup], Activity | None] = lambda setup: None
    silent: bool = False
    fixed_graph: bool = False
    cost_depends_on_step: Callable[[Chosen], bool] = lambda options: False
    input_bound: Callable[[Chosen], float | None] = lambda options: None
    moments: Callable[[Chosen, nn.Module, Loss, float], Moments] | None = None
    convex: bool = False
    check: Callable[[Setup], tuple[str, ...]] = lambda setup: ()
    settled: Callable[[Chosen, Mixing, int], tuple[Chosen, str | None]] = (
        lambda options, mixing, d: (options, None)
    )
    table: Callable[[Chosen], TableRequest | None] = lambda options: None
    promise_constants: tuple[str, ...] = ()
    promise: Callable[[PromisedRun], PlannedPromise] | None = None
    not_covered: Callable[[Chosen], tuple[str, ...]] = lambda options: ()
    message_numbers: Callable[[Chosen, int], float] = lambda options, parameters: parameters
    default_clip: float = 1.0
    primal_dual: Callable[[State, Chosen], PrimalDual] | None = None
    stateless_clients: bool = False
    one_pass: bool = False

    def __post_init__(self) -> None:
        _described(self.documentation, self.title)

    @property
    def summary(self) -> str:
        """One line for `tacit algorithms`."""
        return _described(self.documentation, self.title)[0]

    @property
    def paper(self) -> str:
        """Where it was published."""
        return _described(self.documentation, self.title)[1]

    @property
    def no_rounds(self) -> str:
        """Why its steps have one gossip round each; empty: they may have more.

        Further rounds send `state.x`, so that it must be the models, and made of what was noised,
        unless `gossip` says what they send.
        """
        if self.weights == "server":
            return "has a server, and what it averages is every client's: nothing is left to mix"
        mixes_models = self.released_models and self.models is _x_of
        if self.one_round or self.gossip is not None or mixes_models:
            return self.one_round
        return "does not say what a round of gossip alone may send (`gossip`)"

    @property
    def restarts(self) -> bool:
        """Whether gossip-only rounds can go on from given models: see `restart`."""
        return self.restart is not None or (self.gossip is None and self.models is _x_of)

    def restarted(self, state: State, models: Tensor) -> State:
        """The state with which gossip-only rounds go on from models `[nodes, d]`.

        Only for an algorithm that `restarts`.
        """
        if self.restart is not None:
            return self.restart(state, models)
        old: Any = state
        new: State = old._replace(x=models)
        return new

    @property
    def setting(self) -> Literal["peer-to-peer", "federated"]:
        """Who talks to whom."""
        return "federated" if self.weights == "server" else "peer-to-peer"

    def mix(self, state: State, k: int, options: Chosen, context: StepContext, extra: int) -> State:
        """The state after one gossip-only round: of functions of what was released, without cost.

        With a server the state stays as it is: each step has ended with the server's average.

        Args:
            state: after step k, and the rounds of it so far.
            k: the last step that was made.
            options: of the algorithm.
            context: of the run.
            extra: number of the round in step k, 1 or more; see `Exchange.mix`.
        """
        if self.gossip is not None:
            return self.gossip(state, k, options, context, extra)
        if self.weights == "server":
            return state
        old: Any = state
        (x,) = context.exchange.mix(k, Released(old.x), extra=extra)
        mixed: State = old._replace(x=x)
        return mixed
