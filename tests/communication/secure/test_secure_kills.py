"""A run outlives what happens to its sites, its relay and the lines between them."""

import random
import signal
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from communication.cluster.crew import charged, result_of, simulated
from communication.cluster.test_cluster_runs import KINDS, SAME_EPSILON, assert_same_run, close
from communication.secure.sites import NAMES, Cuts, consortium, gated, gathered, status_of
from experiments import write_experiment
from ports import free_address

pytestmark = pytest.mark.process

BETWEEN = 6  # steps that a run may make from one event to the next
EVENTS = ("kill", "kill", "kill", "relay", "stop", "cut")
Sections = Mapping[str, Mapping[str, Any]]


def disturb(group, cuts, file, gate, draw, events):
    """Run an experiment at all sites, while things happen to them; what happened, and how often."""
    tamper = gated(gate)
    gate.write_text(str(BETWEEN))
    group.relay()
    group.train_all(file, tamper=tamper)
    happened: Counter[str] = Counter()
    for number in range(events):
        time.sleep(draw.uniform(0.0, 1.0))
        kind, victim = draw.choice(EVENTS), draw.choice(NAMES)
        happened[kind] += 1
        if kind == "kill":
            group.running[victim].kill()
            time.sleep(draw.choice((0.0, 0.0, 1.0)))
            group.train(victim, file, resume=True, tamper=tamper)
        elif kind == "relay":
            group.running["hub"].kill()
            time.sleep(draw.uniform(0.0, 1.0))
            group.relay()
        elif kind == "stop":
            group.running[victim].send(signal.SIGSTOP)
            time.sleep(draw.uniform(0.5, 3.0))
            group.running[victim].send(signal.SIGCONT)
        else:
            cuts.cut(draw.uniform(0.0, 1.5))
        gate.write_text(str(BETWEEN * (number + 2)))
    gate.write_text(str(10**6))
    return happened


def assert_outlives(tmp_path, kind, *, seed, events, noise_seed):
    common = {
        "steps": BETWEEN * (events + 2), "batch": 16, "dtype": "float64", "evaluate_every": 5,
        "checkpoint_every": 4, "patience": 200.0,
    }  # fmt: skip
    sections: Sections = {} if kind == "push-sum" else KINDS[kind]
    file = write_experiment(
        tmp_path,
        nodes={"count": 4},
        **{
            **sections,
            "privacy": {**sections.get("privacy", {}), "noise_seed": noise_seed},
            "train": {**common, **sections.get("train", {})},
        },
    )
    listen = free_address()
    with consortium(tmp_path, listen=listen) as group, Cuts(group.address, listen) as cuts:
        happened = disturb(group, cuts, file, tmp_path / "gate", random.Random(seed), events)
        answers = group.ends()
        assert [answer.code for answer in answers] == [0] * len(NAMES), (happened, answers)
        run = gathered(group, tmp_path / "run")
        for name in NAMES:
            status = status_of(group.rank_folder(name))
            assert (status["state"], status["step"]) == ("done", common["steps"])
            assert not group.session(name).exists()
    alone = simulated(file, tmp_path / "alone")
    if noise_seed is not None:
        assert_same_run(run, alone, server="server" in kind)
    found, right = result_of(run), result_of(alone)
    for key in ("status", "steps", "bytes_sent_by_node"):
        assert found[key] == right[key], (key, happened)
    assert close(found["epsilon"], right["epsilon"], SAME_EPSILON), happened
    assert charged(run) == charged(alone), happened
    assert {times for one in charged(run).values() for times in one.values()} == {1}


@pytest.mark.parametrize(("kind", "noise_seed"), [("push-sum", 7), ("server, secure sums", None)])
def test_a_run_outlives_a_few_kills(kind, noise_seed, tmp_path):
    assert_outlives(tmp_path, kind, seed=1, events=5, noise_seed=noise_seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "noise_seed", "seed"),
    [
        ("push-sum", 7, 2),
        ("gossip, compressed", 7, 3),
        ("noise of pairs, asynchronous", 7, 4),
        ("server, the same clients", 7, 5),
        ("push-sum", None, 6),
    ],
)
def test_a_run_outlives_many_kills(kind, noise_seed, seed, tmp_path):
    assert_outlives(tmp_path, kind, seed=seed, events=8, noise_seed=noise_seed)
