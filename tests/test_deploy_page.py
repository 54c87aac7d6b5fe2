"""The page on deploying is followed literally: every machine is a folder, every command is run.

What stands before `$ ` is the machine. All machines share the environment that the page's own
commands make, in a clone, with the packages of these commands and no others. `scp` copies between
folders, a command that ends with ` &` goes on in the background, and `pkill` ends what its machine
has started. Only the relay's address is another one.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from environments import OURS, Shell, builders, fetched, installed, required
from pages import blocks
from ports import free_address
from tacit.privacy.ledger.ledger import read_ledger, step_runs

pytestmark = pytest.mark.process

PAGE = Path(__file__).resolve().parents[1] / "docs" / "how-to" / "deploy.md"
MACHINES = ("north", "south", "west", "relay", "office")
SITES = MACHINES[:3]
LIMIT = 600.0  # what is compiled at a first run is compiled then, at three sites at once
_FILE = re.compile(
    r"^<!-- file: (?P<name>\S+) -->\n```\w+\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_COMMANDS = re.compile(r"^```console\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def until(found, what):
    deadline = time.monotonic() + LIMIT
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Machines:
    """Folders, and what was started in them."""

    def __init__(self, folder, address, programs):
        self.folder, self.address, self.programs = folder, address, programs
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        for name in MACHINES:
            (folder / name).mkdir()

    def do(self, machine, command):
        for printed in ("relay.example.org:443", "0.0.0.0:443"):
            command = command.replace(printed, self.address)
        words = shlex.split(command.removesuffix("&"))
        here = self.folder / machine
        if words[0] == "scp":
            target, _, path = words[2].partition(":")
            place = self.folder / target / path
            shutil.copy(here / words[1], place)
            return
        if words[0] == "pkill":
            until(lambda: self.goes_on(machine) >= 20, f"{machine} makes no steps")
            self.running[machine].send_signal(signal.SIGKILL)
            self.running["west"].send_signal(signal.SIGCONT)
            assert self.running[machine].wait(LIMIT) == -signal.SIGKILL
            return
        if words[0] in ("tacit", "python"):
            words[0] = str(self.programs / words[0])
        if command.endswith("&"):
            log = (here / "log.txt").open("ab")
            self.running[machine] = subprocess.Popen(
                words, cwd=here, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            return
        if "watch" in words:
            until(lambda: self.step(machine) > 0, f"{machine} makes no steps")
            self.running["west"].send_signal(signal.SIGSTOP)
        if "privacy" in words:
            self.wait_for_the_end()
        answer = subprocess.run(
            words, cwd=here, capture_output=True, text=True, timeout=LIMIT, check=False
        )
        assert answer.returncode == 0, f"{machine}$ {command}\n{answer.stdout}{answer.stderr}"

    def step(self, machine):
        for file in (self.folder / machine).glob("runs/wards/rank-*/status.json"):
            return int(json.loads(file.read_text())["step"])
        assert self.running[machine].poll() is None, self.log(machine)
        return -1

    def goes_on(self, machine):
        """Its step, while west goes on a moment at a time: all wait for it, and the run lasts."""
        self.running["west"].send_signal(signal.SIGCONT)
        time.sleep(0.02)
        self.running["west"].send_signal(signal.SIGSTOP)
        return self.step(machine)

    def wait_for_the_end(self):
        for name in SITES:
            assert self.running[name].wait(LIMIT) == 0, self.log(name)

    def log(self, machine):
        return f"{machine}: {(self.folder / machine / 'log.txt').read_text()[-2000:]}"


@contextmanager
def machines(folder, programs):
    found = Machines(folder, free_address(), programs)
    try:
        yield found
    finally:
        for process in found.running.values():
            process.kill()
            process.wait(LIMIT)


@pytest.fixture
def programs(tmp_path_factory):
    """Where the page's own commands have put `tacit` and `python`."""
    folder = tmp_path_factory.mktemp("installed")
    shell = Shell(folder, builders(folder / "wheels"))
    lines = [
        line for block in blocks(PAGE) if block.language == "sh" for line in block.code.splitlines()
    ]
    for line in lines:
        done = shell.run(line)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    of_python = {"pip", "setuptools"}
    named = {*required(each for line in lines for each in fetched(line)), OURS}
    assert installed(shell.environment) - of_python == named - of_python
    return shell.environment / "bin"


@pytest.mark.timeout(2400)
def test_the_page_does_what_it_says(tmp_path, programs, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    text = PAGE.read_text(encoding="utf-8")
    codes = (code.replace("\\\n", " ") for code in _COMMANDS.findall(text))
    lines = [line for code in codes for line in code.splitlines()]
    steps = [line.partition("$ ") for line in lines]
    assert {machine for machine, _, _ in steps} == set(MACHINES)
    with machines(tmp_path, programs) as all_:
        for name in SITES:
            for file in _FILE.finditer(text):
                (tmp_path / name / file["name"]).write_text(file["code"], encoding="utf-8")
        for machine, _, command in steps:
            all_.do(machine, command)
        assert all_.running["relay"].poll() is None
    result = json.loads((tmp_path / "north" / "runs" / "wards" / "result.json").read_text())
    assert (result["status"], result["steps"]) == ("done", 300)
    for rank, name in enumerate(SITES):
        own = tmp_path / name / "runs" / "wards" / f"rank-{rank:04d}"
        (charged,) = read_ledger(own / "ledger.sqlite").runs[0].charged.values()
        made = [(run.first, run.until, run.times) for run in step_runs(charged)]
        assert made == [(0, 300, 1)]
        assert sorted(os.listdir(own.parent.parent)) == ["wards"]  # the session has gone
    statement = json.loads((tmp_path / "north" / "runs" / "wards" / "statement.json").read_text())
    assert len(statement["nodes"]) == 3
