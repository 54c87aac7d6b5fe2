"""The command `tacit init`: asks for what flags do not give, and writes a first experiment."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.errors import InputError, nearest

if TYPE_CHECKING:
    from tacit.config.start import Start
    from tacit.data.tables import Schema
    from tacit.data.tables.fields import Table

_EXAMPLE = "digits"
_CONFIRM = (
    "Nothing is trained before a person has checked that these are public, against a data "
    "dictionary or what everyone knows, and has set confirmed_public = true in {file}.\n"
    "Bounds that are the extremes of your own private records, rounded or not, are a leak that no "
    "epsilon covers; so is a list of values that only your records have."
)


def init(
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="A table of private records.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE", help="The same as Parquet.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", metavar="NAME", help="A data set by its name.")
    ] = None,
    public_csv: Annotated[
        Path | None,
        typer.Option(
            "--public-csv",
            metavar="FILE",
            help="A public or synthetic sample of the same layout: bounds are read from it, and "
            "the private file is not opened.",
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="COLUMN", help="What is predicted.")
    ] = None,
    node: Annotated[
        str | None, typer.Option("--node", metavar="COLUMN", help="Whose record it is.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option("--labels", metavar="A,B", help="Labels of the target, in order.")
    ] = None,
    node_values: Annotated[
        str | None, typer.Option("--node-values", metavar="A,B", help="Nodes, node 0 first.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", help="How many nodes, where no column says it.", min=1)
    ] = None,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Of each node.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="linear, mlp or another; by default it is chosen.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The experiment file to write.")
    ] = None,
) -> None:
    """Write a first experiment file, and for a table the schema of what is public."""
    from tacit.config.start import Start

    given = {"--csv": csv, "--parquet": parquet, "--dataset": dataset}
    named = [flag for flag, value in given.items() if value is not None]
    if len(named) > 1:
        raise InputError(named[1], str(given[named[1]]), f"give either this or {named[0]}")
    if not named:
        csv, parquet, dataset = _asked_source()
    table = csv or parquet
    if table is None:
        for flag, value in (("--target", target), ("--node", node), ("--public-csv", public_csv)):
            if value is not None:
                raise InputError(flag, str(value), "is of a table: name it with --csv or --parquet")
        name = dataset or _EXAMPLE
        _check_known(name)
        count = nodes or 10
        start = Start(name, None, None, (), None, count, _asked_epsilon(epsilon), model)
        _write_all({_file(out, name.partition(":")[0]): start}, None, None)
        return
    if node is not None and nodes is not None:
        raise InputError("--nodes", nodes, f"follows from the values of {node!r}: leave it out")
    if public_csv is None:
        public_csv = _asked_public()
    _propose_and_write(
        table,
        public_csv,
        (target, node, _listed(labels), _listed(node_values)),
        (nodes, epsilon, model),
        out,
    )


def _propose_and_write(
    table: Path,
    public_csv: Path | None,
    roles: tuple[str | None, str | None, tuple[str, ...], tuple[str, ...]],
    settings: tuple[int | None, float | None, str | None],
    out: Path | None,
) -> None:
    from tacit.config.start import Start
    from tacit.data.tables.propose import FIRST_RECORDS, Roles, propose, refuse_record
    from tacit.data.tables.reading import found_separator, read_table
    from tacit.data.tables.schema import default_schema

    kind = "parquet" if table.suffix.lower() == ".parquet" else "csv"
    if public_csv is not None:
        if table.exists() and public_csv.exists() and table.samefile(public_csv):
            expected = "is the table of private records itself: give public or made-up records"
            raise InputError("--public-csv", str(public_csv), expected)
        separator = found_separator(public_csv, "--public-csv")
        seen = read_table(public_csv, "--public-csv", separator)
        refuse_record(seen, "--public-csv", str(public_csv))
        source = f"the public sample {public_csv}"
    else:
        separator = found_separator(table, f"--{kind}")
        seen = read_table(table, f"--{kind}", separator, most=FIRST_RECORDS)
        refuse_record(seen, f"--{kind}", str(table))
        source = f"the header and the first {FIRST_RECORDS} records of {table}, which is private"
    target, node, labels, values = roles
    interactive_node = node is None and settings[0] is None
    target = _asked_column("--target", target, seen, "Which column is to be predicted?")
    if interactive_node and _on_terminal():
        node = _asked_node(seen)
    chosen = Roles(target, node, labels, values)
    schema = propose(seen, chosen, public=public_csv is not None, separator=separator)
    schema_file = Path(default_schema(str(table)))
    start = Start(
        dataset=f"{kind}:{table}",
        schema=str(schema_file),
        test=None if public_csv is None else f"csv:{public_csv}",
        metrics=schema.target.metrics,
        node=node,
        nodes=settings[0] or 10,
        epsilon=_asked_epsilon(settings[1]),
        model=settings[2],
    )
    stem = schema_file.name.removesuffix(".schema.toml")
    _write_all({_file(out, stem): start}, (schema_file, schema), (str(table), source))


def _write_all(
    experiments: dict[Path, Start],
    schema: tuple[Path, Schema] | None,
    about: tuple[str, str] | None,
) -> None:
    """Write all files or none; nothing is overwritten."""
    from tacit.config.start import experiment_text
    from tacit.data.tables.propose import schema_text

    files = {path: experiment_text(start, str(path)) for path, start in experiments.items()}
    if schema is not None and about is not None:
        files = {schema[0]: schema_text(schema[1], *about), **files}
    for path in files:
        if os.path.lexists(path):
            raise InputError("--out", str(path), "exists, and is not overwritten: name another")
    for path, text in files.items():
        _write(path, text)
        typer.echo(f"wrote {path}")
    experiment = next(iter(experiments))
    if schema is not None and schema[1].unconfirmed:
        typer.echo(_CONFIRM.format(file=schema[0]))
        for fact in schema[1].unconfirmed:
            typer.echo(f"  {fact}")
        typer.echo(f"then: tacit plan {experiment}")
        return
    typer.echo(f"next: tacit plan {experiment}, then tacit train {experiment}")


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError("--out", str(path), f"cannot be written: {error.strerror}") from None


def _file(out: Path | None, stem: str) -> Path:
    return Path(f"{stem}.toml") if out is None else out


def _listed(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(part.strip() for part in text.split(",") if part.strip())


def _check_known(name: str) -> None:
    from tacit.data import SOURCES

    if ":" not in name and name not in SOURCES:
        raise InputError("--dataset", name, nearest(name, SOURCES))


# What is asked on a terminal.


def _on_terminal() -> bool:
    return sys.stdin.isatty()


def _prompt(question: str, default: str) -> str:
    return str(typer.prompt(question, default=default, show_default=bool(default), err=True))


def _asked_source() -> tuple[Path | None, Path | None, str | None]:
    """CSV, Parquet or the name of a data set."""
    answer = ""
    if _on_terminal():
        question = "Which table? A .csv or .parquet file; nothing for the digits that come along"
        answer = _prompt(question, "").strip()
    if not answer:
        return None, None, _EXAMPLE
    path = Path(answer)
    return (None, path, None) if path.suffix.lower() == ".parquet" else (path, None, None)


def _asked_public() -> Path | None:
    question = "A public or synthetic sample of the same layout, as .csv? Nothing if there is none"
    answer = _prompt(question, "").strip() if _on_terminal() else ""
    return Path(answer) if answer else None


def _asked_column(flag: str, given: str | None, table: Table, question: str) -> str:
    if given is None and _on_terminal():
        given = _prompt(f"{question} ({', '.join(table)})", "").strip()
    if not given:
        raise InputError(flag, given, f"name a column of the table: {', '.join(table)}")
    return given


def _asked_node(table: Table) -> str | None:
    question = f"Which column says whose record it is? Nothing if none does ({', '.join(table)})"
    return _prompt(question, "").strip() or None


def _asked_epsilon(given: float | None) -> float:
    value = 3.0 if given is None else given
    if given is None and _on_terminal():
        answer = _prompt("Epsilon of each node", "3")
        try:
            value = float(answer)
        except ValueError:
            raise InputError("--epsilon", answer, "must be a positive number") from None
    if not 0 < value <= 10_000:
        raise InputError("--epsilon", value, "must be a positive number, such as 3")
    return value
