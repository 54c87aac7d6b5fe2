"""Dyn-D2P: PrivSGP with a falling clipping bound and a growing budget a step (Zhu, Huang, Wang, Ji
and Xu (Dyn-D2P)).

Algorithm 1 of *Dyn-D2P: Dynamic Differentially Private Decentralized Learning with Provable Utility
Guarantee*. The step is that of `privsgp`; what is new is the schedules.

| paper | here |
|---|---|
| C_k = C_0 rho_c^{-k/K} | `clip` (C_0), `clip_decay` (rho_c) |
| mu_k = mu_0 rho_mu^{k/K} | noise multiplier 1 / mu_k; `budget_growth` (rho_mu) |
| mu_0 | the noise scale, which the plan calibrates to each node's budget |
| sigma_k = C_k / mu_k | noise standard deviation at step k |

Privacy depends on mu_k alone: the clipping schedule cancels. The paper's variants keep one of the
two constant, or both. Their mechanism is that of PrivSGP; the claim is Dyn-D2P's, and without
schedules mu-bar = sqrt(log(J^2 mu_tot^2 / K + 1)).

Dyn[C]-D2P: Dyn-D2P with a falling clipping bound and a constant budget a step. It costs as much as
`const-d2p`.

Dyn[mu]-D2P: Dyn-D2P with a constant clipping bound and a growing budget a step. It costs as much as
`dyn-d2p` with the same rho_mu.

Const-D2P: Dyn-D2P with a constant clipping bound and a constant budget a step. The baseline; it
costs as much as `privsgp`.

Dyn-D2P, general form: PrivSGP with given sequences of clipping bounds and noise levels. It is
Algorithm 2:

| paper | here |
|---|---|
| C_k | `clip_schedule`, one number a step; without it `clip` at every step |
| sigma~_k | `noise_schedule`, one number a step, relative; without it 1 at every step |
| sigma~ | the scale, which the plan calibrates to each node's budget |
| sigma~ sigma~_k | noise standard deviation injected at step k |

The noise multiplier of step k is therefore proportional to sigma~_k / C_k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from tacit.algorithms.facets import PaperClaims
from tacit.algorithms.options import Idle, Schedules, Size
from tacit.algorithms.privsgp import PRIVSGP, PushSumOptions
from tacit.algorithms.promise import PromisedRun, constant_rate, promised
from tacit.errors import InputError
from tacit.privacy.published import DYN_D2P as PUBLISHED
from tacit.privacy.published import DYN_GENERAL as PUBLISHED_GENERAL
from tacit.privacy.published import FormulaCondition, total_mu
from tacit.privacy.published.dyn_d2p import dyn_bound, dyn_least_noise, dyn_noise, dyn_steps
from tacit.report.documents.plan import PlannedPromise

Growth = Annotated[float, Field(ge=1, le=1e38, allow_inf_nan=False)]


class DynClipOptions(PushSumOptions):
    """Options of Dyn[C]-D2P."""

    clip_decay: Growth = 2.0


class DynBudgetOptions(PushSumOptions):
    """Options of Dyn[mu]-D2P."""

    budget_growth: Growth = 2.0


class DynOptions(PushSumOptions):
    """Options of Dyn-D2P; with both factors at 1 it is Const-D2P."""

    clip_decay: Growth = 2.0
    budget_growth: Growth = 2.0


class GeneralOptions(PushSumOptions):
    """Options of the general form."""

    clip: Annotated[
        Size | None,
        Idle(
            lambda options: options.clip_schedule is not None,
            "is the bound of every step, and so is each number of clip_schedule: give one of them",
        ),
    ] = None
    clip_schedule: tuple[Size, ...] | None = None
    noise_schedule: tuple[Size, ...] | None = None


def schedules(options: PushSumOptions, clip: float | None, steps: int) -> Schedules:
    """C_k = C_0 rho_c^{-k/K}, and the noise multipliers 1 / mu_k over 1 / mu_0: rho_mu^{-k/K}.

    A factor that the options do not have is 1.
    """
    decay: float = getattr(options, "clip_decay", 1.0)
    growth: float = getattr(options, "budget_growth", 1.0)
    return Schedules(
        None if clip is None else tuple(clip * decay ** (-k / steps) for k in range(steps)),
        tuple(growth ** (-k / steps) for k in range(steps)),
    )


def general_schedules(options: GeneralOptions, clip: float | None, steps: int) -> Schedules:
    """The sequences as given.

    Raises:
        InputError: on `algorithm.clip_schedule` or `algorithm.noise_schedule`, without one number
            for each step.
    """
    for key in ("clip_schedule", "noise_schedule"):
        values = getattr(options, key)
        if values is not None and len(values) != steps:
            raise InputError(
                f"algorithm.{key}", f"{len(values)} numbers", f"needs one for each of {steps} steps"
            )
    clips = options.clip_schedule or (None if clip is None else (clip,) * steps)
    noise = options.noise_schedule or (1.0,) * steps
    if clips is None:
        return Schedules(None, noise)
    return Schedules(clips, tuple(level / c for level, c in zip(noise, clips, strict=True)))


PROMISED = ("smoothness", "initial_gap", "push_sum_constant", "push_sum_rate")
_TERMS = (
    ("2 (f(x-bar_0) - f*) / (gamma K)", "f(x-bar_0) - f*"),
    ("of the start's norm", "L, Psi and q"),
    ("of each node's gradient", "L, Psi, q and a bound C_k"),
    ("of their mean", "L and a bound C_k"),
    ("of the noise", "L, Psi and q"),
    ("T2, the bias of clipping", "gradients, and how many are clipped: no public fact bounds it"),
)


def promise(run: PromisedRun) -> PlannedPromise:
    """Theorem 1 (11) at this noise, without T2, and Corollary 1 (12) for nodes that are alike."""
    known, steps, figures = run.constants, None, {}
    if run.clip is not None:
        figures["T1, the factor of the noise"] = dyn_noise(run.clip, run.noise)
        least = dyn_noise(run.clip, dyn_least_noise(run.clip))
        figures["T1 at its least for these bounds, noise as sqrt(C_k)"] = least
    scale = math.nan  # J mu_tot
    if run.budget is not None:
        mu_total = total_mu(run.budget.epsilon, run.budget.delta)
        scale = run.budget.records * mu_total
        steps = dyn_steps(nodes=len(run.records), records=run.budget.records, mu_total=mu_total)
    values = dyn_bound(
        run.clip or (math.nan,) * run.steps,
        math.fsum(run.variances) / len(run.records),
        rate=run.rates[0],
        nodes=len(run.records),
        parameters=run.parameters,
        start_norm=run.start_norm,
        smoothness=known["smoothness"],
        start_gap=known["initial_gap"],
        push_sum_constant=known["push_sum_constant"],
        push_sum_rate=known["push_sum_rate"],
    )
    return promised(
        run,
        _TERMS,
        (*values, math.nan),
        source="Dyn-D2P's Theorem 1 and Corollary 1",
        quantity="mean squared gradient norm of the mean model",
        reads=PROMISED,
        best_steps=steps,
        order=None if steps is None else 1 / (math.sqrt(len(run.records)) * scale),
        figures=figures,
        conditions=_conditions(run, scale),
    )


def _conditions(run: PromisedRun, scale: float) -> Iterator[FormulaCondition]:
    """What Theorem 1 and Corollary 1 need; `scale` is J mu_tot."""
    batch, root = run.expected_batch, math.sqrt(len(run.records))
    yield FormulaCondition(f"one record a step (expected here {batch:.4g})", batch <= 1)
    if not math.isnan(scale):
        yield FormulaCondition(f"J mu_tot = {scale:.4g} above sqrt(n) = {root:.4g}", scale > root)
        yield constant_rate(run, 1 / (root * scale), "1 / (sqrt(n) J mu_tot)")
    momentum = run.options.momentum
    yield FormulaCondition(f"no momentum (here {momentum:g})", momentum == 0)


DYN_D2P = replace(
    PRIVSGP,
    name="dyn-d2p",
    title="Dyn-D2P",
    documentation=__doc__,
    options=DynOptions,
    schedules=schedules,
    steps_along="",
    default_clip=4.0,
    claims=PaperClaims(formula=PUBLISHED, promise_constants=PROMISED, promise=promise),
)

DYN_C = replace(DYN_D2P, name="dyn-c", title="Dyn[C]-D2P", options=DynClipOptions)

DYN_MU = replace(
    DYN_D2P, name="dyn-mu", title="Dyn[mu]-D2P", options=DynBudgetOptions, default_clip=2.0
)

CONST_D2P = replace(
    DYN_D2P, name="const-d2p", title="Const-D2P", options=PushSumOptions, default_clip=2.0
)

DYN_GENERAL = replace(
    PRIVSGP,
    name="dyn-general",
    title="Dyn-D2P, general form",
    documentation=__doc__,
    options=GeneralOptions,
    schedules=general_schedules,
    steps_along="",
    claims=PaperClaims(formula=PUBLISHED_GENERAL, promise_constants=PROMISED, promise=promise),
)
