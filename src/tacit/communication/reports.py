"""Whose fault it is that something did not come, and why a run ends, in words that travel.

An error of one rank comes out as the same kind on others. Its text leaves its process only where it
is known to be public (`TacitError.public`): one that a process meets on its own data may quote a
label, a path or a number of a record. Of all others, the kind and the rank are told, and that the
rest stands on that process's own screen.

A report is JSON, `{"kind": ..., "line": ...}`; whatever else is read is a lost peer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tacit.communication.peers import PeerState
from tacit.communication.received import REPORT, Report, plain
from tacit.errors import BudgetError, DivergenceError, InputError, PeerError, TacitError


class ReportedInputError(InputError):
    """What the user gave is wrong, as another process found it."""

    def __init__(self, line: str) -> None:
        super().__init__("another process", line, line, public=True)
        self.args = (line,)


_KINDS: Mapping[type[TacitError], Callable[[str], TacitError]] = {
    InputError: ReportedInputError,
    BudgetError: BudgetError,
    PeerError: PeerError,
    DivergenceError: DivergenceError,
    TacitError: TacitError,
}

_SCREEN = "see its own screen"
_UNTOLD: Mapping[type[TacitError], str] = {
    InputError: f"its own data or settings were refused; {_SCREEN}",
    BudgetError: f"a budget of its nodes forbids it; {_SCREEN}",
    PeerError: f"it lost a peer; {_SCREEN}",
    DivergenceError: f"the model of one of its nodes is no longer finite; {_SCREEN}",
    TacitError: f"it ended with an error of its own; {_SCREEN}",
}


def report_of(error: BaseException, who: str | None = None) -> Report:
    """What others are told of an error; the line begins with `who` it happened to, where given.

    An error that tacit did not raise on purpose is a defect, exit code 1.
    """
    kind = next((kind for kind in type(error).__mro__ if kind in _KINDS), TacitError)
    text = (error.reported() if isinstance(error, TacitError) else None) or _UNTOLD[kind]
    line = plain(text if who is None else f"{who}: {text}")
    return Report.model_validate({"kind": kind.__name__, "line": line})


def error_of(report: Report) -> TacitError:
    """The error that a report tells of."""
    kinds = {kind.__name__: make for kind, make in _KINDS.items()}
    error = kinds[report.kind](plain(report.line))
    error.public = True  # it was told
    return error


def write_report(error: BaseException, rank: int | None = None) -> str:
    """The same as it is written in the store, of the rank that it happened to."""
    return REPORT.write(report_of(error, None if rank is None else f"rank {rank}"))


def read_report(text: str) -> TacitError:
    """The error that a text tells of; whoever can reach the store may have written it."""
    try:
        return error_of(REPORT.read(text, 0, "report"))
    except PeerError:
        return PeerError("another process ended the run, with a reason that cannot be read")


_LISTED = 8  # nodes that a message lists


@dataclass(frozen=True)
class PeerProgress:
    """What a process said last: that it is at a step (-1 before the first), and waits for a rank.

    `done` says whether it has ended as it should, `silent` whether it has given no sign of life
    since, for too long, and `heard` whether it has ever said anything.
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
