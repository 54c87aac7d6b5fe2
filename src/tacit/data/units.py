"""Whose rows are whose, where epsilon protects a person and not a row.

A *unit* is all rows of one id at one node. It takes the place of a record wherever a run counts,
draws, clips or stores records; rows are what is read, encoded and scored.

Of a unit with more rows than a public number, `most`, so many are kept, drawn by public coins that
depend on the seed, the node and the unit's number there, and on how many rows it has: a function of
the unit alone. No secrecy of these coins is needed, as every choice of rows has the same bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from tacit.data.public_coins import UNIT_ROWS, public_generator
from tacit.errors import InputError, RecordsError

Ids = NDArray[np.str_]
"""Whose each row is, `[rows]`."""

_MOST_EXACT = 2**53  # above, floating numbers skip whole ones: two persons may have one


@dataclass(frozen=True)
class UnitRule:
    """What a unit's rows are to its gradient.

    So many rows of a unit count at `most`, which is public; by `gradient` each row of m has the
    share 1 / m, or 1. The `seed` is the public one, for the choice among more rows.
    """

    most: int
    gradient: Literal["mean", "sum"]
    seed: int


@dataclass(frozen=True, eq=False)
class Units:
    """The units of all nodes of a process, one node after the other: int64, but for their ids.

    Of each unit `starts` `[units]` is where its rows begin, which lie one after the other, and
    `counts` how many they are: 1 to `rule.most`. Of each node `offsets` `[nodes]` is the number of
    its first unit, `sizes` how many it has, and `ids` are those of its units, in order.
    """

    rule: UnitRule
    starts: Tensor
    counts: Tensor
    offsets: Tensor
    sizes: Tensor
    ids: tuple[Ids, ...]

    def rows(self, units: Tensor) -> Tensor:
        """The rows of some units, int64 `[*units.shape, most]`; behind the last one that one."""
        places = torch.arange(self.rule.most, device=units.device)
        last = (self.counts[units] - 1).unsqueeze(-1)
        return self.starts[units].unsqueeze(-1) + torch.minimum(places, last)

    def shares(self, units: Tensor) -> Tensor:
        """How much each row counts, float64 `[*units.shape, most]`; 0 where there is none."""
        counts = self.counts[units].unsqueeze(-1)
        there = (torch.arange(self.rule.most, device=units.device) < counts).double()
        return there / counts if self.rule.gradient == "mean" else there


@dataclass(frozen=True, eq=False)
class OwnUnits:
    """The units of one node: the rows that are kept, in order, how many are each's, and whose."""

    rows: NDArray[np.int64]
    counts: NDArray[np.int64]
    ids: Ids


def unit_ids(given: ArrayLike, records: int, where: str) -> Ids:
    """One id a record as text: of texts, or of whole numbers.

    Raises:
        InputError: they are not one a record.
        RecordsError: some are missing, or are neither texts nor whole numbers.
    """
    if isinstance(given, np.ma.MaskedArray):
        given = given.tolist()  # where it is masked, None
    # A list has no type of its own: among texts, NumPy would make the text "nan" of a missing id.
    values = np.asarray(given, dtype=object if isinstance(given, list | tuple) else None)
    if values.shape != (records,):
        raise InputError(where, values.shape, f"must be one id a record, of shape ({records},)")
    if values.dtype.kind in "iu":
        return values.astype(np.str_)
    if values.dtype.kind == "U":
        texts: Ids = np.char.strip(values)
    else:
        texts = np.array([_text(value) for value in values.tolist()], dtype=np.str_)
    missing = int((texts == "").sum())
    if missing:
        rule = "ids must be texts or whole numbers, and none may be missing"
        raise RecordsError(where, f"{missing:,} of {records:,} records", rule)
    return texts


def _text(value: object) -> str:
    """The text of an id; empty where it is none."""
    match value:
        case str():
            return value.strip()
        case Integral():
            return str(int(value))
        case float() | np.floating():
            number = float(value)
            return str(int(number)) if number.is_integer() and abs(number) < _MOST_EXACT else ""
    return ""


def own_units(ids: Ids, rule: UnitRule, node: int) -> OwnUnits:
    """The units of a node, of the ids of its rows."""
    names, whose, counts = np.unique(ids, return_inverse=True, return_counts=True)
    rows = np.argsort(whose, kind="stable")
    ends = np.cumsum(counts)
    kept = np.ones(len(rows), np.bool_)
    for unit in np.flatnonzero(counts > rule.most):
        count = int(counts[unit])
        coins = public_generator(rule.seed, UNIT_ROWS, node, int(unit))
        own = kept[ends[unit] - count : ends[unit]]
        own[coins.permutation(count)[rule.most :]] = False
    return OwnUnits(rows[kept], np.minimum(counts, rule.most), names)


def stacked_units(parts: list[OwnUnits], rule: UnitRule, device: torch.device | str) -> Units:
    """The units of nodes whose kept rows lie one after the other."""
    counts = torch.from_numpy(np.concatenate([part.counts for part in parts]))
    sizes = torch.tensor([len(part.counts) for part in parts], dtype=torch.int64)
    # Of a node without units, a place where one is: slots that a mask hides are read there.
    offsets = (sizes.cumsum(0) - sizes).clamp(max=max(0, len(counts) - 1))
    starts, counts, offsets, sizes = (
        values.to(device) for values in (counts.cumsum(0) - counts, counts, offsets, sizes)
    )
    return Units(rule, starts, counts, offsets, sizes, tuple(part.ids for part in parts))


def check_nodes(units: Units, most: int) -> None:
    """Refuse units with rows at more nodes of this process than `most`.

    Raises:
        RecordsError: on `privacy.unit_nodes`, saying how many units.
    """
    _, nodes = np.unique(np.concatenate(units.ids), return_counts=True)
    over = int((nodes > most).sum())
    if over:
        # Others are told the rule: it has nothing that is counted here.
        rule = (
            f"must have rows at {most} of the nodes at most, as the budget of each counts for "
            "them: raise privacy.unit_nodes, or divide the records otherwise"
        )
        raise RecordsError("privacy.unit_nodes", f"{over:,} of {len(nodes):,} units", rule)
