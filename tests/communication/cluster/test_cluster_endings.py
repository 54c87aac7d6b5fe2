"""Processes that services start again: killed at the very end, or stopped before the first step.

Whoever has ended the run is done and waits for nobody, and nobody is waited for beyond the limits.
"""

import json
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

from communication.cluster.crew import (
    LIMIT,
    assert_ends_as,
    charged,
    crew,
    result_of,
    simulated,
    until,
)
from communication.cluster.joined import variables
from communication.cluster.tampering import around, at_step, raise_signal
from communication.cluster.test_cluster_watch import kept_elsewhere, line_of, started
from experiments import strict_json, write_experiment
from tacit.communication.cluster.rendezvous import connect
from tacit.report.documents.status import STATUS

pytestmark = pytest.mark.process

DONE = "this run was done already: nothing was trained, and nothing charged\n"
DIE, STOP = (partial(raise_signal, number) for number in (signal.SIGKILL, signal.SIGSTOP))


def experiment(folder):
    return write_experiment(
        folder, nodes={"count": 5}, train={"steps": 4, "dtype": "float64", "checkpoint_every": 2}
    )


def service(folder, file, out, *more, ranks=(0, 1, 2), homes=(), tamper=None, kept_by_rank_0=True):
    """How the ranks of three that are started end."""
    words = ("train", file, "--quiet", "--out", out, "--resume-if-there", *more)
    with crew(
        folder,
        3,
        lambda _: words,
        homes=homes,
        ranks=ranks,
        kept_by_rank_0=kept_by_rank_0,
        tamper=tamper,
    ) as members:
        return dict(zip(ranks, (member.end() for member in members), strict=True))


def codes(answers):
    return {rank: answer.code for rank, answer in answers.items()}


def state_of(run, rank):
    return str(strict_json((run / f"rank-{rank:04d}" / STATUS).read_text())["state"])


def test_who_was_killed_before_it_could_say_that_it_is_done_is_done(tmp_path):
    """The others have gone: it would wait for them in vain, and be started again for ever."""
    file, run = experiment(tmp_path), tmp_path / "run"
    first = service(tmp_path, file, run, kept_by_rank_0=False)
    assert codes(first) == dict.fromkeys(range(3), 0)
    before, spent = (run / "result.json").read_bytes(), charged(run)
    for rank in range(3):
        status = run / f"rank-{rank:04d}" / STATUS
        written = strict_json(status.read_text())
        assert written["state"] == "done"
        status.write_text(json.dumps({**written, "state": "running"}))
        (answer,) = service(tmp_path, file, run, ranks=[rank]).values()
        assert (answer.code, answer.err) == (0, DONE)
        assert state_of(run, rank) == "done"  # as whoever watches it is told
    assert ((run / "result.json").read_bytes(), charged(run)) == (before, spent)


@pytest.mark.parametrize(
    ("victim", "place", "others"),
    [
        (0, ("tacit.training.finish", "write_report"), {4}),
        (0, ("tacit.training.run_folder.status", "StatusWriter.end"), {0}),
        (1, ("tacit.training.run_folder.folder", "RunFolder.write_tensors"), {4}),
        (1, ("tacit.training.run_folder.folder", "RunFolder.write_result"), {4}),
        (1, ("tacit.training.run_folder.status", "StatusWriter.end"), {0}),
    ],
)
@pytest.mark.parametrize("apart", [False, True])
def test_a_process_that_is_killed_at_the_end_is_started_again_once(
    victim, place, others, apart, tmp_path
):
    """Folders on one machine, and apart, where the others' files are not seen."""
    file = experiment(tmp_path)
    homes = [tmp_path / f"home-{rank}" for rank in range(3)]
    out = Path("run") if apart else tmp_path / "run"
    tamper = {victim: partial(around, *place, DIE, after=False)}
    start = partial(service, tmp_path, file, out, homes=homes)
    first = codes(start(tamper=tamper))
    assert first.pop(victim) == -signal.SIGKILL
    # Where all that is left is to say so, those that have done it end with 0 and are gone.
    assert set(first.values()) <= others | {4}
    again = [rank for rank in range(3) if first.get(rank) != 0]
    # Who has gone does not come back: the others wait in vain, and end all the same.
    alone = apart and len(again) < 3
    short = dict.fromkeys(again, impatient) if alone else {}
    left = again
    for _ in range(3):  # where rank 0 ends first, another may have to look for it once more
        answers = start(*(["--set", "train.timeout=5"] * alone), ranks=left, tamper=short)
        left = [rank for rank in left if answers[rank].code != 0]
        if not left:
            break
    assert left == [], answers
    for rank in again:
        run = homes[rank] / "run" if apart else out
        assert state_of(run, rank) == "done"
        assert result_of(run / f"rank-{rank:04d}")["status"] == "done"
    if not apart:
        assert result_of(out)["status"] == "done"
        assert (out / "report.html").is_file()
        whole = simulated(file, tmp_path / "alone")
        assert charged(out) == charged(whole)  # nothing was done twice
        assert_ends_as(out, whole)


def impatient():
    """Starting takes seconds at most, in place of ten minutes."""
    connect.__kwdefaults__["start_up"] = 1.0


BOARD = """
import os, tacit
from tacit.communication.cluster.store import open_board
port = int(os.environ["MASTER_PORT"])
board = open_board("127.0.0.1", port, prefix="", keeper="it", opening=110, limit=60)
print("ready", flush=True)
while True:
    board.put("a", "b")
    board.get("a")
"""


def test_a_rendezvous_that_is_lost_is_said_without_frames_of_cpp():
    """Also by a program of a user's own, where the error is not caught."""
    with kept_elsewhere() as (keeper, port), started(BOARD, variables(1, 2, port)) as program:
        assert line_of(program) == "ready"
        keeper.kill()
        _, said = program.communicate(timeout=LIMIT)
    assert said.splitlines()[-1].startswith("tacit.errors.PeerError: the rendezvous at ")
    assert said.count("Traceback") == 1
    assert "frame #" not in said


# Stopped before the first step.

CLUSTER = "tacit.communication.cluster"
PLACES = {
    # It has met the others, and has not beaten once.
    "after it has met": (1, partial(around, f"{CLUSTER}.rendezvous", "meet", STOP, after=True)),
    # It keeps the store, of which the others ask where they connect.
    "store before": (0, partial(around, f"{CLUSTER}.channel", "_assemble", STOP, after=False)),
    "store in": (0, partial(around, f"{CLUSTER}.channel", "_gloo", STOP, after=False)),
    "store after": (0, partial(around, f"{CLUSTER}.channel", "_gloo", STOP, after=True)),
    "a step": (1, partial(at_step, 0, STOP)),
}


@pytest.mark.parametrize("place", PLACES)
def test_who_is_stopped_before_the_first_step_is_not_waited_for(place, tmp_path):
    victim, stop = PLACES[place]
    file = experiment(tmp_path)
    words = ("train", file, "--quiet", "--out", tmp_path / "run", "--set", "train.timeout=8")
    with crew(tmp_path, 3, lambda _: words, tamper={victim: stop}, kept_by_rank_0=True) as members:
        until(lambda: stopped(members[victim]))
        answers = [member.end() for rank, member in enumerate(members) if rank != victim]
    lost = "rank 0, which keeps it" if victim == 0 else "rank 1 "
    for answer in answers:
        assert answer.code == 4
        assert lost in answer.refusal


def stopped(member):
    """Whether a signal has stopped it."""
    if sys.platform != "linux":
        pytest.skip("asks Linux for the state of a process")
    stat = Path(f"/proc/{member.process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"
