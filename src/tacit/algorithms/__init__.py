"""The published algorithms, one file each, and the table that lists them.

To add one: copy the file nearest to it, change what its paper changes, add its row here and its
name to `tests/algorithms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit.algorithms.const_d2p import CONST_D2P
from tacit.algorithms.d_psgd import D_PSGD
from tacit.algorithms.definition import Algorithm, Options, Schedules, World
from tacit.algorithms.dp2_sgd import DP2_SGD
from tacit.algorithms.dyn_c import DYN_C
from tacit.algorithms.dyn_d2p import DYN_D2P
from tacit.algorithms.dyn_general import DYN_GENERAL
from tacit.algorithms.dyn_mu import DYN_MU
from tacit.algorithms.privsgp import PRIVSGP
from tacit.algorithms.sgp import SGP

__all__ = ["ALGORITHMS", "Algorithm", "Options", "Schedules", "World"]

ALGORITHMS: Mapping[str, Algorithm[Any, Any]] = {
    row.name: row
    for row in (
        SGP,
        PRIVSGP,
        DYN_D2P,
        DYN_C,
        DYN_MU,
        CONST_D2P,
        DYN_GENERAL,
        D_PSGD,
        DP2_SGD,
    )
}
