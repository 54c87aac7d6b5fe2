"""What a recommendation may know: public facts, and nothing of what a private record holds.

The rules are functions of `Facts` alone, which have no tensor in them. Of the nodes' records they
hold how many each node has and how they are shaped, which a plan and every message say anyway. What
is typical of an input is measured on **public** test records, or follows from the features, the
schema or the shape where there are none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tacit.config import GIVEN, Config
from tacit.data import Dataset
from tacit.features.maps import find_features
from tacit.models.architectures import find_loss
from tacit.training.records import TrainingRecords

_TYPICAL_OF_BOUND = 0.75
_GREY = 0.4
_SHOWN = 500  # public test records that are looked at, from all over


@dataclass(frozen=True, eq=False)
class Facts:
    """Public facts of a task and its nodes.

    Args:
        records: J of each node.
        shape: of a record's inputs.
        outputs: numbers that the model gives for a record; None where nothing public says it.
        public: inputs float64 `[r, ...]` and targets `[r, ...]` of some public test records; None:
            there are none.
        norm_bound: the l2 norm that no record's inputs exceed, where a schema says it.
    """

    records: tuple[int, ...]
    shape: tuple[int, ...]
    loss: str
    outputs: int | None = None
    public: tuple[Tensor, Tensor] | None = None
    norm_bound: float | None = None
    names: tuple[str, ...] | None = None

    @property
    def nodes(self) -> int:
        """How many."""
        return len(self.records)

    @property
    def image(self) -> bool:
        """Whether a record is an image: channels, height and width."""
        return len(self.shape) == 3

    @property
    def norm(self) -> float:
        """|x|, the usual l2 norm of a record's inputs and of the 1 that goes with its bias.

        The median of public test records. Where there are none: three quarters of what a schema
        allows; of an image, as much as grey levels of 0.4 have; of other numbers, as much as
        standardised ones have.
        """
        if self.public is not None:
            squares = self.public[0].flatten(1).square().sum(1)
            return math.sqrt(1 + float(squares.median()))
        if self.norm_bound is not None:
            return math.sqrt(1 + (_TYPICAL_OF_BOUND * self.norm_bound) ** 2)
        typical = _GREY if self.image else 1.0
        return math.sqrt(1 + math.prod(self.shape) * typical**2)

    def seen_through(self, features: str | None, dtype: torch.dtype) -> Facts:
        """The facts of what the model gets, by the features of a task; None: inputs as they are."""
        if features is None:
            return self
        none = torch.zeros(1, *self.shape, dtype=dtype)
        made = find_features(features, none, dtype, none.device)
        public = self.public
        if public is not None:
            public = made(public[0].to(dtype)).double(), public[1]
        return replace(self, shape=made.shape, public=public, norm_bound=None)


def facts_of(config: Config, records: TrainingRecords, sizes: Sequence[int]) -> Facts:
    """What is public of records as they were loaded by this process; `sizes` has every node's J."""
    bounds = [config.input_bound, None if records.schema is None else records.schema.norm_bound]
    if config.task.feature_map is not None or records.train.packed is not None:
        bounds = []
    outputs, first = config.task.outputs, records.train.first
    if outputs is None and config.task.loss != GIVEN:
        # Of no private label: their shape and type alone.
        shown = first.targets[:0] if records.test is None else records.test.targets
        outputs = find_loss(config.task.loss).outputs(shown, records.classes)
    return Facts(
        records=tuple(sizes),
        shape=tuple(first.inputs.shape[1:]),
        loss=config.task.loss,
        outputs=outputs,
        public=None if records.test is None else _some(records.test),
        norm_bound=min((bound for bound in bounds if bound is not None), default=None),
        names=records.names,
    )


def _some(test: Dataset) -> tuple[Tensor, Tensor]:
    """Some public records from all over, since they may be sorted."""
    rows = torch.linspace(0, len(test) - 1, min(_SHOWN, len(test))).long()
    return test.inputs[rows].double(), test.targets[rows]
