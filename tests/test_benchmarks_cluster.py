"""The cluster benchmark: what it counts is what was sent, what it fits is right, and it ends."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CLUSTER = Path(__file__).resolve().parents[1] / "benchmarks" / "cluster"
sys.path.append(str(CLUSTER))

from forecast import COSTS  # noqa: E402
from jobs import Work, job_of  # noqa: E402
from links import LOOPBACK, shaped, why_not_shaped  # noqa: E402
from processes import Timing, _answers, measure  # noqa: E402
from rows import fitted, predicted  # noqa: E402
from switch import Lines  # noqa: E402
from traffic import traffic  # noqa: E402

from tacit.communication.peers import place  # noqa: E402

pytestmark = pytest.mark.process


def test_the_forecast_counts_the_bytes_that_a_real_channel_sends():
    work = Work(nodes=6, inputs=5, hidden=3, batch=2, records=4, steps=20)
    # A whole number of the periods of its graph, which are 3 steps.
    found = measure(work, 2, timing=Timing(rounds=1, steps=6, warm=3, limit=240))
    job = job_of(work)
    assert job.plan.parameters == work.parameters
    expected = traffic(job.plan, place(6, 2), job.dtype)
    assert found.bytes_out == pytest.approx(expected.bytes_out.max())
    assert found.seconds > 0
    ahead = predicted(work, 2, LOOPBACK, found.compute)
    assert ahead.seconds_a_step == pytest.approx(
        found.compute + ahead.messages + ahead.copying, rel=1e-6
    )


def test_costs_are_found_again_and_are_never_negative():
    points = [(2.0, size, 2.0 * 1e-4 + size * 2e-9) for size in (1e2, 1e4, 1e6, 1e8)]
    found = fitted(points)
    assert (found.per_message, found.per_byte) == pytest.approx((1e-4, 2e-9))
    assert found.measured_by == COSTS.measured_by
    falling = fitted([(2.0, 1e3, 2.0), (2.0, 1e6, 1.0)])
    assert falling.per_byte == 0
    assert falling.per_message > 0


def test_lines_carry_one_packet_at_a_time_after_the_delay():
    lines = Lines(3, rate=8000.0, delay=0.5)  # 1000 bytes a second
    assert lines.arrival(0, 1, 100, now=1.0) == pytest.approx(1.6)
    assert lines.arrival(0, 2, 100, now=1.0) == pytest.approx(1.7)  # its turn out
    assert lines.arrival(2, 1, 100, now=1.0) == pytest.approx(1.7)  # its turn in
    assert lines.arrival(1, 0, 100, now=1.0) == pytest.approx(1.6)  # the other way is free
    assert lines.arrival(0, 1, 3000, now=2.0) == pytest.approx(5.5)
    assert lines.arrival(0, 1, 1, now=2.5) is None  # 2.5 s behind


def test_what_a_process_said_is_told_and_none_is_left():
    with pytest.raises(RuntimeError, match="no luck"):
        _answers([[sys.executable, "-c", "import sys; sys.exit('no luck')"]], 1, 30.0)
    wait = "import json, os, time; print(json.dumps(os.getpid()), flush=True); time.sleep(60)"
    with pytest.raises(RuntimeError, match="failed"):
        _answers([[sys.executable, "-c", wait], [sys.executable, "-c", wait]], 1, 1.0)
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    names = [Path(f"/proc/{child}/cmdline").read_text() for child in children]
    assert [name for name in names if "time.sleep(60)" in name] == []


def test_answers_are_in_the_order_of_ranks_and_the_port_is_handed_on():
    first = "import json; print(json.dumps({'port': 7})); print(json.dumps({'rank': 0}))"
    second = "import json; print(json.dumps({'rank': 1, 'heard': json.loads(input())}))"
    found = _answers([[sys.executable, "-c", code] for code in (first, second)], 1, 30.0)
    assert found == [{"rank": 0}, {"rank": 1, "heard": {"port": 7}}]


def test_no_namespace_is_left_whether_or_not_links_can_be_shaped():
    why = why_not_shaped()
    assert why is None or json.dumps(why)
    left = Path("/var/run/netns")
    ours = f"tacit-{os.getpid()}-"
    assert [path for path in left.glob("*") if path.name.startswith(ours)] == []
    with shaped(2, LOOPBACK) as hosts:
        assert hosts.command(1, ["true"]) == ["true"]


# The benchmark of a device runs as a whole, on the processor, without an installed tacit.


ROOT = Path(__file__).resolve().parents[1]


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


# The benchmark of a step over TLS runs, and counts what was sent.


SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "cluster" / "secure_step.py"


@pytest.mark.slow
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
