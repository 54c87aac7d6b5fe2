"""`--resume-if-there`: one command line starts a run, goes on with it, and leaves it when done."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from unittest.mock import patch

import pytest

from consortia import consortium
from experiments import strict_json, tacit, tree, write_experiment
from ports import free_address
from tacit.cli.train import own_rank, was_done
from tacit.communication.secure.carrier import Carrier
from tacit.communication.secure.journal import Journal, Session
from tacit.communication.secure.sites import session_folder
from tacit.config import load_config
from tacit.errors import PeerError
from tacit.privacy.ledger.ledger import read_ledger
from tacit.report.documents.status import STATUS
from tacit.training.loop import execute
from tacit.training.prepare import prepare

AGAIN = "--resume-if-there"


@pytest.fixture
def file(tmp_path):
    return write_experiment(tmp_path, train={"checkpoint_every": 2})


def start(file, out, *more):
    return tacit("train", file, "--out", out, AGAIN, *more)


def parameters(out):
    return (out / "nodes.safetensors").read_bytes()


def test_it_starts_goes_on_and_is_done_with_one_command_line(file, tmp_path):
    run, whole = tmp_path / "runs" / "service", tmp_path / "whole"
    assert tacit("train", file, "--out", whole, "--quiet").code == 0

    def cut_off(progress):
        if progress.step == 5:
            raise PeerError("rank 1 was lost")

    with pytest.raises(PeerError):  # as a kill leaves it: at its last checkpoint
        execute(prepare(load_config(file)), out=run, on_step=cut_off)
    assert strict_json((run / STATUS).read_text())["state"] == "failed"
    assert start(file, run, "--quiet").code == 0
    assert parameters(run) == parameters(whole)
    before = {name: (run / name).read_bytes() for name in tree(run) if (run / name).is_file()}
    charged = read_ledger(run / "ledger.sqlite")

    again = start(file, run)
    assert (again.code, again.out) == (0, "")
    assert again.err == "this run was done already: nothing was trained, and nothing charged\n"
    assert {name: (run / name).read_bytes() for name in before} == before
    assert read_ledger(run / "ledger.sqlite") == charged


def test_what_scripts_read_is_the_same_when_it_was_done_already(file, tmp_path):
    run = tmp_path / "run"
    first = start(file, run, "--json")
    assert strict_json(start(file, run, "--json").out) == strict_json(first.out)
    assert start(file, run, "--quiet").out == f"{run}\n"


def test_what_the_plan_settled_makes_no_other_experiment(file, tmp_path):
    run, more = tmp_path / "run", ("--set", "train.batch=auto")
    assert start(file, run, *more, "--quiet").code == 0
    assert start(file, run, *more).err.startswith("this run was done already")
    other = start(file, run, *more, "--set", "train.seed=9")
    assert "train.seed = 9: the run in" in other.err
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "holds no run" in tacit("train", file, "--out", empty).err  # and not: --resume
    assert "in a new folder" in start(file, empty).err


def test_a_run_that_was_stopped_goes_on(file, tmp_path):
    run = tmp_path / "run"
    job = prepare(load_config(file))
    execute(job, out=run, should_stop=lambda: True)
    assert strict_json((run / STATUS).read_text())["state"] == "stopped"
    answer = start(file, run, "--json")
    assert strict_json(answer.out)["steps"] == 6


def test_a_folder_that_was_half_made_is_made(file, tmp_path):
    half = tmp_path / "runs" / ".service.0123abcd.new"
    half.mkdir(parents=True)
    (half / "config.toml").write_text("")
    assert start(file, tmp_path / "runs" / "service", "--quiet").code == 0
    assert not half.exists()


def test_what_is_no_run_is_refused_and_left_as_it_is(file, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    assert "config.toml is missing" in start(file, other).refusal
    assert tree(other) == {"thesis.txt"}


def test_a_run_of_another_experiment_is_refused_also_when_it_is_done(file, tmp_path):
    run = tmp_path / "run"
    assert start(file, run, "--quiet").code == 0
    refusal = start(file, run, "--set", "algorithm.learning_rate=0.7").refusal
    assert "algorithm.learning_rate" in refusal


def test_the_word_of_a_damaged_status_counts_for_nothing(file, tmp_path):
    run = tmp_path / "run"
    assert start(file, run, "--quiet").code == 0
    (run / STATUS).write_text("{")
    assert start(file, run, "--quiet").code == 0  # resumed, which charges nothing at the last step
    assert strict_json((run / STATUS).read_text())["state"] == "done"
    shutil.rmtree(run)
    run.mkdir()
    (run / STATUS).write_text(json.dumps({"state": "done"}))
    assert "config.toml is missing" in start(file, run).refusal


def test_it_goes_with_out_and_without_resume(file, tmp_path):
    assert "--out" in tacit("train", file, AGAIN).refusal
    assert AGAIN in start(file, tmp_path / "run", "--resume").refusal
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"RANK": "2", "WORLD_SIZE": "3"}, 2),
        ({"RANK": "two", "WORLD_SIZE": "3"}, None),
        ({"RANK": "2", "WORLD_SIZE": "many"}, None),
    ],
)
def test_the_rank_is_the_launchers(environment, rank):
    with patch.dict("os.environ", environment):
        assert own_rank(None) == rank


def test_one_of_several_processes_that_is_done_asks_nobody(file, tmp_path):
    """The others have gone: it would wait for them in vain, and be started again for ever."""
    run = tmp_path / "run"
    assert tacit("train", file, "--out", run / "rank-0002", "--quiet").code == 0
    environment = {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with patch.dict("os.environ", environment):
        answer = start(file, run, "--json")
    assert (answer.code, answer.out) == (0, "")
    assert "done already" in answer.err


def test_a_site_that_owes_others_messages_is_not_done(file, tmp_path):
    """It was ended after its last step, and before all that it had sent had arrived."""
    run, config = tmp_path / "run", load_config(file)
    assert tacit("train", file, "--out", run / "rank-0002", "--quiet").code == 0
    site = tmp_path / "site"
    with patch("tacit.cli.train.own_rank", return_value=2):
        assert was_done(run, config, site)
        journal = Journal(session_folder(run, 2))
        journal.write_session(Session(secret="ab" * 32, nonce="cd" * 16), is_new=True)
        assert not was_done(run, config, site)
        journal.remove()
        assert was_done(run, config, site)


# `tacit relay`: what it prints, refuses, and how it ends.


LIMIT = 30.0


def made_in(folder):
    address = free_address()
    return consortium(folder, {"north": ()}, {"relay": [address]}), address


def relay(folder, *options):
    command = [sys.executable, "-m", "tacit", "relay", "--site", str(folder), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def next_line(process):
    """Empty where none comes within the limit: the process is killed then."""
    assert process.stdout is not None
    timer = threading.Timer(LIMIT, process.kill)
    timer.start()
    try:
        return process.stdout.readline()
    finally:
        timer.cancel()


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_tells_who_comes_and_goes_until_it_is_stopped(tmp_path, number):
    made, address = made_in(tmp_path)
    process = relay(made["relay"].folder, "--listen", address, "--json")
    try:
        said = [next_line(process)]
        carrier = Carrier(made["north"], "a" * 32, print, timeout=LIMIT)
        said.append(next_line(process))
        carrier.close()
        said.append(next_line(process))
        process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    events = [json.loads(line) for line in said]
    assert [(event["event"], event["who"]) for event in events] == [
        ("listening", address),
        ("connected", "north"),
        ("left", "north"),
    ]
    assert {event["relay"] for event in events} == {"relay"}
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.process
def test_it_says_in_plain_words_where_it_listens(tmp_path):
    made, address = made_in(tmp_path)
    process = relay(made["relay"].folder)
    try:
        line = next_line(process)
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT)
    assert line.endswith(f" relay: listening at {address}\n")
    assert process.returncode == 0


def refused(folder, *options):
    answer = tacit("relay", "--site", folder, *options)
    assert answer.code == 2
    return answer.refusal


@pytest.mark.process
def test_what_is_refused(tmp_path):
    made, _ = made_in(tmp_path)
    folder = made["relay"].folder
    assert "must be the folder of a relay" in refused(made["north"].folder)
    assert "must be the folder that `tacit site create` made" in refused(tmp_path / "none")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        err = refused(folder, "--listen", address)
    assert err.startswith(f"tacit: --listen = '{address}': must be a free HOST:PORT")
    for wrong in ("here", "127.0.0.1", "127.0.0.1:", ":443", "127.0.0.1:99999", "tcp/0.0.0.0:1"):
        assert "--listen" in refused(folder, "--listen", wrong)
