"""Time and tightness of tacit's accountant beside dp_accounting and the PRV accountant.

    python benchmarks/accounting.py [--quick]

One process, one thread, one run: everybody accounts for the same Poisson-sampled Gaussian under
add-or-remove-one. Printed are each one's epsilon, its excess over tacit's proved lower bound, the
processor time of the call, and how many times tacit's that is. tacit's first figure is a cold
start (nothing remembered but imports); *again* is the same schedule with slightly other noise,
which is what calibration and further nodes ask. Where thousands of levels differ, dp_accounting is
timed on a few of them and the time is scaled up, which the table says.

dp_accounting comes with `pip install '.[test]'`; the PRV accountant is optional
(`pip install prv-accountant==0.2.0`), and its column says so where it is missing.
"""

from __future__ import annotations

import argparse
import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from tacit import privacy
from tacit.privacy import SampledGaussian
from tacit.privacy.accounting import tables

# Distinct levels that dp_accounting is timed on; the rest is extrapolated.
PLD_LEVELS = 4


@dataclass(frozen=True)
class Case:
    """A schedule.

    Args:
        name: what it stands for.
        rate: sampling rate.
        noise: noise multiplier of each step.
        delta: where epsilon is asked for.
    """

    name: str
    rate: float
    noise: Sequence[float]
    delta: float

    def levels(self) -> list[tuple[float, int]]:
        counts: dict[float, int] = {}
        for multiplier in self.noise:
            counts[multiplier] = counts.get(multiplier, 0) + 1
        return list(counts.items())


@dataclass(frozen=True)
class Measured:
    """What one accountant said; epsilon is NaN where only time was taken."""

    who: str
    epsilon: float
    seconds: float
    note: str = ""


def dyn(records: int, steps: int, first: float, growth: float) -> list[float]:
    """Noise multipliers of Dyn-D2P: mu_k = mu_0 growth^(k / K), every one different."""
    return [growth ** (-k / steps) / first for k in range(steps)]


CASES = [
    Case("DP-SGD, 1000 steps", 0.01, [1.0] * 1000, 1e-5),
    Case("DP-SGD, delta = 1e-12", 0.01, [1.0] * 1000, 1e-12),
    Case("one record a step", 1 / 3000, [0.49] * 1000, 1e-4),
    Case("low noise", 0.05, [0.4] * 200, 1e-6),
    Case("100,000 steps", 0.001, [0.8] * 100_000, 1e-6),
    Case("Dyn-D2P, 100 levels", 1 / 3000, dyn(3000, 100, 0.4, 6.0), 1e-4),
    Case("Dyn-D2P, 10,000 levels", 1 / 3000, dyn(3000, 10_000, 0.223, 10.0), 1e-4),
]
QUICK = [
    Case("a few steps", 0.05, [1.0] * 5, 1e-5),
    Case("a few levels", 0.05, dyn(20, 40, 0.5, 2.0), 1e-5),
]


def timed(work: Callable[[], float]) -> tuple[float, float]:
    gc.collect()
    start = time.process_time()
    found = work()
    return found, time.process_time() - start


def ours(case: Case) -> tuple[float, list[Measured]]:
    """The proved lower bound, and tacit's own figures."""
    tables.clear()
    mechanism = SampledGaussian(case.rate, case.noise)
    epsilon, cold = timed(lambda: privacy.epsilon(mechanism, delta=case.delta))
    near = SampledGaussian(case.rate, [z * 1.0001 for z in case.noise])
    _, again = timed(lambda: privacy.epsilon(near, delta=case.delta))
    lower, _ = privacy.epsilon_bounds(mechanism, delta=case.delta)
    return lower, [
        Measured("tacit", epsilon, cold),
        Measured("tacit, again", math.nan, again),
    ]


def theirs_pld(case: Case) -> Measured:
    """dp_accounting's privacy loss distributions at their default grid of 1e-4."""
    levels = case.levels()
    timed_levels = levels if len(levels) <= PLD_LEVELS else levels[:: len(levels) // PLD_LEVELS]
    timed_levels = timed_levels[: max(PLD_LEVELS, 1)]

    def account() -> float:
        accountant = PLDAccountant()
        for multiplier, steps in timed_levels:
            accountant.compose(PoissonSampledDpEvent(case.rate, GaussianDpEvent(multiplier)), steps)
        return float(accountant.get_epsilon(case.delta))

    epsilon, seconds = timed(account)
    if len(timed_levels) == len(levels):
        return Measured("dp_accounting PLD", epsilon, seconds)
    scaled = seconds * len(levels) / len(timed_levels)
    note = f"timed on {len(timed_levels)} of {len(levels)} levels"
    return Measured("dp_accounting PLD", math.nan, scaled, note)


def theirs_rdp(case: Case) -> Measured:
    """dp_accounting's Renyi accountant at its default orders."""
    levels = case.levels()
    every = max(1, len(levels) // 100)

    def account() -> float:
        accountant = RdpAccountant()
        for multiplier, steps in levels[::every]:
            accountant.compose(
                PoissonSampledDpEvent(case.rate, GaussianDpEvent(multiplier)), steps * every
            )
        return float(accountant.get_epsilon(case.delta))

    epsilon, seconds = timed(account)
    note = f"every {every}th level, {every} times" if every > 1 else ""
    return Measured("dp_accounting RDP", epsilon, seconds * every, note)


def theirs_prv(case: Case) -> Measured:
    """The PRV accountant, asked for an error of 0.1 % of epsilon; its upper bound."""
    try:
        from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant
    except ImportError:
        return Measured("PRV accountant", math.nan, math.nan, "not installed")
    levels = case.levels()
    if len(levels) > 100:
        return Measured("PRV accountant", math.nan, math.nan, "not tried: too many levels")

    def account() -> float:
        mechanisms = [
            PoissonSubsampledGaussianMechanism(
                sampling_probability=case.rate, noise_multiplier=multiplier
            )
            for multiplier, _ in levels
        ]
        steps = [count for _, count in levels]
        accountant = PRVAccountant(
            prvs=mechanisms,
            max_self_compositions=steps,
            eps_error=1e-2,
            delta_error=case.delta * 1e-3,
        )
        return float(accountant.compute_epsilon(case.delta, steps)[2])

    try:
        epsilon, seconds = timed(account)
    except Exception as error:  # whatever it raises is what is reported
        return Measured("PRV accountant", math.nan, math.nan, f"failed: {type(error).__name__}")
    return Measured("PRV accountant", epsilon, seconds)


def compare(cases: Sequence[Case]) -> Table:
    """All accountants on all cases."""
    table = Table(title="Poisson-sampled Gaussian, add-or-remove-one; processor time, one thread")
    for column in ("schedule", "accountant"):
        table.add_column(column)
    for column in ("epsilon", "above proved lower bound", "seconds", "times tacit's"):
        table.add_column(column, justify="right")
    table.add_column("")
    for case in cases:
        lower, found = ours(case)
        base = found[0].seconds
        found += [theirs_pld(case), theirs_rdp(case), theirs_prv(case)]
        for row, one in enumerate(found):
            table.add_row(
                case.name if row == 0 else "",
                one.who,
                _text(one.epsilon, "{:.4f}"),
                _text(100 * (one.epsilon - lower) / lower if lower > 0 else math.nan, "{:.2f} %"),
                _text(one.seconds, "{:.3f}"),
                _text(one.seconds / base, "{:.1f}"),
                one.note,
            )
        table.add_section()
    return table


def _text(value: float, form: str) -> str:
    return "" if math.isnan(value) else form.format(value)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    options = parser.parse_args(arguments)
    with threadpool_limits(1):
        Console(width=150).print(compare(QUICK if options.quick else CASES))


if __name__ == "__main__":
    main()
