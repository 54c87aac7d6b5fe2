"""The speed benchmarks: contenders compute the same, end for sure, and goals are judged rightly."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

SPEED = Path(__file__).resolve().parents[1] / "benchmarks" / "speed"
sys.path.append(str(SPEED))

from comparisons import Comparison, Ratio, comparisons  # noqa: E402
from contender import Contender, Worker, started  # noqa: E402
from interleaved import Protocol, compare, disagreement, line_of  # noqa: E402
from machine import machine, versions  # noqa: E402
from table import Line, formatted, number  # noqa: E402
from workloads import Workload, records_of  # noqa: E402

from models import model_of  # noqa: E402

pytestmark = pytest.mark.process

SMALL = Workload(
    "small", nodes=3, batch=4, records=12, shape=(1, 4, 4), dataset="generated", clip=0.9
)


Array = NDArray[np.float64]


def clipped_sum(workload, node, rows, at):
    """Record by record, in NumPy: a network of one hidden layer, its weights one vector."""
    records = records_of(workload)
    size, hidden = math.prod(workload.shape), 128
    ends = np.cumsum([hidden * size, hidden, workload.classes * hidden])
    w1, b1, w2, b2 = np.split(at, ends)
    w1, w2 = w1.reshape(hidden, size), w2.reshape(workload.classes, hidden)
    total = np.zeros(len(at))
    for row in rows:
        x = records.inputs[node, row].reshape(-1).astype(np.float64)
        before = w1 @ x + b1
        after = np.maximum(before, 0)
        scores = w2 @ after + b2
        outer = np.exp(scores - scores.max())
        outer /= outer.sum()
        outer[records.labels[node, row]] -= 1
        inner = (w2.T @ outer) * (before > 0)
        parts = [np.outer(inner, x), inner, np.outer(outer, after), outer]
        gradient = np.concatenate([part.reshape(-1) for part in parts])
        if workload.clip is not None:
            gradient *= min(1.0, workload.clip / np.linalg.norm(gradient))
        total += gradient
    return total


def start_of(workload):
    parts = [part.detach().double().flatten() for part in model_of(workload).parameters()]
    return np.asarray(torch.cat(parts).numpy())


def agreed_sums(workload):
    batches, at = records_of(workload).batch(workload, 0), start_of(workload)
    return np.stack([clipped_sum(workload, i, rows, at) for i, rows in enumerate(batches)])


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def await_end(pids, seconds):
    """Those of the processes that still run when the time is over."""
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # one that has ended and that nobody has asked after


def test_a_process_a_node_does_push_sum_and_ends():
    import gloo

    steps = 4
    workload = replace(SMALL, batch=SMALL.records, noise=0.0)  # all records at every step
    before = set(children(os.getpid()))
    driver = gloo.build(workload)
    ranks = sorted(set(children(os.getpid())) - before)
    try:
        driver.run(1)
        driver.run(steps - 1)
        found = driver.models()
        assert driver.notes()["processes"] == workload.nodes
    finally:
        driver.close()
    assert len(ranks) == workload.nodes
    assert await_end(ranks, 15) == []
    n = workload.nodes
    x, w = np.tile(start_of(workload), (n, 1)), np.ones(n)
    for k in range(steps):
        mixing = np.zeros((n, n))
        for i in range(n):
            mixing[i, i] += 0.5
            mixing[(i + (1, 2)[k % 2]) % n, i] += 0.5
        sums = [
            clipped_sum(workload, i, np.arange(workload.records), x[i] / w[i]) for i in range(n)
        ]
        x = mixing @ (x - workload.learning_rate / workload.batch * np.stack(sums))
        w = mixing @ w
    np.testing.assert_allclose(found, x / w[:, None], rtol=0, atol=2e-6)
    assert np.abs(x - start_of(workload)).max() > 1e-3


def test_a_process_a_node_agrees_with_tacit_and_none_is_left_when_the_worker_is_killed(tmp_path):
    from tacit_stacked import build

    workload = replace(SMALL, nodes=2)
    worker = Worker(Contender("gloo", "gloo"), workload, tmp_path / "log").await_ready()
    ranks = children(worker.pid)
    assert len(ranks) == workload.nodes
    assert worker.run(2) > 0
    expected = agreed_sums(workload)
    found = worker.check(tmp_path / "found.npy")  # after steps: it is at the start nonetheless
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
    # tacit clips to a little less, by what rounding may add to a sum of so many records.
    np.testing.assert_allclose(build(workload).check(), expected, rtol=2e-4, atol=2e-6)
    assert worker.memory() > len(ranks) * 2**20
    assert all(running(rank) for rank in ranks)
    worker.send("run 100000000")  # they are in the midst of it, or waiting for one another
    os.kill(worker.pid, signal.SIGKILL)
    assert await_end([worker.pid, *ranks], 15) == []
    worker.stop()


def test_tacit_takes_the_plain_step_where_it_is_not_private():
    from tacit_stacked import build

    plain = SMALL.plain()
    np.testing.assert_allclose(build(plain).check(), agreed_sums(plain), rtol=0, atol=2e-6)
    assert np.linalg.norm(agreed_sums(plain) - agreed_sums(SMALL)) > 0.1  # the bound was felt


@pytest.mark.parametrize("clip", [0.5, None])
def test_a_node_of_a_process_clips_convolutions(clip):
    import gloo

    workload = Workload("cnn", model="cnn", nodes=1, batch=3, records=6, clip=clip, data_dir="none")
    records = records_of(workload)
    inputs, labels = torch.from_numpy(records.inputs[0]), torch.from_numpy(records.labels[0])
    node = gloo.Node(workload, inputs, labels)
    rows = torch.tensor([4, 0, 1])
    module = model_of(workload)
    expected = torch.zeros(node.d)
    for row in rows:
        loss = torch.nn.functional.cross_entropy(module(inputs[row, None]), labels[row, None])
        parts = torch.autograd.grad(loss, list(module.parameters()))
        gradient = torch.cat([part.flatten() for part in parts])
        expected += gradient * (1 if clip is None else min(1.0, clip / float(gradient.norm())))
    torch.testing.assert_close(node.gradient(rows), expected, rtol=0, atol=1e-6)


def fake(folder, name, value):
    """A contender that does nothing, and whose check is `value`."""
    (folder / f"{name}.py").write_text(
        "import numpy\n"
        "class Runner:\n"
        "    def run(self, steps): pass\n"
        f"    def check(self): return numpy.full((2, 3), {value}, dtype=numpy.float32)\n"
        "    def notes(self): return {'given': self.clip}\n"
        "    def close(self): pass\n"
        "def build(workload):\n"
        "    runner = Runner()\n"
        "    runner.clip = workload.clip\n"
        "    return runner\n"
    )
    return Contender(name, name)


@pytest.mark.parametrize("within", [True, False])
def test_a_comparison_tells_who_disagrees_and_who_is_missing(tmp_path, monkeypatch, within):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    ours, same, other = (
        fake(tmp_path, name, value)
        for name, value in (("ours", 1.0), ("same", 1.00001), ("other", 1.01))
    )
    plain = Contender("plain", "other", private=False)
    absent = Contender("absent", "same", needs=("json", "no_such_module"))
    nowhere = Contender("nowhere", "same", python=str(tmp_path / "python"))
    comparison = Comparison(
        SMALL,
        (ours, same, other, plain, absent, nowhere),
        (
            Ratio("bytes", "same", "same", "bytes", at_most=2),
            Ratio("left out", "ours", "absent", at_least=1),
        ),
    )
    protocol = Protocol(rounds=3, turn=0.0, within=within)
    said = []
    outcome = compare(comparison, protocol, tmp_path, said.append)
    assert [entry["name"] for entry in outcome.entries] == ["ours", "same", "other", "plain"]
    assert [entry["notes"]["given"] for entry in outcome.entries] == [0.9, 0.9, 0.9, None]
    assert all(len(entry["seconds a step"]) == 3 for entry in outcome.entries)
    assert all(entry["memory bytes"] > 2**20 for entry in outcome.entries)
    assert set(outcome.left_out) == {"absent", "nowhere"}
    assert "no_such_module" in outcome.left_out["absent"]
    assert "json" not in outcome.left_out["absent"]
    assert set(outcome.disagreements) == {"ours", "same", "other"}
    assert len(outcome.wrong) == 1
    assert "other differs by 0.0058" in outcome.wrong[0]
    assert [(line.name, line.value, line.met) for line in outcome.lines] == [("bytes", 1.0, True)]
    assert json.loads(json.dumps(outcome.to_dict()))["workload"]["name"] == "small"
    assert len(said) == 2


def test_a_contender_that_fails_is_told_with_what_it_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "broken.py").write_text("raise ValueError('broken on purpose')\n")
    with (
        pytest.raises(RuntimeError, match="broken on purpose"),
        started([Contender("a broken one", "broken")], SMALL, tmp_path),
    ):
        pass


def test_disagreement_is_relative_to_the_largest_norm():
    expected = np.array([[3, 4], [0, 1]], dtype=np.float32)
    assert disagreement(expected, expected) == 0
    assert disagreement(expected + np.float32([[0, 0], [0, 0.5]]), expected) == pytest.approx(0.1)
    assert disagreement(expected[:1], expected) == math.inf
    assert not disagreement(expected * np.float32(math.nan), expected) <= 1


def test_a_ratio_is_the_median_of_ratios_within_rounds():
    seconds = {"theirs": [4.0, 90.0, 8.0], "ours": [1.0, 30.0, 1.0]}
    memory = {"theirs": 400, "ours": 10}
    faster = Ratio("times as fast", "theirs", "ours", at_least=4)
    line = line_of("row", faster, seconds, memory)
    assert line is not None
    assert (line.row, line.value, line.met, line.goal) == ("row", 4.0, True, ">= 4.00")
    less = line_of(
        "row", Ratio("memory", "ours", "theirs", "bytes", at_most=1 / 50), {**seconds}, memory
    )
    assert less is not None
    assert (less.value, less.met) == (0.025, False)
    assert line_of("row", Ratio("x", "ours", "nobody"), seconds, memory) is None


@pytest.mark.parametrize(
    ("line", "met", "goal"),
    [
        (Line("r", "n", 1.0), None, ""),
        (Line("r", "n", 4.0, at_least=4), True, ">= 4.00"),
        (Line("r", "n", 3.99, at_least=4), False, ">= 4.00"),
        (Line("r", "n", 0.05, at_most=1 / 20), True, "<= 0.0500"),
        (Line("r", "n", 0.051, at_most=1 / 20), False, "<= 0.0500"),
        (Line("r", "n", math.nan, at_least=0), False, ">= 0"),
        (Line("r", "n", math.nan, at_most=1), False, "<= 1.00"),
    ],
)
def test_goals(line, met, goal):
    assert (line.met, line.goal) == (met, goal)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1, "1.00"),
        (12.345, "12.3"),
        (1234.5, "1,234"),
        (0.01234, "0.0123"),
        (1e9, "1e+09"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


def test_the_table_is_plain_text():
    lines = [
        Line("one", "faster", 5.0, at_least=4, detail="why"),
        Line("one", "memory", 2.5, "MiB", at_most=1),
        Line("two", "faster", 1.0),
    ]
    headers = ["row", "figure", "value", "goal", "met", ""]
    expected = """\
row  figure  value     goal     met
---  ------  --------  -------  ---  ---
one  faster  5.00      >= 4.00  yes  why
     memory  2.50 MiB  <= 1.00  NO
two  faster  1.00"""
    assert formatted(headers, [line.cells() for line in lines]) == expected
    unjudged = formatted(headers, [line.cells(judged=False) for line in lines])
    assert "NO" not in unjudged
    assert "yes" not in unjudged


def test_long_remarks_follow_the_table():
    rows = [["a", "short"], ["b", "much too long"], ["c", "as long as that"]]
    expected = """\
x  y
-  -----
a  short
b  [1]
c  [2]

[1] much too long
[2] as long as that"""
    assert formatted(["x", "y"], rows, widest=10) == expected


def test_rows_have_unique_names_and_goals_that_name_contenders():
    rows = comparisons("data", "python")
    assert len({row.workload.name for row in rows}) == len(rows)
    for row in rows:
        names = [contender.name for contender in row.contenders]
        assert len(set(names)) == len(names)
        assert all({ratio.of, ratio.over} <= set(names) for ratio in row.ratios)
        assert all((SPEED / f"{contender.module}.py").exists() for contender in row.contenders)
        assert all(ratio.at_least is not None or ratio.at_most is not None for ratio in row.ratios)
        assert Workload.from_json(row.workload.to_json()) == row.workload
        quick = row.workload.quick()
        assert quick.nodes <= 6
        assert quick.batch * quick.local_steps <= quick.records
        assert quick.source() == "generated"


def test_the_plain_step_is_not_private():
    plain = Workload("w", algorithm="dyn-d2p").plain()
    assert (plain.algorithm, plain.clip, plain.noise) == ("sgp", None, 0.0)


def test_machine_and_versions_are_told():
    assert machine()["cores"] >= 1
    assert json.loads(json.dumps(machine()))["processor"]
    assert versions()["torch"] == torch.__version__


def test_a_row_that_does_not_exist_is_named():
    found = subprocess.run(
        [sys.executable, str(SPEED), "--only", "nonsense"], capture_output=True, text=True
    )
    assert found.returncode == 2
    assert "no row nonsense; there are privsgp-one" in found.stderr
    there = found.stderr.partition("there are ")[2].strip().split(", ")
    left_out = re.search(r"^ELSEWHERE = \((.+)\)$", (SPEED / "__main__.py").read_text(), re.M)
    assert left_out is not None
    assert {name.strip('" ') for name in left_out[1].split(",")} < set(there)


def test_wide_models_are_timed_beside_plain_products_and_agree_with_taps():
    import wide

    found = wide.measure(1, quick=True)
    assert 1 in found["threads"]
    for threads, one in found["threads"].items():
        assert set(one["medians"]) == {wide.STEP} | ({wide.TAPS} if threads == 1 else set())
        assert all(spent > 0 for seconds in one["seconds"].values() for spent in seconds)
    assert found["disagreement"] <= found["most disagreement"]
    assert wide.WORKLOAD.shape[0] * wide.WORKLOAD.classes == 39_690
