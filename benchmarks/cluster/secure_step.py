"""What TLS, signatures and a journal cost a step: `python benchmarks/cluster/secure_step.py`.

Three processes on loopback make the same steps of push-sum, each sending its whole model to both
others, over gloo (`gloo`), over a relay (`relay`), and directly between the sites (`direct`). The
three take turns in every repetition, so that a slow minute of the machine falls on all. `local` is
the same step without messages. Over TLS all is as in a run of `tacit train --site`: certificates,
signed frames, acknowledgements, and the digest of a message on the disk before it leaves; what
came is forgotten at a snapshot after every repetition, outside the time that is measured.

It also says which threads of a process the time of the processors went to: what Python's threads
took by their own clocks, and under `other threads` the rest of the process, which is gloo's and the
engine's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from carriers import free_address
from forecast_job import Within
from jobs import Work, job_of
from processes import _answers
from worker import _blame, _leave, _Meeting, _round, _steps, _store

from tacit.communication.cluster.channel import open_channel
from tacit.communication.exchange.between import BetweenProcesses, Graphs
from tacit.communication.exchange.protocol import Channel
from tacit.communication.peers import place
from tacit.communication.secure.sites import SiteCluster, join_sites
from tacit.identities.consortium import approve
from tacit.identities.site import create_site, join, load_site

sys.path.append(str(Path(__file__).resolve().parents[1] / "speed"))

from machine import machine, versions

SITES = 3
WAYS = ("gloo", "relay", "direct")
GOAL = 1.5  # times the step over gloo
QUICK = "quick: few steps: these figures mean NOTHING"
_LIMIT = 60.0  # seconds of any one wait


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write JSON; 1 if the goal is missed, which --quick does not ask."""
    asked = _parser().parse_args(arguments)
    if asked.task is not None:
        print(json.dumps(_worker(json.loads(asked.task))), flush=True)
        return 0
    # 784 x 126 + 126 + 126 x 10 + 10 numbers, and hardly any records: messages are most of a step.
    work = Work(nodes=SITES, graph="complete", hidden=126, batch=1, records=20)
    rounds, steps = (2, 3) if asked.quick else (asked.rounds, asked.steps)
    before = os.getloadavg()
    with tempfile.TemporaryDirectory() as name, _consortia(Path(name)) as (folders, hub):
        tasks = [
            {
                "work": asdict(work), "rank": rank, "processes": SITES, "address": "127.0.0.1",
                "folders": {way: str(folder / f"site-{rank}") for way, folder in folders.items()},
                "rounds": rounds, "steps": steps, "warm": 2 if asked.quick else 10, "hub": hub,
            }
            for rank in range(SITES)
        ]  # fmt: skip
        commands = [[sys.executable, __file__, "--task", json.dumps(task)] for task in tasks]
        answers = _answers(commands, 1, 60.0 + 0.5 * rounds * steps * len(WAYS))
    seconds = {
        way: [max(took) for took in zip(*(one["seconds"][way] for one in answers), strict=True)]
        for way in ("local", *WAYS)
    }
    sent = {way: max(one["bytes"][way] for one in answers) for way in WAYS}
    cpu = {way: statistics.fmean(one["cpu"][way] for one in answers) for way in seconds}
    threads = {
        way: {
            name: statistics.fmean(one["threads"][way].get(name, 0.0) for one in answers)
            for name in sorted({name for one in answers for name in one["threads"][way]})
        }
        for way in seconds
    }
    _print(work, seconds, sent, cpu, before, threads)
    report = {
        "figures mean something": not asked.quick, "work": asdict(work), "d": work.parameters,
        "begun": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine(),
        "load average": {"before": before, "after": os.getloadavg()}, "versions": versions(),
        "rounds": rounds, "steps a round": steps, "seconds a step": seconds, "bytes a step": sent,
        "CPU seconds a step, of one process": cpu,
        "CPU seconds a step, of one process by thread, and of the relay": threads,
    }  # fmt: skip
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(report, indent=1) + "\n")
    if asked.quick:
        print(QUICK)
        return 0
    return int(any(_ratio(seconds, way) > GOAL for way in WAYS[1:]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("secure_step.py", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny: shows that all of it runs")
    parser.add_argument("--rounds", type=int, default=7, help="repetitions")
    parser.add_argument("--steps", type=int, default=40, help="steps of a repetition")
    parser.add_argument("--out", type=Path, default=Path("runs/secure-step.json"), metavar="FILE")
    parser.add_argument("--task", help=argparse.SUPPRESS)  # of a worker
    return parser


def _ratio(seconds: dict[str, list[float]], way: str) -> float:
    """Of a step to that over gloo: the median over repetitions, each to the one beside it."""
    pairs = zip(seconds[way], seconds["gloo"], strict=True)
    return statistics.median(own / gloo for own, gloo in pairs)


def _print(
    work: Work,
    seconds: dict[str, list[float]],
    sent: dict[str, float],
    cpu: dict[str, float],
    before: Sequence[float],
    threads: dict[str, dict[str, float]],
) -> None:
    print(f"{work.name}, {SITES} processes; load average {before[0]:.2f} before")
    print(
        f"{'':8}{'ms a step':>10}{'least':>8}{'most':>8}{'CPU ms':>8}{'MB sent':>9}{'to gloo':>9}"
    )
    for way, took in seconds.items():
        middle, least, most = (1e3 * f(took) for f in (statistics.median, min, max))
        line = f"{way:8}{middle:10.2f}{least:8.2f}{most:8.2f}{1e3 * cpu[way]:8.2f}"
        if way in sent:
            line += f"{sent[way] / 1e6:9.3f}{_ratio(seconds, way):9.2f}"
        print(line)
    print("CPU ms a step of one process, by thread, and of the relay:")
    for way, took in threads.items():
        print(f"{way:8}", ", ".join(f"{name} {1e3 * one:.2f}" for name, one in took.items()))


@contextmanager
def _consortia(folder: Path) -> Iterator[tuple[dict[str, Path], int]]:
    """One consortium that has a relay alone, one whose sites connect directly; the relay's PID."""
    hub = free_address()
    relayed, direct = folder / "relay", folder / "direct"
    _made(relayed, {f"site-{rank}": () for rank in range(SITES)}, {"hub": (hub,)})
    _made(direct, {f"site-{rank}": (free_address(),) for rank in range(SITES)}, {})
    command = [sys.executable, "-m", "tacit", "relay", "--site", str(relayed / "hub")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as relay:
        try:
            assert relay.stdout is not None
            assert "listening" in relay.stdout.readline()
            yield {"relay": relayed, "direct": direct}, relay.pid
        finally:
            relay.kill()


def _made(folder: Path, sites: dict[str, Sequence[str]], relays: dict[str, Sequence[str]]) -> None:
    folder.mkdir()
    asked = [create_site(folder / name, name, "site", at) for name, at in sites.items()]
    asked += [create_site(folder / name, name, "relay", at) for name, at in relays.items()]
    bundle = approve(folder / "consortium", asked).path
    for name in (*sites, *relays):
        join(folder / name, bundle)


def _worker(task: dict[str, Any]) -> dict[str, Any]:
    """One process: all ways are open from the beginning, and one at a time is used."""
    torch.set_num_threads(1)
    rank, cpu = task["rank"], torch.device("cpu")
    job = job_of(Work(**task["work"]))
    hosted = place(SITES, SITES).hosted(rank)
    store = _store(task)
    meet = _Meeting(store, SITES)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    with ExitStack() as stack:
        channel = open_channel(store, rank, SITES, cpu, _LIMIT, _blame, lambda other: None)
        stack.callback(channel.close)
        sites = {
            way: join_sites(
                load_site(folder),
                "steps",
                Path(folder) / "session",
                patience=_LIMIT,
                checkpoints=(),
            )
            for way, folder in task["folders"].items()
        }
        for one in sites.values():
            one.begin(0)
        channels: dict[str, Channel] = {"gloo": channel} | {
            way: one.connect(cpu, [0, 0], 0, stack)[0] for way, one in sites.items()
        }
        again = {way: _steps(job, hosted, _exchange(job, one)) for way, one in channels.items()}
        again = {"local": _steps(job, hosted, Within(job, hosted)), **again}
        sent: dict[str, Callable[[], int]] = {"gloo": lambda: channel.bytes_sent} | {
            way: lambda one=one: one.wire.bytes_sent  # type: ignore[misc]
            for way, one in sites.items()
        }
        seconds: dict[str, list[float]] = {way: [] for way in again}
        cpu_of: dict[str, list[float]] = {way: [] for way in again}
        threads: dict[str, Counter[str]] = {way: Counter() for way in again}
        bytes_of: dict[str, list[float]] = {way: [] for way in sent}
        for number in range(1 + task["rounds"]):
            steps = task["steps"] if number else task["warm"]
            for way, step in again.items():
                meet()
                before = sent[way]() if way in sent else 0
                cpu, by_thread = time.process_time(), _processor_time(task["hub"])
                took = _round(step, steps)
                if number:
                    share = 1 / (steps * task["rounds"])
                    for name, value in _processor_time(task["hub"]).items():
                        threads[way][name] += share * (value - by_thread.get(name, 0.0))
                    seconds[way].append(took)
                    cpu_of[way].append((time.process_time() - cpu) / steps)
                    if way in sent:
                        bytes_of[way].append((sent[way]() - before) / steps)
                if way in sites:
                    _forget(sites[way], number, meet)
        meet()
        for one in sites.values():
            one.close(ended=True)
        _leave(store, rank, SITES)
    return {
        "seconds": seconds,
        "cpu": {way: statistics.median(found) for way, found in cpu_of.items()},
        "bytes": {way: statistics.median(found) for way, found in bytes_of.items()},
        "threads": threads,
    }


def _processor_time(relay: int) -> Counter[str]:
    """Seconds of processor that each kind of thread here has taken, and another process."""
    found: Counter[str] = Counter()
    for thread in threading.enumerate():
        if thread.ident is not None:
            clock = time.pthread_getcpuclockid(thread.ident)
            found[thread.name.removeprefix("tacit_")] += time.clock_gettime(clock)
    found["other threads"] = time.process_time() - found.total()
    stat = Path(f"/proc/{relay}/stat")
    if stat.exists():  # on Linux
        user, system = stat.read_text().rpartition(")")[2].split()[11:13]
        found["relay"] = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return found


def _exchange(job: Any, channel: Channel) -> BetweenProcesses:
    mixing = job.plan.mixing
    graphs = Graphs(mixing.at, len(mixing.weights), mixing.kind, job.plan.release.active)
    ranks = place(SITES, SITES).ranks
    return BetweenProcesses(channel, ranks, graphs, dtype=job.dtype, device=torch.device("cpu"))


def _forget(site: SiteCluster, number: int, meet: _Meeting) -> None:
    """A checkpoint's snapshot, once all is acknowledged."""
    deadline = time.monotonic() + _LIMIT
    streams = site.wire._out.values()  # what is kept of them is not yet on the receivers' disks
    while any(stream.kept for stream in streams) and time.monotonic() < deadline:
        time.sleep(0.01)
    site.session.keep(number + 1)
    site.saved(number + 1)
    meet()


if __name__ == "__main__":
    sys.exit(main())
