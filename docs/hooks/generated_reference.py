"""Parts of the reference that are made from the program itself, so that they cannot be out of date.

A page says where such a part stands by a line `<!-- generated: NAME -->`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

_MARK = re.compile(r"^<!-- generated: (?P<name>[\w-]+) -->$", re.MULTILINE)
_PROOF = re.compile(r"`docs/((?:proofs|concepts)/[\w-]+\.md)`")


def commands() -> str:
    """Every command of `tacit`, with its arguments and options, as Markdown."""
    import typer

    from tacit.cli.main import app

    return "\n".join(_described(typer.main.get_command(app), "tacit"))


def _described(command: Any, path: str) -> Iterator[str]:
    context = command.context_class(command, info_name=path)
    if path != "tacit":
        yield f"## `{path}`\n"
    yield f"{(command.help or '').strip()}\n"
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield f"```text\n{usage}\n```\n"
    rows = [_row(parameter, context) for parameter in command.get_params(context)]
    yield "\n".join(["| argument or option | meaning |", "|---|---|", *rows]) + "\n"
    for name, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from _described(below, f"{path} {name}")


def _row(parameter: Any, context: Any) -> str:
    names, meaning = parameter.get_help_record(context)
    return f"| `{' '.join(names.split())}` | {_cell(meaning)} |"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def algorithms() -> str:
    """Every file of algorithms: its documentation, and the options of its rows, as Markdown."""
    from tacit.algorithms import ALGORITHMS

    rows: dict[str, list[Any]] = {}
    for row in ALGORITHMS.values():
        rows.setdefault(row.documentation, []).append(row)
    return "\n".join(_file(inspect.cleandoc(text), same) for text, same in rows.items())


def _file(documentation: str, rows: list[Any]) -> str:
    names = ", ".join(f"`{row.name}`" for row in rows)
    options: dict[str, list[str]] = {}
    for row in rows:
        for option in row.options.model_fields:
            options.setdefault(option, []).append(row.name)
    taken = [
        f"`{option}`" + ("" if len(by) == len(rows) else f" ({', '.join(by)})")
        for option, by in sorted(options.items())
    ]
    text = _PROOF.sub(r"[\g<1>](../\g<1>)", documentation)
    return f"## {names}\n\n{text}\n\n**Options:** {', '.join(taken)}.\n"


GENERATED: dict[str, Callable[[], str]] = {"commands": commands, "algorithms": algorithms}


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Put what is generated in the place of its mark."""
    return _MARK.sub(lambda mark: GENERATED[mark["name"]](), markdown)
