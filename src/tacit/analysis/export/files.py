"""The files that `tacit export` writes, and what each says of itself."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file, save

from tacit.analysis.export.programs import onnx_model, program
from tacit.analysis.export.scorer import Scorer
from tacit.base.plain_files import check_plain
from tacit.config import Config
from tacit.data import Schema
from tacit.data.tables.kinds import BooleanColumn, CategoryColumn
from tacit.errors import optional
from tacit.report.documents.run import ResultDocument
from tacit.training.run_folder.folder import MODEL, RESULT, read_config
from tacit.training.run_folder.predictor import load_predictor, result_of, schema_of, shape_of

To = Literal["onnx", "safetensors", "torch"]
ENDINGS: dict[To, str] = {"onnx": ".onnx", "safetensors": ".safetensors", "torch": ".pt2"}


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
