"""What a data set is here: records in tensors, and a task's two halves with their columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tacit.errors import InputError

__all__ = ["Dataset", "TaskData", "class_labels"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Records and what is to be predicted of them.

    Args:
        inputs: `[records, ...]`.
        targets: `[records]` or `[records, m]`; integers are class labels.

    Raises:
        InputError: if a field is no tensor, has no dimension of records, or the two differ in
            their number of records.
    """

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        for name, value in (("Dataset.inputs", self.inputs), ("Dataset.targets", self.targets)):
            if not isinstance(value, Tensor):
                raise InputError(name, type(value).__name__, "must be a torch tensor")
            if value.ndim == 0:
                raise InputError(name, value.item(), "must have a first dimension of records")
        if self.targets.ndim > 2:
            expected = "targets must have shape [records] or [records, m]"
            raise InputError("Dataset.targets", tuple(self.targets.shape), expected)
        if len(self.inputs) != len(self.targets):
            found = f"{len(self.inputs)} inputs, {len(self.targets)} targets"
            raise InputError("Dataset", found, "must have as many targets as inputs")

    def __len__(self) -> int:
        """The number of records."""
        return len(self.inputs)


@dataclass(frozen=True, eq=False)
class TaskData:
    """A task's training and test data.

    Args:
        name: the data set as the experiment file names it.
        train: the records that are divided among nodes.
        test: public records for metrics, or None.
        classes: the number of classes, a public fact that is declared and never counted; None
            where targets are not class labels, or where nobody has said it.
        columns: attributes of the training records, each `[records]`, by which they can be
            divided. `label` is added where the training targets are class labels.

    Raises:
        InputError: if a column does not hold one value a training record, or if the records of
            `test` have another shape than those of `train`.
    """

    name: str
    train: Dataset
    test: Dataset | None = None
    classes: int | None = None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns = {name: np.asarray(values) for name, values in self.columns.items()}
        labels = class_labels(self.train)
        if labels is not None:
            columns.setdefault("label", labels)
        for name, values in columns.items():
            if values.shape != (len(self.train),):
                expected = f"a column must have shape ({len(self.train)},): one value a record"
                raise InputError(f"columns.{name}", values.shape, expected)
        if self.test is not None:
            _check_same_shape(self.train, self.test)
        object.__setattr__(self, "columns", columns)


def _check_same_shape(train: Dataset, test: Dataset) -> None:
    halves = (("inputs", train.inputs, test.inputs), ("targets", train.targets, test.targets))
    for name, trained, tested in halves:
        if trained.shape[1:] != tested.shape[1:]:
            found = f"test {name} of shape {list(tested.shape[1:])} a record"
            expected = f"must be {list(trained.shape[1:])}, as in the training data"
            raise InputError("task.dataset", found, expected)


def class_labels(dataset: Dataset) -> np.ndarray | None:
    """The class labels of a data set, int64 `[records]`; None where targets are not labels.

    Integer targets of shape `[records]` or `[records, 1]` are labels; so are integer -1 / 1.
    """
    targets = dataset.targets
    if _is_real(targets) or (targets.ndim == 2 and targets.shape[1] != 1):
        return None
    return targets.detach().reshape(-1).to("cpu", torch.int64).numpy()


def _is_real(values: Tensor) -> bool:
    return values.is_floating_point() or values.is_complex()
