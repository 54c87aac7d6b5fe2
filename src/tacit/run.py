"""Runs a plan: steps, metrics, checkpoints, resume, and the books.

Order of what is durable: a block of steps is booked in the ledger, then they run, then a
checkpoint may be written. A clean stop settles the books at the step reached; after a kill the
whole block counts, and the repeated steps are charged again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit import checkpoint as checkpoints
from tacit import folder as folders
from tacit import metrics as measured
from tacit.checkpoint import Checkpoint
from tacit.config import Config
from tacit.errors import DivergenceError, InputError
from tacit.exchange import InProcessExchange
from tacit.folder import RunFolder
from tacit.memory import kept_memory
from tacit.metrics import Evaluation
from tacit.plan import Plan
from tacit.prepare import Job
from tacit.report import write_report
from tacit.result import Claim, Result, Status, document, privacy_state
from tacit.spending import (
    Books,
    affordable,
    check_shared,
    claimed_spent,
    epsilon_spent,
    extremes,
    node_keys,
    open_ledger,
    open_shared,
)
from tacit.world import StackedWorld

__all__ = ["Progress", "execute"]

EVALUATIONS = 20  # by default, over a run
CHECKPOINTS = 10
BLOCKS = 100  # of steps, booked one at a time
DATA_BLOCKS = 20  # where each node has a file of its own to write
FINITE_CHECK_EVERY = 8
_WORLD = "world."  # of what a checkpoint holds beside the algorithm's state


@dataclass(frozen=True)
class Progress:
    """What the progress line shows; loss and accuracy are those of the last evaluation."""

    step: int
    steps: int
    loss: float | None
    accuracy: float | None
    epsilon: float | None
    steps_per_second: float


def _ignore(progress: Progress) -> None:
    """No progress line."""


def _never() -> bool:
    """Nobody asks to stop."""
    return False


def execute(
    job: Job,
    *,
    out: Path | None = None,
    resume: bool = False,
    on_step: Callable[[Progress], None] = _ignore,
    should_stop: Callable[[], bool] = _never,
) -> Result:
    """Run a prepared job to its end, to a clean stop, or to the end of its budget.

    Args:
        job: what to run.
        out: the run folder to create, or with `resume` to continue; None writes nothing.
        resume: continue from the last checkpoint; steps that were booked and are run again are
            charged again.
        on_step: called after every step.
        should_stop: asked after every step; True ends the run cleanly.

    Raises:
        InputError: `out` exists (without `resume`), or holds another run (with it).
        BudgetError: nothing is left of the budget for a resumed run, or the budget of a node's
            data does not cover a new one.
        DivergenceError: the model of a node is no longer finite.
    """
    if resume and out is None:
        raise InputError("out", None, "name the run folder that is to be continued")
    with ExitStack() as stack:
        stack.enter_context(kept_memory())
        shared = stack.enter_context(open_shared(job.plan))
        if not resume:
            check_shared(job.plan, shared)
        folder = None
        if out is not None:
            folder = (folders.reopen if resume else folders.create)(out, job.config)
        ledger = open_ledger(job.plan, folder, resume, shared)
        if ledger is not None:
            stack.enter_context(ledger)
        session = _begin(job, folder, ledger, resume)
        _train(session, on_step, should_stop)
        return _finish(session)


@dataclass
class _Session:
    """The one mutable object of a run: where it stands."""

    job: Job
    folder: RunFolder | None
    ledger: Books | None
    exchange: InProcessExchange
    world: StackedWorld
    state: Any
    first: int
    until: int
    step: int
    seconds_before: float
    marks: tuple[int, ...]
    curves: dict[str, tuple[float | None, ...]]
    rows: list[dict[str, Any]]
    status: Status = "done"
    message: str | None = None
    evaluation: Evaluation | None = None
    began: float = field(default_factory=time.perf_counter)

    @property
    def plan(self) -> Plan:
        return self.job.plan

    @property
    def seconds(self) -> float:
        """Of training, over all sessions."""
        return self.seconds_before + time.perf_counter() - self.began

    @property
    def models(self) -> Tensor:
        """Every node's de-biased model, `[nodes, d]`; `[1, d]` where all have the same."""
        models: Tensor = self.job.config.algorithm.definition.models(self.state)
        return models

    @property
    def consensus(self) -> Tensor:
        """The common model, `[d]`."""
        common: Tensor = self.job.config.algorithm.definition.consensus(self.models, self.state)
        return common

    def spent(self, which: str) -> float | None:
        """Epsilon of the node that spends `most` or `least`: an upper bound at this step."""
        curve = self.curves[which]
        return next(
            (value for mark, value in zip(self.marks, curve, strict=True) if mark >= self.step),
            curve[-1],
        )


def _begin(job: Job, folder: RunFolder | None, ledger: Books | None, resume: bool) -> _Session:
    """Start, or pick up where the last checkpoint stands."""
    plan, config = job.plan, job.config
    algorithm, options = config.algorithm.definition, config.algorithm.options
    exchange = InProcessExchange(plan.mixing.matrices, dtype=job.dtype, device=job.device)
    world = StackedWorld(plan, job.model, job.train, node_keys(plan), exchange)
    origin = job.model.start(len(plan.nodes), job.dtype, job.device)
    state = algorithm.start(origin.clone(), options, world)
    first, seconds = 0, 0.0
    found = checkpoints.latest(folder.path) if folder is not None and resume else None
    if found is not None:
        saved = checkpoints.read(found, plan.digest())
        first, seconds = saved.step, saved.seconds
        tensors = {name: value.to(job.device) for name, value in saved.tensors.items()}
        exchange.bytes_sent = tensors.pop("exchange.bytes_sent").cpu().numpy().copy()
        inner = {name: tensors.pop(name) for name in list(tensors) if name.startswith(_WORLD)}
        world.load({name.removeprefix(_WORLD): value for name, value in inner.items()}, origin)
        state = type(state)(**tensors)
    before = {} if ledger is None else ledger.charged()
    until, message = affordable(plan, before, first, ledger if resume else None)
    rows = folder.keep_metrics(first) if folder is not None and resume else []
    session = _Session(
        job=job,
        folder=folder,
        ledger=ledger,
        exchange=exchange,
        world=world,
        state=state,
        first=first,
        until=until,
        step=first,
        seconds_before=seconds,
        marks=_marks(config, first, until),
        curves={},
        rows=rows,
        message=message,
        status="done" if message is None else "budget-exhausted",
    )
    session.curves = {
        which: plan.epsilon_curve(node, before.get(node.node, ()), first, session.marks)
        for which, node in extremes(plan).items()
    }
    return session


def _train(
    session: _Session, on_step: Callable[[Progress], None], should_stop: Callable[[], bool]
) -> None:
    """Every step from where the session stands, then the gossip-only rounds."""
    config = session.job.config
    algorithm, options = config.algorithm.definition, config.algorithm.options
    saves = config.train.checkpoint_every or _share(session.plan.steps, CHECKPOINTS)
    block = _share(session.plan.steps, DATA_BLOCKS if config.privacy.ledger else BLOCKS)
    if session.step == 0 and not session.rows:
        _record(session)
    booked = session.step
    while session.step < session.until:
        k = session.step
        if k >= booked and session.ledger is not None:
            booked = min(k + block, session.until)
            session.ledger.reserve(k, booked)
        session.state = algorithm.step(session.state, k, options, session.world)
        session.step = k + 1
        stop = should_stop()
        last = stop or session.step == session.until
        evaluated = session.step in session.marks
        saved = last or session.step % saves == 0
        if evaluated or saved or session.step % FINITE_CHECK_EVERY == 0:
            _check_finite(session)
        if evaluated and not last:
            _record(session)
        if last and session.ledger is not None:
            session.ledger.settle(session.step)
        if saved:
            _save(session)
        on_step(_progress(session))
        if stop and session.step < session.until:
            session.status, session.message = "stopped", "by the user"
            break
    if session.status != "stopped":
        for extra in range(algorithm.final_rounds(options)):
            session.state = algorithm.mix(session.state, session.step + extra, session.world)
    _check_finite(session)


def _finish(session: _Session) -> Result:
    """Measure, write down, and hand over."""
    job, plan, folder = session.job, session.plan, session.folder
    seconds = session.seconds
    _record(session, whole=True)
    charged = {} if session.ledger is None else session.ledger.charged()
    epsilon = epsilon_spent(plan, charged)
    claimed = claimed_spent(plan, session.step)
    models = session.models.expand(len(plan.nodes), -1).contiguous()
    consensus = session.consensus
    if folder is not None:
        folder.write_tensors("model.safetensors", job.model.module(consensus).state_dict())
        folder.write_tensors("nodes.safetensors", {"parameters": models})
    content = _document(session, epsilon, seconds)
    if folder is not None:
        folder.write_json("result.json", content)
        write_report(folder.path)
    return Result(
        parameters=models,
        consensus=consensus,
        metrics=measured.series(session.rows),
        epsilon=epsilon,
        claims=tuple(
            Claim(node.node, claim, spent, None, node.budget, node.delta)
            for node, claim, spent in zip(plan.nodes, claimed, epsilon, strict=True)
        ),
        test_accuracy=content["test_accuracy"],
        test_loss=content["test_loss"],
        private=privacy_state(plan)[0],
        bytes_sent=tuple(session.exchange.bytes_sent.tolist()),
        steps=session.step,
        seconds=seconds,
        status=session.status,
        message=session.message,
        plan=plan,
        out=None if folder is None else folder.path,
        job=job,
    )


def _document(session: _Session, epsilon: Sequence[float | None], seconds: float) -> dict[str, Any]:
    return document(
        session.job,
        status=session.status,
        message=session.message,
        steps=session.step,
        epsilon=epsilon,
        claimed=claimed_spent(session.plan, session.step),
        evaluation=session.evaluation,
        exchange=session.exchange,
        seconds=seconds,
    )


def _record(session: _Session, *, whole: bool = False) -> None:
    """Measure where the run stands, and append it to the series."""
    job, plan = session.job, session.plan
    models = session.models
    session.evaluation = None
    if job.test is not None:
        records = None if whole else job.config.train.evaluate_records
        session.evaluation = measured.evaluate(
            job.model,
            job.loss,
            models,
            session.consensus,
            job.test,
            records,
            nodes=len(plan.nodes),
        )
    k = max(session.step - 1, 0)
    clip = None if plan.clip is None else plan.clip[k]
    noise = [plan.noise_std(node, k) / node.expected_batch for node in plan.nodes]
    claims = [claim for claim in claimed_spent(plan, session.step) if claim is not None]
    most, least = session.spent("most"), session.spent("least")
    row = {
        "step": session.step,
        "test_accuracy": session.evaluation and session.evaluation.accuracy_summary(),
        "test_loss": session.evaluation and session.evaluation.loss_summary(),
        **measured.private_row(
            measured.private_metrics(session.world.last, session.world.last_mask, clip)
        ),
        "consensus_distance": measured.consensus_distance(models),
        "clip": clip,
        "noise_std": sum(noise) / len(noise) if plan.noisy else None,
        "epsilon": None if most is None else {"max": most, "min": least},
        "claimed_epsilon": {"max": max(claims), "min": min(claims)} if claims else None,
        "bytes_sent": float(session.exchange.bytes_sent.mean()),
        "seconds": session.seconds,
    }
    session.rows = [kept for kept in session.rows if kept["step"] < session.step] + [row]
    if session.folder is not None:
        session.folder.append_metrics(row)


def _save(session: _Session) -> None:
    if session.folder is None:
        return
    tensors = dict(zip(session.state._fields, session.state, strict=True))
    tensors |= {f"{_WORLD}{name}": value for name, value in session.world.tensors().items()}
    tensors["exchange.bytes_sent"] = torch.from_numpy(session.exchange.bytes_sent)
    checkpoints.write(
        session.folder.path,
        Checkpoint(session.step, tensors, session.seconds, session.plan.digest()),
    )


def _check_finite(session: _Session) -> None:
    """Stop at a model that is not finite, before it is saved over a good one."""
    models = session.models
    # One pass; a finite sum can only come of finite numbers.
    if bool(torch.isfinite(models.sum())) or bool(torch.isfinite(models).all()):
        return
    bad = (~torch.isfinite(models).all(1)).nonzero().flatten().tolist()
    kept = None if session.folder is None else checkpoints.latest(session.folder.path)
    where = "nothing was saved" if kept is None else f"the last good state is {kept}"
    session.status = "diverged"
    session.message = (
        f"the model of node {bad[0]}"
        + (f" and {len(bad) - 1} more" if len(bad) > 1 else "")
        + f" is no longer finite after step {session.step}: lower algorithm.learning_rate "
        + f"(now {session.job.config.algorithm.options.learning_rate:g}); {where}"
    )
    if session.ledger is not None and session.step > session.first:
        session.ledger.settle(session.step)
    if session.folder is not None:
        charged = {} if session.ledger is None else session.ledger.charged()
        session.evaluation = None
        content = _document(session, epsilon_spent(session.plan, charged), session.seconds)
        session.folder.write_json("result.json", content)
        write_report(session.folder.path)
    raise DivergenceError(session.message)


def _progress(session: _Session) -> Progress:
    row = session.rows[-1] if session.rows else {}
    accuracy, loss = row.get("test_accuracy"), row.get("test_loss")
    elapsed = time.perf_counter() - session.began
    return Progress(
        step=session.step,
        steps=session.until,
        loss=loss["mean"] if loss else row.get("train_loss"),
        accuracy=accuracy["mean"] if accuracy else None,
        epsilon=session.spent("most"),
        steps_per_second=(session.step - session.first) / elapsed,
    )


def _marks(config: Config, first: int, until: int) -> tuple[int, ...]:
    """The steps after which the run is evaluated, its last one included."""
    every = config.train.evaluate_every or _share(config.train.steps, EVALUATIONS)
    inner = [step for step in range(first, until) if step % every == 0]
    return (*inner, until)


def _share(steps: int, parts: int) -> int:
    """Steps between two of about `parts` events."""
    return max(1, -(-steps // parts))
