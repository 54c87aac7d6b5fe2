"""Arguments and options that several commands share."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from tacit.errors import InputError

__all__ = [
    "File",
    "Insecure",
    "Json",
    "Out",
    "Page",
    "Quiet",
    "Resume",
    "Run",
    "Set",
    "waiting",
    "write_page",
]

File = Annotated[Path, typer.Argument(metavar="FILE", help="The experiment file (TOML).")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a key; may be repeated."),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--allow-insecure-network",
        help="Let several processes talk in clear over a public address.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="The run folder to make; by default one under runs/."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the run in --out from its last checkpoint.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print the run folder and nothing else.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
Page = Annotated[
    Path | None,
    typer.Option("--page", metavar="HTML", help="Write it as a page to a new file, too."),
]


def waiting(what: str, *, hidden: bool) -> AbstractContextManager[object]:
    """Tell, on a terminal, what takes a while."""
    from rich.console import Console

    console = Console(stderr=True)
    return nullcontext() if hidden or not console.is_terminal else console.status(what)


def write_page(path: Path, html: str) -> None:
    """Write a page to a new file; nothing is overwritten.

    Raises:
        InputError: the file exists, or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(html)
    except FileExistsError:
        raise InputError("--page", str(path), "exists: name a new file") from None
    except OSError as error:
        raise InputError("--page", str(path), f"cannot be written: {error.strerror}") from None
