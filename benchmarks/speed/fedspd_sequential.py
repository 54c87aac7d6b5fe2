"""FedSPD-DP with clients one after the other, in plain PyTorch: the same arithmetic as tacit's.

What a good PyTorch user would write. Three ways to a client's sum of clipped record gradients:

- `closed`, the default: a linear model with the logistic loss, its gradient, norm and clipped sum
  in closed form. Nothing of it carries over to another model.
- `autograd`: any loss of a linear layer; torch differentiates the loss, and norms come from the
  layer's inputs and its output gradients (no gradient of one record is ever held). Takes some 3
  times as long on Adult.
- `vmap`: any model; `torch.func.vmap(grad(...))` gives every record's gradient. Some 12 times.

Noise is `torch.randn`, mini-batches are cut from one `torch.randperm` a client, messages lie in one
tensor. `build` tries its way on one thread and on all of them, and keeps the faster; `threads`
chooses.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from adult import FEDSPD_OPTIONS, clients_of
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional
from workloads import Workload

from models import model_of

TRIAL_ROUNDS = 10

ClippedSum = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]


def _closed(x: Tensor, inputs: Tensor, labels: Tensor, norms: Tensor, clip: float) -> Tensor:
    """With s = <x, input>, a record's gradient is (sigmoid(s) - label) input."""
    slopes = torch.sigmoid(torch.mv(inputs, x)).sub_(labels)
    # |slope| norm <= C once the slope is cut to +- C / norm.
    bound = clip / norms
    return torch.mv(inputs.t(), torch.clamp(slopes, -bound, bound))


def _autograd(x: Tensor, inputs: Tensor, labels: Tensor, norms: Tensor, clip: float) -> Tensor:
    outputs = torch.mv(inputs, x).requires_grad_()
    loss = functional.binary_cross_entropy_with_logits(outputs, labels, reduction="sum")
    (slopes,) = torch.autograd.grad(loss, outputs)
    factors = (clip / (slopes.abs() * norms)).clamp_(max=1.0)
    return torch.einsum("b,bd->d", slopes * factors, inputs)


def _one_loss(x: Tensor, record: Tensor, label: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(record @ x, label)


_record_gradients = vmap(grad(_one_loss), in_dims=(None, 0, 0))


def _vmap(x: Tensor, inputs: Tensor, labels: Tensor, norms: Tensor, clip: float) -> Tensor:
    gradients = _record_gradients(x, inputs, labels)
    factors = (clip / gradients.norm(dim=1)).clamp_(max=1.0)
    return factors @ gradients


WAYS: Mapping[str, ClippedSum] = {"closed": _closed, "autograd": _autograd, "vmap": _vmap}


class _Sequential:
    """Server and clients; see `tacit.algorithms.fedspd_dp` for the recursion and its symbols."""

    def __init__(self, workload: Workload, way: str, threads: int | None) -> None:
        assert workload.clip is not None
        assert workload.active is not None
        self._workload, self._way, self._clipped_sum = workload, way, WAYS[way]
        records = clients_of(workload)
        inputs = torch.from_numpy(records.inputs).flatten(2)
        # A bias is the weight of a feature that is always 1: the order of `module.parameters()`.
        self._inputs = torch.cat([inputs, torch.ones_like(inputs[..., :1])], dim=2).contiguous()
        self._labels = torch.from_numpy(records.labels).float()
        self._norms = self._inputs.norm(dim=2)
        self._start = torch.nn.utils.parameters_to_vector(model_of(workload).parameters()).detach()
        self._rho = float(FEDSPD_OPTIONS["penalty"])
        self._gamma = float(FEDSPD_OPTIONS["inverse_step"])
        self._threshold = FEDSPD_OPTIONS["regularisation"] / (self._gamma + self._rho)
        self._noise = workload.noise / (workload.batch * (self._gamma + self._rho))
        self._begin()
        torch.set_num_threads(threads or self._best_threads())

    def _begin(self) -> None:
        """Everyone at x^0, no duals."""
        self._messages = self._start.repeat(self._workload.nodes, 1)
        self._duals = torch.zeros_like(self._messages)
        self._server = self._start.clone()

    def _best_threads(self) -> int:
        seconds = {}
        for threads in {1, os.cpu_count() or 1}:
            torch.set_num_threads(threads)
            self.run(1)
            begun = time.perf_counter()
            self.run(TRIAL_ROUNDS)
            seconds[threads] = time.perf_counter() - begun
        self._begin()
        return min(seconds, key=lambda threads: seconds[threads])

    def _local(self, client: int, chosen: Tensor) -> Tensor:
        """Mean of the client's Q inner iterates, over batches cut from `chosen`."""
        batch, divisor = self._workload.batch, self._gamma + self._rho
        inputs, labels = self._inputs[client, chosen], self._labels[client, chosen]
        norms = self._norms[client, chosen]
        pull = self._server.mul(self._rho).add_(self._duals[client])
        x, average = self._server, torch.zeros_like(self._server)
        for at in range(0, len(chosen), batch):
            cut = slice(at, at + batch)
            total = self._clipped_sum(
                x, inputs[cut], labels[cut], norms[cut], self._workload.clip or 0.0
            )
            moved = torch.add(pull, x, alpha=self._gamma).sub_(total, alpha=1 / batch)
            x = functional.softshrink(moved.div_(divisor), self._threshold)
            average += x
        return average.div_(self._workload.local_steps)

    def _round(self, active: list[int], chosen: Callable[[], Tensor], noise: float) -> None:
        for client in active:
            released = self._local(client, chosen())
            if noise:
                released.add_(torch.randn_like(released), alpha=noise)
            self._duals[client].add_(self._server - released, alpha=self._rho)
            torch.sub(
                released, self._duals[client], alpha=1 / self._rho, out=self._messages[client]
            )
        self._server = self._messages.mean(0)

    def run(self, steps: int) -> None:
        """See `contender.Runner`."""
        workload = self._workload
        drawn = workload.local_steps * workload.batch
        for _ in range(steps):
            active = torch.randperm(workload.nodes)[: workload.active].tolist()
            self._round(active, lambda: torch.randperm(workload.records)[:drawn], self._noise)

    def check(self) -> NDArray[np.float32]:
        """See `contender.Runner`: what the first clients send in round one."""
        workload, state = self._workload, (self._messages, self._duals, self._server)
        self._begin()
        first = torch.arange(workload.local_steps * workload.batch)
        self._round(list(range(workload.active or 0)), lambda: first, 0.0)
        sent: NDArray[np.float32] = self._messages[: workload.active].numpy().copy()
        self._messages, self._duals, self._server = state
        return sent

    def notes(self) -> Mapping[str, Any]:
        """See `contender.Runner`."""
        return {
            "torch": torch.__version__,
            "way": self._way,
            "threads": torch.get_num_threads(),
            "d": len(self._start),
        }

    def close(self) -> None:
        """Nothing was started."""


def build(workload: Workload, way: str = "closed", threads: int | None = None) -> _Sequential:
    """See `contender`; `way` is a key of `WAYS`, `threads` PyTorch's, by default the faster."""
    return _Sequential(workload, way, threads)
