"""The command `tacit watch`: shows what the processes of a run write of themselves, at one site."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from tacit.cli.options import Run, show_document
from tacit.errors import InputError, PeerError

if TYPE_CHECKING:
    from tacit.report.documents.status import WatchDocument

_SHORTEST, _LONGEST = 0.1, 3600.0  # seconds between two looks


def watch(
    run: Run,
    once: Annotated[bool, Option("--once", help="Look once, and end.")] = False,
    interval: Annotated[float, Option(metavar="SECONDS", help="Between two looks.")] = 1.0,
    as_json: Annotated[
        bool, Option("--json", help="Print one JSON object a line for each look.")
    ] = False,
) -> None:
    """Show where a run stands: its sites, who is waited for, epsilon, bytes, the last error.

    It reads what the processes that run here write of themselves, and asks nobody else. Without
    --once it goes on until they have ended, or until Ctrl-C.

    With --once the exit code is 2 where a status cannot be read, and 4 where a process gives no
    sign of life.
    """
    from tacit.report.documents.base import dump
    from tacit.report.documents.status import watched
    from tacit.report.watch_page import watch_blocks

    if not _SHORTEST <= interval <= _LONGEST:  # nor is it, where it is no number
        expected = f"must be {_SHORTEST:g} to {_LONGEST:g} seconds"
        raise InputError("--interval", interval, expected)
    if once:
        seen = watched(run, datetime.now(UTC))
        show_document(seen, watch_blocks(seen), as_json=as_json, indent=None)
        _judge(seen)
        return
    try:
        if as_json:
            for seen in _looks(run, interval):
                typer.echo(dump(seen, indent=None))
        else:
            _follow(run, interval)
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


def _follow(run: Path, interval: float) -> None:
    """Look again and again: in one place on a terminal, one below the other elsewhere."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from tacit.report.terminal import terminal
    from tacit.report.watch_page import watch_blocks

    console = Console(emoji=False)
    if not console.is_terminal:
        for seen in _looks(run, interval):
            terminal(watch_blocks(seen), console)
            sys.stdout.flush()
        return
    with Live(console=console, auto_refresh=False) as live:
        for seen in _looks(run, interval):
            with console.capture() as captured:
                terminal(watch_blocks(seen), console)
            live.update(Text.from_ansi(captured.get()), refresh=True)
