"""`tacit compare`: what it prints and leaves, its exit codes, and a clean stop."""

import glob
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w

from experiments import (
    experiment,
    start_tacit,
    strict_json,
    tacit,
    tree,
    write_experiment,
    write_module,
)

pytestmark = pytest.mark.process

FIGURE = {
    "title": "Two clips",
    "x": ["steps", "epsilon"],
    "quick": {"train.steps": 2},
    "line": [
        {"name": "one"},
        {"name": "two", "set": {"algorithm.clip": 2.0}, "quick": {"train.steps": 3}},
    ],
}


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A figure file in the current directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "clips.toml"
    content = {**experiment(privacy={"noise_seed": None}), "figure": FIGURE}
    path.write_text(tomli_w.dumps(content), encoding="utf-8")
    return path


def test_a_figure_is_run_drawn_and_cached(file):
    first = tacit("compare", file, "--quick")
    assert first.code == 0, first.err
    assert "0 of 2 runs cached" in first.err
    assert "2/2 two, seed 0: done" in first.err
    assert "Two clips" in first.out
    assert "All 2 runs on the records of digits" in " ".join(first.out.split())
    out = Path("runs/compare-clips-quick")
    assert {path.name for path in out.iterdir()} == {
        "format.json",
        "runs",
        "compare.json",
        "compare.html",
        "figure-steps.svg",
        "figure-epsilon.svg",
    }
    second = tacit("compare", file, "--quick", "--json", "--page", "page.html")
    assert second.err == ""
    document = second.json
    assert (document["made"], document["cached"]) == (0, 2)
    assert document["out"] == str(out)
    steps = [line["curve"][-1]["step"] for line in document["lines"]]
    assert steps == [2, 3]
    assert {**strict_json((out / "compare.json").read_text()), "out": str(out)} == document
    assert Path("page.html").read_text() == (out / "compare.html").read_text()
    refused = tacit("compare", file, "--quick", "--json", "--page", "page.html")
    assert "--page" in refused.err
    assert refused.code == 2


def test_without_matplotlib_all_but_the_pictures_is_written(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "tacit.report.pictures", raising=False)
    monkeypatch.delattr("tacit.report.pictures", raising=False)
    answer = tacit("compare", file, "--quick", "--json", "--out", "here")
    assert answer.code == 0
    assert answer.json["complete"] == 2
    assert answer.err == (
        "tacit: no figure-*.svg is drawn: package = 'matplotlib': cannot be imported (import of "
        "matplotlib halted; None in sys.modules): run pip install '.[pictures]' in a clone of the "
        "repository, or pip install 'matplotlib>=3.8'\n"
    )
    assert {path.name for path in Path("here").iterdir()} == {
        "format.json",
        "runs",
        "compare.json",
        "compare.html",
    }


def test_plain_files_with_overrides(file, tmp_path):
    plain = write_experiment(tmp_path, train={"steps": 2})
    answer = tacit(
        "compare", plain, "--json", "--out", "here", "--seeds", 2, "--set", "algorithm.clip=3.0"
    )
    (line,) = answer.json["lines"]
    assert (line["name"], answer.json["seeds"]) == ("experiment", 2)
    configs = [Path("here", run["folder"], "config.toml") for run in line["points"][0]["runs"]]
    assert ["clip = 3.0" in path.read_text() for path in configs] == [True, True]


def test_wrong_input_is_one_line_and_leaves_nothing(file, tmp_path):
    before = tree(tmp_path)
    for arguments, said in (
        ([file, "--jobs", 0], "--jobs"),
        ([file, "--seeds", 0], "--seeds"),
        ([file, "--set", "train.steps=0"], "line 'one', train.steps"),
        ([file, file], "give it alone"),
        (["none.toml"], "none.toml"),
        ([file, "--out", "."], "no comparison made it"),
        ([file, "--executor", "nowhere:workers"], "there is no module 'nowhere'"),
        ([file, "--executor", "os:getcwd"], "must return an executor: its str has no submit"),
        ([file, "--executor", "os:getcwd", "--jobs", 2], "--jobs = 2"),
    ):
        answer = tacit("compare", *arguments)
        assert answer.code == 2
        assert said in answer.refusal
    assert tree(tmp_path) == before
    assert "tacit compare" in tacit("train", file).refusal


def test_a_line_that_fails_decides_the_exit_code(file):
    """A budget that cannot be met is 3, and the other line is there all the same."""
    lines = [
        FIGURE["line"][0],  # type: ignore[index]
        {"name": "dear", "set": {"privacy.epsilon": 0.001}},
    ]
    content = {**experiment(privacy={"noise_seed": None}), "figure": {"line": lines}}
    file.write_text(tomli_w.dumps(content), encoding="utf-8")
    answer = tacit("compare", file, "--set", "train.steps=2")
    assert answer.code == 3
    assert "1 of 2 runs complete" in answer.out
    assert "dear, seed 0: " in " ".join(answer.out.split())


def test_an_interrupt_stops_cleanly_and_a_rerun_goes_on(file):
    arguments = ["compare", file]
    for change in ("steps=200", "evaluate_every=200", "checkpoint_every=20"):
        arguments += ["--set", f"train.{change}"]
    process = start_tacit(*arguments)
    runs = Path("runs/compare-clips/runs")
    until = time.monotonic() + 100
    while not list(runs.glob("[!.]*/checkpoint-*")) and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert "run it again to go on" in " ".join(out.split())
    assert "one, seed 0: stopped: by the user" in err
    assert err.endswith("stopped: what ran is kept: the same command goes on\n")
    (folder,) = runs.iterdir()
    document = tacit(*arguments, "--json").json
    assert (document["complete"], document["made"]) == (2, 2)
    went_on = document["lines"][0]["points"][0]["runs"][0]
    assert (went_on["status"], Path(went_on["folder"]).name) == ("done", folder.name)
    assert len(list(runs.iterdir())) == 2


@pytest.fixture
def two_processes(file):
    """A long comparison in a process group of its own, once both of its processes train."""
    source = """
        def model(outputs):
            print("printed by the user's module")
            return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))
    """
    changes = ("train.steps=20000", "train.evaluate_every=20000", "train.checkpoint_every=5")
    model = f"task.model={write_module(file.parent, source)}:model"
    arguments = ["compare", str(file), "--json", "--jobs", "2"]
    for change in (model, *changes):
        arguments += ["--set", change]
    process = subprocess.Popen(
        [sys.executable, "-m", "tacit", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    runs = Path("runs/compare-clips/runs")
    until = time.monotonic() + 100
    while len(_begun(runs)) < 2 and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    yield process, runs
    process.kill()
    process.communicate(timeout=100)


def _begun(runs):
    # Not those that are being made, which are hidden and gone at once.
    return {Path(path).parent for path in glob.glob(f"{runs}/*/checkpoint-*")}


def _assert_stopped_at_a_checkpoint(runs):
    assert len(_begun(runs)) == 2
    for folder in runs.iterdir():
        result = strict_json((folder / "result.json").read_text())
        assert result["status"] == "stopped"
        assert list(folder.glob(f"checkpoint-*{result['steps']}*"))


def test_an_interrupt_of_a_terminal_stops_its_processes_cleanly(two_processes):
    """It goes to every process of the group, to those of the pool too."""
    process, runs = two_processes
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert strict_json(out)["stopped"]
    assert "Traceback" not in err
    _assert_stopped_at_a_checkpoint(runs)


def test_processes_whose_parent_is_killed_leave_a_checkpoint_and_end(two_processes):
    process, runs = two_processes
    process.kill()
    process.communicate(timeout=100)  # to the end of its pipes, which all of them hold
    _assert_stopped_at_a_checkpoint(runs)
