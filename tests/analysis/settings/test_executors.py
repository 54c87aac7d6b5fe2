"""Runs go to the workers of an executor: one that is killed, and what a run leaves of itself."""

import os
import signal
import sys
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import experiment, tree, write_module
from forks import forks
from tacit.analysis.compare.session import make_whole
from tacit.analysis.settings.processes import Monitor, Processes, WantedRun, call_there
from tacit.analysis.settings.runs import complete
from tacit.config import load_config
from tacit.errors import InputError, PeerError
from tacit.privacy.ledger.ledger import read_ledger

pytestmark = pytest.mark.process

LONG = {"steps": 400, "evaluate_every": 400, "checkpoint_every": 20}
PRIVATE = {"noise_std": None, "epsilon": 3.0, "noise_seed": None}


def request(folder, name="run", **changes):
    return WantedRun(name, load_config(experiment(**changes)), folder / name)


def killer(path, victims):
    """Kills the workers once, as soon as the run has a checkpoint behind its start."""
    killed = []

    def look():
        if not killed and len(list(path.glob("checkpoint-*"))) > 1:
            killed.extend(victims())
            for process in killed:
                os.kill(process, signal.SIGKILL)
        return False

    return Monitor(should_stop=look), killed


def test_a_run_whose_dask_worker_is_killed_goes_on_and_is_charged_once(tmp_path):
    dask, distributed = map(pytest.importorskip, ("dask", "distributed"))
    wanted = request(tmp_path, privacy=PRIVATE, train=LONG)
    method = forks().get_start_method()
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": method}),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        monitor, killed = killer(
            wanted.path, lambda: [worker.pid for worker in cluster.workers.values()]
        )
        (outcome,) = complete([wanted], make_whole, executor=client.get_executor(), monitor=monitor)
        assert len(killed) == 1
        assert outcome.status in ("done", "budget-exhausted")
        (other,) = complete(
            [request(tmp_path, "other")], make_whole, executor=client.get_executor()
        )
    assert other.status == "done"
    assert not list(tmp_path.glob(".wanted-*"))
    (run,) = read_ledger(wanted.path / "ledger.sqlite").runs
    charged = [
        sum(start <= k < until for start, until in run.charged[0]) for k in range(LONG["steps"])
    ]
    # Once what the first checkpoint holds; besides, a block that was reserved before the kill, and
    # what follows the last checkpoint.
    assert charged[:20] == [1] * 20
    assert sum(charged) - LONG["steps"] <= 2 * 6 + 20


def test_a_broken_pool_is_a_line_and_the_next_goes_on(tmp_path):
    wanted = request(tmp_path, train=LONG)
    with ProcessPoolExecutor(1, forks()) as pool:
        pool.submit(os.getpid).result()
        monitor, killed = killer(wanted.path, lambda: list(pool._processes))
        (lost,) = complete([wanted], make_whole, executor=pool, monitor=monitor)
    assert len(killed) == 1
    assert (lost.status, lost.code) == ("failed", 4)
    assert str(lost.message).startswith("its process could not be started (BrokenProcessPool: ")
    assert "\n" not in str(lost.message)
    (again,) = complete([wanted], make_whole)
    assert (again.status, again.path) == ("done", wanted.path)


CARELESS = """
    import os, warnings
    import torch

    def model(outputs):
        torch.manual_seed(5)
        torch.set_num_threads(3)
        torch.set_default_dtype(torch.float64)
        warnings.simplefilter("ignore")
        os.environ["CARELESS"] = "1"
        os.chdir("/")
        return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))

    def drawn(outputs):
        # As it finds its process.
        found = [os.getcwd(), "CARELESS" in os.environ, torch.get_default_dtype(), warnings.filters]
        with open("found.txt", "a") as file:
            print(found, torch.get_num_threads(), torch.initial_seed(), file=file)
        torch.randn(1000)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))
"""


def test_a_run_leaves_its_worker_as_a_fresh_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = write_module(tmp_path, CARELESS)
    tasks = {name: {"model": f"{module}:{name}"} for name in ("model", "drawn")}
    warm, fresh = tmp_path / "warm", tmp_path / "fresh"
    with Processes(1) as one:
        wanted = [request(warm, name, task=task) for name, task in tasks.items()]
        assert [run.status for run in complete(wanted, make_whole, executor=one)] == ["done"] * 2
    with Processes(1) as one:
        (run,) = complete([request(fresh, "drawn", task=tasks["drawn"])], make_whole, executor=one)
    assert run.status == "done"
    after_another, first = (tmp_path / "found.txt").read_text().splitlines()
    assert after_another == first
    for name in ("nodes.safetensors", "model.safetensors", "config.toml"):
        contents = {(folder / "drawn" / name).read_bytes() for folder in (warm, fresh)}
        assert len(contents) == 1, name
    assert tree(warm / "drawn") == tree(fresh / "drawn")


def test_a_worker_takes_modules_from_where_it_is_asked_anew(tmp_path, monkeypatch):
    """Its own directory is another, and it stays from one folder to the next."""
    row = Path("examples/own_algorithm.py").read_text()
    said = experiment(algorithm={"name": "row_here:ROW"}, task={"model": "model_here:model"})
    source = "from torch import nn\ndef model(outputs):\n    open('here-{}', 'w').close()\n"
    source += "    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))\n"
    with ProcessPoolExecutor(1, forks()) as pool:
        pool.submit(os.chdir, "/").result()
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            monkeypatch.chdir(tmp_path / name)
            Path("row_here.py").write_text(row)
            Path("model_here.py").write_text(source.format(name))
            wanted = WantedRun(name, load_config(said), tmp_path / "runs" / name)
            (outcome,) = complete([wanted], make_whole, executor=pool)
            assert outcome.status == "done", outcome.message
            assert Path(f"here-{name}").exists()


class Answer:
    """It has `done` and `result` alone, as those of Ray and of `multiprocessing`."""

    def __init__(self, call):
        self.result, self.looks = call, iter([False])

    def done(self):
        return next(self.looks, True)


class Bare(Executor):
    def submit(self, function, /, *args, **options):
        return Answer(partial(function, *args))


def test_answers_that_cannot_be_cancelled_are_stopped(tmp_path):
    asked = iter([False, True])
    monitor = Monitor(should_stop=lambda: next(asked, True))
    (outcome,) = complete([request(tmp_path)], make_whole, executor=Bare(), monitor=monitor)
    assert outcome.status == "cancelled"


class Elsewhere(Executor):
    """Workers that do not see the folder of the runs."""

    def submit(self, function, /, *args, **options):
        future = Future()
        task, path, token, *more = args
        future.set_result(function(task, path, token.parent / "not" / token.name, *more))
        return future


def test_workers_without_the_file_system_are_a_line(tmp_path):
    with pytest.raises(InputError, match=r"its workers do not see .* that all share"):
        complete([request(tmp_path)], make_whole, executor=Elsewhere())
    assert not tree(tmp_path)


def raises():
    raise InputError("key", 3, "must be 4")


def test_one_call_of_a_worker():
    with Processes(1) as one:
        assert call_there(one, partial(max, 3, 4)) == 4
        with pytest.raises(InputError, match="key = 3: must be 4"):
            call_there(one, raises)
        with pytest.raises(PeerError, match="its process was lost"):
            call_there(one, partial(os._exit, 3))


def as_found_there():
    # Compiled loops and pages, which a run loads when it first needs them.
    loaded = {"tacit.kernels.linear", "tacit.report.run_page"} <= set(sys.modules)
    return loaded, os.environ["GIVEN"], torch.get_num_threads(), np.random.random()


def test_processes_have_loaded_all_and_are_as_they_are_asked(monkeypatch):
    """Whatever the server that they are forked from was started with."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    drawn = set()
    for jobs, threads in ((2, 3), (3, 2)):
        monkeypatch.setenv("GIVEN", str(jobs))
        with Processes(jobs) as processes:
            *found, number = call_there(processes, as_found_there)
        assert found == [sys.platform == "linux", str(jobs), threads]
        drawn.add(number)
    assert len(drawn) == 2
