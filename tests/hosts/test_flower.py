"""tacit inside Flower, in the environment that has it: simulations, and nodes on loopback."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import time
import tomllib
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tacit
from pages import blocks

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
PEERS = ROOT / ".venv-peers" / "bin"
pytestmark = [pytest.mark.host, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", autouse=True)
def installed():
    if not (PEERS / "python").exists():
        message = "Flower is in an environment of its own: make .venv-peers/.installed"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)


def environment(**more):
    """Of a process that has Flower: offline, and with compiled files."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = f"{PEERS}{os.pathsep}{kept['PATH']}"
    said = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    return {**kept, **said, "PATH": path, "PYTHONPATH": str(HERE), **more}


def experiment(clients, **algorithm):
    return {
        "task": {"dataset": "digits", "model": "logistic"},
        "nodes": {"count": clients},
        "algorithm": algorithm,
        "privacy": {"epsilon": 3.0, "delta": 1e-4, "noise_seed": 5},
        "train": {"steps": 2, "batch": 32, "dtype": "float64"},
    }


def written(folder, config):
    """What `flower_parties` reads."""
    asked = {"experiment": config, "folder": str(folder), "clients": config["nodes"]["count"]}
    (folder / "asked.json").write_text(json.dumps(asked))
    return str(folder / "asked.json")


def check_equal(config, server, parties, folder):
    """The server's model is the simulator's, and so is each node's certified epsilon.

    But for its last bit: the accountant's matrix products sum in another order on other threads.
    """
    alone = tacit.train(config)
    ended = load_file(server / "model.safetensors")
    for name, value in alone.model().state_dict().items():
        assert torch.allclose(ended[name], value, rtol=0, atol=1e-12), name
    told = json.loads((server / "epsilon.json").read_text())
    assert len(told) == len(alone.epsilon)
    for node, epsilon in enumerate(alone.epsilon):
        (path,) = (parties / folder.format(node)).rglob("result.json")
        assert told[str(node)] == json.loads(path.read_text())["epsilon"][node]
        assert told[str(node)] == pytest.approx(epsilon, rel=1e-14)


def test_inside_flowers_engine():
    words = ("-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", "")
    ended = subprocess.run(
        [PEERS / "python", *words, HERE / "under_flower.py"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-5000:]


@pytest.mark.slow
def test_a_simulation_with_rays_actors_is_the_simulators(tmp_path):
    """Any actor is sent any client's messages."""
    config = experiment(20, name="dp-fedavg", learning_rate=0.1, clip=1.0, clients_per_round=15)
    ended = subprocess.run(
        [PEERS / "python", HERE / "flower_parties.py"],
        env=environment(TACIT_PARTIES=written(tmp_path, config)),
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    check_equal(config, tmp_path / "server", tmp_path, "{}")


def ports(count):
    """Free ones of loopback."""
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in opened:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in opened]


@contextmanager
def started(log, *words, env, cwd):
    """A process, interrupted at the end."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            words, env=env, cwd=cwd, stdout=out, stderr=out, start_new_session=True
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with suppress(ProcessLookupError):  # what it started and left
                os.killpg(process.pid, signal.SIGKILL)


def wait_for(condition, seconds, *logs):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "\n".join(log.read_text()[-1500:] for log in logs)
        time.sleep(0.2)


def test_the_page_with_a_superlink_and_two_supernodes_is_the_simulator(tmp_path):
    """Its files, with noise of a seed and one step, since each message is a process of Flower's,
    which loads PyTorch; its commands, with other ports."""
    found = blocks(ROOT / "docs" / "how-to" / "flower.md")
    (tmp_path / "consortium").mkdir()
    for block in found:
        if block.file:
            code = block.code.replace("[train]", "noise_seed = 5\n\n[train]\ndtype = 'float64'")
            (tmp_path / block.file).write_text(code.replace("steps = 2", "steps = 1"))
    (commands,) = (each.code for each in found if each.code.startswith("flower-superlink"))
    for written_there, free in zip(("8000", "8001", "8002"), ports(3), strict=True):
        commands = commands.replace(written_there, str(free))
    home, logs = tmp_path / "home", tmp_path / "logs"
    home.mkdir(), logs.mkdir()
    link, *_ = re.findall(r"127[.]0[.]0[.]1:[0-9]+", commands)
    (home / "config.toml").write_text(f'[superlink.here]\naddress = "{link}"\ninsecure = true\n')
    env = environment(FLWR_HOME=str(home))
    *servers, run = (shlex.split(line) for line in commands.replace("\\\n", "").splitlines())
    with ExitStack() as stack:
        for place, words in enumerate(servers):
            stack.enter_context(started(logs / f"{place}", *words, env=env, cwd=tmp_path))
        wait_for(lambda: (logs / "0").read_text().count("Activated") == 2, 200, logs / "0")
        subprocess.run(run, env=env, cwd=tmp_path, check=True, timeout=200, capture_output=True)
        ended = tmp_path / "runs" / "server" / "epsilon.json"
        wait_for(ended.exists, 600, *sorted(logs.iterdir()))
    config = tomllib.loads((tmp_path / "experiment.toml").read_text())
    check_equal(config, tmp_path / "runs" / "server", tmp_path / "runs", "party-{}")
