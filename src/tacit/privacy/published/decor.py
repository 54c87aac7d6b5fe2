"""DECOR (Allouah, Koloskova, El Firdoussi, Jaggi and Guerraoui, ICML 2024): its accountant, as
published with the paper.

DECOR adds noise that cancels between neighbours. With Sigma the covariance of the noise of all
nodes in a batch mean, a step of node i is a Gaussian mechanism with noise multiplier
z = B / (C sqrt([Sigma^-1]_ii)): the same theorem as here, for nobody who colludes. One step costs
(alpha, alpha rho) in Renyi divergence, with rho = 2 / z^2 (one record replaced). What follows from
rho differs between the two accountants of the paper's code:

* a user's whole data (a9a): T steps are composed and converted, as they should be;
* one record (MNIST): rho is amplified by the bound of Wang, Balle and Kasiviswanathan (*Subsampled
  Renyi differential privacy and analytical moments accountant*, Thm. 9), and the least value over
  alpha is called epsilon. Neither T nor delta enters: no step but the first is counted, and the
  conversion's log(1 / delta) / (alpha - 1) is missing.

The amplification bound is for batches without replacement; the code passes through shuffled
records, which is neither.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, logsumexp

from tacit.errors import InputError
from tacit.privacy.published.formula import FormulaCondition, PublishedFormula, positive

_ORDERS = range(2, 101)  # of the Renyi divergence, that the accountant tries


@dataclass(frozen=True)
class DecorRun:
    """What DECOR's accountant reads of its worst node.

    Args:
        noise_multiplier: z, of the noise that nobody else can subtract, over the clipping bound of
            a record's gradient, in the sum over the batch (for a user: of its whole gradient).
        steps: T.
        batch: B, records a step; as many as there are means a user's whole data.
        records: J, of the node.
        delta: of the claim.

    Raises:
        InputError: a number is out of range.
    """

    noise_multiplier: float
    steps: int
    batch: int = 1
    records: int = 1
    delta: float = 1e-5

    def __post_init__(self) -> None:
        positive(noise_multiplier=self.noise_multiplier, steps=self.steps, batch=self.batch)
        if self.records < self.batch:
            raise InputError("records", self.records, f"must be at least the batch ({self.batch})")
        if not 0 < self.delta < 1:
            raise InputError("delta", self.delta, "must lie strictly between 0 and 1")

    @property
    def rate(self) -> float:
        """B / J, the share of the records that a step takes."""
        return self.batch / self.records

    @property
    def slope(self) -> float:
        """rho: one step without subsampling costs alpha rho at order alpha."""
        return 2 / self.noise_multiplier**2


def decor_record_epsilon(run: DecorRun) -> float:
    """What the accountant prints for one record: the least amplified divergence of one step.

    Its minimum over real orders lies at a whole one: between two of them the bound that it
    interpolates is monotone.
    """
    return min(_amplified(run, order) for order in _ORDERS)


def _amplified(run: DecorRun, order: int) -> float:
    """Theorem 9 of Wang, Balle and Kasiviswanathan at a whole order, in logarithms."""
    rho, log_rate = run.slope, math.log(run.rate)
    second = 2 * rho
    excess = second + math.log(-math.expm1(-second))  # log(exp(second) - 1)
    terms = [0.0, 2 * log_rate + math.log(math.comb(order, 2))]
    terms[1] += min(math.log(4) + excess, math.log(2) + second)
    if order > 2:
        j = np.arange(3, order + 1)
        chosen = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
        terms.extend(math.log(2) + j * log_rate + chosen + (j - 1) * j * rho)
    return float(logsumexp(terms)) / (order - 1)


def decor_user_epsilon(run: DecorRun) -> float:
    """What the accountant prints for a user: T rho + 2 sqrt(T rho log(1 / delta))."""
    total = run.steps * run.slope
    return total + 2 * math.sqrt(total * math.log(1 / run.delta))


def decor_noise(
    formula: PublishedFormula[DecorRun],
    epsilon: float,
    *,
    steps: int,
    batch: int = 1,
    records: int = 1,
    delta: float = 1e-5,
) -> float:
    """The noise multiplier at which a formula of DECOR prints an epsilon.

    The formula is `DECOR` (one record) or `DECOR_USER` (a user's whole data). Epsilon, of the
    claim, lies between 1e-6 and 1e3; other symbols are those of `DecorRun`.

    Raises:
        InputError: a number is out of range.
    """
    if not 1e-6 <= epsilon <= 1e3:
        raise InputError("epsilon", epsilon, "must lie between 1e-6 and 1000")
    from scipy.optimize import brentq  # here, since it is slow and few runs need it

    def excess(log_multiplier: float) -> float:
        run = DecorRun(math.exp(log_multiplier), steps, batch, records, delta)
        return math.log(formula.epsilon(run) / epsilon)

    return math.exp(float(brentq(excess, math.log(1e-3), math.log(1e12), xtol=1e-13)))


def _record_conditions(run: DecorRun) -> tuple[FormulaCondition, ...]:
    return (
        FormulaCondition(
            f"one step: T does not enter the formula (here {run.steps})", run.steps == 1
        ),
        FormulaCondition(
            "a Renyi divergence is converted to epsilon at delta, which adds log(1/delta) / "
            "(alpha - 1); here it is not",
            False,
        ),
        FormulaCondition("nobody who shares a secret with the node colludes", True),
    )


DECOR = PublishedFormula[DecorRun](
    statement="eps = min over alpha of the amplified Renyi divergence of one step",
    source="DECOR, its example-level accountant",
    reading="noise of the worst node after whitening, one record replaced, batches of B of J",
    epsilon=decor_record_epsilon,
    conditions=_record_conditions,
)
DECOR_USER = PublishedFormula[DecorRun](
    statement="eps = T rho + 2 sqrt(T rho log(1/delta)), rho = 2 C^2 / sigma^2",
    source="DECOR, its user-level accountant",
    reading="noise of the worst node after whitening, all data of a user replaced",
    epsilon=decor_user_epsilon,
    conditions=lambda run: (
        FormulaCondition("nobody who shares a secret with the user colludes", True),
    ),
)
