"""What a command says that was interrupted, and of a run that was cut off before its first step.

The way on that a line names is gone, and leads on.
"""

import json
import shutil

import pytest
import tomli_w

from experiments import experiment, strict_json, tacit, write_experiment
from tacit.cli.signals import ANEW, INTERRUPTED
from tacit.config import load_config
from tacit.report.documents.status import STATUS
from tacit.training import loop
from tacit.training.prepare import prepare


def cut(*arguments, **named):
    """Ctrl-C, as it comes out of whatever runs."""
    raise KeyboardInterrupt


def second(function):
    """Ctrl-C when it is called for the second time."""
    calls = []

    def called(*arguments, **named):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return function(*arguments, **named)

    return called


@pytest.mark.parametrize(
    ("command", "place"),
    [
        (["plan"], "tacit.training.prepare.prepare"),
        (["plan", "--optimise"], "tacit.analysis.optimise.optimise"),
        (["plan", "--recommend"], "tacit.analysis.recommend.recommend"),
        (["audit"], "tacit.analysis.audit.audit"),
    ],
)
def test_an_interrupt_of_what_writes_nothing_says_so(command, place, tmp_path, monkeypatch):
    file = write_experiment(tmp_path)
    monkeypatch.setattr(place, cut)
    answer = tacit(command[0], file, *command[1:])
    assert (answer.code, answer.err) == (130, f"tacit: {INTERRUPTED}; {ANEW}\n")
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_an_interrupted_comparison_goes_on_with_the_same_command(tmp_path, monkeypatch):
    file, out = write_experiment(tmp_path, privacy={"noise_seed": None}), tmp_path / "out"
    command = ("compare", file, "--seeds", 2, "--out", out)
    with monkeypatch.context() as patch:
        patch.setattr("tacit.analysis.settings.processes.execute", second(loop.execute))
        answer = tacit(*command)
    assert answer.code == 130
    kept = "what ran is kept: the same command goes on"
    assert answer.err.splitlines()[-1] == f"tacit: {INTERRUPTED}; {kept}"
    document = tacit(*command, "--json").json
    assert (document["complete"], document["made"]) == (2, 1)  # of two runs, one was there


def test_an_interrupted_search_goes_on_with_resume(tmp_path, monkeypatch):
    private = {"noise_std": None, "noise_seed": None, "epsilon": 1.0, "delta": 1e-5}
    sections = experiment(privacy=private, nodes={"count": 2})
    file, out = tmp_path / "search.toml", tmp_path / "out"
    file.write_text(tomli_w.dumps({**sections, "tune": {"grid": {"algorithm.clip": [0.3, 0.6]}}}))
    with monkeypatch.context() as patch:
        patch.setattr("tacit.analysis.settings.processes.execute", second(loop.execute))
        answer = tacit("tune", file, "--out", out)
    assert answer.code == 130
    kept = "trials that have ended are kept: the same command with --resume goes on"
    assert answer.err.splitlines()[-1] == f"tacit: {INTERRUPTED}; {kept}"
    first = (out / "trials" / "0001" / "result.json").read_bytes()
    assert tacit("tune", file, "--out", out, "--resume").code == 0
    assert (out / "trials" / "0001" / "result.json").read_bytes() == first


class Kill(BaseException):
    """Nothing handles it, as nothing handles a kill."""


@pytest.fixture
def cut_off(tmp_path, monkeypatch):
    """An experiment, and the folder of a run of it that was killed before its first step."""

    def kill(*arguments):
        raise Kill

    file, run = write_experiment(tmp_path), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(loop, "_train", kill)
        with pytest.raises(Kill):
            loop.execute(prepare(load_config(file)), out=run)
    status = strict_json((run / STATUS).read_text())
    running = {**status, "state": "running", "last_error": None}
    (run / STATUS).write_text(json.dumps(running))
    return file, run


ASKING = [["report"], ["evaluate"], ["privacy", "statement"]]


@pytest.mark.parametrize("command", [*ASKING, ["audit"]])
def test_a_run_without_a_result_is_gone_on_with_as_it_was_begun(command, cut_off):
    file, run = cut_off
    refusal = tacit(*command, run).refusal.rstrip()
    assert refusal.endswith(
        "let it finish; if it was cut off, the command that began it goes on with --resume"
    )
    assert tacit("train", file, "--out", run, "--quiet", "--resume").code == 0
    if command != ["audit"]:
        answer = tacit(*command, run)
        assert "cut off" not in answer.err


@pytest.mark.parametrize("command", ASKING)
def test_a_run_without_a_folder_is_begun_as_it_was(command, tmp_path):
    file, run = write_experiment(tmp_path), tmp_path / "run"
    half = tmp_path / ".run.0123abcd.new"  # what a kill leaves of it at most
    half.mkdir()
    assert tacit(*command, run).refusal.rstrip().endswith("begins it anew, without --resume")
    shutil.rmtree(half)
    refusal = tacit("train", file, "--out", run, "--resume").refusal.rstrip()
    assert refusal.endswith("it is not there: begin it without --resume")
    assert tacit("train", file, "--out", run, "--quiet").code == 0


def test_a_run_goes_on_with_as_many_processes(cut_off):
    file, run = cut_off
    status = strict_json((run / STATUS).read_text())
    unknown = dict.fromkeys(("last_seen", "last_error", "rate", "frames", "again"))
    state = {"state": "connected", "step": 0, **unknown}
    sites = [{"rank": rank, "name": f"rank {rank}", **state} for rank in range(3)]
    (run / "rank-0000").mkdir()
    (run / "rank-0000" / STATUS).write_text(json.dumps({**status, "sites": sites}))
    (run / STATUS).unlink()
    answer = tacit("train", file, "--out", run, "--resume")
    assert answer.code == 2
    assert answer.refusal.rstrip() == (
        f"tacit: number of processes = 1: the run in {run} was begun by 3, and goes on with as "
        "many: start 3 (`tacit launch --processes 3 --resume`), or begin another run in a new "
        "folder"
    )
