"""The commands `tacit compare` and `tacit tune`, of many runs."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from tacit.cli.options import (
    File,
    Json,
    Page,
    Set,
    Workers,
    check_files,
    check_new,
    waiting,
    write_new,
)
from tacit.cli.signals import kept, stop_signals
from tacit.errors import InputError, optional

if TYPE_CHECKING:
    from tacit.analysis.settings.processes import Outcome, WantedRun

_RUNS_KEPT = "what ran is kept: the same command goes on"
_TRIALS_KEPT = "trials that have ended are kept: the same command with --resume goes on"


def compare(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Experiment files, each a line, or one with a section [figure] or [compare].",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The folder of the comparison; default: runs/compare-NAME."),
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", help="So many runs at once, each in a process of its own.")
    ] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="The short version that the figure defines.")
    ] = False,
    set_: Set = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="Repetitions; default: as the figure has them.")
    ] = None,
    executor: Workers = None,
    page: Page = None,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE", help="Draw it in a new .pdf, .png or .svg, too."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the lines of a figure, and draw them with their true budgets.

    What has run before is taken from the folder; what was cut off goes on.
    """
    for file in files:
        check_files(file, set_ or ())
    from tacit.analysis.settings.fork_server import start_server

    if jobs > 1:  # it loads while this process does
        start_server()
    from tacit.analysis.compare.document import figure_document, watching
    from tacit.analysis.compare.figure import FigureOptions, load_figure
    from tacit.analysis.compare.session import gather, open_folder, worst_code
    from tacit.analysis.settings.processes import opened_executor
    from tacit.base.private_files import write_private
    from tacit.report.compare_page import compare_page, figure_blocks
    from tacit.report.compare_panels import panels, picture_note
    from tacit.report.documents.base import dump, plain_json
    from tacit.report.terminal import terminal

    _refuse_processes("a comparison runs in one process, which holds all records")
    for name, value in (("--jobs", jobs), ("--seeds", seeds)):
        if value is not None and not 1 <= value <= 1000:
            raise InputError(name, value, "must be a whole number from 1 to 1000")
    if executor is not None and jobs != 1:
        raise InputError("--jobs", jobs, "goes without --executor, which has workers of its own")
    if picture is not None:
        if picture.suffix not in (".pdf", ".png", ".svg"):
            raise InputError("--picture", str(picture), "must end in .pdf, .png or .svg")
        check_new("--picture", picture)
        optional("matplotlib")
    figure = load_figure(files, FigureOptions(tuple(set_ or ()), quick, seeds))
    undrawn: InputError | None = None
    try:  # before the runs, which wait for their processes as long
        from tacit.report import pictures
    except InputError as missing:
        undrawn = missing
    with (
        kept(_RUNS_KEPT),
        opened_executor(executor) as workers,
        stop_signals() as asked_to_stop,
        watching(asked_to_stop, hidden=as_json) as monitor,
    ):
        more = f"-and-{len(files) - 1}-more" if len(files) > 1 else ""
        name = f"compare-{files[0].stem}{more}{'-quick' if quick else ''}"
        folder = open_folder(out or Path("runs") / name)
        gathered = gather(figure, folder, jobs=jobs, executor=workers, monitor=monitor)
    if asked_to_stop():
        typer.echo(f"stopped: {_RUNS_KEPT}", err=True)
    with kept(_RUNS_KEPT), waiting("bounding what all runs cost together", hidden=as_json):
        found = figure_document(gathered)
    document = plain_json(found)
    html = compare_page(document)
    write_private(folder / "compare.json", dump(found).encode())
    write_private(folder / "compare.html", html.encode())
    names = ["compare.html"]
    if undrawn is not None:
        typer.echo(f"tacit: no figure-*.svg is drawn: {undrawn}", err=True)
    else:
        title, note = document["title"], picture_note(document)
        drawn = {axis: panels(document, axis) for axis in document["x"]}
        for axis, some in drawn.items():
            names.append(f"figure-{axis}.svg")
            write_private(folder / names[-1], pictures.svg_picture(title, some, note).encode())
        if picture is not None:
            whole = pictures.picture(title, list(chain.from_iterable(drawn.values())), note)
            kind = cast(Literal["pdf", "png", "svg"], picture.suffix[1:])
            write_new("--picture", picture, pictures.written(whole, title, kind))
    if page is not None:
        write_new("--page", page, html.encode())
    if as_json:
        typer.echo(dump(found, {"out": str(folder)}))
    else:
        terminal(figure_blocks(document))
        for path in (*(folder / name for name in names), *filter(None, [picture])):
            typer.echo(str(path))
    code = worst_code(gathered)
    if code:
        raise typer.Exit(code)


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
    from tacit.analysis.tune.costs import plan_blocks, plan_document, plan_search, result_blocks
    from tacit.analysis.tune.search import load_search
    from tacit.analysis.tune.trials import SearchFolder, refuse_workers, run_search
    from tacit.report.documents.base import dump
    from tacit.report.terminal import terminal

    _refuse_processes("a search runs in one process")
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
        kept(_TRIALS_KEPT),
        opened_executor(executor) as workers,
        SearchFolder.begin(target, digest, planned.epsilon) as folder,
        stop_signals(hidden=as_json) as asked_to_stop,
    ):
        monitor = Monitor(should_stop=asked_to_stop, done=_say_lost)
        if not as_json:
            monitor = replace(monitor, start=lambda trial: typer.echo(trial.name, err=True))
        document = run_search(planned, folder, monitor, workers)
    if document is None:
        typer.echo(f"stopped: {_TRIALS_KEPT}", err=True)
        return
    if as_json:
        typer.echo(dump(document, {"out": str(target)}))
    else:
        terminal(result_blocks(document, target))


def _say_lost(trial: WantedRun, outcome: Outcome) -> None:
    """Why there is no such trial, which the documents of a search do not tell."""
    if outcome.status == "lost" and outcome.message is not None:
        typer.echo(f"{trial.name}: lost: {outcome.message}", err=True)


def _refuse_processes(expected: str) -> None:
    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
        raise InputError("WORLD_SIZE", os.environ["WORLD_SIZE"], expected)
