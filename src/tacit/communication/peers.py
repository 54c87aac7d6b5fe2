"""The other processes of a run as what trains sees them, and which process hosts which node.

`ALONE` stands for the other processes in a run of one. `place` gives the nodes to processes: blocks
of neighbouring nodes, or a rank for each of them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from tacit.communication.received import Form
from tacit.errors import InputError

T = TypeVar("T")

READY = "rows known"
"""What every process shares last before it begins: one that has not is sure that nobody has."""


@dataclass(frozen=True)
class PeerState:
    """What is known of a process at one moment; see `tacit.report.documents.status.SiteStatus`.

    Attributes:
        quiet: seconds since it was last heard of; None where it never was.
        waiting_for: the ranks that it waits for now.
        left_from: of one that is gone, a step before which it was left out; 0: the session began
            without it, and what it would have shared is not known.
        last_error: one line that is public.
    """

    rank: int
    name: str
    state: Literal["connected", "away", "gone", "done", "unknown"]
    step: int | None = None
    quiet: float | None = None
    waiting_for: tuple[int, ...] = ()
    last_error: str | None = None
    left_from: int | None = None
    rate: float | None = None
    frames: int | None = None
    again: int | None = None


class SessionMemory:
    """What a process remembers of a session of a run when it comes back to it after a kill.

    This one is of a process that is never waited for: every start is a new session.

    Attributes:
        returned: whether it comes back to a session that others go on with.
        returned_to: the step at which it comes back; None where no step was begun.
        rejoins: where the run has gone on without this process, and takes it in now: the first
            step of which it has sent nothing in an earlier session; else None.
    """

    returned: bool = False
    returned_to: int | None = None
    rejoins: int | None = None

    def secret(self, name: str) -> bytes:
        """32 random bytes that no other process has, the same whenever this one comes back."""
        return secrets.token_bytes(32)

    def remember(self, name: str, make: Callable[[], T], schema: Form[T]) -> T:
        """What was made when the session began; made now, where it begins."""
        return make()

    def earlier(self, name: str, schema: Form[T]) -> T | None:
        """What was remembered of the session in which it was left out; None if it was in none."""
        return None

    def keep(self, step: int) -> None:
        """Write down what has come and gone, before the checkpoint of a step is written."""


class Peers:
    """What a run asks of its other processes beside the messages of its algorithm.

    Here there is no other process (`ALONE`), and every question is answered at once.

    `authenticated` says whether what another process says is signed with its identity.
    """

    rank: int = 0
    processes: int = 1
    authenticated: bool = False
    session: SessionMemory = SessionMemory()

    def placed(
        self, placement: Literal["blocks"] | Sequence[int]
    ) -> Literal["blocks"] | Sequence[int]:
        """Where nodes are, of which the experiment says `placement`; one process has all."""
        return "blocks" if self.processes == 1 else placement

    def share(self, what: str, value: T, schema: Form[T]) -> list[T]:
        """What every process gives, in the order of ranks; waits for all, within limits.

        What stands for this process is the value itself, whatever others made of it on the way.
        For one without which the run goes on stands what rank 0 gives.

        Raises:
            PeerError: a process was lost, or gave what the schema refuses.
            TacitError: what another process reported.
        """
        return [value]

    def can_spare(self, ranks: Collection[int]) -> bool:
        """Whether all can meet anew without processes that come back, and cannot take part.

        A process is never one of those that it can spare.
        """
        return False

    def report(self, error: BaseException) -> None:
        """Tell the others why this process ends, where it ends the run."""

    def at(self, step: int) -> None:
        """Say where this process stands."""

    def check(self) -> None:
        """Raise what another process reported, or PeerError for a lost one; without waiting."""

    def saved(self, step: int) -> int:
        """Say that this process has a checkpoint of a step; the last that every process has."""
        return step

    def begin(self, step: int) -> None:
        """Say at which step this session starts, before the first `agreed_stop`."""

    def agreed_stop(self, step: int, asked: bool) -> bool:
        """Whether all stop after `step` steps: the same answer in every process.

        `asked` says whether this process was asked to.
        """
        return asked

    def seen(self) -> Sequence[PeerState]:
        """What is known of every process, this one included, in the order of ranks.

        Asks nobody and waits for nothing; called from another thread than all the others.
        """
        return (PeerState(0, "rank 0", "connected", quiet=0.0),)


ALONE = Peers()


def gone_ranks(peers: Peers) -> dict[int, str]:
    """The names of the sites without which the run goes on, by rank."""
    return {site.rank: site.name for site in peers.seen() if site.state == "gone"}


_WHERE = "nodes.placement"


@dataclass(frozen=True)
class Placement:
    """The process of every node: `ranks`, `[nodes]`, are together all of 0 to processes - 1."""

    ranks: tuple[int, ...]

    @property
    def processes(self) -> int:
        """How many processes there are."""
        return 1 + max(self.ranks)

    def hosted(self, rank: int) -> tuple[int, ...]:
        """The nodes of a process, ascending; none where there is no such process."""
        return tuple(node for node, host in enumerate(self.ranks) if host == rank)


def place(
    count: int, processes: int, placement: Literal["blocks"] | Sequence[int] = "blocks"
) -> Placement:
    """Say which process hosts which of `count` nodes, of which there is at least one.

    "blocks" are of neighbouring nodes, and their sizes differ by at most one, the larger first;
    otherwise `placement` is the rank of each node.

    Raises:
        InputError: on `--processes`, if there is none, or one without a node; on
            `nodes.placement`, if it does not name one rank a node and every rank at least once.
    """
    if not 1 <= processes <= count:
        expected = f"must be 1 to {count}: a process hosts at least one of the {count} nodes"
        raise InputError("--processes", processes, expected)
    if isinstance(placement, str):
        size, larger = divmod(count, processes)
        sizes = [size + (rank < larger) for rank in range(processes)]
        return Placement(tuple(rank for rank, nodes in enumerate(sizes) for _ in range(nodes)))
    ranks = tuple(placement)
    if len(ranks) != count:
        expected = f"must name one rank for each of the {count} nodes; it names {len(ranks)}"
        raise InputError(_WHERE, list(ranks), expected)
    for node, rank in enumerate(ranks):
        if not 0 <= rank < processes:
            expected = (
                f"node {node} is on rank {rank}, and {processes} processes have ranks "
                f"0 to {processes - 1}"
            )
            raise InputError(_WHERE, list(ranks), expected)
    idle = sorted(set(range(processes)) - set(ranks))
    if idle:
        expected = (
            f"rank {idle[0]} hosts no node: name every rank from 0 to {processes - 1}, or start "
            "fewer processes"
        )
        raise InputError(_WHERE, list(ranks), expected)
    return Placement(ranks)
