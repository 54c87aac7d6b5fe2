"""Both ends of a contender: a process of its own that sets itself up and then runs on command.

A worker is started as `python contender.py MODULE WORKLOAD [OPTIONS]`, both JSON; the module has

    def build(workload: Workload, **options) -> Runner

On its standard input it gets one command a line, and answers each with one line of JSON:

| command | answer |
|---|---|
| (none, once it is built) | `{"ready": notes}` |
| `run N` | `{"seconds": of N steps}`, by its own clock |
| `check PATH` | `{}`, having saved `Runner.check()` at PATH as .npy |
| `stop`, or the end of the input | it ends |

Between commands a worker waits and takes no processor time, so contenders can take turns.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from workloads import Workload

HERE = Path(__file__).resolve().parent
_ABSENT = "import sys, importlib.util as u; print(*[n for n in sys.argv[1:] if not u.find_spec(n)])"


class Runner(Protocol):
    """What a contender's module builds."""

    def run(self, steps: int) -> None:
        """So many more steps (rounds); all work is done when it returns."""

    def check(self) -> NDArray[np.float32]:
        """What all contenders of a workload must agree on, from agreed batches and weights.

        For a step: the sum of clipped gradients of each node over `Records.batch(workload, 0)` at
        the common start, `[nodes, d]`, without noise. For a round: each active client's change of
        the model, without noise.
        """

    def notes(self) -> Mapping[str, Any]:
        """What the table should say of it: versions, threads, ..."""

    def close(self) -> None:
        """End what it started."""


@dataclass(frozen=True)
class Contender:
    """Who takes part.

    Attributes:
        name: in the table.
        module: in this folder; its `build` makes the runner.
        options: of `build`.
        python: the interpreter: another one for peers with an environment of their own.
        threads: OMP_NUM_THREADS of the worker; None leaves it to the contender.
        private: False has it run `Workload.plain()`, the same step without clipping and noise.
        needs: modules that its interpreter must have.
    """

    name: str
    module: str
    options: Mapping[str, Any] = field(default_factory=dict)
    python: str = sys.executable
    threads: int | None = None
    private: bool = True
    needs: tuple[str, ...] = ()

    def missing(self) -> str | None:
        """Why it cannot take part here; None if it can."""
        try:
            asked = subprocess.run(
                [self.python, "-c", _ABSENT, *self.needs],
                capture_output=True,
                text=True,
                check=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            return f"{self.python} does not run: {error}"
        absent = asked.stdout.split()
        return f"{self.python} has no {', '.join(absent)}" if absent else None

    def work(self, workload: Workload) -> Workload:
        """What it does of a workload."""
        return workload if self.private else workload.plain()


class Worker:
    """The parent's end of a running contender."""

    def __init__(self, contender: Contender, workload: Workload, log: Path) -> None:
        self.contender, self.log = contender, log
        self._started = time.monotonic()
        # A loop that is held between rounds runs in a thread, whose memory glibc would otherwise
        # keep apart from that of the main thread, in parts of 64 MiB at most.
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "MALLOC_ARENA_MAX": "1"}
        if contender.threads is not None:
            environment["OMP_NUM_THREADS"] = str(contender.threads)
        command = [
            contender.python,
            str(HERE / "contender.py"),
            contender.module,
            contender.work(workload).to_json(),
            json.dumps(dict(contender.options)),
        ]
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                cwd=HERE,
            )

    def await_ready(self) -> Worker:
        """Wait until it is built; it starts building when it is made."""
        self.notes: Mapping[str, Any] = self._answer()["ready"]
        self.setup_seconds = time.monotonic() - self._started
        return self

    @property
    def pid(self) -> int:
        """Number of its process."""
        return self._process.pid

    def run(self, steps: int) -> float:
        """Seconds that so many steps took."""
        return float(self._ask(f"run {steps}")["seconds"])

    def check(self, path: Path) -> NDArray[np.float32]:
        """See `Runner.check`."""
        self._ask(f"check {path}")
        found: NDArray[np.float32] = np.load(path)
        return found

    def memory(self) -> int:
        """Bytes of the worker and all that it started, as if no other contender were there.

        Own pages of all processes (proportional to their use where they share some), and mapped
        files, which processes of one contender share, once: those of the process with most.
        """
        sizes = [_sizes(pid) for pid in _tree(self._process.pid)]
        return sum(own for own, _ in sizes) + max(mapped for _, mapped in sizes)

    def stop(self) -> None:
        """End it, and what it started."""
        family = _tree(self._process.pid)
        try:
            self._process.communicate("stop\n", timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        for pid in family[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def send(self, command: str) -> None:
        """A command, without waiting for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def _ask(self, command: str) -> dict[str, Any]:
        self.send(command)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            said = self.log.read_text()[-2000:]
            raise RuntimeError(f"{self.contender.name} ended early; it said:\n{said}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Within:
    """A contender in this very process, for a worker's: it starts at once, and measures nothing."""

    def __init__(self, contender: Contender, workload: Workload) -> None:
        self.contender, self.pid = contender, os.getpid()
        begun = time.monotonic()
        module = importlib.import_module(contender.module)
        self._runner: Runner = module.build(contender.work(workload), **contender.options)
        self.notes = self._runner.notes()
        self.setup_seconds = time.monotonic() - begun

    def run(self, steps: int) -> float:
        """Seconds that so many steps took."""
        begun = time.perf_counter()
        self._runner.run(steps)
        return time.perf_counter() - begun

    def check(self, path: Path) -> NDArray[np.float32]:
        """See `Runner.check`."""
        return np.asarray(self._runner.check(), dtype=np.float32)

    def memory(self) -> int:
        """Bytes of this process."""
        return sum(_sizes(self.pid))

    def stop(self) -> None:
        """End it."""
        self._runner.close()


def ready(contender: Contender, workload: Workload, log: Path, *, within: bool) -> Worker | Within:
    """A contender that is set up; `within` this process, if asked for and its interpreter is."""
    if within and contender.python == sys.executable:
        return Within(contender, workload)
    return Worker(contender, workload, log).await_ready()


@contextmanager
def started(
    contenders: Sequence[Contender], workload: Workload, folder: Path, *, within: bool = False
) -> Iterator[list[Worker | Within]]:
    """Workers for all contenders, see `ready`; all are ended afterwards.

    They set up one after the other, so that one that measures itself meanwhile is alone.
    """
    workers: list[Worker | Within] = []
    try:
        for number, contender in enumerate(contenders):
            log = folder / f"{number}-{contender.module}.log"
            workers.append(ready(contender, workload, log, within=within))
        yield workers
    finally:
        for worker in workers:
            worker.stop()


def _tree(root: int) -> list[int]:
    """A process and its descendants."""
    found, left = [], [root]
    while left:
        pid = left.pop()
        found.append(pid)
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                left += [int(child) for child in task.read_text().split()]
            except OSError:  # it has just ended
                continue
    return found


def _sizes(pid: int) -> tuple[int, int]:
    """Bytes of a process that are its own, and of the files that it maps."""
    try:
        pages = _fields(Path(f"/proc/{pid}/smaps_rollup").read_text())
        status = _fields(Path(f"/proc/{pid}/status").read_text())
    except OSError:  # it has just ended
        return 0, 0
    own = pages.get("Pss_Anon", 0) + pages.get("Pss_Shmem", 0)
    return own * 1024, status.get("RssFile", 0) * 1024


def _fields(text: str) -> dict[str, int]:
    """`Name: 12 kB` lines; others are left out."""
    lines = (line.split() for line in text.splitlines() if line.endswith(" kB"))
    return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) == 3}


def _serve(module: str, workload: Workload, options: Mapping[str, Any]) -> None:
    # Answers go out on what was standard output; what libraries print goes to the log.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    runner: Runner = importlib.import_module(module).build(workload, **options)
    answers.write(json.dumps({"ready": dict(runner.notes())}) + "\n")
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        if command == "run":
            start = time.perf_counter()
            runner.run(int(argument))
            answer = {"seconds": time.perf_counter() - start}
        elif command == "check":
            np.save(argument, np.asarray(runner.check(), dtype=np.float32))
            answer = {}
        else:
            break
        answers.write(json.dumps(answer) + "\n")
    runner.close()


if __name__ == "__main__":
    _serve(sys.argv[1], Workload.from_json(sys.argv[2]), json.loads(sys.argv[3]))
