"""A model of numbers that takes categories beside them, each by an embedding of its own."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

import torch
from torch import Tensor, nn

NUMBERS = "numbers"
"""What a record calls its numbers, beside the codes of its categories by their names."""


class Embedded(nn.Module):
    """Looks codes up in tables `{name: (rows, width)}`, and gives all numbers to another model."""

    def __init__(self, tables: Mapping[str, tuple[int, int]], model: nn.Module) -> None:
        super().__init__()
        self.tables = nn.ModuleDict(
            {_key(name): nn.Embedding(*size) for name, size in tables.items()}
        )
        self.model = model

    def forward(self, record: Mapping[str, Tensor]) -> Tensor:
        """Outputs for numbers `[records, m]` and, by name, codes `[records]`."""
        codes = {_key(name): values for name, values in record.items()}
        rows = [table(codes[key]) for key, table in self.tables.items()]
        outputs: Tensor = self.model(torch.cat([record[NUMBERS], *rows], dim=1))
        return outputs


def tables_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """The tables of such a model, by its state."""
    found: dict[str, tuple[int, int]] = {}
    for name, values in tensors.items():
        if name.startswith(f"tables.{_BEFORE}") and values.ndim == 2:
            rows, width = values.shape
            key = name.removeprefix(f"tables.{_BEFORE}").removesuffix(".weight")
            found[unquote(key)] = rows, width
    return found


_BEFORE = "of "  # else a column called `type` would be an attribute that every module has


def _key(name: str) -> str:
    """The name of a column as that of a module, which has no dots."""
    return _BEFORE + name.replace("%", "%25").replace(".", "%2E")
