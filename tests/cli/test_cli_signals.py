"""Ctrl-C at the start, once and twice, and a standard output that is full: one line each."""

import os
import signal
import subprocess
import sys

import pytest

from experiments import write_experiment
from tacit.cli.signals import INTERRUPTED

pytestmark = pytest.mark.process

LINE = f"tacit: {INTERRUPTED}\n"

# Starts as the script does, and waits where it is about to load a module.
WAITS = """
import sys, time

def wait():
    # In short pieces: a signal that comes just before a sleep begins does not cut that one short.
    for _ in range(3000):
        time.sleep(0.1)

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            WAIT

module = sys.argv.pop(1)
sys.meta_path.insert(0, Slow())
from tacit.__main__ import main
main()
"""


def started(module, answer, *arguments):
    """The command line, which waits where it is about to load a module."""
    program = WAITS.replace("WAIT", answer)
    process = subprocess.Popen(
        [sys.executable, "-c", program, module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    return process


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("tacit.cli.main", "plan"),
        ("typer", "plan"),
        *(("torch", name) for name in ("plan", "train", "audit", "compare")),
    ],
)
def test_an_interrupt_while_it_loads_is_one_line(module, command):
    answer = 'print("here", flush=True); wait()'
    process = started(module, answer, command, "examples/digits.toml")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, LINE)


def test_sigterm_before_a_clean_stop_is_possible_is_one_line():
    """A service that is stopped while it starts; it ends as the signal ends any process."""
    answer = 'print("here", flush=True); wait()'
    process = started("torch", answer, "train", "examples/digits.toml")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    (line,) = said.splitlines()
    assert line.startswith("tacit: ended by SIGTERM before a clean stop was possible")
    assert "--resume-if-there" in line


def test_a_second_interrupt_ends_at_once_while_the_first_is_answered():
    answer = """
            try:
                print("here", flush=True)
                wait()
            finally:
                print("first", flush=True)
                wait()
    """
    process = started("torch", answer.strip(), "plan", "examples/digits.toml")
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "first\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, LINE)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_standard_output_is_no_defect_of_ours(tmp_path):
    file = write_experiment(tmp_path)
    run = tmp_path / "run"
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "tacit", "train", str(file), "--out", str(run), "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    *_, line = ended.stderr.splitlines()
    assert ended.returncode == 2
    assert line.startswith("tacit: ")
    assert "No space left on device" in line
    assert "defect of ours" not in ended.stderr
    assert (run / "result.json").is_file()
    assert (run / "report.html").is_file()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="limits are of Unix")
def test_a_run_without_room_keeps_what_was_written_and_goes_on(tmp_path):
    """Files may not grow beyond 64 KiB: the page of a run does not fit, and all else does."""
    file = write_experiment(tmp_path)
    command = f"{sys.executable} -m tacit train {file} --quiet --out {tmp_path / 'run'}"
    first = [*command.split()[:-1], str(tmp_path / "first")]  # it keeps compiled kernels, which are
    assert subprocess.run(first, timeout=120).returncode == 0  # larger than what is allowed below
    limited = ["sh", "-c", f"ulimit -f 128; exec {command}"]
    ended = subprocess.run(limited, capture_output=True, text=True, timeout=120)
    *_, line = ended.stderr.splitlines()
    assert ended.returncode == 2
    assert "report.html" in line
    assert "cannot be written (File too large)" in line
    assert line.endswith("go on with --resume")
    again = subprocess.run([*command.split(), "--resume"], capture_output=True, timeout=120)
    assert again.returncode == 0
    assert (tmp_path / "run" / "report.html").is_file()
