"""An audit from beginning to end: attacks, one training with canaries, and tests of fidelity.

Attacks and tests of noise and sampling look at the *laboratory*, where records have worst-case
gradients and node-steps are cheap. Everything else looks at the experiment's own model and records.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from tacit import privacy
from tacit.analysis.audit.attacks import (
    Progress,
    Target,
    choose_target,
    one_run_attacks,
    seed_of,
    signals_attack,
    worst_cases,
)
from tacit.analysis.audit.canaries import run_once
from tacit.analysis.audit.colluders import colluders_of
from tacit.analysis.audit.fidelity.accounted import unit_findings
from tacit.analysis.audit.fidelity.finding import MOST_TESTS, Finding
from tacit.analysis.audit.fidelity.interference import interference_findings
from tacit.analysis.audit.fidelity.leaving import leaving_findings
from tacit.analysis.audit.fidelity.noise import noise_findings, pair_noise_findings
from tacit.analysis.audit.fidelity.noise_sample import NoiseSample, noise_sample
from tacit.analysis.audit.fidelity.pair_noise import (
    PairSample,
    ends_finding,
    keys_finding,
    pair_sample,
)
from tacit.analysis.audit.fidelity.sampling import sampling_findings
from tacit.analysis.audit.fidelity.sensitivity import sensitivity_findings
from tacit.analysis.audit.laboratory import WIDTH
from tacit.analysis.audit.recorder import ContextFactory, run_traced, seeded
from tacit.analysis.audit.report import AuditOptions, audit_document
from tacit.analysis.settings.processes import call_there
from tacit.config import Config
from tacit.errors import InputError
from tacit.report.documents.claims import AuditDocument, AuditedModel
from tacit.training.job import Job
from tacit.training.plan import Plan
from tacit.training.prepare import prepare
from tacit.training.processes.communication import local_exchange
from tacit.training.run_folder.result import mechanism_line
from tacit.training.stacked_context import StackedContext

DEFAULT_OPTIONS = AuditOptions()

LEAST_STEPS, MOST_NUMBERS = 4, 2**23  # of all nodes' noise in the own model's run
MOST_WORK = 5e9  # records times parameters of that run: some seconds
COMPARED_WORK, MOST_COMPARED = 5e8, 400  # records times parameters of a run on others; its steps
RESERVED = 64  # seeds that the runs on other records may use
SECONDS = 20.0  # that the search for worst-case records takes, by default


def _silent(what: str, done: int, total: int) -> None:
    """No progress line."""


def audit(
    config: Config,
    *,
    options: AuditOptions = DEFAULT_OPTIONS,
    model: nn.Module | None = None,
    nodes: Sequence[Any] | None = None,
    progress: Progress = _silent,
    executor: Executor | None = None,
) -> AuditDocument:
    """Attack what an experiment releases, and test whether what runs is what was certified.

    Model and nodes are as `tacit.train` takes them; `progress` hears what is done. All of it is
    one job of an `executor`, if there is one. A bound that is infinite is null in the JSON of the
    document.

    Raises:
        InputError: the experiment is wrong, adds no noise or does not clip.
        BudgetError: a node's budget cannot be met.
    """
    if executor is not None:
        there = partial(audit, config, options=options, model=model, nodes=nodes)
        document: AuditDocument = call_there(executor, there)
        return document
    job = prepare(config, model=model, nodes=nodes, keep_raw=True)
    return audit_job(job, options=options, progress=progress)


def audit_job(
    job: Job,
    *,
    options: AuditOptions = DEFAULT_OPTIONS,
    context: ContextFactory = StackedContext,
    progress: Progress = _silent,
) -> AuditDocument:
    """`audit` of a prepared experiment, with the code that executes a step as an argument.

    It writes nothing where a run may have written.
    """
    if job.config.faults.simulated:
        raise InputError(
            "faults", "simulated", "leave them out in an audit: what is lost tells an observer less"
        )
    if job.plan.release.sums is not None:
        raise InputError(
            "privacy.aggregation",
            "secure-sum",
            "leaves no noised value of one client to an observer, which audits attack: audit the "
            "same experiment with 'clear'",
        )
    chosen = job.config.algorithm
    table = chosen.definition.table(chosen.options)
    if table is None or table.directory is None:
        return _audit(job, options, context, progress)
    # On the same disk: a table lies there because memory is too small for it.
    place = table.directory.absolute()
    disk = next(folder for folder in (place, *place.parents) if folder.is_dir())
    with tempfile.TemporaryDirectory(dir=disk) as folder:
        elsewhere = chosen.options.model_copy(update={"table_directory": folder})
        algorithm = chosen.model_copy(update={"options": elsewhere})
        config = job.plan.config.model_copy(update={"algorithm": algorithm})
        own = replace(job, plan=replace(job.plan, config=config))
        return _audit(own, options, context, progress)


def _audit(
    job: Job, options: AuditOptions, context: ContextFactory, progress: Progress
) -> AuditDocument:
    began = time.perf_counter()
    plan = job.plan
    target = choose_target(plan, options)
    attacks, traces, drawn, laboratory = worst_cases(plan, target, options, context, progress)
    progress("tests of the laboratory", 0, 1)
    own, copies, where = laboratory.plan, laboratory.copies, "the laboratory"
    sample = noise_sample(traces, own, steps=laboratory.steps, copies=copies, where=where)
    pairs = pair_sample(traces, own, copies=copies, where=where)
    shared = [] if pairs is None else [pairs]
    findings = sampling_findings(drawn)
    findings += _own_findings(job, sample, shared, options, context, progress)
    assert len(findings) <= MOST_TESTS
    if options.canaries:
        one_run = run_once(
            job,
            nodes=target.nodes,
            steps=target.steps,
            relation=target.relation,
            canaries=options.canaries,
            seed=seed_of(options, 0, 0),
            context=context,
            canary="unlike",
            colluders=colluders_of(plan, target.node, target.colluding or 0, target.steps),
            on_step=lambda k: progress("one training", k, target.steps),
        )
        attacks.extend(one_run_attacks(one_run, plan, target))
    if options.signals:
        attacks.append(signals_attack(plan, target, options, context))
    said, words = plan.unit.said, ("question", "meaning", "saw", "power")
    named = [attack.model_copy(update={"name": said(attack.name)}) for attack in attacks]
    told = [
        finding.model_copy(update={key: said(getattr(finding, key)) for key in words})
        for finding in findings
    ]
    return audit_document(
        named,
        told,
        confidence=options.confidence,
        claimed=target.claimed,
        hides=plan.config.algorithm.definition.releases.hides(plan.config.algorithm.options),
        certified_epsilon=target.certificate[target.delta],
        smallest_excess=smallest_excess(findings, plan, target),
        delta=target.delta,
        algorithm=plan.config.algorithm.name,
        relation=target.relation,
        mechanism=mechanism_line(plan) or "",
        trust_model=plan.release.trust_model,
        colluding=target.colluding,
        tolerated=None if plan.release.pairs is None else plan.release.pairs.colluding,
        guaranteed_epsilon=target.guaranteed,
        nodes=target.nodes,
        steps=target.steps,
        tested=(
            AuditedModel(
                place="own model",
                model=job.config.task.model,
                parameters=plan.parameters,
                gradient_path=job.model.path,
            ),
            AuditedModel(
                place="laboratory",
                model="linear, with worst-case gradients",
                parameters=WIDTH,
                gradient_path="closed form",
            ),
        ),
        seconds=time.perf_counter() - began,
    )


def smallest_excess(findings: Sequence[Finding], plan: Plan, target: Target) -> float | None:
    """The epsilon from which weaker noise is found with the chance `fidelity.finding.POWER`.

    Of all tests that state such a defect, the one that finds the smallest counts: another test
    need not find it, since one that fails is enough. None if no test does.
    """
    factors = [finding.noise_factor for finding in findings if finding.noise_factor is not None]
    return epsilon_of_weaker_noise(plan, target, max(factors)) if factors else None


def epsilon_of_weaker_noise(plan: Plan, target: Target, factor: float) -> float:
    """Epsilon of the audited steps if all noise of the node were `factor` times the planned one.

    It is certified as that of the plan is, for the same mechanism with another noise, and so
    rounded up; infinite where nothing is certified.
    """
    if factor <= 0:
        return math.inf
    weaker = replace(target.node, noise_scale=target.node.noise_scale * factor)
    try:
        mechanism = plan.release.mechanism(weaker, [(0, target.steps)])
        return privacy.epsilon(mechanism, delta=target.delta)
    except InputError:  # no certificate is finite
        return math.inf


def _own_findings(
    job: Job,
    laboratory: NoiseSample,
    shared: list[PairSample],
    options: AuditOptions,
    context: ContextFactory,
    progress: Progress,
) -> list[Finding]:
    """What the tests find in runs of the experiment's own model, and in all noise.

    `laboratory` and `shared` are samples of the laboratory's noise: of nodes, and of pairs.
    """
    plan, seed = job.plan, seed_of(options, 15, 0)
    # Of the own model on its own records, as many steps as are worth it.
    drawn = sum(node.expected_batch for node in plan.nodes) * plan.release.local_steps
    numbers = len(plan.nodes) * plan.parameters
    most = min(MOST_NUMBERS / numbers, MOST_WORK / (drawn * plan.parameters))
    steps = min(plan.steps, max(LEAST_STEPS, int(most)))
    own = run_traced(
        seeded(plan, seed),
        job.model,
        job.train,
        local_exchange(job),
        context=context,
        steps=steps,
        on_step=lambda k, points, trace: progress("noise of the own model", k + 1, steps),
    )
    progress("tests of the noise", 0, 1)
    sample = noise_sample([own], plan, steps=steps, where="the run of your own model")
    findings = noise_findings([laboratory, sample])
    own_pairs = pair_sample([own], plan, where="the run of your own model")
    if own_pairs is not None:
        looked_at = [*shared, own_pairs]
        findings += pair_noise_findings([one.noise for one in looked_at])
        findings += [ends_finding(looked_at), keys_finding(job)]
    progress("runs on other records", 0, 1)
    # All steps of a small experiment, the first ones of others.
    most = COMPARED_WORK / ((drawn + len(plan.nodes)) * plan.parameters)
    compared = min(plan.steps, MOST_COMPARED, max(LEAST_STEPS, int(most)))
    findings += interference_findings(job, context=context, seed=seed + 1, steps=compared)
    findings += unit_findings(job)
    progress("what leaves a process", 0, 1)
    findings += leaving_findings(job, context=context)
    progress("search for worst-case records", 0, 1)
    seconds = SECONDS if options.seconds is None else options.seconds
    findings += sensitivity_findings(job, context=context, seed=seed + RESERVED, seconds=seconds)
    return findings
