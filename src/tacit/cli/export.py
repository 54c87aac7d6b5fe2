"""The command `tacit export`: a run's model as a file for other programs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from tacit.cli.options import Ended, Trust, check_new, write_new


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
