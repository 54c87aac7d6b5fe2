"""Making a plan: from an experiment and the sizes of the nodes' data, or a refusal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tacit import privacy
from tacit.algorithms import Schedules
from tacit.config import Config
from tacit.errors import BudgetError, InputError
from tacit.plan import NodePlan, Plan
from tacit.privacy.calibration import least_scale
from tacit.topology import (
    Mixing,
    build_mixing,
    build_schedule,
    check_column_stochastic,
    check_doubly_stochastic,
    check_strongly_connected,
    contraction,
)

__all__ = ["build_plan"]

_CHECKS = {
    "column-stochastic": check_column_stochastic,
    "doubly-stochastic": check_doubly_stochastic,
}


def build_plan(config: Config, records: Sequence[int], parameters: int) -> Plan:
    """Decide everything, and refuse what cannot be.

    Args:
        config: the experiment.
        records: J of each node.
        parameters: d.

    Raises:
        InputError: the settings contradict each other or the data.
        BudgetError: a node's budget cannot be met.
    """
    mixing = _mixing(config)
    nodes = tuple(_sampling(config, node, count) for node, count in enumerate(records))
    schedules = _schedules(config, nodes)
    plan = Plan(
        config=config,
        parameters=parameters,
        nodes=nodes,
        clip=schedules.clip,
        noise_shape=schedules.noise_shape,
        mixing=mixing,
        contraction=contraction(mixing),
    )
    if not plan.noisy:
        return plan
    plan = replace(plan, nodes=_noised(plan))
    return replace(plan, warnings=_warnings(plan))


def _mixing(config: Config) -> Mixing:
    topology, algorithm = config.topology, config.algorithm.definition
    schedule = build_schedule(topology.graph, config.nodes.count, degree=topology.degree)
    if algorithm.weights == "doubly-stochastic" and schedule.directed:
        raise InputError(
            "topology.graph",
            topology.graph,
            f"is directed, and {algorithm.name} needs symmetric weights: choose an undirected "
            "graph (ring, complete, k-regular, star) or a push-sum method (privsgp, dyn-d2p)",
        )
    check_strongly_connected(schedule)
    mixing = build_mixing(schedule, topology.mixing)
    check = _CHECKS[algorithm.weights]
    for matrix in mixing.matrices:
        check(matrix, "topology.mixing")
    return mixing


def _sampling(config: Config, node: int, records: int) -> NodePlan:
    batch = config.train.batch
    size = records if batch == "all" else min(batch, records)
    return NodePlan(node=node, records=records, rate=size / records, expected_batch=float(size))


def _schedules(config: Config, nodes: Sequence[NodePlan]) -> Schedules:
    """Clip and noise shape as they will run."""
    batch, largest = config.train.batch, max(node.records for node in nodes)
    if batch != "all" and batch > largest:
        raise InputError(
            "train.batch", batch, f"is above every node's records: at most {largest}, or 'all'"
        )
    chosen, settings = config.algorithm, config.privacy
    accounted = settings.noisy and settings.accounting != "none"
    clip = chosen.options.clip
    if clip is None and accounted:
        clip = chosen.definition.default_clip
    made: Schedules = chosen.definition.schedules(chosen.options, clip, config.train.steps)
    return made


@dataclass(frozen=True)
class _Wanted:
    """What decides a node's noise: nodes that agree in it share the work."""

    records: int
    budget: float | None
    delta: float


def _noised(plan: Plan) -> tuple[NodePlan, ...]:
    """The nodes with their noise scale, and what it costs."""
    settings, per_node = plan.config.privacy, plan.config.per_node
    budgets: Sequence[float | None] = (None,) * len(plan.nodes)
    if settings.epsilon != "none":
        budgets = per_node(settings.epsilon)
    wanted = [
        _Wanted(node.records, budget, delta)
        for node, budget, delta in zip(plan.nodes, budgets, per_node(settings.delta), strict=True)
    ]
    costs: dict[_Wanted, NodePlan] = {}
    failures: list[str] = []
    near = 1.0  # nodes in the order of their rates: each scale is a good guess for the next
    for node, want in sorted(zip(plan.nodes, wanted, strict=True), key=lambda row: row[0].rate):
        if want in costs:
            continue
        delta = want.delta if plan.accounted else None
        try:
            costs[want] = _costed(plan, replace(node, budget=want.budget, delta=delta), near)
        except BudgetError as error:
            same = [index for index, other in enumerate(wanted) if other == want]
            failures.append(f"{_listed(same)}: {error}")
            costs[want] = node
        near = costs[want].noise_scale or near
    if failures:
        more = f"; and {len(failures) - 3} more groups of nodes" if len(failures) > 3 else ""
        raise BudgetError("; ".join(failures[:3]) + more)
    return tuple(replace(costs[want], node=node) for node, want in enumerate(wanted))


def _costed(plan: Plan, node: NodePlan, near: float) -> NodePlan:
    """A node with its noise scale, certified epsilon and claim."""
    node = replace(node, noise_scale=_noise_scale(plan, node, near))
    if node.delta is None:
        return node
    certified = privacy.epsilon(plan.mechanism(node), delta=node.delta)
    settings = plan.config.privacy
    if settings.noise_std is not None and node.budget is not None and certified > node.budget:
        enough = _calibrated(plan, node, near=node.noise_scale) / node.noise_scale
        raise BudgetError(
            f"privacy.noise_std = {settings.noise_std:g} costs epsilon {_up(certified)} in "
            f"{plan.steps} steps, above the budget of {node.budget:g}: noise_std = "
            f"{_up(settings.noise_std * enough)} or fewer steps would keep it"
        )
    formula = plan.config.algorithm.definition.formula
    if formula is None:
        return replace(node, epsilon=certified)
    run = plan.claimed_run(node)
    return replace(
        node, epsilon=certified, claimed=formula.epsilon(run), conditions=formula.conditions(run)
    )


def _noise_scale(plan: Plan, node: NodePlan, near: float) -> float:
    """What the noise shape is multiplied by: given, calibrated, or as the paper prints it."""
    settings = plan.config.privacy
    if settings.noise_std is not None:
        # The standard deviation in the batch mean at the first step.
        unit = plan.noise_std(replace(node, noise_scale=1.0), 0)
        return settings.noise_std * node.expected_batch / unit
    formula = plan.config.algorithm.definition.formula
    if settings.accounting == "published" and formula is not None and node.budget is not None:
        claim = formula.epsilon
        return least_scale(
            lambda scale: claim(plan.claimed_run(replace(node, noise_scale=scale))),
            target=node.budget,
            tolerance=1e-9,
        )
    return _calibrated(plan, node, near)


def _calibrated(plan: Plan, node: NodePlan, near: float) -> float:
    """The least noise scale whose certified epsilon is within the node's budget."""
    if node.budget is None or node.delta is None:
        raise InputError("privacy.epsilon", node.budget, "is needed to calibrate the noise")
    return privacy.calibrate(
        lambda scale: plan.mechanism(replace(node, noise_scale=scale)),
        epsilon=node.budget,
        delta=node.delta,
        start=near,
    )


def _warnings(plan: Plan) -> tuple[str, ...]:
    """What is allowed, but seldom meant."""
    found = []
    if plan.config.privacy.noise_seed is not None:
        found.append("noise_seed is set: anyone can recompute the noise, the run is NOT PRIVATE")
    loose = [
        node for node in plan.nodes if node.delta is not None and node.delta * node.records >= 1
    ]
    if loose:
        found.append(
            f"privacy.delta = {loose[0].delta:g} is at least 1 / J at "
            f"{_listed([node.node for node in loose])}: publishing one record at random, noise or "
            "no noise, would satisfy it"
        )
    return tuple(found)


def _listed(nodes: Sequence[int]) -> str:
    """Name a few nodes: `node 3`, `nodes 0, 1, 2 and 13 more`."""
    if len(nodes) == 1:
        return f"node {nodes[0]}"
    shown = ", ".join(str(node) for node in nodes[:3])
    return f"nodes {shown}" + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")


def _up(value: float) -> str:
    """Three significant digits, never rounded down."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return f"{math.ceil(value / unit - 1e-9) * unit:.6g}"
