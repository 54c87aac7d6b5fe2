"""The tests that are about signals and terminals, however the test run itself was started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FILES = (
    "communication/cluster/test_cluster_launch.py",
    "cli/test_cli.py",
    "cli/test_cli_launch.py",
    "training/test_resume.py",
)
# What stands together hides nothing of each other: on one side signals are ignored, as nohup and a
# background do with some of them; on the other there is no terminal and no input.
SURROUNDINGS = {
    "the background under nohup, with signals ignored": (
        "trap '' HUP INT TERM; nohup \"$@\" & wait $!"
    ),
    "a session without a terminal, its input closed": 'exec setsid --wait "$@" <&-',
}


@pytest.mark.slow
@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_the_suite_passes_in(surroundings, tmp_path):
    options = ["-q", "-m", "surroundings", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options]
    files = [str(TESTS / file) for file in FILES]
    alone = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    ended = subprocess.run(
        ["sh", "-c", SURROUNDINGS[surroundings], "sh", *command, *files],
        cwd=TESTS.parent,
        env={**alone, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-1000:]
