"""The commands beside a run that goes on: `tacit watch` and `tacit relay`."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from tacit.cli.options import Json, Run, show_document
from tacit.cli.signals import handled
from tacit.errors import InputError, PeerError

if TYPE_CHECKING:
    from tacit.report.documents.status import WatchDocument

_LINES = {
    "listening": "listening at {}",
    "connected": "{} has connected",
    "left": "{} has left",
    "refused": "{} is refused: it is no site of this relay's bundle, or was revoked",
}
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
    from tacit.report.documents.status import STATUS, watched
    from tacit.report.watch_page import watch_blocks

    if not _SHORTEST <= interval <= _LONGEST:  # nor is it, where it is no number
        expected = f"must be {_SHORTEST:g} to {_LONGEST:g} seconds"
        raise InputError("--interval", interval, expected)
    if once:
        seen = watched(run, datetime.now(UTC))
        show_document(seen, watch_blocks(seen), as_json=as_json, indent=None)
        for process in seen.processes:
            if process.problem is not None:
                raise InputError("RUN", process.folder, f"its {STATUS} cannot be read; see above")
        for process in seen.processes:
            if process.silent:
                raise PeerError(f"{process.folder} gives no sign of life; see above")
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


def relay(
    site: Annotated[Path, Option(metavar="DIR", help="The relay's folder, joined to a bundle.")],
    listen: Annotated[
        list[str] | None,
        Option(
            metavar="HOST:PORT",
            help="Where sites connect; repeatable; by default the relay's approved addresses.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Pass the messages of a consortium's sites on, until SIGTERM or Ctrl-C.

    Sites connect outwards to it, and nobody connects to them. It prints who connects and leaves:
    with --json, one JSON object a line.
    """
    from tacit.communication.secure.sessions import run_relay
    from tacit.identities.site import load_site

    loaded = load_site(site)
    asked: list[int] = []

    def tell(event: str, who: str) -> None:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        line = f"{time} {loaded.own.name}: {_LINES[event].format(who)}"
        if as_json:
            values = {"time": time, "relay": loaded.own.name, "event": event, "who": who}
            line = json.dumps(values)
        print(line, flush=True)

    with handled(lambda number, frame: asked.append(number), signal.SIGINT, signal.SIGTERM):
        run_relay(loaded, listen or loaded.own.addresses, lambda: bool(asked), tell=tell)
