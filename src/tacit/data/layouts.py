"""Which tensors hold plain numbers, one beside the other: what records must be given as."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.errors import InputError


def check_layout(values: Tensor, where: str) -> None:
    """Refuse tensors that are sparse, nested, quantised, or that have a shape and no numbers.

    None of the numbers is read. `where` is the key or argument that an error names.

    Raises:
        InputError: saying which kind of tensor it is, and how to make a plain one of it.
    """
    kind, remedy = _kind(values)
    if kind:
        raise InputError(where, kind, f"must be a plain tensor, with every number in it: {remedy}")


def _kind(values: Tensor) -> tuple[str, str]:
    """What a tensor is instead of plain, and what to do about it; empty where it is plain."""
    if values.is_nested:
        return "a nested tensor", "make all records equally long, as torch.nested.to_padded_tensor"
    if values.is_quantized:
        return "a quantised tensor", "call .dequantize() on it"
    if values.layout != torch.strided:
        layout = str(values.layout).removeprefix("torch.").strip("_").replace("_", " ")
        return f"a tensor of layout {layout}", "call .to_dense() on it"
    if values.is_meta:
        return "a meta tensor", "it has a shape and no numbers; load them to a device such as 'cpu'"
    return "", ""
