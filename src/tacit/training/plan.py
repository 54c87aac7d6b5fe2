"""The plan: one frozen object, made before the first step, that everything else derives from.

Sampler, clipping, noise, mechanism, accountant and ledger read the plan; none has parameters of
its own, so that what is accounted cannot differ from what runs. A plan that exceeds a node's
budget is refused here, before anything is sent.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit import privacy
from tacit.algorithms import Activity, NodeRun
from tacit.config import Config, to_toml
from tacit.privacy.mechanisms.composed import Scheduled
from tacit.privacy.mechanisms.composed import schedule as schedule_of
from tacit.privacy.published import FormulaCondition
from tacit.topology import Mixing
from tacit.training.faults import FaultPlan

__all__ = ["Interval", "NodePlan", "Plan"]

Interval = tuple[int, int]

SILENT = 1e9
"""Noise multiplier that stands for no release at all."""


@dataclass(frozen=True)
class NodePlan:
    """What one node does, and what that costs.

    Args:
        node: its number.
        records: J, public.
        rate: q, share of the records that joins a mini-batch (1: every record every time).
        expected_batch: q J, which every sum is divided by.
        noise_scale: factor of the plan's noise shape; 0 adds no noise.
        budget: (epsilon, delta) that must hold, if one was given.
        delta: the delta at which epsilon is stated; None where nothing is accounted.
        epsilon: certified for all planned steps; None where nothing is accounted.
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
    epsilon: float | None = None
    claimed: float | None = None
    conditions: tuple[FormulaCondition, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before the first step.

    Args:
        config: the experiment.
        parameters: d, trainable parameters of the model.
        nodes: one plan a node.
        clip: clipping bound of each step, `[steps]`; None does not clip.
        noise_shape: relative noise multiplier of each step, `[steps]`, as it runs.
        mixing: the mixing weights, step by step.
        contraction: factor by which disagreement shrinks a step; the spectral gap is 1 less it;
            None where it is not known, see `tacit.topology.contraction`.
        local_steps: Q, mini-batches that a step draws.
        disjoint: whether those of a step share no record.
        activity: who takes part when; None: everybody always.
        faults: that are simulated; None: nothing is.
        warnings: what the user should know, each one line.
        notes: what the plan comes to, each one line.
    """

    config: Config
    parameters: int
    nodes: tuple[NodePlan, ...]
    clip: tuple[float, ...] | None
    noise_shape: tuple[float, ...]
    mixing: Mixing
    contraction: float | None
    local_steps: int = 1
    disjoint: bool = True
    activity: Activity | None = None
    faults: FaultPlan | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """K."""
        return self.config.train.steps

    @property
    def noisy(self) -> bool:
        """Whether any noise is added."""
        return self.config.privacy.noisy

    @property
    def accounted(self) -> bool:
        """Whether epsilon is certified."""
        return self.noisy and self.config.privacy.accounting != "none"

    @property
    def not_private_reason(self) -> str | None:
        """Why a run of it guarantees nothing to somebody; None where it does."""
        reason = self.config.not_private_reason
        if reason is None and any(node.epsilon == math.inf for node in self.nodes):
            return "there is too little noise for any finite epsilon"
        return reason

    @property
    def not_private_warning(self) -> str | None:
        """What is said first of a run that guarantees nothing; None of one that does."""
        reason = self.not_private_reason
        return None if reason is None else f"this run is NOT PRIVATE: {reason}"

    @property
    def trust_model(self) -> str:
        """Who sees single messages."""
        server = self.config.algorithm.definition.weights == "server"
        return "server" if server else "all-messages"

    def noise_multiplier(self, node: NodePlan, k: int) -> float:
        """Noise standard deviation of step k over its clipping bound, for the sum over a batch."""
        return node.noise_scale * self.noise_shape[k]

    def noise_std(self, node: NodePlan, k: int) -> float:
        """Noise standard deviation of step k, in the **sum** over the batch."""
        unit = 1.0 if self.clip is None else self.clip[k]
        return self.noise_multiplier(node, k) * unit

    def active(self, k: int) -> NDArray[np.bool_] | None:
        """Which nodes take part in step k, `[nodes]`; None: everybody always."""
        return None if self.activity is None else self.activity.active[k]

    def released(self, node: NodePlan, intervals: Iterable[Interval] | None = None) -> list[int]:
        """Steps of `intervals` (by default all) in which a node takes part, repeats kept."""
        steps = chain.from_iterable(range(*pair) for pair in intervals or [(0, self.steps)])
        if self.activity is None:
            return list(steps)
        taking_part = self.activity.active[:, node.node % self.activity.active.shape[1]]
        return [step for step in steps if taking_part[step]]

    def mechanism(
        self, node: NodePlan, intervals: Iterable[Interval] | None = None
    ) -> privacy.Mechanism:
        """What an observer sees of a node, if the steps of `intervals` are released.

        A node that takes part in none of them is stated as if it had in the first: more than it
        releases.

        Args:
            node: the node; it must add noise.
            intervals: (first, until) pairs, repeats allowed; by default every planned step once.
        """
        run = self.node_run(node, self.released(node, intervals) or [0])
        return self.config.algorithm.definition.mechanism(run)

    def booked(self, node: NodePlan) -> privacy.Mechanism:
        """The mechanism as a ledger holds it: one entry a planned step, so that steps are its.

        A step in which the node takes no part stands there with `SILENT` noise: more than it
        releases, by less than a millionth of what the others do.
        """
        mechanism = self.mechanism(node)
        if self.activity is None:
            return mechanism
        active = self.released(node) or [0]
        if isinstance(mechanism, Scheduled):
            schedule = [SILENT] * self.steps
            for step, multiplier in zip(active, schedule_of(mechanism), strict=True):
                schedule[step] = multiplier
            return mechanism.with_schedule(schedule)
        run = self.node_run(node, range(self.steps))
        taking_part = set(active)
        multipliers = [
            multiplier if step in taking_part else SILENT
            for step, multiplier in enumerate(run.noise_multiplier)
        ]
        return self.config.algorithm.definition.mechanism(
            replace(run, noise_multiplier=multipliers)
        )

    def node_run(self, node: NodePlan, released: Sequence[int]) -> NodeRun:
        """What the algorithm states a node's mechanism and claim from; it must add noise.

        Args:
            node: the node.
            released: steps whose messages it sends.
        """
        config = self.config
        clip = self.clip or (1.0,) * self.steps
        return NodeRun(
            options=config.algorithm.options,
            records=node.records,
            rate=node.rate,
            expected_batch=node.expected_batch,
            sampling=config.train.sampling,
            relation=config.privacy.relation,
            coordinates=self.parameters,
            nodes=len(self.nodes),
            steps=self.steps,
            released=released,
            noise_multiplier=[self.noise_multiplier(node, step) for step in released],
            clip=[clip[step] for step in released],
            delta=node.delta or 0.0,
            constant=config.privacy.published_constant,
            local_steps=self.local_steps,
            disjoint=self.disjoint,
            trust_model=self.trust_model,
        )

    def claimed(
        self, node: NodePlan, steps: int | None = None, delta: float | None = None
    ) -> float | None:
        """What the paper's formula says of the first steps of a node; None without a claim.

        Args:
            node: the node; it must add noise.
            steps: only the first so many; all by default.
            delta: of the claim; by default the node's.
        """
        formula = self.config.algorithm.definition.formula
        if formula is None or not self.accounted or self.clip is None:
            return None
        released = self.released(node, [(0, self.steps if steps is None else steps)])
        run = self.claimed_run(node, released, delta, steps) if released else None
        return formula.epsilon(run) if released else 0.0

    def claimed_run(
        self,
        node: NodePlan,
        released: Sequence[int] | None = None,
        delta: float | None = None,
        completed: int | None = None,
    ) -> Any:
        """What the paper's formula reads of a node; it must add noise and clip.

        Args:
            node: the node.
            released: steps whose messages it sends; all of its own by default.
            delta: of the claim; by default the node's.
            completed: how many steps were made, by this node or not; by default all.
        """
        run = self.node_run(node, self.released(node) or [0] if released is None else released)
        run = replace(run, delta=run.delta if delta is None else delta, completed=completed)
        return self.config.algorithm.definition.claimed_run(run)

    def epsilon(self, node: NodePlan, intervals: Sequence[Interval]) -> float | None:
        """Certified epsilon of a node after the steps of `intervals`; None if not accounted."""
        if not self.accounted or node.delta is None:
            return None
        if not intervals or not self.released(node, intervals):
            return 0.0
        return privacy.epsilon(self.mechanism(node, intervals), delta=node.delta)

    def epsilon_curve(
        self,
        node: NodePlan,
        before: Sequence[Interval],
        first: int,
        evaluation_steps: Sequence[int],
    ) -> tuple[float | None, ...]:
        """Certified epsilon when `before` was released and steps `first..step`, for each step."""
        if not self.accounted or node.delta is None:
            return (None,) * len(evaluation_steps)
        found = [self.epsilon(node, [*before, (first, step)]) or 0.0 for step in evaluation_steps]
        # Epsilon never falls from step to step, so a later bound holds for an earlier step too.
        return tuple(reversed(list(accumulate(reversed(found), min))))

    def digest(self) -> str:
        """Identifies what runs: two plans with one digest release the same mechanism."""
        return hashlib.blake2b(
            json.dumps(self.identity(), sort_keys=True).encode(), digest_size=16
        ).hexdigest()

    def identity(self) -> dict[str, Any]:
        """All that a resumed run must have in common with the first one."""
        options = {"evaluate_every": None, "checkpoint_every": None, "evaluate_records": 1}
        elsewhere = {"device": "cpu", "timeout": 60.0}
        plain = self.config.model_copy(
            update={
                "train": self.config.train.model_copy(update=options | elsewhere),
                "task": self.config.task.model_copy(update={"data_dir": ""}),
                "nodes": self.config.nodes.model_copy(
                    update={
                        "placement": "blocks",
                        "source": None if self.config.nodes.source is None else "{node}",
                    }
                ),
                "faults": self.config.faults.model_copy(update={"slow": (), "tolerate": False}),
                # Where the ledgers of the data lie is free, but not whether there are any.
                "privacy": self.config.privacy.model_copy(
                    update={"ledger": self.config.privacy.ledger and "a folder"}
                ),
            }
        )
        return {
            "experiment": to_toml(plain),
            "parameters": self.parameters,
            "records": [node.records for node in self.nodes],
            "noise_scale": [node.noise_scale for node in self.nodes],
            # A graph file is named in the experiment; what it says may change.
            "mixing": self.mixing.digests(),
        }
