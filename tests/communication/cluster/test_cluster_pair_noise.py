"""Noise of pairs between processes: it cancels, is new at every attempt, and losses are told."""

import signal
from functools import partial
from typing import Any

import pytest
import torch

from communication.cluster.crew import charged, checkpoints, result_of, train
from communication.cluster.tampering import at_step, corrupt, raise_signal
from experiments import write_experiment
from tacit.training import stacked_context

pytestmark = pytest.mark.process

PROCESSES = 3
SETTINGS: dict[str, dict[str, Any]] = {
    "nodes": {"count": PROCESSES},
    "algorithm": {"name": "dyn-d2p"},
    "topology": {"graph": "complete"},
    "privacy": {"noise": "pairwise", "pair_noise": 3.0, "colluding": 1, "noise_seed": None},
    "train": {"steps": 5, "checkpoint_every": 2},
}


def recorded(folder, victim, lethal):
    """Keep this rank's noise of pairs, a file a step; a victim dies before its lethal step."""
    drawn = stacked_context.pair_sums

    def keep(*arguments):
        offsets = drawn(*arguments)
        (node,), k = arguments[1], arguments[6]
        torch.save(offsets.points, folder / f"{k}-{node}.pt")
        return offsets

    stacked_context.pair_sums = keep
    if victim and lethal is not None:
        at_step(lethal, partial(raise_signal, signal.SIGKILL))


def attempt(folder, file, lethal, *more):
    """Exit codes of a session that keeps its pair noise in a folder."""
    folder.mkdir()
    tamper = {rank: partial(recorded, folder, rank == 1, lethal) for rank in range(PROCESSES)}
    answers = train(folder, file, file.parent / "run", PROCESSES, *more, tamper=tamper)
    return [answer.code for answer in answers]


def noise(folder, k):
    """That of every rank, of a step that all of them reached."""
    files = [folder / f"{k}-{node}.pt" for node in range(PROCESSES)]
    return [torch.load(file, weights_only=True).double() for file in files if file.exists()]


def test_a_step_that_is_run_again_after_a_kill_has_new_noise_of_pairs(tmp_path):
    file = write_experiment(tmp_path, **SETTINGS)
    first, second = tmp_path / "first", tmp_path / "second"
    assert attempt(first, file, 3)[1] == -signal.SIGKILL
    assert max(set.intersection(*checkpoints(tmp_path / "run"))) == 2
    assert attempt(second, file, None, "--resume") == [0, 0, 0]
    # Two processes that agree on a key draw the same: over all nodes nothing is left.
    for folder, steps in ((first, range(3)), (second, range(2, 5))):
        for k in steps:
            found = noise(folder, k)
            assert len(found) == PROCESSES
            assert not torch.stack(found).sum(0).any()
            assert all(rows.std() > 64 for rows in found)
    # What somebody who heard both attempts of step 2 could subtract from each other.
    for before, after in zip(noise(first, 2), noise(second, 2), strict=True):
        assert abs(torch.corrcoef(torch.cat([before, after]))[0, 1]) < 6 / before.numel() ** 0.5
        # Two draws of the noise of two pairs are left, in half points.
        assert (before - after).var() > 3 * (2 * 64) ** 2
    assert all(steps[2] == 2 for steps in charged(tmp_path / "run").values())


def test_a_dropped_message_is_told_and_changes_nobodys_noise_of_pairs(tmp_path):
    seeded = {**SETTINGS["privacy"], "noise_seed": 7}
    tolerant = {**SETTINGS, "privacy": seeded, "faults": {"tolerate": True}}
    file = write_experiment(tmp_path, **tolerant)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert attempt(whole, file, None) == [0, 0, 0]
    told = result_of(tmp_path / "run")
    assert not any("left in the mean" in note for note in told["notes"])
    (tmp_path / "run").rename(tmp_path / "undisturbed")

    cut.mkdir()
    tamper = {rank: partial(recorded, cut, False, None) for rank in range(PROCESSES)}
    tamper[1] = partial(_recorded_and_corrupt, cut)
    answers = train(cut, file, tmp_path / "run", PROCESSES, tamper=tamper)
    assert [answer.code for answer in answers] == [0, 0, 0], answers
    notes = " ".join(result_of(tmp_path / "run")["notes"])
    assert "bad messages that were dropped" in notes
    assert "noise of pairs that was in them is left in the mean" in notes
    assert result_of(tmp_path / "run")["epsilon"] == told["epsilon"]
    for k in range(5):
        for before, after in zip(noise(whole, k), noise(cut, k), strict=True):
            assert torch.equal(before, after)


def _recorded_and_corrupt(folder):
    recorded(folder, False, None)
    corrupt("not finite", first=2)
