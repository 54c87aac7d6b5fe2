"""The experiments of FedSPD-DP on Adult, with what is certified of it as printed and repaired.

N = 100, T = 100, b = 10, Q = 5, rho = 20, delta = 1e-4, G = 1; m = 325 records a client; d = 162.
The totals that figures show only are not repeated. Where K < N a client expects p T active rounds:
the bounds are for that many, evenly spread, which everyone sees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tacit.privacy.mechanisms.composed import (
    ADD_OR_REMOVE_ONE,
    REPLACE_ONE,
    ClientSampling,
    FixedBatchGaussian,
    Gaussian,
)
from tacit.privacy.published.fedspd import FEDSPD_DP, FedspdRun, fedspd_round_epsilon
from tacit.privacy.published.fedspd_state import (
    even_rounds,
    fedspd_lower,
    fedspd_upper,
    repaired_multiplier,
)
from tacit.privacy.published.setting import PaperSetting, certified_bounds

__all__ = ["fedspd_settings"]

_PAPER = "FedSPD-DP"
_RECORDS, _BATCH, _LOCAL, _CLIENTS, _ROUNDS = 325, 10, 5, 100, 100
_DELTA, _PENALTY, _DIMENSION = 1e-4, 20.0, 162


def fedspd_settings() -> Iterator[PaperSetting]:
    """FedSPD-DP at total budgets and at budgets a round, then its baselines."""
    for total, chosen in ((1.0, 20), (1.0, 100), (3.0, 10)):
        round_epsilon = fedspd_round_epsilon(
            total=total,
            records=_RECORDS,
            batch=_BATCH,
            local_steps=_LOCAL,
            participation=chosen / _CLIENTS,
            rounds=_ROUNDS,
        )
        yield from _fedspd(
            f"Adult, K = {chosen} of 100, total eps = {total:g}", chosen, round_epsilon
        )
    for round_epsilon, chosen in ((0.1, 20), (0.1, 100), (1.0, 20)):
        name = f"Adult, K = {chosen} of 100, eps = {round_epsilon:g} a round"
        yield from _fedspd(name, chosen, round_epsilon)
    yield from _baselines()


def _fedspd(experiment: str, chosen: int, round_epsilon: float) -> Iterator[PaperSetting]:
    run = FedspdRun(
        records=_RECORDS,
        batch=_BATCH,
        local_steps=_LOCAL,
        clients=_CLIENTS,
        chosen=chosen,
        rounds=_ROUNDS,
        round_epsilon=round_epsilon,
        delta=_DELTA,
        penalty=_PENALTY,
        dimension=_DIMENSION,
    )
    common = PaperSetting(
        paper=_PAPER,
        algorithm="FedSPD-DP",
        experiment=experiment,
        reading="",
        claimed=FEDSPD_DP.epsilon(run),
        delta=_DELTA,
        relation=REPLACE_ONE,
        conditions=FEDSPD_DP.conditions(run),
    )
    disjoint = "one record replaced, mini-batches of a round disjoint"
    printed = f"as printed, private state; {disjoint}"
    for bound, drawn_norm, kindest in (
        ("a record's", 2 / _BATCH, True),
        ("a mini-batch's", 2.0, False),
    ):
        yield replace(
            common,
            reading=f"{printed}; G bounds {bound} gradient; upper bound if gamma >= L / 2",
            kindest=kindest,
            bounds=partial(_as_printed, run, drawn_norm),
        )
    multiplier = repaired_multiplier(run)
    repaired = FixedBatchGaussian(_BATCH * _LOCAL, _RECORDS, multiplier, len(even_rounds(run)))
    yield replace(
        common,
        algorithm="FedSPD-DP, repaired",
        reading=f"public state, the published noise; {disjoint}; gamma >= L / 2",
        kindest=False,
        noise_multiplier=(multiplier, multiplier),
        mechanism=repaired,
        bounds=certified_bounds(repaired, bound_is_tight=False),
        conditions=(),
    )


def _as_printed(
    run: FedspdRun, drawn_norm: float, delta: float
) -> tuple[float | None, float | None]:
    active = even_rounds(run)
    lower = fedspd_lower(run, active, delta, drawn_norm=drawn_norm)
    return lower or None, fedspd_upper(run, active, delta, drawn_norm=drawn_norm)


def _baselines() -> Iterator[PaperSetting]:
    """What is compared at (eps, 1e-4) a round: the total over T rounds is claimed by nobody."""
    for round_epsilon in (0.1, 1.0):
        classical = math.sqrt(2 * math.log(1.25 / _DELTA)) / round_epsilon
        every = Gaussian(classical, _ROUNDS)
        some = ClientSampling(Gaussian(classical, 1), 0.2, _ROUNDS)
        at = f"Adult, eps = {round_epsilon:g} a round"
        gaussian = "if each round is the classical Gaussian mechanism at its true sensitivity"
        for algorithm, where, mechanism in (
            ("DP-SGD", f"{at}, the same clients each round", every),
            ("DP-FedAvg", f"{at}, K = 20 of 100", some),
        ):
            yield PaperSetting(
                paper=_PAPER,
                algorithm=algorithm,
                experiment=where,
                reading=f"{gaussian}, over {_ROUNDS} rounds",
                delta=_DELTA,
                noise_multiplier=(classical, classical),
                relation=ADD_OR_REMOVE_ONE,
                mechanism=mechanism,
                bounds=certified_bounds(mechanism, bound_is_tight=False),
            )
        yield PaperSetting(
            paper=_PAPER,
            algorithm="DP-ADMM",
            experiment=f"{at}, the same clients each round",
            reading="none",
            missing="its step sizes and the schedule of its noise variance are not printed",
        )
