"""The experiments of PrivSGP(-VR) and of the Dyn-D2P family, with the mechanism of each.

What the papers leave open is said in each row. For PrivSGP(-VR): c2 (1 on CIFAR-10 and 2 on MNIST
here; K* = 3120 would imply 0.37, which is less noise). For Dyn-D2P: K (1000 here, and 10,000 on
Fashion-MNIST) and the growth that was kept (rho_mu = 10 here). DP2-SGD and A(DP)2SGD run at
PrivSGP's noise and claim nothing of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from tacit.privacy.published.dyn import (
    DYN_D2P,
    DYN_GENERAL,
    constant_mu,
    general_noise_scale,
    growing_mu,
)
from tacit.privacy.published.formula import Formula
from tacit.privacy.published.privsgp import PRIVSGP, privsgp_noise
from tacit.privacy.published.setting import (
    PaperSetting,
    Reading,
    one_record_readings,
    private_table_readings,
    schedule_run,
)

__all__ = ["dyn_settings", "privsgp_settings"]

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
