"""Using what was trained: the consensus model of a run folder, and its score on other records."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from tacit import data
from tacit.base.plain_files import check_plain
from tacit.config import GIVEN, Config
from tacit.data.formats.svmlight import Declared
from tacit.data.tables import find_schema, is_table
from tacit.errors import FormatError, InputError
from tacit.features.maps import WithFeatures, known_features
from tacit.gradients import with_output
from tacit.gradients.inputs import with_inputs
from tacit.models import architectures as models
from tacit.models.architectures import find_loss, find_output
from tacit.models.metrics import GIVEN_METRIC, baselines, check_metrics, find_metrics, score
from tacit.report.documents.run import LET_IT_END, ModelShape, ResultDocument, read_result
from tacit.report.measures import ACCURACY, LOSS, measure_of
from tacit.training.job import DTYPES
from tacit.training.recalibration import halves
from tacit.training.run_folder.folder import trusted_config

_RECORDS_AT_ONCE = 1024
_OF_TRAINING = ("task.augmentation", "nodes.source")


@dataclass(frozen=True)
class Score:
    """The consensus model of a run on a data set.

    `metrics` are those of the task by name, the leading one first; functions that were passed as
    objects are left out. `accuracy` is the share that is right, None where the loss has no notion
    of it, and `loss` the mean over records. `baselines` say by name what a model that ignores its
    inputs scores; None where it is not known.
    """

    dataset: str
    records: int
    metrics: dict[str, float]
    accuracy: float | None
    loss: float
    baselines: dict[str, float | None]

    def describe(self) -> str:
        """One line for people, the leading score first; and one for each that is of no use."""
        scores = {measure_of(name): value for name, value in self.metrics.items()}
        if self.accuracy is not None:
            scores.setdefault(ACCURACY, self.accuracy)
        scores[LOSS] = self.loss
        pairs = [(own, value, self.baselines[own.name]) for own, value in scores.items()]
        told = "; ".join(own.beside(*pair) for own, *pair in pairs)
        notes = [f"note: {note}" for own, *pair in pairs if (note := own.no_better(*pair))]
        return "\n".join([f"{self.dataset}: {told} on {self.records:,} records", *notes])


def load_model(run: str | Path, *, trust: bool = False) -> nn.Module:
    """The consensus model of a run folder, in evaluation mode.

    That of a run on features takes records as they are before, and makes their features itself.
    With `trust`, functions that the experiment names (`module:function`) may be imported and
    called; of somebody else's folder that is code of theirs.

    Raises:
        InputError: the folder holds no finished model, its module was passed as an object, or it
            names functions that are not trusted.
    """
    folder = Path(run)
    unused = ("task.dataset", "task.loss", "task.output", "task.metric", *_OF_TRAINING)
    config = trusted_config(folder, trust, unused=unused)
    if config.task.model == GIVEN:
        raise InputError(
            "RUN",
            str(run),
            "its model was passed as an object: build it and load model.safetensors into it",
        )
    result = _result(folder)
    if result.status == "diverged":
        raise InputError("RUN", str(run), "has no model: the run diverged")
    shape = _shape(folder, result)
    module = models.build_model(
        config.task.model,
        input_shape=shape.input_shape,
        outputs=shape.outputs,
        seed=config.train.seed,
    ).to(DTYPES[config.train.dtype])
    path = folder / "model.safetensors"
    try:
        check_plain(path)
        module.load_state_dict(load_file(path))
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
    unused = ("task.dataset", *_OF_TRAINING) if dataset else _OF_TRAINING
    config = trusted_config(Path(run), trust, unused=unused)
    if config.task.output == GIVEN:
        raise InputError(
            "RUN",
            str(run),
            "its output= was passed as a function: name it as task.output = 'module:function'",
        )
    module = with_output(load_model(run, trust=trust), find_output(config.task.output))
    name = dataset or config.task.dataset
    shape = _shape(Path(run), _result(Path(run)))
    expected = shape.record_shape or shape.input_shape
    declared = replace(config.task.declared, features=math.prod(expected), outputs=shape.outputs)
    records = _records(config, name, data_dir, declared)
    if tuple(records.inputs.shape[1:]) != expected:
        raise InputError(
            "--data",
            name,
            f"its records have shape {list(records.inputs.shape[1:])}; the model takes "
            f"{list(expected)}",
        )
    module = with_inputs(module, records.packed)
    loss = find_loss(config.task.loss, class_weights=config.task.class_weights)
    metrics = find_metrics(
        [name for name in config.task.metric or () if not name.startswith(GIVEN_METRIC)]
    )
    dtype = DTYPES[config.train.dtype]
    inputs = records.inputs.to(models.input_dtype(module, records.inputs[:1], dtype))
    if config.input_bound is not None and config.task.feature_map is None:
        inputs = data.bounded_inputs(inputs, config.input_bound)
    with torch.no_grad():
        outputs = torch.cat([module(part) for part in torch.split(inputs, _RECORDS_AT_ONCE)])
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
    )


def _records(config: Config, name: str, data_dir: str | None, declared: Declared) -> data.Dataset:
    if name == GIVEN:
        raise InputError("--data", name, "the run's data were passed as objects: name a data set")
    directory = Path(data_dir or config.task.data_dir)
    task, table = config.task, is_table(name)
    same = name == task.dataset
    loaded = data.load(
        name,
        data_dir=directory,
        seed=config.train.seed,
        schema=find_schema(task.schema, directory) if table and task.schema is not None else None,
        test=task.test if same else None,
        test_share=task.test_share if same else None,
        declared=declared,
    )
    records = loaded.train if loaded.test is None else loaded.test
    if same and task.calibrate == "public":  # the others were fitted to
        records, _ = halves(records)
    data.check_dataset(records, "--data", loaded.classes)
    return records


def _result(folder: Path) -> ResultDocument:
    try:
        return read_result(folder / "result.json")
    except FormatError:
        raise
    except InputError:
        raise InputError("RUN", str(folder), f"has no result yet: {LET_IT_END}") from None


def _shape(folder: Path, result: ResultDocument) -> ModelShape:
    if result.model_shape is None:
        raise InputError("RUN", str(folder), "has a result without the shape of its model")
    return result.model_shape
