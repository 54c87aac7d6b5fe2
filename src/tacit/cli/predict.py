"""The commands of a run's model: `tacit predict`, a line a record, and `tacit export`."""

from __future__ import annotations

import csv as comma
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer
from typer import Option

from tacit.cli.options import Ended, Trust, check_new, write_new
from tacit.errors import InputError, RecordsError

if TYPE_CHECKING:
    from tacit.data.tables.fields import Column

_STANDARD = Path("-")


def predict(
    run: Ended,
    csv: Annotated[
        Path,
        Option(
            "--csv",
            "--parquet",
            metavar="FILE",
            help="The table of new records; - is standard input.",
        ),
    ],
    out: Annotated[
        Path, Option(metavar="CSV", help="The new file of predictions; - is standard output.")
    ],
    keep: Annotated[
        list[str] | None,
        Option(metavar="COLUMN", help="Copy a column of the table, such as an id; repeatable."),
    ] = None,
    dialect: Annotated[
        Path | None,
        Option(metavar="TOML", help="How the table is written; by default the file beside it."),
    ] = None,
    trust: Trust = False,
) -> None:
    """Predict the records of a table, in its order, by the consensus model of a run.

    Columns that are no inputs are passed over, the target too. Records that the schema refuses are
    refused: then no file is written.
    """
    if out != _STANDARD:
        check_new("--out", out)
    from tacit.base.plain_files import read_toml
    from tacit.data.tables.dialect import Dialect
    from tacit.data.tables.reading import read_parts
    from tacit.training.run_folder.predictor import load_predictor

    predictor = load_predictor(run, trust=trust)
    if predictor.schema is None:
        expected = "its records were no table: load its model with tacit.load_model in Python"
        raise InputError("RUN", str(run), expected)
    written = None if dialect is None else Dialect(**read_toml(dialect, "--dialect", "dialect"))
    kept, name, first = list(dict.fromkeys(keep or ())), csv.name or str(csv), 0
    path = None if csv == _STANDARD else csv
    parts = read_parts(path, "--csv", {*predictor.schema.sources, *kept}, written)
    with _opened(out) as file:
        lines = comma.writer(file, lineterminator="\n")
        for place, part in enumerate(parts):
            count = len(next(iter(part.values()), ()))
            try:
                said = predictor.predict(part, "standard input" if path is None else name)
            except RecordsError as error:
                if first and error.wrong is not None:  # a row's number is that among all
                    row = first + int(error.wrong.argmax()) + 1
                    wrong = f"{int(error.wrong.sum()):,} of rows {first + 1:,} to {first + count:,}"
                    found = f"{wrong} (the first is row {row:,})"
                    error = RecordsError(error.where, found, error.expected)
                raise error from None
            if place == 0:
                for column in kept:
                    if column in said or column not in part:
                        expected = (
                            "is what a prediction is called"
                            if column in said
                            else "is no column of the table"
                        )
                        raise InputError("--keep", column, expected)
                lines.writerow([*kept, *said])
            columns = [
                *map(_plain, map(part.__getitem__, kept)),
                *(own.tolist() for own in said.values()),
            ]
            lines.writerows(zip(*columns, strict=True))
            first += count
    if out != _STANDARD:
        typer.echo(f"wrote {out}: {first:,} records")


@contextmanager
def _opened(out: Path) -> Iterator[TextIO]:
    """Standard output, or a file that nobody else may read, which is there once it is whole."""
    from tacit.base.private_files import appearing, plain_errors

    if out == _STANDARD:
        yield sys.stdout
        return
    with plain_errors("--out", out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with appearing(out) as aside, aside.open("w", encoding="utf-8", newline="") as file:
            yield file


def _plain(column: Column) -> list[str | None]:
    """A column as the file has it; of what is no text, the text that a schema sees."""
    from tacit.data.tables.fields import is_text

    texts: list[str | None] = column.values.to_pylist() if is_text(column.values.type) else []
    return texts or column.texts()


class To(StrEnum):
    """What other programs read."""

    ONNX = "onnx"
    SAFETENSORS = "safetensors"
    TORCH = "torch"


def export(
    run: Ended,
    to: Annotated[
        To, Option(metavar="FORMAT", help="onnx; torch (a program); or safetensors (weights).")
    ],
    out: Annotated[
        Path | None, Option(metavar="FILE", help="The new file; by default named as the run.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Write the consensus model of a run as a file for other programs.

    ONNX files and programs of PyTorch take the columns of a table as they are, and give what tacit
    predict does. A record that the schema refuses has no score there: no number and no class.
    """
    from tacit.analysis.export import ENDINGS, exported

    path = Path(f"{run.resolve().name}{ENDINGS[to.value]}") if out is None else out
    check_new("--out", path)
    write_new("--out", path, exported(run, to.value, trust=trust))
    typer.echo(f"wrote {path}")
