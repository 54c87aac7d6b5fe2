"""What `deploy/` starts is what the command line knows, with no key in an image and no shell."""

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path, PurePosixPath

import pytest
import torch
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.main import get_command

from environments import OURS, Shell, builders, fetched, installed, required
from experiments import tacit
from pages import blocks
from ports import free_address
from tacit.cli.main import app
from tacit.config import load_config
from tacit.errors import BudgetError, DivergenceError, InputError, LeakError, PeerError
from tacit.privacy.ledger.ledger import read_ledger, step_runs

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
SITES = {name: service for name, service in SERVICES.items() if service["command"][0] == "train"}
UNITS = ("tacit-site@.service", "tacit-relay.service")
RUN = "wards"


def parsed(words):
    """The arguments and options of a command, as the command line reads them; nothing is done."""
    group = get_command(app)
    command = group.commands[words[0]]  # type: ignore[attr-defined]
    with command.make_context(words[0], list(words[1:])) as context:
        return dict(context.params)


def mounts(service):
    """Where things of the machine are in a container: their place there, and if read-only."""
    found = {}
    for volume in service["volumes"]:
        source, target, mode = re.fullmatch(r"\$\{[^}]*\}(/[^:]+):([^:]+)(:ro)?", volume).groups()
        found[target] = (source, mode is not None)
    return found


def unit(name):
    read = configparser.ConfigParser(strict=False, interpolation=None)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string((DEPLOY / name).read_text(encoding="utf-8"))
    return read


def test_there_are_three_sites_and_a_relay():
    assert len(SITES) == 3
    assert [SERVICES[name]["command"][0] for name in SERVICES if name not in SITES] == ["relay"]


@pytest.mark.parametrize("name", SITES)
def test_a_site_is_started_and_started_again_with_one_command(name):
    given = parsed(SERVICES[name]["command"])
    assert given["resume_if_there"]
    assert not given["resume"]
    assert given["log_format"] == "json"
    inside = mounts(SERVICES[name])
    assert str(given["file"]) in inside
    assert str(given["site"]) in inside
    # The run folder is made by tacit: what is mounted is the folder above it.
    assert str(PurePosixPath(given["out"]).parent) in inside
    assert str(given["out"]) not in inside


def test_the_relay_listens_where_sites_are_told_that_it_does():
    given = parsed(SERVICES["relay"]["command"])
    assert str(given["site"]) in mounts(SERVICES["relay"])
    (address,) = given["listen"]
    host, _, port = address.partition(":")
    assert host == "0.0.0.0"
    assert f"--address relay:{port}" in (DEPLOY / "compose.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_sees_its_own_folders_alone_and_changes_only_what_it_must(name):
    service, inside = SERVICES[name], mounts(SERVICES[name])
    own = {source for source, _ in inside.values()} - {"/experiment.toml"}
    assert own == {f"/{kind}/{name}" for kind in ("sites", "data", "runs")[: len(own)]}
    written = {"/runs"} if name in SITES else set()
    assert {target for target, (_, fixed) in inside.items() if not fixed} == written
    assert service["init"] is True
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert re.search(r":-[1-9]\d*:[1-9]\d*\}$", service["user"])
    for key in ("environment", "env_file", "secrets", "ports", "privileged", "cap_add"):
        assert key not in service
    assert set(service["networks"]) <= set(COMPOSE["networks"])


@pytest.mark.parametrize("name", SITES)
def test_the_health_of_a_site_is_what_watch_says_of_its_run(name):
    _, program, *words = SERVICES[name]["healthcheck"]["test"]
    assert program == "tacit"
    assert parsed(words)["once"]
    assert str(parsed(words)["run"]) == str(parsed(SERVICES[name]["command"])["out"])


def instructions(file):
    """The instructions of a container file, in order; lines that go on are put together."""
    text = re.sub(r"\\\n", " ", file.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def test_an_image_is_made_of_the_program_alone_and_runs_as_nobody_special():
    read = instructions(DEPLOY / "Containerfile")
    copied = [
        word
        for name, rest in read
        if name == "COPY" and not rest.startswith("--from=")
        for word in rest.split()[:-1]
    ]
    assert "ADD" not in dict(read)
    ignored = (DEPLOY / "Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in ignored if line and not line.startswith("#")]
    assert rules[0] == "*"  # what is not named here never reaches the build
    assert {line[1:] for line in rules if line.startswith("!")} == set(copied)
    assert all((ROOT / word).exists() for word in copied)
    assert not [path for path in ROOT.glob("src/**/*") if path.suffix in (".pem", ".key")]

    def last(wanted):
        return [rest for name, rest in read if name == wanted][-1]

    assert last("USER") == "1000:1000"
    assert last("ENTRYPOINT") == '["tacit"]'
    targets = {target for service in SERVICES.values() for target in mounts(service)}
    assert targets - {"/experiment.toml"} == set(yaml.safe_load(last("VOLUME")))
    assert COMPOSE["x-service"]["build"]["dockerfile"] == "deploy/Containerfile"


def test_an_image_is_built_on_a_base_by_its_digest_alone():
    read = instructions(DEPLOY / "Containerfile")
    assert {rest.split()[0] for name, rest in read if name == "FROM"} == {"${BASE}"}
    assert read[0] == ("ARG", "BASE")  # without a default
    check = next(rest for name, rest in read if name == "RUN")
    for base, code in (("python:3.11-slim", 1), ("", 1), (f"python@sha256:{'0' * 64}", 0)):
        found = subprocess.run(["sh", "-c", check], env={"BASE": base}, capture_output=True)
        assert found.returncode == code, base
    build = COMPOSE["x-service"]["build"]["args"]
    assert build["BASE"].startswith("${TACIT_BASE:?")
    assert set(build) == {rest.partition("=")[0] for name, rest in read if name == "ARG"}


def pinned(name):
    """Name to version of a requirements file, each of whose lines has digests."""
    found = {}
    text = (DEPLOY / name).read_text(encoding="utf-8").replace("\\\n", "")
    for line in text.splitlines():
        if not line.startswith("#"):
            pin, *hashes = line.split()
            assert hashes
            assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes)
            package, version = pin.split("==")
            found[package] = version
    return found


def needed(requirements):
    """Names that requirements ask for here, without extras."""
    asked = [Requirement(each) for each in requirements]
    return {
        canonicalize_name(each.name)
        for each in asked
        if each.marker is None or each.marker.evaluate({"extra": ""})
    }


def test_all_that_is_installed_has_a_digest_and_the_version_that_was_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    site, build = pinned("requirements.txt"), pinned("requirements-build.txt")
    extras = project["project"]["optional-dependencies"]["sites"]
    assert needed(project["project"]["dependencies"] + extras) <= set(site)
    assert needed(project["build-system"]["requires"]) <= set(build)
    cuda = set(pinned("requirements-cuda.txt")) if torch.version.cuda else set()
    for name in site:  # and nothing is left for pip to choose
        assert needed(metadata.requires(name) or []) <= set(site) | cuda, name
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if "==" in line)
    tested = {canonicalize_name(name): version for name, version in tested.items()}
    for name, version in (site | build).items():
        assert tested.get(name, version) == version
    assert not set(site) & set(pinned("requirements-cuda.txt"))
    for name, rest in instructions(DEPLOY / "Containerfile"):
        for command in re.findall(r"pip install [^&]*", rest) if name == "RUN" else ():
            assert "--require-hashes" in command or "--no-deps --no-index" in command


def test_pins_are_made_from_what_pip_would_install(tmp_path):
    def report(name, *found):
        items = [
            {
                "metadata": {"name": package, "version": version},
                "download_info": {"archive_info": {"hashes": {"sha256": digest}}},
            }
            for package, version, digest in found
        ]
        path = tmp_path / name
        path.write_text(json.dumps({"install": items}))
        return path

    one = report("one", ("An_Example", "1.0+cpu", "a"), ("other", "2", "b"))
    two = report("two", ("an.example", "1.0", "c"), ("more", "3", "d"))

    def made(*options):
        command = [sys.executable, DEPLOY / "pin.py", *options, one, two]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        return run.stdout.replace(" \\\n   ", "").splitlines()

    assert made() == [
        "an-example==1.0 --hash=sha256:a --hash=sha256:c",
        "more==3 --hash=sha256:d",
        "other==2 --hash=sha256:b",
    ]
    assert made("--only-in") == ["more==3 --hash=sha256:d"]


def test_the_experiment_to_begin_with_has_a_node_for_each_site():
    assert load_config(DEPLOY / "wards.toml").nodes.count == len(SITES)
    assert tacit("plan", DEPLOY / "wards.toml", "--json").code == 0


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_file_starts_the_command_itself(name):
    service = unit(name)["Service"]
    program, *words = shlex.split(service["ExecStart"].replace("%i", RUN))
    assert program.endswith("/bin/tacit")
    given = parsed(words)
    state = f"/var/lib/{service['StateDirectory']}/"
    assert str(given["site"]).startswith(state)
    assert service["Restart"] == "on-failure"
    assert service["User"] != "root"
    assert service["UMask"] == "0077"
    assert service["ProtectSystem"] == "strict"
    assert service["LimitCORE"] == "0"  # a core would hold records, keys and noise
    assert service["SystemCallFilter"] == "@system-service"
    assert service["ProtectProc"] == "invisible"
    if words[0] == "train":
        assert given["resume_if_there"]
        assert str(given["out"]).startswith(state)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_knows_every_line_of_a_unit_file(name, tmp_path):
    path = tmp_path / name.replace("@", "@wards")
    text = (DEPLOY / name).read_text(encoding="utf-8")
    path.write_text(text.replace("/opt/tacit/bin/tacit", sys.executable))
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True
    )
    assert name.partition("@")[0] not in found.stderr, found.stderr


def test_a_site_is_not_started_again_where_that_mends_nothing():
    """A lost peer (4) is the only error that goes away by itself; kills are no exit codes."""
    prevented = set(map(int, unit(UNITS[0])["Service"]["RestartPreventExitStatus"].split()))
    lasting = (InputError, BudgetError, DivergenceError, LeakError)
    assert {error.exit_code for error in lasting} < prevented
    assert PeerError.exit_code not in prevented
    page = (ROOT / "docs" / "reference" / "run-folder.md").read_text(encoding="utf-8")
    table = page.partition("## Exit codes")[2].partition("\n## ")[0]
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert prevented == codes - {0, PeerError.exit_code}
    assert f"RestartPreventExitStatus={' '.join(map(str, sorted(prevented)))}" in page


# The page on deploying is followed literally: every machine is a folder, every command is run.
# What stands before `$ ` is the machine. All machines share the environment that the page's own
# commands make, in a clone, with the packages of these commands and no others. `scp` copies between
# folders, a command that ends with ` &` goes on in the background, and `pkill` ends what its
# machine has started. Only the relay's address is another one.


PAGE = Path(__file__).resolve().parents[1] / "docs" / "how-to" / "deploy.md"
MACHINES = ("north", "south", "west", "relay", "office")
SITE_MACHINES = MACHINES[:3]
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
        for name in SITE_MACHINES:
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


@pytest.mark.process
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
        for name in SITE_MACHINES:
            for file in _FILE.finditer(text):
                (tmp_path / name / file["name"]).write_text(file["code"], encoding="utf-8")
        for machine, _, command in steps:
            all_.do(machine, command)
        assert all_.running["relay"].poll() is None
    result = json.loads((tmp_path / "north" / "runs" / "wards" / "result.json").read_text())
    assert (result["status"], result["steps"]) == ("done", 300)
    for rank, name in enumerate(SITE_MACHINES):
        own = tmp_path / name / "runs" / "wards" / f"rank-{rank:04d}"
        (charged,) = read_ledger(own / "ledger.sqlite").runs[0].charged.values()
        made = [(run.first, run.until, run.times) for run in step_runs(charged)]
        assert made == [(0, 300, 1)]
        assert sorted(os.listdir(own.parent.parent)) == ["wards"]  # the session has gone
    statement = json.loads((tmp_path / "north" / "runs" / "wards" / "statement.json").read_text())
    assert len(statement["nodes"]) == 3
