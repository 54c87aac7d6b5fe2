"""The papers' own experiments as rows of the table of claims, from the numbers in `papers/`.

A row is an experiment under one reading. Readings differ in relation and sampler where a paper
leaves them open or contradicts itself. The kindest to the paper comes first: Poisson sampling and
one record left out (zero-out), under which the same noise costs least. The paper's own words, where
they differ, are a second row. What a paper leaves open is said in each row.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib import resources
from itertools import chain, product
from typing import Any

import numpy as np

from tacit.privacy.accounting import accounting
from tacit.privacy.accounting.private_state import table_lower_epsilon
from tacit.privacy.mechanisms.base import REPLACE_ONE, Mechanism, Relation
from tacit.privacy.mechanisms.composed import ClientSampling
from tacit.privacy.mechanisms.steps import (
    FixedBatchGaussian,
    Gaussian,
    PrivateState,
    SampledGaussian,
)
from tacit.privacy.published.decor import DECOR, DECOR_USER, DecorRun, decor_noise
from tacit.privacy.published.do_adp import DO_ADP, DoAdpRun, do_adp_noise, do_adp_theorem_delta
from tacit.privacy.published.dyn_d2p import (
    DYN_D2P,
    DYN_GENERAL,
    constant_mu,
    general_noise_scale,
    growing_mu,
)
from tacit.privacy.published.fedspd import (
    FEDSPD_DP,
    FedspdRun,
    even_rounds,
    fedspd_lower,
    fedspd_round_epsilon,
    fedspd_upper,
    repaired_multiplier,
)
from tacit.privacy.published.formula import ClaimedRun, FormulaCondition
from tacit.privacy.published.privsgp import PRIVSGP, privsgp_noise

Paper = Mapping[str, Any]
"""The content of a file of `papers/`, or of a table in it."""
Bounds = Callable[[float], tuple[float | None, float | None]]
"""From delta: a proved lower bound on epsilon (None: none is known), and a certified upper one."""

# Several algorithms release one mechanism.
_remembered = lru_cache(maxsize=512)

KINDEST = "Poisson sampling, one record left out"
ONE_OF_J = "one of J drawn, one record replaced"


@dataclass(frozen=True)
class PaperSetting:
    """A paper's own experiment under one reading.

    Args:
        paper: where it is printed.
        algorithm: whose noise.
        experiment: data set and the numbers that matter.
        reading: sampler, relation and what had to be assumed, in one line.
        kindest: whether this is the reading most favourable to the paper.
        claimed: epsilon that the paper claims; None where it claims none.
        delta: of claim and bounds; None where none is printed.
        noise_multiplier: first and last; noise standard deviation over the clipping bound, of the
            sum; None where it is not determined by what is printed.
        relation: the neighbouring relation; None without a mechanism.
        mechanism: what an observer sees; None where it is not determined, or none states it.
        bounds: how epsilon is bounded; None where nothing can be.
        conditions: of the claim, and whether they hold.
        missing: what is not printed, where nothing can be certified.
    """

    paper: str
    algorithm: str
    experiment: str
    reading: str = "none"
    kindest: bool = True
    claimed: float | None = None
    delta: float | None = None
    noise_multiplier: tuple[float, float] | None = None
    relation: Relation | None = None
    mechanism: Mechanism | None = None
    bounds: Bounds | None = None
    conditions: tuple[FormulaCondition, ...] = ()
    missing: str = ""


@lru_cache(maxsize=1)
def paper_settings() -> tuple[PaperSetting, ...]:
    """The papers' own experiments: every private algorithm, with claim, mechanism and bounds.

    Row by row, algorithm by algorithm; of one experiment, the kindest reading comes first. Building
    the table takes a moment, and each row's bounds are computed when its `bounds` are called.
    """
    folder = resources.files("tacit.privacy.published") / "papers"
    papers = {name: (folder / f"{name}.toml").read_text(encoding="utf-8") for name in _PAPERS}
    read = (_PAPERS[name](tomllib.loads(text)) for name, text in papers.items())
    rows = tuple(chain.from_iterable(read))
    order = {row.algorithm: index for index, row in reversed(list(enumerate(rows)))}
    return tuple(sorted(rows, key=lambda row: order[row.algorithm]))


@dataclass(frozen=True)
class _Reading:
    """A mechanism that a paper's words may mean, and its bounds."""

    text: str
    kindest: bool
    mechanism: Mechanism
    bounds: Bounds


def _rows(common: PaperSetting, readings: Iterable[_Reading], more: str) -> Iterator[PaperSetting]:
    """A row for each reading of an experiment; `more` goes behind the words of each."""
    for reading in readings:
        yield replace(
            common,
            reading=f"{reading.text}{more}",
            kindest=reading.kindest,
            relation=reading.mechanism.relation,
            mechanism=reading.mechanism,
            bounds=reading.bounds,
        )


def _open(paper: Paper) -> Iterator[PaperSetting]:
    """Experiments whose privacy is not determined by what is printed."""
    return (PaperSetting(paper["paper"], **row) for row in paper["open"])


def certified_bounds(mechanism: Mechanism, *, bound_is_tight: bool) -> Bounds:
    """The certified bound of a mechanism, and the lower one where the algorithm attains it.

    `bound_is_tight` says that an instance of the algorithm is known to attain the mechanism's pair,
    as linear losses do; where none is, no lower bound is stated.
    """
    return partial(_tight_bounds if bound_is_tight else _upper_bound, mechanism)


@_remembered
def _tight_bounds(mechanism: Mechanism, delta: float) -> tuple[float | None, float | None]:
    return accounting.epsilon_bounds(mechanism, delta=delta)


@_remembered
def _upper_bound(mechanism: Mechanism, delta: float) -> tuple[float | None, float | None]:
    return None, accounting.epsilon(mechanism, delta=delta)


@_remembered
def _table_bounds(mechanism: PrivateState, delta: float) -> tuple[float | None, float | None]:
    """The certified bound of a gradient table, and what an explicit instance of it proves."""
    lower = table_lower_epsilon(mechanism, delta)
    return lower or None, accounting.epsilon(mechanism, delta=delta)


def _one_record_readings(
    records: int, noise_multiplier: float | Sequence[float], steps: int
) -> tuple[_Reading, _Reading]:
    """One record a step without private state: the kindest reading and the papers' own words."""
    poisson = SampledGaussian(1 / records, noise_multiplier, steps)
    fixed = FixedBatchGaussian(1, records, noise_multiplier, steps)
    return (
        _Reading(KINDEST, True, poisson, certified_bounds(poisson, bound_is_tight=True)),
        _Reading(ONE_OF_J, False, fixed, certified_bounds(fixed, bound_is_tight=True)),
    )


def _private_table_readings(
    records: int, noise_multiplier: float, steps: int
) -> tuple[_Reading, _Reading]:
    """PrivSGP-VR: a private table carries the record to the steps that do not draw it.

    A step that draws it shifts by at most (2 - 1/J) G, any other by G / J; twice that if replaced.
    """
    poisson = PrivateState(1 / records, 2 - 1 / records, 1 / records, noise_multiplier, steps)
    fixed = replace(poisson, sampling="fixed", relation=REPLACE_ONE)
    return (
        _Reading(KINDEST, True, poisson, partial(_table_bounds, poisson)),
        _Reading(ONE_OF_J, False, fixed, partial(_table_bounds, fixed)),
    )


def _claimed_run(
    records: int, noise: float | Sequence[float], steps: int, delta: float, constant: float = 1.0
) -> ClaimedRun:
    """What a formula reads of an experiment with one record a step, clipped at 1."""
    each = np.broadcast_to(np.asarray(noise, np.float64), steps)
    return ClaimedRun(records, (1.0,) * steps, tuple(each.tolist()), 1.0, delta, constant)


_PRIVSGP_READINGS = {"PrivSGP": _one_record_readings, "PrivSGP-VR": _private_table_readings}


def _privsgp(paper: Paper) -> Iterator[PaperSetting]:
    """PrivSGP and PrivSGP-VR at the noise of Theorem 2, and the baselines at PrivSGP's noise.

    The sweep over K comes first, then the budgets at their K*. Without a claimed epsilon, it is
    that of the formula at the noise that is printed.
    """
    delta = paper["delta"]

    def noise_at(task: Paper, steps: int, epsilon: float) -> float:
        return privsgp_noise(
            records=task["records"],
            steps=steps,
            epsilon=epsilon,
            delta=delta,
            constant=task["constant"],
        )

    def rows(
        task: Paper, name: str, steps: int, noise: float, claimed: float | None
    ) -> Iterator[PaperSetting]:
        run = _claimed_run(task["records"], noise, steps, delta, task["constant"])
        given = "; the formula at the noise that is given" if claimed is None else ""
        for algorithm, readings in _PRIVSGP_READINGS.items():
            common = PaperSetting(
                paper["paper"],
                algorithm,
                f"{task['name']}, {name}",
                claimed=PRIVSGP.epsilon(run) if claimed is None else claimed,
                delta=delta,
                noise_multiplier=(noise, noise),
                conditions=PRIVSGP.conditions(run),
            )
            more = f"; c2 = {task['constant']:g}{given}"
            yield from _rows(common, readings(task["records"], noise, steps), more)

    for task in paper["tasks"]:
        epsilon, best = task["epsilon"], task["best_steps"]
        for steps in task["sweep"]:
            mark = " = K*" if steps == best else ""
            yield from rows(
                task, f"K = {steps}{mark}", steps, noise_at(task, steps, epsilon), epsilon
            )
        for budget in task["budgets"]:
            steps = round(best * (budget / epsilon) ** 2)
            name = f"K = K*({budget:g}) = {steps}"
            yield from rows(task, name, steps, noise_at(task, steps, budget), budget)
    for task in paper["tasks"]:
        if fixed := task.get("fixed"):
            noise = math.sqrt(fixed["noise_variance"]) / math.sqrt(fixed["squared_bound"])
            name = f"sigma^2 = {fixed['noise_variance']:g}, K = {fixed['steps']}"
            yield from rows(task, name, fixed["steps"], noise, None)
    yield from _open(paper)
    for task, baseline in product(paper["tasks"], paper["baselines"]):
        epsilon, steps = task["epsilon"], task["best_steps"]
        noise = noise_at(task, steps, epsilon)
        common = PaperSetting(
            paper["paper"],
            baseline["algorithm"],
            f"{task['name']}, ring, PrivSGP's noise at eps = {epsilon:g}",
            delta=delta,
            noise_multiplier=(noise, noise),
        )
        more = f"; {baseline['assumed'].format(steps=steps)}"
        yield from _rows(common, _one_record_readings(task["records"], noise, steps), more)


def _dyn(paper: Paper) -> Iterator[PaperSetting]:
    """Dyn-D2P, Dyn[C], Dyn[mu], Const-D2P and the general form."""
    for variant, task in product(paper["variants"], paper["tasks"]):
        steps_of = [steps for steps in task["steps"] if steps in variant["steps"]]
        for steps, epsilon in product(steps_of, paper["epsilons"]):
            records, delta = task["records"], paper["delta"]
            claim = {"records": records, "steps": steps, "epsilon": epsilon, "delta": delta}
            formula = DYN_D2P
            if variant["noise"] == "constant":
                noise = (1 / constant_mu(**claim),) * steps
            elif variant["noise"] == "growing":
                noise = tuple(1 / mu for mu in growing_mu(**claim, growth=paper["growth"]))
            else:
                formula, noise = DYN_GENERAL, (general_noise_scale(**claim),) * steps
            common = PaperSetting(
                paper["paper"],
                variant["algorithms"],
                f"{task['name']}, K = {steps}, eps = {epsilon:g}",
                claimed=epsilon,
                delta=delta,
                noise_multiplier=(noise[0], noise[-1]),
                conditions=formula.conditions(_claimed_run(records, noise, steps, delta)),
            )
            more = f"; {variant['assumed']}"
            yield from _rows(common, _one_record_readings(records, noise, steps), more)


def _do_adp(paper: Paper) -> Iterator[PaperSetting]:
    """DO-ADP at both tasks, then its baselines.

    Where activation is random and seen, delta is its mean over patterns. With all coordinates sent
    the noised gradient can be read off the messages, and linear losses attain the pair; with fewer,
    no instance is known that does.
    """
    failure = paper["failure"]
    for task in paper["tasks"]:
        for (steps, epsilon), kept, activation in product(
            task["runs"], task["kept"], task["activation"]
        ):
            shares = {"activation": activation, "kept": kept, "failure": failure}
            records = task["records"]
            noise = do_adp_noise(records=records, steps=steps, epsilon=epsilon, **shares)
            run = DoAdpRun(records, steps, noise, **shares)
            theorem = do_adp_theorem_delta(run)
            common = PaperSetting(
                paper["paper"],
                "DO-ADP",
                f"{task['name']}, T = {steps}, eps = {epsilon:g}, p = {activation:g}, "
                f"k/d = {kept:g}",
                claimed=epsilon,
                delta=theorem,
                noise_multiplier=(noise, noise),
                conditions=DO_ADP.conditions(run),
            )
            active = steps if activation == 1 else 1
            mechanisms: list[Mechanism] = [
                SampledGaussian(1 / records, noise, active),
                FixedBatchGaussian(1, records, noise, active),
            ]
            if activation != 1:
                mechanisms = [ClientSampling(one, activation, steps) for one in mechanisms]
            poisson, fixed = (
                _Reading(text, False, one, certified_bounds(one, bound_is_tight=kept == 1))
                for text, one in zip((KINDEST, ONE_OF_J), mechanisms, strict=True)
            )
            kindest = replace(poisson, kindest=True)
            yield from _rows(common, [kindest], f"; the theorem's own delta, {theorem:.3g}")
            yield from _rows(replace(common, delta=failure), [poisson, fixed], f"; {task['read']}")
    yield from _open(paper)


def _fedspd(paper: Paper) -> Iterator[PaperSetting]:
    """FedSPD-DP at total budgets and at budgets a round, then its baselines."""
    client = paper["client"]
    of = f"of {client['clients']}"
    runs: list[tuple[str, int, float]] = []
    for total, chosen in paper["totals"]:
        round_epsilon = fedspd_round_epsilon(
            total=total,
            records=client["records"],
            batch=client["batch"],
            local_steps=client["local_steps"],
            participation=chosen / client["clients"],
            rounds=client["rounds"],
        )
        runs.append((f"Adult, K = {chosen} {of}, total eps = {total:g}", chosen, round_epsilon))
    for round_epsilon, chosen in paper["rounds"]:
        name = f"Adult, K = {chosen} {of}, eps = {round_epsilon:g} a round"
        runs.append((name, chosen, round_epsilon))
    for name, chosen, round_epsilon in runs:
        run = FedspdRun(**client, chosen=chosen, round_epsilon=round_epsilon)
        yield from _fedspd_rows(paper["paper"], name, run)
    for epsilon, baseline in product(paper["baseline_epsilons"], paper["baselines"]):
        classical = math.sqrt(2 * math.log(1.25 / client["delta"])) / epsilon
        rounds, participation = client["rounds"], baseline["participation"]
        mechanism: Mechanism = Gaussian(classical, rounds)
        if participation < 1:
            mechanism = ClientSampling(Gaussian(classical, 1), participation, rounds)
        common = PaperSetting(
            paper["paper"],
            baseline["algorithm"],
            f"Adult, eps = {epsilon:g} a round, {baseline['where']}",
            delta=client["delta"],
            noise_multiplier=(classical, classical),
        )
        text = "if each round is the classical Gaussian mechanism at its true sensitivity"
        bounds = certified_bounds(mechanism, bound_is_tight=False)
        reading = _Reading(f"{text}, over {rounds} rounds", True, mechanism, bounds)
        yield from _rows(common, [reading], "")
    yield from _open(paper)


def _fedspd_rows(paper: str, experiment: str, run: FedspdRun) -> Iterator[PaperSetting]:
    """Both readings of what G bounds, as printed, and the repaired form at the published noise."""
    common = PaperSetting(
        paper,
        "FedSPD-DP",
        experiment,
        claimed=FEDSPD_DP.epsilon(run),
        delta=run.delta,
        relation=REPLACE_ONE,
        conditions=FEDSPD_DP.conditions(run),
    )
    disjoint = "one record replaced, mini-batches of a round disjoint"
    printed = f"as printed, private state; {disjoint}"
    for bound, drawn_norm, kindest in (
        ("a record's", 2 / run.batch, True),
        ("a mini-batch's", 2.0, False),
    ):
        yield replace(
            common,
            reading=f"{printed}; G bounds {bound} gradient; upper bound if gamma >= L / 2",
            kindest=kindest,
            bounds=partial(_as_printed, run, drawn_norm),
        )
    multiplier = repaired_multiplier(run)
    drawn = run.batch * run.local_steps
    repaired = FixedBatchGaussian(drawn, run.records, multiplier, len(even_rounds(run)))
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


def _decor(paper: Paper) -> Iterator[PaperSetting]:
    """DECOR on MNIST, at the epsilons of the plot, and on a9a, where a user is protected.

    Linear losses at the worst node attain the pair.
    """
    delta = paper["delta"]
    for formula, task in ((DECOR, paper["record"]), (DECOR_USER, paper["user"])):
        steps, batch, records = task["steps"], task.get("batch", 1), task.get("records", 1)
        for epsilon in task["epsilons"]:
            noise = decor_noise(
                formula, epsilon, steps=steps, batch=batch, records=records, delta=delta
            )
            run = DecorRun(noise, steps, batch, records, delta)
            replaced = "one record replaced"
            readings: list[tuple[str, Mechanism]] = [
                (KINDEST, SampledGaussian(run.rate, noise, steps)),
                (
                    f"Poisson sampling, {replaced}",
                    SampledGaussian(run.rate, noise, steps, REPLACE_ONE),
                ),
                (
                    f"{batch} of J drawn, {replaced}",
                    FixedBatchGaussian(batch, records, noise, steps),
                ),
            ]
            if formula is DECOR_USER:
                user = Gaussian(noise, steps, REPLACE_ONE, unit="client")
                readings = [("all data of one user replaced", user)]
            common = PaperSetting(
                paper["paper"],
                "DECOR",
                f"{task['name']}, T = {steps}, eps = {epsilon:g}, "
                f"{'one record' if formula is DECOR else 'a user'}",
                claimed=epsilon,
                delta=delta,
                noise_multiplier=(noise, noise),
                conditions=formula.conditions(run),
            )
            yield from _rows(
                common,
                [
                    _Reading(text, place == 0, one, certified_bounds(one, bound_is_tight=True))
                    for place, (text, one) in enumerate(readings)
                ],
                "",
            )


_PAPERS: Mapping[str, Callable[[Paper], Iterator[PaperSetting]]] = {
    "privsgp-vr": _privsgp,
    "dyn-d2p": _dyn,
    "do-adp": _do_adp,
    "fedspd-dp": _fedspd,
    "decor": _decor,
}
