"""The rows of the table: what each measures, and what it found."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from forecast import COSTS, ClusterLinks, Costs, Forecast, forecast
from jobs import Work, job_of
from links import LOOPBACK, Link, why_not_shaped
from processes import Timing, measure
from scipy.optimize import nnls
from traffic import MESSAGE_BYTES, traffic

from tacit.communication.peers import place

_LIMIT = 300  # seconds of one whole run
# Kernel and gloo move bytes of loopback at the cost of `per_byte`, and nothing else.
_FREE = 1e15


@dataclass(frozen=True)
class Row:
    """What a row found.

    Args:
        headers: of its table.
        cells: of its lines.
        record: all of it, for the JSON.
        notes: what a reader must know.
    """

    headers: tuple[str, ...]
    cells: list[list[str]]
    record: Any
    notes: tuple[str, ...] = ()


def _timing(quick: bool) -> Timing:
    return Timing(rounds=2, steps=6, warm=2, limit=50) if quick else Timing()


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def overhead(quick: bool) -> Row:
    """The same work in one process and in two."""
    works = [Work()] if quick else [Work(), Work(hidden=32), Work(algorithm="dyn-d2p")]
    cells, record = [], []
    ways = [(1, 1), (2, 1)] if quick else [(1, 1), (1, 2), (2, 1)]
    for work in works:
        alone = None
        for processes, threads in ways:
            found = measure(work, processes, threads=threads, timing=_timing(quick))
            alone = alone or found.seconds
            record.append(
                {"work": asdict(work), "processes": processes, "threads": threads, **asdict(found)}
            )
            cells.append(
                [
                    work.name,
                    f"{processes} x {threads}",
                    f"{1 / found.seconds:.1f}",
                    f"{found.seconds / alone:.2f}",
                    f"{100 * found.spread:.0f} %",
                ]
            )
    headers = ("work", "processes x threads", "steps a second", "time over 1 x 1", "spread")
    return Row(headers, cells, record)


def runs(quick: bool) -> Row:
    """Whole runs of the command line, progress, metrics and all, on the digits."""
    steps = 60 if quick else 400
    text = (
        '[task]\ndataset = "digits"\nmodel = "mlp"\n[nodes]\ncount = 20\n'
        '[algorithm]\nname = "privsgp"\n[privacy]\nnoise_std = 0.1\n'
        f"[train]\nsteps = {steps}\nbatch = 32\n"
    )
    cells, record = [], []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "experiment.toml"
        file.write_text(text)
        for processes in (1, 2):
            asked = ["--processes", str(processes), "--out", f"{folder}/{processes}", "--json"]
            answer = _run(["launch", str(file), *asked])
            rate = answer["steps_per_second"]
            record.append({"processes": processes, "steps a second": rate})
            over = record[0]["steps a second"] / rate
            cells.append(["privsgp on digits", str(processes), f"{rate:.1f}", f"{over:.2f}"])
    return Row(("run", "processes", "steps a second", "time over 1"), cells, record)


def _run(arguments: Sequence[str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tacit", *arguments],
        capture_output=True,
        text=True,
        timeout=_LIMIT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def wire(quick: bool) -> Row:
    """Bytes on the wire, as the channel counted them, beside what the algorithm needs."""
    small = Work(nodes=8, inputs=60, hidden=16, batch=4, records=20)
    kinds = [("privsgp", "exponential"), ("dp2-sgd", "ring"), ("dp-sgd", "star")]
    works = [replace(small, algorithm=name, graph=graph) for name, graph in kinds]
    works += [] if quick else [Work(), Work(algorithm="dp2-sgd", graph="complete")]
    cells, record = [], []
    for work in works[:1] if quick else works:
        # A whole number of the graphs' periods.
        timing = replace(_timing(quick), rounds=1, steps=30, warm=0)
        found = measure(work, 2, timing=timing)
        job = job_of(work)
        expected = traffic(job.plan, place(work.nodes, 2), job.dtype)
        needed, counted = expected.needed_out.max(), expected.bytes_out.max()
        record.append(
            {
                "work": asdict(work),
                "needed": needed,
                "expected": counted,
                "on the wire": found.bytes_out,
            }
        )
        cells.append(
            [
                work.name,
                f"{needed:,.0f}",
                f"{found.bytes_out:,.0f}",
                f"{counted:,.0f}",
                f"{100 * (found.bytes_out / needed - 1):.3f} %",
            ]
        )
    headers = ("work, 2 processes", "bytes needed", "on the wire", "forecast", "headers")
    return Row(headers, cells, record)


def nodes(quick: bool) -> Row:
    """Time a step against nodes a process."""
    cells, record = [], []
    for count in (4,) if quick else (2, 4, 8, 16, 32, 64):
        found = measure(Work(nodes=count), 2, timing=_timing(quick))
        record.append({"nodes": count, **asdict(found)})
        cells.append(
            [
                f"{count // 2}",
                _ms(found.seconds),
                _ms(found.compute),
                f"{1e3 * found.seconds / count * 2:.2f}",
                f"{found.bytes_out:,.0f}",
            ]
        )
    headers = ("nodes a process", "ms a step", "of it computing", "ms a node", "bytes a step")
    return Row(headers, cells, record, ("privsgp, exponential graph, d = 101,770, 2 processes",))


def fit(quick: bool) -> Row:
    """What a message costs beside the network: one exchange on loopback, less its local work."""
    points: list[tuple[float, float, float]] = []
    cells: list[list[str]] = []
    # Many short rounds, of which the quickest counts: what else the machine does is no cost.
    timing = _timing(quick) if quick else Timing(rounds=40, steps=10)
    for work in _fit_works(quick):
        found = measure(work, 2, kind="mix", timing=timing)
        least = max(0.0, min(found.rounds) - min(found.local))
        row = 4 * work.parameters * (work.nodes // 2) + MESSAGE_BYTES
        points.append((2.0, 2.0 * row, least))
        cells.append([f"{row:,}", _ms(least)])
    costs = fitted(points)
    for line, (messages, size, _) in zip(cells, points, strict=True):
        line.append(_ms(messages * costs.per_message + size * costs.per_byte))
    notes = (
        f"fitted: {costs.per_message:.3g} s a message, {costs.per_byte:.3g} s a byte; "
        f"tacit has {COSTS.per_message:.3g} and {COSTS.per_byte:.3g}",
    )
    record = {"points": points, "fitted": asdict(costs), "in tacit": asdict(COSTS)}
    return Row(("bytes each way", "ms an exchange", "fitted ms"), cells, record, notes)


def _fit_works(quick: bool) -> list[Work]:
    # Every node's neighbour is in the other process, in a complete graph of few nodes or of many.
    base = Work(algorithm="dp2-sgd", graph="complete", nodes=2, inputs=20, batch=1, records=2)
    sizes = [(2, 1), (2, 30)] if quick else [(2, 1), (2, 30), (2, 300), (2, 3000), (2, 30000)]
    return [replace(base, nodes=count, hidden=hidden) for count, hidden in sizes]


def fitted(points: Sequence[tuple[float, float, float]]) -> Costs:
    """Costs of a message and of a byte for which relative errors are least; none is negative.

    Args:
        points: messages, bytes and seconds of each measurement.
    """
    seconds = np.array([point[2] for point in points])
    counts = np.array([point[:2] for point in points])
    (per_message, per_byte), _ = nnls(counts / seconds[:, None], np.ones(len(points)))
    return replace(COSTS, per_message=float(per_message), per_byte=float(per_byte))


def check(quick: bool) -> Row:
    """Forecast against measurement, on shaped links where they can be had."""
    why = why_not_shaped()
    links = [Link(1e8, 1e-3), Link(1e9, 5e-3)]
    links += [] if quick else [Link(1e8, 2e-2)]
    links = [LOOPBACK] if why else links[1:2] if quick else [LOOPBACK, *links]
    middle = Work(hidden=32)
    works = [middle] if quick else [middle, replace(middle, nodes=4, inputs=64), _server, _pairs]
    cells, record, errors = [], [], []
    for link in links:
        for work in works:
            found = measure(work, 2, link, timing=_timing(quick))
            ahead = predicted(work, 2, link, found.compute)
            # Within a round, in which computing and steps had the same minute of the machine.
            messages = ahead.seconds_a_step - ahead.compute
            pairs = zip(found.local, found.rounds, strict=True)
            error = float(np.median([(local + messages) / took - 1 for local, took in pairs]))
            errors.append(abs(error))
            record.append(
                {
                    "link": link.name,
                    "work": asdict(work),
                    "forecast": asdict(ahead),
                    **asdict(found),
                    "relative error": error,
                }
            )
            cells.append(
                [
                    link.name,
                    work.name,
                    _ms(found.seconds),
                    _ms(ahead.seconds_a_step),
                    _ms(found.compute),
                    f"{100 * error:+.0f} %",
                ]
            )
    notes = [f"relative error: {100 * np.median(errors):.0f} % in the middle, "]
    notes[0] += f"{100 * max(errors):.0f} % at most"
    if why:
        notes.append(f"on loopback only: {why}")
    headers = ("link", "work, 2 processes", "ms a step", "forecast", "of it computing", "error")
    return Row(headers, cells, record, tuple(notes))


_server = Work(algorithm="dp-sgd", graph="star", hidden=32, nodes=10)
_pairs = Work(algorithm="adp2-sgd", graph="ring", hidden=32, nodes=10)


def predicted(work: Work, processes: int, link: Link, compute: float) -> Forecast:
    """The forecast of some work, whose computing takes so many seconds a step."""
    job, placement = job_of(work), place(work.nodes, processes)
    links = ClusterLinks(link.bandwidth or _FREE, link.latency, processes)
    return forecast(
        traffic(job.plan, placement, job.dtype),
        links,
        compute=compute,
        nodes=len(placement.hosted(0)),
        steps=1,
    )


ROWS: dict[str, Callable[[bool], Row]] = {
    "overhead": overhead,
    "runs": runs,
    "wire": wire,
    "nodes": nodes,
    "fit": fit,
    "check": check,
}
"""By name; each is told whether to be quick."""
