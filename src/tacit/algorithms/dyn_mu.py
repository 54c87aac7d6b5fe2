"""Dyn[mu]-D2P: only the budget a step varies, mu_k = mu_0 rho_mu^{k/K}; C is constant.

A variant of Dyn-D2P (see `dyn_d2p` for the paper and the symbols). It costs exactly what Dyn-D2P
with the same rho_mu costs.
"""

from __future__ import annotations

from tacit.algorithms.definition import Growth, Schedules
from tacit.algorithms.dyn_d2p import PAPER, noise_schedule
from tacit.algorithms.privsgp import PushSumOptions, push_sum_method
from tacit.privacy.published import DYN_D2P as PUBLISHED

__all__ = ["DYN_MU"]


class DynBudgetOptions(PushSumOptions):
    """Options of Dyn[mu]-D2P."""

    budget_growth: Growth = 2.0


def schedules(options: DynBudgetOptions, clip: float | None, steps: int) -> Schedules:
    """The clipping bound stays; the noise falls."""
    return Schedules(
        None if clip is None else (clip,) * steps, noise_schedule(options.budget_growth, steps)
    )


DYN_MU = push_sum_method(
    name="dyn-mu",
    title="Dyn[mu]-D2P",
    paper=PAPER,
    summary="Dyn-D2P with a constant clipping bound and a growing budget a step",
    options=DynBudgetOptions,
    schedules=schedules,
    formula=PUBLISHED,
    default_clip=2.0,
)
