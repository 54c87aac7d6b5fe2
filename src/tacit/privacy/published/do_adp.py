"""DO-ADP (Huo, Liu, Ding, Johansson and Shi): noise, theorem and accuracy as printed.

The theorem: sigma^2 >= 160 k p^2 T log(1.25 / delta_0) G^2 / (q^2 d eps^2) gives (eps, delta)
"for some constant delta": delta = 1 - (1 - delta')(1 - p delta_0)^T, delta' = sqrt(sum_t eps_t'^2),
which is up to eps / sqrt(5) at this noise.

What an agent sends is a function of its noised gradients, so its Top_k compression is free of
charge and without credit; who is active is visible.

*Accuracy*: Theorem 2, Lemmas 2 and 3, of smooth f_i, for alpha (`rate`) below (1 - beta)^2 / (2 L);
`gap` is rho = 1 - |lambda_2(W)|, `distance` phi = norm(I - W)_2, and `share` p k / d.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.errors import InputError
from tacit.privacy.published.formula import FormulaCondition, PublishedFormula, positive


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


def do_adp_contraction(gap: float, share: float) -> float:
    """The constant c = rho^2 p k / (82 d), of rho and p k / d."""
    return gap**2 * share / 82


def do_adp_consensus_step(gap: float, distance: float, share: float) -> float:
    """Gamma of Theorem 1: rho s / (16 rho + rho^2 + 4 phi^2 + 2 rho phi^2 - 8 rho s), s = p k / d.

    It is below 1 / 8.
    """
    whole = 16 * gap + gap**2 + 4 * distance**2 + 2 * gap * distance**2
    return gap * share / (whole - 8 * gap * share)


@dataclass(frozen=True)
class DoAdpTask:
    """What DO-ADP's bounds read of a run, but for its step size and number of steps.

    G (`gradient_bound`): every gradient has coordinates of at most G / sqrt(d), so that varsigma^2
    (`variance`, of a stochastic gradient) is at most G^2. sigma^2 (`noise_variance`) is that in a
    coordinate, c the `contraction`, beta the `momentum`, p the `activation`.
    """

    nodes: int
    parameters: int
    smoothness: float
    start_gap: float
    gradient_bound: float
    variance: float
    noise_variance: float
    contraction: float
    momentum: float = 0.0
    activation: float = 1.0

    @property
    def energy(self) -> float:
        """G^2 + sigma^2 d, which bounds the mean square of a noised gradient."""
        return self.gradient_bound**2 + self.noise_variance * self.parameters


def do_adp_momentum(task: DoAdpTask) -> float:
    """Lemma 2: E norm(m)^2 <= p (G^2 + sigma^2 d) / (1 - beta)^2."""
    return task.activation * task.energy / (1 - task.momentum) ** 2


def do_adp_disagreement(task: DoAdpTask, rate: float) -> float:
    """Lemma 3: sum_i E norm(x-bar - x_i)^2, at most 8 alpha^2 n / c^2 times Lemma 2's bound."""
    return 8 * (rate / task.contraction) ** 2 * task.nodes * do_adp_momentum(task)


def do_adp_bound(task: DoAdpTask, rate: float, steps: int) -> tuple[float, float, float]:
    """Theorem 2: a bound of (1/T) sum_t E norm(grad f(x-bar_t))^2, in its three terms.

    2 (1 - beta) (f(x_0) - f*) / (alpha p T);
    alpha L (beta + 2 + 4 beta^2 p) (G^2 + varsigma^2 + sigma^2 d) / (n (1 - beta)^3);
    8 alpha^2 p (G^2 + sigma^2 d) L^2 / ((1 - beta)^2 c^2), which is L^2 / n times Lemma 3.
    Equation 10 is this at alpha = sqrt(n / T), for T >= 4 n L^2 / (1 - beta)^4.
    """
    positive(rate=rate, steps=steps)
    beta, p = task.momentum, task.activation
    squares = (beta + 2 + 4 * beta**2 * p) * (task.energy + task.variance)
    return (
        2 * (1 - beta) * task.start_gap / (rate * p * steps),
        rate * task.smoothness * squares / (task.nodes * (1 - beta) ** 3),
        task.smoothness**2 / task.nodes * do_adp_disagreement(task, rate),
    )


def do_adp_order(task: DoAdpTask, steps: int) -> float:
    """Equation 9: the order of Theorem 2's bound at the best alpha, without its constants.

    sqrt((1 + p) (1 + sigma^2 d) / (n p T)) + (sqrt(p (1 + sigma^2 d)) / (c p T))^(2/3) + 1 / (p T).
    """
    positive(steps=steps)
    p, noise = task.activation, 1 + task.noise_variance * task.parameters
    apart = math.sqrt(p * noise) / (task.contraction * p * steps)
    together = math.sqrt((1 + p) * noise / (task.nodes * p * steps))
    return together + math.pow(apart, 2 / 3) + 1 / (p * steps)
