"""What a run learned, ready for new records: from its folder alone, or from a result in memory."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from tacit.base.plain_files import check_plain, own_part
from tacit.config import GIVEN, Config
from tacit.data import Schema, as_dataset
from tacit.data.datasets import check_dataset
from tacit.data.tables.fields import refuse
from tacit.data.tables.kinds import ClassTarget
from tacit.data.tables.reading import read_table
from tacit.errors import FormatError, InputError
from tacit.features.maps import WithFeatures, known_features
from tacit.gradients import with_output
from tacit.gradients.inputs import Packed, pack, unpacking
from tacit.models import architectures as models
from tacit.models.architectures import find_output, tables_of
from tacit.models.probabilities import log_shares
from tacit.report.documents.run import LET_IT_END, ModelShape, ResultDocument, read_result
from tacit.training.job import DTYPES, bounded
from tacit.training.run_folder.folder import MODEL, RESULT, SCHEMA, trusted_config

_RECORDS_AT_ONCE = 1024
OF_TRAINING = ("algorithm.name", "task.augmentation", "nodes.source")
"""Keys that may name code which nothing but training calls."""


@dataclass(frozen=True)
class Predictor:
    """A trained model, with what records become before it, and what its outputs say.

    Args:
        config: the experiment.
        schema: by which a table becomes inputs and outputs have names; None: records are no table.
        module: in evaluation mode; takes inputs as its `forward` names them, which are within
            `bound`, and gives the prediction alone. It makes features itself.
    """

    config: Config
    schema: Schema | None
    module: nn.Module

    @property
    def bound(self) -> float | None:
        """The l2 norm to which longer inputs are scaled down before the module; None: to none."""
        return self.config.input_bound if self.config.task.feature_map is None else None

    def outputs(self, inputs: Any) -> Tensor:
        """What the module gives for records, `[records, ...]`.

        Args:
            inputs: `[records, ...]`, as `Schema.inputs` gives them of a table; several by name or
                in order.
        """
        rows, packed = (inputs, None) if isinstance(inputs, Tensor) else pack(inputs, "inputs")
        return self.outputs_of_rows(rows, packed)

    def outputs_of_rows(
        self, rows: Tensor, packed: Packed | None, *, alone: bool = False
    ) -> Tensor:
        """The same of inputs as a data set holds them.

        What is said of a record is rounded by how many others a call has, and by where it lies in
        memory. `alone`, each has a call and memory of its own, and others change no bit of it.
        """
        unpack = None if packed is None else unpacking(self.module, packed)
        dtype = DTYPES[self.config.train.dtype]
        count = len(rows)
        rows = rows if count else rows.new_zeros(1, *rows.shape[1:])  # modules may not take none
        rows = rows.to(next(self.module.parameters(), rows).device)
        rows = rows.to(models.input_dtype(self.module, rows[:1], dtype))
        rows = rows if self.bound is None else bounded(self.config, rows)
        found = []
        with torch.no_grad():
            for part in torch.split(rows, 1 if alone else _RECORDS_AT_ONCE):
                part = part.clone() if alone else part
                arguments, named = ((part,), {}) if unpack is None else unpack(part)
                found.append(self.module(*arguments, **named))
        return torch.cat(found)[:count]

    @cached_property
    def labels(self) -> tuple[str, ...] | None:
        """The classes by name, class 0 first; None: what is predicted is no class."""
        loss = self.config.task.loss
        if self.schema is not None:
            target = self.schema.target
            return target.labels if isinstance(target, ClassTarget) else None
        if loss == "logistic":
            return ("-1", "1")
        count = self.config.task.outputs
        return tuple(map(str, range(count or 0))) if loss == "cross-entropy" else None

    def decoded(self, outputs: Tensor) -> dict[str, NDArray[Any]]:
        """What outputs `[records, ...]` say, by the names of columns, `[records]` each.

        Of classes the likeliest, and the probability of each: softmax, or of one output the
        sigmoid. Of a number that number in the target's unit; of several each as the model has it.
        """
        target = None if self.schema is None else self.schema.target
        said = "prediction" if target is None else f"predicted {target.column}"
        flat = outputs.detach().reshape(len(outputs), math.prod(outputs.shape[1:]))
        if self.labels is not None:
            shares = log_shares(flat).exp().cpu().numpy()
            labels = self.labels or tuple(map(str, range(shares.shape[1])))
            if len(labels) != shares.shape[1] or outputs.ndim > 2:
                found = f"{shares.shape[1]} classes"
                raise InputError("RUN", found, f"has names of {len(labels)}: {', '.join(labels)}")
            columns = {f"probability of {name}": shares[:, k] for k, name in enumerate(labels)}
            return {said: np.array(labels, np.str_)[shares.argmax(1)], **columns}
        numbers = flat.double().cpu().numpy()
        if target is not None and not isinstance(target, ClassTarget):
            numbers = target.unscaled(numbers)
        if numbers.shape[1] == 1:
            return {said: numbers[:, 0]}
        return {f"{said} {place}": column for place, column in enumerate(numbers.T)}

    def predict(self, table: Any, where: str = "table") -> dict[str, NDArray[Any]]:
        """What is said of new records, as `decoded`.

        Args:
            table: a frame, a mapping of columns, the path of a table or what `read_table` gives, of
                which columns that are no inputs are passed over. Without a schema inputs, an array
                or several, as a data set takes them.
            where: what an error names.

        Raises:
            InputError: a column is missing.
            RecordsError: records break what the schema declares, or they or what the model says of
            them are no finite numbers; says how many.
        """
        if self.schema is None:
            named = table.values() if isinstance(table, Mapping) else table
            count = len(next(iter(named)) if isinstance(table, Mapping | tuple) else table)
            given = as_dataset((table, np.zeros(count)), where)
            check_dataset(given, where, may_be_empty=True)
            outputs = self.outputs_of_rows(given.inputs, given.packed)
        else:
            if isinstance(table, str | os.PathLike):
                table = read_table(Path(table), where, use=self.schema)
            outputs = self.outputs(self.schema.inputs(table, where))
        expected = "must be such that the model says finite numbers of them"
        refuse(~are_finite(outputs).cpu().numpy(), where, expected)
        return self.decoded(outputs)


def are_finite(values: Tensor) -> Tensor:
    """Which records `[N]` of some values `[N, ...]` have finite numbers alone."""
    return values.reshape(values.shape[0], math.prod(values.shape[1:])).isfinite().all(1)


def load_predictor(run: str | Path, *, trust: bool = False) -> Predictor:
    """What the consensus model of a run folder predicts, and how records get to it.

    `trust` is as in `load_model`, whose errors these are; also where the run's `output=` was passed
    as a function.
    """
    folder, unused = own_part(Path(run)), ("task.dataset", "task.loss", "task.metric", *OF_TRAINING)
    config = trusted_config(folder, trust, unused=unused)
    if config.task.output == GIVEN:
        expected = (
            "its output= was passed as a function: name it as task.output = 'module:function'"
        )
        raise InputError("RUN", str(run), expected)
    module = with_output(load_model(run, trust=trust), find_output(config.task.output))
    return Predictor(config, schema_of(folder), module)


def schema_of(folder: Path) -> Schema | None:
    """The schema of the records of a run folder; None: they were no table."""
    path = folder / SCHEMA
    return Schema.of(path) if os.path.isfile(path) else None


def load_model(run: str | Path, *, trust: bool = False) -> nn.Module:
    """The consensus model of a run folder, in evaluation mode.

    That of a run on features takes records as they are before, and makes their features itself.
    With `trust`, functions that the experiment names (`module:function`) may be imported and
    called; of somebody else's folder that is code of theirs.

    Raises:
        InputError: the folder holds no finished model, its module was passed as an object, or it
            names functions that are not trusted.
    """
    folder = own_part(Path(run))
    unused = ("task.dataset", "task.loss", "task.output", "task.metric", *OF_TRAINING)
    config = trusted_config(folder, trust, unused=unused)
    if config.task.model == GIVEN:
        raise InputError(
            "RUN",
            str(run),
            "its model was passed as an object: build it and load model.safetensors into it",
        )
    shape = shape_of(folder, result_of(folder))
    path = folder / MODEL
    try:
        check_plain(path)
        tensors = load_file(path)
        module = models.build_model(
            config.task.model,
            input_shape=shape.input_shape,
            outputs=shape.outputs,
            seed=config.train.seed,
            tables=tables_of(tensors),
        ).to(DTYPES[config.train.dtype])
        module.load_state_dict(tensors)
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError("RUN", str(path), f"cannot be loaded ({reason})") from None
    if config.task.feature_map is None:
        return module.eval()
    features = known_features(
        config.task.feature_map,
        shape.record_shape or (),
        shape.input_shape,
        DTYPES[config.train.dtype],
        torch.device("cpu"),
    )
    return WithFeatures(features, config.input_bound, module).eval()


def result_of(folder: Path) -> ResultDocument:
    """The result of a run folder, whose run has ended with a model."""
    try:
        result = read_result(folder / RESULT)
    except FormatError:
        raise
    except InputError:
        raise InputError("RUN", str(folder), f"has no result yet: {LET_IT_END}") from None
    if result.status == "diverged":
        raise InputError("RUN", str(folder), "has no model: the run diverged")
    return result


def shape_of(folder: Path, result: ResultDocument) -> ModelShape:
    """What the model of a run takes and gives."""
    if result.model_shape is None:
        raise InputError("RUN", str(folder), "has a result without the shape of its model")
    return result.model_shape
