"""A run outlives what happens to its sites, its relay and the lines between them."""

import random
import signal
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import chdir
from typing import Any

import pytest
import torch

from communication.cluster.crew import charged, nodes_of, result_of, simulated
from communication.cluster.test_cluster_runs import KINDS, SAME_EPSILON, assert_same_run, close
from communication.secure.sites import NAMES, Cuts, consortium, gated, gathered, status_of
from experiments import write_experiment, write_module
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
    happened = Counter()
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
    sections = {} if kind == "push-sum" else KINDS[kind]
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


# Real sites over TLS and a relay give the numbers of the simulator.


STEPS = 6
SITES_KINDS = {
    "push-sum": {"algorithm": {"name": "privsgp"}},
    "push-sum, gradient tables": {"algorithm": {"name": "privsgp-vr", "state": "private"}},
    **{
        kind: KINDS[kind]
        for kind in (
            "gossip, compressed",
            "noise of pairs",
            "server",
            "server, secure sums",
            "server, primal and dual",
            "asynchronous",
        )
    },
}


@pytest.mark.parametrize("kind", SITES_KINDS)
def test_sites_give_the_numbers_of_the_simulator(kind, tmp_path):
    common = {"steps": STEPS, "batch": 16, "dtype": "float64", "evaluate_every": 2}
    sections = {**SITES_KINDS[kind], "train": {**common, **SITES_KINDS[kind].get("train", {})}}
    file = write_experiment(tmp_path, nodes={"count": 5}, **sections)
    with consortium(tmp_path) as group:
        group.relay()
        group.train_all(file)
        answers = group.ends()
        assert [answer.code for answer in answers] == [0] * len(NAMES), answers
        run = gathered(group, tmp_path / "run")
        for name in NAMES:
            status = status_of(group.rank_folder(name))
            assert (status["state"], status["step"], status["last_error"]) == ("done", STEPS, None)
            assert not group.session(name).exists()
    simulated(file, tmp_path / "alone")
    assert_same_run(run, tmp_path / "alone", server="server" in kind)


@pytest.mark.parametrize("how", ["public", "private"])
def test_sites_recalibrate_as_the_simulator_does(how, tmp_path):
    """Each charges its own counts; a search for the slope begins with sums in another order."""
    source = """
    def load():
        from sklearn.datasets import load_digits
        data, labels = load_digits(return_X_y=True)
        inputs, low = torch.from_numpy(data / 16), torch.from_numpy(labels < 3).long()
        return Dataset(inputs[:1000], low[:1000]), Dataset(inputs[1000:], low[1000:])
    """
    name = write_module(tmp_path, source)
    file = write_experiment(
        tmp_path,
        nodes={"count": 5},
        task={"dataset": f"{name}:load", "calibrate": how},
        algorithm={"name": "privsgp", "clip": 0.5},
        privacy={"noise_std": 0.02, "delta": 1e-5},
        train={"steps": STEPS, "batch": "all", "dtype": "float64"},
    )
    with consortium(tmp_path) as group:
        for site in NAMES:
            group.home(site).mkdir(parents=True, exist_ok=True)
            (group.home(site) / f"{name}.py").write_text((tmp_path / f"{name}.py").read_text())
        group.relay()
        group.train_all(file)
        answers = group.ends()
        assert [answer.code for answer in answers] == [0] * len(NAMES), answers
        run = gathered(group, tmp_path / "run")
    with chdir(tmp_path):
        simulated(file, tmp_path / "alone")
    near = {"rtol": 1e-6, "atol": 1e-9}
    torch.testing.assert_close(nodes_of(run), nodes_of(tmp_path / "alone"), **near)
    assert charged(run) == charged(tmp_path / "alone")
    assert any(note.startswith("calibrated: ") for note in result_of(run)["notes"])
