"""The command `tacit compare`: parses, calls, prints; decides nothing."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from tacit.cli.options import (
    Json,
    Page,
    Set,
    Workers,
    check_files,
    check_new,
    waiting,
    write_new,
    write_page,
)
from tacit.cli.signals import kept, stop_signals
from tacit.errors import InputError, optional

_KEPT = "what ran is kept: the same command goes on"


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
    from tacit.analysis.compare.document import figure_document, watching
    from tacit.analysis.compare.figure import FigureOptions, load_figure
    from tacit.analysis.compare.session import gather, open_folder, worst_code
    from tacit.analysis.settings.processes import opened_executor
    from tacit.base.private_files import write_private
    from tacit.report.compare_page import compare_page, figure_blocks
    from tacit.report.compare_panels import panels, picture_note
    from tacit.report.documents.base import dump, plain_json
    from tacit.report.terminal import terminal

    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
        expected = "a comparison runs in one process, which holds all records"
        raise InputError("WORLD_SIZE", os.environ["WORLD_SIZE"], expected)
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
    with (
        kept(_KEPT),
        opened_executor(executor) as workers,
        stop_signals() as asked_to_stop,
        watching(asked_to_stop, hidden=as_json) as monitor,
    ):
        folder = open_folder(out or _folder(files, quick))
        gathered = gather(figure, folder, jobs=jobs, executor=workers, monitor=monitor)
    if asked_to_stop():
        typer.echo(f"stopped: {_KEPT}", err=True)
    with kept(_KEPT), waiting("bounding what all runs cost together", hidden=as_json):
        found = figure_document(gathered)
    document = plain_json(found)
    html = compare_page(document)
    write_private(folder / "compare.json", dump(found).encode())
    write_private(folder / "compare.html", html.encode())
    names = ["compare.html"]
    try:
        from tacit.report import pictures
    except InputError as missing:
        typer.echo(f"tacit: no figure-*.svg is drawn: {missing}", err=True)
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
        write_page(page, html)
    if as_json:
        typer.echo(dump(found, {"out": str(folder)}))
    else:
        terminal(figure_blocks(document))
        for path in (*(folder / name for name in names), *filter(None, [picture])):
            typer.echo(str(path))
    code = worst_code(gathered)
    if code:
        raise typer.Exit(code)


def _folder(files: list[Path], quick: bool) -> Path:
    more = f"-and-{len(files) - 1}-more" if len(files) > 1 else ""
    return Path("runs") / f"compare-{files[0].stem}{more}{'-quick' if quick else ''}"
