"""What the paper of a planned run promises of its result: the paper's own words.

A promise is no certified statement: it is evaluated as printed, for the run at hand, beside the
conditions of its theorem that the run breaks. Nothing is estimated here: constants of the problem
come from `[promise]` alone, and without them the plan says which terms it cannot evaluate. What a
paper promises stands with its algorithm, as `PaperClaims.promise`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tacit.algorithms.options import step_size
from tacit.algorithms.promise import PromisedRun
from tacit.privacy.published import Budget, FormulaCondition
from tacit.report.documents.plan import PlannedPromise
from tacit.training.job import Job
from tacit.training.plan import Plan


def planned_promise(job: Job) -> PlannedPromise | None:
    """What the run's paper promises; None where it promises nothing of utility, or not of this."""
    algorithm = job.config.algorithm.definition
    if algorithm.claims.promise is None or job.config.nodes.empty:  # its nodes have records
        return None
    plan, release, config = job.plan, job.plan.release, job.config
    options, bounds = plan.config.algorithm.options, release.clip.bounds
    start = job.model.start(1, job.dtype, job.device)[0]
    claimable = plan.noisy and bounds is not None
    # Of each condition of the privacy formula, the first node that breaks it.
    conditions = zip(*(node.conditions for node in plan.nodes), strict=True)
    broken = (next((one for one in alike if not one.holds), alike[0]) for alike in conditions)
    promised = PromisedRun(
        options=options,
        steps=plan.steps,
        parameters=plan.parameters,
        records=tuple(node.records for node in plan.nodes),
        rates=tuple(step_size(options, k, plan.steps) for k in range(plan.steps)),
        expected_batch=max(node.expected_batch for node in plan.nodes),
        budgets=_budgets(plan),
        clip=bounds,
        noise=unit_noise(plan),
        variances=noise_variances(plan),  # of anchors as of other steps: no theorem knows them
        start_norm=float(start.double().square().sum()),
        constants={
            key: math.nan if value is None else value for key, value in dict(config.promise).items()
        },
        c2=config.privacy.published_constant,
        claimed=[release.claimed_run(node) for node in plan.nodes] if claimable else (),
        claim_conditions=tuple(broken),
        mixing=plan.mixing,
        general=(
            FormulaCondition("noise that each node draws for itself", release.shared is None),
            FormulaCondition("no lost messages, and no node away", plan.faults is None),
            FormulaCondition(
                "nodes that count alike, whatever their records (nodes.weights = 'equal')",
                all(node.weight == 1 for node in plan.nodes),
            ),
            *[FormulaCondition("noise and batches that are drawn anew at each step", False)]
            * (release.over_time is not None),
        ),
    )
    return algorithm.claims.promise(promised)


def _budgets(plan: Plan) -> tuple[Budget, ...] | None:
    """Every node's budget, as it was asked for; None where one has none."""
    found = [
        Budget(node.records, node.budget, node.delta)
        for node in plan.nodes
        if node.budget is not None and node.delta is not None
    ]
    return tuple(found) if len(found) == len(plan.nodes) else None


def unit_noise(plan: Plan) -> tuple[float, ...]:
    """Of each step, the noise deviation in the sum over a batch of a node whose scale is 1."""
    unit = replace(plan.nodes[0], noise_scale=1.0)
    return tuple(plan.release.noise_std(unit, k) for k in range(plan.steps))


def noise_variances(plan: Plan) -> tuple[float, ...]:
    """Of each node's own noise in a coordinate of its batch mean, the mean over the steps."""
    unit = math.fsum(level * level for level in unit_noise(plan)) / plan.steps
    return tuple(unit * ((node.noise_scale or 0.0) / node.divisor) ** 2 for node in plan.nodes)
