"""The command `tacit watch`: shows what the processes of a run write of themselves, at one site."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli.options import Run
from tacit.errors import InputError, PeerError

if TYPE_CHECKING:
    from rich.console import Console

    from tacit.report.documents.status import (
        SiteStatus,
        StatusDocument,
        WatchDocument,
        WatchedProcess,
    )

_SHORTEST, _LONGEST = 0.1, 3600.0  # seconds between two looks
_JUST_NOW = 5.0  # seconds: a site that was heard of so lately is heard of
_PASSING = ("connected", "away")  # states of another site that nobody here follows any more


def watch(
    run: Run,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", help="Between two looks.")
    ] = 1.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a line for each look.")
    ] = False,
) -> None:
    """Show where a run stands: its sites, who is waited for, epsilon, bytes, the last error.

    It reads what the processes that run here write of themselves, and asks nobody else. Without
    --once it goes on until they have ended, or until Ctrl-C.

    With --once the exit code is 2 where a status cannot be read, and 4 where a process gives no
    sign of life.
    """
    from rich.console import Console

    from tacit.report.documents.base import dump
    from tacit.report.documents.status import watched

    if not _SHORTEST <= interval <= _LONGEST:  # nor is it, where it is no number
        expected = f"must be {_SHORTEST:g} to {_LONGEST:g} seconds"
        raise InputError("--interval", interval, expected)
    console = Console()
    if once:
        seen = watched(run, datetime.now(UTC))
        if as_json:
            typer.echo(dump(seen, indent=None))
        else:
            _show(console, seen)
        _judge(seen)
        return
    try:
        if as_json:
            for seen in _looks(run, interval):
                typer.echo(dump(seen, indent=None))
        else:
            _follow(console, run, interval)
    except KeyboardInterrupt:  # the way to leave
        return


def _looks(run: Path, interval: float) -> Iterator[WatchDocument]:
    """Look, until all that runs here has ended."""
    from tacit.report.documents.status import watched

    while True:
        seen = watched(run, datetime.now(UTC))
        yield seen
        if seen.ended:
            return
        time.sleep(interval)


def _judge(seen: WatchDocument) -> None:
    """Fail where something is wrong with what can be seen here."""
    from tacit.report.documents.status import STATUS

    for process in seen.processes:
        if process.problem is not None:
            raise InputError("RUN", process.folder, f"its {STATUS} cannot be read; see above")
    for process in seen.processes:
        if process.silent:
            raise PeerError(f"{process.folder} gives no sign of life; see above")


def _follow(console: Console, run: Path, interval: float) -> None:
    """Look again and again: in one place on a terminal, one below the other elsewhere."""
    from rich.live import Live
    from rich.text import Text

    if not console.is_terminal:
        for seen in _looks(run, interval):
            _show(console, seen)
            sys.stdout.flush()
        return
    with Live(console=console, auto_refresh=False) as live:
        for seen in _looks(run, interval):
            with console.capture() as captured:
                _show(console, seen)
            live.update(Text.from_ansi(captured.get()), refresh=True)


def _show(console: Console, seen: WatchDocument) -> None:
    """Print what is seen: where the run stands, its sites, and a line for all that is wrong."""
    from rich.markup import escape
    from rich.table import Table

    from tacit.report.terminal import print_table

    _print(console, f"{seen.run}: {_headline(seen)}")
    rows = list(_rows(seen))
    if rows:
        table = Table(box=None, pad_edge=False)
        for heading in ("site", "state", "step", "last seen", "epsilon", "sent"):
            table.add_column(heading)
        for row in rows:
            table.add_row(*(escape(_plain(cell)) for cell in row))
        print_table(console, table)
    for line in _remarks(seen):
        _print(console, line)


def _print(console: Console, line: str) -> None:
    console.print(_plain(line), markup=False, highlight=False, soft_wrap=True)


def _plain(text: str) -> str:
    """What others have named must not move the cursor; between a number and its unit is a space."""
    return "".join(sign for sign in text if sign.isprintable() or sign == "\u202f")


def _headline(seen: WatchDocument) -> str:
    """The state of the run in a few words: of the process that most needs attention."""
    order = ("failed", "waiting", "starting", "running", "stopped", "done")
    if not seen.statuses:
        return "nothing can be seen here"
    status = min(seen.statuses, key=lambda status: order.index(status.state))
    steps = "" if status.steps is None else f" of {status.steps:,}"
    at = f"step {status.step:,}{steps}"
    words = {
        "failed": f"has failed at {at}",
        "waiting": f"waits for {_listed(status.waiting_for)} at {at}",
        "starting": "is starting",
        "running": f"is running, {at}",
        "stopped": f"was stopped after {at}",
        "done": f"is done, {at}",
    }
    return words[status.state]


def _rows(seen: WatchDocument) -> Iterator[tuple[str, ...]]:
    """A row for each site: of those that run here by their own word, of others by what is heard."""
    from tacit.report.wording import NOTHING, bytes_text, duration_text, epsilon_text

    here = {
        process.status.rank: (process.status, process)
        for process in seen.processes
        if process.status is not None
    }
    if not here:
        return
    latest = max(seen.statuses, key=lambda status: status.updated)
    others = {site.rank: site for site in latest.sites}
    for rank in sorted({*here, *others}):
        if rank in here:
            status, process = here[rank]
            budget = "" if status.budget is None else f" of {status.budget:g}"
            yield (
                f"{status.site} (here)",
                "silent" if process.silent else _state(status),
                f"{status.step:,}",
                "now" if _is_alive(process) else f"{duration_text(process.age)} ago",
                f"{epsilon_text(status.epsilon)}{budget}",
                bytes_text(status.bytes_sent),
            )
        else:
            site, process = others[rank], here[latest.rank][1]
            step = NOTHING if site.step is None else f"{site.step:,}"
            state = site.state
            if state in _PASSING and not _is_alive(process):
                state = "done" if latest.state == "done" else "unknown"
            heard = _heard(site, latest, process)
            rate = f"{bytes_text(site.rate)}/s" if site.rate and _is_alive(process) else ""
            yield (site.name, state, step, heard, "", rate)


def _state(status: StatusDocument) -> str:
    return status.state if status.state != "waiting" else f"waits for {_listed(status.waiting_for)}"


def _is_alive(process: WatchedProcess) -> bool:
    from tacit.report.documents.status import FINAL

    return not process.silent and process.status is not None and process.status.state not in FINAL


def _heard(site: SiteStatus, status: StatusDocument, process: WatchedProcess) -> str:
    """When a site was last heard of, as the process here knows it, which may have ended since."""
    from tacit.report.documents.status import moment_of
    from tacit.report.wording import duration_text

    if site.last_seen is None:
        return "never"
    age = (moment_of(status.updated) - moment_of(site.last_seen)).total_seconds()
    age += 0.0 if _is_alive(process) else process.age or 0.0
    return "now" if age < _JUST_NOW else f"{duration_text(age)} ago"


def _remarks(seen: WatchDocument) -> Iterator[str]:
    """A line for each thing that people should know."""
    from tacit.report.wording import duration_text

    for process in seen.processes:
        if process.problem is not None:
            yield process.problem
    for process in seen.processes:
        status = process.status
        if status is None:
            continue
        if process.silent:
            yield (
                f"{status.site} has given no sign of life for {duration_text(process.age)}: its "
                "process has ended without a word, hangs, or cannot write into its folder"
            )
        elif status.waiting_for:
            yield f"{status.site} has waited for {_listed(status.waiting_for)} since {status.since}"
        for site in status.sites:
            if site.again:
                yield (
                    f"{status.site}: of {site.frames or 0:,} messages to {site.name}, "
                    f"{site.again:,} were sent again"
                )
        if status.last_error is not None:
            yield f"{status.site}: last error: {status.last_error}"


def _listed(names: tuple[str, ...]) -> str:
    *before, last = names or ("another",)
    return f"{', '.join(before)} and {last}" if before else last
