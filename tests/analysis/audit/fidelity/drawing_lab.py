"""A laboratory for tests of who is drawn, and defects of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from tacit.analysis.audit.fidelity.sampling import sampling_findings
from tacit.analysis.audit.laboratory import REPLACED, linear_model, set_up, stack_records
from tacit.analysis.audit.recorder import run_traced, seeded
from tacit.config import load_config
from tacit.privacy.noise import draws
from tacit.training import sampling
from tacit.training.job import DTYPES
from tacit.training.prepare import prepare
from tacit.training.stacked_context import StackedContext

FIXED: Mapping[str, Any] = {
    "train": {"sampling": "fixed"},
    "privacy": {"relation": "replace-one"},
}
ALLOCATION: Mapping[str, Any] = {"train": {"sampling": "allocation"}}
STEPS = 8


def drawing_job(
    algorithm=None,
    *,
    records=(20,) * 4,
    privacy=None,
    train=None,
):
    """An experiment whose batches hold a quarter of the records, which do not matter."""
    config = load_config(
        {
            "task": {"loss": "mse"},
            "algorithm": {"name": "privsgp", **(algorithm or {})},
            "privacy": {"noise_std": 1.0, "delta": 1e-3, **(privacy or {})},
            "train": {"steps": STEPS, "batch": 5, **(train or {})},
        },
        count=len(records),
        given_model=True,
    )
    data = [(torch.zeros(count, 1), torch.zeros(count, 1)) for count in records]
    return prepare(config, model=nn.Linear(1, 1), nodes=data)


def findings_of(traces):
    """Of all tests, by name."""
    return {finding.name: finding for finding in sampling_findings(traces)}


def observe(job, context=StackedContext, *, nodes=64, runs=2, steps=None, absent=False, seed=1):
    """Run the plan on a graph that is copied; with `absent`, every other node lacks a record."""
    lab = set_up(job.plan, steps or job.plan.steps, nodes, context)
    count = lab.copies * len(job.plan.nodes)
    own = [job.plan.nodes[node % len(job.plan.nodes)] for node in range(count)]
    records = [node.records for node in own]
    there = torch.tensor([not (absent and number % 2) for number in range(count)])
    stacked = tuple(
        replace(node, node=number, records=node.records - int(not there[number]))
        for number, node in enumerate(own)
    )
    train = job.config.train
    dtype, device = DTYPES[train.dtype], torch.device(train.device)
    data = stack_records(replace(REPLACED, instead=None), records, there, 1.0, dtype, device)
    plans = [replace(seeded(job.plan, seed + run), nodes=stacked) for run in range(runs)]
    return [
        run_traced(
            plan, linear_model(dtype, device), data, lab.exchange, context=context, steps=lab.steps
        )
        for plan in plans
    ]


class Redrawn(StackedContext):
    """Batches that are drawn as they should be, and then changed by `choose`."""

    def choose(self, k, part, node, fair):
        """Who joins, where `fair` should."""
        return fair

    def _batch(self, k, part, whole, rows, nodes):
        inputs, targets, mask, indices = super()._batch(k, part, whole, rows, nodes)
        if whole:
            return inputs, targets, mask, indices
        drawn = [
            np.array(sorted(self.choose(k, part, node, own[kept].tolist())), np.int64)
            for node, own, kept in zip(nodes, indices, mask, strict=True)
        ]
        batch = sampling._padded(drawn, self._device)
        places = self._places if rows is None else rows
        return (*self._data.gather(batch.indices, places), batch.mask, batch.indices)


class SameParts(StackedContext):
    """Every part of a step uses the coins of the first."""

    def _batch(self, k, part, *rest):
        return super()._batch(k, 0, *rest)


class InPairs(Redrawn):
    """A record with an odd number joins whenever the one before it does."""

    def choose(self, k, part, node, fair):
        even = [record for record in fair if record % 2 == 0]
        return even + [record + 1 for record in even if record + 1 < node.records]


class LastIsDropped(Redrawn):
    """The last record never joins; of a batch of fixed size another one does."""

    def choose(self, k, part, node, fair):
        last = node.records - 1
        if last not in fair:
            return fair
        rest = [record for record in fair if record != last]
        if self._plan.config.train.sampling == "poisson":
            return rest
        return [*rest, next(record for record in range(last) if record not in rest)]


class ForeignRecords(Redrawn):
    """Node 3 reads, once, from where the next node's records begin."""

    def choose(self, k, part, node, fair):
        return [*fair[1:], node.records] if (node.node, k) == (3, 2) else fair


class RecordTwice(Redrawn):
    """Node 3 draws one record twice, once."""

    def choose(self, k, part, node, fair):
        return [*fair[1:], fair[1]] if (node.node, k) == (3, 2) else fair


class SharedParts(Redrawn):
    """A record of the first part of a step is put into the second, once."""

    def choose(self, k, part, node, fair):
        if (node.node, k) != (3, 2):
            return fair
        if part == 0:
            self.first = fair
        return [*fair[1:], self.first[0]] if part else fair


class NotDealt(Redrawn):
    """The records of a step are divided among its parts in their order, and not at random."""

    def choose(self, k, part, node, fair):
        if part == 0:
            batches = sampling.disjoint_batches(
                self._plan, self._keys, k, self._device, nodes=[node]
            )
            parts = range(self._plan.release.local_steps)
            every = [own.indices[own.mask] for own in map(batches.batch, parts)]
            self.left = getattr(self, "left", {}) | {node.node: torch.cat(every).sort()[0].tolist()}
        own, self.left[node.node] = (
            self.left[node.node][: len(fair)],
            self.left[node.node][len(fair) :],
        )
        return own


class WithoutTheLast(StackedContext):
    """A sum over every record leaves out the last one of the longest nodes."""

    def _batch(self, k, part, whole, *rest):
        inputs, targets, mask, indices = super()._batch(k, part, whole, *rest)
        if whole:
            mask = mask.clone()
            mask[:, -1] = False
        return inputs, targets, mask, indices


class AtRate(StackedContext):
    """Coins of another rate than the planned one, `rate`."""

    rate_of_coins: float

    def __init__(self, plan, *others):
        other = tuple(replace(node, rate=self.rate_of_coins) for node in plan.nodes)
        super().__init__(replace(plan, nodes=other), *others)


class Sometimes(Redrawn):
    """A defect that befalls each batch with the chance `share`, of coins of its own."""

    share: float

    def befalls(self, k, node, number=0):
        """Whether this batch, or this record of it."""
        fell = draws.coins(self._keys, node.node, "defect", k, number + 1, self.share)
        return bool(fell[number])

    def fair_at(self, k, node):
        """What should have been drawn at another step."""
        batch = sampling.draw(self._plan, self._keys, k, self._device, nodes=[node])
        own: list[int] = batch.indices[batch.mask].tolist()
        return own


class StepsRepeated(Sometimes):
    """Some batches use the coins of the step before."""

    def choose(self, k, part, node, fair):
        source = k
        while source and self.befalls(source, node):
            source -= 1
        return self.fair_at(source, node)


class SometimesFixed(Sometimes):
    """Some batches are of one size, where coins are planned."""

    def choose(self, k, part, node, fair):
        if not self.befalls(k, node):
            return fair
        size = int(node.expected_batch)
        return draws.subset(self._keys, node.node, "other", k, node.records, size).tolist()


class OneFavoured(Sometimes):
    """Record 4 of every node is drawn with the chance `share`."""

    def choose(self, k, part, node, fair):
        rest = [record for record in fair if record != 4]
        return [*rest, 4] if self.befalls(k, node) else rest
