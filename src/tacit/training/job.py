"""A run that could start now: what was prepared, and what everything that runs it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from tacit.communication.peers import Peers, Placement
from tacit.config import Config
from tacit.data import Dataset, Schema, StackedData, bounded_inputs
from tacit.errors import InputError
from tacit.features.maps import FeatureMap
from tacit.gradients import Loss, StackedModel
from tacit.models.metrics import Baselines, Metric
from tacit.training.plan import Plan
from tacit.training.recalibration import Recalibration
from tacit.training.records import features_of

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Job:
    """A run that could start now.

    Args:
        test: public test data on the run's device, or None.
        metrics: of the task, the leading one first; none were asked for where there are none.
        baselines: what a model that ignores its inputs scores on the public test records.
        outputs: numbers that the model gives for a record, or, of classes, for a place of it.
        output_shape: of what it gives for a record.
        authenticated: whether what processes tell each other is signed with their identities.
        hosted: the nodes of this process, whose records `train` holds, ascending.
        loaded: `train` as it was before `features` and `input_bound`: what ledgers tell records by,
            so that no other map or bound makes other records of them. Without a ledger: `train`.
        features: of the records, which `train` and `test` hold in place of inputs; None: inputs.
        raw: the records that features were made of, for an audit; None: there are no features, or
            the records were let go.
        schema: by which the records were read, if they are a table.
        recalibration: of the trained model, where `task.calibrate` asks for it.
        again: prepares the same experiment as `prepare` did, with other records in the place of
            those that are read (None: with these), among given peers; what is public of it must be
            the same.
    """

    plan: Plan
    model: StackedModel
    train: StackedData
    test: Dataset | None
    loss: Loss
    metrics: tuple[Metric, ...]
    baselines: Baselines
    outputs: int
    output_shape: tuple[int, ...]
    placement: Placement
    authenticated: bool
    hosted: tuple[int, ...]
    loaded: StackedData
    features: FeatureMap | None
    raw: StackedData | None
    schema: Schema | None
    recalibration: Recalibration | None
    again: Callable[[StackedData | None, Peers], Job] = field(repr=False, compare=False)

    @property
    def config(self) -> Config:
        """The experiment, as the plan has it."""
        return self.plan.config

    @cached_property
    def digest(self) -> str:
        """Identifies what runs here: the plan, and which of its nodes."""
        own = self.plan.digest(self.hosted)
        everyone = len(self.hosted) == len(self.plan.nodes)
        return own if everyone else f"{own} {' '.join(map(str, self.hosted))}"

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of parameters and inputs."""
        return DTYPES[self.config.train.dtype]

    @property
    def device(self) -> torch.device:
        """Where the run computes."""
        return torch.device(self.config.train.device)

    def train_of(self, raw: StackedData) -> StackedData:
        """What `train` would be of other records: their features, if there are any, in bounds."""
        if self.features is not None:
            raw = features_of(self.features, raw, [f"node {node}" for node in self.hosted])
        return bounded_records(self.config, raw)


def bounded_records(config: Config, loaded: StackedData) -> StackedData:
    """Records whose inputs are within the public bound; the same where all are."""
    if config.input_bound is None:
        return loaded
    inputs = loaded.inputs
    within = bounded(config, inputs)
    return loaded if within is inputs else replace(loaded, stored=within, bytes=False)


def bounded(config: Config, inputs: Tensor) -> Tensor:
    """Inputs within the public bound, if there is one."""
    bound = config.input_bound
    if bound is None:
        return inputs
    if not inputs.is_floating_point():
        raise InputError("task.input_bound", bound, "is for numbers; these records are ids")
    return bounded_inputs(inputs, bound)
