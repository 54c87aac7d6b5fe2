"""Secure sums between real processes: the simulator's numbers, kills, and what the server knows."""

import json
import signal
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from communication.cluster.crew import (
    assert_ends_as,
    assert_epsilon_is_that_of_the_books,
    charged,
    checkpoints,
    result_of,
    simulated,
    train,
)
from communication.cluster.tampering import overheard
from experiments import write_experiment

pytestmark = pytest.mark.process

CHANGES: Mapping[str, Mapping[str, Any]] = {
    "nodes": {"count": 4},
    "algorithm": {"name": "dp-sgd"},
    "train": {"steps": 7, "checkpoint_every": 3, "evaluate_every": 2, "batch": 16},
}
PRIVACY = {"aggregation": "secure-sum", "colluding": 2}
TOLD, MASKED = 4, 6  # kinds of messages: what the server says, and what it gets


def test_a_round_that_is_repeated_after_a_kill_has_fresh_masks_and_is_charged_again(tmp_path):
    """The own noise is seeded here, so that nothing but the masks tells the two attempts apart."""
    file, run = write_experiment(tmp_path, privacy=PRIVACY, **CHANGES), tmp_path / "run"

    def listening(session, lethal):
        return {
            rank: partial(overheard, tmp_path / f"{session}-{rank}", lethal if rank == 1 else None)
            for rank in range(3)
        }

    def heard(session, kind):
        return {
            (rank, step): digest
            for rank in range(3)
            for (found, step, _), digest in map(
                json.loads, (tmp_path / f"{session}-{rank}").read_text().splitlines()
            )
            if found == kind
        }

    answers = train(tmp_path, file, run, 3, tamper=listening("first", 5))
    assert [answer.code for answer in answers] == [4, -signal.SIGKILL, 4]
    assert all("rank 1 (node" in answers[rank].refusal for rank in (0, 2))
    assert max(set.intersection(*checkpoints(run))) == 3
    before = charged(run)
    assert set(before) == set(range(4))

    answers = train(tmp_path, file, run, 3, "--resume", tamper=listening("second", None))
    assert [answer.code for answer in answers] == [0, 0, 0], answers
    again = Counter(range(3, 7))
    assert charged(run) == {node: steps + again for node, steps in before.items()}
    assert_epsilon_is_that_of_the_books(run)
    first, second = heard("first", MASKED), heard("second", MASKED)
    repeated = first.keys() & second.keys()
    assert {(1, 3), (1, 4), (2, 3), (2, 4)} <= repeated
    assert not any(first[key] == second[key] for key in repeated)
    told = heard("first", TOLD), heard("second", TOLD)
    assert {(0, 3), (0, 4)} <= told[0].keys() & told[1].keys()
    assert all(told[0][key] == told[1][key] for key in ((0, 3), (0, 4)))
    alone = simulated(file, tmp_path / "alone")
    assert_ends_as(run, alone)
    pairs = zip(result_of(run)["epsilon"], result_of(alone)["epsilon"], strict=True)
    assert all(twice > once for twice, once in pairs)


def test_more_clients_in_one_process_than_may_collude_are_refused(tmp_path):
    privacy = {**PRIVACY, "colluding": 1}
    file = write_experiment(tmp_path, privacy=privacy, **CHANGES)
    answers = train(tmp_path, file, tmp_path / "run", 3)
    assert [answer.code for answer in answers] == [2, 2, 2]
    for answer in answers:
        assert "privacy.colluding = 1: must be at least 2: the process of rank 0" in answer.refusal
