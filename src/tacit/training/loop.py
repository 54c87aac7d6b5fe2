"""Runs a plan: steps, metrics, checkpoints, resume, and the ledger.

Order of what is durable: a block of steps is reserved in the ledger, then they run, then a
checkpoint may be written. How it ends, and what that costs, `tacit.training.finish` knows. After a
kill the whole block counts, and the repeated steps are charged again.

Of a run of many processes each has a folder of its own, `rank-0000` and so on, inside that of the
run: with the ledger and the checkpoints of its nodes, their models, and what was measured on their
records. A process that loses another leaves its ledger as it is: what was sent, was sent.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.base.private_files import make_private_folder, plain_errors
from tacit.communication.crew import Crew
from tacit.communication.peers import ALONE, Peers
from tacit.communication.received import FLAG, RUN_ID, SESSION_ID, RunId
from tacit.errors import InputError
from tacit.privacy.ledger.ledger import read_ledger
from tacit.privacy.ledger.shared import SharedLedgers
from tacit.report.documents.metrics import Measurement
from tacit.training.allocator import plain_memory_errors, retain_allocations
from tacit.training.budget import extremes, open_ledger
from tacit.training.evaluation import share_of
from tacit.training.finish import check_finite, cut_short, failed, finish, settle, stopped
from tacit.training.hooks import LOG, Callback, Hooks, Progress
from tacit.training.job import Job
from tacit.training.processes.agreement import do_without
from tacit.training.processes.communication import Communication, open_communication
from tacit.training.rounds import advanced, final_rounds, finally_mixed
from tacit.training.run_folder import folder as folders
from tacit.training.run_folder.folder import RunFolder
from tacit.training.run_folder.result import Result
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
)

CHECKPOINTS = 10  # by default, over a run
BLOCKS = 100  # of steps, reserved one at a time
FEW_BLOCKS = 20  # of short runs, whose writes would take longer than they, and of ledgers of data
SHORT = 5  # steps of a block of a short run at most
FINITE_CHECK_EVERY = 8


def execute(
    job: Job,
    *,
    out: Path | None = None,
    resume: bool = False,
    on_step: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
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
    hooks = Hooks(callbacks if cluster is None or cluster.rank == 0 else ())
    made = running(job, hooks, out, resume, on_step, should_stop, cluster, alone, make_context)
    result = deque(made, maxlen=1).pop()  # in C: a signal is heard in the run, never between steps
    assert isinstance(result, Result)
    return result


def running(
    job: Job,
    hooks: Hooks,
    out: Path | None = None,
    resume: bool = False,
    on_step: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    cluster: Crew | None = None,
    alone: Peers = ALONE,
    make_context: MakeContext = StackedContext,
    communicate: Callable[[Job], AbstractContextManager[Communication]] | None = None,
    ended: Callable[[RunState, Hooks], Result] | None = None,
    carried: bool = False,
) -> Generator[RunState | Result]:
    """Where `execute` stands, once it may begin and after every step; at last what it returns.

    A step is asked whether to stop, saved and settled when the next is asked for; `ended` makes the
    result. Where messages are `carried` by hand, what `communicate` gives writes checkpoints amid a
    step, of the state before it, and whoever goes on repeats no step: only the last one is saved
    here, and short runs reserve a few at a time too.
    Who closes this in the middle has seen what was released: all planned steps stay charged.
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
        opened = open_communication(job, cluster) if communicate is None else communicate(job)
        communication = stack.enter_context(opened)
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
        try:
            yield run
            LOG.info("the run begins at step %d of %d", run.step, run.plan.steps)
            hooks.start(run.plan)
            with plain_memory_errors():
                yield from _train(run, on_step, should_stop, hooks, carried)
                hooks.raise_failure(cut_short(run))
                result = (ended or finish)(run, hooks)
        except BaseException as error:
            hooks.error(error)
            failed(run, error, hooks.watched)
            raise
        if status is not None:
            status.end("stopped" if run.status == "stopped" else "done")
    hooks.end(result)
    yield result


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
            opened = (
                folders.reopened(out, job.config)
                if resume and there
                else folders.created(out, job.config, schema=job.schema)
            )
            common_folder = stack.enter_context(opened)
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
    own = stack.enter_context(folders.created(path, job.config, fill, job.schema))
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


def _train(
    run: RunState,
    on_step: Callable[[Progress], None] | None,
    should_stop: Callable[[], bool],
    hooks: Hooks,
    carried: bool,
) -> Iterator[RunState]:
    """Every step from where the run stands, then the gossip-only rounds."""
    config, peers = run.job.config, run.peers
    every = config.train.checkpoint_every or share_of(run.plan.steps, CHECKPOINTS)
    few = share_of(run.plan.steps, FEW_BLOCKS)
    most = few if config.privacy.ledger else SHORT if carried else min(few, SHORT)
    block = max(most, share_of(run.plan.steps, BLOCKS))
    if run.step == 0 and not run.started:
        hooks.metrics(record(run))
    _begin_reserving(run)
    returned_to = peers.session.returned_to
    amid = returned_to is not None and run.first < returned_to < run.until
    if amid and peers.agreed_stop(run.step, False):  # the vote that it had cast, and its outcome
        called = _any_callback(peers, hooks)
        if run.ledger is not None:
            settle(run, run.ledger, adaptive=True)
        run.status, run.message = "stopped", stopped(run, hooks, False, called)
    while run.step < run.until and run.status != "stopped":
        k = run.step
        peers.at(k)
        peers.check()
        if k >= run.reserved and run.ledger is not None:
            run.reserved = min(k + block, run.until)
            run.ledger.reserve(k, run.reserved)
        if run.plan.faults is not None:  # as long as the slowest node here is said to take
            time.sleep(run.plan.faults.delay(k, run.job.hosted))
        run.state = advanced(run.plan, _before(run, carried), k, run.context)
        run.step = k + 1
        run.average()
        evaluated = run.step in run.evaluation_steps and run.step < run.until
        if evaluated or run.step % FINITE_CHECK_EVERY == 0:
            check_finite(run)
        hooks.metrics(record(run) if evaluated else take_rows(run))
        hooks.step(lambda: _public(_progress(run), run.rows[-1] if run.rows else None))
        yield run
        asked = should_stop()
        stop = peers.agreed_stop(run.step, asked or _stop_wanted(run, hooks))
        last = stop or run.step == run.until
        called = stop and _any_callback(peers, hooks)
        # Who asks for a stop in another process may have looked at what was released.
        adaptive = called or (stop and peers.processes > 1)
        saved = last or (not carried and run.step % every == 0)
        if saved:
            check_finite(run)
        try:
            if saved:
                save(run)
        finally:
            # After the checkpoint: steps that were given back, but not kept, cost their repeat.
            if last and run.ledger is not None:
                settle(run, run.ledger, adaptive)
        if on_step is not None:
            on_step(_progress(run))
        if stop and run.step < run.until:
            run.status, run.message = "stopped", stopped(run, hooks, asked, called)
            break
    if run.status != "stopped" and final_rounds(run.plan):
        if run.averages is not None:  # what is mixed after the last step are the averages
            run.state = config.algorithm.definition.restarted(run.state, run.trained)
            run.averages = None
        run.state = finally_mixed(run.plan, _before(run, carried), run.step, run.context)
    check_finite(run)


def _before(run: RunState, carried: bool) -> Any:
    """The state that a step begins with, which it may write into; `carried`: a copy of it."""
    state = run.state
    return type(state)(*(value.clone() for value in state)) if carried else state


def _begin_reserving(run: RunState) -> None:
    """Find up to which step all is reserved; and reserve what a new session draws again."""
    run.reserved = max(run.step, run.own_paid)
    if run.ledger is None:
        return
    reserved = [intervals[-1][1] for intervals in run.since.values() if intervals]
    if reserved:  # a process that comes back makes the same messages again: they are charged once
        run.reserved = max(run.reserved, min(reserved))
        return
    if run.step < run.until:
        for first, until in drawn_again(run.job, run.job.hosted, run.step):
            run.ledger.reserve(first, until)
    if run.reserved > run.step:
        run.ledger.use()


def _any_callback(peers: Peers, hooks: Hooks) -> bool:
    """Whether a callback asks for the end of the run; only the process of rank 0 has any."""
    asked: list[bool] = peers.share("stop by a callback", hooks.ask_for_stop, FLAG)
    return any(asked)


def _stop_wanted(run: RunState, hooks: Hooks) -> bool:
    """Whether a callback ends the run here.

    Where a budget ends the run before its plan does, after kills, only a failure counts: all that
    the budget covers is charged in any case.
    """
    return hooks.failure is not None or (hooks.ask_for_stop and run.until == run.plan.steps)


def _standing(run: RunState) -> Standing:
    """Where the run stands for the eyes of this site, by what is reserved; another thread looks."""
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
