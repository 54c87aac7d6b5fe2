"""A plan and the table of algorithms, as data and for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tacit.algorithms import ALGORITHMS, find_algorithm, installed
from tacit.analysis.promise import planned_promise
from tacit.communication.peers import ALONE
from tacit.report.documents.base import plain_json
from tacit.report.documents.plan import PlanDocument, PlannedNode
from tacit.report.plan_page import PlanNames, plan_blocks
from tacit.report.terminal import terminal
from tacit.report.view import Block, Table
from tacit.training import weights
from tacit.training.budget import epsilon_by_colluders, unit_spent
from tacit.training.job import Job
from tacit.training.plan import Plan
from tacit.training.release import NodePlan
from tacit.training.run_folder.result import bytes_per_step, mechanism_line, message_bytes

if TYPE_CHECKING:
    from tacit.training.api import Source


@dataclass(frozen=True, repr=False)
class Planned:
    """What `tacit plan` prints, of which `document` has all figures."""

    document: PlanDocument
    names: PlanNames

    def to_dict(self) -> dict[str, Any]:
        """What `tacit plan --json` writes; `per_node` has a row a node."""
        return dict(plain_json(self.document))

    def __repr__(self) -> str:
        console = Console(width=110, emoji=False, color_system=None)
        with console.capture() as shown:
            terminal(plan_blocks(self.document, self.names), console)
        return shown.get().rstrip()


def plan(config: Source, **data: Any) -> Planned:
    """What a run would do and cost; nothing is trained, sent or charged.

    `data` are `model`, `nodes`, `test`, `loss`, `metric`, `output`, `schema`, `units` and
    `graph`, as `tacit.train` takes them; errors are the same.
    """
    from tacit.training.api import understood  # which loads what trains

    job = understood(config, None, data)[1](ALONE)
    return Planned(plan_document(job), plan_names(job))


def plan_document(job: Job) -> PlanDocument:
    """The plan as a document."""
    plan = job.plan
    size = job.dtype.itemsize
    per_step = bytes_per_step(plan, message_bytes(plan, size) / size, size)
    bounds, last = plan.release.clip.bounds, plan.steps - 1
    shared, pairs = plan.release.shared, plan.release.pairs
    by_colluders = epsilon_by_colluders(plan)
    return PlanDocument(
        algorithm=plan.config.algorithm.name,
        dataset=plan.config.task.dataset,
        nodes=len(plan.nodes),
        parameters=plan.parameters,
        steps=plan.steps,
        relation=plan.config.privacy.relation if plan.accounted else None,
        trust_model=plan.release.trust_model if plan.accounted else None,
        unit=unit_spent(plan),
        colluding=None if shared is None else shared.colluding,
        pair_noise=None if pairs is None else pairs.ratio,
        mechanism=mechanism_line(plan),
        clip=None if bounds is None else (bounds[0], bounds[last]),
        graph=plan.mixing.schedule.name,
        mixing=plan.mixing.kind,
        rounds=plan.rounds,
        contraction=plan.contraction,
        spectral_gap=None if plan.contraction is None else 1 - plan.contraction,
        bytes_per_step=per_step.mean().item(),
        gradient_path=job.model.path,
        metrics=tuple(metric.name for metric in job.metrics),
        baselines=job.baselines.by_name(job.metrics),
        warnings=plan.warnings,
        notes=plan.notes,
        promise=planned_promise(job),
        per_node=tuple(
            _planned_node(plan, node, share, tuple(row[node.node] for row in by_colluders))
            for node, share in zip(plan.nodes, weights.shares(plan.nodes), strict=True)
        ),
    )


def _planned_node(
    plan: Plan, node: NodePlan, share: weights.Share, by_colluders: tuple[float | None, ...]
) -> PlannedNode:
    release, last, names = plan.release, plan.steps - 1, plan.config.nodes.names
    more: dict[str, Any] = {} if names is None else {"name": names[node.node]}
    first_std, last_std = (release.noise_std(node, k) / node.divisor for k in (0, last))
    own = {key: value for key, value in asdict(node).items() if "guess" not in key or value}
    return PlannedNode(
        **own,
        signal_share=share.signal,
        noise_share=share.noise,
        noise_multiplier=(release.noise_multiplier(node, 0), release.noise_multiplier(node, last)),
        own_noise_multiplier=(release.own_multiplier(node, 0), release.own_multiplier(node, last)),
        noise_std=(first_std, last_std),
        epsilon_by_colluders=by_colluders,
        **more,
    )


def plan_names(job: Job) -> PlanNames:
    """What people are told of a plan beside its document."""
    task, fallback = job.config.task, "loss" if job.loss.accuracy is None else "accuracy"
    return PlanNames(
        title=job.config.algorithm.definition.title,
        model=task.model,
        features=None if job.features is None else job.features.words(),
        scores=[metric.name for metric in job.metrics] or [fallback],
        test_records=None if job.test is None else len(job.test),
        clipped=job.plan.release.clip.enforced,
    )


def algorithms_document() -> list[dict[str, Any]]:
    """The table of algorithms as JSON-ready data."""
    return [
        {
            "name": row.name,
            "title": row.title,
            "paper": row.paper,
            "summary": row.summary,
            "setting": row.setting,
            "weights": row.graph.weights,
            "private": row.private,
            "claim": None if row.claims.formula is None else row.claims.formula.statement,
            "options": {key: field.default for key, field in row.options.model_fields.items()},
        }
        for row in map(find_algorithm, (*ALGORITHMS, *installed()))
    ]


def algorithms_blocks() -> list[Block]:
    """The table of algorithms for people."""
    rows = [
        (
            row.name,
            "yes" if row.private else "no",
            row.summary,
            row.graph.weights.removesuffix("-stochastic"),
            row.paper,
            "-" if row.claims.formula is None else row.claims.formula.source,
        )
        for row in map(find_algorithm, (*ALGORITHMS, *installed()))
    ]
    columns = ("name", "private", "what it is", "mixing stochastic", "paper", "its claim")
    return [Table(columns, rows, left=columns)]
