"""Whose fault it is that a message did not come, told from what the heartbeats say."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.communication.cluster.reports import describe_rank, lost
from tacit.communication.cluster.watch import Heartbeat, Seen
from tacit.errors import PeerError

__all__ = ["first_failure"]

_MISSED = 2  # looks in a row without a new heartbeat: one may be missed by chance


def first_failure(
    rank: int, waiting_for: int, reason: str, seen: Sequence[Seen], hosts: Sequence[Sequence[int]]
) -> PeerError:
    """The error of a wait that failed: A waits for B, B for C, ... until one waits for nobody.

    Args:
        rank: that waited.
        waiting_for: whom it waited for.
        reason: how the wait ended.
        seen: of each rank, what is known of it.
        hosts: of each rank, its nodes; empty where that is not known.
    """
    waits = [rank, waiting_for]
    while True:
        last = waits[-1]
        heartbeat = seen[last].heartbeat
        at = _at(heartbeat)
        seen_at = f", last seen{at}" if at else ""
        because = reason if last == waiting_for else f"rank {waits[-2]} waits for it"
        if heartbeat.done:
            return lost(last, hosts, f"has ended{at}, but rank {waits[-2]} waits for it")
        if seen[last].missed >= _MISSED:
            return lost(last, hosts, f"was lost{seen_at}: it gives no sign of life ({because})")
        following = heartbeat.waiting
        if following is None or not 0 <= following < len(seen):
            return lost(last, hosts, f"is alive{at}, but has sent nothing ({because})")
        if following in waits:  # in a circle: the fault lies between two that both live
            first = describe_rank(rank, hosts)
            near = _at(seen[waiting_for].heartbeat)
            state = f"is alive{near}, but nothing comes from it to {first} ({reason})"
            return lost(waiting_for, hosts, state)
        waits.append(following)


def _at(heartbeat: Heartbeat) -> str:
    return f" at step {heartbeat.step}" if heartbeat.step >= 0 else ""
