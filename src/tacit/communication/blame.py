"""Whose fault it is that something did not come, by what all said last, and the words for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tacit.communication.peers import PeerState
from tacit.communication.received import plain
from tacit.errors import PeerError

_LISTED = 8  # nodes that a message lists


@dataclass(frozen=True)
class PeerProgress:
    """What a process said last.

    Attributes:
        step: that it is at; -1 before the first.
        waiting: for which rank it waits; None: for nobody.
        done: whether it has ended as it should.
        silent: whether it has given no sign of life since, for too long.
        heard: whether it has ever said anything.
    """

    step: int = -1
    waiting: int | None = None
    done: bool = False
    silent: bool = False
    heard: bool = True

    @property
    def waits_for(self) -> int | None:
        """For whom it waits, as far as that can still be so."""
        return None if self.done or self.silent else self.waiting


def peer_state(
    rank: int, name: str, said: PeerProgress, quiet: float, *, away: bool = False
) -> PeerState:
    """What is shown of a process that was last heard of `quiet` seconds ago."""
    if not said.heard:
        return PeerState(rank, name, "unknown")
    return PeerState(
        rank,
        name,
        "done" if said.done else "away" if away else "connected",
        step=said.step if said.step >= 0 else None,  # one that is at a step has made as many
        quiet=quiet,
        waiting_for=() if said.waiting is None else (said.waiting,),
    )


def awaited(own: int, first: int, progress: Mapping[int, PeerProgress]) -> list[int]:
    """A waits for B, B for C, ... until one waits for nobody else: their ranks, from `own` on."""
    waits, following = [own, first], progress[first].waits_for
    while following is not None and following in progress and following not in waits:
        waits.append(following)
        following = progress[following].waits_for
    return waits


def first_failure(
    waits: Sequence[int],
    reason: str,
    progress: Mapping[int, PeerProgress],
    names: Sequence[str],
    each: str = "all processes",
) -> PeerError:
    """The error of a wait that failed, of which `awaited` gave `waits`, and `reason` its end.

    `names` are of all ranks, with what they host; `each` is who has to start again.
    """
    last, before = waits[-1], waits[-2]
    circle = progress[last].waits_for in waits
    if circle:  # the fault lies between two that both live
        last, before = waits[1], waits[0]
    said, waiter = progress[last], names[before].partition(" (")[0]
    at = f" at step {said.step}" if said.step >= 0 else ""
    because = reason if last == waits[1] else f"{waiter} waits for it"
    if circle:
        state = f"is alive{at}, but nothing comes from it to {names[before]} ({reason})"
    elif said.done:
        state = f"has ended{at}, but {waiter} waits for it"
    elif said.silent:
        seen = f", last seen{at}" if at else ""
        state = f"was lost{seen}: it gives no sign of life ({because})"
    else:
        state = f"is alive{at}, but has sent nothing ({because})"
    return lost(names[last], state, each)


def lost(name: str, what: str, each: str = "all processes") -> PeerError:
    """The error of a process that failed the others; `what` happened follows its name."""
    kept = f"what was done is kept: start {each} again with --resume"
    return PeerError(plain(f"{name} {what}; {kept}"))


def describe_rank(rank: int, hosts: Sequence[Sequence[int]]) -> str:
    """A rank with its nodes.

    >>> describe_rank(1, [[0, 1, 2], [3, 4, 5]])
    'rank 1 (nodes 3 to 5)'
    """
    nodes = list(hosts[rank]) if rank < len(hosts) else []
    if not nodes:
        return f"rank {rank}"
    if len(nodes) == 1:
        return f"rank {rank} (node {nodes[0]})"
    if nodes == list(range(nodes[0], nodes[-1] + 1)):
        return f"rank {rank} (nodes {nodes[0]} to {nodes[-1]})"
    listed = ", ".join(map(str, nodes[:_LISTED])) + (", ..." if len(nodes) > _LISTED else "")
    return f"rank {rank} (nodes {listed})"
