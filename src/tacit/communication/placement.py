"""Which process hosts which node: blocks of neighbouring nodes, or a rank for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tacit.errors import InputError

__all__ = ["Placement", "place"]

_WHERE = "nodes.placement"


@dataclass(frozen=True)
class Placement:
    """The process of every node.

    Args:
        ranks: of each node, `[nodes]`; together they are all of 0 to processes - 1.
    """

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
    """Say which process hosts which node.

    Args:
        count: of nodes, at least 1.
        processes: how many there are.
        placement: "blocks": neighbouring nodes, blocks whose sizes differ by at most one, the
            larger first; or the rank of each node.

    Raises:
        InputError: on `--processes`, if there is none, or one without a node; on
            `nodes.placement`, if it does not name one rank a node and every rank at least once.
    """
    if not 1 <= processes <= count:
        expected = f"must be 1 to {count}: a process hosts at least one of the {count} nodes"
        raise InputError("--processes", processes, expected)
    if isinstance(placement, str):
        return Placement(_blocks(count, processes))
    ranks = tuple(placement)
    _check(ranks, count, processes)
    return Placement(ranks)


def _blocks(count: int, processes: int) -> tuple[int, ...]:
    size, larger = divmod(count, processes)
    sizes = [size + (rank < larger) for rank in range(processes)]
    return tuple(rank for rank, nodes in enumerate(sizes) for _ in range(nodes))


def _check(ranks: tuple[int, ...], count: int, processes: int) -> None:
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
