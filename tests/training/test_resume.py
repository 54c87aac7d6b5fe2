"""Stopping, killing and resuming: the same numbers, and every release in the ledger."""

import fcntl
import math
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from collections import Counter
from contextlib import chdir
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from algorithms.battery_table import ROWS
from experiments import (
    SEEDED,
    after,
    experiment,
    start_tacit,
    strict_json,
    tacit,
    write_experiment,
    write_module,
)
from fork_server import ForkServer
from planning_cases import gaussian_delta
from tacit import train
from tacit.callbacks import Callback
from tacit.communication.peers import Peers
from tacit.config import load_config
from tacit.data import Dataset
from tacit.errors import BudgetError, InputError
from tacit.privacy.ledger.ledger import Ledger, read_ledger, step_runs
from tacit.privacy.ledger.shared import account_files
from tacit.report.documents.status import STATUS
from tacit.training import budget, state
from tacit.training.loop import execute
from tacit.training.prepare import prepare
from tacit.training.run_folder import checkpoint
from tacit.training.run_folder.result import Result

pytestmark = pytest.mark.process


def job_of(sections):
    return prepare(load_config(sections))


def models(run):
    return load_file(run / "nodes.safetensors")["parameters"]


def result(run):
    return strict_json((run / "result.json").read_text())


def charged(run, node=0):
    """How often each step was charged to a node."""
    with Ledger.open(run / "ledger.sqlite", digest=None) as ledger:
        return Counter(
            {
                step: times
                for first, until, times in step_runs(ledger.charged()[node])
                for step in range(first, until)
            }
        )


def reserve(run, first, until):
    """Reserve steps as a session does that is killed before it can settle them."""
    with Ledger.open(run / "ledger.sqlite", digest=None) as ledger:
        ledger.reserve(first, until)


# Clean stops.

STEPS = 4
SEVERAL = {
    "no noise": experiment(algorithm={"name": "sgp", "momentum": 0.5}, privacy={"noise_std": None}),
    "whole batches": experiment(
        algorithm={"name": "dyn-d2p", "momentum": 0.9, "final_mixing": 3},
        train={"dtype": "float64"},
    ),
    "symmetric weights": experiment(
        algorithm={"name": "dp2-sgd"}, topology={"graph": "ring"}, train={"batch": 8}
    ),
    "Poisson batches": experiment(algorithm={"final_mixing": 2}, train={"batch": 8}),
    "fixed batches": experiment(
        privacy={"relation": "replace-one"}, train={"batch": 8, "sampling": "fixed"}
    ),
    "several gossip rounds": experiment(
        algorithm={"name": "privsgp", "momentum": 0.9, "final_mixing": 2},
        topology={"graph": "exponential", "rounds": 2},
        train={"batch": 8},
    ),
    "a budget": experiment(privacy={"noise_std": None, "epsilon": 2.0}),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_a_run_stopped_at_any_step_ends_as_if_it_had_not_been(name, tmp_path):
    sections = SEVERAL[name]
    sections["train"]["steps"] = STEPS
    job = job_of(sections)
    whole = execute(job, out=tmp_path / "whole")
    accounted = job.plan.accounted
    for stop in range(1, STEPS):
        run = tmp_path / f"stopped-{stop}"
        stopped = execute(job, out=run, should_stop=after(stop))
        assert (stopped.status, stopped.steps) == ("stopped", stop)
        assert result(run)["status"] == "stopped"
        if accounted:
            assert charged(run) == Counter(range(stop))
            for partly, wholly in zip(stopped.epsilon, whole.epsilon, strict=True):
                assert partly is not None
                assert wholly is not None
                assert 0 < partly < wholly
        resumed = execute(job, out=run, resume=True)
        assert (resumed.status, resumed.steps, resumed.message) == ("done", STEPS, None)
        assert torch.equal(models(run), models(tmp_path / "whole"))
        assert torch.equal(resumed.parameters, whole.parameters)
        assert resumed.epsilon == whole.epsilon
        assert resumed.bytes_sent == whole.bytes_sent
        if accounted:
            assert charged(run) == Counter(range(STEPS))


@pytest.mark.parametrize("case", ROWS)
def test_a_run_of_any_algorithm_ends_as_if_it_had_not_been_stopped(case, tmp_path):
    """With all of its state in use, on sampled batches; what is stored is all that it needs."""
    row = ROWS[case]
    noisy = row.release is not None
    job = job_of(
        experiment(
            nodes={"count": 4, "partition": "dirichlet", "alpha": 2.0},
            algorithm={"name": row.name, "learning_rate": 0.1, **row.options, **row.resumed},
            privacy={"noise_std": 0.05, "accounting": "none"} if noisy else {"noise_std": None},
            train={"steps": 7, "batch": 6},
        )
    )
    whole = execute(job, out=tmp_path / "whole")
    run = tmp_path / "stopped"
    stopped = execute(job, out=run, should_stop=after(2))
    assert (stopped.status, stopped.steps) == ("stopped", 2)
    again = execute(job, out=run, resume=True, should_stop=after(3))
    assert (again.status, again.steps) == ("stopped", 5)
    resumed = execute(job, out=run, resume=True)
    assert (resumed.status, resumed.steps, resumed.message) == ("done", 7, None)
    assert torch.equal(models(run), models(tmp_path / "whole"))
    assert torch.equal(resumed.parameters, whole.parameters)
    assert torch.equal(resumed.consensus, whole.consensus)
    assert resumed.bytes_sent == whole.bytes_sent
    done = row.name == "noised-moments-server"  # with step 0; where there is gossip, it goes on
    assert torch.equal(stopped.consensus, whole.consensus) == done


def of_persons(sections):
    """The job of made persons at four nodes, with one to five rows each, of which three count."""
    generator = torch.Generator().manual_seed(6)
    nodes = []
    for node in range(4):
        ids = [f"{node} {person}" for person in range(24) for _ in range(1 + person % 5)]
        inputs = torch.rand(len(ids), 8, generator=generator)
        nodes.append(Dataset(inputs, torch.randint(3, (len(ids),), generator=generator), ids))
    task = {"dataset": None, "model": "logistic", "outputs": 3}
    by_person = {"unit": "column:person", "unit_rows": 3, **sections.pop("privacy", {})}
    file = experiment(task=task, privacy=by_person, **sections)
    file["nodes"].pop("count")
    return prepare(load_config(file, count=4), nodes=nodes)


VARIANCE_REDUCED = [case for case, row in ROWS.items() if "saga" in row.name or "svrg" in row.name]
BY_PERSON = {
    "all persons": {},
    "Poisson batches": {"train": {"batch": 6}},
    "fixed batches": {
        "privacy": {"relation": "replace-one"},
        "train": {"batch": 6, "sampling": "fixed"},
    },
    "noise of pairs": {"privacy": {"noise": "pairwise", "pair_noise": 3.0}},
    "secure sums": {
        "algorithm": {"name": "dp-sgd"},
        "privacy": {"aggregation": "secure-sum", "colluding": 1},
    },
    **{
        case: {
            "algorithm": {"name": ROWS[case].name, **ROWS[case].options},
            "privacy": {"noise_std": 0.05, "accounting": "none"},
            "train": {"batch": 6},
        }
        for case in VARIANCE_REDUCED
    },
}


@pytest.mark.parametrize("case", BY_PERSON)
def test_a_run_by_person_ends_as_if_it_had_not_been_stopped(case, tmp_path):
    """Tables of variance reduction have an entry a person."""
    job = of_persons(dict(BY_PERSON[case]))
    assert [node.records for node in job.plan.nodes] == [24] * 4
    whole = execute(job, out=tmp_path / "whole")
    run = tmp_path / "run"
    execute(job, out=run, should_stop=after(2))
    again = execute(job, out=run, resume=True, should_stop=after(2))
    assert (again.status, again.steps) == ("stopped", 4)
    resumed = execute(job, out=run, resume=True)
    assert (resumed.status, resumed.steps) == ("done", whole.steps)
    assert torch.equal(models(run), models(tmp_path / "whole"))
    assert torch.equal(resumed.parameters, whole.parameters)
    assert resumed.epsilon == whole.epsilon


@pytest.mark.parametrize(
    ("key", "value"),
    [("unit_rows", 4), ("unit", "record"), ("unit", "column:family"), ("unit_gradient", "sum")],
)
def test_a_run_by_person_goes_on_by_that_person_alone(key, value, tmp_path):
    execute(of_persons({}), out=tmp_path / "run", should_stop=after(2))
    other = of_persons({"privacy": {key: value}})
    with pytest.raises(InputError, match=rf"privacy\.{key}\b"):
        execute(other, out=tmp_path / "run", resume=True)


def test_a_run_may_be_stopped_again_and_again(tmp_path):
    job = job_of(experiment(train={"batch": 8}))
    whole = execute(job)
    run = tmp_path / "run"
    execute(job, out=run, should_stop=after(1))
    for _ in range(4):
        execute(job, out=run, resume=True, should_stop=after(1))
    resumed = execute(job, out=run, resume=True)
    assert torch.equal(resumed.parameters, whole.parameters)
    assert resumed.epsilon == whole.epsilon
    assert charged(run) == Counter(range(6))


def test_what_was_booked_ahead_and_not_sent_is_given_back(tmp_path):
    job = job_of(experiment(train={"steps": 250}))  # reserved three steps at a time
    run = tmp_path / "run"
    for session in (1, 2):
        until = 4 * session
        stopped = execute(job, out=run, resume=session > 1, should_stop=after(4))
        assert charged(run) == Counter(range(until))
        for node, spent in zip(job.plan.nodes, stopped.epsilon, strict=True):
            assert spent is not None
            mu = math.sqrt(until) / node.noise_scale
            assert gaussian_delta(mu, spent) == pytest.approx(1e-5, rel=1e-5)


class SaysNew(Peers):
    """A process of rank 0 that says of a run that goes on that it is a new one."""

    def share(self, what, value, schema):
        return [False] if what == "going on" else super().share(what, value, schema)


def test_nobody_decides_for_another_whether_its_ledgers_limit_a_run(tmp_path, monkeypatch):
    run, asked = tmp_path / "run", []
    private = {"noise_std": None, "noise_seed": None, "epsilon": 1.0, "ledger": str(tmp_path)}
    sections = experiment(privacy=private)
    execute(job_of(sections), out=run, should_stop=after(1))

    def affordable(*arguments):
        asked.append(arguments[3])
        return budget.affordable(*arguments)

    monkeypatch.setattr(state, "affordable", affordable)
    execute(job_of(sections), out=run, resume=True, alone=SaysNew())
    (ledger,) = asked
    assert ledger is not None


class SaysUnpaid(Peers):
    """Processes of which one says that it has paid for no step to come."""

    def share(self, what, value, schema):
        shared = super().share(what, value, schema)
        return [*shared, 0] if what == "steps that are paid for" else shared


class StopAt3(Callback):
    """Asks for the end after three steps, so that all planned steps stay charged."""

    def on_metrics(self, metrics):
        return metrics.step == 3


def test_what_another_process_has_not_paid_for_nobody_pays_twice(tmp_path):
    run, private = tmp_path / "run", {"noise_std": None, "noise_seed": None, "epsilon": 2.0}
    sections = experiment(privacy=private, train={"evaluate_every": 1})
    stopped = train(sections, out=run, callbacks=[StopAt3()])
    assert (stopped.steps, charged(run)) == (3, Counter(range(6)))
    ended = execute(job_of(sections), out=run, resume=True, alone=SaysUnpaid())
    assert (ended.status, ended.steps) == ("done", 6)
    assert charged(run) == Counter(range(6))
    assert max(spent for spent in ended.epsilon if spent is not None) <= 2.0


def test_a_stop_at_the_last_step_is_the_end(tmp_path):
    job = job_of(experiment())
    ended = execute(job, out=tmp_path / "run", should_stop=after(6))
    assert (ended.status, ended.message) == ("done", None)


def test_a_finished_run_resumes_to_the_same_result(tmp_path):
    job = job_of(experiment(algorithm={"final_mixing": 2}))
    run = tmp_path / "run"
    first = execute(job, out=run)
    before, parameters = result(run), models(run)
    again = execute(job, out=run, resume=True)
    assert torch.equal(again.parameters, first.parameters)
    assert torch.equal(models(run), parameters)
    assert (again.status, again.epsilon, again.steps) == ("done", first.epsilon, 6)
    same = {"status", "epsilon", "steps", "test_accuracy", "test_loss", "bytes_sent_by_node"}
    assert {key: result(run)[key] for key in same} == {key: before[key] for key in same}
    assert charged(run) == Counter(range(6))


def test_series_of_a_resumed_run_have_each_step_once(tmp_path):
    job = job_of(experiment(train={"evaluate_every": 2}))
    run = tmp_path / "run"
    execute(job, out=run, should_stop=after(3))
    resumed = execute(job, out=run, resume=True)
    assert resumed.metrics["step"] == [0, 2, 3, 4, 6]
    lines = (run / "metrics.jsonl").read_text().splitlines()
    last = {row["step"]: row for row in map(strict_json, lines)}
    assert sorted(last) == [0, 2, 3, 4, 6]
    assert [row["consensus_distance"] for row in last.values()] == resumed.metrics[
        "consensus_distance"
    ]


def test_a_torn_line_of_metrics_is_dropped(tmp_path):
    job = job_of(experiment(train={"evaluate_every": 1}))
    run = tmp_path / "run"
    execute(job, out=run, should_stop=after(3))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "test_accu')
    resumed = execute(job, out=run, resume=True)
    assert resumed.metrics["step"] == [0, 1, 2, 3, 4, 5, 6]
    for line in (run / "metrics.jsonl").read_text().splitlines():
        assert strict_json(line)["step"] <= 6


# Fresh keys.


def test_under_fresh_keys_two_runs_and_two_sessions_differ(tmp_path):
    job = job_of(experiment(privacy={"noise_seed": None}))
    one, other = execute(job), execute(job)
    assert not torch.equal(one.parameters, other.parameters)
    run = tmp_path / "run"
    execute(job, out=run, should_stop=after(3))
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    resumed = [execute(job, out=folder, resume=True) for folder in (run, copy)]
    assert not torch.equal(resumed[0].parameters, resumed[1].parameters)
    assert resumed[0].epsilon == resumed[1].epsilon == one.epsilon


# Steps that were reserved and are run again.


@pytest.fixture
def budgeted():
    """Ten steps that cost just what the budget of 2 covers; constant noise on every record."""
    return job_of(experiment(privacy={"noise_std": None, "epsilon": 2.0}, train={"steps": 10}))


def cut_off(job, run, *, stopped, reserved):
    """A run that stopped cleanly, was resumed, and was killed with steps in the ledger."""
    execute(job, out=run, should_stop=after(stopped))
    reserve(run, stopped, reserved)


@pytest.mark.parametrize(("reserved", "end"), [(5, 9), (7, 7), (9, 5)])
def test_repeated_steps_are_charged_and_the_run_ends_where_the_budget_does(
    budgeted, tmp_path, reserved, end
):
    run = tmp_path / "run"
    cut_off(budgeted, run, stopped=4, reserved=reserved)
    ended = execute(budgeted, out=run, resume=True)
    assert (ended.status, ended.steps) == ("budget-exhausted", end)
    assert ended.message is not None
    assert f"covers steps up to {end} of 10" in ended.message
    content = result(run)
    assert (content["status"], content["steps"]) == ("budget-exhausted", end)

    # The oracle: steps in the ledger, each a Gaussian of shift 1 in units of the clipping bound.
    releases = charged(run)
    assert releases == Counter([*range(end), *range(4, reserved)])
    for node, spent in zip(budgeted.plan.nodes, ended.epsilon, strict=True):
        assert spent is not None
        mu = math.sqrt(releases.total()) / node.noise_scale
        assert spent <= 2.0
        assert gaussian_delta(mu, spent) == pytest.approx(1e-5, rel=1e-5)
        one_more = math.sqrt(releases.total() + 1) / node.noise_scale
        assert gaussian_delta(one_more, 2.0) > 1e-5

    # Up to its end it did what an uninterrupted run does.
    uncut = execute(budgeted, should_stop=after(end))
    assert torch.equal(ended.parameters, uncut.parameters)


def test_where_nothing_is_left_the_last_checkpoint_is_the_result(tmp_path):
    """Killed when all was reserved: what there is becomes the result, and costs nothing more."""
    file = write_experiment(
        tmp_path, privacy={"noise_std": None, "epsilon": 2.0}, train={"steps": 10}
    )
    job, run = prepare(load_config(file)), tmp_path / "run"
    cut_off(job, run, stopped=4, reserved=10)
    for name in ("result.json", "model.safetensors", "nodes.safetensors", "report.html"):
        (run / name).unlink()  # as of a run that was killed in its first session
    uncut = execute(job, should_stop=after(4))
    for _ in range(2):  # and again, to the same end
        answer = tacit("train", file, "--resume", "--out", run)
        assert (answer.code, "Traceback" in answer.err) == (0, False)
        said = " ".join(answer.out.split())
        assert "covers steps up to 4 of 10: nothing is left, and the last checkpoint is" in said
        assert charged(run) == Counter(range(10))
        content = result(run)
        assert (content["status"], content["steps"]) == ("budget-exhausted", 4)
        assert torch.equal(models(run), uncut.parameters)
        spent = content["epsilon"]
        assert isinstance(spent, list)
        for node, cost in zip(job.plan.nodes, spent, strict=True):
            assert cost <= 2.0
            mu = math.sqrt(10) / node.noise_scale
            assert gaussian_delta(mu, cost) == pytest.approx(1e-5, rel=1e-5)
    # What reads the folder says the same.
    score = tacit("evaluate", run, "--json").json
    assert score["accuracy"] == content["test_accuracy"]["consensus"]
    assert tacit("report", run).code == 0
    page = (run / "report.html").read_text()
    assert "Ended early: a privacy budget was used up" in page
    assert "4 of 10" in page


def test_the_statement_of_a_run_that_ended_early_is_of_all_that_was_charged(tmp_path):
    private = {"noise_std": None, "epsilon": 2.0, "noise_seed": None}
    job, run = job_of(experiment(privacy=private, train={"steps": 10})), tmp_path / "run"
    cut_off(job, run, stopped=4, reserved=10)
    ended = execute(job, out=run, resume=True)
    assert (ended.status, ended.steps) == ("budget-exhausted", 4)
    assert tacit("privacy", "statement", run).code == 0
    statement = strict_json((run / "statement.json").read_text())
    assert statement["run"]["status"] == "budget-exhausted"
    assert [row["epsilon"] for row in statement["nodes"]] == list(ended.epsilon)
    assert tacit("privacy", "check", run / "statement.json").code == 0
    assert {path.stat().st_mode & 0o777 for path in run.iterdir()} == {0o600}


def test_nothing_left_without_a_checkpoint_is_refused_with_3(tmp_path):
    file = write_experiment(
        tmp_path, privacy={"noise_std": None, "epsilon": 2.0}, train={"steps": 10}
    )
    job, run = prepare(load_config(file)), tmp_path / "run"
    cut_off(job, run, stopped=4, reserved=10)
    for saved in run.glob("checkpoint-*"):
        saved.unlink()
    before = result(run)
    with pytest.raises(BudgetError, match="nothing is left"):
        execute(job, out=run, resume=True)
    answer = tacit("train", file, "--resume", "--out", run, "--quiet")
    assert answer.code == 3
    assert "nothing is left" in answer.refusal
    assert "raise privacy.epsilon" in answer.refusal
    assert charged(run) == Counter(range(10))
    assert result(run) == before


def test_each_nodes_own_budget_ends_the_run(tmp_path):
    """Nodes with the same noise and records, of which the first may spend least."""
    open_ended = job_of(experiment(nodes={"count": 3}, train={"steps": 10}))
    tight = max(node.epsilon or 0.0 for node in open_ended.plan.nodes) * 1.001
    for budgets in ([tight, 50.0, 50.0], [50.0, 50.0, tight], [50.0, tight, 50.0]):
        job = job_of(
            experiment(nodes={"count": 3}, privacy={"epsilon": budgets}, train={"steps": 10})
        )
        run = tmp_path / f"run-{budgets.index(tight)}"
        cut_off(job, run, stopped=4, reserved=6)
        ended = execute(job, out=run, resume=True)
        assert (ended.status, ended.steps) == ("budget-exhausted", 8)
        assert ended.message is not None
        assert f"node {budgets.index(tight)} " in ended.message
        assert all(spent is not None and spent <= tight for spent in ended.epsilon)


def test_without_a_budget_repeated_steps_are_charged_and_the_run_goes_on(tmp_path):
    job = job_of(experiment())
    run = tmp_path / "run"
    cut_off(job, run, stopped=2, reserved=5)
    whole, resumed = execute(job), execute(job, out=run, resume=True)
    assert (resumed.status, resumed.steps) == ("done", 6)
    assert torch.equal(resumed.parameters, whole.parameters)
    assert charged(run) == Counter([*range(6), 2, 3, 4])
    for node, spent, once in zip(job.plan.nodes, resumed.epsilon, whole.epsilon, strict=True):
        assert spent is not None
        assert once is not None
        assert spent > once
        assert gaussian_delta(3 / node.noise_scale, spent) == pytest.approx(1e-5, rel=1e-5)


# What cannot be resumed.


@pytest.fixture
def stopped(tmp_path):
    """A folder with an experiment and its run, stopped after three steps."""
    file = write_experiment(tmp_path, privacy={"noise_seed": None})
    execute(prepare(load_config(file)), out=tmp_path / "run", should_stop=after(3))
    return tmp_path


def digests(run):
    """What a run folder holds of its run; SQLite may put a header into an empty ledger.

    `status.json` is not of the run: it says how the last process ended, also one that was refused.
    """
    files = [path for path in run.iterdir() if path.stat().st_size or path.suffix != ".sqlite"]
    kept = [path for path in files if path.name != STATUS]
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in kept}


def refused_to_resume(folder):
    """How the resumption of a run is refused, which changes nothing."""
    run = folder / "run"
    before = digests(run)
    answer = tacit("train", folder / "experiment.toml", "--resume", "--out", run)
    assert answer.code == 2
    assert digests(run).items() >= before.items()
    return answer.refusal


@pytest.mark.parametrize(
    "override",
    [
        "algorithm.learning_rate=0.25",
        "algorithm.momentum=0.5",
        "privacy.delta=1e-6",
        "privacy.noise_seed=3",
        "train.steps=7",
        "train.seed=1",
        "nodes.count=5",
        "topology.graph=complete",
        "topology.rounds=2",
        "task.model=mlp",
    ],
)
def test_another_experiment_is_refused_by_the_key_that_differs(stopped, override):
    key = override.partition("=")[0]
    # "--quiet" hides the warning that a seed of the noise is answered with
    answer = tacit(
        "train", stopped / "experiment.toml", "--resume", "--out", stopped / "run",
        "--quiet", "--set", override,
    )  # fmt: skip
    assert answer.code == 2
    assert answer.refusal.startswith(f"tacit: {key} = ")
    assert "a run resumes as it began" in answer.refusal


@pytest.mark.parametrize(
    "override",
    [
        "train.evaluate_every=1",
        "train.evaluate_records=10",
        "train.checkpoint_every=1",
        "task.data_dir=elsewhere",
        "train.suboptimality=true",
        "train.patience=60.0",
        "nodes.placement=[0, 0, 0, 0]",
    ],
)
def test_what_releases_nothing_else_may_differ(stopped, override):
    answer = tacit(
        "train", stopped / "experiment.toml", "--resume", "--out", stopped / "run",
        "--quiet", "--set", override,
    )  # fmt: skip
    assert (answer.code, answer.err) == (0, "")
    assert charged(stopped / "run") == Counter(range(6))


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("task.features_cache", {"task": {"features": "scattering:1"}}),
        (
            "algorithm.table_directory",
            {"algorithm": {"name": "privsgp-vr", "state": "private"}, "train": {"batch": 20}},
        ),
    ],
)
def test_folders_may_be_others_than_before(key, changes, tmp_path):
    file = write_experiment(tmp_path, **changes)
    whole, run = tmp_path / "whole", tmp_path / "run"
    execute(prepare(load_config(file)), out=whole)
    execute(prepare(load_config(file)), out=run, should_stop=after(3))
    for place in ("one", "another"):
        moved = load_config(file, overrides=[f"{key}={tmp_path / place}"])
        execute(prepare(moved), out=run, resume=True, should_stop=after(1))
    execute(prepare(load_config(file)), out=run, resume=True)
    assert torch.equal(models(run), models(whole))


def test_a_folder_that_is_no_run_is_refused(stopped):
    for out in ("missing", "experiment.toml", ".", "n" * 300):
        answer = tacit("train", stopped / "experiment.toml", "--resume", "--out", stopped / out)
        assert answer.code == 2
        assert "holds no run to resume" in answer.refusal
    with pytest.raises(InputError, match="name the run folder"):
        execute(job_of(experiment()), resume=True)


def test_damaged_files_are_refused(stopped):
    run = stopped / "run"
    (last,) = (path for path in run.glob("checkpoint-*") if path.name.endswith("3.safetensors"))
    checkpoint.file_of(run, 2).unlink()  # without an older one to go back to
    damages = [
        (last, lambda content: content[:-100], "checkpoint"),
        (last, lambda content: b"", "checkpoint"),
        (last, lambda content: b"\xff" * len(content), "checkpoint"),
        (run / "ledger.sqlite", lambda content: content[:700], "ledger"),
        (run / "ledger.sqlite", lambda content: b"", "ledger"),
        (run / "ledger.sqlite", lambda content: b"\xff" * len(content), "ledger"),
        (run / "config.toml", lambda content: b"[task", "not valid TOML"),
        (run / "config.toml", lambda content: b"\xff", "UTF-8"),
    ]
    for path, damage, said in damages:
        sound = path.read_bytes()
        path.write_bytes(damage(sound))
        assert said in refused_to_resume(stopped)
        path.write_bytes(sound)
    (run / "ledger.sqlite").rename(stopped / "aside.sqlite")
    assert "the file of an existing ledger" in refused_to_resume(stopped)
    (stopped / "aside.sqlite").rename(run / "ledger.sqlite")
    answer = tacit("train", stopped / "experiment.toml", "--resume", "--out", run, "--quiet")
    assert answer.code == 0


def test_a_damaged_checkpoint_is_passed_over_and_the_result_says_so(tmp_path):
    job, run = job_of(experiment(train={"checkpoint_every": 1})), tmp_path / "run"
    execute(job, out=run, should_stop=after(3))
    newest = checkpoint.file_of(run, 3)
    content = bytearray(newest.read_bytes())
    content[-3] ^= 1  # of a tensor
    newest.write_bytes(content)
    resumed = execute(job, out=run, resume=True)
    assert (resumed.status, resumed.steps) == ("done", 6)
    assert torch.equal(resumed.parameters, execute(job).parameters)
    assert charged(run) == Counter([*range(6), 2])
    note = "checkpoint-00000003.safetensors is damaged, and was not used"
    assert resumed.notes == (note,)
    notes = result(run)["notes"]
    assert isinstance(notes, list)
    assert note in notes
    again = tacit("train", write_experiment(tmp_path, train={"checkpoint_every": 1}), "--resume",
                  "--out", run)  # fmt: skip
    assert (again.code, "is damaged" in again.out) == (0, False)
    newest = checkpoint.file_of(run, 6)
    newest.write_bytes(b"")
    again = tacit("train", tmp_path / "experiment.toml", "--resume", "--out", run)
    assert again.code == 0
    assert "note: checkpoint-00000006.safetensors is damaged" in again.out


def test_a_checkpoint_of_another_run_of_the_same_experiment_is_refused(tmp_path):
    job = job_of(experiment())
    for name in ("one", "other"):
        execute(job, out=tmp_path / name, should_stop=after(3))
    shutil.copy(checkpoint.file_of(tmp_path / "other", 3), tmp_path / "one")
    with pytest.raises(InputError, match="belongs to another run of this experiment"):
        execute(job, out=tmp_path / "one", resume=True)


@pytest.mark.parametrize("accounting", ["certified", "none"])
def test_a_run_is_resumed_once_at_a_time(accounting, tmp_path):
    job = job_of(experiment(privacy={"accounting": accounting}))
    run = tmp_path / "run"
    execute(job, out=run, should_stop=after(2))

    def meanwhile():
        with pytest.raises(InputError, match="one is running it now"):
            execute(job, out=run, resume=True)
        return False

    execute(job, out=run, resume=True, should_stop=meanwhile)
    assert result(run)["status"] == "done"


def test_damaged_metrics_do_not_block(tmp_path):
    job = job_of(experiment(train={"evaluate_every": 1}))
    run = tmp_path / "run"
    execute(job, out=run, should_stop=after(3))
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"no": "step"}\n[1]\n\xff\xfe\n{"step": 2}\n' + b"[" * 10_000)
    resumed = execute(job, out=run, resume=True)
    assert resumed.metrics["step"] == [0, 1, 2, 3, 4, 5, 6]


def test_while_a_run_goes_on_there_is_no_result(tmp_path):
    """That of an earlier session would tell less than is spent."""
    job, run = job_of(experiment()), tmp_path / "run"
    execute(job, out=run, should_stop=after(2))
    assert result(run)["steps"] == 2

    def cut():
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        execute(job, out=run, resume=True, should_stop=cut)
    answer = tacit("evaluate", run)
    assert answer.code == 2
    assert "has no result yet" in answer.refusal
    assert "report.html" not in {path.name for path in run.iterdir()}
    assert execute(job, out=run, resume=True).status == "done"


def test_an_error_in_the_middle_leaves_at_least_what_was_sent_on_the_books(tmp_path, monkeypatch):
    from tacit.communication.exchange.in_process import InProcessExchange

    mixed = InProcessExchange.mix

    def mix(self, k, *values, **options):
        found = mixed(self, k, *values, **options)
        if k == 4:
            raise ZeroDivisionError("a defect, when the messages of step 4 have left")
        return found

    job, run = job_of(experiment()), tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(InProcessExchange, "mix", mix)
        with pytest.raises(ZeroDivisionError):
            execute(job, out=run)
    assert charged(run) >= Counter(range(5))
    assert execute(job, out=run, resume=True).status == "done"


def test_an_edited_ledger_is_refused(stopped):
    import sqlite3

    with sqlite3.connect(stopped / "run" / "ledger.sqlite") as connection:
        edit = "UPDATE entry SET content = replace(content, '\"until\": 3', '\"until\": 1')"
        connection.execute(edit)
    connection.close()
    assert "unedited ledger" in refused_to_resume(stopped)


def test_an_older_copy_of_the_ledger_beside_a_later_checkpoint_is_refused(tmp_path):
    """Steps that were sent would be missing in what is certified."""
    sections = experiment(privacy={"noise_seed": None}, train={"steps": 9})
    run, older = tmp_path / "run", tmp_path / "older"
    execute(job_of(sections), out=run, should_stop=after(3))
    shutil.copy(run / "ledger.sqlite", older)
    execute(job_of(sections), out=run, resume=True, should_stop=after(4))
    later = (run / "ledger.sqlite").read_bytes()
    shutil.copy(older, run / "ledger.sqlite")
    with pytest.raises(InputError, match=r"4 of the 7 steps .* are not in them"):
        execute(job_of(sections), out=run, resume=True)
    (run / "ledger.sqlite").write_bytes(later)
    assert execute(job_of(sections), out=run, resume=True).steps == 9


def test_a_checkpoint_or_ledger_of_another_run_is_refused(stopped, tmp_path):
    other = tmp_path / "other"
    execute(job_of(experiment(train={"steps": 9})), out=other, should_stop=after(3))
    for name in ("checkpoint-00000003.safetensors", "ledger.sqlite"):
        path = stopped / "run" / name
        sound = path.read_bytes()
        shutil.copy(other / name, path)
        assert name in refused_to_resume(stopped)
        path.write_bytes(sound)


# Real processes.

MANY = 2000


@dataclass(frozen=True)
class Long:
    """An experiment of many short steps, and what it gives when nothing interrupts it."""

    file: Path
    result: Result


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """The current directory holds the data: few, so that a step takes half a millisecond."""
    folder = tmp_path_factory.mktemp("long")
    name = write_module(
        folder,
        """
        def few():
            generator = torch.Generator().manual_seed(0)
            inputs = torch.randn(48, 5, generator=generator)
            targets = (inputs.sum(1) > 0).long()
            return (inputs[:40], targets[:40]), (inputs[40:], targets[40:])
        """,
    )
    file = write_experiment(
        folder,
        task={"dataset": f"{name}:few"},
        privacy={"noise_std": 0.5},
        train={"steps": MANY, "checkpoint_every": 10, "evaluate_every": 80},
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as `start_tacit` does: so small a step only loses by more
    with chdir(folder):
        yield Long(file, execute(prepare(load_config(file))))
    torch.set_num_threads(threads)


def first_progress(process):
    """Wait for the first progress line; it is printed when a step was made."""
    assert process.stderr is not None
    killer = threading.Timer(120, process.kill)
    killer.start()
    try:
        for line in process.stderr:
            if line.startswith("step "):
                return
    finally:
        killer.cancel()
    pytest.fail(f"the run ended with {process.wait(10)} before its first step")


@pytest.mark.surroundings
def test_an_interrupt_stops_cleanly_and_costs_nothing(long, tmp_path):
    run = tmp_path / "run"
    process = start_tacit("train", long.file, "--out", run)
    first_progress(process)
    meanwhile = tacit("train", long.file, "--resume", "--out", run, "--quiet")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert meanwhile.code == 2
    assert "one is running it now" in meanwhile.refusal
    assert process.returncode == 0
    assert "Traceback" not in err
    assert "stopping after this step" in err
    assert "stopped: by the user" in out
    assert "stopped cleanly after step " in err
    assert f"the same command with --out {run} --resume goes on" in err
    content = result(run)
    assert content["status"] == "stopped"
    steps = content["steps"]
    assert isinstance(steps, int)
    assert 0 < steps < MANY
    assert charged(run) == Counter(range(steps))

    answer = tacit("train", long.file, "--resume", "--out", run, "--quiet")
    assert (answer.code, answer.err) == (0, SEEDED)
    assert result(run)["status"] == "done"
    assert torch.equal(models(run), long.result.parameters)
    assert result(run)["epsilon"] == list(long.result.epsilon)
    assert charged(run) == Counter(range(MANY))


def wait_until(reached, process):
    for _ in range(12000):
        if reached():
            return
        assert process.poll() is None
        time.sleep(0.01)
    pytest.fail("the run did not come so far within two minutes")


def wait_for_metrics(run, process, rows):
    path = run / "metrics.jsonl"
    wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= rows, process)


@pytest.mark.surroundings
def test_a_terminal_that_is_closed_stops_a_run_cleanly(long, tmp_path):
    run, (master, slave) = tmp_path / "run", pty.openpty()

    def take_terminal():
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever these tests were started by
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [sys.executable, "-m", "tacit", "train", str(long.file), "--out", str(run)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=slave, stdout=slave, stderr=slave, text=True,
        start_new_session=True, preexec_fn=take_terminal,
    )  # fmt: skip
    os.close(slave)
    wait_for_metrics(run, process, 3)
    os.close(master)
    assert process.wait(timeout=60) == 0
    content = result(run)
    steps = content["steps"]
    assert isinstance(steps, int)
    assert (content["status"], 0 < steps < MANY) == ("stopped", True)
    assert charged(run) == Counter(range(steps))
    kept = checkpoint.latest(run)
    assert kept is not None
    assert checkpoint.read(kept, long.result.plan.digest()).step == steps


@pytest.mark.surroundings
def test_under_nohup_a_closed_terminal_stops_nothing(long, tmp_path):
    run = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "tacit", "train", str(long.file), "--out", str(run), "--quiet"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    wait_for_metrics(run, process, 2)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=60) == 0
    assert result(run)["status"] == "done"


def test_kills_leave_sound_files_and_every_release_on_the_books(long, tmp_path):
    run, digest = tmp_path / "run", long.result.plan.digest()
    moments = random.Random(3)
    sessions = []  # where each began, and how far it provably came
    began = 0
    for session in range(6):
        process = start_tacit("train", long.file, "--out", run, *["--resume"] * bool(session))
        first_progress(process)
        time.sleep(moments.uniform(0.0, 0.12))
        if session == 5:  # on a busy machine none of them may have come to a checkpoint
            wait_until(lambda: checkpoint.latest(run) is not None, process)
        process.kill()
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        last, saved = checkpoint.latest(run), 0
        if last is not None:
            found = checkpoint.read(last, digest)
            saved = found.step
            assert all(bool(torch.isfinite(value).all()) for value in found.tensors.values())
        complete = (run / "metrics.jsonl").read_text().split("\n")[:-1]
        reached = max(saved, began + 1, *(strict_json(line)["step"] for line in complete))
        sessions.append((began, reached))
        made = Counter(step for first, until in sessions for step in range(first, until))
        assert made <= charged(run)
        assert saved >= began
        began = saved
    assert 0 < began < MANY

    answer = tacit("train", long.file, "--resume", "--out", run, "--quiet")
    assert (answer.code, answer.err) == (0, SEEDED)
    assert torch.equal(models(run), long.result.parameters)
    content, releases = result(run), charged(run)
    assert (content["status"], content["steps"]) == ("done", MANY)
    assert set(releases) == set(range(MANY))
    assert releases.total() > MANY
    spent = content["epsilon"]
    assert isinstance(spent, list)
    for node, cost, least in zip(long.result.plan.nodes, spent, long.result.epsilon, strict=True):
        mu = math.sqrt(releases.total()) / node.noise_scale
        assert gaussian_delta(mu, cost) == pytest.approx(1e-5, rel=1e-5)
        assert least is not None
        assert cost > least


# The budget of the nodes' data, which outlives runs.


def on_ledgers(run):
    """The steps that were charged to the first node's data, run by run."""
    files = [read_ledger(file) for file in account_files(run)]
    (found,) = [one for one in files if 0 in one.runs[0].statements]
    return [
        Counter(
            {
                step: times
                for first, until, times in step_runs(one.charged[0])
                for step in range(first, until)
            }
        )
        for one in found.runs
    ]


def test_kills_and_runs_on_one_budget(long, tmp_path):
    """Killed, resumed, refused while another runs, and refused for good."""
    ledgers, run, steps = tmp_path / "ledgers", tmp_path / "run", 1000
    file = tmp_path / "private.toml"
    seeded = long.file.read_text()
    assert "noise_seed = 7" in seeded
    file.write_text(seeded.replace("noise_seed = 7", ""))
    sets = ["--set", f"privacy.ledger={ledgers}", "--set", "privacy.ledger_epsilon=60"]
    sets += ["--set", f"train.steps={steps}", "--quiet"]
    assert "noise_seed lets anyone" in tacit("train", long.file, *sets).refusal
    moments = random.Random(5)
    for session in range(2):
        more = ["--resume"] * bool(session)
        with ForkServer() as server:  # killed at a write, some checkpoints after its first step
            number = moments.randint(100, 300)
            kill = server.tacit("train", file, "--out", run, *sets, *more, fault=["kill", number])
        assert kill.code == -signal.SIGKILL
        (reserved,) = on_ledgers(ledgers)
        assert reserved >= charged(run)
        assert reserved
    with Ledger.open_account(account_files(ledgers)[0]):
        other = tacit("train", file, "--out", tmp_path / "other", *sets)
    assert other.code == 2
    assert "one is running it now" in other.refusal
    answer = tacit("train", file, "--resume", "--out", run, *sets)
    assert (answer.code, answer.err) == (0, "")
    (reserved,) = on_ledgers(ledgers)
    assert reserved >= charged(run)
    assert set(reserved) == set(range(steps))

    again = tacit("train", file, "--out", tmp_path / "again", *sets)
    assert again.code == 3
    assert "the budget of its data (" in again.refusal
    assert "is epsilon 60 at delta 1e-05" in again.refusal
    assert "has drawn on it" in again.refusal
    # Without its ledger the run does not go on.
    shutil.move(ledgers, tmp_path / "moved")
    lost = tacit("train", file, "--resume", "--out", run, *sets)
    assert lost.code == 2
    assert "they have 0 of the" in lost.refusal
    assert not any((tmp_path / name).exists() for name in ("other", "again"))
    assert account_files(ledgers) == []
