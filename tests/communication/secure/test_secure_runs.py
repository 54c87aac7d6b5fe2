"""Real sites over TLS and a relay give the numbers of the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from communication.cluster.crew import simulated
from communication.cluster.test_cluster_runs import KINDS, assert_same_run
from communication.secure.sites import NAMES, consortium, gathered, status_of
from experiments import write_experiment

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
def test_sites_give_the_numbers_of_the_simulator(kind: str, tmp_path: Path) -> None:
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
