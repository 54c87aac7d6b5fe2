"""What the nodes release, stated before any noise is calibrated.

A node's messages are functions of what it releases, and this says what that is: in which steps,
of which records, clipped to what, under how much noise, seen by whom. The planner calibrates noise
on it; the plan holds it, and sampler, clipping, noise, accountant and ledger read it there, so that
what is accounted cannot differ from what runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tacit import privacy
from tacit.algorithms import Activity, Algorithm, NodeRun, Schedules, Setup
from tacit.errors import InputError
from tacit.models.probabilities import MOST_BINS
from tacit.privacy.ledger.spent import combined
from tacit.privacy.mechanisms.base import against
from tacit.privacy.mechanisms.clipping import ASSUMED, Clipping
from tacit.privacy.mechanisms.steps import SILENT, Scheduled
from tacit.privacy.mechanisms.steps import schedule as schedule_of
from tacit.privacy.noise.matrix import MatrixNoise
from tacit.privacy.published import FormulaCondition
from tacit.training.shared_noise import PairNoise, SecureSums

T = TypeVar("T")
Interval = tuple[int, int]
_LEAST_NOISE = 0.05  # over the clip: below, no step leaves anything to share


@dataclass(frozen=True)
class NodePlan:
    """What is one node's own in what it releases, the budget for it, and what it costs.

    Args:
        records: J, public.
        rate: q, share of the records that joins a mini-batch (1: every record every time).
        expected_batch: q J, which every sum is divided by; there is none of no records.
        noise_scale: factor of the noise shape, for the node's own noise; 0 adds no noise.
        budget: the epsilon that must hold at `delta`, if one was given.
        delta: the delta at which epsilon is stated; None where nothing is accounted.
        weight: n p_i, public, by which its noised mean counts; it changes nothing of what a record
            of its own can do to what is released.
        guess: how often a guess may be right, if that was given in place of `budget`.
        epsilon: certified for all planned steps; None where nothing is accounted.
        right_guess: certified for them, where the budget is `guess`.
        claimed: by the paper's formula for the same noise; None without a formula.
        conditions: of the formula, and whether they hold.
    """

    node: int
    records: int
    rate: float
    expected_batch: float
    noise_scale: float = 0.0
    budget: float | None = None
    delta: float | None = None
    weight: float = 1.0
    guess: float | None = None
    epsilon: float | None = None
    right_guess: float | None = None
    claimed: float | None = None
    conditions: tuple[FormulaCondition, ...] = ()

    @property
    def divisor(self) -> float:
        """What a noised sum is divided by before it is averaged: q J / (n p_i)."""
        return self.expected_batch / self.weight if self.records else math.inf

    @property
    def limit(self) -> float | None:
        """What `Release.spent` must not exceed; None: no budget was given."""
        return self.budget if self.guess is None else 2 * self.guess - 1

    @property
    def epoch_steps(self) -> int:
        """Steps of an epoch, in which each record takes part once where it is allocated to one."""
        return round(1 / self.rate)


@dataclass(frozen=True)
class Release:
    """What all nodes release, but for what is each node's own.

    Args:
        algorithm: its row, which states the mechanism.
        clip: norm and bound of each step.
        noise_shape: relative noise multiplier of each step, `[steps]`, as it runs.
        published_constant: the constant that a paper's formula leaves open.
        local_steps: Q, mini-batches that a step draws.
        disjoint: whether those of a step share no record.
        activity: who takes part when; None: everybody always.
        pairs: the noise that cancels between nodes; None: there is none.
        sums: that a server sees sums only; None: it sees messages.
        calibrating: share of mu^2, by Gaussian DP, that goes to one release after the last
            step, of counts that every record adds 1 to (`tacit.training.calibration`); 0: none.
        over_time: noise that is correlated over steps, or of records that take part in turns.
    """

    algorithm: Algorithm[Any, Any]
    setup: Setup
    clip: Clipping
    noise_shape: tuple[float, ...]
    published_constant: float
    local_steps: int = 1
    disjoint: bool = True
    activity: Activity | None = None
    pairs: PairNoise | None = None
    sums: SecureSums | None = None
    calibrating: float = 0.0
    over_time: MatrixNoise | None = None

    def turns(self, node: NodePlan) -> int:
        """Of how many steps a record may join one, where `over_time`."""
        if node.rate == 1 or self.over_time is None:
            return 1
        return node.epoch_steps if self.setup.sampling == "cyclic" else self.over_time.bands

    def coin(self, node: NodePlan) -> float:
        """With which probability it does."""
        return 1.0 if self.setup.sampling == "cyclic" else min(1.0, self.turns(node) * node.rate)

    @property
    def after(self) -> tuple[Interval, ...]:
        """What is released after the last step."""
        steps = self.setup.steps
        return ((steps, steps + 1),) if self.calibrating else ()

    @property
    def planned(self) -> tuple[Interval, ...]:
        """All that is released."""
        return ((0, self.setup.steps), *self.after)

    @property
    def shared(self) -> PairNoise | SecureSums | None:
        """What makes noise of other nodes count for a node, if nobody colludes with too many."""
        return self.pairs if self.sums is None else self.sums

    @property
    def trust_model(self) -> str:
        """Who sees single messages, and who pools what they know."""
        if self.pairs is not None:
            return "pairwise"
        if self.sums is not None:
            return "secure-sum"
        return "server" if self.algorithm.graph.weights == "server" else "all-messages"

    @property
    def assumption(self) -> str:
        """The trust model as a mechanism states it: with how many may pool what they know."""
        if self.shared is None:
            return self.trust_model
        return against(self.trust_model, self.shared.colluding)

    def noise_multiplier(self, node: NodePlan, k: int) -> float:
        """What the noise of step k counts for, over its clipping bound, for the sum over a batch.

        The standard deviation of a single noised sum from which all that observers see could be
        made: that of the node's own noise, and more where pairs of nodes add noise that cancels,
        or where only the sum over nodes is seen.
        """
        own = self.own_multiplier(node, k)
        return own if self.shared is None else own * self.shared.gain(node.node, k)

    def own_multiplier(self, node: NodePlan, k: int) -> float:
        """Standard deviation of a node's own noise in step k over its clipping bound, for a sum."""
        if k < self.setup.steps:
            return node.noise_scale * self.noise_shape[k]
        steps = self.active_steps(node, self.planned[:1]) or [0]
        noises = (max(node.noise_scale * self.noise_shape[step], _LEAST_NOISE) for step in steps)
        costs = (  # of Gaussian DP: mu^2, of sampled steps as there are many
            node.rate**2 * math.expm1(noise**-2) if node.rate < 1 else noise**-2 for noise in noises
        )
        return math.sqrt((1 / self.calibrating - 1) / math.fsum(costs))

    def noise_std(self, node: NodePlan, k: int) -> float:
        """Standard deviation of a node's own noise in step k, in the **sum** over the batch."""
        bound = self.clip.bound(k) if k < self.setup.steps else 1.0  # of a count
        return self.own_multiplier(node, k) * (1.0 if bound is None else bound)

    def pair_noise_std(self, k: int) -> float:
        """Standard deviation of a pair's noise in step k, in what nodes average."""
        bound = self.clip.bound(k)
        deviation = 0.0 if self.pairs is None else self.pairs.deviation
        return deviation * self.noise_shape[k] * (1.0 if bound is None else bound)

    def against(self, colluding: int) -> Release:
        """The same release, seen by another number of nodes who pool all that they know."""
        pairs, sums = self.pairs, self.sums
        return replace(
            self,
            pairs=None if pairs is None else pairs.against(colluding),
            sums=None if sums is None else sums.against(colluding),
        )

    def kind(self, node: NodePlan) -> tuple[Any, ...]:
        """What decides a node's epsilon, where nodes release the same steps."""
        alone = None if self.activity is None else node.node
        gains = () if self.shared is None else (self.shared.gain(node.node, 0),)
        return node.records, node.noise_scale, node.delta, alone, *gains

    def of_each(
        self,
        nodes: Iterable[NodePlan],
        cost: Callable[[NodePlan], T],
        beside: Callable[[NodePlan], Any] = lambda node: None,
    ) -> list[T]:
        """What `cost` says of each node; found once of nodes that are alike.

        Those of one `kind` are for which `beside` says the same: what else decides it.
        """
        found: dict[tuple[Any, ...], T] = {}
        kinds = [(node, (*self.kind(node), beside(node))) for node in nodes]
        for node, kind in kinds:
            if kind not in found:
                found[kind] = cost(node)
        return [found[kind] for _, kind in kinds]

    @property
    def claims(self) -> bool:
        """Whether a paper's formula is asked: noise is accounted, or its bound is assumed.

        A formula that assumes a bound claims the same whether it is enforced or not.
        """
        return self.setup.accounted or not self.clip.enforced

    @property
    def noised_values(self) -> int:
        """Numbers of a step that noise is drawn for and a node's epsilon rests on."""
        if self.sums is not None:
            return self.setup.parameters * self.sums.most
        if self.pairs is None:
            return self.setup.parameters
        return self.setup.parameters * (self.setup.nodes + len(self.pairs.pairs))

    def active(self, k: int) -> NDArray[np.bool_] | None:
        """Which nodes take part in step k, `[nodes]`; None: everybody always."""
        return None if self.activity is None else self.activity.active[k]

    def drawn_again(self, nodes: Iterable[NodePlan], first: int) -> tuple[Interval, ...]:
        """What a process that goes on at step `first` has to reserve beside the steps to come.

        With random allocation it draws the epochs anew in the middle of which it begins, and these
        are charged once more, from their first step on (`RandomAllocationGaussian.of_steps`).
        `nodes` are those of the ledger, which reserves the same steps for all of them.
        """
        if self.setup.sampling != "allocation" or not self.setup.accounted:
            return ()
        begun = min(first - first % node.epoch_steps for node in nodes)
        return ((begun, first),) if begun < first else ()

    def active_steps(
        self, node: NodePlan, intervals: Iterable[Interval] | None = None
    ) -> list[int]:
        """Steps of `intervals` (by default all) in which a node takes part, repeats kept.

        Without records it releases nothing of its own: it sends functions of what others released.
        """
        if not node.records:
            return []
        pairs = intervals or self.planned
        steps = chain.from_iterable(range(*pair) for pair in pairs)
        if self.activity is None:
            return list(steps)
        taking_part = self.activity.active[:, node.node % self.activity.active.shape[1]]
        return [step for step in steps if step >= len(taking_part) or taking_part[step]]

    def mechanism(
        self, node: NodePlan, intervals: Iterable[Interval] | None = None
    ) -> privacy.Mechanism:
        """What an observer sees of a node, if the steps of `intervals` are released.

        `intervals` are (first, until) pairs, repeats allowed; by default every planned step once.
        The node must add noise. Where it takes part in none of these steps, it is stated as if it
        had in the first: more than it releases.

        Raises:
            InputError: on `algorithm.clip_norm`, where the bound is assumed: no mechanism with
                finite sensitivity describes what is released then.
        """
        if not self.clip.enforced:
            raise InputError(
                "algorithm.clip_norm",
                ASSUMED,
                "keeps no gradient to the bound, so that no epsilon holds: clip, with 'l2'",
            )
        return self.assumed_mechanism(node, intervals)

    def assumed_mechanism(
        self, node: NodePlan, intervals: Iterable[Interval] | None = None
    ) -> privacy.Mechanism:
        """What `mechanism` says, also where the bound is assumed: if every gradient keeps to it.

        Where the bound is not enforced, nothing that it says may be told as a guarantee.
        """
        steps = self.active_steps(node, intervals) or [0]
        trained = [step for step in steps if step < self.setup.steps]
        mechanism = (
            self.algorithm.releases.mechanism(self.node_run(node, trained)) if trained else None
        )
        return self._then_counted(node, mechanism, len(steps) - len(trained))

    def _then_counted(
        self, node: NodePlan, mechanism: privacy.Mechanism | None, times: int
    ) -> privacy.Mechanism:
        """A mechanism, and then the release that follows the last step, so many times."""
        counted = None
        if times:
            counted = privacy.Gaussian(
                [self.own_multiplier(node, self.setup.steps)] * times,
                relation=self.setup.relation,
                trust_model=self.assumption,
                coordinates=max(self.noised_values, 2 * MOST_BINS),
            )
        both = combined([mechanism, counted])
        assert both is not None
        return both

    def ledger_mechanism(self, node: NodePlan) -> privacy.Mechanism:
        """The mechanism as a ledger holds it: one entry a planned step, so that steps are its.

        A step in which the node takes no part stands there with `SILENT` noise: more than it
        releases, by less than a millionth of what the others do.
        """
        mechanism = self.mechanism(node, self.planned[:1])
        if self.activity is not None or not node.records:
            mechanism = self._with_silence(node, mechanism)
        return self._then_counted(node, mechanism, len(self.after))

    def _with_silence(self, node: NodePlan, mechanism: privacy.Mechanism) -> privacy.Mechanism:
        """The mechanism of all steps of training, of that of those in which a node takes part."""
        active = self.active_steps(node, self.planned[:1]) or [0]
        if isinstance(mechanism, Scheduled) and mechanism.steps == len(active):
            schedule = [SILENT] * self.setup.steps
            for step, multiplier in zip(active, schedule_of(mechanism), strict=True):
                schedule[step] = multiplier
            return mechanism.with_schedule(schedule)
        run = self.node_run(node, range(self.setup.steps))
        taking_part = set(active)
        multipliers = [
            multiplier if step in taking_part else SILENT
            for step, multiplier in enumerate(run.noise_multiplier)
        ]
        return self.algorithm.releases.mechanism(replace(run, noise_multiplier=multipliers))

    def node_run(self, node: NodePlan, steps: Sequence[int]) -> NodeRun:
        """What the algorithm states a node's mechanism and claim from; it must add noise.

        `steps` are those whose messages it sends.
        """
        setup = self.setup
        bounds = self.clip.bounds or (1.0,) * setup.steps
        multipliers = [self.noise_multiplier(node, step) for step in steps]
        if not node.records:  # as if it had one, of which its messages said next to nothing
            node, multipliers = replace(node, records=1, expected_batch=1.0), [SILENT] * len(steps)
        return NodeRun(
            options=setup.options,
            records=node.records,
            rate=node.rate,
            expected_batch=node.expected_batch,
            sampling=setup.sampling,
            relation=setup.relation,
            coordinates=self.noised_values,
            nodes=setup.nodes,
            steps=setup.steps,
            released=steps,
            noise_multiplier=multipliers,
            clip=[bounds[step] for step in steps],
            delta=node.delta or 0.0,
            constant=self.published_constant,
            local_steps=self.local_steps,
            disjoint=self.disjoint,
            trust_model=self.assumption,
            over_time=self._over_time(node),
        )

    def _over_time(self, node: NodePlan) -> privacy.MatrixGaussian | None:
        """All steps of a node, where noise is correlated over them."""
        if self.over_time is None:
            return None
        return privacy.MatrixGaussian(
            self.over_time.of(node.node),
            self.turns(node),
            [self.noise_multiplier(node, k) for k in range(self.setup.steps)],
            sample_rate=self.coin(node),
            relation=self.setup.relation,
            trust_model=self.assumption,
            coordinates=self.noised_values,
        )

    def claimed(
        self, node: NodePlan, steps: int | None = None, delta: float | None = None
    ) -> float | None:
        """What the paper's formula says of the first steps of a node; None without a claim.

        The node must add noise. By default all steps count, and delta is the node's.
        """
        formula = self.algorithm.claims.formula
        if formula is None or not self.claims or self.clip.bounds is None:
            return None
        if self.shared is not None or self.over_time is not None:
            return None  # formulas are of independent noise, and of single messages
        released = self.active_steps(node, [(0, self.setup.steps if steps is None else steps)])
        run = self.claimed_run(node, released, delta, steps) if released else None
        return formula.epsilon(run) if released else 0.0

    def claimed_run(
        self,
        node: NodePlan,
        steps: Sequence[int] | None = None,
        delta: float | None = None,
        completed: int | None = None,
    ) -> Any:
        """What the paper's formula reads of a node; it must add noise and clip.

        `steps` are those whose messages it sends, by default all of its own; `delta` is by default
        the node's. `completed` steps were made, by this node or not; by default all.
        """
        run = self.node_run(
            node, self.active_steps(node, self.planned[:1]) or [0] if steps is None else steps
        )
        run = replace(run, delta=run.delta if delta is None else delta, completed=completed)
        return self.algorithm.claims.run(run)

    def epsilon(self, node: NodePlan, intervals: Sequence[Interval]) -> float | None:
        """Certified epsilon of a node after the steps of `intervals`; None if not accounted."""
        if not self.setup.accounted or node.delta is None:
            return None
        if not intervals or not self.active_steps(node, intervals):
            return 0.0
        return privacy.epsilon(self.mechanism(node, intervals), delta=node.delta)

    def right_guess(self, node: NodePlan, intervals: Sequence[Interval]) -> float | None:
        """How often a guess is right at most after these steps; None where nobody asked."""
        if node.guess is None or not self.setup.accounted:
            return None
        if not intervals or not self.active_steps(node, intervals):
            return 0.5
        return privacy.right_guess(self.mechanism(node, intervals))

    def spent(self, node: NodePlan, intervals: Sequence[Interval]) -> float | None:
        """What the steps of `intervals` cost in the measure of a node's budget: see `limit`."""
        guess = self.right_guess(node, intervals)
        return self.epsilon(node, intervals) if guess is None else 2 * guess - 1


def make_release(
    algorithm: Algorithm[Any, Any],
    setup: Setup,
    schedules: Schedules,
    activity: Activity | None,
    published_constant: float,
) -> Release:
    """State what the nodes release, if the algorithm's mechanism is proved for the clip.

    That is checked here and nowhere else: whatever has a release may rely on it.

    Raises:
        InputError: on `algorithm.clip_norm`, a norm for which nothing is proved; on
            `algorithm.clip`, an accounted run whose schedules have no bound.
    """
    rule = setup.options.clip_norm
    proved = algorithm.releases.clip_norms(setup.options)
    clip = Clipping(proved[0] if rule == ASSUMED else rule, schedules.clip, rule != ASSUMED)
    if clip.norm not in proved:
        listed = " or ".join(f"'{norm}'" for norm in proved)
        raise InputError("algorithm.clip_norm", clip.norm, f"must be {listed} for this method")
    if setup.accounted or clip.bounds is not None:  # it raises where there is no bound
        clip.sensitivity(setup.relation, algorithm.releases.noise.norm)
    return Release(
        algorithm=algorithm,
        setup=setup,
        clip=clip,
        noise_shape=schedules.noise_shape,
        published_constant=published_constant,
        local_steps=schedules.local_steps,
        disjoint=schedules.disjoint,
        activity=activity,
    )
