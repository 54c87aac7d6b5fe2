"""Dyn[C]-D2P: only the clipping bound varies, C_k = C_0 rho_c^{-k/K}; mu_k is constant.

A variant of Dyn-D2P (see `dyn_d2p` for the paper and the symbols). It costs exactly what
Const-D2P costs.
"""

from __future__ import annotations

from tacit.algorithms.definition import Growth, Schedules
from tacit.algorithms.dyn_d2p import PAPER, clip_schedule
from tacit.algorithms.privsgp import PushSumOptions, push_sum_method
from tacit.privacy.published import DYN_D2P as PUBLISHED

__all__ = ["DYN_C"]


class DynClipOptions(PushSumOptions):
    """Options of Dyn[C]-D2P."""

    clip_decay: Growth = 2.0


def schedules(options: DynClipOptions, clip: float | None, steps: int) -> Schedules:
    """The clipping bound falls; the noise falls with it, so that mu_k stays."""
    return Schedules(clip_schedule(clip, options.clip_decay, steps), (1.0,) * steps)


DYN_C = push_sum_method(
    name="dyn-c",
    title="Dyn[C]-D2P",
    paper=PAPER,
    summary="Dyn-D2P with a falling clipping bound and a constant budget a step",
    options=DynClipOptions,
    schedules=schedules,
    formula=PUBLISHED,
    default_clip=4.0,
)
