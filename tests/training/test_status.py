"""`status.json`: what it says while a run goes on, waits, ends or fails, and what it never says."""

import os
import stat
import threading
from datetime import UTC, datetime, timedelta

import pytest

from experiments import experiment, strict_json
from tacit.communication.peers import Peers, PeerState
from tacit.config import load_config
from tacit.errors import BudgetError, InputError, PeerError, RecordsError, public_line
from tacit.report.documents.base import load
from tacit.report.documents.status import STATUS, StatusDocument
from tacit.training.loop import execute
from tacit.training.prepare import prepare
from tacit.training.run_folder.status import Standing, StatusWriter

LIMIT = 30.0
START = datetime(2026, 1, 1, tzinfo=UTC)


class Sites(Peers):
    """Three sites as this process, `south`, sees them; what it sees is for a test to change."""

    rank, processes = 1, 3

    def __init__(self):
        self.others = [PeerState(0, "north", "connected", 7, 0.5), PeerState(2, "west", "unknown")]
        self.waiting_for: tuple[int, ...] = ()
        self.looked = threading.Semaphore(0)

    def seen(self):
        self.looked.release()
        own = PeerState(1, "south", "connected", 3, 0.0, self.waiting_for)
        return [self.others[0], own, self.others[1]]


class Clock:
    """Ten seconds later whenever it is looked at."""

    def __init__(self):
        self.looks = 0

    def __call__(self):
        self.looks += 1
        return START + timedelta(seconds=10 * (self.looks - 1))


def read(folder):
    return load(StatusDocument, (folder / STATUS).read_bytes(), STATUS)


def look(sites, times=2):
    """Wait until the writer has begun so many more looks: all but the last are written."""
    while sites.looked.acquire(blocking=False):
        pass
    for _ in range(times):
        assert sites.looked.acquire(timeout=LIMIT), "the writer does not look"


@pytest.fixture
def sites():
    return Sites()


@pytest.fixture
def writer(tmp_path, sites):
    return StatusWriter(tmp_path, sites, clock=Clock(), between=0.002)


def test_a_process_starts_runs_waits_and_ends(tmp_path, sites, writer):
    standing = [Standing()]
    writer.start()
    look(sites)
    assert read(tmp_path).state == "starting"
    assert (read(tmp_path).step, read(tmp_path).steps) == (0, None)

    standing[0] = Standing(4, 9, 1.5, 3.0, 1000)
    writer.follow(lambda: standing[0])
    look(sites, 3)
    status = read(tmp_path)
    assert (status.state, status.site, status.rank) == ("running", "south", 1)
    assert (status.step, status.steps, status.epsilon, status.budget) == (4, 9, 1.5, 3.0)
    assert (status.bytes_sent, status.waiting_for, status.last_error) == (1000, (), None)
    north, south, west = status.sites
    assert (north.name, north.state, north.step) == ("north", "connected", 7)
    assert (south.name, south.step) == ("south", 4)  # not what it has told the others
    assert (west.state, west.step, west.last_seen) == ("unknown", None, None)
    assert north.last_seen is not None
    assert status.since < status.updated

    sites.waiting_for = (2, 0)
    look(sites, 4)
    status = read(tmp_path)
    assert (status.state, status.waiting_for) == ("waiting", ("west", "north"))

    standing[0] = Standing(9, 9, 1.5, 3.0, 1000)
    writer.end("done")
    status = read(tmp_path)
    assert (status.state, status.waiting_for) == ("done", ())
    assert status.since == status.updated


def test_a_wait_that_is_over_at_the_next_look_is_none(tmp_path, sites, writer):
    sites.waiting_for = (0,)
    steps = iter(range(10**9))
    writer.follow(lambda: Standing(next(steps), None))  # it gets on between two looks
    writer.start()
    look(sites, 5)
    assert read(tmp_path).state == "running"
    writer.end("stopped")
    assert read(tmp_path).state == "stopped"


def test_what_went_wrong_between_sites_is_said_and_what_ended_the_run_goes_before(
    tmp_path, sites, writer
):
    sites.others[1] = PeerState(2, "west", "away", 3, 90.0, (), "the certificate has expired")
    writer.start()
    look(sites)
    status = read(tmp_path)
    assert status.last_error == status.sites[2].last_error == "the certificate has expired"
    writer.end("failed", "rank 2 was lost")
    assert (read(tmp_path).state, read(tmp_path).last_error) == ("failed", "rank 2 was lost")


def test_the_file_is_the_owners_alone_and_whole_at_every_moment(tmp_path, sites, writer):
    usual = os.umask(0)
    try:
        writer.start()
        look(sites)
        for _ in range(200):
            assert read(tmp_path).rank == 1
        assert stat.S_IMODE((tmp_path / STATUS).stat().st_mode) == 0o600
        writer.end("done")
    finally:
        os.umask(usual)
    assert [path.name for path in tmp_path.iterdir()] == [STATUS]


def test_a_status_that_cannot_be_written_ends_nothing(tmp_path, sites, writer):
    (tmp_path / STATUS).mkdir()  # no file takes its place
    writer.start()
    look(sites, 3)
    writer.end("done")
    assert (tmp_path / STATUS).is_dir()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PeerError("rank 2 was lost"), "rank 2 was lost"),
        (BudgetError("nothing is left"), "nothing is left"),
        (InputError("out", "/runs/a", "cannot be written (No space left)"), "No space left"),
        (InputError("train.steps", 5, "must be more", public=True), "must be more"),
        (OSError(28, "No space left on device", "/data/ledger"), "/data/ledger: No space left"),
    ],
)
def test_an_error_that_may_be_told_is_told(error, line):
    assert line in str(public_line(error))


@pytest.mark.parametrize(
    "error",
    [
        InputError("callbacks", "Mine.on_step", "must not fail: ValueError: 17 of 90 patients"),
        ValueError("17 of 90 patients"),
        RecordsError("node 3", "17 of 90 patients are missing", "every record has a label"),
    ],
)
def test_an_error_that_may_speak_of_records_is_not_told(error):
    assert "17" not in str(public_line(error))


# Of runs.


def run(folder, on_step, **changes):
    execute(prepare(load_config(experiment(**changes))), out=folder, on_step=on_step)


def ignore(progress):
    """Nothing."""


def test_a_run_says_that_it_is_done_and_nothing_that_is_private(tmp_path):
    run(tmp_path / "run", ignore)
    status, result = (
        read(tmp_path / "run"),
        strict_json((tmp_path / "run" / "result.json").read_text()),
    )
    assert (status.state, status.step, status.steps, status.sites) == ("done", 6, 6, ())
    assert status.epsilon == pytest.approx(max(result["epsilon"]))
    assert status.bytes_sent == sum(result["bytes_sent_by_node"])
    assert set(strict_json((tmp_path / "run" / STATUS).read_text())) == {
        *("format_version", "rank", "site", "state", "step", "steps", "epsilon", "budget"),
        *("bytes_sent", "since", "updated", "waiting_for", "sites", "last_error"),
    }


def test_a_run_without_a_folder_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    execute(prepare(load_config(experiment())))
    assert not list(tmp_path.iterdir())
    assert not [thread for thread in threading.enumerate() if thread.name == "tacit-status"]


def test_a_run_that_fails_says_so_without_what_may_be_private(tmp_path):
    def fail(progress):
        if progress.step == 3:
            raise ValueError("17 of 90 patients")

    with pytest.raises(ValueError, match="patients"):
        run(tmp_path / "run", fail)
    status = read(tmp_path / "run")
    assert (status.state, status.step) == ("failed", 3)
    assert status.last_error is not None
    assert "ValueError" in status.last_error
    assert "patients" not in (tmp_path / "run" / STATUS).read_text()


def test_epsilon_counts_what_the_ledger_has_charged(tmp_path):
    """A block of steps is reserved before the first of them is made."""

    def stop(progress):
        raise PeerError("rank 2 was lost")

    with pytest.raises(PeerError):
        run(tmp_path / "run", stop, train={"steps": 200, "evaluate_every": 1})
    status = read(tmp_path / "run")
    run(tmp_path / "whole", ignore, train={"steps": 5})
    assert (status.step, status.steps) == (1, 200)
    assert status.epsilon == pytest.approx(read(tmp_path / "whole").epsilon)  # 5 are reserved
