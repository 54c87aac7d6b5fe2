"""Defects of the kind that leak, planted by replacing the code that executes a step."""

from dataclasses import replace

import torch
from torch import nn

from tacit.analysis.audit.attacks import choose_target, worst_cases
from tacit.config import load_config
from tacit.privacy.noise.draws import NodeKeys
from tacit.training.prepare import prepare
from tacit.training.stacked_context import StackedContext

NODES = 8


def job_of(*, records=40, nodes=NODES, algorithm=None, privacy=None, topology=None, **train):
    """An experiment on records that do not matter: an audit brings its own."""
    config = load_config(
        {
            "task": {"loss": "mse"},
            "topology": topology or {},
            "algorithm": {"name": "privsgp", **(algorithm or {})},
            "privacy": {"epsilon": 1.0, "delta": 1e-3, **(privacy or {})},
            "train": {"steps": 6, "batch": 10, **train},
        },
        count=nodes,
        given_model=True,
    )
    data = (torch.zeros(records, 1), torch.zeros(records, 1))
    return prepare(config, model=nn.Linear(1, 1), nodes=[data] * nodes)


def attacked(job, options, context=StackedContext):
    """What the attacks of an audit prove, without its tests of fidelity, and what is certified."""
    target = choose_target(job.plan, options)
    attacks, *_ = worst_cases(job.plan, target, options, context, lambda what, done, of: None)
    return attacks, target.certificate[target.delta]


class NoiseHalved(StackedContext):
    """Half of the noise that the plan says."""

    def add_noise(self, total, k, *, scale=1.0, part=0):
        return super().add_noise(total, k, scale=0.5 * scale, part=part)


class ClippedAfterAveraging(StackedContext):
    """The mean over the batch is clipped, not each record's gradient."""

    def batch_gradient(self, at, k, **options):
        inputs, targets, mask, indices = self._batch(k, 0, False, None, self._plan.nodes)
        bound = self._plan.release.clip.bound(k)
        assert bound is not None
        gradients = self._model.gradient(at, inputs, targets, mask, None)
        self._seen.keep(gradients, mask, indices, self._plan.nodes)
        mean = gradients.total / self.batch_size
        norm = mean.norm(dim=1, keepdim=True)
        return mean * (bound / norm).clamp(max=1).nan_to_num(1.0) * self.batch_size


class RealisedBatch(StackedContext):
    """Sums are divided by how many records were drawn."""

    def divide(self, total):
        assert self.last_mask is not None
        return total.div_(self.last_mask.sum(1, keepdim=True).clamp(min=1))


class NoiseReused(StackedContext):
    """Every step adds the normals of step 0."""

    def add_noise(self, total, k, *, scale=1.0, part=0):
        return _with_noise(self, total, k, step=0, shift=0, scale=scale)


class NoiseReusedInPairs(StackedContext):
    """Steps 2 m and 2 m + 1 add the same normals."""

    def add_noise(self, total, k, *, scale=1.0, part=0):
        return _with_noise(self, total, k, step=k - k % 2, shift=0, scale=scale)


class NeighboursNoise(StackedContext):
    """Every node with an odd number draws the noise of the node before it."""

    def add_noise(self, total, k, *, scale=1.0, part=0):
        return _with_noise(self, total, k, step=k, shift=1, scale=scale)


class NeighboursKey(StackedContext):
    """Every node with an odd number uses the key of the node before it, for coins as well."""

    def __init__(self, plan, model, data, keys, exchange):
        shared = {node: keys.secret[node - node % 2] for node in keys.nodes}
        super().__init__(plan, model, data, NodeKeys(shared, seeded=True), exchange)


class Unclipped(StackedContext):
    """No clipping at all."""

    def batch_gradient(self, at, k, **options):
        inputs, targets, mask, indices = self._batch(k, 0, False, None, self._plan.nodes)
        gradients = self._model.gradient(at, inputs, targets, mask, None)
        self._seen.keep(gradients, mask, indices, self._plan.nodes)
        return gradients.total


class EveryRecord(StackedContext):
    """Every record joins every step, whatever the sampling rate."""

    def __init__(self, plan, *others):
        whole = tuple(replace(node, rate=1.0) for node in plan.nodes)
        super().__init__(replace(plan, nodes=whole), *others)


class NoiseOfTheMean(StackedContext):
    """A batch mean's noise, added to the sum: too little by the size of the batch."""

    def add_noise(self, total, k, *, scale=1.0, part=0):
        return super().add_noise(total, k, scale=scale / self.batch_size.double(), part=part)


def _with_noise(context, total, k, *, step, shift, scale):
    """The planned noise from other coins; for experiments in which everyone takes part."""
    plan = context._plan
    sources = [node.node - shift * (node.node % 2) for node in plan.nodes]
    factors = torch.as_tensor(scale, dtype=torch.float64).expand(len(total), 1)[:, 0].tolist()
    stds = [
        plan.release.noise_std(node, k) * factor
        for node, factor in zip(plan.nodes, factors, strict=True)
    ]
    return context._noise.add(total, stds, context._keys, sources, step, part=0)
