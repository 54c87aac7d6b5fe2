"""Real SIGKILLs at random moments: what was sent is in the ledger, and the files are sound.

A victim reserves a block of steps and then "sends" each of them: it appends the step to a file that
is synchronised at once. It is killed somewhere, and what it sent is compared with its ledger.
"""

import multiprocessing
import os
import random
import struct
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from forks import forked_process
from tacit.privacy.ledger.ledger import Ledger, NodeStatement, read_ledger, step_runs
from tacit.privacy.ledger.shared import SharedLedgers, WantedAccount, account_file, folder_key

pytestmark = pytest.mark.process

BLOCK = 3
ENDLESS = 1_000_000
STATEMENT = {"kind": "gaussian", "noise_multiplier": [[9.0, ENDLESS]]}
NODES = (0, 1)
LIMIT = 60.0  # seconds for anything that must happen


def send(wire, first, reserve, report):
    """Reserve blocks and send their steps, for ever; report the first step if asked to."""
    file = os.open(wire, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for block in range(first, ENDLESS, BLOCK):
        reserve(block, block + BLOCK)
        for step in range(block, block + BLOCK):
            os.write(file, struct.pack(">i", step))
            os.fsync(file)
            if report is not None and step == first:
                report.send_bytes(b"off")


def sent(wire):
    content = wire.read_bytes() if wire.exists() else b""
    return Counter(step for (step,) in struct.iter_unpack(">i", content))


def steps(charged):
    return Counter(
        {step: times for first, until, times in step_runs(charged) for step in range(first, until)}
    )


def kill(target, *arguments, delay, at_work):
    """Start a process and kill it `delay` seconds after it set out, or after its first step."""
    receiving, sending = multiprocessing.Pipe(duplex=False)
    victim = forked_process(target, *arguments, sending, at_work)
    victim.start()
    sending.close()
    assert receiving.poll(LIMIT)
    assert receiving.recv_bytes() == b"off"
    time.sleep(delay)
    victim.kill()
    victim.join(LIMIT)
    assert victim.exitcode == -9
    receiving.close()


def run_of(path, wire, first, report, at_work):
    """A session of a run: opens its ledger and goes on."""
    if not at_work:
        report.send_bytes(b"off")
    with Ledger.open(path, digest="d1") as ledger:
        send(wire, first, ledger.reserve, report if at_work else None)


def test_fifty_kills_never_leave_less_on_file_than_was_sent(tmp_path):
    rng = random.Random(7)
    path, wire = tmp_path / "ledger.sqlite", tmp_path / "wire"
    statements = [NodeStatement(node, STATEMENT, None, None) for node in NODES]
    Ledger.create(path, digest="d1", statements=statements).close()
    first = 0
    for kills in range(1, 53):
        before, at_work = sent(wire).total(), kills % 4 > 0
        kill(run_of, path, wire, first, delay=rng.uniform(0.0, 0.03), at_work=at_work)
        out = sent(wire)
        assert out.total() >= before + at_work
        with Ledger.open(path, digest="d1") as ledger:
            for node in NODES:
                reserved = steps(ledger.charged()[node])
                assert reserved >= out
                # Nor is more wasted than the block in use and the one being reserved.
                assert (reserved - out).total() <= 2 * BLOCK * kills
        # Now and then the next session repeats steps, as after a lost checkpoint.
        first = max(0, max(out) + rng.choice([1, 1, -5]))
    assert max(out.values()) > 1


def wanted():
    digests = {node: np.arange(5 * node, 5 * node + 5, dtype=np.uint64) for node in NODES}
    return [
        WantedAccount(node, (f"node {node}",), digests[node], None, None, 3.0, 1e-5)
        for node in NODES
    ]


def file_of(folder, node):
    return account_file(folder, f"node {node}", node)


def shared_run(folder, run, wire, first, report, at_work):
    """A session of a run on the ledgers of its nodes' data: makes them, enters, goes on."""
    if not at_work:
        report.send_bytes(b"off")
    folder_key(folder)
    with SharedLedgers.open(folder, wanted(), session=str(os.getpid())) as shared:
        statements = dict.fromkeys(NODES, STATEMENT)
        shared.enter(run, digest=run, statements=statements, sent={})
        send(wire, first, shared.reserve, report if at_work else None)


def check_shared(folder, wires):
    """Every file is sound, and has at least what each run sent; gives the runs entered."""
    entered = set()
    for node in NODES:
        runs = {}
        if file_of(folder, node).exists():
            ledger_content = read_ledger(file_of(folder, node))
            assert ledger_content.data is not None
            assert ledger_content.data.epsilon_budget == 3.0
            runs = {run.run_id: run for run in ledger_content.runs}
        entered |= set(runs)
        for name, wire in wires.items():
            assert (steps(runs[name].charged[node]) if name in runs else Counter()) >= sent(wire)
    return entered


def test_kills_of_many_runs_on_the_same_data(tmp_path):
    rng = random.Random(11)
    ledgers, wires = tmp_path / "ledgers", dict[str, Path]()
    for number in range(24):
        run = f"run-{number - number % 2}"  # each is killed, goes on, and is killed again
        wire = wires.setdefault(run, tmp_path / f"wire-{run}")
        first = max(sent(wire), default=-1) + 1
        delay, at_work = rng.uniform(0.0, 0.03), number % 3 > 0
        kill(shared_run, ledgers, run, wire, first, delay=delay, at_work=at_work)
        check_shared(ledgers, wires)
    assert sum(sent(wire).total() for wire in wires.values()) >= 16


def test_kills_while_ledgers_are_made_and_runs_entered(tmp_path):
    rng = random.Random(13)
    delay, outcomes = 0.0, Counter[int]()
    for number in range(60):
        folder = tmp_path / f"ledgers-{number}"
        wires = {"one": tmp_path / f"wire-{number}", "two": tmp_path / f"other-{number}"}
        kill(shared_run, folder, "one", wires["one"], 0, delay=delay, at_work=False)
        made = sum(file_of(folder, node).exists() for node in NODES)
        # However fast the machine is, the moment hovers about where the files are made.
        delay = rng.uniform(0.6, 1.0) * delay if made else 1.2 * delay + 1e-3
        outcomes[made] += 1
        entered = check_shared(folder, wires)
        assert not entered or made
        if made:
            # Whatever is there, the next run makes what is missing and goes to work.
            kill(shared_run, folder, "two", wires["two"], 0, delay=0.0, at_work=True)
            assert "two" in check_shared(folder, wires)
            assert sent(wires["two"])
        if outcomes[0] > 4 and outcomes[1] + outcomes[2] > 7:
            break
    assert outcomes[0]
    assert outcomes[1] + outcomes[2]
