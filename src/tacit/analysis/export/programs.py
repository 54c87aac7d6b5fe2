"""The files that `tacit export` writes, and what each says of itself.

A scorer is a program of PyTorch, or an ONNX model that takes columns as they are.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save
from torch import nn

from tacit.analysis.export.scorer import Scorer, Texts
from tacit.base.plain_files import check_plain
from tacit.base.version import __version__
from tacit.config import Config
from tacit.data import Schema
from tacit.data.tables.kinds import BooleanColumn, CategoryColumn, DateColumn, NumberColumn
from tacit.errors import InputError, describe, optional
from tacit.report.documents.run import ResultDocument
from tacit.training.run_folder.folder import MODEL, RESULT, read_config
from tacit.training.run_folder.predictor import load_predictor, result_of, schema_of, shape_of

To = Literal["onnx", "safetensors", "torch"]
ENDINGS: dict[To, str] = {"onnx": ".onnx", "safetensors": ".safetensors", "torch": ".pt2"}
_OPSET = 20  # the first with operators for text


def exported(run: Path, to: To, *, trust: bool = False) -> bytes:
    """The content of a file of the run's consensus model.

    Weights need no word of `trust`, which is as in `load_model`: they call nothing.

    Raises:
        InputError: as `load_predictor`; or the model has no such form, which names why.
    """
    if to == "onnx":  # a package that is missing is said before there is any work
        optional("onnx"), optional("onnxscript")
    result = result_of(run)
    if to == "safetensors":
        check_plain(run / MODEL)
        facts = _facts(run, result, read_config(run), schema_of(run))
        return save(load_file(run / MODEL), facts)
    predictor, shape = load_predictor(run, trust=trust), shape_of(run, result)
    scorer = Scorer(predictor, shape.record_shape or shape.input_shape)
    facts = _facts(run, result, predictor.config, predictor.schema, scorer)
    if to == "onnx":
        return bytes(onnx_model(scorer, facts).SerializeToString())
    buffer = io.BytesIO()
    torch.export.save(program(scorer), buffer, extra_files={"tacit.json": json.dumps(facts)})
    return buffer.getvalue()


def _facts(
    run: Path,
    result: ResultDocument,
    config: Config,
    schema: Schema | None,
    scorer: Scorer | None = None,
) -> dict[str, str]:
    """What a model is and was trained with; lists, one entry a node, and mappings as JSON."""
    guarantee = f"not private: {result.not_private_reason}"
    if result.private and result.certified is not None:
        guarantee = (
            f"trained with differential privacy; certified epsilon at most {result.certified:.4g}, "
            f"of one {result.unit.name}, {result.relation}; by node in tacit.epsilon, tacit.delta"
        )
    facts: dict[str, object] = {
        "version": result.tacit_version,
        "model": config.task.model,
        "loss": config.task.loss,
        "private": result.private,
        "guarantee": guarantee,
        "epsilon": result.epsilon,
        "delta": result.delta,
        "person_epsilon": result.unit.epsilon,
        "nodes": result.node_names,
        "run_sha256": hashlib.sha256((run / RESULT).read_bytes()).hexdigest(),
    }
    if schema is not None:
        facts["schema"] = schema.model_dump(mode="json", exclude_none=True)
        facts["classes"] = getattr(schema.target, "labels", None)
    if scorer is not None:
        facts["inputs"] = {name: _values(scorer, name) for name in scorer.columns}
        facts["outputs"] = scorer.names
    return {
        f"tacit.{name}": value if isinstance(value, str) else json.dumps(value)
        for name, value in facts.items()
        if value is not None
    }


def _values(scorer: Scorer, name: str) -> object:
    """What the codes of a column stand for; None: it is given in numbers."""
    match scorer.kinds.get(name):
        case CategoryColumn() as kind:
            return kind.known
        case BooleanColumn():
            return ["false", "true", "(missing)"]
        case _:
            return None


def program(scorer: Scorer) -> torch.export.ExportedProgram:
    """The program of a scorer, for any number of records.

    Raises:
        InputError: on `--to`, if its module does what no program can.
    """
    features = scorer.predictor.config.task.feature_map
    if features is not None and ":" not in features.replace("scattering:", ""):
        raise _refusal(features)
    shapes = (tuple({0: torch.export.Dim("records")} for _ in scorer.examples),)
    with _quiet(), _refused():
        try:
            return torch.export.export(scorer, scorer.examples, dynamic_shapes=shapes)
        except Exception as error:
            with suppress(Exception):  # one that asks for len(records) takes the other way
                return torch.export.export(
                    scorer, scorer.examples, dynamic_shapes=shapes, strict=True
                )
            raise error


def onnx_model(scorer: Scorer, facts: Mapping[str, str]) -> Any:
    """The ONNX model of a scorer, with columns as they are for its inputs, and classes by name.

    Numbers are float64 `[records]`, NaN where missing; all other columns are texts `[records]`.
    `facts` are what the file says of itself, by name.

    Raises:
        InputError: a column cannot be read by standard operators, or, on `--to`, the module has an
            operation that is none.
    """
    onnx, _ = optional("onnx"), optional("onnxscript")
    for name, one in scorer.kinds.items():
        if isinstance(one, DateColumn) and one.zone is not None:
            expected = "of a column with a zone ONNX has no operators: export it --to torch"
            raise InputError(f"schema.columns.{name}.zone", one.zone, expected)
    for name in {*scorer.names} & {*scorer.columns}:
        raise InputError(
            f"schema.columns.{name}", name, "is what a prediction is called: rename it"
        )
    made = program(scorer)
    with _quiet(), _refused():
        options: Any = {"dynamo": True, "opset_version": _OPSET, "verbose": False}
        exported: Any = torch.onnx.export(made, **options)
    model = exported.model_proto
    strange = sorted({one.domain for one in model.opset_import} - {"", "ai.onnx.ml"})
    if strange:
        raise _refusal(f"operators of {', '.join(strange)}")
    prefix = "model/"
    while any(name.startswith(prefix) for name in (*scorer.columns, *scorer.names)):
        prefix = f"/{prefix}"
    model = onnx.compose.add_prefix(model, prefix)
    graph, texts, inputs, after = model.graph, Texts(f"{prefix}texts/"), [], []
    for info in (*graph.value_info, *graph.input, *graph.output):
        for size in info.type.tensor_type.shape.dim:
            size.dim_param = "records" if size.dim_param else ""
    for name, inner in zip(scorer.columns, graph.input, strict=True):
        source, kind = name, scorer.kinds.get(name)
        outer = onnx.ValueInfoProto()
        outer.CopyFrom(inner)
        outer.name = name
        if kind is not None and not isinstance(kind, NumberColumn):
            source = texts.read(name, kind, scorer.words)
            shape = ["records"]
            outer = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.STRING, shape)
        texts.nodes.append(onnx.helper.make_node("Identity", [source], [inner.name]))
        inputs.append(outer)
    for name, inner in zip(scorer.names, graph.output, strict=True):
        operator, sources = "Identity", [inner.name]
        if inner.type.tensor_type.elem_type == onnx.TensorProto.INT64:
            # The last is what stands at -1, for no score.
            operator, sources = "Gather", [texts.constant([*(scorer.labels or ()), ""]), inner.name]
            inner.type.tensor_type.elem_type = onnx.TensorProto.STRING
        after.append(onnx.helper.make_node(operator, sources, [name]))
        inner.name = name
    for field, values in {"node": [*texts.nodes, *graph.node, *after], "input": inputs}.items():
        del getattr(graph, field)[:]
        getattr(graph, field).extend(values)
    graph.initializer.extend(texts.constants)
    onnx.helper.set_model_props(model, dict(facts))
    model.producer_name, model.producer_version = "tacit", __version__
    onnx.checker.check_model(model, full_check=True)
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporters say of packages that are not installed, and of their own ways."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


@contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever the exporters, or the user's module, raise
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        layers = [
            f"the forward of {type(layer).__name__}"
            for frame in frames
            if isinstance(layer := frame.f_locals.get("self"), nn.Module)
            and frame.f_code.co_name == "forward"
        ]
        operators = re.findall(r"\b(?:aten|prims)[.:]+\w+", str(error))
        raise _refusal([describe(error), *layers[1:], *operators[:1]][-1]) from error


def _refusal(found: str) -> InputError:
    expected = "its module has what no such file can hold: --to safetensors writes its weights"
    return InputError("--to", found, expected)
