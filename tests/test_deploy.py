"""What `deploy/` starts is what the command line knows, with no key in an image and no shell."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import torch
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
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
