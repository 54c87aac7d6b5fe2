"""Folders and files of somebody else: none of their code is called, and none of them is endless."""

import json
import os
from pathlib import Path

import pytest

import tacit as library
from experiments import tacit, write_experiment, write_module
from tacit.analysis.audit.report import run_experiment
from tacit.analysis.score import evaluate_run
from tacit.config import load_config, to_toml
from tacit.errors import InputError
from tacit.training.run_folder.folder import trusted_config

CALLED = "from pathlib import Path\nPath('CALLED').touch()\ndef make(*a, **k): raise ValueError\n"
KEYS = ("dataset", "model", "loss", "output", "metric", "features", "augmentation")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The current directory is that in which the folder of the run lies."""
    monkeypatch.chdir(tmp_path)


def naming(run, section, key, value):
    """Write into the run's experiment that a key names a function."""
    config = load_config(run / "config.toml", saved=True)
    changed = getattr(config, section).model_copy(update={key: value})
    text = to_toml(config.model_copy(update={section: changed}))
    (run / "config.toml").write_text(text, encoding="utf-8")


# Code of theirs


@pytest.mark.parametrize("key", KEYS)
def test_what_a_run_folder_names_is_called_with_trust_alone(run, key):
    reference = f"{write_module(run.parent, CALLED)}:make"
    naming(run, "task", key, (reference,) if key == "metric" else reference)
    doors = [
        lambda: library.load_model(run),
        lambda: evaluate_run(run),
        lambda: run_experiment(run, False),
    ]
    used = {"model": 3, "features": 3, "augmentation": 1}  # elsewhere it has no use for them
    for door in doors[-used.get(key, 2) :]:
        with pytest.raises(InputError, match="--trust") as refusal:
            door()
        assert f"task.{key} = '{reference}'" in str(refusal.value)
    for words in (["evaluate", run], ["audit", run], ["report", run], ["watch", run, "--once"]):
        answer = tacit(*words)
        if words[0] == "audit" or (words[0] == "evaluate" and key != "augmentation"):
            assert answer.code == 2
            assert f"task.{key} = '{reference}'" in answer.refusal
            assert "--trust" in answer.refusal
    assert not Path("CALLED").exists()
    if key != "augmentation":
        answer = tacit("evaluate", run, "--trust")
        assert answer.code == 2  # it raises
        assert Path("CALLED").exists()


def test_what_the_user_names_needs_no_trust(run):
    named = write_module(run.parent, CALLED)
    naming(run, "task", "dataset", f"{named}:make")
    assert library.load_model(run) is not None
    assert tacit("evaluate", run, "--data", "digits").code == 0
    own = load_config(run / "config.toml", saved=True)
    assert trusted_config(run, False, own=own) == own
    other = own.model_copy(update={"task": own.task.model_copy(update={"dataset": "digits"})})
    with pytest.raises(InputError, match="names a function"):
        trusted_config(run, False, own=other)
    naming(run, "task", "dataset", "csv:table")  # a scheme of ours, and no module
    assert trusted_config(run, False).task.dataset == "csv:table"


# Files of theirs

DOCUMENTS = {
    "result.json": (["evaluate", "run"], ["report", "run"], ["privacy", "statement", "run"]),
    "config.toml": (["evaluate", "run"], ["plan", "run/config.toml"]),
    "metrics.jsonl": (["report", "run"],),
    "model.safetensors": (["evaluate", "run"],),
    "status.json": (["watch", "run", "--once"],),
    "ledger.sqlite": (["privacy", "ledger", "run/ledger.sqlite"],),
    "statement.json": (["privacy", "check", "run/statement.json"],),
    "graph.txt": (["plan", "experiment.toml", "--set", "topology.graph=file:run/graph.txt"],),
}


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("kind", ["pipe", "device", "terabyte"])
def test_a_file_that_never_ends_is_refused_in_one_line(run, name, kind):
    write_experiment(run.parent)
    path = run / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(2**40)
    for words in DOCUMENTS[name]:
        answer = tacit(*words)
        assert answer.code == 2, words
        if words[0] != "watch":  # which prints what it could not read
            assert answer.refusal


@pytest.mark.parametrize("number", ["1" + "0" * 400, str(2**63)])
def test_numbers_beyond_any_count_are_refused(run, number):
    for name, key in (("status.json", "step"), ("result.json", "steps")):
        values = json.loads((run / name).read_text())
        text = json.dumps({**values, key: "HERE"})
        (run / name).write_text(text.replace('"HERE"', number))
    assert tacit("watch", run, "--once").code == 2
    for words in (["report", run], ["evaluate", run], ["privacy", "statement", run]):
        answer = tacit(*words)
        assert answer.code == 2
        assert "RUN" in answer.refusal or "must be at most 9223372036854775807" in answer.refusal
