"""Crews: `tacit train` in real processes that are ranks of one run, started in a moment.

Every rank is forked from a server that has imported all of tacit already, and calls the entry of
the command line in an environment as `tacit launch` sets it. This process keeps the store. All are
killed when the block ends, whatever happened, and every wait has a limit.
"""

import math
import os
import secrets
import sys
import time
from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from communication.cluster.joined import kept_store, variables
from experiments import Answer, strict_json, tacit
from forks import forked_process
from ports import free_port
from tacit.analysis.ledger_report import ledger_document
from tacit.cli.main import main
from tacit.privacy.ledger.ledger import read_ledger, step_runs

EXACT = {"rtol": 1e-12, "atol": 1e-14}
LIMIT = 60.0  # seconds for anything that must end


@dataclass(frozen=True)
class Member:
    """One rank.

    Attributes:
        process: which it is.
        home: its working directory.
    """

    process: BaseProcess
    home: Path

    def end(self, limit=LIMIT):
        """How it ended; of a signal, minus its number."""
        self.process.join(limit)
        assert self.process.exitcode is not None, f"{self.home.name} hangs: {self.said('err')}"
        return Answer(self.process.exitcode, self.said("out"), self.said("err"))

    def said(self, stream):
        """What it wrote to `out` or `err`."""
        return (self.home / f"said.{stream}").read_text()


@contextmanager
def crew(folder, processes, arguments, *, tamper=None, homes=(), ranks=None, kept_by_rank_0=False):
    """Ranks that run `tacit` with their arguments; none is left afterwards.

    Args:
        folder: where their working directories are made.
        processes: how many.
        arguments: of the command line, by rank.
        tamper: by rank, what is called before the command line.
        homes: their working directories, where they are there already.
        ranks: those that are started; by default all.
        kept_by_rank_0: whether rank 0 keeps the store, as where services start the processes.
    """
    token = secrets.token_hex(4)
    members = []
    agent = {"TORCHELASTIC_USE_AGENT_STORE": str(not kept_by_rank_0)}
    with nullcontext(free_port()) if kept_by_rank_0 else kept_store() as port:
        try:
            for rank in range(processes) if ranks is None else ranks:
                home = homes[rank] if homes else folder / f"home-{token}-{rank}"
                home.mkdir(parents=True, exist_ok=True)
                words = [str(word) for word in arguments(rank)]
                environment = variables(rank, processes, port, **agent)
                call = (environment, home, words, (tamper or {}).get(rank))
                process = forked_process(_rank, *call, daemon=True)
                process.start()
                members.append(Member(process, home))
            yield members
        finally:
            for member in members:
                member.process.kill()
            for member in members:
                member.process.join(10)
            assert not any(member.process.is_alive() for member in members)


def train(folder, file, out, processes, *more, tamper=None):
    """How all ranks of a training ended, within limits."""
    words = ("train", file, "--quiet", "--out", out, *more)
    with crew(folder, processes, lambda _: words, tamper=tamper) as members:
        return [member.end() for member in members]


def _rank(environment, home, words, tamper):
    os.chdir(home)
    for number, stream in ((1, "out"), (2, "err")):
        file = os.open(f"said.{stream}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    os.environ.update(environment)
    torch.set_num_threads(1)
    sys.argv = ["tacit", *words]
    if tamper is not None:
        tamper()
    main()


def simulated(file, run):
    """The same run in this process alone, without interruption."""
    assert tacit("train", file, "--quiet", "--out", run).code == 0
    return run


def result_of(run):
    """What `result.json` says."""
    return strict_json((run / "result.json").read_text())


def rows_of(run):
    """The lines of `metrics.jsonl`."""
    return [strict_json(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def nodes_of(run):
    """The models of all nodes, as the ranks of a run in blocks wrote them, or as one process."""
    folders = sorted(run.glob("rank-*")) or [run]
    return torch.cat([load_file(one / "nodes.safetensors")["parameters"] for one in folders])


def charged(run):
    """How often each step was charged to each node, from the ledgers of a run alone."""
    found = {}
    for file in sorted(run.glob("rank-*/ledger.sqlite")) or [run / "ledger.sqlite"]:
        (one,) = read_ledger(file).runs
        for node, intervals in one.charged.items():
            assert node not in found
            found[node] = Counter(
                {
                    step: times
                    for first, until, times in step_runs(intervals)
                    for step in range(first, until)
                }
            )
    return found


def checkpoints(run):
    """The steps of which each rank has a checkpoint, those that were set aside left out."""
    found = [one.glob("checkpoint-*") for one in sorted(run.glob("rank-*"))]
    names = [[path.stem for path in own if ".earlier-" not in path.name] for own in found]
    return [{int(name.removeprefix("checkpoint-")) for name in own} for own in names]


def until(condition, limit=LIMIT):
    """Wait, a limited time, for something that another process does."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def assert_ends_as(run, alone, measured=()):
    """A run that was continued ended where an uninterrupted one does.

    Args:
        run: of several processes.
        alone: in one process, without interruption.
        measured: steps at which only the first was measured, for it was stopped there.
    """
    torch.testing.assert_close(nodes_of(run), nodes_of(alone), **EXACT)
    found, right = result_of(run), result_of(alone)
    for key in ("status", "steps", "bytes_sent_by_node"):
        assert found[key] == right[key]
    rows, rights = ({row["step"]: row["test_loss"] for row in rows_of(one)} for one in (run, alone))
    assert rows.keys() == rights.keys() | set(measured)
    for step, losses in rights.items():
        assert rows[step] == (losses and pytest.approx(losses, rel=1e-12))


def assert_epsilon_is_that_of_the_books(run):
    """As each owner of a node can recompute it from the ledger of its own process."""
    stated = result_of(run)["epsilon"]
    documents = [ledger_document(home) for home in sorted(run.glob("rank-*"))]
    assert len({one.run for document in documents for one in document.runs}) == 1
    for document in documents:
        for row in document.nodes:
            assert math.isclose(row.epsilon, stated[row.node], rel_tol=1e-9)
