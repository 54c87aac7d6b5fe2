"""From an experiment to all that a run needs: data on every node, the model, and the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tacit import data, gradients, models
from tacit.config import GIVEN, Config
from tacit.data import Dataset, StackedData
from tacit.errors import InputError
from tacit.gradients import Loss, StackedModel
from tacit.gradients.table import available_bytes, table_need
from tacit.losses import find_loss
from tacit.plan import Plan
from tacit.planning import build_plan

__all__ = ["DTYPES", "Job", "prepare"]

_EXAMPLES = 8  # records that the gradient engine tries itself on


@dataclass(frozen=True)
class Job:
    """A run that could start now.

    Args:
        config: the experiment.
        plan: what will happen, and what it costs.
        model: the gradient engine of the user's module.
        train: every node's records, stacked.
        test: public test data on the run's device, or None.
        loss: of the task.
        outputs: numbers that the model gives for a record.
    """

    config: Config
    plan: Plan
    model: StackedModel
    train: StackedData
    test: Dataset | None
    loss: Loss
    outputs: int

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of parameters and inputs."""
        return DTYPES[self.config.train.dtype]

    @property
    def device(self) -> torch.device:
        """Where the run computes."""
        return torch.device(self.config.train.device)


DTYPES = {"float32": torch.float32, "float64": torch.float64}


def prepare(
    config: Config,
    *,
    model: nn.Module | None = None,
    nodes: Sequence[Any] | None = None,
    test: Any = None,
) -> Job:
    """Load and split the data, build the model, make the plan.

    Args:
        config: the experiment.
        model: a module whose present weights are every node's start; None builds
            `[task].model`.
        nodes: each node's records; None loads and splits `[task].dataset`.
        test: public test records; None takes the data set's own, if any.

    Raises:
        InputError: something is wrong with the settings, the data or the model.
        BudgetError: a node's budget cannot be met.
    """
    device = _device(config.train.device)
    dtype = DTYPES[config.train.dtype]
    train, public = _records(config, nodes, dtype, device)
    if test is not None:
        public = data.as_dataset(test, "test")
    loss = find_loss(config.task.loss, config.task.metric)
    if model is None:
        model = _build_model(config, loss, public, train)
    kind = models.input_dtype(model, train.inputs[:_EXAMPLES], dtype)
    train = replace(train, inputs=train.inputs.to(kind))
    # Of all nodes: where records are sorted, the first may be equal, and prove less.
    rows = torch.linspace(0, len(train.inputs) - 1, _EXAMPLES).long().to(device)
    example = data.Dataset(train.inputs[rows], train.targets[rows])
    engine = gradients.build(
        model, loss, example.inputs, example.targets, dtype=dtype, device=device
    )
    outputs = engine.outputs(engine.start(1, dtype, device), example.inputs)[0]
    loss.check(outputs, train.targets)
    held_out = None
    if public is not None:
        held_out = _on_device(public, train, dtype, device)
        loss.check(outputs, held_out.targets)
    plan = build_plan(
        config,
        train.sizes.tolist(),
        engine.parameters_count,
        lambda: float(train.inputs.to(dtype).flatten(1).norm(dim=1).max()),
    )
    plan = replace(
        plan, notes=plan.notes + _table_notes(config, engine, train.sizes.tolist(), dtype)
    )
    return Job(config, plan, engine, train, held_out, loss, outputs[0].numel())


def _table_notes(
    config: Config, model: StackedModel, records: Sequence[int], dtype: torch.dtype
) -> tuple[str, ...]:
    """What the gradient table will take, if there is one; refused where it does not fit."""
    chosen = config.algorithm
    request = chosen.definition.table(chosen.options)
    if request is None:
        return ()
    need = table_need(model, records, dtype, mini_batch=request.mini_batch)
    free = available_bytes(config.train.device)
    if request.directory is None and need.bytes > free:
        raise InputError(
            "algorithm.state",
            "private",
            f"its gradient table would take {need.bytes / 2**30:.3g} GiB of memory, and "
            f"{free / 2**30:.3g} are available: keep it on disk (algorithm.table_directory), store "
            "mini-batches in place of records (algorithm.table_batch), or use state = 'public'",
        )
    return (need.describe(),)


def _on_device(
    public: Dataset, like: StackedData, dtype: torch.dtype, device: torch.device
) -> Dataset:
    """Public test records on the run's device, in its dtype; they must be shaped as the nodes'."""
    data.check_dataset(public, "test")
    if public.inputs.shape[1:] != like.inputs.shape[1:]:
        raise InputError(
            "test",
            f"records of shape {list(public.inputs.shape[1:])}",
            f"must be shaped as the nodes' records: {list(like.inputs.shape[1:])}",
        )
    alone = data.stack([public], dtype, device)
    return data.Dataset(alone.inputs.to(like.inputs.dtype), alone.targets)


def _load(config: Config) -> data.TaskData:
    return data.load(
        config.task.dataset, data_dir=Path(config.task.data_dir), seed=config.train.seed
    )


def _records(
    config: Config, nodes: Sequence[Any] | None, dtype: torch.dtype, device: torch.device
) -> tuple[StackedData, Dataset | None]:
    """Every node's records, stacked, and the public test records."""
    if nodes is not None:
        local = [data.as_dataset(value, f"nodes[{node}]") for node, value in enumerate(nodes)]
        for node, records in enumerate(local):
            data.check_dataset(records, f"nodes[{node}]")
        return data.stack(local, dtype, device), None
    loaded = _load(config)  # checked there
    wanted = config.nodes
    parts = data.partition(
        wanted.partition,
        loaded,
        wanted.count,
        config.train.seed,
        alpha=wanted.alpha,
        per_node=wanted.per_node,
    )
    return data.stack_parts(loaded.train, parts, dtype, device), loaded.test


def _build_model(
    config: Config, loss: Loss, public: Dataset | None, train: StackedData
) -> nn.Module:
    if config.task.model == GIVEN:
        raise InputError("task.model", GIVEN, "pass the module as model=, or name a model")
    targets = [train.targets] if public is None else [train.targets, public.targets]
    return models.build_model(
        config.task.model,
        input_shape=tuple(train.inputs.shape[1:]),
        outputs=loss.outputs(targets),
        seed=config.train.seed,
    )


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # "meta" and the like hold no numbers
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            "train.device", name, f"cannot be used here ({reason}); try 'cpu'"
        ) from None
    return device
