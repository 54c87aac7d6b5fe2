"""What is particular to an algorithm beside its steps, in four facets.

What it needs of a graph (`GraphNeeds`), what it releases (`Releases`), what its paper claims
(`PaperClaims`), and who takes part (`Participation`). Each default is what most algorithms have, so
that a row says what is special about it and no more. All callables read the algorithm's options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tacit import privacy
from tacit.algorithms.accounting import NodeRun, claimed_sums, laplace_sums, noised_sums
from tacit.algorithms.context import StepContext
from tacit.algorithms.options import Options, step_size
from tacit.algorithms.promise import PromisedRun
from tacit.privacy.mechanisms.clipping import CLIP_NORMS, ClipNorm
from tacit.privacy.noise.independent import GAUSSIAN, LAPLACE, Noise
from tacit.privacy.published import PublishedFormula
from tacit.report.documents.plan import PlannedPromise
from tacit.topology.consensus import GossipOrder

LOSSES = ("drop", "drop_edges", "tolerate")
FAULTS = (*LOSSES, "down")
"""Keys of `[faults]`: those by which messages are lost, and all that an algorithm can refuse."""

Weights = Literal["column-stochastic", "doubly-stochastic", "server"]

Apart = Literal["nodes", "copies", "no"]
"""Whose noised values do not depend on each other's: those of nodes; those of runs of the whole
graph, if not; or none, where all clients of a server share it."""


@dataclass(frozen=True)
class Setup:
    """The experiment as its algorithm sees it before anything runs.

    Args:
        steps: K.
        seed: the public one.
        neighbours: of each node, in the graph of step 0, ascending.
        records: J of each node.
        parameters: d.
        model, loss: as `[task]` names them.
        accounted: whether epsilon is certified.
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
    sampling: Literal["poisson", "fixed", "allocation", "cyclic"]
    input_bound: float | None


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


@dataclass(frozen=True)
class NoisePath:
    """How the noise of a step moves models, where that is linear: see `topology.consensus`.

    Args:
        rate: gamma_k, from options, k and K.
        scale: what multiplies a model's noise after k steps, from options and k.
        held: in how many steps the noise of one is applied, from options.
        weight: deviation of step k's noise over that of `StepContext.add_noise` for a sum, from
            options, k, K and the clipping bound.
    """

    order: GossipOrder
    rate: Callable[[Any, int, int], float] = step_size
    scale: Callable[[Any, int], float] = lambda options, k: 1.0
    held: Callable[[Any], int] = lambda options: 1
    weight: Callable[[Any, int, int, float | None], float] = lambda options, k, steps, clip: 1.0


def common_mean(models: Tensor, state: Any) -> Tensor:
    """The mean of all nodes' models `[nodes, d]`, which their messages give away: `[d]`."""
    return models.mean(0)


def any_clip(options: Options) -> Sequence[ClipNorm]:
    """Every norm: each bounds the l2 norm, which is all that a noised sum needs."""
    return CLIP_NORMS


def radial_clip(options: Options) -> Sequence[ClipNorm]:
    """The l2 norm, whether short gradients are lengthened or not."""
    return ("l2", "automatic")


def l2_clip(options: Options) -> Sequence[ClipNorm]:
    """The l2 norm alone."""
    return ("l2",)


@dataclass(frozen=True)
class GraphNeeds:
    """What an algorithm asks of the graph, and sends over it beside its steps.

    Args:
        weights: what its mixing matrices must be; `server` for federated methods.
        gossip: one gossip-only round, from state, step k, options, context and the number of the
            round in step k (1 or more), where that mixes something else than `state.x` alone.
        final_rounds: how many of those follow the last step.
        restart: a state whose models are the given ones `[nodes, d]`, from which those rounds go on
            where the average of a node's models is wanted (`[train] average`), from the state after
            the last step; where `state.x` is both what is mixed and the models, it is replaced.
        one_round: why its steps have one gossip round each, `[topology].rounds`; empty: they may
            have more.
        fixed: whether the graph must be the same at every step.
        consensus: the common model `[d]`, from the models `[nodes, d]` and the state.
        noise_path: how noise moves models; None: not linearly, or not through gossip.
        message_numbers: numbers in one message of a node before it is compressed, for `tacit plan`;
            with options that compress, a multiple of d.
        no_faults: keys of `[faults]` that it cannot take, and why, which follows its name.
    """

    weights: Weights = "doubly-stochastic"
    gossip: Callable[[Any, int, Any, StepContext, int], Any] | None = None
    final_rounds: Callable[[Any], int] = lambda options: 0
    restart: Callable[[Any, Tensor], Any] | None = None
    one_round: str = ""
    fixed: bool = False
    consensus: Callable[[Tensor, Any], Tensor] = common_mean
    noise_path: NoisePath | None = None
    message_numbers: Callable[[Any, int], float] = lambda options, parameters: parameters
    no_faults: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Releases:
    """What an algorithm lets others see, and what hides each record in it.

    Args:
        mechanism: what an observer sees of a node, and may learn from it.
        clip_norms: for which `clip_norm` the mechanism is proved, with given options; `any_clip`
            where a step takes nothing but sums of clipped gradients.
        bound_is_tight: whether an observer sees the noised sums themselves, so that what the
            mechanism can leak at worst is what the algorithm leaks at worst.
        noise: what `StepContext.add_noise` adds.
        clips: what is clipped: each record's gradient, or the change that a whole model makes of
            gradients that are not.
        falls: whether what it noises falls where gradients rise.
        apart: whose noised values do not depend on each other's, given who holds which record. What
            is public, and depends on what others released, may decide only linearly over them, or
            where gradients are taken (`docs/proofs/audits.md`).
        hides: whether its messages hold back a part of what was noised: whoever reads them knows
            less than its noised values tell.
        models: whether the models are functions of what was noised. Where they are not, they are a
            node's own: scores that leave it, and what stops a run, are the common model's. What is
            noised may then move without gradients, too.
        cost_depends_on_step: whether what a step costs depends on its number beyond its noise, so
            that nodes that are active at different steps are costed apart.
        not_covered: what epsilon does not cover beside what it never does.
        no_pairwise: why noise of pairs that cancels does not go with it, which follows "which";
            None: it does, since its messages are functions of noised sums and its nodes' models
            mix them linearly. (With a server there is none in any case.)
        no_secure_sum: of a method with a server, why it cannot do with the sums of a round's
            messages, which follows "which"; None: it can, and asks for them where
            `StepContext.only_sums` says so.
    """

    mechanism: Callable[[NodeRun], privacy.Mechanism] = noised_sums
    clip_norms: Callable[[Any], Sequence[ClipNorm]] = l2_clip
    bound_is_tight: bool = False
    noise: Noise = GAUSSIAN
    clips: Literal["gradients", "change"] = "gradients"
    falls: bool = False
    apart: Callable[[Any], Apart] = lambda options: "nodes"
    hides: Callable[[Any], bool] = lambda options: False
    models: bool = True
    cost_depends_on_step: Callable[[Any], bool] = lambda options: False
    not_covered: Callable[[Any], tuple[str, ...]] = lambda options: ()
    no_pairwise: str | None = None
    no_secure_sum: str | None = "asks its server for more than the sums of a round"


SEEN_SUMS = Releases(clip_norms=any_clip, bound_is_tight=True)
"""Of methods whose observers see each noised sum, and nothing else."""
LAPLACE_SUMS = Releases(
    mechanism=laplace_sums,
    clip_norms=lambda options: ("l1",),
    noise=LAPLACE,
    no_pairwise="adds Laplace noise, and nothing is proved of that where it cancels",
)
"""Of methods that add Laplace noise."""


@dataclass(frozen=True)
class PaperClaims:
    """What an algorithm's paper claims: a formula of epsilon, and a convergence bound.

    Args:
        formula: the privacy formula that it prints; None if it prints none.
        run: what the formula reads.
        round_epsilon: the epsilon of one round that it claims, of the same; None without.
        promise: what its theorems promise of a run; None: nothing is known of any.
        promise_constants: keys of `[promise]` that they read.
        convex: whether they are for convex losses only, which is warned of.
    """

    formula: PublishedFormula[Any] | None = None
    run: Callable[[NodeRun], Any] = claimed_sums
    round_epsilon: Callable[[Any], float] | None = None
    promise: Callable[[PromisedRun], PlannedPromise] | None = None
    promise_constants: tuple[str, ...] = ()
    convex: bool = False


@dataclass(frozen=True)
class Participation:
    """Who takes part in an algorithm's steps, and who has to.

    Args:
        activity: who takes part when; None: everybody always.
        silent: whether a node that is not active sends nothing to its neighbours; by default it
            goes on mixing. With a server or a partner it is silent in any case.
        one_pass: whether a node reads its records in one step alone, so that all of them are the
            batch of a private run that leaves it open.
        stateless_clients: of a method with a server, whether its model is all that is kept between
            rounds, so that a client that was left out can go on with it.
        no_weights: why all nodes count alike in what it minimises, which follows "which"; None: its
            steps are linear in noised gradients, and `StepContext.divide` weighs these.
        no_empty: why every node must have records, likewise; None: one that has none adds nothing
            to a sum. What has no weights counts on all nodes, too.
    """

    activity: Callable[[Setup], Activity | None] = lambda setup: None
    silent: bool = False
    one_pass: bool = False
    stateless_clients: bool = False
    no_weights: str | None = None
    no_empty: str | None = None
