"""One party of a run whose messages somebody else carries: Flower, NVFlare, or a loop of one's own.

It is the loop of `tacit.train` (`tacit.training.loop.running`) with one node, and the same plan,
ledger, noise and checkpoints as a process of a run of many has. Its exchange hands out arrays and
waits for arrays. Everything that it hands out was noised here, or is public; what it is handed may
be anything: its epsilon holds whatever the others and the carrier do, since a step's mechanism
bounds what a record adds to a message at every model that the step may start from, and a step's
message is made once. Trust model and neighbouring relation are those of the algorithm's page; a
server sees every message of every party.

What rests on agreeing with the others in secret is refused: secure sums and noise of pairs. Proof:
`docs/proofs/carried-messages.md`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from operator import index
from pathlib import Path
from typing import Any, Self, cast
from weakref import finalize

from tacit.base.private_files import new_private_file, plain_errors, remove_files, sync_folder
from tacit.base.standing import PATIENCE, StandingCall
from tacit.communication.peers import ALONE
from tacit.errors import InputError
from tacit.hosts.by_hand import (
    HERE,
    SERVER,
    Array,
    ByHand,
    Carried,
    PartyMemory,
    PartyMessage,
    TheOthers,
    taped,
    was_waiting,
)
from tacit.training.api import Source, understood, warn_of
from tacit.training.finish import result_document
from tacit.training.hooks import Hooks
from tacit.training.job import Job
from tacit.training.loop import running
from tacit.training.plan import Plan
from tacit.training.processes.communication import graphs_of
from tacit.training.records import node_records
from tacit.training.run_folder import checkpoint as checkpoints
from tacit.training.run_folder import folder as folders
from tacit.training.run_folder.result import Result
from tacit.training.stacked_context import StackedContext
from tacit.training.state import RunState, checkpoint_of

_MEMORY, _TURN = "party.json", "party-turn-"  # what it remembers, and its last message's number


class PrivateClient:
    """One node of an experiment, which computes, noises and accounts for itself.

    Call `step`, hand the arrays of `send` to who carries them, hand what answers them to `receive`,
    and so on until `done`; then `finish`. With `out` it may be closed after any of these calls, or
    killed: a new one with the same arguments goes on where it stood, and sends the same bytes.

    Args:
        config: as `tacit.train` takes it, for all nodes.
        node: which of its nodes this is, a number or a name.
        records: how many records (or persons) each node has, which is public; by default they are
            counted, where the experiment names one data set that is divided.
        data: the records of this node alone, as `tacit.train` takes a node's; by default those of
            the experiment.
        out: the folder of this party's run, private to it; without one nothing is written, and a
            run that is cut off cannot go on.
        more: `model`, `test`, `loss`, `metric`, `output`, `schema` and `graph` of `tacit.train`.

    Attributes:
        agreed: a digest of what all parties must have in common: experiment, model, its start, and
            plan. Parties with different ones would train different things; no epsilon rests on it.

    Raises:
        InputError: something given is wrong, or is not to be had inside another carrier.
        BudgetError: the node's budget cannot be met.
    """

    def __init__(
        self,
        config: Source,
        node: int | str,
        *,
        records: Sequence[int] | None = None,
        data: Any = None,
        out: str | Path | None = None,
        **more: Any,
    ) -> None:
        self._out = None if out is None else Path(out)
        if data is not None and records is None:
            raise InputError("records", None, "say how many records every node has, this one too")
        counts = [] if records is None else _whole_numbers(records)
        given = dict(more)
        if data is not None:
            (opened,), schema, _ = node_records([data], more.get("schema"))
            given |= {"nodes": [opened] * len(counts), "schema": schema}
        parsed, job_among = understood(config, out, given)
        if records is None:
            if parsed.nodes.data == "by-rank":
                raise InputError("records", None, "say how many records every node has")
            counts = [each.records for each in job_among(ALONE).plan.nodes]
        names = parsed.nodes.names or ()
        self.node = names.index(node) if isinstance(node, str) and node in names else node
        count = len(counts)
        if count != parsed.nodes.count:
            expected = f"must be of every node, and there are {parsed.nodes.count}"
            raise InputError("records", counts, expected)
        if not isinstance(self.node, int) or not 0 <= self.node < count or count < 2:
            listed = f", or of {', '.join(names)}" if names else ""
            expected = f"must be one of at least two nodes, 0 to {count - 1}{listed}"
            raise InputError("node", node, expected)
        self._records = tuple(counts)
        others = TheOthers(self.node, counts, PartyMemory(None, None))
        # What would be measured stays here: scores of other models would be of no use.
        self._job: Job = replace(job_among(others), test=None)
        _check_carried(self._job)
        text = json.dumps(others.said, sort_keys=True).encode()
        self.agreed = hashlib.blake2b(text, digest_size=16).hexdigest()
        self._exchange: ByHand  # of the run that is open
        self._standing: StandingCall[RunState | Result]
        self._end: finalize[..., PrivateClient] | None = None
        self._run: RunState | None = None
        self._message: PartyMessage | None = None  # that the run stands at, so that it is written
        self._result: Result | None = None
        self._process: int | None = None  # that has opened it
        warn_of(self._job, 3)

    @property
    def plan(self) -> Plan:
        """What was decided before the first step."""
        return self._job.plan

    @property
    def done(self) -> bool:
        """Whether all steps are made: `finish` gives the result."""
        return self._result is not None

    @property
    def epsilon(self) -> float | None:
        """Certified epsilon of all that is reserved: what was handed out, and up to a few steps."""
        return None if self._run is None else self._run.booked

    @property
    def folder(self) -> Path | None:
        """Where this party's ledger lies, its models and its result."""
        return None if self._out is None else self._out / f"rank-{HERE:04d}"

    def step(self) -> None:
        """Go on up to the next message, or to the end; nothing where a message waits.

        Raises:
            InputError: the folder is of another run, or cannot be written.
            BudgetError: nothing is left of the budget.
            DivergenceError: the model left the finite numbers.
        """
        if not self.done and not self._opened().waits:
            self._go_on()

    def send(self) -> PartyMessage:
        """What is to be carried now: the same however often it is asked for.

        Raises:
            InputError: there is nothing: the run is done, or `step` was not called.
        """
        exchange = self._opened()
        if self._message is None or exchange.message is not self._message or not exchange.waits:
            expected = "has no message now: call step, until client.done"
            raise InputError("client.send", None, expected)
        return self._message

    def receive(
        self, answer: Sequence[Array] | Mapping[int, Sequence[Array]], *, turn: int | None = None
    ) -> None:
        """Take what answers a message: a server's arrays, or those of each neighbour by its number.

        `turn` is that of the message, by default of the one that waits. One that was answered may
        be answered again with the same arrays, which changes nothing.

        Raises:
            InputError: nothing waits, or it answers another turn, or the last one otherwise.
            PeerError: it is not of the nodes that were asked, or wrong in shape, type or numbers.
        """
        exchange = self._opened()
        by_node = answer if isinstance(answer, Mapping) else {SERVER: answer}
        if turn is None and not exchange.waits:
            raise InputError("client.receive", None, "answers no message: call step first")
        exchange.take(exchange.turn if turn is None else turn, by_node)

    def close(self) -> None:
        """Let go of the folder: the next call, here or in another process, goes on from it."""
        if self._end is not None and self._end.detach():
            self._standing.end()
        self._run = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def finish(self) -> Result:
        """What came of the run, as far as this party knows it: its epsilon, models and documents.

        Raises:
            InputError: a step remains to be made.
        """
        if self._result is None:
            raise InputError("client.finish", None, "is for a run that is done: go on with step")
        return self._result

    def _opened(self) -> ByHand:
        """What the run speaks through, once it is begun or gone on with."""
        process = os.getpid()
        if self._run is not None and self._process == process:
            return self._exchange
        job, folder, returned_to = self._job, self.folder, None
        # A copy of a process would make other messages with the same noise; so would, without a
        # ledger of what was sent, whoever begins anew.
        if self._run is not None or (self._process is not None and folder is None):
            expected = "was opened by another process, or closed without a folder: make a new one"
            raise InputError("client", self.node, expected)
        if self._out is not None and (self._out / "config.toml").exists():
            raise InputError("out", str(self._out), "is the folder of another run: name a new one")
        begun = folder is not None and folder.exists()
        if folder is not None and begun and (path := checkpoints.latest(folder)) is not None:
            saved = checkpoints.read(path, job.digest)
            returned_to = saved.step if was_waiting(saved.tensors) else None
        memory = PartyMemory(None if folder is None else folder / _MEMORY, returned_to)
        exchange = ByHand(job.hosted[0], graphs_of(job), dtype=job.dtype, device=job.device)
        steps = running(
            job,
            Hooks(()),
            self._out,
            begun,
            alone=TheOthers(job.hosted[0], self._records, memory),
            make_context=lambda *given: cast(Any, taped(StackedContext(*given), exchange)),
            communicate=lambda job: nullcontext(Carried(exchange)),
            ended=_ended,
            carried=True,
        )
        self._exchange = exchange
        self._standing = StandingCall(partial(_made, steps, exchange, returned_to is not None))
        # Also when nobody holds this any more, and before the interpreter is taken down.
        self._end = finalize(self, self._standing.end, PATIENCE)
        self._go_on()
        self._process = process
        return exchange

    def _go_on(self) -> None:
        try:
            moved = self._standing.go_on()
        except BaseException:
            self.close()  # it has ended: whoever goes on does so from what is written
            raise
        if isinstance(moved, Result):
            self._result = moved
        else:
            self._run, self._message = moved, self._exchange.message


def _made(
    steps: Generator[RunState | Result],
    exchange: ByHand,
    returns: bool,
    stand: Callable[[RunState | Result], None],
) -> Result:
    """Make all steps; stand once the run is begun, or has come back to its message, and at each."""
    with closing(steps):
        run = cast(RunState, next(steps))
        path = None if run.folder is None else run.folder.path
        written = exchange.turn if returns else -1

        def asked() -> None:
            if path is not None:
                if exchange.turn != written:
                    checkpoints.write(path, checkpoint_of(run), settled=False)
                _note_turn(path, exchange.turn)
            stand(run)

        exchange.stand = asked
        if returns and path is not None:
            _check_turn(path, exchange.turn)
        if not returns:
            exchange.forget()  # what the start of the method was given is in its state
            stand(run)
        while not isinstance(moved := next(steps), Result):
            exchange.forget()
        return moved


def _check_turn(folder: Path, turn: int) -> None:
    """Refuse to go on from before a message that has left."""
    for path in folder.glob(f"{_TURN}*"):
        sent = path.name.removeprefix(_TURN)
        if not sent.isdecimal() or int(sent) > turn:
            expected = (
                f"is older than message {sent}, which has left: made again it could "
                "differ, and would say what noise hid; put the last one back"
            )
            raise InputError("checkpoint", str(folder), expected)


def _note_turn(folder: Path, turn: int) -> None:
    """Bring to the disk the names of the checkpoint and of the number of its message."""
    with plain_errors("out", folder):
        if not (folder / f"{_TURN}{turn}").exists():
            try:  # a name alone: it reaches the disk with that of the checkpoint
                os.rename(folder / f"{_TURN}{turn - 1}", folder / f"{_TURN}{turn}")
            except FileNotFoundError:
                os.close(new_private_file(folder / f"{_TURN}{turn}"))
        sync_folder(folder)


def _whole_numbers(records: Sequence[int]) -> list[int]:
    with suppress(TypeError):
        if min(counts := [*map(index, records)], default=-1) >= 0:
            return counts
    raise InputError("records", records, "must be a whole number for each node")


def _check_carried(job: Job) -> None:
    """Refuse what rests on agreeing with the other parties in secret, or on their numbers."""
    release, config = job.plan.release, job.config
    for key, value, is_asked in (
        ("privacy.aggregation", config.privacy.aggregation, release.sums is not None),
        ("privacy.pair_noise", config.privacy.pair_noise, release.pairs is not None),
        ("privacy.noise", config.privacy.noise, config.privacy.noise != "independent"),
        ("task.calibrate", config.task.calibrate, config.task.calibrate != "none"),
    ):
        if is_asked:
            expected = (
                "rests on more than a party has in one step alone: not inside another carrier"
            )
            raise InputError(key, value, expected)


def _ended(run: RunState, hooks: Hooks) -> Result:
    """Write down what this party knows of a run that is over; its secrets are gone then."""
    job, folder = run.job, run.folder
    own = {} if run.ledger is None else run.ledger.charged()
    known = {node: own.get(node, ()) for node in job.hosted}
    document = result_document(run, known, run.seconds, others="not asked")
    models, consensus = run.models.contiguous(), run.consensus
    if folder is not None:
        tensors = {
            folders.NODES: {"parameters": models},
            folders.MODEL: job.model.module(consensus).state_dict(),
        }
        folder.write_result(document, tensors)
        folder.write_known()
        remove_files(folder.path, _MEMORY, *(path.name for path in folder.path.glob(f"{_TURN}*")))
    return Result(
        document=document,
        parameters=models,
        consensus=consensus,
        rows=run.rows,
        notes=run.notes,
        out=None if folder is None else folder.path,
        job=job,
    )
