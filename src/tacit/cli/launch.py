"""The commands that only start something: `tacit launch` processes, `tacit relay` a relay."""

from __future__ import annotations

import json
import logging
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from tacit.cli.logs import LogFormat, as_json_lines, say
from tacit.cli.options import File, Json, LogLines, Out, Quiet, Resume, Set, check_files
from tacit.cli.signals import handled
from tacit.errors import InputError

# Beside [train].timeout, within which the processes notice by themselves: to say so and to end.
_TO_END = 15.0
_LINES = {
    "listening": "listening at {}",
    "connected": "{} has connected",
    "left": "{} has left",
    "refused": "{} is refused: it is no site of this relay's bundle, or was revoked",
}


def launch(
    file: File,
    processes: Annotated[int, Option(help="How many to start; each hosts some of the nodes.")],
    set_: Set = None,
    out: Out = None,
    resume: Resume = False,
    quiet: Quiet = False,
    as_json: Json = False,
    restarts: Annotated[
        int, Option(help="Start all again so often if a process is lost (--out).")
    ] = 0,
    log_format: LogLines = LogFormat.PLAIN,
) -> None:
    """Train in several processes on this machine; the same run as of `tacit train`."""
    check_files(file, set_ or ())
    from tacit.communication.cluster.launch import launch as launch_processes
    from tacit.config import load_config

    config = load_config(file, overrides=set_ or ())
    if not 1 <= processes <= config.nodes.count:
        raise InputError(
            "--processes",
            processes,
            f"must be a whole number from 1 to {config.nodes.count}, the number of nodes",
        )
    flags = {"--resume": resume, "--quiet": quiet, "--json": as_json}
    overrides = [word for value in set_ or () for word in ("--set", value)]
    logs = ["--log-format", log_format.value] if as_json_lines() else []
    code = launch_processes(
        [*(name for name, given in flags.items() if given), *logs, *overrides, "--", str(file)],
        processes,
        out=out,
        restarts=restarts,
        patience=config.train.timeout + _TO_END,
        say=_log if as_json_lines() else None,
    )
    if code:
        raise typer.Exit(code)


def _log(line: str) -> None:
    say(line.removeprefix("tacit: "), logging.ERROR)


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
    from tacit.communication.secure.relay import run_relay
    from tacit.identities import load_site

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
