"""Sites and a relay as real processes on loopback, made by the real commands.

Every process is forked from the server that all crews share, before any session of the engine is
open in it, and calls the entry of the command line. All are killed when the block ends, whatever
happened, and every wait has a limit.
"""

import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from experiments import Answer, strict_json, tacit
from forks import forked_process
from ports import free_address
from tacit.cli.main import main
from tacit.communication.secure.sites import SiteCluster, session_folder

NAMES = ("north", "south", "west")
LIMIT = 120.0  # seconds for anything that must end, on a machine that does much else


@dataclass
class Running:
    """One process.

    Attributes:
        process: which it is.
        home: its working directory.
        words: of its command line.
    """

    process: BaseProcess
    home: Path
    words: Sequence[str]

    @property
    def alive(self):
        """Whether it has not ended."""
        return self.process.exitcode is None

    def send(self, number):
        """Send it a signal."""
        if self.alive and self.process.pid is not None:
            os.kill(self.process.pid, number)

    def kill(self):
        """End it at once, and wait until it has."""
        self.send(signal.SIGKILL)
        self.process.join(LIMIT)

    def end(self, limit=LIMIT):
        """How it ended; of a signal, minus its number."""
        self.process.join(limit)
        code = self.process.exitcode
        assert code is not None, f"{self.home.name} hangs: {self.said('err')[-500:]}"
        return Answer(code, self.said("out"), self.said("err"))

    def said(self, stream):
        """What it wrote to `out` or `err` since it was started."""
        return (self.home / f"said.{stream}").read_text()


@dataclass
class Consortium:
    """Members whose folders were made by the commands, and the processes that run as them.

    Attributes:
        folder: holds a folder of each member and a working directory of each.
        names: of the sites, by rank.
        address: where sites reach the relay.
        listen: where the relay listens: there, unless something stands in between.
        running: the processes that were started, the latest of each member.
    """

    folder: Path
    names: Sequence[str]
    address: str
    listen: str
    running: dict[str, Running] = field(default_factory=dict)
    past: list[Running] = field(default_factory=list)

    def home(self, name):
        """The working directory of a member."""
        return self.folder / "homes" / name

    def run_folder(self, name, run="run"):
        """Where a site writes a run."""
        return self.home(name) / "runs" / run

    def rank_folder(self, name, run="run"):
        """Where it writes what is its own."""
        return self.run_folder(name, run) / f"rank-{self.names.index(name):04d}"

    def session(self, name, run="run"):
        """Where it keeps its session of a run, as long as that lasts."""
        return session_folder(self.run_folder(name, run), self.names.index(name))

    def start(self, name, *words, tamper=None):
        """`tacit` with these words, as a process of this member."""
        home = self.home(name)
        home.mkdir(parents=True, exist_ok=True)
        for stream in ("out", "err"):
            (home / f"said.{stream}").write_bytes(b"")
        said = [str(word) for word in words]
        process = forked_process(_member, home, said, tamper, daemon=True)
        process.start()
        if name in self.running:
            self.past.append(self.running[name])
        self.running[name] = Running(process, home, said)
        return self.running[name]

    def train(self, name, file, *more, run="run", resume=False, tamper=None):
        """A site takes part in a run."""
        words = ["train", file, "--site", self.folder / name, "--out", f"runs/{run}", "--quiet"]
        return self.start(name, *words, *(["--resume"] if resume else []), *more, tamper=tamper)

    def train_all(self, file, *more, **options):
        """All sites take part."""
        return [self.train(name, file, *more, **options) for name in self.names]

    def ends(self):
        """How the latest processes of all sites ended, by rank."""
        return [self.running[name].end() for name in self.names]

    def relay(self, name="hub"):
        """Start the relay, and wait until it listens."""
        words = ("relay", "--site", self.folder / name, "--listen", self.listen)
        running = self.start(name, *words)
        self.until(lambda: "listening" in running.said("out") or not running.alive)
        assert running.alive, running.said("err")
        return running

    def until(self, condition, limit=LIMIT):
        """Wait, a limited time, for something that a process does."""
        deadline = time.monotonic() + limit
        while not condition():
            if time.monotonic() > deadline:
                said = {name: one.said("err")[-300:] for name, one in self.running.items()}
                raise AssertionError(f"it did not happen: {said}")
            time.sleep(0.05)

    def until_step(self, step, *names, run="run"):
        """Wait until some sites have come to a step, or have ended."""
        for name in names or self.names:
            self.until(
                lambda name=name: (  # type: ignore[misc]
                    not self.running[name].alive
                    or status_of(self.rank_folder(name, run)).get("step", 0) >= step
                )
            )


def _member(home, words, tamper):
    os.chdir(home)
    for number, stream in ((1, "out"), (2, "err")):
        file = os.open(f"said.{stream}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    torch.set_num_threads(1)
    sys.argv = ["tacit", *words]
    if tamper is not None:
        tamper()
    main()


@contextmanager
def consortium(folder, names=NAMES, *, listen=None, days=365):
    """A consortium of some sites and the relay `hub`; no process of it is left afterwards.

    Args:
        folder: where all of it is made.
        names: of the sites.
        listen: where the relay listens, if not where sites are told to look for it.
        days: for which certificates hold.
    """
    address = free_address()
    make_member(folder, "hub", "--role", "relay", "--address", address)
    for name in names:
        make_member(folder, name)
    approve_all(folder, [*names, "hub"], days=days)
    made = Consortium(folder, names, address, listen or address)
    try:
        yield made
    finally:
        everybody = [*made.past, *made.running.values()]
        for running in everybody:
            running.process.kill()
        for running in everybody:
            running.process.join(10)
        assert not any(running.alive for running in everybody)


def make_member(folder, name, *more):
    """`tacit site create`, and its request beside."""
    done = tacit("site", "create", name, "--folder", folder / name, *more)
    assert done.code == 0, done.err


def approve_all(folder, names, *, days=365):
    """`tacit consortium approve` for all, and `tacit site join` by each."""
    requests = [folder / f"{name}.request.json" for name in names]
    done = tacit(
        "consortium", "approve", *requests, "--folder", folder / "consortium", "--days", days
    )
    assert done.code == 0, done.err
    join_all(folder, names)


def join_all(folder, names):
    """Every member takes over the bundle as it stands."""
    for name in names:
        bundle = folder / "consortium" / "bundle.json"
        done = tacit("site", "join", bundle, "--folder", folder / name)
        assert done.code == 0, done.err


def gated(file):
    """Steps from the number in a file on wait until it is larger, so that tests can set a pace."""
    return partial(_gate, file)


def _gate(file):
    told = SiteCluster.at

    def at(self, k):
        told(self, k)
        while k >= int(file.read_text() or 0):
            time.sleep(0.01)

    SiteCluster.at = at  # type: ignore[method-assign]


def status_of(folder):
    """What `status.json` says; nothing where there is none yet."""
    with suppress(FileNotFoundError):
        return strict_json((folder / "status.json").read_text())
    return {}


def gathered(group, into, run="run"):
    """What all sites wrote of a run in one folder, as processes that share a disk would have."""
    for rank, name in enumerate(group.names):
        source = group.run_folder(name, run)
        if rank == 0:
            shutil.copytree(source, into)
        else:
            own = f"rank-{rank:04d}"
            shutil.copytree(source / own, into / own)
    return into


class Cuts:
    """Stands between sites and their relay, and cuts their connections when it is told to.

    Args:
        listen: where sites connect.
        to: where the relay listens.
    """

    def __init__(self, listen, to):
        host, port = listen.rsplit(":", 1)
        self._to = (to.rsplit(":", 1)[0], int(to.rsplit(":", 1)[1]))
        self._server = socket.create_server((host, int(port)))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed_until = 0.0
        self._start(self._accept)

    def cut(self, seconds=0.0):
        """Cut all connections, and let nobody connect for some seconds; how many were cut."""
        with self._lock:
            self._closed_until = time.monotonic() + seconds
            cut, self._open = self._open, set()
        for one in cut:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        return len(cut) // 2

    def close(self):
        """Cut all, and listen no more."""
        self._server.close()
        self.cut(3600.0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _start(self, work, *arguments):
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                try:
                    if time.monotonic() < self._closed_until:
                        raise OSError("cut")
                    far = socket.create_connection(self._to, timeout=5.0)
                    far.settimeout(None)
                except OSError:
                    near.close()
                    continue
                with self._lock:
                    self._open |= {near, far}
                self._start(self._pump, near, far)
                self._start(self._pump, far, near)

    def _pump(self, source, sink):
        with suppress(OSError):
            while data := source.recv(2**16):
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
