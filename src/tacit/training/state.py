"""Where a run stands: its one mutable object, how it begins or goes on, how it is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter
from torch import Tensor

from tacit.communication.colours import Released, opened
from tacit.communication.peers import READY, Peers, SessionMemory, gone_ranks
from tacit.communication.received import CHARGED, FLAG, STEP, STEPS, Form
from tacit.errors import BudgetError, InputError, PeerError
from tacit.privacy.ledger.ledger import lacking_steps
from tacit.report.documents.base import as_dict
from tacit.report.documents.metrics import (
    Measurement,
    PrivateMeasurement,
    PublicMeasurement,
    Spread,
)
from tacit.report.documents.run import Status
from tacit.training.averages import Averages, step_weight, with_models
from tacit.training.budget import (
    RunLedger,
    affordable,
    claimed_spent,
    costs,
    node_keys,
    pair_keys,
)
from tacit.training.evaluation import (
    RunEvaluation,
    augmented_lagrangian,
    combined,
    consensus_of,
    measure,
    models_public,
    share_of,
)
from tacit.training.hooks import LOG
from tacit.training.job import Job
from tacit.training.plan import Plan
from tacit.training.processes.agreement import do_without
from tacit.training.processes.communication import Communication
from tacit.training.release import Interval
from tacit.training.run_folder import checkpoint as checkpoints
from tacit.training.run_folder import metrics as measured
from tacit.training.run_folder.checkpoint import Checkpoint
from tacit.training.run_folder.folder import RunFolder
from tacit.training.stacked_context import StackedContext
from tacit.training.suboptimality import Suboptimality, suboptimality_of

EVALUATIONS = 20  # by default, over a run
_MOST_LISTED = 1000  # checkpoints, of which there are few unless a process writes none
_MOST_REPEATS = 100  # of all steps of a run: more than that no resumed run has reserved
MakeContext = Callable[..., StackedContext]
"""What `StackedContext` is called with."""
# Of what a checkpoint holds beside the algorithm's state.
_EXCHANGE = "exchange."
_CONTEXT = "context."
_AVERAGES = "average."
_CALIBRATION = "calibration"


@dataclass
class RunState:
    """The one mutable object of a run: where it stands.

    `folder` holds what is this process's own (ledger, checkpoints, its nodes' models);
    `common_folder` is the folder of the whole run in the process that writes it, None in others. In
    a run of one process they are the same.
    """

    job: Job
    peers: Peers
    communication: Communication
    folder: RunFolder | None
    common_folder: RunFolder | None
    ledger: RunLedger | None
    context: StackedContext
    state: Any
    first: int
    until: int
    step: int
    seconds_before: float
    evaluation_steps: tuple[int, ...]
    costs: Callable[[str, int], float | None]
    rows: list[Measurement]
    suboptimality: Suboptimality | None = None  # f(x) - f*, where it is asked for
    own_rows: dict[int, PrivateMeasurement] = field(default_factory=dict)  # yet to be written
    averages: Averages | None = None  # of models, where the experiment asks for them, once begun
    calibration: tuple[float, float] | None = None  # slope and intercept, once they are known
    status: Status = "done"
    message: str | None = None
    notes: tuple[str, ...] = ()  # what people should know of how it went on
    measured: RunEvaluation | None = None
    started: bool = False  # whether the state before the first step was measured
    kept: int = 0  # the last step of which every process is known to have a checkpoint
    reserved: int = 0  # steps up to this one are reserved by this session, or were paid before
    since: Mapping[int, Sequence[Interval]] = field(default_factory=dict)
    """What this session had reserved already for this process's nodes, where it comes back."""
    paid: int = 0  # steps up to this one stay charged everywhere, whether they are sent or not
    own_paid: int = 0  # likewise at this process, by its own ledgers
    began: float = field(default_factory=time.perf_counter)

    @property
    def plan(self) -> Plan:
        """What was decided before the first step."""
        return self.job.plan

    @property
    def seconds(self) -> float:
        """Of training, over all sessions."""
        return self.seconds_before + time.perf_counter() - self.began

    @property
    def models(self) -> Tensor:
        """The models that the run has come to, of this process's nodes: `[nodes, d]`, or `[1, d]`.

        Averages where there are any, else `iterates`, in the run's dtype.
        """
        return self._calibrated(self.trained)

    @property
    def trained(self) -> Tensor:
        """The same before they are recalibrated."""
        averages = self.averages
        return self.iterates if averages is None else averages.models.to(self.job.dtype)

    def _calibrated(self, models: Tensor) -> Tensor:
        how, found = self.job.recalibration, self.calibration
        return models if how is None or found is None else how.applied(models, *found)

    @property
    def iterates(self) -> Tensor:
        """The de-biased models with which the next step begins; likewise."""
        models: Tensor = self.job.config.algorithm.definition.models(self.state)
        return models

    @property
    def consensus(self) -> Tensor:
        """The common model `[d]` of `models`, as far as this process knows it."""
        averages = self.averages
        if averages is not None and averages.common.numel():
            return self._calibrated(averages.common.to(self.job.dtype))
        return self._calibrated(consensus_of(self.job, self.trained, self.state))

    @property
    def booked(self) -> float | None:
        """Epsilon of what is reserved, of this process's node that spends most."""
        return self.spent("own", self.reserved)

    def average(self) -> None:
        """Take the models after the step that was just made into the averages."""
        weight = step_weight(self.job.config.train.average, self.step - 1, self.plan.steps)
        if weight is None:
            return
        models = self.iterates
        public = models_public(self.job)
        common = models.new_empty(0) if public else consensus_of(self.job, models, self.state)
        self.averages = with_models(self.averages, models, common, weight)

    @property
    def charged(self) -> int:
        """Steps that are charged at least once: more than were made, where a stop kept them so."""
        return max(self.step, self.paid)

    def spent(self, which: str, step: int) -> float | None:
        """Epsilon of the node that spends `most` or `least`: an upper bound after `step` steps.

        `own`: of this process's node that spends most.
        """
        return self.costs(which, max(step, self.paid))


def begin(
    job: Job,
    peers: Peers,
    communication: Communication,
    folders: tuple[RunFolder | None, RunFolder | None],
    ledger: RunLedger | None,
    *,
    resume: bool,
    is_new: bool = False,
    make_context: MakeContext = StackedContext,
) -> RunState:
    """Start, or pick up at the last step of which every process has a checkpoint.

    The folders are that of this process, and that of the whole run where this process writes it;
    the ledger is that of this process's nodes. `is_new`: a run goes on of which this process had
    nothing. `make_context` makes what executes its steps.

    Raises:
        InputError: a process had no folder, and steps were made: its ledger is missing; or they
            lack steps that its checkpoint has made.
    """
    plan, config, session = job.plan, job.config, peers.session
    algorithm, options = config.algorithm.definition, config.algorithm.options
    folder, common_folder = folders
    keys = node_keys(plan, job.hosted, session)
    shared = pair_keys(plan, job.placement, peers)
    context = make_context(
        plan, job.model, job.train, keys, communication.exchange, job.hosted, shared
    )
    origin = job.model.start(len(job.hosted), job.dtype, job.device)
    state = algorithm.start(origin.clone(), options, context)
    terms = session.remember(
        _TERMS_NAME, lambda: _agreed_terms(job, peers, folder, ledger, resume, is_new), _TERMS
    )
    own = {} if ledger is None else ledger.charged()
    returned_to = session.returned_to
    step = terms.first if returned_to is None else returned_to
    seconds = 0.0
    averages: Averages | None = None
    calibration: tuple[float, float] | None = None
    rejoins = terms.comes_back and returned_to is None
    held = step
    if folder is not None and rejoins:  # its last own one says what it has sent
        held = max(checkpoints.sound(folder.path, job.digest, _run_id(ledger))[0], default=0)
    path = None if folder is None else checkpoints.file_of(folder.path, held)
    if path is not None and (held or (returned_to is not None and path.exists())):
        saved = checkpoints.read(path, job.digest, _run_id(ledger))
        seconds = saved.seconds
        tensors = {name: value.to(job.device) for name, value in saved.tensors.items()}
        exchanged, averaged, inner = (
            {
                name.removeprefix(prefix): tensors.pop(name)
                for name in list(tensors)
                if name.startswith(prefix)
            }
            for prefix in (_EXCHANGE, _AVERAGES, _CONTEXT)
        )
        communication.exchange.load(exchanged, same_session=returned_to is not None)
        if averaged:
            averages = Averages(*(averaged[name] for name in Averages._fields))
        if (kept := tensors.pop(_CALIBRATION, None)) is not None:
            slope, intercept = kept.tolist()
            calibration = slope, intercept
        context.load(inner, origin)
        state = type(state)(**tensors)
    if terms.rejoining and returned_to is None:
        if not algorithm.participation.stateless_clients:
            expected = f"goes on without it: with {algorithm.name} no site can be taken back"
            raise InputError("--site", "a site that was left out", expected, public=True)
        given, averaged_models = _from_server(communication, job, state, averages, step)
        if rejoins:
            state, averages = given, averaged_models
    _check_reserved(folder, own, step)
    if folder is not None and resume and returned_to is None:
        checkpoints.set_aside(folder.path, after=terms.first)
    if common_folder is not None and terms.lacking is not None and returned_to is None:
        common_folder.set_aside_metrics()
    # The row of the start follows what a new session keeps.
    again = returned_to == terms.first == 0
    rows = []
    if common_folder is not None and resume:
        rows = common_folder.keep_metrics(-1 if again else step)
    for written in (folder, common_folder):
        if written is not None and terms.until > step:
            written.withdraw_result()
    # Of all processes or of none: rows are made of what every one says. And nobody begins before
    # all have set aside what is to be run again.
    known, *_ = peers.share(READY, bool(rows), FLAG)
    every = config.train.evaluate_every or share_of(config.train.steps, EVALUATIONS)
    between = [number for number in range(terms.first, terms.until) if number % every == 0]
    evaluation_steps = (*between, terms.until)
    # What is charged once every process has reserved what it draws again, if any step follows.
    charged = {node: tuple(intervals) for node, intervals in terms.charged.items()}
    for rank in range(job.placement.processes if terms.first < terms.until else 0):
        nodes = job.placement.hosted(rank)
        drawn = drawn_again(job, nodes, terms.first)
        charged |= {node: (*charged.get(node, ()), *drawn) for node in nodes}
    run = RunState(
        job=job,
        peers=peers,
        communication=communication,
        folder=folder,
        common_folder=common_folder,
        ledger=ledger,
        context=context,
        state=state,
        first=terms.first,
        until=terms.until,
        step=step,
        seconds_before=seconds,
        evaluation_steps=evaluation_steps,
        costs=costs(job.plan, job.hosted, charged, terms.paid, evaluation_steps),
        rows=rows,
        started=known,
        message=terms.message,
        notes=tuple(filter(None, (*terms.notes, *terms.absences, terms.lacking))),
        paid=terms.paid if terms.paid > terms.first else 0,
        own_paid=terms.own_paid if terms.own_paid > terms.first else 0,
        since={node: intervals[len(terms.own.get(node, ())) :] for node, intervals in own.items()},
        averages=averages,
        calibration=calibration,
        suboptimality=suboptimality_of(job, len(origin[0])) if peers.rank == 0 else None,
        status="done" if terms.message is None else "budget-exhausted",
    )
    # What the exchange counts begins anew with a session. Its first checkpoint says so before the
    # session is written down as begun: a process that comes back to it goes on as others saw it.
    if folder is not None and returned_to is None and peers.processes > 1 and (held or rejoins):
        checkpoints.write(folder.path, checkpoint_of(run), keep=0)
    peers.begin(terms.first)
    return run


def _from_server(
    communication: Communication, job: Job, state: Any, averages: Averages | None, step: int
) -> tuple[Any, Averages | None]:
    """The server's state and averages, for a process that was left out; every process calls it.

    The clients of the method keep nothing between rounds. Those given are this process's, or any
    where it was left out; `step` is the one from which the run goes on.
    """
    model = communication.from_server(Released(state.x))
    given = type(state)(model)
    if not step or step_weight(job.config.train.average, step - 1, job.plan.steps) is None:
        return given, None
    own = model.double() if averages is None else averages.models
    mean = communication.from_server(Released(own))
    return given, Averages(mean, mean[0].clone())


class SessionTerms(BaseModel):
    """What all processes agreed on when a session began.

    Attributes:
        first: the step that it goes on from.
        until: the step at which it ends.
        paid: up to which step all was charged before, at every process.
        own_paid: likewise at this one.
        charged: what every node had reserved, those of others as reported.
        own: what the nodes of this process had reserved, as it stood in the ledger.
        message: why it ends before the plan does.
        lacking: who lacks a later checkpoint.
        rejoining: whether a process comes back that was left out.
        comes_back: whether this one does.
        notes: what people should know.
        absences: likewise, of who was left out of earlier steps.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    first: int
    until: int
    paid: int
    own_paid: int
    charged: dict[int, list[tuple[int, int]]]
    own: dict[int, list[tuple[int, int]]]
    message: str | None
    lacking: str | None
    rejoining: bool
    comes_back: bool = False
    notes: tuple[str, ...]
    absences: tuple[str, ...]


_TERMS_NAME = "terms"
_TERMS = Form(TypeAdapter(SessionTerms), 2**26)


def _agreed_terms(
    job: Job,
    peers: Peers,
    folder: RunFolder | None,
    ledger: RunLedger | None,
    resume: bool,
    is_new: bool,
) -> SessionTerms:
    plan, first = job.plan, 0
    lacking = None
    notes: tuple[str, ...] = ()
    # A site that was killed while the others met goes on, and they begin: which of the two it is
    # for all, rank 0 says. Of this process's own budgets its own ledgers speak, whatever that is.
    goes_on, *_ = peers.share("going on", resume, FLAG)
    # One that waited to be taken in, while the others gave up what they had begun, is a new one.
    left_out = goes_on and peers.session.rejoins is not None
    rejoining = peers.share("comes back", left_out, FLAG) if goes_on else []
    if folder is not None and goes_on:
        kept, damaged = checkpoints.sound(folder.path, job.digest, _run_id(ledger))
        first, lacking = _common_checkpoint(kept, peers, plan.steps, rejoining)
        notes = tuple(f"{name} is damaged, and was not used" for name in damaged)
    if left_out:
        _pay(plan, peers.session, ledger, first)
    own = {} if ledger is None else ledger.charged()
    charged = together(peers, "list of reserved steps", job, own)
    lacks = is_new and not left_out  # who never took part has nothing to lack
    missing = [rank for rank, new in enumerate(peers.share("new folder", lacks, FLAG)) if new]
    if missing and (first or any(charged.values())):
        do_without(peers, missing, "has no ledger of this run")
        raise InputError(
            "--resume",
            True,
            f"rank {missing[0]} has no ledger of this run, and steps were made: its folder is "
            "missing or empty; put the folder back, or start a new run",
            public=True,
        )
    _check_reserved(folder, own, first)
    # Steps that no process has sent since its stop kept them charged; else they are charged again.
    # What this process pays, its own ledgers say; what others say is for what all are shown.
    own_paid = first if ledger is None or not resume else ledger.paid_until(first)
    paid = max(first, min(peers.share("steps that are paid for", own_paid, STEP)))
    # Each process answers for the budgets of its own nodes, from its own ledger.
    again = drawn_again(job, job.hosted, first)
    known = ledger if resume else None
    covered, message = affordable(plan, own, first, known, own_paid, again)
    until, rank = _agreed_end(peers, plan, first, covered)
    if until < covered:
        message = (
            f"rank {rank} says that the budgets of its nodes cover steps up to {until} of "
            f"{plan.steps}"
        )
        if until == first > 0:
            message += ": nothing is left, and the last checkpoint is the result"
    # Of who was left out, in sessions before and now.
    before = peers.session.earlier(_TERMS_NAME, _TERMS) if goes_on else None
    absences = () if before is None else before.absences
    absences += tuple(
        f"{site.name} was left out of steps before {first}, and came back with the server's model: "
        "its epsilon is as if it had made them all"
        for site, back in zip(peers.seen(), rejoining, strict=False)
        if back
    )
    return SessionTerms(
        first=first,
        until=until,
        paid=paid,
        own_paid=own_paid,
        charged={node: list(intervals) for node, intervals in charged.items()},
        own={node: list(intervals) for node, intervals in own.items()},
        message=message,
        lacking=lacking,
        rejoining=any(rejoining),
        comes_back=left_out,
        notes=notes,
        absences=absences,
    )


def _pay(plan: Plan, session: SessionMemory, ledger: RunLedger | None, first: int) -> None:
    """Charge a process that was left out for all steps, as those are that go on with it.

    What it had reserved in the session before and has not sent stands for the steps to come, from
    `first` on. What it had not reserved is reserved now, also steps that it has missed: that is
    more than it owes. One that never came before was in no session, and had no ledger when it began
    to wait: all that it has reserved since stands for what it has not sent. Without a ledger
    nothing is accounted.

    Raises:
        InputError: it may have sent something of that step or a later one in the session before.
        BudgetError: its budgets do not cover a step more, or not all, where the run can begin
            without it.
    """
    before = session.earlier(_TERMS_NAME, _TERMS)
    charged = {} if ledger is None else ledger.charged()
    began, paid, known = 0, 0, {}
    if before is not None:
        began, paid, known = before.first, before.own_paid, before.own
    unsent = max(session.rejoins or 0, began)
    if first < unsent:
        expected = (
            f"the run goes on from step {first}, and this site may have sent messages of steps "
            f"before {unsent} in an earlier session: start a new run"
        )
        raise InputError("--site", first, expected, public=True)
    if ledger is None:
        return
    for node, intervals in known.items():
        if list(charged.get(node, ()))[: len(intervals)] != list(intervals):
            expected = "lacks steps of the session before, which may have been sent: put it back"
            raise InputError("ledger", f"node {node}", expected, public=True)
    since = [
        until
        for node, intervals in charged.items()
        for _, until in intervals[len(known.get(node, ())) :]
    ]
    reserved = max(since, default=max(paid, began))
    until, reason = affordable(plan, charged, reserved, ledger)
    needed = first + 1
    if plan.config.begins_without:  # the others do not end early for one that comes back
        needed = max(needed, plan.steps if before is None else before.until)
    if until < needed:
        raise BudgetError(
            f"{reason}: this site cannot come back at step {first}",
            public=plan.config.privacy.ledger is None,
        )
    if until > reserved:
        ledger.reserve(reserved, until)
    ledger.settle(first, until)


def drawn_again(job: Job, nodes: Sequence[int], first: int) -> tuple[Interval, ...]:
    """What the process of these nodes reserves beside the steps to come, where it goes on."""
    return job.plan.release.drawn_again([job.plan.nodes[node] for node in nodes], first)


def _check_reserved(
    folder: RunFolder | None, reserved: Mapping[int, Sequence[Interval]], first: int
) -> None:
    """Refuse to go on from a checkpoint whose steps are not in the ledger: they are older."""
    if folder is None:
        return
    for intervals in reserved.values():
        if count := lacking_steps(intervals, first):
            expected = (
                f"the ledger of this run as it was left: {count} of the {first} steps that its "
                "checkpoint has made are not in them, so that they are an older copy; put the "
                "later ones back, or start a new run"
            )
            raise InputError("ledger", str(folder.ledger), expected, public=True)


def together(
    peers: Peers, what: str, job: Job, own: Mapping[int, Sequence[Interval]]
) -> dict[int, tuple[Interval, ...]]:
    """Every node's reserved intervals: of this process's own as they are, of others as reported.

    Each process gives one list for each of its nodes and names none, so that it cannot speak of
    another's; which nodes are its own, the placement says.

    Raises:
        PeerError: a process has not as many lists as nodes, or lists what it cannot have reserved.
    """
    listed = [_merged(own.get(node, ())) for node in job.hosted]
    charged = {node: tuple(own.get(node, ())) for node in job.hosted}
    steps = job.plan.release.planned[-1][1]
    shared = peers.share(what, listed, CHARGED)
    gone = gone_ranks(peers)
    for rank, lists in enumerate(shared):
        if rank == peers.rank:
            continue
        nodes = job.placement.hosted(rank)
        if rank in gone:  # the run went on without it: as if it had made all steps of this process
            lists = [shared[0][0]] * len(nodes)
        if len(lists) != len(nodes):
            raise PeerError(
                f"rank {rank} gave reserved steps of {len(lists)} nodes, not {len(nodes)}"
            )
        for node, intervals in zip(nodes, lists, strict=True):
            total = sum(until - first for first, until in intervals)
            if total > _MOST_REPEATS * steps or not all(
                0 <= first < until <= steps for first, until in intervals
            ):
                raise PeerError(
                    f"rank {rank} gave reserved steps that a run of {steps} cannot have"
                )
            charged[node] = tuple(intervals)
    return charged


def _merged(intervals: Sequence[Interval]) -> list[Interval]:
    """The same steps in the same order, where intervals that follow each other are one."""
    merged: list[Interval] = []
    for first, until in intervals:
        if first == until:
            continue
        if merged and merged[-1][1] == first:
            merged[-1] = (merged[-1][0], until)
        else:
            merged.append((first, until))
    return merged


def _common_checkpoint(
    own: list[int], peers: Peers, steps: int, rejoining: Sequence[bool]
) -> tuple[int, str | None]:
    """The last step of which every process has a checkpoint, or 0; and who lacks a later one.

    Those that come back after they were left out need none.
    """
    every = peers.share("list of checkpoints", own[-_MOST_LISTED:], STEPS)
    lists = [
        listed if not back else every[0] for listed, back in zip(every, rejoining, strict=True)
    ]
    for rank, listed in enumerate(lists):
        if max(listed, default=0) > steps:
            raise PeerError(f"rank {rank} gave checkpoints beyond the {steps} steps of the run")
    common = max(set.intersection(*map(set, lists)), default=0)
    newest = max((step for listed in lists for step in listed), default=0)
    if newest == common:
        return common, None
    lacking = ", ".join(str(rank) for rank, listed in enumerate(lists) if newest not in listed)
    start = f"from step {common}" if common else "from the start"
    return common, (
        f"no checkpoint of step {newest} on rank {lacking}: the run goes on {start}, and later "
        "checkpoints are set aside (checkpoint-*.earlier-*) until all processes have got as far"
    )


def _agreed_end(peers: Peers, plan: Plan, first: int, own: int) -> tuple[int, int]:
    """The step where the first process has to end, and its rank: nobody can end it later."""
    ends = peers.share("last step", own, STEP)
    for rank, end in enumerate(ends):
        if not first <= end <= plan.steps:
            raise PeerError(
                f"rank {rank} ends the run at step {end}: it goes on from step {first}, and has "
                f"{plan.steps} steps"
            )
    until = min(ends)
    return (until, peers.rank) if until == own else (until, ends.index(until))


def _run_id(ledger: RunLedger | None) -> str:
    return "" if ledger is None else ledger.own.run_id


def record(run: RunState, *, whole: bool = False) -> list[PublicMeasurement]:
    """Measure where the run stands; returns new rows, as `take_rows`, once all have said theirs."""
    job, models = run.job, run.models
    part = measure(job, models, run.consensus, run.state, run.communication.exchange, whole=whole)
    run.communication.put(run.step, part)
    if run.suboptimality is not None:
        run.suboptimality.keep(run.step, run.consensus)
    if run.folder is not None and run.folder is not run.common_folder:
        run.own_rows[run.step] = _private(run, run.step)
        if run.suboptimality is None:  # else it follows when all parts have come
            run.folder.append_metrics(run.own_rows.pop(run.step))
    return take_rows(run, whole=whole)


def take_rows(run: RunState, *, whole: bool = False) -> list[PublicMeasurement]:
    """Append the rows for which all parts have come, where they are written, and return them."""
    new: list[PublicMeasurement] = []
    for step, parts in run.communication.ready():
        run.measured = combined(run.job, parts, whole=whole)
        public = opened(_row(run, step, run.measured), "a row of metrics")
        # The private part of a row is shown in a simulation, and empty across processes.
        alone = run.peers.processes == 1
        more = as_dict(_private(run, step) if alone else measured.private_metrics(step).value)
        if run.suboptimality is not None:
            found = {"suboptimality": run.suboptimality.at(step, run.measured.common)}
            more |= found if alone else {}
            if run.folder is not None and step in run.own_rows:
                own = run.own_rows.pop(step)
                run.folder.append_metrics(own.model_copy(update=found))
        row = Measurement(**public, **more)
        run.rows = [kept for kept in run.rows if kept.step < step] + [row]
        if run.common_folder is not None:
            run.common_folder.append_metrics(row)
        new.append(PublicMeasurement(step=step, **public))
        LOG.info("step %d: %s", step, _words(new[-1]))
    return new


def _words(row: PublicMeasurement) -> str:
    """The public part of a row in a few words."""
    loss, accuracy, epsilon = row.test_loss, row.test_accuracy, row.epsilon
    asked = [
        f"test {name} {scores.mean:.4f}"
        for name, scores in row.test_metrics.items()
        if scores.mean is not None
    ]
    parts = (
        *asked,
        None if loss is None or loss.mean is None else f"test loss {loss.mean:.4f}",
        None if accuracy is None or accuracy.mean is None else f"test accuracy {accuracy.mean:.4f}",
        None if epsilon is None or epsilon.most is None else f"epsilon {epsilon.most:.4g}",
    )
    return ", ".join(part for part in parts if part) or "no test records"


def _private(run: RunState, step: int) -> PrivateMeasurement:
    """What is measured on private records, of this process's nodes: for their own file."""
    clip = run.plan.release.clip.applied(max(step - 1, 0))
    own = run.job.model.moments is None  # else gradients are of another function
    last, mask = run.context.last, run.context.last_mask
    seen = measured.private_metrics(step, last, mask, clip, losses=own).value
    lagrangian = augmented_lagrangian(run.job, run.state).value
    return seen.model_copy(update={"augmented_lagrangian": lagrangian})


def _row(run: RunState, step: int, run_evaluation: RunEvaluation) -> Released[dict[str, Any]]:
    plan = run.plan
    k = max(step - 1, 0)
    noise = [plan.release.noise_std(node, k) / node.divisor for node in plan.nodes]
    charged = max(step, run.paid)
    claims = [claim for claim in claimed_spent(plan, charged) if claim is not None]
    most, least = run.spent("most", step), run.spent("least", step)
    scores = None if run_evaluation.evaluation is None else run_evaluation.evaluation.value
    row = {
        **measured.summaries(scores, run.job.metrics, run.job.baselines),
        "consensus_distance": run_evaluation.consensus_distance,
        "clip": plan.release.clip.applied(k),
        "noise_std": sum(noise) / len(noise) if plan.noisy else None,
        "epsilon": None if most is None else Spread(max=most, min=least),
        "claimed_epsilon": Spread(max=max(claims), min=min(claims)) if claims else None,
        "bytes_sent": sum(run_evaluation.bytes_sent) / len(run_evaluation.bytes_sent),
        "seconds": run.seconds,
    }
    return Released(row)


def save(run: RunState) -> None:
    """Write a checkpoint of this process's nodes; older ones stay until all have one as new."""
    if run.folder is None:
        return
    if run.common_folder is not None:
        # Rows of steps before a checkpoint stand before it does: they are not measured again.
        run.communication.finish()
        take_rows(run)
    for folder in {*filter(None, (run.folder, run.common_folder))}:
        folder.sync_metrics()
    saved = checkpoint_of(run)
    run.peers.session.keep(run.step)
    checkpoints.write(run.folder.path, saved, keep=run.kept)
    LOG.info("step %d: checkpoint written", run.step)
    run.kept = run.peers.saved(run.step)
    checkpoints.discard_set_aside(run.folder.path, until=run.kept)


def keep_calibration(run: RunState) -> None:
    """Write it into the last checkpoint: whoever goes on from there is not charged for it again."""
    if run.folder is not None:
        path = checkpoints.file_of(run.folder.path, run.step)
        saved = checkpoints.read(path, run.job.digest, _run_id(run.ledger))
        known = {_CALIBRATION: torch.tensor(run.calibration, dtype=torch.float64)}
        saved = replace(saved, tensors={**saved.tensors, **known})
        checkpoints.write(run.folder.path, saved, keep=run.kept)


def checkpoint_of(run: RunState) -> Checkpoint:
    """What this process needs to go on from where the run stands."""
    tensors = dict(zip(run.state._fields, run.state, strict=True))
    tensors |= {f"{_CONTEXT}{name}": value for name, value in run.context.tensors().items()}
    if run.averages is not None:
        tensors |= {f"{_AVERAGES}{name}": value for name, value in run.averages._asdict().items()}
    exchanged = run.communication.exchange.tensors()
    tensors |= {f"{_EXCHANGE}{name}": value for name, value in exchanged.items()}
    return Checkpoint(run.step, tensors, run.seconds, run.job.digest, _run_id(run.ledger))
