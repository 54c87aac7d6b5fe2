"""Every command prints of fixed runs what it printed before: see `printing`."""

import json
import os
from pathlib import Path

import pytest
from printing import COMMANDS, PRINTED, called, scene

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("printed")
    before = Path.cwd()
    os.chdir(made)
    try:
        scene(made)
    finally:
        os.chdir(before)
    return made


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_printed(command, folder, monkeypatch):
    monkeypatch.chdir(folder)
    for number, ending in enumerate(("txt", "json")):
        found = called(command, number, as_json=ending == "json")
        right = (PRINTED / f"{command}.{ending}").read_text(encoding="utf-8")
        if ending == "txt":
            assert found == right
        else:
            assert_alike(json.loads(found), json.loads(right), command)


def test_every_file_is_of_a_command():
    names = {f"{command}.{ending}" for command in COMMANDS for ending in ("txt", "json")}
    assert {path.name for path in PRINTED.iterdir()} == names


def assert_alike(found, right, where):
    """The same keys in the same order, and numbers but for the last digits of float32."""
    assert type(found) is type(right), where
    if isinstance(right, dict):
        assert list(found) == list(right), where
        for key in right:
            assert_alike(found[key], right[key], f"{where}.{key}")
    elif isinstance(right, list):
        assert len(found) == len(right), where
        for number, (one, other) in enumerate(zip(found, right, strict=True)):
            assert_alike(one, other, f"{where}[{number}]")
    elif isinstance(right, float):
        assert found == pytest.approx(right, rel=1e-4, abs=1e-12), where
    else:
        assert found == right, where
