"""Runs a plan: steps, metrics, checkpoints, resume, and the books.

Order of what is durable: a block of steps is booked in the ledger, then they run, then a
checkpoint may be written. A clean stop settles the books at the step reached; after a kill the
whole block counts, and the repeated steps are charged again.

Of a run of many processes each has a folder of its own, `rank-0000` and so on, inside that of the
run: with the ledger and the checkpoints of its nodes, their models, and what was measured on their
records. A process that loses another leaves its books as they are: what was sent, was sent.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tacit.communication.colours import Released
from tacit.communication.peers import ALONE, Peers
from tacit.communication.received import FLAG, RUN_ID, SESSION_ID, SUMMARY, RunId, Summary
from tacit.errors import DivergenceError, InputError, PeerError
from tacit.privacy.ledger.ledger import read_ledger
from tacit.privacy.ledger.shared import SharedLedgers
from tacit.private_files import make_private_folder, plain_errors
from tacit.report import write_report
from tacit.training.allocator import retain_allocations
from tacit.training.budget import claimed_spent, epsilon_spent, open_ledger
from tacit.training.evaluation import consensus_of, models_public
from tacit.training.prepare import Job
from tacit.training.processes.communication import open_communication
from tacit.training.run_folder import checkpoint as checkpoints
from tacit.training.run_folder import folder as folders
from tacit.training.run_folder import metrics as measured
from tacit.training.run_folder.folder import RunFolder
from tacit.training.run_folder.metrics import finite_json
from tacit.training.run_folder.result import Claim, Result, document
from tacit.training.shared_budgets import check_shared, open_shared
from tacit.training.state import Session, begin, record, save, share_of, take_rows, together

if TYPE_CHECKING:
    from tacit.communication.cluster import Cluster

__all__ = ["Progress", "execute"]

CHECKPOINTS = 10  # by default, over a run
BLOCKS = 100  # of steps, booked one at a time
DATA_BLOCKS = 20  # where each node has a file of its own to write
FINITE_CHECK_EVERY = 8
_WRITTEN = ("out", "checkpoint", "ledger", "RUN")  # what cannot be written in the middle of a run


@dataclass(frozen=True)
class Progress:
    """What the progress line shows; loss and accuracy are those of the last evaluation.

    `notes` say what people should know of how a run that was cut off goes on.
    """

    step: int
    steps: int
    loss: float | None
    accuracy: float | None
    epsilon: float | None
    steps_per_second: float
    notes: tuple[str, ...] = ()


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
    cluster: Cluster | None = None,
) -> Result:
    """Run a prepared job to its end, to a clean stop, or to the end of its budget.

    Args:
        job: what to run.
        out: the run folder to create, or with `resume` to continue; None writes nothing.
        resume: continue from the last checkpoint; steps that were booked and are run again are
            charged again.
        on_step: called after every step.
        should_stop: asked after every step; True ends the run cleanly, in all processes.
        cluster: the other processes, for which the job was prepared; None: there are none.

    Raises:
        InputError: `out` exists (without `resume`), or holds another run (with it).
        BudgetError: nothing is left of the budget for a resumed run, or the budget of a node's
            data does not cover a new one.
        DivergenceError: the model of a node is no longer finite.
        PeerError: another process was lost, or sent what cannot be mixed.
    """
    if resume and out is None:
        raise InputError("out", None, "name the run folder that is to be continued")
    peers: Peers = ALONE if cluster is None else cluster
    with ExitStack() as stack:
        stack.enter_context(retain_allocations())
        # All processes look through the ledgers before one is made or locked: below, they wait
        # for each other in `_folders`.
        shared = stack.enter_context(
            open_shared(job.plan, job.loaded, job.hosted, _session_id(peers))
        )
        if not resume:
            check_shared(job.plan, shared)
        own, common_folder, is_new = _folders(job, out, resume, peers, shared, stack)
        ledger = open_ledger(job.plan, own, own is not None, shared, job.hosted)
        if ledger is not None:
            stack.enter_context(ledger)
        communication = stack.enter_context(open_communication(job, cluster))
        session = begin(
            job, peers, communication, (own, common_folder), ledger, resume=resume, is_new=is_new
        )
        try:
            _train(session, on_step, should_stop)
            return _finish(session)
        except DivergenceError as error:
            _diverged(session, str(error))
            raise
        except InputError as error:
            if error.where not in _WRITTEN:
                raise
            raise InputError(error.where, error.value, _cut_short(session, error)) from error


def _folders(
    job: Job,
    out: Path | None,
    resume: bool,
    peers: Peers,
    shared: SharedLedgers,
    stack: ExitStack,
) -> tuple[RunFolder | None, RunFolder | None, bool]:
    """The folder of this process, that of the run at rank 0, and whether a resumed one is new.

    A new one appears with its ledger, or not at all: a process that was killed before it had one
    makes it when the run is resumed, and `begin` refuses that if any step was made. The stack
    holds them until the run is closed.
    """
    alone, path, common_folder = peers.processes == 1, out, None
    if out is not None and not alone:
        path = out / f"rank-{peers.rank:04d}"
        if peers.rank == 0:
            opened = folders.reopened if resume else folders.created
            common_folder = stack.enter_context(opened(out, job.config))
    # Others wait, so that none writes into a folder that rank 0 refuses.
    peers.share("sign that the run folder is made", out is not None, FLAG)
    # Of a name too long, which another may have given, Path.exists raises.
    missing = path is not None and (folders.half_made(path) if alone else not os.path.lexists(path))
    known = path if resume and not missing else None
    run_id = None if alone else _run_id(peers, known, shared)
    if path is None or out is None:
        return None, None, False
    if known is not None:
        own = stack.enter_context(folders.reopened(known, job.config))
        return own, own if alone else common_folder, False

    def fill(folder: RunFolder) -> None:
        books = open_ledger(job.plan, folder, False, None, job.hosted, run_id)
        if books is not None:
            books.own.close()

    if not alone:
        with plain_errors("out", out):
            make_private_folder(out)
    own = stack.enter_context(folders.created(path, job.config, fill))
    return own, own if alone else common_folder, resume


def _session_id(peers: Peers) -> str:
    """A name of this session of the run, the same in all processes."""
    first, *_ = peers.share("session", secrets.token_hex(16), SESSION_ID)
    return first


def _run_id(peers: Peers, booked: Path | None, shared: SharedLedgers) -> str:
    """The identity of the run in the ledgers of all processes: as it is booked, or a new one.

    A new one is a digest of random numbers of all processes, so that none of them can choose it.

    Args:
        peers: the other processes.
        booked: the folder of this process, where its ledger is there already.
        shared: the ledgers of its nodes' data.

    Raises:
        InputError: the processes go on with different runs, or this one has no ledger of a run
            that the ledgers of its nodes' data know, or of other data with some of their records:
            what two runs of one identity release of a record is not added up.
    """
    known = None
    if booked is not None and RunFolder(booked).ledger.exists():
        known = read_ledger(RunFolder(booked).ledger).runs[0].run_id
    ids = peers.share("run id", RunId(known=known, random=secrets.token_hex(16)), RUN_ID)
    booked_ids = {one.known for one in ids} - {None}
    if len(booked_ids) > 1:
        raise InputError(
            "--resume", True, "the folders of the processes are of different runs", public=True
        )
    if known is not None:
        return known
    numbers = " ".join(one.random for one in ids).encode()
    run_id = next(iter(booked_ids), None) or hashlib.blake2b(numbers, digest_size=16).hexdigest()
    earlier = shared.entered(run_id)
    if earlier is not None:
        raise InputError(
            "--resume",
            True,
            f"{earlier} has this run on its books, and its folder here has no ledger of it: put "
            "the folder back, or start a new run",
        )
    return run_id


def _cut_short(session: Session, error: InputError) -> str:
    """What could not be written in the middle of a run, what is safe, and how to go on."""
    kept = None
    with suppress(OSError):  # the folder itself may be gone
        kept = session.folder and checkpoints.latest(session.folder.path)
    where = f"the last checkpoint is {kept.name}" if kept else "there is no checkpoint yet"
    return (
        f"{error.expected}; the run ended after step {session.step}: what was sent is on the "
        f"books, and {where}; when there is room to write, go on with --resume"
    )


def _train(
    session: Session, on_step: Callable[[Progress], None], should_stop: Callable[[], bool]
) -> None:
    """Every step from where the session stands, then the gossip-only rounds."""
    config, peers = session.job.config, session.peers
    algorithm, options = config.algorithm.definition, config.algorithm.options
    saves = config.train.checkpoint_every or share_of(session.plan.steps, CHECKPOINTS)
    block = share_of(session.plan.steps, DATA_BLOCKS if config.privacy.ledger else BLOCKS)
    if session.step == 0 and not session.started:
        record(session)
    booked = session.step
    while session.step < session.until:
        k = session.step
        peers.at(k)
        peers.check()
        if k >= booked and session.ledger is not None:
            booked = min(k + block, session.until)
            session.ledger.reserve(k, booked)
        _delay(session, k)
        session.state = algorithm.step(session.state, k, options, session.context)
        session.step = k + 1
        asked = should_stop()
        stop = peers.agreed_stop(session.step, asked)
        last = stop or session.step == session.until
        evaluated = session.step in session.evaluation_steps
        saved = last or session.step % saves == 0
        if evaluated or saved or session.step % FINITE_CHECK_EVERY == 0:
            _check_finite(session)
        if evaluated and not last:
            record(session)
        else:
            take_rows(session)
        try:
            if saved:
                save(session)
        finally:
            # After the checkpoint: steps that were given back, but not kept, cost their repeat.
            if last and session.ledger is not None:
                session.ledger.settle(session.step)
        on_step(_progress(session))
        if stop and session.step < session.until:
            by = "by the user" if asked else "by the user of another process"
            session.status, session.message = "stopped", by
            break
    if session.status != "stopped":
        for extra in range(algorithm.final_rounds(options)):
            session.state = algorithm.mix(session.state, session.step + extra, session.context)
    _check_finite(session)


def _delay(session: Session, k: int) -> None:
    """Take as long as the slowest node of this process is said to, where that is simulated."""
    if session.plan.faults is not None:
        time.sleep(session.plan.faults.delay(k, session.job.hosted))


def _finish(session: Session) -> Result:
    """Measure, write down, and hand over."""
    job, plan, communication = session.job, session.plan, session.communication
    seconds = session.seconds
    communication.finish()
    take_rows(session)
    record(session, whole=True)
    communication.finish()
    take_rows(session, whole=True)
    own = {} if session.ledger is None else session.ledger.charged()
    charged = together(session.peers, "list of steps booked at the end", job, own)
    epsilon = epsilon_spent(plan, charged)
    models = session.models.expand(len(job.hosted), -1).contiguous()
    consensus = consensus_of(job, session.models, session.state)
    if session.peers.processes > 1 and models_public(job):
        consensus = communication.mean(Released(session.models))
    own_models = {folders.NODES: {"parameters": models}}
    if session.folder is not None and session.folder is not session.common_folder:
        session.folder.write_tensors(folders.NODES, own_models.pop(folders.NODES))
    content: dict[str, Any] = {}
    if session.peers.rank == 0:
        content = _document(session, epsilon, seconds, others="rank {rank}")
    if session.common_folder is not None:
        state_dict = job.model.module(consensus).state_dict()
        session.common_folder.write_result(content, {**own_models, folders.MODEL: state_dict})
        write_report(session.common_folder.path)
    # Nobody leaves before rank 0 has written everything down.
    summary, *_ = session.peers.share("summary of the result", _summary(content), SUMMARY)
    sent = list(summary.bytes_sent_by_node or ())
    if len(sent) != len(plan.nodes):
        raise PeerError(f"rank 0 gave bytes of {len(sent)} nodes, and there are {len(plan.nodes)}")
    for node, count in zip(job.hosted, communication.exchange.bytes_sent.tolist(), strict=True):
        sent[node] = count
    claimed = claimed_spent(plan, session.step)
    return Result(
        parameters=models,
        consensus=consensus,
        metrics=measured.series(session.rows),
        epsilon=epsilon,
        claims=tuple(
            Claim(node.node, claim, spent, None, node.budget, node.delta)
            for node, claim, spent in zip(plan.nodes, claimed, epsilon, strict=True)
        ),
        test_accuracy=_scores(summary.test_accuracy),
        test_loss=_scores(summary.test_loss),
        private=plan.not_private_reason is None,
        bytes_sent=tuple(sent),
        steps=session.step,
        seconds=seconds,
        status=session.status,
        message=session.message,
        notes=session.notes,
        plan=plan,
        out=None if session.common_folder is None else session.common_folder.path,
        job=job,
    )


def _summary(content: Mapping[str, Any]) -> Summary:
    """What the other processes are told of the result, which rank 0 alone has made."""
    keys = ("test_accuracy", "test_loss", "bytes_sent_by_node")
    return Summary.model_validate(finite_json({key: content.get(key) for key in keys}))


def _scores(summary: Mapping[str, float | None] | None) -> dict[str, float] | None:
    """As rank 0 has measured them: what was not finite is no number again."""
    if summary is None:
        return None
    return {key: math.nan if value is None else value for key, value in summary.items()}


def _document(
    session: Session, epsilon: Sequence[float | None], seconds: float, *, others: str
) -> dict[str, Any]:
    """The content of `result.json`.

    Args:
        session: of the run.
        epsilon: of every node.
        seconds: of training.
        others: where that of another process's node is from; `{rank}` stands for its rank.
    """
    found, job = session.measured, session.job
    sent = session.communication.exchange.bytes_sent.tolist() if found is None else found.bytes_sent
    content = document(
        job,
        status=session.status,
        message=session.message,
        steps=session.step,
        epsilon=epsilon,
        claimed=claimed_spent(session.plan, session.step),
        evaluation=None if found is None else found.evaluation,
        bytes_sent=sent,
        seconds=seconds,
        notes=(*session.notes, *(() if found is None else found.notes)),
    )
    hosts = enumerate(job.placement.ranks)
    sources = ["own ledger" if n in job.hosted else others.format(rank=rank) for n, rank in hosts]
    return {**content, "epsilon_source": sources if job.plan.accounted else None}


def _check_finite(session: Session) -> None:
    """Stop at a model that is not finite, before it is saved over a good one.

    Only at one that is released: a stop says something of what it looks at, and everyone sees it.
    """
    models, released = session.models, session.job.config.algorithm.definition.released_models
    if not released:
        models = consensus_of(session.job, models, session.state).unsqueeze(0)
    # One pass; a finite sum can only come of finite numbers.
    if bool(torch.isfinite(models.sum())) or bool(torch.isfinite(models).all()):
        return
    rows = (~torch.isfinite(models).all(1)).nonzero().flatten().tolist()
    of_nodes = len(models) == len(session.job.hosted) and released
    bad = f"the model of node {session.job.hosted[rows[0]]}" if of_nodes else "the server's model"
    kept = None if session.folder is None else checkpoints.latest(session.folder.path)
    where = "nothing was saved" if kept is None else f"the last good state is {kept}"
    if session.ledger is not None and session.step > session.first:
        session.ledger.settle(session.step)
    raise DivergenceError(
        bad
        + (f" and {len(rows) - 1} more" if len(rows) > 1 else "")
        + f" is no longer finite after step {session.step}: lower algorithm.learning_rate "
        + f"(now {session.job.config.algorithm.options.learning_rate:g}); {where}"
    )


def _diverged(session: Session, message: str) -> None:
    """Write down that the run diverged, here or in another process."""
    session.status, session.message, session.measured = "diverged", message, None
    if session.common_folder is None:
        return
    own = {} if session.ledger is None else session.ledger.charged()
    hosted = session.job.hosted
    # Of other processes' nodes nothing is known: they are not asked what they have booked.
    spent = enumerate(epsilon_spent(session.plan, own))
    epsilon = [value if node in hosted else None for node, value in spent]
    content = _document(session, epsilon, session.seconds, others="not asked")
    session.common_folder.write_json("result.json", content)
    write_report(session.common_folder.path)


def _progress(session: Session) -> Progress:
    row = session.rows[-1] if session.rows else {}
    accuracy, loss = row.get("test_accuracy"), row.get("test_loss")
    elapsed = time.perf_counter() - session.began
    return Progress(
        step=session.step,
        steps=session.until,
        loss=loss["mean"] if loss else row.get("train_loss"),
        accuracy=accuracy["mean"] if accuracy else None,
        epsilon=session.spent("most", session.step),
        steps_per_second=(session.step - session.first) / elapsed,
        notes=session.notes,
    )
