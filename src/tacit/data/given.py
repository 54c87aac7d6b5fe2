"""Takes in what a user gives as a data set, and refuses what cannot be trained on."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

from tacit.data.datasets import Dataset
from tacit.errors import InputError, RecordsError

__all__ = ["as_dataset", "check_dataset"]

_FORMS = "must be a Dataset, a pair (inputs, targets) of arrays, or a torch Dataset of such pairs"

# Other types, such as those of 8 bits that float, have no sums.
_NUMBERS = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)


def as_dataset(value: object, where: str) -> Dataset:
    """Convert what a user gives to a `Dataset`.

    Args:
        value: a `Dataset`; a pair `(inputs, targets)` of tensors or arrays with one record a
            row; or a `torch.utils.data.Dataset` of `(input, target)` pairs, which is read once.
        where: the key or argument that an error names.

    Returns:
        A data set whose inputs are of the type that is given (integers are numbers or ids: see
        `models.input_dtype`), and whose targets are floating, or int64 class labels.

    Raises:
        InputError: if it is none of these, or inputs and targets differ in length.
    """
    match value:
        case Dataset():
            return _dataset(value.inputs.detach(), value.targets.detach(), where)
        case (inputs, targets):
            return _dataset(_as_tensor(inputs, where), _as_tensor(targets, where), where)
        case TorchDataset():
            return _dataset(*_read_records(value, where), where)
        case _:
            raise InputError(where, _kind(value), _FORMS)


def check_dataset(dataset: Dataset, where: str, classes: int | None = None) -> None:
    """Refuse a data set without records, with numbers that are not finite, or wrong labels.

    Args:
        dataset: what is checked.
        where: the key or argument that an error names.
        classes: integer targets must lie in `[0, classes)`; None leaves their range open.

    Raises:
        InputError: saying how many records are at fault, and nothing else of them.
    """
    if len(dataset) == 0:
        raise InputError(where, "no records", "must hold at least one record")
    for name, values in (("inputs", dataset.inputs), ("targets", dataset.targets)):
        if values.is_floating_point():
            _check_finite(values, name, where)
    if classes is not None and not dataset.targets.is_floating_point():
        _check_labels(dataset.targets, classes, where)


def _check_finite(values: Tensor, name: str, where: str) -> None:
    # One pass and no mask: a number that is not finite shows in the sum, whatever is added to it.
    # 60,000 images take 20 ms in place of 350. A sum may overflow where all numbers are finite.
    if bool(torch.isfinite(values.sum())):
        return
    _refuse(~torch.isfinite(values), where, f"{name} must be finite numbers")


def _check_labels(labels: Tensor, classes: int, where: str) -> None:
    rule = f"labels must be 0 to {classes - 1} ({classes} classes)"
    _refuse((labels < 0) | (labels >= classes), where, rule)


def _refuse(wrong: Tensor, where: str, rule: str) -> None:
    """Refuse records where `wrong` `[records, ...]` holds a True."""
    count = int(wrong.reshape(len(wrong), -1).any(dim=1).sum())
    if count:
        raise RecordsError(where, f"{count:,} of {len(wrong):,} records", rule)


def _dataset(inputs: Tensor, targets: Tensor, where: str) -> Dataset:
    for values in (inputs, targets):
        if values.is_complex():
            raise InputError(where, "complex numbers", "must hold real numbers")
        if values.dtype not in _NUMBERS:
            raise InputError(where, str(values.dtype), "must hold plain numbers, such as float32")
    if not targets.is_floating_point():
        targets = targets.to(torch.int64)
    try:
        return Dataset(inputs, targets)
    except InputError as error:
        raise InputError(where, error.value, error.expected) from error


def _as_tensor(value: object, where: str) -> Tensor:
    """A tensor of the numbers in `value`, sharing memory where it can."""
    if isinstance(value, Tensor):
        return value.detach()
    try:
        array = np.asarray(value)
    except Exception as error:  # whatever the user's object raises when it is read
        # The text of the error may quote a record.
        found = f"{_kind(value)}: {type(error).__name__}"
        raise RecordsError(where, found, "must be readable as an array of numbers") from error
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise InputError(where, f"{_kind(value)} of {array.dtype}", "must be an array of numbers")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)  # torch has few operations for wide unsigned integers
    # torch takes neither read-only nor foreign-endian nor reversed memory
    array = np.require(array, dtype=array.dtype.newbyteorder("="), requirements=["C", "W"])
    return torch.from_numpy(array)


def _read_records(records: TorchDataset[object], where: str) -> tuple[Tensor, Tensor]:
    inputs: list[Tensor] = []
    targets: list[Tensor] = []
    try:
        for item in _items(records):
            match item:
                case (one_input, one_target):
                    inputs.append(_as_tensor(one_input, where))
                    targets.append(_as_tensor(one_target, where))
                case _:
                    expected = "every record must be an (input, target) pair"
                    raise InputError(where, _kind(item), expected)
    except InputError:
        raise
    except Exception as error:  # whatever the user's data set raises
        found = f"{_kind(records)}: {type(error).__name__}"  # its text may quote a record
        raise RecordsError(where, found, "its records must be readable") from error
    return _stack(inputs, "input", where), _stack(targets, "target", where)


def _items(records: TorchDataset[object]) -> Iterable[object]:
    if isinstance(records, IterableDataset):
        return records
    # A map-style data set need not raise IndexError at its end: its length has to say.
    return (records[index] for index in range(len(cast(Sized, records))))


def _stack(rows: list[Tensor], name: str, where: str) -> Tensor:
    if not rows:
        raise InputError(where, "no records", "must hold at least one record")
    unlike = sum(row.shape != rows[0].shape for row in rows)
    if unlike:
        rule = f"every {name} must have the same shape as the first, {list(rows[0].shape)}"
        raise RecordsError(where, f"{unlike:,} of {len(rows):,} records", rule)
    return torch.stack(rows)


def _kind(value: object) -> str:
    return type(value).__name__
