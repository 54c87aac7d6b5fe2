"""Starting the processes of a measurement, and ending them whatever happens."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

from jobs import Work
from links import LOOPBACK, Link, shaped

WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Timing:
    """How long to measure.

    Args:
        rounds: the median of these counts.
        steps: of a round.
        warm: steps before the first.
        limit: seconds after which all processes are ended.
    """

    rounds: int = 5
    steps: int = 20
    warm: int = 5
    limit: float = 240.0


@dataclass(frozen=True)
class Found:
    """What was measured.

    Args:
        rounds: seconds a step in each, of the slowest process.
        local: of the same without messages, likewise.
        bytes_out: on the wire a step, of the process that sends most.
    """

    rounds: tuple[float, ...]
    local: tuple[float, ...]
    bytes_out: float

    @property
    def seconds(self) -> float:
        """A step: median over rounds."""
        return statistics.median(self.rounds)

    @property
    def compute(self) -> float:
        """A step without messages: median over rounds."""
        return statistics.median(self.local)

    @property
    def spread(self) -> float:
        """Of the rounds: largest less smallest, over the median."""
        return (max(self.rounds) - min(self.rounds)) / self.seconds


def measure(
    work: Work,
    processes: int,
    link: Link = LOOPBACK,
    *,
    kind: Literal["steps", "mix"] = "steps",
    threads: int = 1,
    timing: Timing | None = None,
) -> Found:
    """Time the steps of some work.

    Args:
        work: what is done.
        processes: how many share it.
        link: between them.
        kind: whole steps, or one exchange alone.
        threads: of each process.
        timing: how long.

    Raises:
        RuntimeError: a process failed or took too long; with what it said.
    """
    timing = timing or Timing()
    with shaped(processes, link) as hosts:
        tasks = [
            {
                **{key: value for key, value in asdict(timing).items() if key != "limit"},
                "work": asdict(work),
                "kind": kind,
                "threads": threads,
                "rank": rank,
                "processes": processes,
                "address": hosts.addresses[0],
                "interface": hosts.interfaces[rank],
            }
            for rank in range(processes)
        ]
        commands = [
            hosts.command(rank, [sys.executable, str(WORKER), json.dumps(task)])
            for rank, task in enumerate(tasks)
        ]
        answers = _answers(commands, threads, timing.limit)
    rounds, local = (
        tuple(max(took) for took in zip(*(one[key] for one in answers), strict=True))
        for key in ("seconds", "local")
    )
    return Found(
        rounds=rounds,
        local=local,
        bytes_out=max(one["bytes"] for one in answers),
    )


def _answers(commands: list[list[str]], threads: int, limit: float) -> list[dict[str, Any]]:
    """The last line that each process printed, in order."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # namespaces have no names to look up
    }
    with tempfile.TemporaryFile("w+") as errors:
        running = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
            for command in commands
        ]
        # Whoever reads below wakes up when it has ended them.
        watch = threading.Timer(limit, lambda: [one.kill() for one in running])
        watch.start()
        try:
            if len(running) > 1:
                port = _output(running[0]).readline()
                for one in running[1:]:
                    assert one.stdin is not None
                    one.stdin.write(port)
                    one.stdin.flush()
            said = [_output(one).read() for one in running]
            if any(one.wait() for one in running):
                errors.seek(0)
                raise RuntimeError(f"a process failed; it said:\n{errors.read()[-2000:]}")
        finally:
            watch.cancel()
            for one in running:
                one.kill()
                one.wait()
                for pipe in (one.stdin, one.stdout):
                    assert pipe is not None
                    pipe.close()
    return [json.loads(text.splitlines()[-1]) for text in said]


def _output(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout
