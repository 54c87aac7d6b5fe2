"""Recalibrating the trained model: on public records, or by counts of private ones under noise.

*Mechanism* of `task.calibrate = "private"`. After the last step everyone knows the common model and
the public records, and so the edges of bins. Each node releases c_i + Normal(0, s_i^2 I), where c_i
counts its records by class and bin of their log-odds: one release more, which plan, accountant and
ledger have as step K, charged before it leaves. *Sensitivity.* A record adds 1 to one count,
whatever it is: 1 in the l2 norm by `add-or-remove-one`, sqrt(2) by `replace-one`, accounted as 2.
*Trust model*: that of the run. What is fitted to the sum of all counts is post-processing. Proof:
`docs/proofs/calibration.md`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from tacit.communication.colours import Released
from tacit.communication.received import FLAG
from tacit.models.probabilities import Array, log_odds
from tacit.training.budget import covers_calibration
from tacit.training.evaluation import models_public
from tacit.training.job import Job
from tacit.training.noised_counts import shared_counts, with_noise
from tacit.training.recalibration import edges_of, fit, histogram
from tacit.training.state import RunState, keep_calibration


def calibrate(run: RunState) -> None:
    """Recalibrate the models of a run that ends, where the experiment asks for it."""
    job, how = run.job, run.job.config.task.calibrate
    if job.recalibration is None or run.status == "stopped":
        return
    if how == "private":
        done = run.calibration is not None
        known: list[bool] = run.peers.share("sign that it is calibrated", done, FLAG)
        if all(known):
            return
    run.calibration = None
    model = run.consensus
    if run.peers.processes > 1 and models_public(job):
        model = run.communication.mean(Released(run.models)).to(job.device, job.dtype)
    public, deviation = job.recalibration.public, 0.0
    odds = log_odds(job.model.outputs(model.unsqueeze(0), public.inputs)[0])
    if not np.isfinite(odds).all():
        run.notes = (*run.notes, "not calibrated: some log-odds of public records are not finite")
        return
    edges = edges_of(odds)
    if how == "public":
        counts = histogram(odds, public.targets, edges)
        of = f"{len(odds):,} public records, by which it is not scored"
    else:
        stds = [0.0] * len(run.plan.nodes)
        if run.plan.noisy:
            stds = [run.plan.release.noise_std(node, run.plan.steps) for node in run.plan.nodes]
        released = _released(run, model, edges)
        if released is None:
            run.notes = (*run.notes, "not calibrated: the budget of a node does not cover it")
            return
        counts, deviation = released, math.hypot(*stds)
        of = f"counts of private records by class and {len(edges) + 1} bins"
        of += f", with noise of deviation {deviation:.3g} in each" if deviation else ""
    run.calibration = fit(counts, odds, edges, deviation)
    slope, intercept = run.calibration
    told = f"calibrated: log-odds times {slope:.3g} plus {intercept:.3g}, fitted to {of}"
    run.notes = (*run.notes, told)
    if how == "private":
        keep_calibration(run)


def _released(run: RunState, model: Tensor, edges: Array) -> Array | None:
    """The noised counts of all nodes together, once ledgers have them; None: a budget forbids."""
    job, plan, step = run.job, run.plan, run.plan.steps
    # A process that comes back to its session has reserved it, and makes the same message again.
    again = any(until > step for own in run.since.values() for _, until in own)
    covered = again or run.ledger is None or covers_calibration(plan, run.ledger)
    agreed: list[bool] = run.peers.share("sign that budgets cover it", covered, FLAG)
    if not all(agreed):
        return None
    if run.ledger is not None and not again:
        run.ledger.reserve(step, step + 1)
    own = [_counted(job, model, edges, place) for place in range(len(job.hosted))]
    totals = torch.from_numpy(np.stack(own))
    noised = with_noise(plan, totals, job.hosted, step, run.peers.session)
    what, width = "noised counts of records", totals.shape[1]
    rows = shared_counts(what, noised, width, job.placement, run.peers)
    return np.array([math.fsum(column) for column in zip(*rows, strict=True)])


def _counted(job: Job, model: Tensor, edges: Array, place: int) -> Array:
    """The true counts of a node, exact; they do not leave this process."""
    first, size = int(job.train.offsets[place]), int(job.train.sizes[place])
    rows = torch.arange(first, first + size, device=job.train.targets.device)
    # One by one, each in memory of its own: what is beside a record must not round its log-odds.
    inputs = (job.train.inputs_of(row).clone() for row in torch.split(rows, 1))
    odds = [log_odds(job.model.outputs(model.unsqueeze(0), row)[0]) for row in inputs]
    return histogram(np.concatenate(odds), job.train.targets[rows], edges)
