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

from tacit.config import Config
from tacit.data import Dataset, Schema
from tacit.errors import InputError
from tacit.features.maps import find_features
from tacit.models.architectures import find_loss
from tacit.training.prepare import DTYPES
from tacit.training.records import load_records

_TYPICAL_OF_BOUND = 0.75
_GREY = 0.4
_SHOWN = 500  # public test records that are looked at, from all over


@dataclass(frozen=True, eq=False)
class Facts:
    """Public facts of a task and its nodes.

    Args:
        records: J of each node.
        shape: of a record's inputs.
        outputs: numbers that the model gives for a record.
        loss: as `[task].loss` names it.
        public: inputs float64 `[r, ...]` and targets `[r, ...]` of some public test records; None:
            there are none.
        norm_bound: the l2 norm that no record's inputs exceed, where a schema says it.
        names: of the nodes, where they have some.
    """

    records: tuple[int, ...]
    shape: tuple[int, ...]
    outputs: int
    loss: str
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
        """The facts of what the model gets, by the features of a task.

        Args:
            features: as `[task].features` names them; None: inputs as they are.
            dtype: of the run.

        Raises:
            InputError: on `task.features`.
        """
        if features is None:
            return self
        none = torch.zeros(1, *self.shape, dtype=dtype)
        made = find_features(features, none, dtype, none.device)
        public = self.public
        if public is not None:
            public = made(public[0].to(dtype)).double(), public[1]
        return replace(self, shape=made.shape, public=public, norm_bound=None)


def read_facts(config: Config) -> Facts:
    """The public facts of an experiment.

    The nodes' records are loaded as `tacit plan` does it, counted, and let go.

    Raises:
        InputError: something is wrong with the data, the schema or their settings.
    """
    hosted = range(config.nodes.count)
    dtype = DTYPES[config.train.dtype]
    loaded = load_records(config, None, None, None, dtype, torch.device("cpu"), hosted)
    first = loaded.train.first
    return facts_of(
        config,
        loaded.train.sizes.tolist(),
        shape=tuple(first.inputs.shape[1:]),
        # Of no private label: their shape and type alone.
        targets=first.targets[:0],
        classes=loaded.classes,
        test=loaded.test,
        schema=loaded.schema,
        names=loaded.names,
    )


def facts_of(
    config: Config,
    records: Sequence[int],
    *,
    shape: tuple[int, ...],
    targets: Tensor,
    classes: int | None,
    test: Dataset | None,
    schema: Schema | None,
    names: tuple[str, ...] | None = None,
) -> Facts:
    """Facts from what is known without a record.

    Args:
        config: the experiment.
        records: J of each node.
        shape: of a record's inputs.
        targets: none of them, `[0, ...]`: what type and shape they have.
        classes: as declared; None: nobody did.
        test: public test records.
        schema: of a table.
        names: of the nodes.

    Raises:
        InputError: on `task.outputs`, nothing public says how many classes there are.
    """
    loss = find_loss(config.task.loss)
    shown = targets if test is None else test.targets
    outputs = config.task.outputs or loss.outputs(shown, classes)
    if outputs is None:
        raise InputError(
            "task.outputs",
            None,
            "write how many classes there are, such as task.outputs = 10: neither the data set nor "
            "public test records say it, and labels of the nodes' own records are private",
        )
    return Facts(
        records=tuple(records),
        shape=shape,
        outputs=outputs,
        loss=config.task.loss,
        public=None if test is None else _some(test),
        norm_bound=None if schema is None else schema.norm_bound,
        names=names,
    )


def _some(test: Dataset) -> tuple[Tensor, Tensor]:
    """Some public records from all over, since they may be sorted."""
    rows = torch.linspace(0, len(test) - 1, min(_SHOWN, len(test))).long()
    return test.inputs[rows].double(), test.targets[rows]
