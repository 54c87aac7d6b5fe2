"""Variance-reduced gradients as plain NumPy loops over nodes, records and stored gradients."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import recursion_oracle as oracle
from recursion_runs import drawn_in

Array = oracle.Array


def shortened(vector, bound):
    """Scaled down to l2 norm `bound` if it is longer."""
    norm = float(np.sqrt((vector**2).sum()))
    return vector if bound is None or norm <= bound else vector * (bound / norm)


@dataclass
class Estimator:
    """The gradients of all nodes, and what they remember.

    Args:
        task: what is trained.
        plan: of the run, for the coins and the batch sizes.
        clip: C, or None.
        difference: C_d, or None.
        every: steps between anchors or snapshots; None keeps a table.
        group: records of one entry of the table.
    """

    task: oracle.Problem
    plan: Any
    clip: float | None
    difference: float | None = None
    every: int | None = None
    group: int | None = None
    stored: dict[tuple[int, int], Array] = field(default_factory=dict)
    point: dict[int, Array] = field(default_factory=dict)

    def __post_init__(self):
        self.drawn = drawn_in(self.plan, self.group)
        for node in range(len(self.task.nodes)):
            for entry in range(self.entries(node)):
                self.stored[node, entry] = self.entry(node, entry, self.task.start)

    def records(self, node):
        return len(self.task.nodes[node][0])

    def entries(self, node):
        return -(-self.records(node) // (self.group or 1))

    def gradient(self, node, record, at):
        inputs, targets = (values.numpy()[[record]] for values in self.task.nodes[node])
        return shortened(self.task.gradients(at, inputs, targets)[0], self.clip)

    def entry(self, node, entry, at):
        size = self.group or 1
        members = range(entry * size, min((entry + 1) * size, self.records(node)))
        return np.sum([self.gradient(node, record, at) for record in members], axis=0)

    def __call__(self, node, at, k):
        """The estimate of step k at `at`, without noise."""
        mean = self.by_table(node, at, k) if self.every is None else self.by_anchor(node, at, k)
        return mean * oracle.weight(self.task, node)

    def by_table(self, node, at, k):
        plan = self.plan.nodes[node]
        all_old = np.sum([self.stored[node, entry] for entry in range(self.entries(node))], axis=0)
        total = plan.expected_batch / plan.records * all_old
        for entry in self.drawn(k, node):
            new = self.entry(node, entry, at)
            total = total + shortened(new - self.stored[node, entry], self.difference)
            self.stored[node, entry] = new
        return total / plan.expected_batch

    def by_anchor(self, node, at, k):
        assert self.every is not None
        if k % self.every == 0:
            self.point[node] = at
        there, count = self.point[node], self.records(node)
        mean = np.sum([self.gradient(node, j, there) for j in range(count)], axis=0) / count
        if k % self.every == 0:
            return mean
        total = np.zeros_like(at)
        for record in self.drawn(k, node):
            moved = self.gradient(node, record, at) - self.gradient(node, record, there)
            total = total + shortened(moved, self.difference)
        return mean + total / self.plan.nodes[node].expected_batch


def estimator(result, task, options):
    """For the options of a run."""
    table = result.plan.config.algorithm.definition.table(result.plan.config.algorithm.options)
    every = result.plan.config.algorithm.options
    return Estimator(
        task,
        result.plan,
        options.get("clip"),
        options.get("clip_difference"),
        None if table is not None else every.anchor_every,
        None if table is None else table.mini_batch,
    )
