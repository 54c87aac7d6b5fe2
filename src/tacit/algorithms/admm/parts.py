"""What every ADMM here shares: subgradients of a public regulariser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

Subgradient = Literal["none", "l1", "l2", "elastic-net"]
"""Names of regularisers R; a box has no subgradient that would keep x inside it."""

# Of R as `parts.prox` defines it, without its factor lambda_R.
SUBGRADIENTS: Mapping[Subgradient, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "none": torch.zeros_like,
        "l1": torch.sign,
        "l2": torch.clone,
        "elastic-net": lambda x: x.sign().add_(x),
    }
)
