"""The commands before a first run: `tacit init` and `tacit check`.

`init` asks for what flags do not give, and writes an experiment; `check` shows a site how its own
table is read.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from tacit.cli.options import check_new, write_new
from tacit.errors import InputError, nearest

if TYPE_CHECKING:
    from tacit.data.tables.dialect import Dialect
    from tacit.data.tables.fields import Texts

_EXAMPLE = "digits"
_QUESTIONS = {
    "table": "Which table? A .csv or .parquet file; nothing for the digits that come along",
    "sample": (
        "A public or synthetic sample of the same layout, as .csv? Nothing if there is none"
    ),
    "target": "Which column is to be predicted? ({})",
    "node": "Which column says whose record it is? Nothing if none does ({})",
    "epsilon": "Epsilon of each node",
}
"""What is asked on a terminal; `{}` are the columns of the table."""
_CONFIRM = (
    "Nothing is trained before a person has checked that these are public, against a data "
    "dictionary or what everyone knows, and has set confirmed_public = true in {file}.\n"
    "Bounds that are the extremes of your own private records, rounded or not, are a leak that no "
    "epsilon covers; so is a list of values that only your records have."
)
_NO_UNIT = "no unit: epsilon is a row's; of a person with several rows it is not the person's"
_PROPOSED = (
    "unit: {column!r} looks like the number of a person, and somebody has to decide. As the unit, "
    "epsilon is a person's with all rows; else it is a row's, which of a person with several rows "
    "is not the person's. Decide by [unit] in {schema} and unit in {file}, which are comments now, "
    "or by --unit {column} or --unit none"
)


def init(
    csv: Annotated[Path | None, Option(metavar="FILE", help="A table of private records.")] = None,
    parquet: Annotated[Path | None, Option(metavar="FILE", help="The same as Parquet.")] = None,
    dataset: Annotated[str | None, Option(metavar="NAME", help="A data set by its name.")] = None,
    public_csv: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="A public or synthetic sample of the same layout: bounds are read from it, and "
            "the private file is not opened.",
        ),
    ] = None,
    target: Annotated[str | None, Option(metavar="COLUMN", help="What is predicted.")] = None,
    node: Annotated[str | None, Option(metavar="COLUMN", help="Whose record it is.")] = None,
    unit: Annotated[
        str | None,
        Option(metavar="COLUMN", help="Which person a row is of; none: each row is a record."),
    ] = None,
    labels: Annotated[
        str | None, Option(metavar="A,B", help="Labels of the target, in order.")
    ] = None,
    node_values: Annotated[str | None, Option(metavar="A,B", help="Nodes, node 0 first.")] = None,
    nodes: Annotated[
        int | None, Option(help="How many nodes, where no column says it.", min=1)
    ] = None,
    epsilon: Annotated[float | None, Option(help="Of each node.")] = None,
    model: Annotated[
        str | None, Option(help="linear, mlp or another; by default it is chosen.")
    ] = None,
    out: Annotated[
        Path | None, Option(metavar="FILE", help="The experiment file to write.")
    ] = None,
) -> None:
    """Write a first experiment file, and for a table the schema of what is public."""
    from tacit.config.start import Start, experiment_text
    from tacit.data.tables.dialect import ENDING, Dialect, beside, dialect_text
    from tacit.data.tables.propose import Roles, propose, proposed_unit, schema_text
    from tacit.data.tables.schema import default_schema

    flags = {"--csv": csv, "--parquet": parquet, "--dataset": dataset}
    named = [(flag, str(value)) for flag, value in flags.items() if value is not None]
    if len(named) > 1:
        raise InputError(*named[1], f"give either this or {named[0][0]}")
    if not named:
        table = _asked("table")
        named = [(f"--{_kind(table)}", table) if table else ("--dataset", _EXAMPLE)]
    ((flag, source),) = named
    if flag == "--dataset":
        from tacit.data import SOURCES

        of_table = {"--target": target, "--node": node, "--unit": unit, "--public-csv": public_csv}
        for name, value in of_table.items():
            if value is not None:
                raise InputError(name, str(value), "is of a table: name it with --csv or --parquet")
        if ":" not in source and source not in SOURCES:
            raise InputError("--dataset", source, nearest(source, SOURCES))
        start = Start(source, None, None, (), None, nodes or 10, _asked_epsilon(epsilon), model)
        file = out or Path(f"{source.partition(':')[0]}.toml")
        _write_all({file: experiment_text(start, str(file))})
        typer.echo(f"next: tacit plan {file}, then tacit train {file}")
        return
    if node is not None and nodes is not None:
        raise InputError("--nodes", nodes, f"follows from the values of {node!r}: leave it out")
    if public_csv is None and (sample := _asked("sample")):
        public_csv = Path(sample)
    seen, dialect, origin = _seen(Path(source), public_csv)
    columns = ", ".join(seen)
    target = target or _asked("target", columns)
    if not target:
        raise InputError("--target", target or None, f"name a column of the table: {columns}")
    if node is None and nodes is None:
        node = _asked("node", columns) or None
    roles = Roles(
        target, node, _listed(labels), _listed(node_values), None if unit == "none" else unit
    )
    found = propose(seen, roles, public=public_csv is not None, dialect=dialect)
    schema = found.schema
    proposed = proposed_unit(seen, schema) if unit is None else None
    schema_file = Path(default_schema(source))
    start = Start(
        dataset=f"{_kind(source)}:{source}",
        schema=str(schema_file),
        test=None if public_csv is None else f"csv:{public_csv}",
        metrics=schema.target.metrics,
        node=node,
        nodes=nodes or 10,
        epsilon=_asked_epsilon(epsilon),
        model=model,
        unit=roles.unit or proposed,
        decided=proposed is None,
    )
    file = out or Path(f"{schema_file.name.removesuffix('.schema.toml')}.toml")
    declared = schema_text(schema, source, origin, proposed)
    files = {schema_file: declared, file: experiment_text(start, str(file))}
    for table in [source, *([str(public_csv)] if public_csv else [])]:
        own = Path(beside(table, ENDING))
        # One that is there was written by a person, and the table was read by it.
        if found.dialect != Dialect() and not own.exists():
            files[own] = dialect_text(found.dialect, table, origin)
    _write_all(files)
    for name, reason in found.ignored.items():
        typer.echo(f"not an input: {name!r} {reason}")
    if schema.unit is not None:
        typer.echo(f"unit: epsilon protects a person with all rows, told by {schema.unit.column!r}")
    else:
        said = _NO_UNIT if proposed is None else _PROPOSED
        typer.echo(said.format(column=proposed, schema=schema_file, file=file))
    if not schema.unconfirmed:
        typer.echo(f"next: tacit plan {file}, then tacit train {file}")
        return
    typer.echo(_CONFIRM.format(file=schema_file))
    for fact in schema.unconfirmed:
        typer.echo(f"  {fact}")
    typer.echo(f"then: tacit plan {file}")


def _kind(table: str) -> str:
    return "csv" if table.lower().removesuffix(".gz").endswith(".csv") else "parquet"


def _seen(table: Path, public_csv: Path | None) -> tuple[Texts, Dialect, str]:
    """What may be looked at of a table: its fields, how they are written, where they come from."""
    from tacit.data.tables.dialect import Dialect, found_dialect
    from tacit.data.tables.propose import FIRST_RECORDS, refuse_record
    from tacit.data.tables.reading import CSV_ENDINGS, read_table

    file, flag = table, f"--{_kind(str(table))}"
    most: int | None = FIRST_RECORDS
    origin = f"the header and the first {FIRST_RECORDS} records of {table}, which is private"
    if public_csv is not None:
        if table.exists() and public_csv.exists() and table.samefile(public_csv):
            expected = "is the table of private records itself: give public or made-up records"
            raise InputError("--public-csv", str(public_csv), expected)
        file, flag, most = public_csv, "--public-csv", None
        origin = f"the public sample {public_csv}"
    dialect = Dialect.beside(file)
    if dialect == Dialect() and file.name.lower().endswith(CSV_ENDINGS) and file.is_file():
        dialect = found_dialect(file, flag, FIRST_RECORDS)
    columns = read_table(file, flag, dialect, most=most)
    seen = {
        name: [text and (column.notation.plain(text) or text) for text in column.texts()]
        for name, column in columns.items()
    }
    refuse_record(seen, flag, str(file))
    return seen, dialect, origin


def _write_all(files: dict[Path, str]) -> None:
    """Write all files or none; nothing is overwritten."""
    for path in files:
        check_new("--out", path)
    for path, text in files.items():
        write_new("--out", path, text.encode())
        typer.echo(f"wrote {path}")


def _listed(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(part.strip() for part in text.split(",") if part.strip())


def _asked(what: str, columns: str = "", default: str = "") -> str:
    """The answer to a question on a terminal; elsewhere nobody is asked."""
    if not sys.stdin.isatty():
        return default
    question = _QUESTIONS[what].format(columns)
    answer = typer.prompt(question, default=default, show_default=bool(default), err=True)
    return str(answer).strip()


def _asked_epsilon(given: float | None) -> float:
    value = given
    if value is None:
        answer = _asked("epsilon", default="3")
        try:
            value = float(answer)
        except ValueError:
            raise InputError("--epsilon", answer, "must be a positive number") from None
    if not 0 < value <= 10_000:
        raise InputError("--epsilon", value, "must be a positive number, such as 3")
    return value


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
    columns = ("column", "read as", "below", "above", "not declared", "missing", "refused")
    blocks: list[Block] = [
        Text("private: of this site's own records, for its own eyes; nothing is written to a file"),
        Items([*facts, *found.facts]),
        Table(columns, cells, left=columns[:2]),
        Items([f"suspicion: {line}" for line in found.suspicions]),
        Items([f"refused: {line}" for line in found.faults]),
    ]
    terminal(blocks)
    if declared.unconfirmed:
        typer.echo(f"{path} is not confirmed to be public yet: see confirmed_public")
    if found.faults:
        raise typer.Exit(2)
