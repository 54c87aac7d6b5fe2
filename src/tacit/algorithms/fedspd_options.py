"""FedSPD-DP: its options, and the step parameter gamma_i^t that they set (symbols: `fedspd_dp`)."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeVar

from pydantic import field_validator
from torch import Tensor

from tacit.algorithms.definition import Size, step_size
from tacit.algorithms.federated import FederatedOptions, LocalSteps, RoundSampling
from tacit.algorithms.regularisers import Regularisation, RegulariserName

__all__ = ["FedspdOptions", "inverse_step"]

Number = TypeVar("Number", float, Tensor)


class FedspdOptions(FederatedOptions):
    """Options of FedSPD-DP; `learning_rate` sets gamma = 1 / learning rate without `inverse_step`.

    `smoothness` is that of one record's loss. It goes with a public bound of the inputs' norm,
    which is enforced: see `fedspd_privacy.input_bound`.
    """

    penalty: Size = 20.0
    inverse_step: float | Literal["paper"] | None = None
    local_steps: LocalSteps = 1
    sampling: RoundSampling = "disjoint"
    state: Literal["public", "private"] = "public"
    regulariser: RegulariserName = "none"
    regularisation: Regularisation = 0.01
    smoothness: Size | None = None
    diameter: Size = 1.0
    dual_diameter: Size = 1.0
    deviation: Size = 1.0

    @field_validator("inverse_step", mode="before")
    @classmethod
    def _inverse_step(cls, value: Any) -> Any:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value in (None, "paper") or (number and 0 < value < math.inf):
            return value
        raise ValueError("must be a positive number, or 'paper' for the schedule that it prints")


def inverse_step(
    options: FedspdOptions,
    k: int,
    steps: int,
    *,
    noise_std: Number,
    batch: Number,
    coordinates: int,
    clients: int,
) -> Number:
    """gamma_i^t of round t = k + 1 of K = `steps`.

    The paper's schedule is (2 sqrt(Q p C) / d_X) sqrt(t), p = K / N, with

        C = G^2 + 2 d_lambda^2 + 2 phi^2 / b + 16 rho d G^2 ln(1.25/delta) / ((Q-1)^2 eps^2);

    its last term, eps being that of a round, is 2 rho d (s / (b Q))^2 for the published noise, s
    its standard deviation in the sum over a mini-batch: here s is that of the noise which is added.

    Args:
        options: of the algorithm.
        k: the round.
        steps: of the whole run.
        noise_std: s, a number or `[nodes, 1]`.
        batch: b, likewise.
        coordinates: d.
        clients: N.
    """
    if options.inverse_step is None:
        return 0 * batch + 1 / step_size(options, k, steps)
    if options.inverse_step != "paper":
        return 0 * batch + options.inverse_step
    share = (options.clients_per_round or clients) / clients
    bound = 1.0 if options.clip is None else options.clip
    drift = bound**2 + 2 * options.dual_diameter**2 + 2 * options.deviation**2 / batch
    noise = 2 * options.penalty * coordinates * (noise_std / (batch * options.local_steps)) ** 2
    root = (options.local_steps * share * (drift + noise)) ** 0.5
    made: Number = 2 / options.diameter * math.sqrt(k + 1) * root
    return made
