"""Real processes that are killed, stopped, corrupted or defective: who is named, what is kept."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from communication.cluster.crew import (
    EXACT,
    LIMIT,
    assert_ends_as,
    assert_epsilon_is_that_of_the_books,
    charged,
    checkpoints,
    crew,
    nodes_of,
    result_of,
    simulated,
    train,
    until,
)
from communication.cluster.tampering import (
    BAD,
    around,
    at_step,
    corrupt,
    fail,
    overheard,
    raise_signal,
)
from communication.cluster.test_cluster_runs import SAME_EPSILON, close
from experiments import write_experiment, write_module
from tacit.training import loop

pytestmark = pytest.mark.process

CHANGES = {
    "nodes": {"count": 5},
    "train": {"steps": 8, "dtype": "float64", "checkpoint_every": 3, "evaluate_every": 2},
}


def codes(answers):
    return [answer.code for answer in answers]


# Kills.


@pytest.mark.parametrize(("victim", "noise_seed"), [(0, None), (1, 7)])
def test_a_killed_rank_is_named_and_the_run_goes_on_from_what_all_completed(
    victim, noise_seed, tmp_path
):
    file = write_experiment(tmp_path, privacy={"noise_seed": noise_seed}, **CHANGES)
    run = tmp_path / "run"

    def listening(session, lethal):
        return {
            rank: partial(
                overheard, tmp_path / f"{session}-{rank}", lethal if rank == victim else None
            )
            for rank in range(3)
        }

    def heard(session):
        return {
            (rank, tuple(key)): digest
            for rank in range(3)
            for key, digest in map(
                json.loads, (tmp_path / f"{session}-{rank}").read_text().splitlines()
            )
        }

    answers = train(tmp_path, file, run, 3, tamper=listening("first", 5))
    assert codes(answers) == [-signal.SIGKILL if rank == victim else 4 for rank in range(3)]
    for rank in {0, 1, 2} - {victim}:
        assert f"rank {victim} (node" in answers[rank].refusal
        assert "--resume" in answers[rank].refusal
    kept = checkpoints(run)
    assert max(set.intersection(*kept)) == 3
    for home in sorted(run.glob("rank-*")):
        state = load_file(home / "checkpoint-00000003.safetensors")
        assert all(bool(torch.isfinite(value).all()) for value in state.values())
    before = charged(run)
    # Who needs nothing from it may have gone a step further; who was slow, lost it a step earlier.
    assert all(steps == Counter(range(steps.total())) for steps in before.values())
    assert {steps.total() for steps in before.values()} <= {5, 6, 7}
    for rank, (_, step, _) in heard("first"):  # what was sent is on the books
        own = charged(run / f"rank-{rank:04d}").values()
        assert own
        assert all(steps[step] == 1 for steps in own)

    answers = train(tmp_path, file, run, 3, "--resume", tamper=listening("second", None))
    assert codes(answers) == [0, 0, 0], answers
    again = Counter(range(3, 8))
    assert charged(run) == {node: steps + again for node, steps in before.items()}
    assert result_of(run)["status"] == "done"
    assert_epsilon_is_that_of_the_books(run)
    # What the others saw of the repeated steps.
    first, second = heard("first"), heard("second")
    repeated = first.keys() & second.keys()
    assert {key[1] for _, key in repeated} >= {3, 4}
    same = {key for key in repeated if first[key] == second[key]}
    if noise_seed is None:
        assert same == set()
    else:
        assert same == repeated
        alone = simulated(file, tmp_path / "alone")
        assert_ends_as(run, alone)
        pairs = zip(result_of(run)["epsilon"], result_of(alone)["epsilon"], strict=True)
        assert all(twice > once for twice, once in pairs)


def test_kills_at_any_moment_leave_sound_files_and_every_release_on_the_books(tmp_path):
    file = write_experiment(
        tmp_path,
        nodes={"count": 5},
        train={"steps": 80, "dtype": "float64", "checkpoint_every": 5, "evaluate_every": 80},
    )
    run, moments = tmp_path / "run", random.Random(4)
    began, ledgers = 0, {node: Counter[int]() for node in range(5)}
    for session, victim in enumerate((2, 0)):
        more = ["--resume"] * bool(session)
        words = ("train", file, "--quiet", "--out", run, *more)
        own = run / f"rank-{victim:04d}"
        start = max(began, _latest(own))  # it may have kept one that the others have not
        with crew(tmp_path, 3, lambda _, words=words: words) as members:
            until(lambda own=own, start=start: _latest(own) > start)
            time.sleep(moments.uniform(0.0, 0.1))
            members[victim].process.kill()
            answers = [member.end() for member in members]
        assert answers[victim].code == -signal.SIGKILL
        for rank in {0, 1, 2} - {victim}:
            assert answers[rank].code == 4
            assert f"rank {victim} (node" in answers[rank].refusal
        now = charged(run)
        for node, steps in now.items():
            new = steps - ledgers[node]
            assert new == Counter(range(began, began + new.total()))
            assert new.total() > 0
        ledgers, began = now, max(set.intersection(*checkpoints(run)))
    assert codes(train(tmp_path, file, run, 3, "--resume")) == [0, 0, 0]
    assert_ends_as(run, simulated(file, tmp_path / "alone"))
    again = Counter(range(began, 80))
    assert charged(run) == {node: steps + again for node, steps in ledgers.items()}
    assert_epsilon_is_that_of_the_books(run)


def _latest(home):
    found = home.glob("checkpoint-" + 8 * "[0-9]" + ".safetensors")
    return max((int(one.stem.removeprefix("checkpoint-")) for one in found), default=0)


def _die_after(run, step):
    """Ranks 0 and 2 have come so far: what this one has sent is delivered as long as it lives."""
    until(lambda: all(_latest(run / f"rank-{rank:04d}") >= step for rank in (0, 2)))
    raise_signal(signal.SIGKILL)


@pytest.mark.parametrize(("place", "after"), [("_folders", True), ("finish", False)])
def test_a_rank_killed_before_the_first_step_or_after_the_last(place, after, tmp_path):
    file, run = write_experiment(tmp_path, **CHANGES), tmp_path / "run"
    die = partial(_die_after, run, 8 if place == "finish" else 0)
    tamper = {1: partial(around, "tacit.training.loop", place, die, after=after)}
    answers = train(tmp_path, file, run, 3, "--set", "train.timeout=30", tamper=tamper)
    assert codes(answers) == [4, -signal.SIGKILL, 4]
    assert all("rank 1 " in answers[rank].refusal for rank in (0, 2))
    assert codes(train(tmp_path, file, run, 3, "--resume")) == [0, 0, 0]
    alone = simulated(file, tmp_path / "alone")
    assert_ends_as(run, alone)
    assert charged(run) == charged(alone)  # none was repeated
    assert_epsilon_is_that_of_the_books(run)


def test_repeated_steps_count_against_the_budget_of_every_node(tmp_path):
    changes = {**CHANGES, "train": {**CHANGES["train"], "steps": 10}}
    file = write_experiment(tmp_path, privacy={"noise_std": None, "epsilon": 2.0}, **changes)
    run, die = tmp_path / "run", {1: partial(at_step, 5, partial(raise_signal, signal.SIGKILL))}
    assert codes(train(tmp_path, file, run, 3, tamper=die)) == [4, -signal.SIGKILL, 4]
    before = charged(run)
    assert codes(train(tmp_path, file, run, 3, "--resume")) == [0, 0, 0]
    content = result_of(run)
    assert (content["status"], content["steps"] < 10) == ("budget-exhausted", True)
    again = Counter(range(3, content["steps"]))
    assert charged(run) == {node: steps + again for node, steps in before.items()}
    assert_epsilon_is_that_of_the_books(run)
    assert 1.9 < max(content["epsilon"]) <= 2.0
    # Nothing is left: all agree that what they have is the result, at no further cost.
    ledgers, parameters = charged(run), nodes_of(run)
    assert codes(train(tmp_path, file, run, 3, "--resume")) == [0, 0, 0]
    assert charged(run) == ledgers
    assert torch.equal(nodes_of(run), parameters)
    ended = result_of(run)
    assert {key: ended[key] for key in ("status", "steps", "epsilon")} == {
        key: content[key] for key in ("status", "steps", "epsilon")
    }
    assert "the last checkpoint is the result" in ended["message"]


def test_a_run_does_not_go_on_without_the_books_of_a_rank(tmp_path):
    file, run = write_experiment(tmp_path, **CHANGES), tmp_path / "run"
    die = {1: partial(at_step, 2, partial(raise_signal, signal.SIGKILL))}
    assert codes(train(tmp_path, file, run, 3, tamper=die)) == [4, -signal.SIGKILL, 4]
    before = charged(run)
    shutil.rmtree(run / "rank-0002")
    answers = train(tmp_path, file, run, 3, "--resume")
    assert codes(answers) == [2, 2, 2]
    assert all("rank 2 has no ledger of this run" in answer.refusal for answer in answers)
    assert charged(run).items() >= {node: before[node] for node in range(4)}.items()


# Stops.


def test_a_rank_that_hangs_is_named_by_all_although_they_wait_in_a_chain(tmp_path):
    """A ring, where the rank opposite waits for those who wait; the lost one may come back."""
    # Of a heartbeat a quarter may pass in silence: more than a busy machine keeps anybody waiting.
    file, timeout = _ring(tmp_path), 30.0
    words = ("train", file, "--quiet", "--out", tmp_path / "run")
    words = (*words, "--set", f"train.timeout={timeout}")
    hang = {2: partial(at_step, 3, partial(raise_signal, signal.SIGSTOP))}
    with crew(tmp_path, 4, lambda _: words, tamper=hang) as members:
        answers = [members[rank].end(timeout + LIMIT) for rank in (0, 1, 3)]
        assert codes(answers) == [4, 4, 4]
        for answer in answers:
            assert "rank 2 (node 2) was lost" in answer.refusal
        assert members[2].process.is_alive()
        os.kill(members[2].process.pid or 0, signal.SIGCONT)
        late = members[2].end()
        assert late.code == 4
        assert "rank 2 (node 2) was lost" in late.refusal
    before = charged(tmp_path / "run")
    assert codes(train(tmp_path, file, tmp_path / "run", 4, "--resume")) == [0] * 4
    assert_ends_as(tmp_path / "run", simulated(file, tmp_path / "alone"))
    again = Counter(range(3, 8))
    assert charged(tmp_path / "run") == {node: steps + again for node, steps in before.items()}


def _ring(folder, **changes):
    return write_experiment(
        folder,
        algorithm={"name": "dp2-sgd"},
        topology={"graph": "ring"},
        train=CHANGES["train"],
        **changes,
    )


@pytest.mark.parametrize(("rank", "number"), [(2, signal.SIGINT)])
def test_one_rank_that_is_asked_to_stop_stops_all_at_the_same_step(rank, number, tmp_path):
    # Of a second or more: so long before a stop it is agreed on.
    long = {"steps": 60, "checkpoint_every": 60, "evaluate_every": 60}
    changes = {**CHANGES, "train": {**CHANGES["train"], **long}}
    file, run = write_experiment(tmp_path, **changes), tmp_path / "run"
    stop = {rank: partial(at_step, 4, partial(raise_signal, number))}
    answers = train(tmp_path, file, run, 3, "--set", "faults.slow=[[0, 0.03]]", tamper=stop)
    assert codes(answers) == [0, 0, 0], answers
    content = result_of(run)
    steps = content["steps"]
    # As rank 0 writes it down: whoever asked may have looked at what was released.
    told = "by the user of another process: such a stop may depend on what was released"
    assert content["status"] == "stopped"
    assert content["message"].startswith(told)
    assert 4 < steps < 60
    assert [max(own) for own in checkpoints(run)] == [steps] * 3
    assert charged(run) == {node: Counter(range(60)) for node in range(5)}
    assert_epsilon_is_that_of_the_books(run)
    # The rest is paid for.
    assert codes(train(tmp_path, file, run, 3, "--resume")) == [0, 0, 0]
    alone = simulated(file, tmp_path / "alone")
    assert_ends_as(run, alone, {steps})
    assert charged(run) == charged(alone)
    assert close(result_of(run)["epsilon"], result_of(alone)["epsilon"], SAME_EPSILON)


# Models that are not finite any more.


@pytest.mark.parametrize("who", ["all", "rank 0", "rank 1"])
def test_a_run_that_diverges_says_so_whichever_process_finds_it(who, tmp_path):
    rate = 1e38 if who == "all" else 0.5  # the noise of one such step leaves the range of numbers
    train_keys = {**CHANGES["train"], "dtype": "float32", "evaluate_every": 8}
    changes = {**CHANGES, "train": train_keys}
    file = write_experiment(
        tmp_path, algorithm={"learning_rate": rate}, privacy={"noise_std": 1000.0}, **changes
    )
    tamper = {} if who == "all" else {int(who[-1]): partial(overflow, 4)}
    answers = train(tmp_path, file, tmp_path / "run", 2, tamper=tamper)
    assert codes(answers) == [2, 2], answers
    content = result_of(tmp_path / "run")
    assert (content["status"], content["charged_steps"]) == ("diverged", 8)
    assert content["message"] in answers[0].refusal
    assert "finite" in content["message"]
    assert content["test_accuracy"] is None
    assert (tmp_path / "run" / "report.html").is_file()
    every = dict.fromkeys(range(8), 1)
    assert charged(tmp_path / "run") == dict.fromkeys(range(5), every)


def overflow(step):
    """The models of this process leave the range of numbers in a step."""
    advanced = loop.advanced

    def overflowing(plan, state, k, context):
        made = advanced(plan, state, k, context)
        return made._replace(x=made.x * math.inf) if k == step else made

    loop.advanced = overflowing


# Messages that are not what they must be.


@pytest.mark.parametrize("bad", ["not finite", "another dtype", "short"])
def test_a_bad_message_ends_all_and_names_its_sender(bad, tmp_path):
    file = write_experiment(tmp_path, **CHANGES)
    answers = train(tmp_path, file, tmp_path / "run", 3, tamper={1: partial(corrupt, bad, first=4)})
    assert codes(answers) == [4, 4, 4]
    for answer in answers:
        assert "rank 1 sent a bad message at step 4: " in answer.refusal
        assert BAD[bad][1] in answer.refusal
    assert max(set.intersection(*checkpoints(tmp_path / "run"))) == 3


OTHERS = {
    "compressed": ({"name": "choco-sgd", "compressor": "top-k", "keep": 0.3}, 1),
    "to the server": ({"name": "dp-fedavg"}, 1),
    "from the server": ({"name": "dp-fedavg"}, 0),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_bad_messages_of_other_kinds(kind, tmp_path):
    algorithm, sender = OTHERS[kind]
    private = {"noise_std": None, "noise_seed": None} if kind == "compressed" else {}
    file = write_experiment(tmp_path, algorithm=algorithm, privacy=private, **CHANGES)
    spoilt = {sender: partial(corrupt, "not finite", first=4)}
    answers = train(tmp_path, file, tmp_path / "run", 3, tamper=spoilt)
    assert codes(answers) == [4, 4, 4]
    for answer in answers:
        assert f"rank {sender} sent a bad message at step 4: " in answer.refusal


@pytest.mark.parametrize("algorithm", ["privsgp"])
def test_bad_messages_may_be_tolerated(algorithm, tmp_path):
    changes = {**CHANGES, "train": {**CHANGES["train"], "steps": 2 + len(BAD)}}
    file = write_experiment(
        tmp_path, algorithm={"name": algorithm}, faults={"tolerate": True}, **changes
    )
    answers = train(
        tmp_path, file, tmp_path / "run", 3, tamper={1: partial(corrupt, *BAD, first=1)}
    )
    assert codes(answers) == [0, 0, 0], answers
    assert result_of(tmp_path / "run")["status"] == "done"
    models = nodes_of(tmp_path / "run")
    clean = nodes_of(simulated(file, tmp_path / "alone"))
    assert bool(torch.isfinite(models).all())
    assert not torch.allclose(models, clean, **EXACT)
    if algorithm == "privsgp":  # what a dropped message carried is gone
        last = f"rank-*/checkpoint-{changes['train']['steps']:08d}.safetensors"
        mass = sum(float(load_file(one)["w"].sum()) for one in (tmp_path / "run").glob(last))
        assert 0 < mass < 4
        return
    # The receiver, or the server, went on with what it had: numbers of the same size.
    assert float((models - clean).norm()) < float(clean.norm())


# Defects, and what launchers make of losses.


def test_a_defect_of_one_rank_ends_all(tmp_path):
    file = write_experiment(tmp_path, **CHANGES)
    answers = train(tmp_path, file, tmp_path / "run", 3, tamper={2: partial(at_step, 3, fail)})
    assert codes(answers) == [4, 4, 1]
    for answer in answers[:2]:
        assert "rank 2: it ended with an error of its own; see its own screen" in answer.refusal
    assert "a defect of ours: RuntimeError: something nobody" in answers[2].refusal


DEADLY = """
    import glob, os, signal, threading, time

    def load(node):
        place = {name: os.environ[name] for name in ("RANK", "TORCHELASTIC_RESTART_COUNT")}
        with open(f"FOLDER/pid-{os.getpid()}", "w"):
            pass
        if list(place.values()) == ["1", "0"]:
            threading.Thread(target=die, daemon=True).start()
        generator = torch.Generator().manual_seed(node)
        inputs = torch.randn(20, 3, generator=generator)
        return Dataset(inputs, (inputs.sum(1) > 0).long())

    def die():
        for _ in range(3000):
            if glob.glob("FOLDER/run/rank-0001/checkpoint-*.safetensors"):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.01)
"""
LAUNCHERS = {
    "tacit launch": ["-m", "tacit", "launch", "--processes=2", "--restarts=1"],
    "torchrun": [
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1",
        "-m", "tacit", "train",
    ],
}  # fmt: skip


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_starts_all_again_after_a_loss(launcher, tmp_path):
    run, module = tmp_path / "run", write_module(tmp_path, DEADLY.replace("FOLDER", str(tmp_path)))
    file = write_experiment(
        tmp_path,
        task={"dataset": None, "model": "logistic", "outputs": 2},
        nodes={"count": 4, "data": "by-rank", "source": f"{module}:load"},
        train={"steps": 40, "dtype": "float64", "checkpoint_every": 4},
        faults={"slow": [[0, 0.02]]},
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, *LAUNCHERS[launcher], str(file), "--quiet", "--out", str(run)],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=2 * LIMIT)
    finally:
        process.kill()
        process.communicate(timeout=LIMIT)
        left = [number for number in _pids(tmp_path) if _end(number)]
    assert process.returncode == 0, err
    assert out.strip().splitlines()[-1] == str(run)
    assert "rank 1 (nodes 2 to 3)" in err
    assert left == []
    assert len(_pids(tmp_path)) == 4
    assert all(set(steps) == set(range(40)) for steps in charged(run).values())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        patch.setenv("RANK", "0")
        patch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
        assert_ends_as(run, simulated(file, tmp_path / "alone"))


def _pids(folder):
    return [int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*")]


def _end(number):
    """Kill a process, if there is one."""
    try:
        os.kill(number, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
