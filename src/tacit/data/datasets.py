"""What a data set is here: records in tensors, and a task's two halves with their columns.

`as_dataset` takes in what a user gives as one, `check_dataset` refuses what cannot be trained on,
and `bounded_inputs` enforces a public bound of inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sized
from dataclasses import InitVar, dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

from tacit.data.units import Ids, unit_ids
from tacit.errors import InputError, RecordsError
from tacit.gradients.inputs import Packed, pack
from tacit.gradients.losses import IGNORED


@dataclass(frozen=True, eq=False, init=False)
class Dataset:
    """Records and what is to be predicted of them.

    Args:
        inputs: a tensor, or an array of numbers, `[records, ...]`. Or several of these, by name or
            as a tuple, which are then kept as rows `[records, d]`.
        targets: likewise `[records, ...]`; integers are class labels.
        units: whose each record is, such as the number of a person, `[records]` texts or whole
            numbers; None: nobody said.
        packed: how several inputs lie in the rows that `inputs` are; None: `inputs` are as given.

    Raises:
        InputError: if a field holds no numbers, has no dimension of records, or they differ in
            their number of records.
    """

    inputs: Tensor
    targets: Tensor
    units: Ids | None
    packed: Packed | None

    def __init__(
        self,
        inputs: Tensor | ArrayLike | Mapping[str, ArrayLike],
        targets: Tensor | ArrayLike,
        units: ArrayLike | None = None,
        packed: Packed | None = None,
    ) -> None:
        if _are_several(inputs, targets):
            inputs, packed = _packed(inputs, "Dataset.inputs")
        for name, given in (("inputs", inputs), ("targets", targets)):
            # A tensor stays the very object that it is, its gradients too.
            value = given if isinstance(given, Tensor) else _field(given, name, f"Dataset.{name}")
            object.__setattr__(self, name, value)
        for name, value in (("Dataset.inputs", self.inputs), ("Dataset.targets", self.targets)):
            _check_plain(value, name)
            if value.ndim == 0:
                raise InputError(name, value.item(), "must have a first dimension of records")
        if len(self.inputs) != len(self.targets):
            found = f"{len(self.inputs)} inputs, {len(self.targets)} targets"
            raise InputError("Dataset", found, "must have as many targets as inputs")
        ids = None if units is None else unit_ids(units, len(self.inputs), "Dataset.units")
        object.__setattr__(self, "units", ids)
        object.__setattr__(self, "packed", packed)

    def __len__(self) -> int:
        """The number of records."""
        return len(self.inputs)

    def chosen(self, rows: NDArray[np.int64]) -> Dataset:
        """Some of the records, in this order."""
        numbers = torch.from_numpy(rows)
        ids = None if self.units is None else self.units[rows]
        return Dataset(self.inputs[numbers], self.targets[numbers], ids, self.packed)


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
        values: the declared values of columns by which records are divided, in order: the first is
            node 0's. Of `label` they are the classes, unless they are given.
        notes: what is good to know of the data, each one line; public.
        units: whose each training record is, where `train` does not say it.

    Raises:
        InputError: if a column does not hold one value a training record, or if the records of
            `test` have another shape than those of `train`.
    """

    name: str
    train: Dataset
    test: Dataset | None = None
    classes: int | None = None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    values: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    units: InitVar[ArrayLike | None] = None

    def __post_init__(self, units: ArrayLike | None) -> None:
        if units is not None:
            ids = unit_ids(units, len(self.train), "TaskData.units")
            known = Dataset(self.train.inputs, self.train.targets, ids, self.train.packed)
            object.__setattr__(self, "train", known)
        columns = {name: np.asarray(values) for name, values in self.columns.items()}
        labels = class_labels(self.train)
        if labels is not None:
            columns.setdefault("label", labels)
        for name, values in columns.items():
            if values.shape != (len(self.train),):
                expected = f"a column must have shape ({len(self.train)},): one value a record"
                raise InputError(f"columns.{name}", values.shape, expected)
        for name in columns.keys() & self.values.keys():
            undeclared = int((~np.isin(columns[name], self.values[name])).sum())
            if undeclared:
                found = f"{undeclared:,} of {len(self.train):,} records"
                raise RecordsError(f"columns.{name}", found, "must be values that are declared")
        if self.test is not None:
            for name in ("inputs", "targets"):
                trained = list(getattr(self.train, name).shape[1:])
                tested = list(getattr(self.test, name).shape[1:])
                if trained != tested:
                    found = f"test {name} of shape {tested} a record"
                    expected = f"must be {trained}, as in the training data"
                    raise InputError("task.dataset", found, expected)
        object.__setattr__(self, "columns", columns)

    def chosen(self, rows: NDArray[np.int64]) -> TaskData:
        """The same of some of the training records."""
        columns = {name: values[rows] for name, values in self.columns.items()}
        return replace(self, train=self.train.chosen(rows), columns=columns)


def class_labels(dataset: Dataset) -> np.ndarray | None:
    """The class labels of a data set, int64 `[records]`; None where targets are not labels.

    Integer targets of shape `[records]` or `[records, 1]` are labels; so are integer -1 / 1.
    """
    targets = dataset.targets
    integers = not (targets.is_floating_point() or targets.is_complex())
    if not integers or (targets.ndim == 2 and targets.shape[1] != 1):
        return None
    return targets.detach().reshape(-1).to("cpu", torch.int64).numpy()


_FORMS = (
    "must be a Dataset, a pair (inputs, targets) of arrays, or a torch Dataset of such pairs; "
    "several inputs of a record are a dictionary or a tuple of arrays"
)
_LABELS = ("labels", "label", "targets")

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

    `value` is a `Dataset`; a pair `(inputs, targets)` of tensors or arrays with one record a row,
    or `(inputs, targets, units)` that say whose each is; or a `torch.utils.data.Dataset` of
    `(input, target)` pairs, which is read once. Several inputs are a dictionary or a tuple; a
    record of a `torch.utils.data.Dataset` may also be `(input, input, target)`, or, as is the
    whole, a dictionary with the target as `labels`. `where` is the key or argument that an error
    names.

    Returns:
        A data set whose inputs are of the type that is given (integers are numbers or ids: see
        `models.input_dtype`), and whose targets are floating, or int64 class labels.

    Raises:
        InputError: if it is none of these, or inputs and targets differ in length.
    """
    match value:
        case Dataset():
            given = value.inputs.detach(), value.targets.detach()
            return _dataset(*given, where, value.units, value.packed)
        case Mapping():
            return as_dataset(_labelled(value, where), where)
        case (inputs, targets) if _are_several(inputs, targets):
            rows, how = _packed(inputs, where)
            return _dataset(rows, _field(targets, "targets", where), where, packed=how)
        case (inputs, targets):
            return _dataset(
                _field(inputs, "inputs", where), _field(targets, "targets", where), where
            )
        case (inputs, targets, units):
            made = as_dataset((inputs, targets), where)
            ids = unit_ids(cast(ArrayLike, units), len(made), f"units of {where}")
            return Dataset(made.inputs, made.targets, ids, made.packed)
        case TorchDataset():
            read, labels, packed = _read_records(value, where)
            return _dataset(read, labels, where, packed=packed)
        case _:
            frame = type(value).__module__.partition(".")[0] in ("pandas", "polars")
            hint = "; a frame needs schema=, which says what its columns are" if frame else ""
            raise InputError(where, _kind(value), f"{_FORMS}{hint}")


def check_dataset(
    dataset: Dataset, where: str, classes: int | None = None, *, may_be_empty: bool = False
) -> None:
    """Refuse a data set without records, with numbers that are not finite, or wrong labels.

    Integer targets must lie in `[0, classes)`; where `classes` is None, their range is open.
    `where` is the key or argument that an error names. The data of a node may be empty
    (`may_be_empty`): the plan says which nodes have no records.

    Raises:
        InputError: saying how many records are at fault, and nothing else of them.
    """
    if len(dataset) == 0 and not may_be_empty:
        raise InputError(where, "no records", "must hold at least one record")
    for name, values in (("inputs", dataset.inputs), ("targets", dataset.targets)):
        # One pass and no mask: a number that is not finite shows in the sum, whatever is added to
        # it. 60,000 images take 20 ms in place of 350. A sum may overflow where all are finite.
        if values.is_floating_point() and not math.isfinite(values.sum()):
            _refuse(~torch.isfinite(values), where, f"{name} must be finite numbers")
    if classes is not None and not dataset.targets.is_floating_point():
        labels, rule = dataset.targets, f"labels must be 0 to {classes - 1} ({classes} classes)"
        if classes <= 2:
            rule += "; for -1 and 1 set task.loss = 'logistic', and declare no classes"
        ignored = (labels == IGNORED) & (labels.ndim > 1)
        _refuse(((labels < 0) | (labels >= classes)) & ~ignored, where, rule)


def _refuse(wrong: Tensor, where: str, rule: str) -> None:
    """Refuse records where `wrong` `[records, ...]` holds a True."""
    count = int(wrong.reshape(len(wrong), -1).any(dim=1).sum())
    if count:
        raise RecordsError(where, f"{count:,} of {len(wrong):,} records", rule)


def are_named(inputs: object) -> bool:
    """Whether inputs are several by name; some sparse arrays of SciPy are mappings, too."""
    return isinstance(inputs, Mapping) and not hasattr(inputs, "shape")


def _are_several(inputs: object, targets: object) -> bool:
    """Whether inputs are several: by name, or a tuple of arrays each of which has all records.

    A tuple that is as long as the targets are the records, one after the other.
    """
    if isinstance(inputs, Tensor):  # the quickest to ask, of many nodes
        return False
    if are_named(inputs):
        return True
    if not isinstance(inputs, tuple) or not hasattr(targets, "__len__"):
        return False
    records = len(targets)
    arrays = all(isinstance(part, Tensor | np.ndarray) and part.ndim for part in inputs)
    return arrays and len(inputs) != records and all(len(part) == records for part in inputs)


def _packed(inputs: Any, where: str) -> tuple[Tensor, Packed]:
    """Several inputs as rows; of each its numbers, as `_field` reads them."""
    names = inputs if isinstance(inputs, Mapping) else range(len(inputs))
    read = {name: _field(inputs[name], "inputs", f"{where}, {name}") for name in names}
    for name, values in read.items():
        _check_numbers(values, f"{where}, {name}")
    if isinstance(inputs, Mapping):
        return pack({str(name): values for name, values in read.items()}, where)
    return pack(tuple(read.values()), where)


def _labelled(record: Mapping[Any, Any], where: str) -> tuple[dict[str, Any], Any]:
    found = [name for name in _LABELS if name in record]
    if len(found) != 1 or len(record) < 2:
        expected = f"must hold inputs, and the target as one of {', '.join(_LABELS)}"
        raise InputError(where, f"a dictionary of {', '.join(map(str, record))}", expected)
    return {name: part for name, part in record.items() if name != found[0]}, record[found[0]]


def _check_numbers(values: Tensor, where: str) -> None:
    if values.is_complex():
        raise InputError(where, "complex numbers", "must hold real numbers")
    if values.dtype not in _NUMBERS:
        raise InputError(where, str(values.dtype), "must hold plain numbers, such as float32")


def _check_plain(values: Tensor, where: str) -> None:
    """Refuse what is sparse, nested, quantised or without numbers; none of these is read."""
    kind = remedy = ""
    if values.is_nested:
        kind = "a nested tensor"
        remedy = "make all records equally long, as torch.nested.to_padded_tensor"
    elif values.is_quantized:
        kind, remedy = "a quantised tensor", "call .dequantize() on it"
    elif values.layout != torch.strided:
        layout = str(values.layout).removeprefix("torch.").strip("_").replace("_", " ")
        kind, remedy = f"a tensor of layout {layout}", "call .to_dense() on it"
    elif values.is_meta:
        kind = "a meta tensor"
        remedy = "it has a shape and no numbers; load them to a device such as 'cpu'"
    if kind:
        raise InputError(where, kind, f"must be a plain tensor, with every number in it: {remedy}")


def _dataset(
    inputs: Tensor,
    targets: Tensor,
    where: str,
    units: ArrayLike | None = None,
    packed: Packed | None = None,
) -> Dataset:
    for values in (inputs, targets):
        _check_numbers(values, where)
    if not targets.is_floating_point():
        targets = targets.to(torch.int64)
    try:
        return Dataset(inputs, targets, units, packed)
    except InputError as error:
        raise InputError(where, error.value, error.expected) from error


def _field(value: object, name: str, where: str) -> Tensor:
    """The inputs or the targets of all records.

    A list has no type of its own, and no record may decide the type of the others: numbers of
    inputs are floating, and targets are all whole or all not.
    """
    if not isinstance(value, list | tuple):
        return _as_tensor(value, where)
    rows = [_as_tensor(row, where) for row in value]
    if name == "inputs":
        plain = (list, tuple, int, float)  # what is none of these has a type of its own
        rows = [
            row.double() if isinstance(given, plain) else row
            for row, given in zip(rows, value, strict=True)
        ]
    return _stack(rows, name.removesuffix("s"), where)


def _as_tensor(value: object, where: str) -> Tensor:
    """A tensor of the numbers in `value`, sharing memory where it can."""
    if isinstance(value, Tensor):
        _check_plain(value, where)
        return value.detach()
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(
            where, _kind(value), "must be an array without a mask: fill what is masked"
        )
    try:
        array = np.asarray(value)
    except (Exception, SystemExit) as error:  # whatever the user's object raises when it is read
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


def _read_records(
    records: TorchDataset[object], where: str
) -> tuple[Tensor, Tensor, Packed | None]:
    inputs: list[Any] = []
    targets: list[object] = []
    try:
        # A map-style data set need not raise IndexError at its end: its length has to say.
        items: Iterable[object] = (
            records
            if isinstance(records, IterableDataset)
            else (records[index] for index in range(len(cast(Sized, records))))
        )
        one_input: Any
        for item in items:
            match item:
                case Mapping():
                    one_input, one_target = _labelled(item, where)
                case (one_input, one_target):
                    pass
                case (*several, one_target) if several:
                    one_input = (*several,)
                case _:
                    expected = "every record must be an (input, target) pair"
                    raise InputError(where, _kind(item), expected)
            inputs.append(one_input)
            targets.append(one_target)
        columns = _columns(inputs, where)
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's data set raises
        found = f"{_kind(records)}: {type(error).__name__}"  # its text may quote a record
        raise RecordsError(where, found, "its records must be readable") from error
    labels = _field(targets, "targets", where)
    if columns is None:
        return _field(inputs, "inputs", where), labels, None
    rows, packed = _packed(columns, where)
    return rows, labels, packed


def _columns(inputs: list[Any], where: str) -> Any:
    """Each of several inputs of all records, by name or as a tuple; None where there is one."""
    one: Any = inputs[0] if inputs else None
    ordered = isinstance(one, tuple) and any(isinstance(p, Tensor | np.ndarray) for p in one)
    if not ordered and not isinstance(one, Mapping):
        return None
    names = one if isinstance(one, Mapping) else range(len(one))
    unlike = sum(len(row) != len(one) for row in inputs)
    if unlike:
        found = f"{unlike:,} of {len(inputs):,} records"
        raise RecordsError(where, found, "must have the same inputs as the first")
    columns = {name: [row[name] for row in inputs] for name in names}
    return columns if isinstance(one, Mapping) else tuple(columns.values())


def _stack(rows: list[Tensor], name: str, where: str) -> Tensor:
    if not rows:
        raise InputError(where, "no records", "must hold at least one record")
    first = rows[0]
    unlike = sum(row.shape != first.shape for row in rows)
    if unlike:
        rule = f"every {name} must have the same shape as the first, {list(first.shape)}"
        raise RecordsError(where, f"{unlike:,} of {len(rows):,} records", rule)
    unlike = sum(row.is_floating_point() != first.is_floating_point() for row in rows)
    if unlike:
        rule = f"every {name} must be whole, or every {name} a floating-point number"
        raise RecordsError(where, f"{unlike:,} of {len(rows):,} records", rule)
    return torch.stack(rows)


def _kind(value: object) -> str:
    return type(value).__name__


_AT_ONCE = 2**20  # numbers in float64
_ULP = 2.0**-53  # relative error of one rounding in float64


def bounded_inputs(inputs: Tensor, bound: float) -> Tensor:
    """Records `[records, ...]` whose l2 norm, in exact arithmetic, is at most `bound`.

    A record that is longer is scaled down to it; any other stays as it is, but for those within
    rounding of the bound. A function of each record alone.

    With n numbers in a record, the norm is computed in float64 of numbers of size at most 1, to a
    relative error below (n + 8) 2^-53; twice that much is taken off the bound. Rounding to the type
    of the inputs goes towards zero, and so makes no record longer.

    Inputs are finite, float32 or float64, and the bound is between 1e-100 and 1e100. Shape and type
    stay; the very tensor that was given comes back where no record is longer.
    """
    length = math.prod(inputs.shape[1:])
    if torch.compiler.is_compiling():  # into a program of others, to rounding and without branches
        norms = torch.linalg.vector_norm(inputs.double().reshape(-1, length), dim=1)
        factor = torch.clamp(torch.full_like(norms, bound) / norms, max=1)
        return (inputs * factor.reshape(-1, *[1] * (inputs.ndim - 1))).to(inputs.dtype)
    rows = inputs.reshape(len(inputs), length)
    aim = bound * (1 - 2 * (length + 8) * _ULP)
    bounded: Tensor | None = None
    for start in range(0, len(rows), max(1, _AT_ONCE // max(1, length))):
        part = rows[start : start + max(1, _AT_ONCE // max(1, length))].double()
        largest = part.abs().amax(dim=1, keepdim=True) if length else part.new_zeros(len(part), 1)
        units = part / torch.where(largest > 0, largest, 1.0)
        norms = units.square().sum(dim=1, keepdim=True).sqrt()
        longer = (norms * largest > aim)[:, 0]  # infinite products are longer too
        if not bool(longer.any()):
            continue
        if bounded is None:
            bounded = rows.clone()
        exact = units[longer] * (aim / norms[longer])
        rounded = exact.to(rows.dtype)
        outside = rounded.double().abs() > exact.abs()
        rounded = torch.where(outside, torch.nextafter(rounded, rounded.new_zeros(())), rounded)
        bounded[start : start + len(part)][longer] = rounded
    return inputs if bounded is None else bounded.view(inputs.shape)
