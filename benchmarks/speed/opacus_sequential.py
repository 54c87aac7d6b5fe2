"""Nodes one after the other in one process, each step by Opacus; runs without tacit.

One module serves all nodes: its parameters are pointed at the node's row of the stacked vectors.
Batches are gathered by index: no data loader, whose cost is left out in Opacus' favour. Mixing is
one gather over the stacked vectors.

What is taken is the fastest of Opacus' documented ways for these layers, per-sample gradients by
hooks (`GradSampleModule`) and ghost clipping (`GradSampleModuleFastGradientClipping`), each with
one thread and with all: measured at start on the workload itself, and named in the notes.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import opacus
import torch
from numpy.typing import NDArray
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
    GradSampleModuleFastGradientClipping,
)
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import Tensor, nn
from workloads import Workload, records_of

from models import model_of

TRIALS = 3


@dataclass(frozen=True)
class _Way:
    """Opacus' three parts: the module that clips, the loss to call, the optimizer that noises."""

    module: nn.Module
    loss: Callable[[Tensor, Tensor], Any]
    optimizer: DPOptimizer


def _hooks(workload: Workload) -> _Way:
    module = GradSampleModule(model_of(workload))
    optimizer = DPOptimizer(_sgd(module, workload), **_bounds(workload))
    return _Way(module, nn.CrossEntropyLoss(), optimizer)


def _ghost(workload: Workload) -> _Way:
    module = GradSampleModuleFastGradientClipping(
        model_of(workload), max_grad_norm=workload.clip, use_ghost_clipping=True
    )
    optimizer = DPOptimizerFastGradientClipping(_sgd(module, workload), **_bounds(workload))
    return _Way(
        module, DPLossFastGradientClipping(module, optimizer, nn.CrossEntropyLoss()), optimizer
    )


_WAYS = {"hooks": _hooks, "ghost": _ghost}


def _sgd(module: nn.Module, workload: Workload) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=workload.learning_rate)


def _bounds(workload: Workload) -> dict[str, float]:
    assert workload.clip is not None, "Opacus always clips"
    return {
        "noise_multiplier": workload.noise / workload.clip,
        "max_grad_norm": workload.clip,
        "expected_batch_size": workload.batch,
    }


class _Sequential:
    """Nodes in sequence."""

    def __init__(self, workload: Workload, way: str | None, threads: int | None) -> None:
        self._workload = workload
        records = records_of(workload)
        self._inputs, self._labels = (
            torch.from_numpy(part) for part in (records.inputs, records.labels)
        )
        self._agreed = torch.from_numpy(records.batch(workload, 0))
        start = torch.cat([p.detach().flatten() for p in model_of(workload).parameters()])
        torch.seed()
        self._start = start
        self._x = start.repeat(workload.nodes, 1)
        self._z = self._x.clone()
        self._w = torch.ones(workload.nodes)
        self._k = 0
        self._seconds: dict[tuple[str, int], float] = {}
        everything = os.cpu_count() or 1
        self._choose([way] if way else list(_WAYS), [threads] if threads else [1, everything])

    def _choose(self, ways: list[str], threads: list[int]) -> None:
        built = {way: _WAYS[way](self._workload) for way in ways}
        candidates = [(way, count) for way in ways for count in dict.fromkeys(threads)]
        for _ in range(TRIALS if len(candidates) > 1 else 0):
            for way, count in candidates:
                self._take(built[way], count)
                begin = time.perf_counter()
                self.run(1)
                taken = time.perf_counter() - begin
                self._seconds[way, count] = min(taken, self._seconds.get((way, count), math.inf))
        best = min(candidates, key=lambda candidate: self._seconds.get(candidate, 0.0))
        self._name, self._threads = best
        self._take(built[best[0]], best[1])

    def _take(self, way: _Way, threads: int) -> None:
        torch.set_num_threads(threads)
        self._way = way
        self._parameters = list(way.module.parameters())
        self._x_views, self._z_views = self._views(self._x), self._views(self._z)

    def _views(self, stacked: Tensor) -> list[list[Tensor]]:
        sizes = [parameter.numel() for parameter in self._parameters]
        return [
            [part.view_as(p) for part, p in zip(row.split(sizes), self._parameters, strict=True)]
            for row in stacked
        ]

    def _gradients(self, node: int, rows: Tensor, at: list[Tensor]) -> list[Tensor]:
        """What Opacus puts into `grad`: the mean over the batch of clipped gradients, noised."""
        way = self._way
        for parameter, values in zip(self._parameters, at, strict=True):
            parameter.data = values
        way.optimizer.zero_grad(set_to_none=True)
        outputs = way.module(self._inputs[node][rows])
        way.loss(outputs, self._labels[node][rows]).backward()
        way.optimizer.pre_step()
        return [parameter.grad for parameter in self._parameters]

    def run(self, steps: int) -> None:
        """See `contender.Runner`."""
        workload = self._workload
        hops = max(1, math.ceil(math.log2(workload.nodes)))
        for _ in range(steps):
            for node in range(workload.nodes):
                rows = torch.randperm(workload.records)[: workload.batch]
                gradients = self._gradients(node, rows, self._z_views[node])
                with torch.no_grad():
                    torch._foreach_add_(
                        self._x_views[node], gradients, alpha=-workload.learning_rate
                    )
            senders = (torch.arange(workload.nodes) - (1 << self._k % hops)) % workload.nodes
            self._x.add_(self._x[senders]).mul_(0.5)
            self._w = (self._w + self._w[senders]) / 2
            torch.div(self._x, self._w[:, None], out=self._z)
            self._k += 1

    def check(self) -> NDArray[np.float32]:
        """See `contender.Runner`."""
        workload, optimizer = self._workload, self._way.optimizer
        at = self._views(self._start[None])[0]
        multiplier, optimizer.noise_multiplier = optimizer.noise_multiplier, 0.0
        sums = [
            torch.cat([part.flatten() for part in self._gradients(node, rows, at)])
            for node, rows in enumerate(self._agreed)
        ]
        optimizer.noise_multiplier = multiplier
        found: NDArray[np.float32] = (torch.stack(sums) * workload.batch).detach().numpy()
        return found

    def notes(self) -> Mapping[str, Any]:
        """See `contender.Runner`."""
        tried = {f"{way}, {n} threads": round(s, 5) for (way, n), s in self._seconds.items()}
        return {
            "opacus": opacus.__version__,
            "torch": torch.__version__,
            "way": self._name,
            "threads": self._threads,
            "seconds a step, tried": tried,
        }

    def close(self) -> None:
        """See `contender.Runner`."""


def build(workload: Workload, way: str | None = None, threads: int | None = None) -> _Sequential:
    """See `contender`; `way` (`hooks`, `ghost`) and `threads` are measured where left out."""
    warnings.filterwarnings("ignore", module="opacus")
    return _Sequential(workload, way, threads)
