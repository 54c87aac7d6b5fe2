"""How slow a run will be whose model is differentiated one record at a time: tried out beforehand.

Measured on a few records that are public or drawn, at the start of the module, never on private
ones: two batches of different size tell what a call costs and what a record adds. It is a forecast
and no promise, since the machine may be busier or less busy later (`benchmarks/slow_path.py`
compares it with runs).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from tacit.gradients import StackedModel, record_coins

_SIZES = (4, 20)  # records of each of two nodes
_NODES = 2
_ROUNDS = 2
_WORTH_A_WARNING = 1.5
_REMEDY = (
    "the fast layers are Linear, Conv1d, Conv2d, PReLU, Embedding, EmbeddingBag, and the norms of "
    "groups, layers, instances and RMS, each called once, and LSTM, GRU and RNN after tacit.fix: "
    "replace the others, or freeze them (requires_grad = False)"
)


@dataclass(frozen=True)
class Cost:
    """Seconds of a call, and of each record in it."""

    call: float
    record: float


@dataclass(frozen=True)
class SlowPath:
    """What the gradients of batches of made-up records took.

    Args:
        reason: why no faster way is open.
        own: of clipped gradients, one record at a time.
        plain: of a forward and backward pass of PyTorch over a batch.
        at_once: records that fit the memory bound in one call.
    """

    reason: str
    own: Cost
    plain: Cost
    at_once: int

    def note(self) -> str:
        """Which way the gradients go, and why: one line for the plan."""
        return f"gradients are computed one record at a time (torch.func), because {self.reason}"

    def seconds(self, batches: Sequence[float]) -> float:
        """The forecast for one batch of so many records of each node."""
        records = sum(batches)
        return math.ceil(records / self.at_once) * self.own.call + records * self.own.record

    def ratio(self, batches: Sequence[float]) -> float:
        """That over what plain PyTorch takes, node after node."""
        plain = len(batches) * self.plain.call + sum(batches) * self.plain.record
        return self.seconds(batches) / plain

    def warning(self, batches: Sequence[float], times: int = 1) -> str | None:
        """What it costs in a step of `times` such batches; None where that is little."""
        ratio = self.ratio(batches)
        if ratio < _WORTH_A_WARNING:
            return None
        return (
            f"this model is slow to train: the gradients of a step take about "
            f"{times * self.seconds(batches):.2g} s on this machine, {ratio:.2g} times as long as "
            f"plain PyTorch takes for as many records, because {self.reason}; {_REMEDY}"
        )


def slow_path(
    model: StackedModel, inputs: Tensor, targets: Tensor, dtype: torch.dtype
) -> SlowPath | None:
    """Try out what gradients cost, of a model whose path is `functional`; None of any other.

    `inputs` `[few, ...]` and `targets` are of records that are not private, on the run's device.
    """
    if model.path != "functional":
        return None
    at = model.start(_NODES, dtype, inputs.device)
    at_once = _NODES * model.records_at_once(at)
    views = 1 if model.augmentation is None else model.augmentation.views
    of_record = () if model.unit_rows is None else (model.unit_rows,)

    def some(*shape: int) -> tuple[Tensor, Tensor]:
        rows = torch.arange(math.prod(shape), device=inputs.device)
        chosen = inputs[rows % len(inputs)], targets[rows % len(targets)]
        first, second = (values.view(*shape, *values.shape[1:]) for values in chosen)
        return first, second

    def own(count: int) -> Tensor:
        rows = torch.arange(count, device=inputs.device)
        coins = record_coins(0, 0, 0, rows[:_NODES], rows.expand(_NODES, -1))
        mask = torch.ones(_NODES, count, dtype=torch.bool, device=inputs.device)
        records = some(*mask.shape, *of_record)
        shares = at.new_ones(*mask.shape, *of_record) if of_record else None
        return model.gradient(at, *records, mask, 1.0, coins=coins, shares=shares).total

    def plain(count: int) -> Tensor:
        return _plain(model, at[0], *some(_NODES * count * views * math.prod(of_record)))

    most = max(_NODES, min(_SIZES[1], at_once // _NODES))  # else what is cut is two calls
    sizes = min(_SIZES[0], most // 2), most
    return SlowPath(model.reason, _cost(own, sizes), _cost(plain, sizes), at_once)


def _cost(work: Callable[[int], Tensor], sizes: tuple[int, int]) -> Cost:
    """What a call and a record cost, by batches of so many records of each node.

    The shortest time of a few counts, after one that does not.
    """
    seconds = []
    for count in sizes:
        work(count)
        times = []
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            work(count).sum().item()  # waits for an accelerator
            times.append(time.perf_counter() - start)
        seconds.append(min(times))
    few, many = seconds
    counts = [_NODES * count for count in sizes]
    record = max(many - few, 0.1 * many) / (counts[1] - counts[0])
    record = min(record, many / counts[1])
    return Cost(max(0.0, many - record * counts[1]), record)


def _plain(model: StackedModel, at: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """The gradient of the summed loss `[d]`, as one would take it without privacy."""
    with torch.enable_grad():
        vector = at.clone().requires_grad_()
        weights = {name: view[0] for name, view in model.layout.views(vector.unsqueeze(0)).items()}
        outputs = functional_call(model.evaluated, weights, (inputs,))
        loss = model.loss.per_record(outputs, targets).sum()
        (gradient,) = torch.autograd.grad(loss, vector)
    return gradient.detach()
