"""Arguments and options that several commands share."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from tacit.base.plain_files import own_part
from tacit.cli.logs import LogFormat, as_json_lines
from tacit.errors import InputError

if TYPE_CHECKING:
    from tacit.report.documents.base import Document
    from tacit.report.view import Block

File = Annotated[Path, Argument(metavar="FILE", help="The experiment file (TOML).")]
Set = Annotated[
    list[str] | None,
    Option("--set", metavar="SECTION.KEY=VALUE", help="Override a key; may be repeated."),
]
Insecure = Annotated[
    bool,
    Option(
        "--allow-insecure-network",
        help="Let several processes talk in clear over a public address.",
    ),
]
Out = Annotated[
    Path | None, Option("--out", help="The run folder to make; by default one under runs/.")
]
Resume = Annotated[
    bool, Option("--resume", help="Continue the run in --out from its last checkpoint.")
]
ResumeIfThere = Annotated[
    bool,
    Option(
        "--resume-if-there",
        help="Continue the run in --out if there is one, else start it; for services.",
    ),
]
Quiet = Annotated[bool, Option("--quiet", help="Print the run folder and nothing else.")]
Json = Annotated[bool, Option("--json", help="Print one JSON object and nothing else.")]
LogLines = Annotated[
    LogFormat,
    Option(
        "--log-format",
        metavar="FORMAT",
        help="Of standard error: plain, or json, which is one object a line, for tools.",
    ),
]
Run = Annotated[Path, Argument(metavar="RUN", help="A run folder.")]
Ended = Annotated[Path, Argument(metavar="RUN", help="A run folder.", callback=own_part)]
Trust = Annotated[
    bool, Option("--trust", help="Call functions that the run's config.toml names as its own.")
]
Workers = Annotated[
    str | None,
    Option(
        "--executor",
        metavar="MODULE:FUNCTION",
        help="Hand runs to what the function returns, a concurrent.futures.Executor or its like.",
    ),
]
Page = Annotated[
    Path | None, Option("--page", metavar="HTML", help="Write it as a page to a new file, too.")
]

PREPARING = "preparing data, model and noise for every node's budget"


@contextmanager
def waiting(what: str, *, hidden: bool) -> Iterator[None]:
    """Tell, on a terminal, what takes a while: what the package logs of its way there follows."""
    from rich.console import Console

    console = Console(stderr=True)
    if hidden or as_json_lines() or not console.is_terminal:
        yield
        return
    with console.status(what) as status:
        handler = _Shown(lambda text: status.update(f"{what}: {text}"))
        log = logging.getLogger("tacit")
        before = log.level
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        try:
            yield
        finally:
            log.setLevel(before)
            log.removeHandler(handler)


class _Shown(logging.Handler):
    """Hands each message to a function."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self.show = show

    def emit(self, record: logging.LogRecord) -> None:
        self.show(record.getMessage())


def command_group(name: str, about: str) -> typer.Typer:
    """An application to which commands of one name are added."""
    return typer.Typer(
        name=name,
        help=about,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
    )


def show_lines(document: Mapping[str, object], lines: Iterable[str], *, as_json: bool) -> None:
    """Print a document as JSON, or what people are told of it."""
    typer.echo(json.dumps(document, indent=2) if as_json else "\n".join(lines))


def print_written(paths: Iterable[Path], as_json: bool) -> None:
    """Print which files were written, a line each or as one JSON object."""
    written = [str(path) for path in paths]
    show_lines({"written": written}, written, as_json=as_json)


def show_document(
    document: Document | Mapping[str, object] | Sequence[Mapping[str, object]],
    blocks: Sequence[Block],
    page: Path | None = None,
    *,
    as_json: bool,
    indent: int | None = 2,
) -> None:
    """Print a document, as JSON or for people, and write it as a page where one was asked for."""
    from tacit.report.documents.base import plain_json
    from tacit.report.html import html
    from tacit.report.terminal import terminal

    if page is not None:
        write_new("--page", page, html(blocks).encode())
    if as_json:
        typer.echo(json.dumps(plain_json(document), indent=indent, allow_nan=False))
    else:
        terminal(blocks)


def check_new(flag: str, path: Path) -> None:
    """Refuse a file that is there already, which `flag` names: nothing is overwritten."""
    if os.path.lexists(path):
        raise InputError(flag, str(path), "exists, and is not overwritten: name another")


def write_new(flag: str, path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a new file, and the folders above it; nothing is overwritten.

    `flag` is the option that names it. With `private`, nobody else may read the file.

    Raises:
        InputError: the file exists, or cannot be written.
    """
    from tacit.base.private_files import plain_errors, write_private

    check_new(flag, path)
    with plain_errors(flag, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if private:
            write_private(path, content)
        else:
            with path.open("xb") as file:
                file.write(content)


_FILES = ("csv", "parquet", "svmlight")  # kinds of data sets that name a file after a colon


def check_files(file: Path, overrides: Sequence[str]) -> None:
    """Refuse an experiment that is missing, or whose file of records is, before PyTorch is loaded.

    That takes seconds. Everything else of an experiment is read where it is checked,
    `tacit.config`, which says the same of them. `overrides` are `section.key=value` strings.

    Raises:
        InputError: naming the key, the file, and where it was looked for; or what the file is
            in place of an experiment.
    """
    from tacit.base.plain_files import read_toml

    experiment = read_toml(file, "experiment file", "experiment")
    task = experiment.get("task", {})
    if "figure" in experiment or not isinstance(task, dict):  # each line has data of its own
        return
    pairs = (override.partition("=") for override in overrides)
    given = {key.strip(): value.strip().strip("\"'") for key, _, value in pairs}
    folders = [Path(), Path(os.path.expanduser(_last("data_dir", given, task, "data")))]
    for key in ("dataset", "test"):
        reference = _last(key, given, task)
        kind, _, wanted = reference.partition(":")
        if kind in _FILES and wanted:
            paths = dict.fromkeys(folder / os.path.expanduser(wanted) for folder in folders)
            if not any(os.path.exists(path) for path in paths):
                looked = " or ".join(map(str, paths))
                expected = f"there is no file {looked}: name one, or task.data_dir"
                raise InputError(f"task.{key}", reference, expected)


def _last(key: str, given: Mapping[str, str], task: Mapping[str, object], usual: str = "") -> str:
    """A key of `[task]`, as the command line or else the file has it."""
    return given.get(f"task.{key}", str(task.get(key, usual)))
