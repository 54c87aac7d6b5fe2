"""The benchmark of tables runs, at a tiny size, and loses no record."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_the_benchmark_runs():
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "tables.py"
    command = [sys.executable, str(script), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    for form in ("csv", "parquet", "folder", "frame"):
        assert f"300 x 29 as {form}" in done.stderr
        assert f"│ {form}" in done.stdout
