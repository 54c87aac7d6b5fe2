"""DO-ADP (Huo, Liu, Ding, Johansson and Shi): noise and theorem as printed.

The theorem: sigma^2 >= 160 k p^2 T log(1.25 / delta_0) G^2 / (q^2 d eps^2) gives (eps, delta)
"for some constant delta": delta = 1 - (1 - delta')(1 - p delta_0)^T, delta' = sqrt(sum_t eps_t'^2),
which is up to eps / sqrt(5) at this noise.

What an agent sends is a function of its noised gradients, so its Top_k compression is free of
charge and without credit; who is active is visible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.errors import InputError
from tacit.privacy.published.formula import (
    FormulaCondition,
    PublishedFormula,
    positive,
)


@dataclass(frozen=True)
class DoAdpRun:
    """What DO-ADP's formula reads of one agent.

    Args:
        records: q, of which one is drawn a step.
        steps: T, active or not.
        noise_over_bound: sigma / G.
        activation: p, chance of being active at a step.
        kept: k / d, share of the coordinates that is sent.
        failure: delta_0.

    Raises:
        InputError: a number is out of range.
    """

    records: int
    steps: int
    noise_over_bound: float
    activation: float = 1.0
    kept: float = 1.0
    failure: float = 1e-5

    def __post_init__(self) -> None:
        positive(records=self.records, steps=self.steps, noise_over_bound=self.noise_over_bound)
        for name in ("activation", "kept", "failure"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise InputError(name, value, "must lie in (0, 1]")


def do_adp_noise(
    *,
    records: int,
    steps: int,
    epsilon: float,
    activation: float = 1.0,
    kept: float = 1.0,
    failure: float = 1e-5,
) -> float:
    """The theorem's sigma / G = sqrt(160 (k/d) p^2 T log(1.25 / delta_0)) / (q eps).

    Symbols are those of `DoAdpRun`; epsilon is that of the claim.
    """
    positive(records=records, steps=steps, epsilon=epsilon, activation=activation, kept=kept)
    variance = 160 * kept * activation**2 * steps * math.log(1.25 / failure)
    return math.sqrt(variance) / (records * epsilon)


def do_adp_epsilon(run: DoAdpRun) -> float:
    """The noise formula solved for eps."""
    unit = do_adp_noise(
        records=run.records,
        steps=run.steps,
        epsilon=1.0,
        activation=run.activation,
        kept=run.kept,
        failure=run.failure,
    )
    return unit / run.noise_over_bound


def do_adp_theorem_delta(run: DoAdpRun) -> float:
    """The delta at which the theorem grants its epsilon: 1 - (1 - delta')(1 - p delta_0)^T.

    delta' = eps / sqrt(5), what sqrt(sum_t eps_t'^2) comes to at the printed noise; at most 1.
    """
    prime = min(1.0, do_adp_epsilon(run) / math.sqrt(5))
    kept = run.steps * math.log1p(-run.activation * run.failure) if run.failure < 1 else -math.inf
    return 1 - (1 - prime) * math.exp(kept)


def _conditions(run: DoAdpRun) -> tuple[FormulaCondition, ...]:
    epsilon = do_adp_epsilon(run)
    least = (run.records * epsilon / (2 * run.activation)) ** 2
    delta = do_adp_theorem_delta(run)
    return (
        FormulaCondition(f"eps <= 1 (here {epsilon:.3g})", epsilon <= 1 + 1e-12),
        FormulaCondition(f"1/2 <= p <= 1 (here {run.activation:g})", run.activation >= 0.5),
        FormulaCondition(
            f"T >= q^2 eps^2 / (4 p^2) = {least:.3g} (here {run.steps})", run.steps >= least
        ),
        FormulaCondition(
            f"the theorem's own delta at this epsilon is {delta:.3g}: small where privacy is meant",
            delta * run.records < 1,
        ),
    )


DO_ADP = PublishedFormula[DoAdpRun](
    statement="eps = sqrt(160 (k/d) p^2 T log(1.25/delta_0)) G / (q sigma)",
    source="DO-ADP, privacy theorem",
    reading="one of q records a step, its gradient of norm at most G",
    epsilon=do_adp_epsilon,
    conditions=_conditions,
)
