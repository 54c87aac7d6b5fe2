"""An experiment that can be run over and over, with some of its records exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from tacit.analysis.audit.canaries import exchanged
from tacit.analysis.audit.recorder import ContextFactory, Noised, Trace, run_traced, seeded
from tacit.analysis.audit.records import Candidate
from tacit.data import StackedData
from tacit.training.job import Job
from tacit.training.plan import Plan
from tacit.training.processes.communication import local_exchange


@dataclass(eq=False)
class Bench:
    """An experiment that can be run over and over with some records exchanged.

    The plan is under seeded noise, and the records are numbers in memory of their own.
    """

    job: Job
    plan: Plan
    data: StackedData
    context: ContextFactory
    steps: int

    def run(self, replay: Sequence[Noised] = (), absent: Tensor | None = None) -> Trace:
        """The run, its noise as it was in another one, without the records `absent`."""
        return run_traced(
            self.plan,
            self.job.model,
            self.data,
            local_exchange(replace(self.job, plan=self.plan)),
            context=self.context,
            steps=self.steps,
            replay=replay,
            calls=True,
            absent=absent,
        )

    def with_records(
        self, rows: Tensor, candidate: Candidate, base: Trace, *, absent: bool = False
    ) -> Trace:
        """The run in which the records of these numbers are others, its noise as in `base`.

        With `absent` the records are not there: they are marked by the candidate, and masked.
        """
        marked, units = candidate.inputs if absent else None, self.data.units
        if units is not None:
            made = [candidate.inputs, candidate.targets]
            if absent:
                made = [v.expand(len(rows), units.rule.most, *v.shape) for v in made]
            other = replace(self, data=exchanged(self.data, rows, *made))
            return other.run(base.noise.asked, marked)
        inputs, targets = self.data.stored[rows].clone(), self.data.targets[rows].clone()
        self.data.stored[rows], self.data.targets[rows] = candidate.inputs, candidate.targets
        try:
            return self.run(base.noise.asked, marked)
        finally:
            self.data.stored[rows], self.data.targets[rows] = inputs, targets


def make_bench(job: Job, context: ContextFactory, seed: int, steps: int) -> Bench:
    """An experiment's bench under noise and coins of `seed`, of `steps` of its plan at most."""
    train = job.train
    data = replace(train, stored=train.inputs.clone(), targets=train.targets.clone(), bytes=False)
    plan = seeded(job.plan, seed)
    return Bench(job, plan, data, context, min(steps, plan.steps))


def acting(plan: Plan, step: int, rows: int) -> Sequence[int]:
    """Numbers of the nodes that the rows of a call of the model at a step are.

    None where they are those of no batch: the engine tries its layers out on an example.
    """
    if rows == len(plan.nodes):
        return range(rows)
    flags = plan.release.active(step)
    active = [] if flags is None else [n.node for n in plan.nodes if flags[n.node % len(flags)]]
    return active if len(active) == rows else []
