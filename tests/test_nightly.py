"""What waits for the night is there, and says what of it every change is still asked."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from nightly import NIGHTLY

TESTS = Path(__file__).parent


@pytest.mark.parametrize("line", NIGHTLY, ids=lambda line: line.function)
def test_what_waits_for_the_night_is_a_test_that_there_is(line):
    text = (TESTS / line.file).read_text(encoding="utf-8")
    assert re.search(rf"^def {line.function}\(", text, re.MULTILINE)
    assert line.stays
    if line.kept:
        assert "parametrize" in text


@pytest.mark.slow
def test_what_stays_is_there():
    """A parameter with another name would send every row of its test into the night."""
    files = sorted({str(TESTS / line.file) for line in NIGHTLY})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", *files]
    found = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=TESTS.parent)
    rows = [line for line in found.stdout.splitlines() if "::" in line]
    for line in NIGHTLY:
        own = [row for row in rows if f"{line.file}::{line.function}" in row]
        assert own, line
        assert not [name for name in line.kept if not any(name in row for row in own)], line
