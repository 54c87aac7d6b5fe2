"""`tacit relay`: what it prints, refuses, and how it ends."""

import json
import signal
import socket
import subprocess
import sys
import threading

import pytest

from consortia import consortium
from experiments import tacit
from ports import free_address
from tacit.communication.secure.carrier import Carrier

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
