"""The score of the consensus model of a run folder on test records."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit import data
from tacit.base.plain_files import own_part
from tacit.base.private_files import appearing, plain_errors
from tacit.config import GIVEN, Config
from tacit.data import Schema
from tacit.data.formats.svmlight import Declared
from tacit.data.sources import is_table
from tacit.data.tables.groups import groups_by
from tacit.errors import InputError
from tacit.models.architectures import find_loss
from tacit.models.metrics import (
    GIVEN_METRIC,
    IN_UNIT,
    METRICS,
    baselines,
    check_metrics,
    find_metrics,
    score,
)
from tacit.report.documents.base import plain_json
from tacit.report.documents.run import OWN_LEDGER
from tacit.report.measures import ACCURACY, LOSS, measure_of
from tacit.report.view import Block, Table, Text
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


@dataclass(frozen=True)
class PrivateScores:
    """Of private records: no epsilon covers them.

    `trained_on` says that the model was trained on these records. `scores` are of all of them, and
    of each group that has any.
    """

    dataset: str
    trained_on: bool
    scores: tuple[Score, ...]

    @property
    def blocks(self) -> list[Block]:
        """For the owner of the records."""
        first = self.scores[0]
        names = [*first.metrics, *(["accuracy"] if first.accuracy is not None else []), "loss"]
        names = list(dict.fromkeys(names))
        rows = []
        for one in self.scores:
            known = {"accuracy": one.accuracy, "loss": one.loss, **one.metrics}
            values = [known.get(name) for name in names]
            cells = ("-" if value is None else f"{value:.4g}" for value in values)
            rows.append((one.dataset, f"{one.records:,}", *cells))
        lines = ["The model was trained on these records: on others it is less good."]
        lines = lines * self.trained_on + ["No epsilon covers these scores: keep them at home."]
        table = Table(("records of", "records", *names), rows)
        return [table, *map(Text, lines)]


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
    read = _read(run, dataset, data_dir, trust)
    return _scored(read, read.name)


@dataclass(frozen=True)
class _Read:
    """Records of a name, and what the model of a run says of them, `[records, ...]`."""

    config: Config
    schema: Schema | None
    name: str
    records: data.Dataset
    outputs: Tensor


def _read(
    run: str | Path, dataset: str | None, data_dir: str | None, trust: bool, private: bool = False
) -> _Read:
    folder, own = own_part(Path(run)), private and dataset is None
    unused = ("task.dataset", *OF_TRAINING) if dataset else OF_TRAINING[: 2 if own else None]
    config = trusted_config(folder, trust, unused=unused)
    predictor, result = load_predictor(run, trust=trust), result_of(folder)
    task, source = config.task, config.nodes.source
    same = not private and dataset in (None, task.dataset)
    name = task.test if same and task.test is not None else dataset or task.dataset
    shape = shape_of(folder, result)
    expected = shape.record_shape or shape.input_shape
    declared = replace(task.declared, features=math.prod(expected), outputs=shape.outputs)
    if own and source is not None:
        sources = enumerate(result.epsilon_source or [OWN_LEDGER])
        nodes = [node for node, by in sources if by == OWN_LEDGER]
        each = data.load_own(source, nodes, predictor.schema)
        inputs, targets = ([getattr(one, key) for one in each] for key in ("inputs", "targets"))
        whole = data.Dataset(torch.cat(inputs), torch.cat(targets), packed=each[0].packed)
        name, records = source, whole
    else:
        records = _records(config, name, data_dir, declared, predictor.schema, private)
    if same and task.calibrate == "public":  # the others were fitted to
        records, _ = halves(records)
    if tuple(records.inputs.shape[1:]) != expected:
        raise InputError(
            "--data",
            name,
            f"its records have shape {list(records.inputs.shape[1:])}; the model takes "
            f"{list(expected)}",
        )
    outputs = predictor.outputs_of_rows(records.inputs, records.packed)
    return _Read(config, predictor.schema, name, records, outputs)


def evaluate_privately(
    run: str | Path,
    dataset: str | None = None,
    data_dir: str | None = None,
    *,
    by: str | None = None,
    trust: bool = False,
) -> tuple[PrivateScores, Path]:
    """Score the consensus model of a run on private records, for the eyes of their owner.

    They are those of `dataset`, or what the run trained on. `by` is a column of their schema, by
    which groups are scored as well. The scores are written to a new private file of the run folder,
    whose path is given back: no epsilon covers them. All else is as for `evaluate_run`.
    """
    read, folder = _read(run, dataset, data_dir, trust, private=True), own_part(Path(run))
    records = read.records
    parts = {"all": torch.ones(len(records), dtype=torch.bool)}
    if by is not None:
        groups = groups_by(read.schema, by)
        of = groups.of(records.inputs)
        parts |= {f"{by}: {own}": of == place for place, own in enumerate(groups.names)}
    scores = tuple(
        _scored(read, own, rows, private=True) for own, rows in parts.items() if bool(rows.any())
    )
    trained_on = read.name in (read.config.nodes.source, read.config.task.dataset)
    found = PrivateScores(read.name, trained_on, scores)
    content = json.dumps(plain_json(asdict(found)), indent=2).encode()
    number = 0
    while True:
        number += 1
        path = folder / f"private-scores-{number}.json"
        with plain_errors("RUN", path), suppress(FileExistsError):
            with appearing(path) as new:
                new.write_bytes(content)
            return found, path


def _scored(read: _Read, name: str, rows: Any = slice(None), *, private: bool = False) -> Score:
    """Scores of some rows; of `private` records all that are defined, those of the task first."""
    config, outputs, targets = read.config, read.outputs[rows], read.records.targets[rows]
    target = None if read.schema is None else read.schema.target
    loss = find_loss(config.task.loss, class_weights=config.task.class_weights)
    names = [name for name in config.task.metric or () if not name.startswith(GIVEN_METRIC)]
    metrics = find_metrics(
        [*dict.fromkeys([*names, *(METRICS if private else ())])],
        unscaled=None if target is None else target.unscaled,
    )
    loss.check(outputs, targets)
    accuracy = None
    if loss.accuracy is not None:
        accuracy = float(loss.accuracy(outputs, targets).double().mean())
    defined = []
    for metric in metrics:
        try:
            check_metrics([metric], loss, outputs, targets, len(targets))
            defined.append(metric)
        except InputError:
            if not private:
                raise
    ignorant = baselines(defined, loss, outputs, targets)
    return Score(
        dataset=name,
        records=len(targets),
        metrics={metric.name: score(metric, outputs, targets) for metric in defined},
        accuracy=accuracy,
        loss=float(loss.per_record(outputs, targets).mean()),
        baselines=ignorant.by_name(defined),
        unit=None if target is None else target.unit,
    )


def _records(
    config: Config,
    name: str,
    data_dir: str | None,
    declared: Declared,
    schema: Schema | None,
    private: bool,
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
    records = loaded.train if private or loaded.test is None else loaded.test
    data.check_dataset(records, "--data", loaded.classes)
    return records
