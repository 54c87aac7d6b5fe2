"""Why a run ends, in words that travel: an error of one rank comes out as the same kind on others.

A report is JSON, `{"kind": ..., "line": ...}`; whatever else is read is a lost peer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from tacit.errors import (
    BudgetError,
    DivergenceError,
    InputError,
    PeerError,
    TacitError,
)

__all__ = ["ReportedInputError", "describe_rank", "lost", "parse", "read_report", "write_report"]

_LONGEST = 1000  # characters of a line
_LISTED = 8  # nodes that a message lists

RESUME = "what was done is kept: start all processes again with --resume"


class ReportedInputError(InputError):
    """What the user gave is wrong, as another process found it.

    Args:
        line: the message.
    """

    def __init__(self, line: str) -> None:
        super().__init__("another process", line, line)
        self.args = (line,)


_KINDS: dict[str, Callable[[str], TacitError]] = {
    "InputError": ReportedInputError,
    "BudgetError": BudgetError,
    "PeerError": PeerError,
    "DivergenceError": DivergenceError,
    "TacitError": TacitError,
}


def write_report(error: BaseException, rank: int | None = None) -> str:
    """The report of an error.

    Args:
        error: why a rank ends; one that tacit did not raise on purpose is a defect, exit code 1.
        rank: the rank that it happened to, which the line then begins with.
    """
    names = [kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS]
    # The text of any other error may quote whatever this process holds.
    said = _plain(error.told() if isinstance(error, TacitError) else type(error).__name__)
    line = said if rank is None else f"rank {rank}: {said}"
    return json.dumps({"kind": names[0] if names else "TacitError", "line": line})


def read_report(text: str) -> TacitError:
    """The error that a report tells of."""
    try:
        document = parse(text)
        return _KINDS[document["kind"]](_plain(str(document["line"])))
    except (ValueError, KeyError, TypeError):
        return PeerError("another process ended the run, with a reason that cannot be read")


def parse(text: str) -> Any:
    """What a text of JSON holds.

    Raises:
        ValueError: it is no JSON, or too deep.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def lost(rank: int, hosts: Sequence[Sequence[int]], what: str) -> PeerError:
    """The error of a rank that failed the others.

    Args:
        rank: the rank.
        hosts: of each rank, the nodes that it hosts; empty where that is not known.
        what: happened, following the rank's name.
    """
    return PeerError(_plain(f"{describe_rank(rank, hosts)} {what}; {RESUME}"))


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


def _plain(line: str) -> str:
    """One printable line: what another process says must not move this terminal's cursor."""
    words = " ".join(line.split())
    return "".join(character for character in words if character.isprintable())[:_LONGEST]
