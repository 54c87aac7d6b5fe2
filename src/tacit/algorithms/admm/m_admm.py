"""DP-MADMM by gradients: ADMM on a graph whose penalty rises, and the noise in gradients with it,
apart from the dual step (X. Zhang, Khalili and Liu, ICML 2018, by gradient perturbation).

*Improving the Privacy and Accuracy of ADMM-Based Distributed Algorithms*.

| paper | here |
|---|---|
| f_i(t), lambda_i(t) | `state.x`, `state.dual`, `[nodes, d]` |
| eta_i(t+1), penalty of an iteration | eta_k = `penalty` * `penalty_growth`^k, of all nodes |
| theta, step of the dual variable | `dual_step`; by default `penalty` |
| epsilon_i(t), noise in the penalty term | noise of the gradient over 2 eta_k |
| 1 / alpha_i(t), size of that noise | proportional to `noise_decay`^k |
| O, empirical loss and regulariser, minimised | its linearisation at f_i(t), with `learning_rate` |

    f_i(t+1) = f_i(t) - (g~ + dR + 2 lambda_i + eta_k sum_j w_ij (f_i - f_j)) / (1/gamma + 2 eta_k)
    lambda_i(t+1) = lambda_i(t) + (theta / 2) sum_j w_ij (f_i(t+1) - f_j(t+1)).

*Noise that is correlated with the penalty.* The paper adds epsilon_i to the point
(f_i + f_j) / 2 that the penalty eta_k pulls towards, which is the term -2 eta_k <epsilon_i, f> of
the objective: noise of 2 eta_k epsilon_i in the gradient. With epsilon_i of a constant size an
iteration costs the less privacy the higher its penalty. So the multiplier of step k is proportional
to (`penalty_growth` `noise_decay`)^k.

*What is another here* is as in `ddp_admm`: clipped gradients in place of an exact minimiser,
Gaussian noise in place of that of density exp(-alpha norm), and the penalty of a step is the same
at all nodes.

Mechanism: as `ddp_admm`, Gaussian on every record, or its sampled kinds, with the multipliers of
this schedule. Relation: the plan's; trust model: `all-messages`; the bound is tight. The paper's
Theorem 4.1 is of another mechanism: no claim. Proof: `docs/proofs/graph-admm.md`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from tacit.algorithms.admm.ddp_admm import DDP_ADMM
from tacit.algorithms.admm.graph import LARGEST, GraphAdmmOptions, weights_of
from tacit.algorithms.options import Schedules, Share, Size
from tacit.errors import InputError


class ModifiedAdmmOptions(GraphAdmmOptions):
    """Options of DP-MADMM."""

    penalty_growth: Annotated[float, Field(ge=1, le=1e38, allow_inf_nan=False)] = 1.01
    noise_decay: Share = 1.0
    dual_step: Size | None = None


def schedules(options: ModifiedAdmmOptions, clip: float | None, steps: int) -> Schedules:
    """A constant clipping bound; multipliers proportional to eta_k `noise_decay`^k.

    Raises:
        InputError: on `algorithm.penalty_growth` or `algorithm.noise_decay`, which leave the range
            of float32 within these steps.
    """
    weights_of(options, steps - 1)
    if (steps - 1) * math.log(options.noise_decay) < -LARGEST:
        raise InputError(
            "algorithm.noise_decay",
            options.noise_decay,
            f"the noise of step {steps - 1} would be below 1e-38 of that of step 0: choose a "
            "factor nearer to 1",
        )
    return Schedules(
        None if clip is None else (clip,) * steps,
        tuple(options.penalty_growth**k * options.noise_decay**k for k in range(steps)),
    )


M_ADMM = replace(
    DDP_ADMM,
    name="dp-madmm-gradient",
    title="DP-MADMM by gradients",
    documentation=__doc__,
    options=ModifiedAdmmOptions,
    schedules=schedules,
)
