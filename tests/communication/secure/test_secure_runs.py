"""Real sites over TLS and a relay give the numbers of the simulator."""

from collections.abc import Mapping
from contextlib import chdir
from typing import Any

import pytest
import torch

from communication.cluster.crew import charged, nodes_of, result_of, simulated
from communication.cluster.test_cluster_runs import KINDS, assert_same_run
from communication.secure.sites import NAMES, consortium, gathered, status_of
from experiments import write_experiment, write_module

pytestmark = pytest.mark.process

STEPS = 6
Sections = Mapping[str, Mapping[str, Any]]
SITES_KINDS: Mapping[str, Sections] = {
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
