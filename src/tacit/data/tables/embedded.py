"""Categories that are embedded: numbers first in a row, and then one code of each of these."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from tacit.data.tables.kinds import CategoryColumn, Column
from tacit.gradients.inputs import InputPart, Packed
from tacit.models.architectures import NUMBERS


def tables(columns: Mapping[str, Column]) -> dict[str, tuple[int, int]]:
    """Values, and numbers that stand for one, of each category that is embedded."""
    return {
        name: (len(kind.known), kind.embed)
        for name, kind in columns.items()
        if isinstance(kind, CategoryColumn) and kind.embed
    }


def packed_rows(columns: Mapping[str, Column], rows: Tensor) -> tuple[Tensor, Packed | None]:
    """Rows of features as they are packed, and how; the same and None without such categories."""
    wanted = tables(columns)
    if not wanted:
        return rows, None
    names = [name for name, kind in columns.items() for _ in kind.features(name)]
    codes = [place for place, name in enumerate(names) if name in wanted]
    others = [place for place, name in enumerate(names) if name not in wanted]
    numbers = InputPart(NUMBERS, (len(others),), "floating")
    parts = [InputPart(name, (), "integer") for name in names if name in wanted]
    return rows[:, others + codes], Packed((numbers, *parts))
