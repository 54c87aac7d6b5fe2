"""Runs the product's own code on neighbouring data, many nodes at once, and keeps what was sent.

A repetition is one node of one run: its noise and coins come from a key of its own, and in the
canaries' problems a node's noised gradients depend on nothing else, so nodes are independent
repetitions whatever the graph does with their messages. The experiment's graph is copied until
the stack is worth a step; sampler, clip, noise, steps, algorithm and weights are the plan's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.algorithms import StepContext
from tacit.analysis.audit.canaries import Problem, linear_model, stack_records
from tacit.analysis.audit.transcript import RecordingExchange, Transcript, noised_gradients
from tacit.communication.exchange import Exchange, InProcessExchange
from tacit.data import StackedData
from tacit.gradients import StackedModel
from tacit.privacy.noise.draws import NodeKeys
from tacit.training.budget import node_keys
from tacit.training.plan import NodePlan, Plan
from tacit.training.prepare import DTYPES

__all__ = ["ContextFactory", "Harness", "Observed", "seeded", "set_up"]

ContextFactory = Callable[[Plan, StackedModel, StackedData, NodeKeys, Exchange], StepContext]
"""What `StackedContext` is called with; an audit of other code puts its own here."""

Array = NDArray[np.float64]
MOST_NODES = 1024
MOST_NUMBERS = 1_000_000  # of node-steps, or of records, in one stack


@dataclass(frozen=True)
class Observed:
    """What an observer worked out of one run.

    Args:
        y: `[steps, nodes, width]`, noised sums over the batch over the noise's deviation.
        inserted: bool `[nodes]`, whether a node held D.
        copies: of the graph; node i of copy c is number `c * (nodes / copies) + i`.
    """

    y: Array
    inserted: NDArray[np.bool_]
    copies: int


@dataclass(frozen=True)
class Harness:
    """An experiment made ready for canaries.

    Args:
        plan: the experiment's.
        steps: how many of its steps are run.
        copies: of its graph.
        model: the linear model.
        exchange: the mixing of all copies together; public, so the observer has it too.
        context: what executes a step.
    """

    plan: Plan
    steps: int
    copies: int
    model: StackedModel
    exchange: InProcessExchange
    context: ContextFactory

    def observe(self, problem: Problem, seed: int) -> Observed:
        """Run once from a seed: each node holds D or D' by a fair coin of the auditor's.

        The coins are independent, so that what the other nodes hold says nothing of a node.
        """
        config, rng = self.plan.config, np.random.default_rng(seed)
        algorithm, options = config.algorithm.definition, config.algorithm.options
        dtype, device = DTYPES[config.train.dtype], torch.device(config.train.device)
        count = self.copies * len(self.plan.nodes)
        inserted = rng.random(count) < 0.5
        plan = self._stacked(problem, inserted, seed)
        data = stack_records(
            problem,
            [node.records for node in self.plan.nodes] * self.copies,
            torch.from_numpy(inserted).to(device),
            max(self.plan.release.clip.bounds or (1.0,)),
            dtype,
            device,
        )

        recorder = RecordingExchange(self.exchange)
        context = self.context(plan, self.model, data, node_keys(plan), recorder)
        start = self.model.start(count, dtype, device)
        state = algorithm.start(start.clone(), options, context)
        for k in range(self.steps):
            state = algorithm.step(state, k, options, context)
        algorithm.mix(state, self.steps, context)  # the last models are released too
        transcript = Transcript(start, recorder.sent, options, self.plan.steps, self.exchange)
        means = noised_gradients(algorithm, transcript).cpu().numpy()
        return Observed(means / self._mean_noise()[:, :, None], inserted, self.copies)

    def _stacked(self, problem: Problem, inserted: NDArray[np.bool_], seed: int) -> Plan:
        """The plan of all copies under seeded noise, without the record that D' lacks."""
        absent = ~inserted if problem.instead is None else np.zeros_like(inserted)
        nodes = tuple(
            replace(
                self.plan.nodes[number % len(self.plan.nodes)],
                node=number,
                records=self.plan.nodes[number % len(self.plan.nodes)].records - int(gone),
            )
            for number, gone in enumerate(absent)
        )
        return replace(seeded(self.plan, seed), nodes=nodes)

    def _mean_noise(self) -> Array:
        """Standard deviation of the noise in the batch mean, `[steps, nodes]`."""
        deviations = [
            [self.plan.release.noise_std(node, k) / node.expected_batch for node in self.plan.nodes]
            for k in range(self.steps)
        ]
        return np.tile(np.asarray(deviations, np.float64), (1, self.copies))


def seeded(plan: Plan, seed: int) -> Plan:
    """The same plan with its noise and coins from a number, and no books, which that rules out."""
    books = dict.fromkeys(("ledger", "ledger_epsilon", "ledger_delta"))
    settings = plan.config.privacy.model_copy(update={**books, "noise_seed": seed})
    return replace(plan, config=plan.config.model_copy(update={"privacy": settings}))


def set_up(plan: Plan, steps: int, repetitions: int, context: ContextFactory) -> Harness:
    """Choose how many copies of the graph one run holds, and lay them out.

    Args:
        plan: the experiment's.
        steps: how many steps to run.
        repetitions: how many nodes are wanted in all.
        context: what executes a step.
    """
    nodes = len(plan.nodes)
    largest = max(_size(node, steps) for node in plan.nodes)
    most = max(1, min(MOST_NODES, MOST_NUMBERS // largest) // nodes)
    copies = min(most, -(-repetitions // nodes))
    train = plan.config.train
    dtype, device = DTYPES[train.dtype], torch.device(train.device)
    together = [weights.repeated(copies) for weights in plan.mixing.weights]
    return Harness(
        plan=plan,
        steps=steps,
        copies=copies,
        model=linear_model(dtype, device),
        exchange=InProcessExchange(together, dtype=dtype, device=device),
        context=context,
    )


def _size(node: NodePlan, steps: int) -> int:
    return max(steps, node.records)
