"""Dyn-D2P: PrivSGP with a falling clipping bound and a growing privacy budget a step.

Zhu, Huang, Wang, Ji and Xu, *Dyn-D2P: Dynamic Differentially Private Decentralized Learning with
Provable Utility Guarantee*, Algorithm 1. The step is that of `privsgp`; what is new is the
schedules.

| paper | here |
|---|---|
| C_k = C_0 rho_c^{-k/K} | `clip` (C_0), `clip_decay` (rho_c) |
| mu_k = mu_0 rho_mu^{k/K} | noise multiplier 1 / mu_k; `budget_growth` (rho_mu) |
| mu_0 | the noise scale, which the plan calibrates to each node's budget |
| sigma_k = C_k / mu_k | noise standard deviation at step k |

Privacy depends on mu_k alone: the clipping schedule cancels.
"""

from __future__ import annotations

from tacit.algorithms.definition import Growth, Schedules
from tacit.algorithms.privsgp import PushSumOptions, push_sum_method
from tacit.privacy.published import DYN_D2P as PUBLISHED

__all__ = ["DYN_D2P", "PAPER", "clip_schedule", "noise_schedule"]

PAPER = "Zhu, Huang, Wang, Ji and Xu (Dyn-D2P)"


class DynOptions(PushSumOptions):
    """Options of Dyn-D2P; with both factors at 1 it is Const-D2P."""

    clip_decay: Growth = 2.0
    budget_growth: Growth = 2.0


def clip_schedule(clip: float | None, decay: float, steps: int) -> tuple[float, ...] | None:
    """C_k = C_0 rho_c^{-k/K}, k = 0..K-1."""
    if clip is None:
        return None
    return tuple(clip * decay ** (-k / steps) for k in range(steps))


def noise_schedule(growth: float, steps: int) -> tuple[float, ...]:
    """Noise multipliers 1 / mu_k over 1 / mu_0: rho_mu^{-k/K}, k = 0..K-1."""
    return tuple(growth ** (-k / steps) for k in range(steps))


def schedules(options: DynOptions, clip: float | None, steps: int) -> Schedules:
    """Both vary."""
    return Schedules(
        clip_schedule(clip, options.clip_decay, steps),
        noise_schedule(options.budget_growth, steps),
    )


DYN_D2P = push_sum_method(
    name="dyn-d2p",
    title="Dyn-D2P",
    paper=PAPER,
    summary="PrivSGP with a falling clipping bound and a growing budget a step",
    options=DynOptions,
    schedules=schedules,
    formula=PUBLISHED,
    default_clip=4.0,
)
