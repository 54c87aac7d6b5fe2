"""The benchmark of a device runs as a whole, on the processor, without an installed tacit."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.process


def test_every_table_is_made_on_the_processor():
    command = [sys.executable, "benchmarks/device", "--device", "cpu", "--quick"]
    path = {"PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **path}, capture_output=True, text=True, timeout=240
    )
    assert ended.returncode == 0, ended.stderr
    rows = [line.split(" | ") for line in ended.stdout.splitlines() if line.startswith("| ")]
    named = {row[0].removeprefix("| "): row[1:] for row in rows}
    assert named["privsgp"][:2] == ["0.0e+00", "equal"]
    assert re.fullmatch(r"[0-9.]+", named["2 x 1,000"][0])
    figures = named["784-128-10, 3 x 2"]
    assert all(float(figure) > 0 for figure in figures[:7])


def test_a_part_without_time_says_so():
    command = [sys.executable, "benchmarks/device", "--device", "cpu", "--seconds", "0.001"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    assert "left out for want of time: sgp, privsgp" in ended.stdout
    assert ended.stdout.count("no time") == 6 * 8
