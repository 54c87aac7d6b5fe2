"""The plan: one frozen object, made before the first step, that everything else derives from.

Sampler, clipping, noise, mechanism, accountant and ledger read the plan; none has parameters of
its own, so that what is accounted cannot differ from what runs. A plan that exceeds a node's
budget is refused here, before anything is sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from tacit import privacy
from tacit.config import Config, to_toml
from tacit.privacy.published import ClaimedRun, Condition
from tacit.topology import Mixing

__all__ = ["Interval", "NodePlan", "Plan"]

Interval = tuple[int, int]


@dataclass(frozen=True)
class NodePlan:
    """What one node does, and what that costs.

    Args:
        node: its number.
        records: J, public.
        rate: q, share of the records that joins a step (1: every record at every step).
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
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before the first step.

    Args:
        config: the experiment.
        parameters: d, trainable parameters of the model.
        nodes: one plan a node.
        clip: clipping bound of each step, `[steps]`; None does not clip.
        noise_shape: relative noise multiplier of each step, `[steps]`, as it runs.
        mixing: the mixing matrices, step by step.
        contraction: factor by which disagreement shrinks a step; the spectral gap is 1 less it.
        warnings: what the user should know, each one line.
    """

    config: Config
    parameters: int
    nodes: tuple[NodePlan, ...]
    clip: tuple[float, ...] | None
    noise_shape: tuple[float, ...]
    mixing: Mixing
    contraction: float
    warnings: tuple[str, ...] = ()

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

    def noise_multiplier(self, node: NodePlan, k: int) -> float:
        """Noise standard deviation of step k over its clipping bound, for the sum over a batch."""
        return node.noise_scale * self.noise_shape[k]

    def noise_std(self, node: NodePlan, k: int) -> float:
        """Noise standard deviation of step k, in the **sum** over the batch."""
        unit = 1.0 if self.clip is None else self.clip[k]
        return self.noise_multiplier(node, k) * unit

    def mechanism(
        self, node: NodePlan, intervals: Iterable[Interval] | None = None
    ) -> privacy.Mechanism:
        """What an observer sees of a node, if the steps of `intervals` are released.

        Args:
            node: the node; it must add noise.
            intervals: (first, until) pairs, repeats allowed; by default every planned step once.
        """
        steps = chain.from_iterable(range(*pair) for pair in intervals or [(0, self.steps)])
        multipliers = [self.noise_multiplier(node, step) for step in steps]
        relation, d = self.config.privacy.relation, self.parameters
        if node.rate == 1:
            return privacy.Gaussian(multipliers, relation=relation, coordinates=d)
        if self.config.train.sampling == "fixed":
            batch = int(node.expected_batch)
            return privacy.FixedBatchGaussian(batch, node.records, multipliers, coordinates=d)
        return privacy.SampledGaussian(node.rate, multipliers, relation=relation, coordinates=d)

    def claimed(self, node: NodePlan, steps: int) -> float | None:
        """What the paper's formula says of the first steps of a node; None without a claim."""
        formula = self.config.algorithm.definition.formula
        if formula is None or not self.accounted:
            return None
        return formula.epsilon(self.claimed_run(node, steps)) if steps else 0.0

    def claimed_run(self, node: NodePlan, steps: int | None = None) -> ClaimedRun:
        """What the paper's formula reads of a node; it must add noise and clip.

        Args:
            node: the node.
            steps: only the first so many; all by default.
        """
        count = self.steps if steps is None else steps
        stds = [self.noise_std(node, k) / node.expected_batch for k in range(count)]
        return ClaimedRun(
            records=node.records,
            clip=(self.clip or ())[:count],
            noise_std=stds,
            expected_batch=node.expected_batch,
            delta=node.delta or 0.0,
            constant=self.config.privacy.published_constant,
        )

    def epsilon(self, node: NodePlan, intervals: Sequence[Interval]) -> float | None:
        """Certified epsilon of a node after the steps of `intervals`; None if not accounted."""
        if not self.accounted or node.delta is None:
            return None
        if all(first >= until for first, until in intervals):
            return 0.0
        return privacy.epsilon(self.mechanism(node, intervals), delta=node.delta)

    def epsilon_curve(
        self, node: NodePlan, before: Sequence[Interval], first: int, marks: Sequence[int]
    ) -> tuple[float | None, ...]:
        """Certified epsilon when `before` was released and steps `first..mark`, for each mark."""
        if not self.accounted or node.delta is None:
            return (None,) * len(marks)
        spent = sum(until - start for start, until in before)
        mechanism = self.mechanism(node, [*before, (first, marks[-1])])
        counts = [spent + mark - first for mark in marks]
        return privacy.epsilon_curve(mechanism, counts, delta=node.delta)

    def digest(self) -> str:
        """Identifies what runs: two plans with one digest release the same mechanism."""
        return hashlib.blake2b(
            json.dumps(self.identity(), sort_keys=True).encode(), digest_size=16
        ).hexdigest()

    def identity(self) -> dict[str, Any]:
        """All that a resumed run must have in common with the first one."""
        options = {"evaluate_every": None, "checkpoint_every": None, "evaluate_records": 1}
        plain = self.config.model_copy(
            update={
                "train": self.config.train.model_copy(update={**options, "device": "cpu"}),
                "task": self.config.task.model_copy(update={"data_dir": ""}),
            }
        )
        return {
            "experiment": to_toml(plain),
            "parameters": self.parameters,
            "records": [node.records for node in self.nodes],
            "noise_scale": [node.noise_scale for node in self.nodes],
            # A graph file is named in the experiment; what it says may change.
            "mixing": [
                hashlib.blake2b(matrix.tobytes(), digest_size=16).hexdigest()
                for matrix in self.mixing.matrices
            ],
        }
