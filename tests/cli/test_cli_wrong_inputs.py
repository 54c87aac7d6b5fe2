"""Sixty and more wrong command lines: one plain line each, with the key and what would be right."""

import os
from pathlib import Path

import pytest

from experiments import tacit, tree, write_experiment, write_module

pytestmark = pytest.mark.slow

SECRET = "31337"  # stands in private records, and in no message

OWN = f"""
import sys
import numpy as np

torch.manual_seed(0)
inputs, labels = torch.randn(40, 6) + {SECRET}, torch.arange(40) % 2

def nan():
    wrong = inputs.clone()
    wrong[3, 2] = float("nan")
    return (wrong, labels), None

def sparse(): return (inputs.to_sparse(), labels), None
def masked(): return (np.ma.masked_array(inputs.numpy(), inputs.numpy() > 0), labels), None
def words(): return ([["{SECRET}"] * 6] * 40, labels), None
def many(): return TaskData("many", Dataset(inputs, labels + {SECRET}), None, classes=2)
def test_classes():
    return TaskData("t", Dataset(inputs, labels), Dataset(inputs, labels + 5), classes=2)
def ends(): sys.exit(0)
def raises(): raise ValueError("no such table")
def nothing(): return None
def uneven(): return (inputs, labels[:-1]), None
def mixed(): return (inputs, labels), (inputs[:4, :3], labels[:4])
def lines(): raise RuntimeError("first line\\nsecond line")
def empty(): return (inputs[:0], labels[:0]), None
"""

# What is written, the exit code, and words that the line must have. {run} is a finished run, {file}
# an experiment, {own} a module of the user's.
TRAIN = "train {file} --out new --set "
PLAN = "plan {file} --set "
WRONG = (
    # Commands, options and files.
    ("trian {file}", 2, ("trian", "--help")),
    ("train", 2, ("FILE",)),
    ("train {file} extra", 2, ("extra",)),
    ("train {file} --otu x", 2, ("--otu",)),
    ("train {file} --out", 2, ("--out",)),
    ("train nope.toml", 2, ("nope.toml", "give a readable TOML file")),
    ("train .", 2, ("Is a directory", "TOML")),
    ("train broken.toml", 2, ("broken.toml", "not valid TOML")),
    ("train binary.toml", 2, ("binary.toml", "UTF-8")),
    ("train figure.toml", 2, ("[figure]", "tacit compare")),
    ("plan p.schema.toml", 2, ("p.schema.toml", "is the schema of a table", "task.schema")),
    ("train p.csv", 2, ("p.csv", "is a table", "tacit init --csv p.csv")),
    ("launch p.parquet --processes 2", 2, ("p.parquet", "tacit init --parquet p.parquet")),
    ("audit p.csv", 2, ("p.csv", "tacit init --csv p.csv")),
    ("plan {run}", 2, ("is the folder of a run", "run/config.toml")),
    (PLAN + "task.dataset=csv:p.csv --set task.schema={file}", 2, ("is an experiment", "schema")),
    (PLAN + "task.dataset=csv:p.csv --set task.schema=p.csv", 2, ("task.schema", "is a table")),
    ("train {file} --epsilon 2", 2, ("--epsilon", "--set privacy.epsilon=2")),
    ("train {file} --eps 2", 2, ("--eps", "--set privacy.epsilon=2")),
    ("train {file} --nodes 2", 2, ("--nodes", "--set nodes.count=2")),
    ("train {file} --lr 2", 2, ("--lr", "--set algorithm.learning_rate=2")),
    ("train {file} --epochs 2", 2, ("--epochs is no option",)),  # steps are something else
    ("train {file} --noise-multiplier 2", 2, ("--noise-multiplier is no option",)),
    ("train {file} --output runs/a", 2, ("No such option: --output", "--out")),
    ("plan {file} --learning-rate 2", 2, ("--set algorithm.learning_rate=2",)),
    ("audit {file} --batch-size=7", 2, ("--set train.batch=VALUE",)),
    ("plan {file} --set epsilon=2", 2, ("--set", "privacy.epsilon=2")),
    ("train {file} --resume", 2, ("--resume", "--out")),
    ("train {file} --out {run}", 2, ("out", "exists already", "--resume")),
    ("train {file} --out nope --resume", 2, ("nope", "no run to resume")),
    ("train {file} --out {run} --resume", 2, ("privacy.noise_seed", "as it began")),
    ("train {file} --out {file}/run", 2, ("out", "cannot be written")),
    ("train {file} --set train.steps", 2, ("--set", "section.key=value")),
    ("plan {file} --batch", 2, ("--batch", "--optimise")),
    ("plan {file} --page new.html", 2, ("--page", "--optimise")),
    ("plan {file} --optimise --constant Q=1", 2, ("constants", "L")),
    ("plan {file} --optimise --constant L", 2, ("--constant", "NAME=VALUE")),
    ("plan {file} --optimise --constant L=many", 2, ("--constant", "NUMBER")),
    ("launch {file} --processes 0", 2, ("--processes", "from 1 to 4")),
    ("launch {file} --processes 9", 2, ("--processes", "from 1 to 4")),
    ("launch {file} --processes 2 --restarts 1", 2, ("--restarts", "--out")),
    ("launch nope.toml --processes 2", 2, ("nope.toml", "TOML")),
    ("compare nope.toml", 2, ("nope.toml", "TOML")),
    ("compare {file} --jobs 0", 2, ("--jobs", "1 to 1000")),
    ("compare {file} --seeds 0", 2, ("--seeds", "1 to 1000")),
    ("compare {file} {file}", 2, ("FILE", "twice")),
    ("compare {file} --out {run}", 2, ("out",)),
    ("audit nope.toml", 2, ("nope.toml",)),
    ("audit {file} --repetitions 1", 2, ("repetitions", "100 or more")),
    ("audit {file} --confidence 2", 2, ("confidence", "[0.5, 1)")),
    ("audit {file} --delta 0", 2, ("delta", "between 0 and 1")),
    ("audit {run} --steps 3", 2, ("--steps", "as it is")),
    ("audit half", 2, ("half", "config.toml")),
    ("evaluate nope", 2, ("nope", "does not exist")),
    ("evaluate {run} --data nope", 2, ("nope", "known are")),
    ("report .", 2, ("RUN", "result.json")),
    ("report nope", 2, ("RUN", "nope", "does not exist")),
    ("report {file}", 2, ("RUN", "is no folder")),
    ("report half --json", 2, ("RUN", "half", "result.json")),
    ("privacy clams", 2, ("clams",)),
    ("privacy claims nope.toml", 2, ("nope.toml",)),
    ("privacy ledger nope", 2, ("ledger", "existing ledger")),
    ("privacy ledger {file}", 2, ("ledger",)),
    ("privacy statement nope", 2, ("RUN", "nope", "does not exist")),
    ("privacy statement {run}", 2, ("RUN", "not private")),
    ("privacy check nope", 2, ("statement", "tacit privacy statement")),
    ("privacy check {file}", 2, ("statement", "statement.json")),
    # Keys and values.
    (PLAN + "trian.steps=3", 2, ("[trian]", "'train'")),
    (PLAN + "train.batch=1000000", 2, ("train.batch", "at most")),
    (PLAN + "train.device=tpu9", 2, ("train.device", "'cpu'")),
    (PLAN + "train.device=meta", 2, ("train.device", "'cpu'")),
    (PLAN + "train.sampling=fixed --set train.batch=8", 2, ("train.sampling", "replace-one")),
    (PLAN + "privacy.epsilon=1e-9", 3, ("privacy.epsilon", "fits")),
    (PLAN + "privacy.delta=1e-300", 2, ("privacy.delta", "1e-300", "1e-100")),
    (PLAN + "algorithm.name=dp2", 2, ("algorithm.name", "dp2-sgd")),
    (PLAN + "algorithm.name=fedprox", 2, ("is no algorithm here; known are", "tacit algorithms")),
    (PLAN + "task.metric=AUROC", 2, ("task.metric", "did you mean 'auc'?")),
    (PLAN + "task.class_weights=balanced", 2, ("[1.0, 8.5]", "tacit privacy labels")),
    (PLAN + "nodes.partition=by:ward", 2, ("by:ward", "records can be divided by:label")),
    (PLAN + "train.views=x", 2, ("train.views", "whole number")),
    (
        PLAN + "algorithm.name=dp2-sgd --set algorithm.momentum=0.9",
        2,
        ("algorithm.momentum", "no option of dp2-sgd", "privsgp"),
    ),
    (PLAN + "algorithm.moment=0.9", 2, ("algorithm.moment", "'momentum'")),
    (
        PLAN + "algorithm.name=dyn-general --set algorithm.clip_schedule=[1,2]",
        2,
        ("algorithm.clip_schedule", "needs one for each"),
    ),
    (PLAN + "algorithm.name=sgp", 2, ("privacy.epsilon", "adds no noise")),
    (PLAN + "topology.graph=rign", 2, ("topology.graph", "ring")),
    (PLAN + "topology.degree=3", 2, ("topology.degree",)),
    (
        PLAN + "algorithm.name=dp2-sgd --set topology.graph=exponential",
        2,
        ("topology.graph", "needs symmetric weights"),
    ),
    (PLAN + "nodes.count=2000", 2, ("nodes.count", "1 to 1437, the number of training records")),
    (PLAN + "nodes.partition=iidd", 2, ("nodes.partition", "iid")),
    (PLAN + "nodes.partition=dirichlet", 2, ("nodes.alpha",)),
    (PLAN + "nodes.data=by-rank", 2, ("nodes.source", "{{node}}")),
    (PLAN + "task.model=mpl", 2, ("task.model", "mlp")),
    (PLAN + "task.loss=mse", 2, ("task.dataset", "mse needs floating-point targets")),
    (PLAN + "task.outputs=3", 2, ("task.dataset", "0 to 2")),
    (PLAN + "faults.drop=2", 2, ("faults.drop", "below 1")),
    # Data.
    (TRAIN + "task.dataset=nope", 2, ("task.dataset", "known are", "module:function")),
    (TRAIN + "task.dataset=svmlight:nope.txt", 2, ("nope.txt",)),
    (TRAIN + "task.dataset=nope:load", 2, ("task.dataset", "no module")),
    (TRAIN + "task.dataset={own}:lode", 2, ("task.dataset", "no function")),
    (TRAIN + "task.dataset={own}:ends", 2, ("task.dataset", "SystemExit")),
    (TRAIN + "task.dataset={own}:raises", 2, ("task.dataset", "ValueError")),
    (TRAIN + "task.dataset={own}:nothing", 2, ("task.dataset", "TaskData")),
    (TRAIN + "task.dataset={own}:nan", 2, ("task.dataset", "finite")),
    (TRAIN + "task.dataset={own}:sparse", 2, ("task.dataset", ".to_dense()")),
    (TRAIN + "task.dataset={own}:masked", 2, ("task.dataset", "mask")),
    (TRAIN + "task.dataset={own}:words", 2, ("task.dataset", "numbers")),
    (TRAIN + "task.dataset={own}:many", 2, ("task.dataset", "0 to 1")),
    (TRAIN + "task.dataset={own}:test_classes", 2, ("task.dataset", "test", "0 to 1")),
    (TRAIN + "task.dataset={own}:uneven", 2, ("task.dataset", "40", "39")),
    (TRAIN + "task.dataset={own}:mixed", 2, ("task.dataset", "as in the training data")),
    (TRAIN + "task.dataset={own}:lines", 2, ("task.dataset", "first line second line")),
    (TRAIN + "task.dataset={own}:empty", 2, ("task.dataset", "at least one record")),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with an experiment, a finished run and files that are none; and their names."""
    folder = tmp_path_factory.mktemp("wrong")
    before = Path.cwd()
    os.chdir(folder)
    private = {"noise_std": None, "noise_seed": None, "epsilon": 2.0, "delta": 1e-4}
    write_experiment(folder, privacy=private)
    (folder / "broken.toml").write_text("[task\n")
    (folder / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (folder / "figure.toml").write_text('[task]\ndataset = "digits"\n[figure]\n')
    (folder / "half").mkdir()
    (folder / "p.csv").write_text("age,died\n1,no\n")
    (folder / "p.parquet").write_bytes(b"PAR1")
    schema = '[target]\ncolumn = "died"\nkind = "class"\nlabels = ["no", "yes"]\n'
    (folder / "p.schema.toml").write_text(schema + '[columns.age]\nkind = "boolean"\n')
    seeded = ("--set", "privacy.noise_seed=1", "--set", "train.steps=2")
    assert tacit("train", "experiment.toml", "--out", "run", "--quiet", *seeded).code == 0
    own = write_module(folder, OWN)
    yield folder, {"file": "experiment.toml", "run": "run", "own": own}
    os.chdir(before)


def test_there_are_enough_of_them_and_none_twice():
    lines = [line for line, *_ in WRONG]
    assert len(lines) == len(set(lines)) >= 60


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_wrong_command_line_is_answered_in_one_plain_line(number, place):
    """No traceback, the exit code, key and remedy, nothing left behind, nothing of a record."""
    folder, names = place
    line, code, words = WRONG[number]
    before = tree(folder)
    answer = tacit(*line.format(**names).split())
    assert answer.code == code, answer.err
    for word in words:
        assert word.format(**names) in answer.refusal
    assert "a defect of ours" not in answer.err
    assert SECRET not in answer.err
    assert tree(folder) == before


def test_a_model_that_is_absurdly_large_is_no_result(place):
    """What was sent by then is in the ledger, and the folder says how the run ended."""
    folder, names = place
    answer = tacit(*f"{TRAIN}algorithm.learning_rate=1e30".format(**names).split())
    *_, refusal = answer.err.splitlines()
    assert (answer.code, answer.out) == (2, "")
    assert "has numbers above 1e+15 after step 1: lower algorithm.learning_rate" in refusal
    assert {"new/ledger.sqlite", "new/result.json"} <= tree(folder)
    assert tacit("privacy", "ledger", "new/ledger.sqlite", "--json").json["nodes"]
