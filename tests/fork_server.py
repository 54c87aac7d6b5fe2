"""Runs the command line in forked processes, with faults: importing torch takes seconds, once.

A process that `forks` makes, with all loaded and without any thread, forks for each request, and
answers when that process has ended. A request has `arguments` of the command line and the `folder`
to be in, and may have

- `witness`: a file to which every exchange's step is written before it takes place;
- `kill_after`: seconds until the process gets SIGKILL;
- `fault`: `[kind, number]`, at the write of this number, from 1: `kill` ends the process with
  SIGKILL, `fail` lets this write fail for want of room, `full` this and all that follow. What is
  written to a file is then half written;
- `largest`: bytes that a file may have (RLIMIT_FSIZE), for SQLite's own writes.

An answer has `code` (minus the signal's number), `out`, `err` and `writes`, how many there were.
"""

import errno
import importlib
import multiprocessing
import os
import resource
import signal
import sqlite3
import struct
import sys
import time
from collections import Counter
from dataclasses import dataclass

from forks import forked_process

COUNTED = ("open", "write", "fsync", "replace", "rename", "mkdir", "unlink", "fchmod", "chmod")
TRANSACTION = ("BEGIN IMMEDIATE", "COMMIT")
LIMIT = 200.0  # seconds that a process may take, on a machine that does much else


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    out: str
    err: str
    writes: int


class ForkServer:
    """The server, as tests see it."""

    def __enter__(self):
        self._ends, theirs = multiprocessing.Pipe()
        self._process = forked_process(main, theirs)
        self._process.start()
        theirs.close()
        return self

    def __exit__(self, kind, error, trace):
        self._ends.close()
        self._process.join(LIMIT)

    def tacit(self, *arguments, **request):
        """`tacit` with these arguments, to its end; see the module."""
        words = [str(argument) for argument in arguments]
        self._ends.send({**request, "arguments": words, "folder": os.getcwd()})
        assert self._ends.poll(LIMIT + 60.0), "the server does not answer"
        return self._ends.recv()


def exchanged(witness):
    """How often each step was exchanged, from the file of a witness."""
    content = witness.read_bytes() if witness.exists() else b""
    return Counter(step for (step,) in struct.iter_unpack(">i", content))


# What follows runs in the server and its children.


class Writes:
    """Counts the writes of a run folder, and makes one of them fail."""

    def __init__(self, kind, number):
        self.made, self._kind, self._number = 0, kind, number

    def due(self):
        """Count a write; whether it is to fail."""
        self.made += 1
        return self.made == self._number or (self._kind == "full" and self.made > self._number > 0)

    def fail(self):
        """End the process, or say that there is no room."""
        if self._kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FaultyFiles:
    """`os`, as the module that writes files sees it."""

    def __init__(self, writes):
        self._writes = writes

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in COUNTED:
            return real

        def counted(*arguments, **options):
            if self._writes.due():
                if name == "write":
                    descriptor, content = arguments
                    os.write(descriptor, content[: len(content) // 2])
                self._writes.fail()
            return real(*arguments, **options)

        return counted


class FaultyDatabases:
    """`sqlite3`, as the ledger sees it."""

    def __init__(self, writes):
        self._writes = writes

    def __getattr__(self, name):
        return getattr(sqlite3, name)

    def connect(self, *arguments, **options):
        writes = self._writes

        class Connection(sqlite3.Connection):
            def execute(self, statement, *parameters):
                if statement in TRANSACTION and writes.due():
                    try:
                        writes.fail()
                    except OSError:
                        raise sqlite3.OperationalError("database or disk is full") from None
                return super().execute(statement, *parameters)

        return sqlite3.connect(*arguments, factory=Connection, **options)


def patch(request):
    """Put the faults and the witness in place."""
    kind, number = request.get("fault") or (None, 0)
    writes = Writes(kind, number)
    files = FaultyFiles(writes)
    for name in ("tacit.base.private_files", "tacit.training.run_folder.folder"):
        importlib.import_module(name).os = files  # type: ignore[attr-defined]
    databases = FaultyDatabases(writes)
    importlib.import_module("tacit.privacy.ledger.file").sqlite3 = databases  # type: ignore[attr-defined]
    if request.get("witness"):
        testify(request["witness"])
    if request.get("largest") is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest"],) * 2)
    return writes


def testify(path):
    """Write down every step before its exchange."""
    from tacit.communication.exchange.in_process import InProcessExchange

    file, real = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), InProcessExchange.mix

    def mix(self, k, *values, **options):
        os.write(file, struct.pack(">i", k))
        return real(self, k, *values, **options)

    InProcessExchange.mix = mix  # type: ignore[method-assign]


def child(request, count):
    """The command line; the number of writes goes to the descriptor `count`."""
    code, writes = 70, None
    try:
        os.chdir(request["folder"])
        writes = patch(request)
        from tacit.cli import main as cli

        sys.argv = ["tacit", *request["arguments"]]
        try:
            cli.main()
            code = 0
        except SystemExit as done:
            code = int(done.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os.write(count, str(writes.made if writes else 0).encode())
        os._exit(code)


def serve(request):
    """Fork, wait, and say how it ended."""
    ends = [os.pipe() for _ in range(3)]  # not files, whose size may be bounded
    began = time.monotonic()
    process = os.fork()
    if process == 0:
        os.dup2(ends[1][1], 1)
        os.dup2(ends[2][1], 2)
        child(request, ends[0][1])
    for _, sending in ends:
        os.close(sending)
    left = request.get("kill_after", LIMIT)
    while (ended := os.waitpid(process, os.WNOHANG))[0] == 0:
        if time.monotonic() >= began + left:
            os.kill(process, signal.SIGKILL)
            ended = os.waitpid(process, 0)
            break
        time.sleep(0.001)
    made, out, err = (os.read(receiving, 1 << 16).decode() for receiving, _ in ends)
    for receiving, _ in ends:
        os.close(receiving)
    return Ended(os.waitstatus_to_exitcode(ended[1]), out, err, int(made or 0))


def main(requests):
    """Serve until the other end of the pipe is closed."""
    try:
        while True:
            requests.send(serve(requests.recv()))
    except EOFError:
        pass
