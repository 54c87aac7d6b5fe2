"""PrivSGP, PrivSGP-VR and the Dyn-D2P family: noise and composition as printed, and experiments.

*PrivSGP and PrivSGP-VR* (Zhu, Huang, Wang and Xu, IJCAI 2024), Theorem 2. Both are
claimed to need the same noise; what they release differs, and with it what is certified. DP2-SGD
and A(DP)2SGD run at PrivSGP's noise and claim nothing of their own.

*Dyn-D2P and its variants* (Zhu, Huang, Wang, Ji and Xu). Symbols: C_k, clipping bound; sigma_k,
noise standard deviation; mu_k = C_k / sigma_k; p = 1 / J; mu_tot, the Gaussian-DP parameter of
(eps, delta). The clipping schedule cancels: Dyn[C] claims what Const-D2P does, Dyn-D2P what Dyn[mu]
does.

*What the papers leave open* is said in each row. For PrivSGP(-VR): c2 (1 on CIFAR-10 and 2 on MNIST
here; K* = 3120 would imply 0.37, which is less noise). For Dyn-D2P: K (1000 here, and 10,000 on
Fashion-MNIST) and the growth that was kept (rho_mu = 10 here).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.special import logsumexp

from tacit.errors import InputError
from tacit.privacy.accounting.gaussian import Array, gaussian_delta, gaussian_epsilon
from tacit.privacy.published.formula import (
    ClaimedRun,
    Formula,
    FormulaCondition,
    PaperSetting,
    Reading,
    one_record,
    one_record_readings,
    positive,
    private_table_readings,
    schedule_run,
)


def privsgp_noise(
    *, records: int, steps: float, epsilon: float, delta: float, constant: float = 1.0
) -> float:
    """Theorem 2's sigma / G = 3 c2 sqrt(K log(1 / delta)) / (J eps), as printed.

    Raises:
        InputError: a number is not positive, or delta lies outside (0, 1).
    """
    positive(records=records, steps=steps, epsilon=epsilon, constant=constant)
    if not 0 < delta < 1:
        raise InputError("delta", delta, "must lie strictly between 0 and 1")
    return 3 * constant * math.sqrt(steps * math.log(1 / delta)) / (records * epsilon)


def privsgp_epsilon(run: ClaimedRun) -> float:
    """Theorem 2 solved for eps: 3 c2 G sqrt(K log(1 / delta)) / (J sigma).

    With a schedule, the step with the least noise decides: the theorem knows one sigma.
    """
    sigma_over_g = 1.0 / float(np.max(run.mu))
    steps = len(run.clip)
    root = math.sqrt(steps * math.log(1 / run.delta))
    return 3 * run.constant * root / (run.records * sigma_over_g)


def _privsgp_conditions(run: ClaimedRun) -> tuple[FormulaCondition, ...]:
    steps = len(run.clip)
    ratio = privsgp_epsilon(run) * run.records**2 / steps
    return (
        FormulaCondition(
            f"eps < c1 K / J^2: needs c1 above {ratio:.3g}, c1 is not printed", ratio < 1
        ),
        FormulaCondition(
            "the moments lemma needs sigma / G of 1 or more for one record a step",
            float(np.max(run.mu)) <= 1,
        ),
        one_record(run),
    )


PRIVSGP = Formula(
    statement="eps = 3 c2 G sqrt(K log(1/delta)) / (J sigma)",
    source="PrivSGP-VR, Theorem 2",
    reading=(
        "G is the clipping bound, c2 is [privacy].published_constant; applied to the mean over "
        "the batch as printed for one record a step"
    ),
    epsilon=privsgp_epsilon,
    conditions=_privsgp_conditions,
)


def total_mu(epsilon: float, delta: float) -> float:
    """mu_tot: the mu with delta = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2).

    Raises:
        InputError: epsilon is not positive, or delta lies outside (0, 1).
    """
    positive(epsilon=epsilon, delta=delta, room=1 - delta)

    def excess(log_mu: float) -> float:
        return gaussian_delta(math.exp(log_mu), epsilon) - delta

    return math.exp(_root(excess, math.log(1e-9), math.log(1e9), xtol=1e-14))


def constant_mu(*, records: int, steps: int, epsilon: float, delta: float) -> float:
    """mu-bar of Const-D2P and Dyn[C]: sqrt(log(J^2 mu_tot^2 / K + 1)), as printed."""
    positive(records=records, steps=steps)
    return math.sqrt(math.log1p((records * total_mu(epsilon, delta)) ** 2 / steps))


def growing_mu(
    *, records: int, steps: int, epsilon: float, delta: float, growth: float
) -> tuple[float, ...]:
    """mu_k = mu_0 rho_mu^{k/K} of Dyn-D2P and Dyn[mu], mu_0 solved for as printed, `[steps]`.

    mu_tot = (1/J) sqrt(sum_k (e^{mu_k^2} - 1)) is solved in the logarithm. `records` is J, `steps`
    K, and `growth` rho_mu; epsilon and delta are those of the claim.
    """
    positive(records=records, steps=steps, growth=growth)
    shape = growth ** (np.arange(steps) / steps)
    target = math.log(records * total_mu(epsilon, delta))
    # A single step at the largest mu has at most the whole sum; the rest follows by bracketing.
    high = 1.001 * math.sqrt(math.log1p(math.exp(2 * target)))
    low = high / float(shape.max()) / math.sqrt(steps) / 10
    first = _root(lambda mu: _log_composed(mu * shape) - target, low, high, xtol=1e-15)
    return tuple((first * shape).tolist())


def general_noise_scale(*, records: int, steps: int, epsilon: float, delta: float) -> float:
    """The sigma / C of Algorithm 2 where both sequences are constant: sqrt(2 K) / (J mu_tot)."""
    positive(records=records, steps=steps)
    return math.sqrt(2 * steps) / (records * total_mu(epsilon, delta))


def _root(function: Callable[[float], float], low: float, high: float, *, xtol: float) -> float:
    """Where a function between `low` and `high` is 0."""
    from scipy.optimize import brentq  # here, since it is slow and few runs need it

    return float(brentq(function, low, high, xtol=xtol))


def _log_composed(mu: Array) -> float:
    """The log of sqrt(sum_k (e^{mu_k^2} - 1)): e^{mu_k^2} leaves the floating-point range early."""
    squares = mu**2
    # log(e^s - 1) = s + log(1 - e^-s)
    return float(logsumexp(squares + np.log(-np.expm1(-squares)))) / 2


def dyn_d2p_epsilon(run: ClaimedRun) -> float:
    """Dyn-D2P: mu_tot = p sqrt(sum_k (e^{mu_k^2} - 1)), p = 1 / J, then Gaussian DP."""
    log_mu = _log_composed(run.mu) - math.log(run.records)
    if log_mu > math.log(1e150):
        return math.inf
    return gaussian_epsilon(math.exp(log_mu), run.delta)


def _dyn_d2p_conditions(run: ClaimedRun) -> tuple[FormulaCondition, ...]:
    largest = float(np.max(run.mu))
    draws = len(run.clip) * run.expected_batch / run.records
    return (
        FormulaCondition(
            "the central limit behind it needs small mu_k and many hits "
            f"(largest mu_k {largest:.3g}, hits expected {draws:.3g})",
            largest <= 1 and draws >= 10,
        ),
        one_record(run),
    )


def dyn_general_epsilon(run: ClaimedRun) -> float:
    """The general form: sigma~ = (1 / (J mu_tot)) sqrt(2 sum_k C_k^2 / sigma~_k^2).

    With sigma_k = sigma~ sigma~_k injected, mu_tot = sqrt(2 sum_k mu_k^2) / J.
    """
    mu_total = math.sqrt(2 * math.fsum(run.mu**2)) / run.records
    return gaussian_epsilon(mu_total, run.delta)


def _dyn_general_conditions(run: ClaimedRun) -> tuple[FormulaCondition, ...]:
    largest = float(np.max(run.mu))
    return (
        FormulaCondition(
            f"e^x - 1 < 2 x holds for x <= 1 only (largest mu_k^2 here {largest**2:.3g})",
            largest <= 1,
        ),
        one_record(run),
    )


_MEAN = "applied to the mean over the batch as printed for one record a step"

DYN_D2P = Formula(
    statement="mu_tot = (1/J) sqrt(sum_k (e^(mu_k^2) - 1)), mu_k = C_k / sigma_k, then Gaussian DP",
    source="Dyn-D2P",
    reading=f"Bernoulli sampling and one record left out, as Proposition 3 has it; {_MEAN}",
    epsilon=dyn_d2p_epsilon,
    conditions=_dyn_d2p_conditions,
)
DYN_GENERAL = Formula(
    statement="mu_tot = (1/J) sqrt(2 sum_k C_k^2 / sigma_k^2), then Gaussian DP",
    source="Dyn-D2P, Algorithm 2",
    reading=f"sigma_k is the noise injected at step k; {_MEAN}",
    epsilon=dyn_general_epsilon,
    conditions=_dyn_general_conditions,
)


Readings = Callable[[int, float, int], tuple[Reading, Reading]]
"""From J, noise multiplier and K: the kindest reading and the paper's own words."""
_VR_PAPER = "PrivSGP-VR (IJCAI 2024)"
_DYN_PAPER = "Dyn-D2P"


@dataclass(frozen=True)
class _Task:
    """One of PrivSGP-VR's two tasks, at the noise of its Theorem 2."""

    name: str
    nodes: int
    records: int
    epsilon: float
    best_steps: int  # K* at that epsilon
    sweep: tuple[int, ...]
    budgets: tuple[float, ...]
    constant: float  # c2
    delta: float = 1e-5

    def noise(self, steps: int, epsilon: float) -> float:
        """Sigma / G of Theorem 2."""
        return privsgp_noise(
            records=self.records,
            steps=steps,
            epsilon=epsilon,
            delta=self.delta,
            constant=self.constant,
        )

    def runs(self) -> Iterator[tuple[int, float, str]]:
        """Steps, claimed epsilon and a name: the sweep over K, then the budgets at their K*."""
        for steps in self.sweep:
            mark = " = K*" if steps == self.best_steps else ""
            yield steps, self.epsilon, f"K = {steps}{mark}"
        for epsilon in self.budgets:
            steps = round(self.best_steps * (epsilon / self.epsilon) ** 2)
            yield steps, epsilon, f"K = K*({epsilon:g}) = {steps}"


_CIFAR = _Task(
    name="CIFAR-10, n = 16",
    nodes=16,
    records=3125,
    epsilon=3.0,
    best_steps=3120,
    sweep=(500, 1125, 3120, 6250, 12500),
    budgets=(1.0, 1.5, 2.0, 2.5, 3.5, 4.0),
    constant=1.0,
)
_MNIST = _Task(
    name="MNIST, n = 50",
    nodes=50,
    records=1200,
    epsilon=1.0,
    best_steps=575,
    sweep=(125, 270, 575, 1200, 2075),
    budgets=(0.4, 0.6, 0.8, 1.2, 1.4, 1.6),
    constant=2.0,
)
_METHODS: tuple[tuple[str, Readings], ...] = (
    ("PrivSGP", one_record_readings),
    ("PrivSGP-VR", private_table_readings),
)
_FIXED_CIFAR_NOISE = math.sqrt(0.03) / 10  # sigma^2 = 0.03, G^2 = 100, both printed


def privsgp_settings() -> Iterator[PaperSetting]:
    """PrivSGP and PrivSGP-VR, and the two baselines at PrivSGP's noise."""
    for task in (_CIFAR, _MNIST):
        for steps, epsilon, name in task.runs():
            noise = task.noise(steps, epsilon)
            at = f"{task.name}, {name}"
            for algorithm, readings in _METHODS:
                yield from _noised(algorithm, readings, task, at, steps, noise, epsilon)
    at, noise = f"{_CIFAR.name}, sigma^2 = 0.03, K = 3000", _FIXED_CIFAR_NOISE
    for algorithm, readings in _METHODS:
        yield from _noised(algorithm, readings, _CIFAR, at, 3000, noise, None)
    yield from _open_settings()
    yield from _baseline_settings()


def _noised(
    algorithm: str,
    readings: Readings,
    task: _Task,
    experiment: str,
    steps: int,
    noise: float,
    claimed: float | None,
) -> Iterator[PaperSetting]:
    """Both readings of a run; without a claimed epsilon, the one of the formula at its noise."""
    run = schedule_run(task.records, noise, steps, task.delta, task.constant)
    more = f"c2 = {task.constant:g}"
    if claimed is None:
        claimed, more = PRIVSGP.epsilon(run), f"{more}; the formula at the noise that is given"
    for reading in readings(task.records, noise, steps):
        yield PaperSetting(
            paper=_VR_PAPER,
            algorithm=algorithm,
            experiment=experiment,
            reading=f"{reading.text}; {more}",
            kindest=reading.kindest,
            claimed=claimed,
            delta=task.delta,
            noise_multiplier=(noise, noise),
            relation=reading.mechanism.relation,
            mechanism=reading.mechanism,
            bounds=reading.bounds,
            conditions=PRIVSGP.conditions(run),
        )


def _open_settings() -> Iterator[PaperSetting]:
    """Experiments at a given sigma^2 whose privacy is not determined by what is printed."""
    for experiment, missing in (
        ("CIFAR-10, n = 8 to 64, sigma^2 = 0.03 (speed-up)", "K is not printed"),
        ("MNIST, n = 25 to 100, sigma^2 = 0.01 (speed-up)", "neither K nor G is printed"),
        ("MNIST, sigma^2 = 0.01, with and without VR", "neither K nor G is printed"),
    ):
        yield PaperSetting(
            paper=_VR_PAPER,
            algorithm="PrivSGP, PrivSGP-VR",
            experiment=experiment,
            reading="none",
            missing=missing,
        )


def _baseline_settings() -> Iterator[PaperSetting]:
    for task in (_CIFAR, _MNIST):
        noise = task.noise(task.best_steps, task.epsilon)
        for algorithm, assumed in (
            ("DP2-SGD", f"K = {task.best_steps} assumed"),
            (
                "A(DP)2SGD",
                f"{task.best_steps} activations of the node assumed; stale models public",
            ),
        ):
            for reading in one_record_readings(task.records, noise, task.best_steps):
                yield PaperSetting(
                    paper=_VR_PAPER,
                    algorithm=algorithm,
                    experiment=f"{task.name}, ring, PrivSGP's noise at eps = {task.epsilon:g}",
                    reading=f"{reading.text}; {assumed}",
                    kindest=reading.kindest,
                    delta=task.delta,
                    noise_multiplier=(noise, noise),
                    relation=reading.mechanism.relation,
                    mechanism=reading.mechanism,
                    bounds=reading.bounds,
                )


@dataclass(frozen=True)
class _Variant:
    """Members of the Dyn-D2P family that release the same mechanism."""

    algorithms: str
    formula: Formula
    noise: Callable[[int, int, float], tuple[float, ...]]  # of J, K, epsilon: multiplier each step
    assumed: str
    steps: tuple[int, ...] = (1000, 10_000)


_DYN_DELTA = 1e-4
_GROWTH = 10.0


def _constant(records: int, steps: int, epsilon: float) -> tuple[float, ...]:
    mu = constant_mu(records=records, steps=steps, epsilon=epsilon, delta=_DYN_DELTA)
    return (1 / mu,) * steps


def _growing(records: int, steps: int, epsilon: float) -> tuple[float, ...]:
    mus = growing_mu(
        records=records, steps=steps, epsilon=epsilon, delta=_DYN_DELTA, growth=_GROWTH
    )
    return tuple(1 / mu for mu in mus)


def _general(records: int, steps: int, epsilon: float) -> tuple[float, ...]:
    scale = general_noise_scale(records=records, steps=steps, epsilon=epsilon, delta=_DYN_DELTA)
    return (scale,) * steps


_VARIANTS = (
    _Variant("Const-D2P, Dyn[C]-D2P", DYN_D2P, _constant, "K assumed"),
    _Variant("Dyn-D2P, Dyn[mu]-D2P", DYN_D2P, _growing, f"K and rho_mu = {_GROWTH:g} assumed"),
    _Variant(
        "Dyn-D2P, general form",
        DYN_GENERAL,
        _general,
        "constant sequences and K assumed",
        steps=(1000,),
    ),
)
_DYN_TASKS = (("Fashion-MNIST", 3000, (1000, 10_000)), ("CIFAR-10", 2500, (1000,)))


def dyn_settings() -> Iterator[PaperSetting]:
    """Dyn-D2P, Dyn[C], Dyn[mu], Const-D2P and the general form; n = 20, delta = 1e-4."""
    for variant in _VARIANTS:
        for name, records, assumed in _DYN_TASKS:
            for steps, epsilon in product(assumed, (0.3, 0.7, 1.0, 3.0)):
                if steps in variant.steps:
                    yield from _dyn(variant, name, records, steps, epsilon)


def _dyn(
    variant: _Variant, name: str, records: int, steps: int, epsilon: float
) -> Iterator[PaperSetting]:
    noise = variant.noise(records, steps, epsilon)
    run = schedule_run(records, noise, steps, _DYN_DELTA)
    for reading in one_record_readings(records, noise, steps):
        yield PaperSetting(
            paper=_DYN_PAPER,
            algorithm=variant.algorithms,
            experiment=f"{name}, n = 20, K = {steps}, eps = {epsilon:g}",
            reading=f"{reading.text}; {variant.assumed}",
            kindest=reading.kindest,
            claimed=epsilon,
            delta=_DYN_DELTA,
            noise_multiplier=(noise[0], noise[-1]),
            relation=reading.mechanism.relation,
            mechanism=reading.mechanism,
            bounds=reading.bounds,
            conditions=variant.formula.conditions(run),
        )
