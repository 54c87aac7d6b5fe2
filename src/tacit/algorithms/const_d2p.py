"""Const-D2P: the constant baseline of Dyn-D2P, one clipping bound C and one mu for all steps.

The mechanism is that of PrivSGP; the claim is Dyn-D2P's, with
mu-bar = sqrt(log(J^2 mu_tot^2 / K + 1)). See `dyn_d2p` for the paper and the symbols.
"""

from __future__ import annotations

from tacit.algorithms.definition import constant
from tacit.algorithms.dyn_d2p import PAPER
from tacit.algorithms.privsgp import PushSumOptions, push_sum_method
from tacit.privacy.published import DYN_D2P as PUBLISHED

__all__ = ["CONST_D2P"]

CONST_D2P = push_sum_method(
    name="const-d2p",
    title="Const-D2P",
    paper=PAPER,
    summary="Dyn-D2P with a constant clipping bound and a constant budget a step",
    options=PushSumOptions,
    schedules=constant,
    formula=PUBLISHED,
    default_clip=2.0,
)
