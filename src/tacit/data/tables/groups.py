"""Groups of records by a declared column, read off what a model sees of each record.

A value that was declared is a group, and so are others and what is missing, where the schema has
them; a number is of one of four bands of equal width, as its schema scales it. So which groups
there are is public, and a record is of exactly one, whatever it says.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tacit.data.tables.kinds import BooleanColumn, CategoryColumn, NumberColumn, from_unit
from tacit.data.tables.schema import Schema
from tacit.errors import InputError

_CUTS = (-0.5, 0.0, 0.5)  # of what a number becomes, in [-1, 1]


@dataclass(frozen=True)
class Groups:
    """The names of groups, and which one records `[r, d]` are of: int64 `[r]`."""

    names: tuple[str, ...]
    of: Callable[[Tensor], Tensor]


def groups_by(schema: Schema | None, column: str | None) -> Groups:
    """The groups of records by a column of their schema; by None one, without a name.

    Raises:
        InputError: on `--by`, if there is no such column, or it is of another kind.
    """
    if column is None:
        return Groups(("",), lambda rows: torch.zeros(len(rows), dtype=torch.int64))
    if schema is None:
        raise InputError("--by", column, "needs records of a table with a schema")
    kind = schema.columns.get(column)
    # Categories that are embedded stand after all else.
    widths = {name: len(one.features(name)) for name, one in schema.columns.items()}
    order = sorted(widths, key=lambda name: name in schema.tables)
    first = sum(widths[name] for name in order[: order.index(column)]) if kind else 0
    match kind:
        case CategoryColumn(embed=None):
            names = kind.known
            return Groups(names, lambda rows: rows[:, first : first + len(names)].argmax(1))
        case CategoryColumn():
            most = len(kind.known) - 1
            return Groups(kind.known, lambda rows: rows[:, first].long().clamp(0, most))
        case BooleanColumn():
            names, cuts = ("false", "true"), torch.zeros(1)
        case NumberColumn():
            cuts, bands = torch.tensor(_CUTS), np.array([-1.0, *_CUTS, 1.0])
            ends = from_unit(bands, kind.low, kind.high, kind.scale).tolist()
            names = tuple(f"{low:.4g} to {high:.4g}" for low, high in itertools.pairwise(ends))
        case _:
            known = [
                name
                for name, one in schema.columns.items()
                if isinstance(one, CategoryColumn | BooleanColumn | NumberColumn)
            ]
            expected = "must be a column of categories, truth values or numbers that the schema"
            raise InputError("--by", column, f"{expected} declares: {', '.join(known)}")
    if kind.missing == "refuse":
        return Groups(names, lambda rows: _place(rows[:, first], cuts))
    missing = len(names)

    def of(rows: Tensor) -> Tensor:
        return _place(rows[:, first], cuts).where(rows[:, first + 1] <= 0.5, missing)

    return Groups((*names, "(missing)"), of)


def _place(values: Tensor, cuts: Tensor) -> Tensor:
    """How many cuts are below each value."""
    return torch.bucketize(values.contiguous(), cuts.to(values))
