"""The benchmark of a step over TLS runs, and counts what was sent."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "cluster" / "secure_step.py"

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_a_step_is_measured_over_gloo_a_relay_and_directly(tmp_path):
    out = tmp_path / "found.json"
    command = [sys.executable, str(SCRIPT), "--quick", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "these figures mean NOTHING" in done.stdout
    found = json.loads(out.read_text())
    assert found["figures mean something"] is False
    assert all(took > 0 for way in found["seconds a step"].values() for took in way)
    model = 4 * found["d"]  # bytes, to each of two
    for sent in found["bytes a step"].values():
        assert sent > 2 * model
    assert found["bytes a step"]["gloo"] < 2.02 * model
