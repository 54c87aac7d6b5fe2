"""The published algorithms, one file a paper, and the table that lists them.

To add one, see CONTRIBUTING.md; `tests/algorithms/test_algorithms_complete.py` names what a new row
still lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    "plain_method",
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
