"""FedSPD-DP (Li, Wang, Chang and Chi): sensitivity, noise and total privacy loss, as printed.

Symbols: Q local steps on mini-batches of b of a client's m records; N clients, K chosen a round,
p = K / N; T rounds; rho, penalty; gamma_t, step parameter; G, gradient bound. What its messages
really reveal is in `fedspd_state`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from tacit.errors import InputError
from tacit.privacy.published.formula import FormulaCondition, PublishedFormula, positive

__all__ = [
    "FEDSPD_DP",
    "SLACK",
    "Drawing",
    "FedspdRun",
    "fedspd_round_epsilon",
    "fedspd_sensitivity",
    "fedspd_step_parameter",
    "fedspd_total_epsilon",
]

SLACK = 3.04
"""c0, as printed."""

Drawing = Literal["without-replacement", "with-replacement"]
State = Literal["private", "public"]
_WORDS = ("drawing", "state")


def _without(records: int, drawn: int) -> float:
    return drawn / records


def _with(records: int, drawn: int) -> float:
    return -math.expm1(drawn * math.log1p(-1 / records)) if records > 1 else 1.0


RATES: Mapping[str, Callable[[int, int], float]] = MappingProxyType(
    {"without-replacement": _without, "with-replacement": _with}
)


@dataclass(frozen=True)
class FedspdRun:
    """What FedSPD-DP's formulas read of one client.

    Args:
        records: m_i.
        batch: b.
        local_steps: Q.
        clients: N.
        chosen: K, clients a round.
        rounds: T.
        round_epsilon: eps of each round, which sets its noise.
        delta: of a round and of the total.
        penalty: rho.
        dimension: d.
        drawing: how a round's mini-batches are drawn.
        state: what a client starts a round from: its own last iterate, `private` and never noised
            (as printed), or what the server sent it, `public`.
        gradient_bound: G.
        diameter: d_X.
        dual_diameter: d_lambda.
        deviation: phi.

    Raises:
        InputError: a number is out of range.
    """

    records: int
    batch: int
    local_steps: int
    clients: int
    chosen: int
    rounds: int
    round_epsilon: float
    delta: float
    penalty: float
    dimension: int
    drawing: Drawing = "without-replacement"
    state: State = "private"
    gradient_bound: float = 1.0
    diameter: float = 1.0
    dual_diameter: float = 1.0
    deviation: float = 1.0

    def __post_init__(self) -> None:
        positive(
            **{name: value for name, value in vars(self).items() if name not in _WORDS},
            room=1 - self.delta,
        )
        if self.drawing not in RATES:
            raise InputError("drawing", self.drawing, f"must be one of {', '.join(RATES)}")
        distinct = self.drawing == "without-replacement"
        if distinct and self.local_steps * self.batch > self.records:
            most = (
                f"with {self.local_steps} local steps must be at most {self.records}, the records"
            )
            raise InputError("batch", self.batch, most)
        if self.chosen > self.clients:
            raise InputError("chosen", self.chosen, f"must be at most {self.clients}, the clients")

    @property
    def participation(self) -> float:
        """Chance of being chosen, p = K / N."""
        return self.chosen / self.clients

    @property
    def rate(self) -> float:
        """q_i, chance that a round uses a given record."""
        return RATES[self.drawing](self.records, self.batch * self.local_steps)

    @property
    def noise_multiplier(self) -> float:
        """sigma_{i,t} over the published sensitivity: sqrt(2 ln(1.25 / delta)) / eps."""
        return math.sqrt(2 * math.log(1.25 / self.delta)) / self.round_epsilon


def fedspd_sensitivity(run: FedspdRun, step_parameter: float) -> float:
    """The published sensitivity of y: 4 Q G / ((Q-1)(rho + gamma)); without Q / (Q-1) at Q = 1."""
    averaging = run.local_steps / (run.local_steps - 1) if run.local_steps > 1 else 1.0
    return 4 * averaging * run.gradient_bound / (run.penalty + step_parameter)


def fedspd_step_parameter(run: FedspdRun, round_number: int) -> float:
    """gamma_t = (2 sqrt(Q p C(Q, eps)) / d_X) sqrt(t), t from 1, as printed.

    C = G^2 + 2 d_lambda^2 + 2 phi^2 / b + 16 rho d G^2 ln(1.25/delta) / ((Q-1)^2 eps^2), without
    (Q-1)^2 at Q = 1.
    """
    noise = 16 * run.penalty * run.dimension * run.gradient_bound**2
    noise *= math.log(1.25 / run.delta) / run.round_epsilon**2
    noise /= max(run.local_steps - 1, 1) ** 2
    drift = run.gradient_bound**2 + 2 * run.dual_diameter**2 + 2 * run.deviation**2 / run.batch
    root = math.sqrt(run.local_steps * run.participation * (drift + noise))
    return 2 * root / run.diameter * math.sqrt(round_number)


def fedspd_total_epsilon(run: FedspdRun) -> float:
    """eps-bar = c0 q_i eps sqrt(p_i T / (1 - q_i)), as printed; infinity at q_i = 1."""
    if run.rate >= 1:
        return math.inf
    visits = run.participation * run.rounds / (1 - run.rate)
    return SLACK * run.rate * run.round_epsilon * math.sqrt(visits)


def fedspd_round_epsilon(
    *,
    total: float,
    records: int,
    batch: int,
    local_steps: int,
    participation: float,
    rounds: int,
    drawing: Drawing = "without-replacement",
) -> float:
    """What a total budget gives each round: eps-bar sqrt(1 - q) / (c0 q sqrt(p T))."""
    positive(total=total, participation=participation, rounds=rounds)
    rate = RATES[drawing](records, batch * local_steps)
    return total * math.sqrt(1 - rate) / (SLACK * rate * math.sqrt(participation * rounds))


def _conditions(run: FedspdRun) -> tuple[FormulaCondition, ...]:
    root = math.sqrt(fedspd_step_parameter(run, run.rounds))
    first = math.sqrt(fedspd_step_parameter(run, 1))
    return (
        FormulaCondition(
            f"Theorem 2 needs rho >= sqrt(gamma_t): {run.penalty:g} against {first:.3g} in round 1 "
            f"and {root:.3g} in round {run.rounds}",
            run.penalty >= root,
        ),
        FormulaCondition(
            "the Gaussian mechanism's noise needs an epsilon of at most 1 a round "
            f"(here {run.round_epsilon:.3g})",
            run.round_epsilon <= 1,
        ),
        FormulaCondition(
            "its sensitivity starts each round from equal state, which a private state is not",
            run.state == "public",
        ),
    )


FEDSPD_DP = PublishedFormula[FedspdRun](
    statement="eps-bar = 3.04 q_i eps sqrt(p_i T / (1 - q_i)), eps of each round",
    source="FedSPD-DP, total privacy loss",
    reading="G bounds every record's gradient; activity counts in expectation, as printed",
    epsilon=fedspd_total_epsilon,
    conditions=_conditions,
)
