"""Runs a plan: steps, metrics, checkpoints, resume, and the ledger.

Order of what is durable: a block of steps is reserved in the ledger, then they run, then a
checkpoint may be written. A clean stop settles the ledger at the step reached; one that follows
from what was released, a callback's or that of a run that diverges, keeps all planned steps charged
(`tacit.training.hooks`). After a kill the whole block counts, and the repeated steps are charged
again.

Of a run of many processes each has a folder of its own, `rank-0000` and so on, inside that of the
run: with the ledger and the checkpoints of its nodes, their models, and what was measured on their
records. A process that loses another leaves its ledger as it is: what was sent, was sent.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from tacit.communication.colours import Released
from tacit.communication.peers import ALONE, Peers, gone_ranks
from tacit.communication.received import FLAG, RUN_ID, SESSION_ID, SUMMARY, RunId, Summary
from tacit.errors import BudgetError, DivergenceError, InputError, PeerError, TacitError
from tacit.privacy.ledger.ledger import read_ledger
from tacit.privacy.ledger.shared import SharedLedgers
from tacit.private_files import lacks_room, make_private_folder, plain_errors, write_private
from tacit.report import write_report
from tacit.report.documents.base import plain_json
from tacit.report.documents.metrics import Measurement, Scores
from tacit.report.documents.run import ResultDocument
from tacit.training.allocator import retain_allocations
from tacit.training.budget import (
    RunLedger,
    claimed_spent,
    epsilon_by_colluders,
    epsilon_spent,
    extremes,
    open_ledger,
)
from tacit.training.calibration import calibrate
from tacit.training.evaluation import consensus_of, models_public, share_of
from tacit.training.hooks import LOG, Callback, Hooks, Progress
from tacit.training.prepare import Job
from tacit.training.processes.agreement import do_without
from tacit.training.processes.communication import Crew, open_communication
from tacit.training.rounds import advanced, final_rounds, finally_mixed
from tacit.training.run_folder import checkpoint as checkpoints
from tacit.training.run_folder import folder as folders
from tacit.training.run_folder import metrics as measured
from tacit.training.run_folder.folder import RunFolder
from tacit.training.run_folder.result import Claim, Result, result_document
from tacit.training.run_folder.status import Standing, begun_by, written_status
from tacit.training.shared_budgets import check_shared, open_shared
from tacit.training.stacked_context import StackedContext
from tacit.training.state import (
    MakeContext,
    RunState,
    begin,
    drawn_again,
    record,
    save,
    take_rows,
    together,
)

CHECKPOINTS = 10  # by default, over a run
BLOCKS = 100  # of steps, reserved one at a time
DATA_BLOCKS = 20  # where each node has a file of its own to write
FINITE_CHECK_EVERY = 8
LARGEST = 1e15  # of a model's numbers: beyond, no data set that is scaled at all leads there
# What cannot be written in the middle of a run.
_WRITTEN = ("out", "checkpoint", "ledger", "session", "RUN")


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
    callbacks: Sequence[Callback] = (),
    cluster: Crew | None = None,
    alone: Peers = ALONE,
    make_context: MakeContext = StackedContext,
) -> Result:
    """Run a prepared job to its end, to a clean stop, or to the end of its budget.

    Args:
        job: what to run.
        out: the run folder to create, or with `resume` to continue; None writes nothing.
        resume: continue from the last checkpoint; steps that were reserved and are run again are
            charged again.
        on_step: called after every step.
        should_stop: asked after every step; True ends the run cleanly, in all processes. It must
            not look at what was released: the run is then charged the steps that it made.
        callbacks: told of the run in the process of rank 0; they may look, see
            `tacit.training.hooks`.
        cluster: the other processes, for which the job was prepared; None: there are none.
        alone: stands for them where there are none; what they would be told, an audit hears here.
        make_context: makes what executes the steps; an audit of other code puts its own here.

    Raises:
        InputError: `out` exists (without `resume`), or holds another run (with it); a callback
            failed.
        BudgetError: nothing is left of the budget for a resumed run, or the budget of a node's
            data does not cover a new one.
        DivergenceError: the model of a node is no longer finite.
        PeerError: another process was lost, or sent what cannot be mixed.
    """
    if resume and out is None:
        raise InputError("out", None, "name the run folder that is to be continued")
    peers: Peers = alone if cluster is None else cluster
    with ExitStack() as stack:
        stack.enter_context(retain_allocations())
        # All processes look through the ledgers before one is made or locked: below, they wait
        # for each other in `_folders`.
        session, *_ = peers.share("run", secrets.token_hex(16), SESSION_ID)  # one for all
        shared = stack.enter_context(open_shared(job.plan, job.loaded, job.hosted, session))
        check_shared(job.plan, shared, resume=resume)
        own, common_folder, is_new = _folders(job, out, resume, peers, shared, stack)
        status = stack.enter_context(written_status(None if own is None else own.path, peers))
        ledger = open_ledger(job.plan, own, own is not None, shared, job.hosted)
        if ledger is not None:
            stack.enter_context(ledger)
        communication = stack.enter_context(open_communication(job, cluster))
        run = begin(
            job,
            peers,
            communication,
            (own, common_folder),
            ledger,
            resume=resume,
            is_new=is_new,
            make_context=make_context,
        )
        if status is not None:
            status.follow(lambda: _standing(run))
        hooks = Hooks(callbacks if peers.rank == 0 else ())
        try:
            LOG.info("the run begins at step %d of %d", run.step, run.plan.steps)
            hooks.start(run.plan)
            _train(run, on_step, should_stop, hooks)
            hooks.raise_failure(_cut_short(run))
            result = _finish(run, hooks)
        except BaseException as error:
            hooks.error(error)
            _failed(run, error)
            raise
        if status is not None:
            status.end("stopped" if run.status == "stopped" else "done")
    hooks.end(result)
    return result


def _failed(run: RunState, error: BaseException) -> None:
    """Write down that the run diverged; say what is safe where something could not be written."""
    if isinstance(error, DivergenceError):
        _diverged(run, str(error))
    if isinstance(error, InputError) and error.where in _WRITTEN:
        more = "; when there is room to write, go on with --resume"
        expected = error.expected + _cut_short(run) + more
        raise InputError(error.where, error.value, expected) from error
    if isinstance(error, OSError) and lacks_room(error):
        # Of a file that is no part of the run folder, or of a user's own.
        more = "; when there is room to write, go on with --resume"
        expected = f"cannot be written ({error.strerror}){_cut_short(run)}{more}"
        raise InputError("out", str(error.filename), expected) from error
    unlike = isinstance(error, PeerError | BudgetError | KeyboardInterrupt)
    if not unlike and run.ledger is not None and run.reserved > run.first:
        # A model or loss that fails does so because of records and of what was released.
        _reserve_all(run, run.ledger)


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
    begun = begun_by(out, peers.rank) if out is not None and resume else None
    if begun not in (None, peers.processes) and not peers.authenticated:
        expected = (
            f"the run in {out} was begun by {begun}, and goes on with as many: start {begun} "
            f"(`tacit launch --processes {begun} --resume`), or begin another run in a new folder"
        )
        raise InputError("number of processes", peers.processes, expected, public=True)
    if out is not None and not alone:
        path = out / f"rank-{peers.rank:04d}"
        if peers.rank == 0:
            there = os.path.lexists(out) and not folders.half_made(out)
            opened = folders.reopened if resume and there else folders.created
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
        ledgers = open_ledger(job.plan, folder, False, None, job.hosted, run_id)
        if ledgers is not None:
            ledgers.own.close()

    if not alone:
        with plain_errors("out", out):
            make_private_folder(out)
    own = stack.enter_context(folders.created(path, job.config, fill))
    return own, own if alone else common_folder, resume


def _run_id(peers: Peers, reserved: Path | None, shared: SharedLedgers) -> str:
    """The identity of the run in the ledgers of all processes: as it is reserved, or a new one.

    `reserved` is the folder of this process, where its ledger is there already. A new identity is a
    digest of random numbers of all processes, so that none of them can choose it.

    Raises:
        InputError: the processes go on with different runs, or this one has no ledger of a run that
            the ledgers of its nodes' data know, or of other data with some of their records: what
            two runs of one identity release of a record is not added up.
    """
    known = None
    if reserved is not None and RunFolder(reserved).ledger.exists():
        known = read_ledger(RunFolder(reserved).ledger).runs[0].run_id
    ids = peers.share("run id", RunId(known=known, random=secrets.token_hex(16)), RUN_ID)
    booked_ids = {process.known for process in ids} - {None}
    if len(booked_ids) > 1:
        same = (None, ids[0].known)
        odd = [rank for rank, process in enumerate(ids) if process.known not in same]
        do_without(peers, odd, "came back with the folder of another run")
        raise InputError(
            "--resume", True, "the folders of the processes are of different runs", public=True
        )
    if known is not None:
        return known
    numbers = " ".join(process.random for process in ids).encode()
    run_id = next(iter(booked_ids), None) or hashlib.blake2b(numbers, digest_size=16).hexdigest()
    earlier = shared.entered(run_id)
    if earlier is not None:
        raise InputError(
            "--resume",
            True,
            f"{earlier} has this run in its ledger, and its folder here has no ledger of it: put "
            "the folder back, or start a new run",
        )
    return run_id


def _cut_short(run: RunState) -> str:
    """Where a run ended, what is safe, and how to go on."""
    kept = None
    with suppress(OSError):  # the folder itself may be gone
        kept = run.folder and checkpoints.latest(run.folder.path)
    where = f"the last checkpoint is {kept.name}" if kept else "there is no checkpoint yet"
    return f"; the run ended after step {run.step}: what was sent is in the ledger, and {where}"


def _train(
    run: RunState,
    on_step: Callable[[Progress], None],
    should_stop: Callable[[], bool],
    hooks: Hooks,
) -> None:
    """Every step from where the run stands, then the gossip-only rounds."""
    config, peers = run.job.config, run.peers
    saves = config.train.checkpoint_every or share_of(run.plan.steps, CHECKPOINTS)
    block = share_of(run.plan.steps, DATA_BLOCKS if config.privacy.ledger else BLOCKS)
    if run.step == 0 and not run.started:
        hooks.metrics(record(run))
    _begin_reserving(run)
    returned_to = peers.session.returned_to
    amid = returned_to is not None and run.first < returned_to < run.until
    if amid and peers.agreed_stop(run.step, False):  # the vote that it had cast, and its outcome
        called = _any_callback(peers, hooks)
        if run.ledger is not None:
            _settle(run, run.ledger, adaptive=True)
        run.status, run.message = "stopped", _stopped(run, hooks, False, called)
    while run.step < run.until and run.status != "stopped":
        k = run.step
        peers.at(k)
        peers.check()
        if k >= run.reserved and run.ledger is not None:
            run.book(min(k + block, run.until))
            run.ledger.reserve(k, run.reserved)
        _delay(run, k)
        run.state = advanced(run.plan, run.state, k, run.context)
        run.step = k + 1
        run.average()
        evaluated = run.step in run.evaluation_steps and run.step < run.until
        if evaluated or run.step % FINITE_CHECK_EVERY == 0:
            _check_finite(run)
        hooks.metrics(record(run) if evaluated else take_rows(run))
        hooks.step(_public(_progress(run), run.rows[-1] if run.rows else None))
        asked = should_stop()
        stop = peers.agreed_stop(run.step, asked or _stop_wanted(run, hooks))
        last = stop or run.step == run.until
        called = stop and _any_callback(peers, hooks)
        # Who asks for a stop in another process may have looked at what was released.
        adaptive = called or (stop and peers.processes > 1)
        saved = last or run.step % saves == 0
        if saved:
            _check_finite(run)
        try:
            if saved:
                save(run)
        finally:
            # After the checkpoint: steps that were given back, but not kept, cost their repeat.
            if last and run.ledger is not None:
                _settle(run, run.ledger, adaptive)
        on_step(_progress(run))
        if stop and run.step < run.until:
            run.status, run.message = "stopped", _stopped(run, hooks, asked, called)
            break
    if run.status != "stopped":
        _mix_finally(run)
    _check_finite(run)


def _begin_reserving(run: RunState) -> None:
    """Find up to which step all is reserved; and reserve what a new session draws again."""
    run.book(max(run.step, run.own_paid))
    if run.ledger is None:
        return
    reserved = [intervals[-1][1] for intervals in run.since.values() if intervals]
    if reserved:  # a process that comes back makes the same messages again: they are charged once
        run.book(max(run.reserved, min(reserved)))
        return
    if run.step < run.until:
        for first, until in drawn_again(run.job, run.job.hosted, run.step):
            run.ledger.reserve(first, until)
    if run.reserved > run.step:
        run.ledger.use()


def _mix_finally(run: RunState) -> None:
    """The gossip-only rounds after the last step: of the averages, where there are any."""
    if not final_rounds(run.plan):
        return
    if run.averages is not None:
        run.state = run.job.config.algorithm.definition.restarted(run.state, run.trained)
        run.averages = None
    run.state = finally_mixed(run.plan, run.state, run.step, run.context)


def _any_callback(peers: Peers, hooks: Hooks) -> bool:
    """Whether a callback asks for the end of the run; only the process of rank 0 has any."""
    asked: list[bool] = peers.share("stop by a callback", hooks.ask_for_stop, FLAG)
    return any(asked)


def _stop_wanted(run: RunState, hooks: Hooks) -> bool:
    """Whether a callback ends the run here.

    Where kills have left a budget that ends the run before its plan does, only a failure counts:
    all that the budget covers is charged in any case.
    """
    return hooks.failure is not None or (hooks.ask_for_stop and run.until == run.plan.steps)


def _settle(run: RunState, ledger: RunLedger, adaptive: bool) -> None:
    """Give back what was reserved and not sent; nothing, where what was released chose the end.

    The run is at its last step. It is `adaptive` if what was released may have chosen that: a
    callback, another process, or a model that left the finite numbers; `tacit.training.hooks` has
    the reason.
    """
    if adaptive:
        _reserve_all(run, ledger)
    ledger.settle(run.step, max(run.step, run.own_paid))


def _reserve_all(run: RunState, ledger: RunLedger) -> None:
    """Reserve all planned steps, made or not."""
    if run.reserved < run.until:
        ledger.reserve(run.reserved, run.until)
    run.paid, run.own_paid = max(run.paid, run.until), max(run.own_paid, run.until)
    run.book(max(run.reserved, run.until))


def _stopped(run: RunState, hooks: Hooks, asked: bool, called: bool) -> str:
    """Who stopped the run, and what that means for its epsilon."""
    by = "by the user" if asked else "by the user of another process"
    if called:
        by = f"by a callback ({hooks.stopped_by})" if hooks.stopped_by else "by a callback"
    if run.ledger is None or run.charged == run.step:
        return by
    if not called and run.peers.processes == 1:
        return f"{by}; an earlier stop by a callback keeps all {run.charged} steps charged"
    more = "going on costs no more"
    if drawn_again(run.job, run.job.hosted, run.step):
        more = "who goes on draws the epoch under way anew, and is charged for it again"
    return (
        f"{by}: such a stop may depend on what was released, so that all {run.charged} planned "
        f"steps are charged and epsilon is that of the whole plan; {more}"
    )


def _delay(run: RunState, k: int) -> None:
    """Take as long as the slowest node of this process is said to, where that is simulated."""
    if run.plan.faults is not None:
        time.sleep(run.plan.faults.delay(k, run.job.hosted))


def _left_out(name: str) -> str:
    """What a result says of a site without which the run went on."""
    return (
        f"{name} was left out, since it was away for longer than train.patience: for its nodes "
        "stand the scores that it sent last, and an epsilon as if they had gone on; its own "
        "ledger holds what it spent"
    )


def _finish(run: RunState, hooks: Hooks) -> Result:
    """Measure, write down, and hand over."""
    job, plan, communication = run.job, run.plan, run.communication
    seconds = run.seconds
    communication.finish()
    hooks.metrics(take_rows(run))
    calibrate(run)
    hooks.metrics(record(run, whole=True))
    communication.finish()
    hooks.metrics(take_rows(run, whole=True))
    run.notes = (*run.notes, *map(_left_out, gone_ranks(run.peers).values()))
    models = run.models.expand(len(job.hosted), -1).contiguous()
    own_models = {folders.NODES: {"parameters": models}}
    if run.folder is not None and run.folder is not run.common_folder:
        run.folder.write_tensors(folders.NODES, own_models.pop(folders.NODES))
    # From here on each process has its models, so that none needs another once rank 0 has the rest.
    own = {} if run.ledger is None else run.ledger.charged()
    charged = together(run.peers, "list of steps reserved at the end", job, own)
    epsilon = epsilon_spent(plan, charged)
    consensus = run.consensus
    if run.peers.processes > 1 and models_public(job):
        consensus = communication.mean(Released(run.models))
    document = None
    if run.peers.rank == 0:
        against = epsilon_by_colluders(plan, charged)
        document = _document(
            run, epsilon, against, seconds, others="rank {rank}", consensus=Released(consensus)
        )
    if run.common_folder is not None and document is not None:
        state_dict = job.model.module(consensus).state_dict()
        run.common_folder.write_result(document, {**own_models, folders.MODEL: state_dict})
        write_report(run.common_folder.path)
    # Nobody leaves before rank 0 has written everything down.
    summary, *_ = run.peers.share("summary of the result", _summary(document), SUMMARY)
    if run.folder is not None and run.folder is not run.common_folder and run.status != "stopped":
        run.folder.write_known()
        # Whoever is lost before it has heard of the result finds all the others again.
        run.peers.share("sign that the result is known", True, FLAG)
    sent = list(summary.bytes_sent_by_node or ())
    if len(sent) != len(plan.nodes):
        raise PeerError(f"rank 0 gave bytes of {len(sent)} nodes, and there are {len(plan.nodes)}")
    for node, count in zip(job.hosted, communication.exchange.bytes_sent.tolist(), strict=True):
        sent[node] = count
    claimed = claimed_spent(plan, run.charged)
    LOG.info("the run is %s after step %d of %d", run.status, run.step, plan.steps)
    return Result(
        parameters=models,
        consensus=consensus,
        metrics=measured.series(run.rows),
        epsilon=epsilon,
        claims=tuple(
            Claim(node.node, claim, spent, None, node.budget, node.delta)
            for node, claim, spent in zip(plan.nodes, claimed, epsilon, strict=True)
        ),
        test_accuracy=_scores(summary.test_accuracy),
        test_loss=_scores(summary.test_loss),
        test_metrics=_metric_scores(job, summary),
        private=plan.not_private_reason is None,
        bytes_sent=tuple(sent),
        steps=run.step,
        seconds=seconds,
        status=run.status,
        message=run.message,
        notes=run.notes,
        out=None if run.common_folder is None else run.common_folder.path,
        job=job,
    )


def _summary(document: ResultDocument | None) -> Summary:
    """What the other processes are told of the result, which rank 0 alone has made."""
    told = {key: plain_json(getattr(document, key, None)) for key in Summary.model_fields}
    metrics = told["test_metrics"]
    told["test_metrics"] = None if metrics is None else list(metrics.values())
    return Summary.model_validate(told)


def _metric_scores(job: Job, summary: Summary) -> dict[str, Scores]:
    """As rank 0 has measured them, by name.

    Raises:
        PeerError: rank 0 gave others than the task has.
    """
    found = summary.test_metrics or ()
    if found and len(found) != len(job.metrics):
        raise PeerError(f"rank 0 gave {len(found)} metrics, and the task has {len(job.metrics)}")
    rows = zip(job.metrics, map(_scores, found), strict=False)
    try:
        return {metric.name: Scores(**(scores or {})) for metric, scores in rows}
    except ValueError as error:  # a field is missing, or there is one too many
        raise PeerError("rank 0 gave metrics of another form") from error


def _scores(summary: Mapping[str, float | None] | None) -> dict[str, float] | None:
    """As rank 0 has measured them: what was not finite is no number again."""
    if summary is None:
        return None
    told = {key: value for key, value in summary.items() if key != "baseline" or value is not None}
    return {key: math.nan if value is None else value for key, value in told.items()}


def _document(
    run: RunState,
    epsilon: Sequence[float | None],
    against: Sequence[Sequence[float | None]],
    seconds: float,
    *,
    others: str,
    consensus: Released[Tensor] | None = None,
) -> ResultDocument:
    """The content of `result.json`.

    `epsilon` is of every node, and `against` likewise, against 0, 1, 2 ... colluders where nodes
    share noise; `others` says where that of another process's node is from, with `{rank}` for its
    rank. `consensus` is the common model `[d]`, None of a run that has none.
    """
    run_evaluation, job = run.measured, run.job
    own = dict(zip(job.hosted, run.communication.exchange.bytes_sent.tolist(), strict=True))
    sent = list(map(own.get, range(len(job.plan.nodes))))
    if run_evaluation is not None:
        sent = list(run_evaluation.bytes_sent)
    hosts = enumerate(job.placement.ranks)
    gone = gone_ranks(run.peers)
    sources = [
        "own ledger"
        if n in job.hosted
        else f"rank {rank}, left out: as if it had gone on"
        if rank in gone
        else others.format(rank=rank)
        for n, rank in hosts
    ]
    return result_document(
        job,
        status=run.status,
        message=run.message,
        steps=run.step,
        epsilon=epsilon,
        epsilon_by_colluders=against,
        claimed=claimed_spent(run.plan, run.charged),
        evaluation=None if run_evaluation is None else run_evaluation.evaluation,
        bytes_sent=sent,
        seconds=seconds,
        notes=(*run.notes, *(() if run_evaluation is None else run_evaluation.notes)),
        epsilon_source=sources if job.plan.accounted else None,
        charged_steps=run.charged if run.charged > run.step else None,
        measured_at=[row.step for row in run.rows],
        consensus=consensus,
    )


def _check_finite(run: RunState) -> None:
    """Stop at a model that is not finite, or absurdly large, before it is saved over a good one.

    Only at one that is released: a stop says something of what it looks at, and everyone sees it.
    """
    released = run.job.config.algorithm.definition.releases.models
    iterates = run.iterates
    if not released:
        iterates = consensus_of(run.job, iterates, run.state).unsqueeze(0)
    _check_models(run, iterates, released)
    if run.averages is not None:
        _check_models(run, run.models if released else run.consensus.unsqueeze(0), released)


def _check_models(run: RunState, models: Tensor, released: bool) -> None:
    """The same of some models, `[nodes, d]` or `[1, d]`."""
    # One pass; what is no number is not below any.
    if bool(torch.linalg.vector_norm(models, math.inf) <= LARGEST):
        return
    finite = bool(torch.isfinite(models).all())
    rows = (~(models.abs() <= LARGEST).all(1)).nonzero().flatten().tolist()
    of_nodes = len(models) == len(run.job.hosted) and released
    bad = f"the model of node {run.job.hosted[rows[0]]}" if of_nodes else "the server's model"
    kept = None if run.folder is None else checkpoints.latest(run.folder.path)
    where = "nothing was saved" if kept is None else f"the last good state is {kept}"
    if run.ledger is not None and run.step > run.first:
        _settle(run, run.ledger, adaptive=True)
        where += f"; all {run.charged} planned steps stay charged, since what was released ended it"
    raise DivergenceError(
        bad
        + (f" and {len(rows) - 1} more" if len(rows) > 1 else "")
        + (f" has numbers above {LARGEST:g}" if finite else " is no longer finite")
        + f" after step {run.step}: lower algorithm.learning_rate "
        + f"(now {run.job.config.algorithm.options.settled_rate:g}); {where}"
    )


def _diverged(run: RunState, message: str) -> None:
    """Write down that the run diverged, here or in another process."""
    with suppress(TacitError):  # another may have ended before it told what it measured
        take_rows(run)
    run.status, run.message, run.measured = "diverged", message, None
    if run.ledger is not None and run.reserved > run.first:  # of its own model, or of another's
        _reserve_all(run, run.ledger)
    if run.common_folder is None:
        return
    own = {} if run.ledger is None else run.ledger.charged()
    hosted = run.job.hosted
    # Of other processes' nodes nothing is known: they are not asked what they have reserved.
    epsilon, *against = (
        [value if node in hosted else None for node, value in enumerate(spent)]
        for spent in (epsilon_spent(run.plan, own), *epsilon_by_colluders(run.plan, own))
    )
    document = _document(run, epsilon, against, run.seconds, others="not asked")
    run.common_folder.write_document(folders.RESULT, document)
    if not run.rows:
        write_private(run.common_folder.metrics, b"")
    write_report(run.common_folder.path)


def _standing(run: RunState) -> Standing:
    """Where the run stands for the eyes of this site; called from another thread, and only looks.

    The steps that were reserved count as spent, since the ledger has charged them.
    """
    return Standing(
        step=run.step,
        steps=run.until,
        epsilon=run.booked,
        budget=extremes(run.plan, run.job.hosted)["most"].budget,
        bytes_sent=int(run.communication.exchange.bytes_sent.sum()),
    )


def _public(progress: Progress, row: Measurement | None) -> Progress:
    """The same without what was measured on private records."""
    tested = row is not None and row.test_loss is not None
    return progress if tested else replace(progress, loss=None)


def _progress(run: RunState) -> Progress:
    row = run.rows[-1] if run.rows else None
    loss = None if row is None else row.train_loss
    if row is not None and row.test_loss is not None:
        loss = row.test_loss.mean
    elapsed = time.perf_counter() - run.began
    metric, scores = next(iter(row.test_metrics.items() if row is not None else ()), (None, None))
    return Progress(
        step=run.step,
        steps=run.until,
        loss=loss,
        accuracy=row.test_accuracy.mean if row is not None and row.test_accuracy else None,
        epsilon=run.spent("most", run.step),
        steps_per_second=(run.step - run.first) / elapsed,
        notes=run.notes,
        metric=metric,
        score=None if scores is None else scores.mean,
    )
