"""One small run, which the tests of commands ask, copy and damage."""

import shutil
from pathlib import Path

import pytest

from experiments import SEEDED, tacit, write_experiment


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The folder of a finished run; tests do not change it."""
    parent = tmp_path_factory.mktemp("finished")
    run = parent / "run"
    answer = tacit("train", write_experiment(parent), "--out", run, "--quiet")
    assert (answer.code, answer.err) == (0, SEEDED)
    return run


@pytest.fixture
def run(finished, tmp_path):
    """The folder of a finished run, to be changed at will."""
    return Path(shutil.copytree(finished, tmp_path / "run"))
