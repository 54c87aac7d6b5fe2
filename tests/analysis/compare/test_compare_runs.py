"""Runs are made, cached, gone on with and lost one at a time; nothing is overwritten."""

import json
import multiprocessing
import os
import signal

import pytest
import tomli_w

from experiments import experiment, tree
from tacit.analysis.compare.figure import load_figure
from tacit.analysis.compare.session import gather, make_whole, open_folder, worst_code
from tacit.analysis.settings.processes import (
    Monitor,
    Processes,
    WantedRun,
    run_by_executor,
    threads_a_process,
)
from tacit.analysis.settings.runs import complete, found_run, run_digest, run_folders
from tacit.config import load_config
from tacit.errors import InputError

pytestmark = pytest.mark.process

OVERFLOWS = {"algorithm.learning_rate": 1e38, "privacy.noise_std": 100.0}  # in one step
LONG = {"steps": 20_000, "evaluate_every": 20_000, "checkpoint_every": 50}


def request(folder, name="run", **changes):
    return WantedRun(name, load_config(experiment(**changes)), folder / name)


def made(*requests, **how):
    return complete(requests, make_whole, **how)


def figure(folder, lines, seeds=1, **changes):
    path = folder / "fig.toml"
    content = {**experiment(**changes), "figure": {"seeds": seeds, "line": lines}}
    path.write_text(tomli_w.dumps(content), encoding="utf-8")
    return load_figure([path])


LINES = [{"name": "One & only"}, {"name": "two", "set": {"algorithm.clip": 2.0}}]


def test_a_second_time_nothing_runs(tmp_path):
    clips, out = figure(tmp_path, LINES[:1], seeds=2), open_folder(tmp_path / "out")
    first = gather(clips, out)
    assert (first.made, first.cached, first.stopped, worst_code(first)) == (2, 0, False, 0)
    names = [path.name for path in run_folders(out / "runs")]
    assert [name.rpartition("-")[0] for name in names] == ["one-only-seed0", "one-only-seed1"]
    before = {name: (out / name).stat().st_mtime_ns for name in tree(out)}
    second = gather(clips, open_folder(tmp_path / "out"))
    assert (second.made, second.cached) == (0, 2)
    assert {name: (out / name).stat().st_mtime_ns for name in tree(out)} == before
    assert [member.path for member in second.members] == [member.path for member in first.members]


def test_equal_experiments_run_once_whatever_they_are_called(tmp_path):
    out = open_folder(tmp_path / "out")
    lines = [{"name": "a"}, {"name": "b"}]
    gathered = gather(figure(tmp_path, lines), out)
    assert (gathered.made, len(gathered.members)) == (1, 2)
    renamed = gather(figure(tmp_path, [{"name": "c"}]), out)
    assert (renamed.made, renamed.cached) == (0, 1)
    other = gather(figure(tmp_path, [{"name": "c"}], train={"steps": 5}), out)
    assert (other.made, other.cached) == (1, 0)


def test_what_fails_does_not_take_the_others_along(tmp_path):
    lines = [
        {"name": "too long", "set": {"train.batch": 5000}},
        {"name": "diverges", "set": OVERFLOWS},
        {"name": "good"},
    ]
    heard = []
    monitor = Monitor(done=lambda request, outcome: heard.append(outcome.message))
    gathered = gather(figure(tmp_path, lines), open_folder(tmp_path / "out"), monitor=monitor)
    wrong, diverged, good = gathered.members
    assert "train.batch" in str(heard[0])
    assert wrong.error == heard[0]
    assert wrong.told == "its own data or settings were refused; see its own screen"
    assert "no longer finite" in str(diverged.error)
    assert good.complete
    assert not diverged.complete
    assert worst_code(gathered) == 2
    again = gather(figure(tmp_path, lines), open_folder(tmp_path / "out"))
    assert (again.made, again.cached) == (0, 2)  # a run that diverged has ended, too


def test_a_diverging_point_of_a_grid_is_no_failure(tmp_path):
    line = {
        "name": "line",
        "set": {"privacy.noise_std": 100.0},
        "grid": {"algorithm.learning_rate": [0.5, 1e38]},
    }
    gathered = gather(figure(tmp_path, [line]), open_folder(tmp_path / "out"))
    assert [member.complete for member in gathered.members] == [True, False]
    assert worst_code(gathered) == 0


def test_a_stopped_run_goes_on_where_it_stood(tmp_path):
    clips, out = figure(tmp_path, LINES), open_folder(tmp_path / "out")
    steps = []
    monitor = Monitor(
        step=lambda request, share: steps.append(share), should_stop=lambda: len(steps) > 1
    )
    stopped = gather(clips, out, monitor=monitor)
    assert stopped.stopped
    assert [member.result for member in stopped.members] == [None, None]
    assert worst_code(stopped) == 0
    assert "again" in str(stopped.members[0].error)
    (half,) = run_folders(out / "runs")
    assert json.loads((half / "result.json").read_text())["status"] == "stopped"
    gathered = gather(clips, out)
    assert gathered.members[0].path == half
    assert [member.complete for member in gathered.members] == [True, True]
    # Seeded noise: the same model as a run in one go.
    (whole,) = made(WantedRun("whole", clips.lines[0].settings[0].runs[0], tmp_path / "whole"))
    name = "nodes.safetensors"
    assert (whole.path / name).read_bytes() == (half / name).read_bytes()


def test_a_run_without_a_usable_checkpoint_begins_anew_elsewhere(tmp_path):
    clips, out = figure(tmp_path, LINES[:1]), open_folder(tmp_path / "out")
    (member,) = gather(clips, out).members
    (member.path / "result.json").unlink()
    (checkpoint,) = list(member.path.glob("checkpoint-*"))[-1:]
    for name in member.path.glob("checkpoint-*"):
        name.write_bytes(b"torn")
    before = tree(member.path)
    (again,) = gather(clips, out).members
    assert again.complete
    assert again.path == member.path.with_name(f"{member.path.name}.2")
    assert tree(member.path) == before
    for name in member.path.glob("checkpoint-*"):
        name.unlink()
    assert not checkpoint.exists()
    digest = run_digest(again.config)
    assert found_run(out / "runs", "any", again.config, digest) == again.path


def test_a_budget_that_is_used_up_by_a_kill_is_spent_anew(tmp_path):
    """What was reserved before stays in the ledger of the abandoned folder."""
    changes = {"privacy": {"noise_std": None, "epsilon": 1.0, "noise_seed": None}}
    first_try = request(tmp_path, **changes)
    assert made(first_try)[0].status == "done"
    (tmp_path / "run" / "result.json").unlink()
    for path in sorted((tmp_path / "run").glob("checkpoint-*"))[1:]:
        path.unlink()  # the steps behind it are reserved, and would have to run again
    (outcome,) = made(first_try)
    assert (outcome.path, outcome.status) == (tmp_path / "run.2", "done")


def test_stopping_processes_leaves_checkpoints_and_nobody(tmp_path):
    requests = [request(tmp_path, f"run{seed}", train={**LONG, "seed": seed}) for seed in range(3)]
    begun = set()
    monitor = Monitor(
        step=lambda request, share: begun.add(request.name), should_stop=lambda: len(begun) == 2
    )
    outcomes = made(*requests, jobs=2, monitor=monitor)
    assert sorted(outcome.status for outcome in outcomes) == ["cancelled", "stopped", "stopped"]
    for outcome in outcomes:
        if outcome.status == "stopped":
            assert list(outcome.path.glob("checkpoint-*"))
    assert _children() == set()


def test_a_run_that_lost_its_process_goes_on(tmp_path):
    killed = []

    def started():
        return [process for worker in one._last for process in worker.started]

    def kill(request, share):
        if request.name == "long" and not killed and list(request.path.glob("checkpoint-*")):
            killed.extend(process.pid for process in started())
            for child in killed:
                os.kill(child, signal.SIGKILL)

    requests = [
        request(tmp_path, "long", train={**LONG, "steps": 1000}),
        request(tmp_path, "short"),
        request(tmp_path, "bad", train={"batch": 5000}),
    ]
    with Processes(1) as one:
        outcomes = run_by_executor(requests, make_whole, one, Monitor(step=kill), 1)
    assert len(killed) == 1
    assert [(outcome.status, outcome.code) for outcome in outcomes] == [
        ("done", 0),
        ("done", 0),
        ("failed", 2),
    ]
    assert not any(process.is_alive() for process in started())
    (here,) = made(request(tmp_path, "here"))
    for name in ("nodes.safetensors", "config.toml"):
        assert (here.path / name).read_bytes() == (tmp_path / "short" / name).read_bytes()


def _children():
    """Our processes that still live."""
    return {child.pid for child in multiprocessing.active_children()}


def test_processes_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads_a_process(jobs) for jobs in (1, 2, 3, 20)] == [8, 4, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert [threads_a_process(jobs) for jobs in (1, 2, 3, 20)] == [3, 3, 2, 1]


def test_a_folder_is_taken_up_only_if_a_comparison_made_it(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    for name in ("mine", "file"):
        with pytest.raises(InputError, match="no comparison made it"):
            open_folder(tmp_path / name)
    assert tree(tmp_path / "mine") == {"thesis.tex"}
    (tmp_path / "empty").mkdir()
    out = open_folder(tmp_path / "empty")
    assert open_folder(tmp_path / "empty") == out
    (out / "format.json").write_text('{"format_version": 2}')
    with pytest.raises(InputError, match="format_version = 2"):
        open_folder(out)
    (out / "format.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        open_folder(out)


def test_runs_with_ledgers_take_turns(tmp_path, monkeypatch):
    """Two at once would find the ledgers of their data in use."""
    privacy = {"ledger": str(tmp_path / "ledgers"), "ledger_epsilon": 50.0, "noise_seed": None}
    gathered = gather(
        figure(tmp_path, LINES, privacy=privacy), open_folder(tmp_path / "out"), jobs=2
    )
    assert [member.complete for member in gathered.members] == [True, True]
    assert _children() == set()
