"""What the paper of a planned run promises of its result: the paper's own words.

A promise is no certified statement: it is evaluated as printed, for the run at hand, beside the
conditions of its theorem that the run breaks. Nothing is estimated here: constants of the problem
come from `[promise]` alone, and without them the plan says which ones it would need.

| algorithm | paper | what is evaluated |
|---|---|---|
| `privsgp-vr` | PrivSGP-VR | Theorem 1 with this noise; K* and bound of Corollary 1; Table 1 |
| `do-adp` | DO-ADP | its theorems' conditions on epsilon, p and T |
| `fedspd-dp` | FedSPD-DP | its theorems' conditions, and the order of its rate |
| `dyn-d2p` and its variants | Dyn-D2P | nothing: see `privacy.published.NOT_AT_HAND` |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from rich.table import Table

from tacit.algorithms.base import step_size
from tacit.privacy.published import (
    NOT_AT_HAND,
    BoundConstants,
    Budget,
    FormulaCondition,
    convergence_bound,
    fedspd_rate,
    least_steps,
    published_bound,
    published_steps,
    utility_order,
)
from tacit.report.documents.plan import PlannedPromise
from tacit.report.documents.run import ClaimCondition
from tacit.report.wording import number_text
from tacit.training.plan import Plan
from tacit.training.prepare import Job

__all__ = ["planned_promise", "promise_line", "promise_table"]

_NEEDED = ("smoothness", "initial_gap", "heterogeneity")


def planned_promise(job: Job) -> PlannedPromise | None:
    """What the run's paper promises; None where it promises nothing of utility."""
    make = _PROMISES.get(job.config.algorithm.name)
    return None if make is None else make(job)


def promise_line(promise: PlannedPromise) -> str | None:
    """Which constants of `[promise]` are missing, in one line; None where none is."""
    if not promise.needs:
        return None
    needed = ", ".join(f"promise.{name}" for name in promise.needs)
    return f"note: what {promise.source} promise of this run can be told with {needed}"


def promise_table(promise: PlannedPromise) -> Table | None:
    """The promise for people; None where there is nothing to tell."""
    rows = [*_rows(promise)]
    if not rows:
        return None
    table = Table(
        show_header=False, title="what the paper promises under its conditions: not certified"
    )
    table.add_column()
    table.add_column()
    for row in (("source", promise.source), *rows):
        table.add_row(*row)
    return table


def _rows(promise: PlannedPromise) -> Iterator[tuple[str, str]]:
    if promise.bound is not None:
        words = f"at most {number_text(promise.bound)} after {promise.steps} steps, with this noise"
        yield promise.quantity, words
    if promise.trivial_bound is not None:
        yield "with no theorem, G^2", f"at most {number_text(promise.trivial_bound)}"
    if promise.best_steps is not None and promise.best_bound is not None:
        best = f"{number_text(promise.best_steps)} (here {promise.steps})"
        yield "best number of steps, K*", best
        yield "bound there, with the paper's noise", number_text(promise.best_bound)
    if promise.order is not None:
        yield "order of the bound", f"{number_text(promise.order)}, without constants"
    broken = [condition.text for condition in promise.conditions if not condition.holds]
    for number, text in enumerate(broken):
        yield "" if number else "conditions not met here", text
    if promise.missing is not None:
        yield "not evaluated", promise.missing


def _privsgp_vr(job: Job) -> PlannedPromise:
    plan, settings = job.plan, job.config.promise
    given = {name: getattr(settings, name) for name in _NEEDED}
    needs = tuple(name for name, value in given.items() if value is None)
    promise = PlannedPromise(
        source="PrivSGP-VR's Theorem 1 and Corollary 1",
        quantity="mean squared gradient norm",
        steps=plan.steps,
        order=_order(plan),
        needs=needs,
        conditions=tuple(map(_told, _theorem_1(plan))),
    )
    if needs:
        return promise
    start = job.model.start(1, job.dtype, job.device)[0]
    constants = BoundConstants(
        smoothness=given["smoothness"],
        heterogeneity=given["heterogeneity"],
        start_gap=given["initial_gap"],
        start_norm=float(start.double().square().sum()),
        parameters=plan.parameters,
    )
    bound = convergence_bound(constants, _variances(plan), plan.steps)
    promise = promise.model_copy(update={"bound": bound})
    budgets, clips = _budgets(plan), plan.release.clip.bounds
    if clips is None:
        return promise
    c2, most = job.config.privacy.published_constant, max(clips)
    promise = promise.model_copy(update={"trivial_bound": most**2})
    if budgets is None or not constants.noiseless:
        return promise
    best = published_steps(constants, budgets, gradient_bound=most, c2=c2)
    least = published_bound(constants, budgets, gradient_bound=most, c2=c2)
    return promise.model_copy(update={"best_steps": best, "best_bound": least})


def _variances(plan: Plan) -> list[float]:
    """Variance of each node's own noise in one coordinate of its batch mean, the mean over steps.

    A public state's anchors count as the other steps do: Theorem 1 knows no anchors.
    """
    release = plan.release
    bounds = release.clip.bounds or (1.0,) * plan.steps
    pairs = zip(bounds, release.noise_shape, strict=True)
    unit = math.fsum((bound * shape) ** 2 for bound, shape in pairs) / plan.steps
    return [unit * ((node.noise_scale or 0.0) / node.expected_batch) ** 2 for node in plan.nodes]


def _budgets(plan: Plan) -> list[Budget] | None:
    """Every node's budget, as it was asked for; None where one has none."""
    found = [
        Budget(node.records, node.budget, node.delta)
        for node in plan.nodes
        if node.budget is not None and node.delta is not None
    ]
    return found if len(found) == len(plan.nodes) else None


def _order(plan: Plan) -> float | None:
    """Table 1, which is for nodes that are alike."""
    budgets = _budgets(plan)
    if budgets is None or len(set(budgets)) > 1:
        return None
    first = budgets[0]
    return utility_order(
        nodes=len(budgets),
        records=first.records,
        parameters=plan.parameters,
        epsilon=first.epsilon,
        delta=first.delta,
    )


def _theorem_1(plan: Plan) -> Iterator[FormulaCondition]:
    """What Theorem 1 needs, and whether the run has it."""
    options: Any = plan.config.algorithm.options
    settings = plan.config.promise
    most = max(node.expected_batch for node in plan.nodes)
    yield FormulaCondition(f"one record a step (expected here {most:.4g})", most <= 1)
    nodes, steps = len(plan.nodes), plan.steps
    alike = options.learning_rate_schedule == "constant" and not options.warm_up
    rates = {step_size(options, k, steps) for k in range(1 if alike else steps)}
    right = math.sqrt(nodes / steps)
    here = " to ".join(f"{rate:.4g}" for rate in sorted({min(rates), max(rates)}))
    yield FormulaCondition(
        f"a learning rate of sqrt(n / K) = {right:.4g} at every step (here {here})",
        all(math.isclose(rate, right, rel_tol=1e-3) for rate in rates),
    )
    if settings.smoothness is not None:
        records = [node.records for node in plan.nodes]
        constant, rate = settings.push_sum_constant, settings.push_sum_rate
        least = least_steps(
            settings.smoothness, records, push_sum_constant=constant or 0, push_sum_rate=rate or 0
        )
        about = "K^(C, q)" if constant is not None else "K^(C, q) on any graph"
        yield FormulaCondition(
            f"at least {least:.3g} steps, {about} (here {steps})", steps >= least
        )
    yield FormulaCondition(
        f"the gradient table as printed, algorithm.state = 'private' (here '{options.state}')",
        options.state == "private",
    )
    yield FormulaCondition(f"no momentum (here {options.momentum:g})", options.momentum == 0)
    yield FormulaCondition(
        "gradients that stay within their bound by themselves (here they are clipped to it)",
        plan.release.clip.bounds is None,
    )
    yield FormulaCondition("noise that each node draws for itself", plan.release.shared is None)
    yield FormulaCondition("no lost messages, and no node away", plan.faults is None)


def _do_adp(job: Job) -> PlannedPromise:
    return PlannedPromise(
        source="DO-ADP's theorems",
        steps=job.plan.steps,
        conditions=tuple(map(_told, _of_claim(job.plan))),
        missing=NOT_AT_HAND["DO-ADP"],
    )


def _fedspd_dp(job: Job) -> PlannedPromise:
    plan = job.plan
    options: Any = job.config.algorithm.options
    chosen = options.clients_per_round or len(plan.nodes)
    gamma = FormulaCondition(
        "gamma_t as Theorem 2 has it, algorithm.inverse_step = 'paper'",
        options.inverse_step == "paper",
    )
    return PlannedPromise(
        source="FedSPD-DP's Theorem 2",
        quantity="error of the objective",
        steps=plan.steps,
        order=fedspd_rate(
            participation=chosen / len(plan.nodes),
            rounds=plan.steps,
            local_steps=options.local_steps,
        ),
        conditions=tuple(map(_told, (*_of_claim(plan), gamma))),
        missing=NOT_AT_HAND["FedSPD-DP"],
    )


def _dyn_d2p(job: Job) -> PlannedPromise:
    return PlannedPromise(
        source="Dyn-D2P's Theorem 1 and Corollary 1",
        steps=job.plan.steps,
        missing=NOT_AT_HAND["Dyn-D2P"],
    )


def _of_claim(plan: Plan) -> Iterator[FormulaCondition]:
    """The conditions of the privacy formula, each of the first node that breaks it."""
    for alike in zip(*(node.conditions for node in plan.nodes), strict=True):
        yield next((condition for condition in alike if not condition.holds), alike[0])


def _told(condition: FormulaCondition) -> ClaimCondition:
    return ClaimCondition(text=condition.text, holds=condition.holds)


_PROMISES: Mapping[str, Callable[[Job], PlannedPromise]] = MappingProxyType(
    {
        "privsgp-vr": _privsgp_vr,
        "do-adp": _do_adp,
        "fedspd-dp": _fedspd_dp,
        **dict.fromkeys(("dyn-d2p", "dyn-c", "dyn-mu", "const-d2p", "dyn-general"), _dyn_d2p),
    }
)
