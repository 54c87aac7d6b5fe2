"""What `deploy/` starts is what the command line knows, with no key in an image and no shell."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from typer.main import get_command

from experiments import tacit
from tacit.cli.main import app
from tacit.config import load_config
from tacit.errors import BudgetError, DivergenceError, InputError, LeakError, PeerError

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SITES = {name: service for name, service in SERVICES.items() if service["command"][0] == "train"}
UNITS = ("tacit-site@.service", "tacit-relay.service")
RUN = "wards"


def parsed(words: list[str]) -> dict[str, Any]:
    """The arguments and options of a command, as the command line reads them; nothing is done."""
    group = get_command(app)
    command = group.commands[words[0]]  # type: ignore[attr-defined]
    with command.make_context(words[0], list(words[1:])) as context:
        return dict(context.params)


def mounts(service: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Where things of the machine are in a container: their place there, and if read-only."""
    found = {}
    for volume in service["volumes"]:
        source, target, mode = re.fullmatch(r"\$\{[^}]*\}(/[^:]+):([^:]+)(:ro)?", volume).groups()
        found[target] = (source, mode is not None)
    return found


def unit(name: str) -> configparser.ConfigParser:
    read = configparser.ConfigParser(strict=False, interpolation=None)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string((DEPLOY / name).read_text(encoding="utf-8"))
    return read


def test_there_are_three_sites_and_a_relay() -> None:
    assert len(SITES) == 3
    assert [SERVICES[name]["command"][0] for name in SERVICES if name not in SITES] == ["relay"]


@pytest.mark.parametrize("name", SITES)
def test_a_site_is_started_and_started_again_with_one_command(name: str) -> None:
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


def test_the_relay_listens_where_sites_are_told_that_it_does() -> None:
    given = parsed(SERVICES["relay"]["command"])
    assert str(given["site"]) in mounts(SERVICES["relay"])
    (address,) = given["listen"]
    host, _, port = address.partition(":")
    assert host == "0.0.0.0"
    assert f"--address relay:{port}" in (DEPLOY / "compose.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_sees_its_own_folders_alone_and_changes_only_what_it_must(name: str) -> None:
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
def test_the_health_of_a_site_is_what_watch_says_of_its_run(name: str) -> None:
    _, program, *words = SERVICES[name]["healthcheck"]["test"]
    assert program == "tacit"
    assert parsed(words)["once"]
    assert str(parsed(words)["run"]) == str(parsed(SERVICES[name]["command"])["out"])


def instructions(file: Path) -> list[tuple[str, str]]:
    """The instructions of a container file, in order; lines that go on are put together."""
    text = re.sub(r"\\\n", " ", file.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def test_an_image_is_made_of_the_program_alone_and_runs_as_nobody_special() -> None:
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

    def last(wanted: str) -> str:
        return [rest for name, rest in read if name == wanted][-1]

    assert last("USER") == "1000:1000"
    assert last("ENTRYPOINT") == '["tacit"]'
    targets = {target for service in SERVICES.values() for target in mounts(service)}
    assert targets - {"/experiment.toml"} == set(yaml.safe_load(last("VOLUME")))
    assert COMPOSE["x-service"]["build"]["dockerfile"] == "deploy/Containerfile"
    stages = [rest.split()[0] for name, rest in read if name == "FROM"]
    assert len(set(stages)) == 1
    assert stages[0].endswith("/python:3.11-slim")


def test_an_image_has_what_a_site_needs_of_the_extras() -> None:
    (command,) = [rest for name, rest in instructions(DEPLOY / "Containerfile") if ".[" in rest]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (extra,) = re.findall(r"\.\[(\w+)\]", command)
    assert re.search(rf"^{extra} = \[", project, re.MULTILINE)


def test_the_experiment_to_begin_with_has_a_node_for_each_site() -> None:
    assert load_config(DEPLOY / "wards.toml").nodes.count == len(SITES)
    assert tacit("plan", DEPLOY / "wards.toml", "--json").code == 0


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_file_starts_the_command_itself(name: str) -> None:
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
    if words[0] == "train":
        assert given["resume_if_there"]
        assert str(given["out"]).startswith(state)


def test_a_site_is_not_started_again_where_that_mends_nothing() -> None:
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
