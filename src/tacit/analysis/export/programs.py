"""A scorer as a program of PyTorch, and as an ONNX model that takes columns as they are."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tacit.analysis.export.scorer import Scorer
from tacit.analysis.export.texts import Texts
from tacit.data.tables.kinds import DateColumn, NumberColumn
from tacit.errors import InputError, describe, optional

OPSET = 20
"""The first with operators for text."""


def program(module: nn.Module, examples: Sequence[Tensor]) -> torch.export.ExportedProgram:
    """The program of a module, for any number of records, tried out on examples of two.

    Raises:
        InputError: on `--to`, if the module does what no program can.
    """
    records = torch.export.Dim("records")
    shapes = tuple({0: records} for _ in examples)
    with _quiet(), _refused("torch"):
        return torch.export.export(module.eval(), tuple(examples), dynamic_shapes=(shapes,))


def onnx_model(
    module: nn.Module,
    examples: Sequence[Tensor],
    names: Sequence[str],
    outputs: Sequence[str],
    labels: Sequence[str] | None,
    facts: Mapping[str, str],
) -> Any:
    """The ONNX model of a module: of a `Scorer`, its inputs are raw columns, by name.

    Numbers are float64 `[records]`, NaN where missing; all other columns are texts `[records]`.

    Args:
        names: of its inputs.
        outputs: names of what it gives.
        labels: of classes, by which the first output, their places, is replaced.
        facts: what the file says of itself, by name.

    Raises:
        InputError: on `--to`, if an operation of the module has no standard operator.
    """
    onnx, _ = optional("onnx"), optional("onnxscript")
    made = program(module, examples)
    with _quiet(), _refused("onnx"):
        exported = torch.onnx.export(made, dynamo=True, opset_version=OPSET, verbose=False)
    model = exported.model_proto
    strange = sorted({one.domain for one in model.opset_import} - {"", "ai.onnx.ml"})
    if strange:
        raise _refusal("onnx", f"operators of {', '.join(strange)}")
    prefix = "model/"
    while any(name.startswith((prefix, "texts/")) for name in (*names, *outputs)):
        prefix, names = f"/{prefix}", names
    model = onnx.compose.add_prefix(model, prefix)
    graph, texts, helper = model.graph, Texts(), onnx.helper
    inputs = []
    for name, inner in zip(names, graph.input, strict=True):
        kind = module.used[name] if isinstance(module, Scorer) else None
        if isinstance(kind, DateColumn) and kind.zone is not None:
            expected = f"the column has a zone ({kind.zone}), which no ONNX operator knows"
            raise InputError(f"schema.columns.{name}", "date", expected)
        source, outer = name, onnx.ValueInfoProto()
        outer.CopyFrom(inner)
        outer.name = name
        if kind is not None and not isinstance(kind, NumberColumn):
            source = texts.read(name, kind, module.schema.missing_words)
            outer = helper.make_tensor_value_info(name, onnx.TensorProto.STRING, ["records"])
        texts.nodes.append(helper.make_node("Identity", [source], [inner.name]))
        inputs.append(outer)
    after = []
    for place, (name, inner) in enumerate(zip(outputs, graph.output, strict=True)):
        if labels is not None and place == 0:
            known = texts.constant([*labels, ""])  # the last is that of -1, for no score
            after.append(helper.make_node("Gather", [known, inner.name], [name]))
            inner.type.tensor_type.elem_type = onnx.TensorProto.STRING
        else:
            after.append(helper.make_node("Identity", [inner.name], [name]))
        inner.name = name
    nodes = [*texts.nodes, *graph.node, *after]
    for field, values in {"node": nodes, "input": inputs}.items():
        del getattr(graph, field)[:]
        getattr(graph, field).extend(values)
    graph.initializer.extend(texts.constants)
    helper.set_model_props(model, dict(facts))
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
def _refused(to: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever the exporters, or the user's module, raise
        raise _refusal(to, describe(error)) from error


def _refusal(to: str, found: str) -> InputError:
    return InputError("--to", to, f"the model has {found}")
