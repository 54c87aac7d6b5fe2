"""`tacit launch`: what is checked before anything starts, what is handed on, and one real run."""

import inspect
import json

import pytest
import typer
from typer.main import get_command

from experiments import write_experiment
from tacit.cli import train as cli
from tacit.errors import InputError


def call(*arguments):
    """The command alone; gives its exit code."""
    app = typer.Typer()
    app.command()(cli.launch)
    command = get_command(app)
    words = list(map(str, arguments))
    try:
        with command.make_context("launch", words) as context:
            command.invoke(context)
    except typer.Exit as done:
        return int(done.exit_code)
    return 0


@pytest.fixture
def calls(monkeypatch):
    """What the processes would have been started with; the first launch exits with 0, then 4."""
    made = []

    def record(arguments, processes, **options):
        made.append((arguments, processes, options))
        return 4 * (len(made) - 1)

    monkeypatch.setattr("tacit.communication.cluster.launch.launch", record)
    return made


def test_everything_else_is_handed_on(tmp_path, calls):
    file = write_experiment(tmp_path, train={"timeout": 7.0})
    assert call(file, "--processes", 4) == 0
    out = tmp_path / "run"
    options = ["--set", "train.steps=2", "--set", "train.timeout=3.5", "--restarts", 2]
    flags = ["--quiet", "--json", "--resume", "--out", out]
    assert call(file, "--processes", 2, *options, *flags) == 4
    plain, full = calls
    assert plain == (
        ["--", str(file)],
        4,
        {"out": None, "restarts": 0, "patience": 22.0, "say": None},
    )
    overrides = ["--set", "train.steps=2", "--set", "train.timeout=3.5"]
    expected = ["--resume", "--quiet", "--json", *overrides, "--", str(file)]
    assert full == (expected, 2, {"out": out, "restarts": 2, "patience": 18.5, "say": None})


def test_every_option_of_train_is_there():
    ours, theirs = (inspect.signature(one).parameters for one in (cli.launch, cli.train))
    # All stays on the loopback address; a site is started by itself; --restarts goes on.
    needless = {"allow_insecure_network", "site", "resume_if_there"}
    assert theirs.keys() - needless <= ours.keys()


@pytest.mark.parametrize("processes", [-1, 0, 5])
def test_processes_are_from_one_to_the_number_of_nodes(tmp_path, calls, processes):
    file = write_experiment(tmp_path)
    with pytest.raises(InputError, match=f"--processes = {processes}: .* from 1 to 4"):
        call(file, "--processes", processes)
    assert calls == []
    assert call(file, "--processes", 5, "--set", "nodes.count=5") == 0


def test_a_wrong_experiment_is_refused_before_anything_starts(tmp_path, calls):
    with pytest.raises(InputError, match=r"missing\.toml"):
        call(tmp_path / "missing.toml", "--processes", 2)
    with pytest.raises(InputError, match=r"train\.stepz"):
        call(write_experiment(tmp_path), "--processes", 2, "--set", "train.stepz=3")
    assert calls == []


def test_restarts_need_a_run_folder(tmp_path):
    with pytest.raises(InputError, match=r"--restarts = 1: .*--out"):
        call(write_experiment(tmp_path), "--processes", 2, "--restarts", 1)


@pytest.mark.surroundings
@pytest.mark.process
def test_one_process_trains(tmp_path, capfd):
    out = tmp_path / "run"
    private = write_experiment(tmp_path, privacy={"noise_seed": None})
    code = call(private, "--processes", 1, "--json", "--out", out)
    printed = capfd.readouterr()
    assert (code, printed.err) == (0, "")
    document = json.loads(printed.out)
    assert (document["out"], document["steps"]) == (str(out), 6)
    assert json.loads((out / "result.json").read_text())["status"] == "done"
