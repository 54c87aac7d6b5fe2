"""The score of the consensus model of a run folder on test records."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from tacit import data
from tacit.config import GIVEN, Config
from tacit.data import Schema
from tacit.data.formats.svmlight import Declared
from tacit.data.tables import is_table
from tacit.errors import InputError
from tacit.models.architectures import find_loss
from tacit.models.metrics import (
    GIVEN_METRIC,
    IN_UNIT,
    baselines,
    check_metrics,
    find_metrics,
    score,
)
from tacit.report.measures import ACCURACY, LOSS, measure_of
from tacit.training.recalibration import halves
from tacit.training.run_folder.folder import trusted_config
from tacit.training.run_folder.predictor import OF_TRAINING, load_predictor, result_of, shape_of


@dataclass(frozen=True)
class Score:
    """The consensus model of a run on a data set.

    `metrics` are those of the task by name, the leading one first; functions that were passed as
    objects are left out. `accuracy` is the share that is right, None where the loss has no notion
    of it, and `loss` the mean over records. `baselines` say by name what a model that ignores its
    inputs scores; None where it is not known. `unit` is that of `mae` and `rmse`, if one is
    declared.
    """

    dataset: str
    records: int
    metrics: dict[str, float]
    accuracy: float | None
    loss: float
    baselines: dict[str, float | None]
    unit: str | None = None

    def describe(self) -> str:
        """One line for people, the leading score first; and one for each that is of no use."""
        scores = {measure_of(name): value for name, value in self.metrics.items()}
        if self.accuracy is not None:
            scores.setdefault(ACCURACY, self.accuracy)
        scores[LOSS] = self.loss
        pairs = [(own, value, self.baselines[own.name]) for own, value in scores.items()]
        told = "; ".join(
            own.beside(*pair) + (f" ({self.unit})" if self.unit and own.name in IN_UNIT else "")
            for own, *pair in pairs
        )
        notes = [f"note: {note}" for own, *pair in pairs if (note := own.no_better(*pair))]
        return "\n".join([f"{self.dataset}: {told} on {self.records:,} records", *notes])


def evaluate_run(
    run: str | Path,
    dataset: str | None = None,
    data_dir: str | None = None,
    *,
    trust: bool = False,
) -> Score:
    """Score the consensus model of a run.

    It is scored on the test records of `dataset`, named as in `[task].dataset`, or on all records
    where there is no test part. By default this and `data_dir`, where it is looked for, are the
    run's. `trust` is as in `load_model`; a function that `dataset` names is the user's own.

    Raises:
        InputError: the folder, the data set, or the fit of the two is wrong, or it names functions
            that are not trusted.
    """
    folder, unused = Path(run), ("task.dataset", *OF_TRAINING) if dataset else OF_TRAINING
    config = trusted_config(folder, trust, unused=unused)
    predictor = load_predictor(run, trust=trust)
    task, same = config.task, dataset in (None, config.task.dataset)
    name = task.test if same and task.test is not None else dataset or task.dataset
    shape = shape_of(folder, result_of(folder))
    expected = shape.record_shape or shape.input_shape
    declared = replace(config.task.declared, features=math.prod(expected), outputs=shape.outputs)
    records = _records(config, name, data_dir, declared, predictor.schema)
    if same and task.calibrate == "public":  # the others were fitted to
        records, _ = halves(records)
    if tuple(records.inputs.shape[1:]) != expected:
        raise InputError(
            "--data",
            name,
            f"its records have shape {list(records.inputs.shape[1:])}; the model takes "
            f"{list(expected)}",
        )
    loss = find_loss(config.task.loss, class_weights=config.task.class_weights)
    target = None if predictor.schema is None else predictor.schema.target
    metrics = find_metrics(
        [name for name in config.task.metric or () if not name.startswith(GIVEN_METRIC)],
        unscaled=None if target is None else target.unscaled,
    )
    outputs = predictor.outputs_of_rows(records.inputs, records.packed)
    loss.check(outputs, records.targets)
    accuracy = None
    if loss.accuracy is not None:
        accuracy = float(loss.accuracy(outputs, records.targets).double().mean())
    check_metrics(metrics, loss, outputs, records.targets, len(records))
    ignorant = baselines(metrics, loss, outputs, records.targets)
    return Score(
        dataset=name,
        records=len(records),
        metrics={metric.name: score(metric, outputs, records.targets) for metric in metrics},
        accuracy=accuracy,
        loss=float(loss.per_record(outputs, records.targets).mean()),
        baselines=ignorant.by_name(metrics),
        unit=None if target is None else target.unit,
    )


def _records(
    config: Config, name: str, data_dir: str | None, declared: Declared, schema: Schema | None
) -> data.Dataset:
    if name == GIVEN:
        raise InputError("--data", name, "the run's data were passed as objects: name a data set")
    task = config.task
    try:
        loaded = data.load(
            name,
            data_dir=Path(data_dir or task.data_dir),
            seed=config.train.seed,
            schema=schema if is_table(name) else None,
            test_share=task.test_share if name == task.dataset else None,
            declared=declared,
        )
    except InputError as error:
        if error.where != "task.dataset":
            raise
        raise InputError("--data", error.value, error.expected) from error
    records = loaded.train if loaded.test is None else loaded.test
    data.check_dataset(records, "--data", loaded.classes)
    return records
