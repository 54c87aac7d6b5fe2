"""The published algorithms, one file a paper, the table that lists them, and how others are found.

To add one, see CONTRIBUTING.md; `tests/algorithms/test_algorithms_complete.py` names what a new row
still lacks. One of a user's own needs no place in the table: see `find_algorithm`.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tacit.algorithms.accounting import NodeRun
from tacit.algorithms.adp2_sgd import ADP2_SGD
from tacit.algorithms.base import Algorithm, TableRequest
from tacit.algorithms.context import StepContext, StepTable
from tacit.algorithms.cpgt import CPGT
from tacit.algorithms.do_adp import CHOCO_SGD, DO_ADP
from tacit.algorithms.dp2_sgd import D_PSGD, DP2_SGD
from tacit.algorithms.dp_admm import DP_ADMM
from tacit.algorithms.dp_dda import DP_DDA
from tacit.algorithms.dp_fedavg import DP_FEDAVG, FEDAVG
from tacit.algorithms.dp_sgd import DP_SGD
from tacit.algorithms.dpdl import DPDL
from tacit.algorithms.dpdo import DPDO
from tacit.algorithms.dyn_d2p import CONST_D2P, DYN_C, DYN_D2P, DYN_GENERAL, DYN_MU
from tacit.algorithms.facets import Activity, Setup, Weights
from tacit.algorithms.fedspd_dp import FEDSPD_DP
from tacit.algorithms.gradient_tracking import GRADIENT_TRACKING
from tacit.algorithms.graph_admm import DDP_ADMM, M_ADMM, R_ADMM
from tacit.algorithms.noised_moments import NOISED_MOMENTS, SERVER_MOMENTS
from tacit.algorithms.options import Options, Schedules, Size
from tacit.algorithms.privsgp import PRIVSGP, PRIVSGP_VR, SGP
from tacit.algorithms.variance_reduction.dp_srm import DP_SRM
from tacit.algorithms.variance_reduction.ldp_prox import LDP_SPIDER, LDP_SVRG
from tacit.algorithms.variance_reduction.soteriafl import SOTERIAFL_SAGA, SOTERIAFL_SVRG
from tacit.errors import InputError, nearest
from tacit.models.imports import import_named, names_function

__all__ = [
    "ALGORITHMS",
    "DEFAULT",
    "WITHOUT_NOISE",
    "Activity",
    "Algorithm",
    "NodeRun",
    "Options",
    "Schedules",
    "Setup",
    "Size",
    "StepContext",
    "StepTable",
    "TableRequest",
    "find_algorithm",
    "installed",
    "plain_method",
    "source_of",
]

DEFAULT = PRIVSGP.name
"""What an experiment runs that names no algorithm."""
WITHOUT_NOISE = SGP.name
"""The same without noise."""
ALGORITHMS: Mapping[str, Algorithm[Any, Any]] = {
    row.name: row
    for row in (
        SGP,
        PRIVSGP,
        PRIVSGP_VR,
        DYN_D2P,
        DYN_C,
        DYN_MU,
        CONST_D2P,
        DYN_GENERAL,
        GRADIENT_TRACKING,
        D_PSGD,
        DP2_SGD,
        ADP2_SGD,
        CHOCO_SGD,
        DO_ADP,
        DPDO,
        DP_DDA,
        CPGT,
        DPDL,
        DDP_ADMM,
        M_ADMM,
        R_ADMM,
        FEDAVG,
        DP_SGD,
        DP_FEDAVG,
        DP_ADMM,
        FEDSPD_DP,
        SOTERIAFL_SAGA,
        SOTERIAFL_SVRG,
        DP_SRM,
        LDP_SVRG,
        LDP_SPIDER,
        NOISED_MOMENTS,
        SERVER_MOMENTS,
    )
}


def plain_method(weights: Weights) -> str:
    """The name of the method that steps along noised gradients, with such mixing weights."""
    return next(
        row.name for row in ALGORITHMS.values() if row.plain and row.graph.weights == weights
    )


_WHERE = "algorithm.name"
_NOT_OWN = {"tacit", *sys.stdlib_module_names}  # which versions tell


def find_algorithm(name: object) -> Algorithm[Any, Any]:
    """The row of a name: of the table, of an installed package, or the user's own, `module:ROW`.

    One that is not of the table is called there as it was asked for.

    Raises:
        InputError: on `algorithm.name`.
    """
    if isinstance(name, str) and name in ALGORITHMS:
        return ALGORITHMS[name]
    reference = name if names_function(name) else installed().get(str(name))
    if not isinstance(name, str) or not isinstance(reference, str):
        known = nearest(str(name), [*ALGORITHMS, *installed()])
        expected = (
            f"is no algorithm here; {known} (`tacit algorithms` tells them, your own is module:ROW)"
        )
        raise InputError(_WHERE, name, expected)
    row = import_named(reference, _WHERE, "algorithm", lambda one: isinstance(one, Algorithm))
    return _called(row, name)


@cache
def installed() -> Mapping[str, str]:
    """Where the algorithms of installed packages lie, `module:ROW` by name.

    Those are the packages' entry points in the group `tacit.algorithms`.

    Raises:
        InputError: one is called like another, or like one of the table.
    """
    from importlib.metadata import entry_points

    found: dict[str, str] = {}
    for entry in entry_points(group="tacit.algorithms"):
        if entry.name in ALGORITHMS or found.get(entry.name, entry.value) != entry.value:
            expected = f"is what an installed package calls {entry.value}, and there is another"
            raise InputError(_WHERE, entry.name, f"{expected}: name yours module:ROW")
        found[entry.name] = entry.value
    return found


@cache
def _called(row: Algorithm[Any, Any], name: str) -> Algorithm[Any, Any]:
    return replace(row, name=name)


@cache
def source_of(row: Algorithm[Any, Any]) -> str | None:
    """A digest of the files that say what a row does; None of one of the table.

    They are its own, and those of its start and its step. What these import is not part of it.
    """
    if row.name in ALGORITHMS:
        return None
    own, _, _ = (row.name if names_function(row.name) else installed()[row.name]).partition(":")
    names = {own, row.start.__module__, row.step.__module__}
    others = sorted(name for name in names if name.partition(".")[0] not in _NOT_OWN)
    files = [getattr(sys.modules.get(name), "__file__", None) for name in others]
    digest = hashlib.blake2b(digest_size=16)
    for file in filter(None, files):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()
