"""The command `tacit tune`: parses, calls, prints; decides nothing."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli.options import File, Json, Set, Workers, check_files, waiting
from tacit.cli.signals import kept, stop_signals
from tacit.errors import InputError

if TYPE_CHECKING:
    from tacit.analysis.settings.processes import Outcome, WantedRun

_KEPT = "trials that have ended are kept: the same command with --resume goes on"


def tune(
    file: File,
    set_: Set = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The folder of the search to make; default: runs/tune-NAME."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the search in --out; nothing runs twice.")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print what every trial and all may cost; run nothing.")
    ] = False,
    executor: Workers = None,
    as_json: Json = False,
) -> None:
    """Search settings under one privacy budget that covers the choosing.

    FILE has a section [tune]: which settings, by which score, and how choosing is paid for.
    """
    check_files(file, set_ or ())
    from tacit.analysis.settings.processes import Monitor, opened_executor
    from tacit.analysis.tune.costs import plan_search
    from tacit.analysis.tune.search import load_search
    from tacit.analysis.tune.trials import SearchFolder, refuse_workers
    from tacit.analysis.tune.winner import run_search
    from tacit.analysis.tune.words import plan_blocks, plan_document, result_blocks
    from tacit.report.documents.base import dump
    from tacit.report.terminal import terminal

    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
        raise InputError("WORLD_SIZE", os.environ["WORLD_SIZE"], "a search runs in one process")
    if plan and resume:
        raise InputError("--resume", True, "goes without --plan")
    search = load_search(file, set_ or ())
    refuse_workers(search, executor)
    target = Path("runs") / f"tune-{file.stem}" if out is None else out
    digest = search.digest()
    known = None if plan else SearchFolder.known(target, digest, resume=resume)
    with waiting("preparing every setting, and the noise of all trials", hidden=as_json):
        planned = plan_search(search, None if known is None else known.epsilon or None)
    if not as_json:
        terminal(plan_blocks(plan_document(planned)))
    if plan:
        if as_json:
            typer.echo(dump(plan_document(planned)))
        return
    with (
        kept(_KEPT),
        opened_executor(executor) as workers,
        SearchFolder.begin(target, digest, planned.epsilon) as folder,
        stop_signals(hidden=as_json) as asked_to_stop,
    ):
        monitor = Monitor(should_stop=asked_to_stop, done=_say_lost)
        if not as_json:
            monitor = replace(monitor, start=lambda trial: typer.echo(trial.name, err=True))
        document = run_search(planned, folder, monitor, workers)
    if document is None:
        typer.echo(f"stopped: {_KEPT}", err=True)
        return
    if as_json:
        typer.echo(dump(document, {"out": str(target)}))
    else:
        terminal(result_blocks(document, target))


def _say_lost(trial: WantedRun, outcome: Outcome) -> None:
    """Why there is no such trial, which the documents of a search do not tell."""
    if outcome.status == "lost" and outcome.message is not None:
        typer.echo(f"{trial.name}: lost: {outcome.message}", err=True)
