"""What is exported says of raw columns what `predict` says, and nothing of a record it refuses."""

import csv
import datetime
import hashlib
import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from safetensors import safe_open
from torch import nn

from experiments import tacit
from patient_tables import SCHEMA, write_tables
from tacit import train as tacit_train
from tacit.analysis.export import exported
from tacit.analysis.export.programs import onnx_model, program
from tacit.analysis.export.scorer import Scorer, Texts
from tacit.config import load_config
from tacit.data.tables import Schema
from tacit.data.tables.fields import field_text
from tacit.data.tables.kinds import DateColumn, NumberColumn
from tacit.errors import InputError, RecordsError
from tacit.features.maps import WithFeatures, known_features
from tacit.models.architectures import build_model
from tacit.training.run_folder.predictor import Predictor, load_predictor

SPACE = st.sampled_from(["", "", "", " ", "\t", "\n", "\x0b", "\x85", "\xa0", "\u2003", "\x1f"])
LOW, HIGH = datetime.date(1999, 12, 31), datetime.date(2024, 2, 29)
WORDS = ["", "NA", "-9", "3", "True", "no", "1900-01-01", "3.0"]
VALUES = ["north", "a b", "3", "-4", "true", "False", "x.y", "(*)", "é", "3.5", "3.50", "no", "-9"]
TARGETS = (
    {"column": "t", "kind": "class", "labels": ["well", "ill"]},
    {"column": "t", "kind": "class", "labels": ["a", "b", "c"]},
    {"column": "t", "kind": "number", "low": -3, "high": 900},
    {"column": "t", "kind": "number", "low": 0.1, "high": 900, "scale": "log"},
)


def made(schema, module=None, **task):
    """A predictor of a schema, or of digits, that was never trained."""
    config = load_config({"task": {"dataset": "digits", **task}, "nodes": {"count": 2}})
    if module is None:
        outputs = schema.target.classes or 1
        shape = (len(schema.features),)
        module = build_model(
            "mlp", input_shape=shape, outputs=outputs, seed=1, tables=schema.tables
        )
    return Predictor(config, schema, module.eval())


def refusing(predictor, columns):
    """What it predicts, row by row; of a row that is refused NaN and the empty text."""
    count, rows, names = len(next(iter(columns.values()))), [], ()
    for row in range(count):
        try:
            said = predictor.predict({name: own[row : row + 1] for name, own in columns.items()})
        except RecordsError:
            rows.append(None)
            continue
        names = tuple(said)
        rows.append([own[0] for own in said.values()])
    none = ["" if name == "predicted t" and predictor.labels else math.nan for name in names]
    every = [none if row is None else row for row in rows]
    return {name: np.array([row[k] for row in every]) for k, name in enumerate(names)}


def assert_same(found, wanted, scale=1.0):
    assert not wanted or list(found) == list(wanted)
    for name, own in wanted.items():
        if own.dtype.kind == "U":
            assert found[name].tolist() == own.tolist()
        else:
            np.testing.assert_allclose(found[name], own, rtol=1e-6, atol=1e-6 * scale)


def in_onnx(model, columns):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    given = {one.name: columns[one.name] for one in session.get_inputs()}
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(None, given), strict=True))


@st.composite
def kinds(draw):
    refuse = draw(st.booleans())
    missing = {"missing": "refuse" if refuse else "indicator"}
    match draw(st.sampled_from(["number", "category", "boolean", "date"])):
        case "number":
            low = draw(st.sampled_from([-1e6, -2.5, 0, 0.1]))
            high = low + draw(st.sampled_from([1e-3, 1, 77.7, 1e9]))
            fill = {} if refuse else {"fill": draw(st.sampled_from([low, high, low - 1]))}
            scale = draw(st.sampled_from(["linear", "log"]))
            return {"kind": "number", "low": low, "high": high, "scale": scale, **missing, **fill}
        case "category":
            values = draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=6, unique=True))
            return {
                "kind": "category",
                "values": list(dict.fromkeys(map(field_text, values))),
                "unknown": draw(st.sampled_from(["refuse", "other"])),
                "missing": "refuse" if refuse else "category",
                **draw(st.sampled_from([{}, {"embed": 2}])),
            }
        case "boolean":
            return {"kind": "boolean", **missing}
        case _:
            parts = draw(
                st.lists(
                    st.sampled_from(["day", "hour", "weekday", "month"]),
                    min_size=1,
                    max_size=4,
                    unique=True,
                )
            )
            return {"kind": "date", "low": LOW, "high": HIGH, "parts": parts, **missing}


def fields(kind):
    """Strategies of one raw field of a column, as a user's system may have it."""
    if kind["kind"] == "number":
        ends = [kind["low"], kind["high"], math.nan, math.inf, -math.inf, -9.0, 3.0, 0.0]
        return st.sampled_from(ends) | st.floats(allow_nan=False, width=64)
    texts = st.sampled_from([*WORDS, "zz", "3.00", "-4.0", "TRUE", "falſe", "-9.0", "3.", "1.0"])
    match kind["kind"]:
        case "category":
            texts |= st.sampled_from(kind["values"])
        case "boolean":
            texts |= st.sampled_from(["true", "YES", "f", "N", "0", "0.0", "t", "2", "1e0"])
        case _:
            day = st.dates(datetime.date(1, 1, 1), datetime.date(9999, 12, 31)).map(str)
            near = st.dates(datetime.date(1999, 1, 1), datetime.date(2025, 1, 1)).map(str)
            near |= st.sampled_from(["2000-02-29", "1900-02-29", "2023-02-29", "2024-04-31"])
            clock = st.sampled_from(["", "T00:00", " 23:59", "T07:05:09", " 12:30:59.75", "T24:01"])
            texts |= st.tuples(day | near, clock).map("".join)
            return texts
    return st.tuples(SPACE, texts, SPACE).map("".join)


@st.composite
def tables(draw):
    columns = {f"c{k}": draw(kinds()) for k in range(draw(st.integers(1, 3)))}
    rows = draw(st.integers(1, 5))
    raw = {
        name: np.array(
            draw(st.lists(fields(kind), min_size=rows, max_size=rows)),
            float if kind["kind"] == "number" else object,
        )
        for name, kind in columns.items()
    }
    words = draw(st.lists(st.sampled_from(WORDS), unique=True))
    target = draw(st.sampled_from(TARGETS))
    return {"target": target, "columns": columns, "missing_words": words}, raw


def texts_in_onnx(scorer, raw):
    """What a scorer takes, by the nodes that read texts alone."""
    given = {}
    for name, kind in scorer.kinds.items():
        if isinstance(kind, NumberColumn):
            given[name] = torch.from_numpy(raw[name])
            continue
        texts = Texts("of/")
        found = texts.read(name, kind, scorer.words)
        info = helper.make_tensor_value_info
        shape = ["n", 6] if isinstance(kind, DateColumn) else ["n"]
        graph = helper.make_graph(
            texts.nodes,
            "texts",
            [info(name, TensorProto.STRING, ["n"])],
            [info(found, TensorProto.INT64, shape)],
            texts.constants,
        )
        opset = [helper.make_opsetid("", 20)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=10)
        onnx.checker.check_model(model, full_check=True)
        given[name] = torch.from_numpy(in_onnx(model, {name: raw[name]})[found])
    return tuple(given.values())


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(tables())
def test_fields_of_every_kind_are_read_as_predict_reads_them(drawn):
    declared, raw = drawn
    predictor = made(Schema(confirmed_public=True, **declared))
    scorer = Scorer(predictor, ())
    with torch.no_grad():
        said = scorer(*texts_in_onnx(scorer, raw))
    found = {name: own.numpy() for name, own in zip(scorer.names, said, strict=True)}
    if predictor.labels:
        named = np.array([*predictor.labels, ""])
        found["predicted t"] = named[found["predicted t"]]
    wanted = refusing(predictor, raw)
    if wanted:
        assert_same(found, wanted, scale=900)
    else:  # no row has a score
        numbers = [own for own in found.values() if own.dtype.kind == "f"]
        assert all(np.isnan(own).all() for own in numbers)


EVERY = {
    "a number": {"kind": "number", "low": 0, "high": 90.1},
    "b.1": {"kind": "number", "low": 0.1, "high": 1e4, "scale": "log", "missing": "indicator"},
    "model/val_0": {"kind": "category", "values": ["a b", "3", "true"], "missing": "category"},
    "ward": {"kind": "category", "values": [f"w{k}" for k in range(700)], "unknown": "other"},
    "code": {"kind": "category", "values": ["x", "y"], "embed": 3},
    "texts/0": {"kind": "boolean", "missing": "indicator"},
    "when": {
        "kind": "date",
        "low": LOW,
        "high": HIGH,
        "parts": ["day", "hour", "weekday", "month"],
        "missing": "indicator",
    },
    "id": {"kind": "ignore"},
}


@pytest.fixture(scope="module")
def every():
    schema = Schema(confirmed_public=True, target=TARGETS[0], columns=EVERY)
    predictor = made(schema, input_bound=1.5)
    return predictor, onnx_model(Scorer(predictor, ()), {"tacit.model": "mlp"})


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_an_onnx_file_says_of_raw_columns_what_predict_says(every, data):
    predictor, model = every
    used = {name: kind for name, kind in EVERY.items() if kind["kind"] != "ignore"}
    rows = [data.draw(st.tuples(*map(fields, used.values()))) for _ in range(4)]
    known = (5.0, 7.0, "3", "w699", "y", "no", "2004-02-29 12:30")
    raw = {
        name: np.array(own, float if used[name]["kind"] == "number" else object)
        for name, own in zip(used, zip(*rows, known, strict=True), strict=True)
    }
    wanted = refusing(predictor, raw)
    assert wanted["predicted t"][-1] in ("well", "ill")
    assert_same(in_onnx(model, raw), wanted)


def test_an_onnx_file_has_standard_operators_alone_and_columns_by_name(every):
    _, model = every
    assert {one.domain for one in model.opset_import} <= {"", "ai.onnx.ml"}
    kinds = {one.name: one.type.tensor_type.elem_type for one in model.graph.input}
    number = {"a number": TensorProto.DOUBLE, "b.1": TensorProto.DOUBLE}
    texts = dict.fromkeys(EVERY.keys() - {"id"}, TensorProto.STRING)
    assert kinds == {**texts, **number}
    for one in (*model.graph.input, *model.graph.output):
        assert [size.dim_param for size in one.type.tensor_type.shape.dim] == ["records"]


class Own(nn.Module):
    """As people write them: it asks for the number of records, and normalises."""

    def __init__(self, inputs, activation=nn.functional.gelu):
        super().__init__()
        self.activation = activation
        self.norm, self.last = nn.LayerNorm(inputs), nn.Linear(inputs, 3)

    def forward(self, x):
        return self.last(self.activation(self.norm(x.reshape(len(x), -1))) * 0.1)


def images(name, shape=(1, 8, 8), **task):
    module = build_model(name, input_shape=shape, outputs=10, seed=0)
    for parameter in module.parameters():  # some start at zero
        nn.init.normal_(parameter, std=0.2)
    return made(None, module, model=name, outputs=10, **task), shape


def on_features():
    features = known_features(
        "scattering", (1, 8, 8), (81, 2, 2), torch.float32, torch.device("cpu")
    )
    own = replace(features, function=lambda images: images.square().flatten(1), shape=(64,))
    module = WithFeatures(own, 1.0, build_model("mlp", input_shape=(64,), outputs=3, seed=0))
    return made(None, module, outputs=3, features="own:squares"), (1, 8, 8)


MODELS = {
    "logistic": lambda: images("logistic"),
    "cnn": lambda: images("cnn", (1, 20, 20)),
    "cnn3": lambda: images("cnn3"),
    "float64": lambda: (made(None, Own(64, torch.relu).double(), outputs=3), (1, 8, 8)),
    "own": lambda: (made(None, Own(64), outputs=3), (1, 8, 8)),
    "one output": lambda: (made(None, nn.Linear(4, 1), loss="logistic"), (4,)),
    "numbers": lambda: (made(None, nn.Linear(4, 2), loss="mse"), (4,)),
    "features": on_features,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models_of_other_inputs_give_the_same(name):
    predictor, shape = MODELS[name]()
    inputs = torch.rand(7, *shape, generator=torch.Generator().manual_seed(3))
    if name == "float64":
        predictor = Predictor(
            load_config({"task": {"dataset": "digits", "outputs": 3}, "train": {"dtype": name}}),
            None,
            predictor.module,
        )
        inputs = inputs.double()
    model = onnx_model(Scorer(predictor, shape), {})
    assert_same(in_onnx(model, {"inputs": inputs.numpy()}), predictor.predict(inputs))


def test_what_is_no_finite_number_has_no_score():
    wrong = replace(made(None, nn.Linear(2, 3), outputs=3), module=Overflowing(2, 3))
    rows = np.array([[0, 1], [np.nan, 0], [0, -np.inf], [3e38, 3e38]], np.float32)
    session = in_onnx(onnx_model(Scorer(wrong, (2,)), {}), {"inputs": rows})
    assert list(session["prediction"][1:]) == ["", "", ""]
    assert session["prediction"][0] == wrong.predict(rows[:1])["prediction"][0]
    assert np.isnan(session["probability of 1"]).tolist() == [False, True, True, True]
    for row in range(1, 4):
        with pytest.raises(RecordsError, match=r"1 of 1 records.*finite numbers"):
            wrong.predict(rows[row : row + 1])


class Overflowing(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs * 1e4)


def test_codes_that_stand_for_nothing_have_no_score():
    date = {"kind": "date", "low": "2000-01-01", "high": "2020-01-01", "parts": ["day", "hour"]}
    columns = {"c": {"kind": "category", "values": ["u", "v"]}, "b": {"kind": "boolean"}, "d": date}
    predictor = made(Schema.of({"target": TARGETS[0], "columns": columns}))
    scorer = program(Scorer(predictor, (len(predictor.schema.features),))).module()
    day = [2010, 5, 5, 0, 0, 0]
    strange = [(0, 1, day), (2, 1, day), (0, 3, day), (0, 1, [2010, 13, *day[2:]])]
    said = scorer(*(torch.tensor(column) for column in zip(*strange, strict=True)))
    assert (said[0] == -1).tolist() == [False, True, True, True]
    assert said[1].isnan().tolist() == [False, True, True, True]


class Odd(nn.Linear):
    def forward(self, inputs):
        return torch.special.bessel_j0(super().forward(inputs))


class Branching(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs) if float(inputs.sum()) > 0 else inputs[:, :2]


@pytest.mark.parametrize(
    ("module", "named"),
    [
        (lambda: (made(None, Odd(4, 2), outputs=2), (4,)), "bessel_j0"),
        (lambda: (made(None, Branching(4, 2), outputs=2), (4,)), "forward of Branching"),
    ],
)
def test_a_module_that_no_file_holds_is_one_line_that_names_its_operator(module, named):
    with pytest.raises(InputError, match=named) as raised:
        onnx_model(Scorer(*module()), {})
    assert raised.value.where == "--to"
    assert len(str(raised.value)) < 250
    assert "--to safetensors" in str(raised.value)


def test_a_column_that_onnx_cannot_read_is_named():
    zoned = {"kind": "date", "low": LOW, "high": HIGH, "zone": "Europe/Vienna"}
    schema = Schema(confirmed_public=True, target=TARGETS[0], columns={"when": zoned})
    with pytest.raises(InputError, match=r"schema.columns.when.zone = 'Europe/Vienna'"):
        onnx_model(Scorer(made(schema), ()), {})
    number = {"predicted t": {"kind": "number", "low": 0, "high": 1}}
    schema = Schema(confirmed_public=True, target=TARGETS[0], columns=number)
    with pytest.raises(InputError, match="is what a prediction is called"):
        onnx_model(Scorer(made(schema), ()), {})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A trained run on a table, with a category that is embedded and probabilities recalibrated."""
    folder = tmp_path_factory.mktemp("run")
    diagnosis = {"kind": "category", "values": ["stroke"], "unknown": "other", "embed": 2}
    write_tables(folder, columns={**SCHEMA["columns"], "diagnosis": diagnosis})
    task = {"dataset": f"csv:{folder / 'patients.csv'}", "model": "mlp", "test_share": 0.2}
    tacit_train(
        {
            "task": {**task, "calibrate": "public"},
            "algorithm": {"name": "dyn-d2p", "learning_rate": 1.0, "clip": 1.0},
            "privacy": {"epsilon": 3.0, "delta": 1e-5},
            "train": {"steps": 5, "batch": 16},
        },
        out=folder / "run",
    )
    return folder / "run"


def raw_columns(run):
    """A hundred other patients, as they are in a file."""
    with (run.parent / "sample.csv").open(encoding="utf-8") as file:
        names, *rows = csv.reader(file)
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    kinds = SCHEMA["columns"]
    return {
        name: np.array([float(text or "nan") for text in own])
        if kinds[name]["kind"] == "number"
        else np.array(own, object)
        for name, own in columns.items()
        if name in kinds
    }


@pytest.mark.slow
def test_a_run_is_exported_by_the_command_and_is_never_overwritten(run, tmp_path):
    out = tmp_path / "model.onnx"
    ended = tacit("export", run, "--to", "onnx", "--out", out)
    assert ended.code == 0, ended.err
    assert {one.domain for one in onnx.load(out).opset_import} <= {"", "ai.onnx.ml"}
    session = onnxruntime.InferenceSession(out.read_bytes())
    columns = raw_columns(run)
    assert {one.name for one in session.get_inputs()} == columns.keys()
    said = session.run(None, columns)
    found = dict(zip([one.name for one in session.get_outputs()], said, strict=True))
    assert_same(found, load_predictor(run).predict(columns))
    result = json.loads((run / "result.json").read_text("utf-8"))
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["tacit.epsilon"]) == result["epsilon"]
    assert json.loads(facts["tacit.delta"]) == result["delta"]
    assert json.loads(facts["tacit.classes"]) == ["no", "yes"]
    assert "differential privacy" in facts["tacit.guarantee"]
    digest = hashlib.sha256((run / "result.json").read_bytes()).hexdigest()
    assert facts["tacit.run_sha256"] == digest
    before = out.read_bytes()
    again = tacit("export", run, "--to", "safetensors", "--out", out)
    assert again.code == 2
    assert "is not overwritten" in again.refusal
    assert out.read_bytes() == before


def test_weights_say_what_they_are_and_fit_the_module(run, tmp_path):
    path, site = tmp_path / "model.safetensors", tmp_path / "site"  # of one process of several
    shutil.copytree(run, site / "rank-0001")
    assert tacit("export", site, "--to", "safetensors", "--out", path).code == 0
    with safe_open(path, "pt") as file:
        facts = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    module = load_predictor(run).module
    module.load_state_dict(tensors)
    schema = Schema(**json.loads(facts["tacit.schema"]))
    assert schema.digest == load_predictor(run).schema.digest
    assert (facts["tacit.loss"], facts["tacit.private"]) == ("cross-entropy", "true")


PROGRAM = """
import json, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tacit":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import torch
said = {"tacit.json": ""}
module = torch.export.load(sys.argv[1], extra_files=said).module()
facts = json.loads(said["tacit.json"])
columns = json.load(sys.stdin)
known = json.loads(facts["tacit.inputs"])
given = []
for name, values in known.items():
    if values is None:
        given.append(torch.tensor(columns[name], dtype=torch.float64))
    else:
        given.append(torch.tensor([values.index(text) for text in columns[name]]))
found = [own.tolist() for own in module(*given)]
print(json.dumps(dict(zip(json.loads(facts["tacit.outputs"]), found))))
"""


def test_a_program_of_pytorch_runs_where_tacit_is_not(run, tmp_path):
    path = tmp_path / "model.pt2"
    path.write_bytes(exported(run, "torch"))
    columns = raw_columns(run)
    wanted = load_predictor(run).predict(columns)
    words = {"smoker": {"yes": "true", "no": "false", "": "(missing)"}}
    others = dict.fromkeys({*columns["diagnosis"]} - {"stroke"}, "(other)")
    words["diagnosis"] = {"stroke": "stroke", **others}
    told = {
        name: [words.get(name, {}).get(value, value) for value in own.tolist()]
        for name, own in columns.items()
    }
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(path)],
        input=json.dumps(told),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = {name: np.array(own) for name, own in json.loads(ended.stdout).items()}
    found["predicted readmitted"] = np.array(["no", "yes"])[found["predicted readmitted"]]
    assert_same(found, wanted)
