"""`tacit watch`: what it shows of a run, of one that is over, and of folders that say nothing."""

import json
import os
import threading
import time
from datetime import UTC, datetime, timedelta
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import strict_json, tacit, write_experiment
from tacit.errors import InputError
from tacit.report.documents.status import STATUS, WatchDocument, read_status, watched

NOW = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)


def iso(seconds_ago=0.0, now=None):
    moment = (now or datetime.now(UTC)) - timedelta(seconds=seconds_ago)
    return moment.isoformat(timespec="seconds")


def site(rank, name, state="connected", ago=0.0):
    return {
        "rank": rank,
        "name": name,
        "state": state,
        "step": None if ago is None else 4,
        "last_seen": None if ago is None else iso(ago),
        "last_error": None,
        "rate": 19_400.0 if state == "connected" else None,
        "frames": 40,
        "again": 2 if name == "west" else 0,
    }


def status(rank=1, **changes):
    """What the process of the site `south` says: it waits for `west`."""
    return {
        "format_version": 1,
        "rank": rank,
        "site": "south",
        "state": "waiting",
        "step": 4,
        "steps": 60,
        "epsilon": 1.5,
        "budget": 3.0,
        "bytes_sent": 1_234_567,
        "since": iso(30),
        "updated": iso(),
        "waiting_for": ["west"],
        "sites": [site(0, "north"), site(1, "south"), site(2, "west", "away", 130.0)],
        "last_error": None,
        **changes,
    }


def write(folder, content):
    folder.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / STATUS).write_text(text)
    return folder


@pytest.fixture
def run(tmp_path):
    """The run folder at the site `south`."""
    write(tmp_path / "wards" / "rank-0001", status())
    return tmp_path / "wards"


def look(run, *options):
    answer = tacit("watch", run, "--once", *options)
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.replace("\u202f", " ").splitlines()
    return "\n".join(line.strip() for line in lines if not set(line) <= set(" ─"))


def test_who_is_waited_for_is_the_first_thing_said(run):
    shown = look(run)
    first, _, *rows = shown.splitlines()
    assert first == f"{run}: waits for west at step 4 of 60"
    cells = [row.split() for row in rows]
    assert cells[0][:4] == ["north", "connected", "4", "now"]
    assert rows[1].split("  ")[0] == "south (here)"
    assert "1.50 of 3" in rows[1]
    assert "1.23 MB" in rows[1]
    assert "waits for west" in rows[1]
    assert cells[2][:3] == ["west", "away", "4"]
    assert "2 min" in rows[2]
    assert rows[0].split("  ")[-1].strip() == "19.4 kB/s"
    assert "south: of 40 messages to west, 2 were sent again" in rows
    assert rows[3].startswith("south has waited for west since ")


def test_sites_that_were_never_heard_of_and_errors_are_shown(run):
    sites = [site(0, "north", "unknown", None), site(1, "south")]
    error = "the certificate of north has expired"
    write(run / "rank-0001", status(sites=sites, last_error=error, waiting_for=["north"]))
    shown = look(run)
    assert "never" in shown
    assert f"south: last error: {error}" in shown


def test_of_several_processes_here_each_speaks_for_itself(run):
    write(run / "rank-0002", status(2, site="west", state="running", step=5, waiting_for=[]))
    first, _, north, south, west, *_ = look(run).splitlines()
    assert "waits for west" in first
    assert "here" not in north
    assert "here" in south
    assert "here" in west
    assert "away" not in west


def test_a_process_that_died_without_a_word_is_named_and_the_exit_code_says_it(run):
    sites = [site(0, "north", ago=300.0), site(1, "south"), site(2, "west", "away", 430.0)]
    write(run / "rank-0001", status(updated=iso(300), sites=sites))
    answer = tacit("watch", run, "--once")
    assert answer.code == 4
    assert "silent" in answer.out
    assert "south has given no sign of life for 5" in answer.out
    north = next(row for row in answer.out.splitlines() if row.startswith(" north"))
    assert north.split()[1:5] == ["unknown", "4", "5", "min"]  # nobody here hears it any more
    assert "no sign of life" in answer.err
    assert tacit("watch", run, "--once", "--json").code == 4


def test_of_a_run_that_is_done_all_are_done_but_those_who_were_left_out(run):
    sites = [site(0, "north", "unknown", None), site(1, "south"), site(2, "west", "gone", 900.0)]
    ended = status(state="done", step=60, updated=iso(300), waiting_for=[], sites=sites)
    write(run / "rank-0001", ended)
    rows = {row.split()[0]: row.split()[1:3] for row in look(run).splitlines()[2:]}
    assert rows["north"] == ["done", "60"]
    assert rows["west"] == ["gone", "4"]
    told = json.loads(tacit("watch", run, "--once", "--json").out)
    assert [one["state"] for one in told["processes"][0]["status"]["sites"]][::2] == [
        "done",
        "gone",
    ]


def test_a_status_of_another_version_is_called_that(run):
    text = json.dumps({**status(), "format_version": 9})
    write(run / "rank-0001", text)
    answer = tacit("watch", run, "--once")
    assert answer.code == 2
    assert "format_version = 9: this version of tacit reads format 1" in answer.out
    assert "damaged" not in answer.out


@pytest.mark.parametrize("state", ["stopped", "done", "failed"])
def test_of_a_run_that_has_ended_everything_is_said_once(run, state):
    ended = status(state=state, updated=iso(300), waiting_for=[], last_error="rank 2 was lost")
    write(run / "rank-0001", ended)
    answer = tacit("watch", run)  # it does not go on
    assert (answer.code, answer.err) == (0, "")
    assert state in answer.out
    assert "no sign of life" not in answer.out
    assert answer.out.count("rank 2 was lost") == 1
    # Who has ended the run as it should has heard the others say that they have.
    assert answer.out.count("done") == (4 if state == "done" else 0)
    assert "connected" not in answer.out


def test_it_goes_on_until_the_run_has_ended(run):
    waits = []
    own, sleep = threading.current_thread(), time.sleep

    def wait(seconds):
        if threading.current_thread() is not own:  # of another test's, which is ending
            sleep(seconds)
            return
        waits.append(seconds)
        done = len(waits) == 3
        write(run / "rank-0001", status(step=9, state="done" if done else "running"))

    with patch("time.sleep", wait):
        answer = tacit("watch", run, "--json", "--interval", "7")
    assert answer.code == 0
    assert waits == [7, 7, 7]
    lines = [strict_json(line) for line in answer.out.splitlines()]
    states = [line["processes"][0]["status"]["state"] for line in lines]
    assert states == ["waiting", "running", "running", "done"]


def test_ctrl_c_is_the_way_to_leave(run):
    with patch("time.sleep", side_effect=KeyboardInterrupt):
        answer = tacit("watch", run)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.count("waits for west at step") == 1


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        json.dumps(status())[:200],
        "[]",
        json.dumps(status(format_version=2)),
        json.dumps(status(step=-1)),
        json.dumps(status(updated="yesterday")),
        json.dumps(status(sites=[{"rank": 0}])),
        "x" * (4 * 2**20 + 1),
        "[" * 100_000,
    ],
)
def test_a_damaged_status_is_one_plain_line(run, content):
    write(run / "rank-0002", content)
    answer = tacit("watch", run, "--once")
    assert answer.code == 2
    assert f"{run}/rank-0002" in answer.err
    assert answer.err.count("\n") == 1
    assert STATUS in answer.out
    assert "south (here)" in answer.out  # what can be read is shown all the same


def test_what_is_no_file_is_not_waited_for(run):
    (run / "rank-0002").mkdir()
    os.mkfifo(run / "rank-0002" / STATUS)
    (run / "rank-0003" / STATUS).mkdir(parents=True)
    answer = tacit("watch", run, "--once")
    assert answer.code == 2
    assert "south (here)" in answer.out


def test_other_folders_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    assert "is not a run folder" in tacit("watch", tmp_path, "--once").refusal
    assert "makes its folder once" in tacit("watch", tmp_path / "none", "--once").refusal
    assert "cannot be read" in tacit("watch", tmp_path / "file").refusal
    (tmp_path / "config.toml").write_text("")
    answer = tacit("watch", tmp_path, "--once")
    assert answer.code == 2
    assert "no process has run here yet" in answer.out


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf", "1e9"])
def test_an_interval_is_a_sensible_number_of_seconds(run, interval):
    assert "seconds" in tacit("watch", run, "--interval", interval).refusal


def test_what_others_are_called_does_not_move_the_cursor(run):
    name = "a\x1b[2Jb[bold]c\nd"
    write(run / "rank-0001", status(sites=[site(0, name)], waiting_for=[name], last_error=name))
    shown = look(run)
    assert "\x1b" not in shown
    assert "a[2Jb[bold]cd" in shown


def test_a_terminal_is_written_anew_at_each_look(run):
    with (
        patch("time.sleep", side_effect=KeyboardInterrupt),
        patch.dict("os.environ", {"FORCE_COLOR": "1", "COLUMNS": "100", "TERM": "xterm"}),
    ):
        answer = tacit("watch", run)
    assert answer.code == 0
    assert "waits for west" in answer.out


def test_a_run_can_be_watched_when_it_is_over(tmp_path):
    tacit("train", write_experiment(tmp_path), "--out", tmp_path / "run", "--quiet")
    shown = look(tmp_path / "run")
    assert shown.startswith(f"{tmp_path / 'run'}: is done, step 6 of 6")
    seen = watched(tmp_path / "run", datetime.now(UTC))
    assert isinstance(seen, WatchDocument)
    assert seen.ended


@pytest.mark.slow
@given(content=st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_no_content_is_more_than_a_refusal(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("any")
    (folder / STATUS).write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        read_status(folder)


def test_a_clock_that_is_behind_makes_nobody_silent(run):
    write(run / "rank-0001", status(updated=iso(-3600, NOW)))
    (process,) = watched(run, NOW).processes
    assert (process.age, process.silent) == (0.0, False)
