"""SGP: stochastic gradient push without noise, the non-private baseline of PrivSGP.

Assran, Loizou, Ballas and Rabbat, *Stochastic Gradient Push for Distributed Deep Learning*, ICML
2019; PrivSGP with sigma_i = 0. The symbols are those of `privsgp`.
"""

from __future__ import annotations

from tacit.algorithms.definition import constant
from tacit.algorithms.privsgp import PushSumOptions, push_sum_method

__all__ = ["SGP"]

SGP = push_sum_method(
    name="sgp",
    title="SGP",
    paper="Assran, Loizou, Ballas and Rabbat, ICML 2019",
    summary="stochastic gradient push, without noise",
    private=False,
    options=PushSumOptions,
    schedules=constant,
)
