"""Where a run stands: its one mutable object, how it begins or goes on, how it is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tacit import checkpoint as checkpoints
from tacit import metrics as measured
from tacit.checkpoint import Checkpoint
from tacit.config import Config
from tacit.errors import InputError, PeerError
from tacit.folder import RunFolder
from tacit.links import Links
from tacit.marks import Measured, combined, measure
from tacit.peers import Peers
from tacit.plan import Interval, Plan
from tacit.prepare import Job
from tacit.result import Status
from tacit.spending import Books, affordable, claimed_spent, extremes, node_keys
from tacit.world import StackedWorld

__all__ = ["Session", "begin", "record", "save", "share_of", "take_rows", "together"]

EVALUATIONS = 20  # by default, over a run
_WORLD = "world."  # of what a checkpoint holds beside the algorithm's state


@dataclass
class Session:
    """The one mutable object of a run: where it stands.

    `folder` holds what is this process's own (ledger, checkpoints, its nodes' models); `front` is
    the folder of the whole run in the process that writes it, None in others. In a run of one
    process they are the same.
    """

    job: Job
    peers: Peers
    links: Links
    folder: RunFolder | None
    front: RunFolder | None
    ledger: Books | None
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
    notes: tuple[str, ...] = ()  # what happened to this session, for people
    measured: Measured | None = None
    started: bool = False  # whether the state before the first step was measured
    kept: int = 0  # the last step of which every process is known to have a checkpoint
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
        """De-biased models of this process's nodes, `[nodes, d]`; `[1, d]` where all are equal."""
        models: Tensor = self.job.config.algorithm.definition.models(self.state)
        return models

    def spent(self, which: str, step: int) -> float | None:
        """Epsilon of the node that spends `most` or `least`: an upper bound after `step` steps."""
        curve = self.curves[which]
        return next(
            (value for mark, value in zip(self.marks, curve, strict=True) if mark >= step),
            curve[-1],
        )


def begin(
    job: Job,
    peers: Peers,
    links: Links,
    folders: tuple[RunFolder | None, RunFolder | None],
    ledger: Books | None,
    *,
    resume: bool,
    anew: bool = False,
) -> Session:
    """Start, or pick up at the last step of which every process has a checkpoint.

    Args:
        job: what runs.
        peers: the other processes.
        links: to them.
        folders: of this process, and of the whole run where this process writes it.
        ledger: the books of this process's nodes.
        resume: whether the run goes on.
        anew: whether it does, and this process had no folder of it, or nothing in it.

    Raises:
        InputError: a process had no folder, and steps were made: its books are missing.
    """
    plan, config = job.plan, job.config
    algorithm, options = config.algorithm.definition, config.algorithm.options
    folder, front = folders
    keys = node_keys(plan, job.hosted)
    world = StackedWorld(plan, job.model, job.train, keys, links.exchange, job.hosted)
    origin = job.model.start(len(job.hosted), job.dtype, job.device)
    state = algorithm.start(origin.clone(), options, world)
    first, seconds = 0, 0.0
    found = None
    notes: tuple[str, ...] = ()
    if folder is not None and resume:
        own_steps, damaged = checkpoints.sound(folder.path, job.digest, _run_id(ledger))
        found = _common_checkpoint(folder, peers, own_steps)
        notes = tuple(f"{name} is damaged, and was not used" for name in damaged)
    if found is not None:
        saved = checkpoints.read(found, job.digest)
        first, seconds = saved.step, saved.seconds
        tensors = {name: value.to(job.device) for name, value in saved.tensors.items()}
        links.exchange.bytes_sent[:] = tensors.pop("exchange.bytes_sent").cpu().numpy()
        inner = {name: tensors.pop(name) for name in list(tensors) if name.startswith(_WORLD)}
        world.load({name.removeprefix(_WORLD): value for name, value in inner.items()}, origin)
        state = type(state)(**tensors)
    own = {} if ledger is None else ledger.charged()
    before = together(peers, "charged", own)
    missing = [rank for rank, new in enumerate(peers.share("new folders", anew)) if new]
    if missing and (first or any(before.values())):
        raise InputError(
            "--resume",
            True,
            f"rank {missing[0]} has no ledger of this run, and steps were made: its folder is "
            "missing or empty; put the folder back, or start a new run",
        )
    until, message = affordable(plan, before, first, ledger if resume else None)
    until, message = min(
        _heard(peers, "last step", [until, message], _is_end), key=lambda pair: int(pair[0])
    )
    rows = front.keep_metrics(first) if front is not None and resume else []
    if front is not None and until > first:
        front.withdraw_result()
    # Of all processes or of none: rows are made of what every one says.
    known, *_ = peers.share("rows known", bool(rows))
    marks = _marks(config, first, until)
    peers.begin(first)
    return Session(
        job=job,
        peers=peers,
        links=links,
        folder=folder,
        front=front,
        ledger=ledger,
        world=world,
        state=state,
        first=first,
        until=until,
        step=first,
        seconds_before=seconds,
        marks=marks,
        curves={
            which: plan.epsilon_curve(node, before.get(node.node, ()), first, marks)
            for which, node in extremes(plan).items()
        },
        rows=rows,
        started=bool(known),
        message=message,
        notes=notes,
        status="done" if message is None else "budget-exhausted",
    )


def together(
    peers: Peers, what: str, own: Mapping[int, Sequence[Interval]]
) -> dict[int, tuple[Interval, ...]]:
    """The booked intervals of every node, from what each process has of its own."""
    listed = {str(node): [list(pair) for pair in intervals] for node, intervals in own.items()}
    found: dict[int, tuple[Interval, ...]] = {}
    for rank, said in enumerate(peers.share(what, listed)):
        try:
            found |= {
                int(node): tuple((int(first), int(until)) for first, until in intervals)
                for node, intervals in said.items()
            }
        except (AttributeError, TypeError, ValueError):
            raise PeerError(f"rank {rank} gave no list of booked steps") from None
    return found


def _heard(peers: Peers, what: str, value: Any, good: Callable[[Any], bool]) -> list[Any]:
    """What every process gives, checked: it came over the network."""
    said = peers.share(what, value)
    for rank, one in enumerate(said):
        if not good(one):
            raise PeerError(f"rank {rank} gave no {what}")
    return said


def _are_steps(said: Any) -> bool:
    return isinstance(said, list) and all(type(step) is int for step in said)


def _is_end(said: Any) -> bool:
    """A step, and why the run ends there."""
    return isinstance(said, list) and len(said) == 2 and type(said[0]) is int


def _run_id(ledger: Books | None) -> str:
    """Identity of the run in its ledger; empty where nothing is accounted."""
    return "" if ledger is None else ledger.own.run_id


def _common_checkpoint(folder: RunFolder, peers: Peers, own: list[int]) -> Any:
    """The last sound checkpoint that every process has; later ones are of steps to be run again."""
    said = _heard(peers, "list of checkpoints", own, _are_steps)
    common = set(own).intersection(*map(set, said))
    if not common:
        if any(said):
            checkpoints.forget(folder.path, after=0)
        return None
    checkpoints.forget(folder.path, after=max(common))
    return checkpoints.file_of(folder.path, max(common))


def record(session: Session, *, whole: bool = False) -> None:
    """Measure where the run stands; the row follows when all processes have said theirs."""
    job, models = session.job, session.models
    part = measure(job, models, session.state, session.links.exchange, whole=whole)
    session.links.put(session.step, part)
    if session.folder is not None and session.folder is not session.front:
        session.folder.append_metrics({"step": session.step, **_private(session, session.step)})
    take_rows(session, whole=whole)


def take_rows(session: Session, *, whole: bool = False) -> None:
    """Append the rows for which all parts have come to the series; in the process that writes."""
    for step, parts in session.links.ready():
        session.measured = combined(session.job, parts, whole=whole)
        row = _row(session, step, session.measured)
        session.rows = [kept for kept in session.rows if kept["step"] < step] + [row]
        if session.front is not None:
            session.front.append_metrics(row)


def _private(session: Session, step: int) -> dict[str, Any]:
    """What is measured on private records, of this process's nodes."""
    clip = None if session.plan.clip is None else session.plan.clip[max(step - 1, 0)]
    seen = measured.private_metrics(session.world.last, session.world.last_mask, clip)
    return measured.private_row(seen)


def _row(session: Session, step: int, found: Measured) -> dict[str, Any]:
    plan = session.plan
    k = max(step - 1, 0)
    noise = [plan.noise_std(node, k) / node.expected_batch for node in plan.nodes]
    claims = [claim for claim in claimed_spent(plan, step) if claim is not None]
    most, least = session.spent("most", step), session.spent("least", step)
    alone = session.peers.processes == 1
    nothing = measured.private_row(measured.Private(None, None, None))
    return {
        "step": step,
        "test_accuracy": found.evaluation and found.evaluation.accuracy_summary(),
        "test_loss": found.evaluation and found.evaluation.loss_summary(),
        **(_private(session, step) if alone else nothing),
        "consensus_distance": found.consensus_distance,
        "clip": None if plan.clip is None else plan.clip[k],
        "noise_std": sum(noise) / len(noise) if plan.noisy else None,
        "epsilon": None if most is None else {"max": most, "min": least},
        "claimed_epsilon": {"max": max(claims), "min": min(claims)} if claims else None,
        "bytes_sent": sum(found.bytes_sent) / len(found.bytes_sent),
        "seconds": session.seconds,
    }


def save(session: Session) -> None:
    """Write a checkpoint of this process's nodes; older ones stay until all have one as new."""
    if session.folder is None:
        return
    if session.front is not None:
        # Rows of steps before a checkpoint stand before it does: they are not measured again.
        session.links.finish()
        take_rows(session)
    tensors = dict(zip(session.state._fields, session.state, strict=True))
    tensors |= {f"{_WORLD}{name}": value for name, value in session.world.tensors().items()}
    tensors["exchange.bytes_sent"] = torch.from_numpy(session.links.exchange.bytes_sent)
    run = _run_id(session.ledger)
    saved = Checkpoint(session.step, tensors, session.seconds, session.job.digest, run)
    checkpoints.write(session.folder.path, saved, keep=session.kept)
    session.kept = session.peers.saved(session.step)


def _marks(config: Config, first: int, until: int) -> tuple[int, ...]:
    """The steps after which the run is evaluated, its last one included."""
    every = config.train.evaluate_every or share_of(config.train.steps, EVALUATIONS)
    inner = [step for step in range(first, until) if step % every == 0]
    return (*inner, until)


def share_of(steps: int, parts: int) -> int:
    """Steps between two of about `parts` events."""
    return max(1, -(-steps // parts))
