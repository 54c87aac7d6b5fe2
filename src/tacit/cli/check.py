"""The command `tacit check`: what a site should see of its own table before it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

_PRIVATE = "private: of this site's own records, for its own eyes; nothing is written to a file"
_COLUMNS = ("column", "read as", "below", "above", "not declared", "missing", "refused")


def check(
    table: Annotated[Path, Argument(metavar="TABLE", help="The site's own table.")],
    schema: Annotated[
        Path | None, Argument(metavar="SCHEMA", help="By default the one beside the table.")
    ] = None,
    test: Annotated[
        Path | None, Option(metavar="TABLE", help="Public test records, to be compared.")
    ] = None,
) -> None:
    """Show a site how its own table is read by a schema, and what is strange in it.

    What is printed is of private records: it is for the eyes of this site. Nothing is written.

    The exit code is 2 where training would refuse the table.
    """
    from tacit.data.tables import default_schema, find_schema
    from tacit.data.tables.check import check_table, share
    from tacit.data.tables.dialect import ENDING, Dialect, beside
    from tacit.data.tables.fields import rows
    from tacit.data.tables.reading import read_table, unnamed
    from tacit.report.terminal import terminal
    from tacit.report.view import Block, Items, Table, Text

    written, path = Dialect.beside(table), schema or Path(default_schema(str(table)))
    read = read_table(table, "TABLE", written)
    declared = find_schema(str(path), Path())
    public = None if test is None else read_table(test, "--test")
    found = check_table(read, declared, table.name, public)
    ignored = {*read} & {*declared.columns} - {name for name, *_ in found.columns}
    keys = written.model_dump(mode="json", exclude_defaults=True)
    dialect = ", ".join(f"{key} = {value!r}" for key, value in keys.items())
    facts = [
        f"{table}: {rows(read):,} records, {len(read)} columns, read by {path}",
        f"dialect: {f'{dialect} ({beside(str(table), ENDING)})' if keys else 'plain'}",
        f"ignored: {', '.join(name for name in read if name in ignored) or 'none'}",
        f"without a name, and not read: {', '.join(unnamed(table, 'TABLE', written)) or 'none'}",
    ]
    cells = [
        (name, words, *(share(n, rows(read)) if n else "-" for n in counts))
        for name, words, *counts in found.columns
    ]
    blocks: list[Block] = [
        Text(_PRIVATE),
        Items([*facts, *found.facts]),
        Table(_COLUMNS, cells, left=_COLUMNS[:2]),
        Items([f"suspicion: {line}" for line in found.suspicions]),
        Items([f"refused: {line}" for line in found.faults]),
    ]
    terminal(blocks)
    if declared.unconfirmed:
        typer.echo(f"{path} is not confirmed to be public yet: see confirmed_public")
    if found.faults:
        raise typer.Exit(2)
