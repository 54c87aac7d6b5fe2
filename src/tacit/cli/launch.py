"""The command `tacit launch`: parses, calls, prints; decides nothing."""

from __future__ import annotations

import logging
from typing import Annotated

import typer
from typer import Option

from tacit.cli.logs import LogFormat, as_json_lines, say
from tacit.cli.options import File, Json, LogLines, Out, Quiet, Resume, Set, check_files
from tacit.errors import InputError

# Beside [train].timeout, within which the processes notice by themselves: to say so and to end.
_TO_END = 15.0


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
