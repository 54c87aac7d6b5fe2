"""Why a run ends, in words that travel: an error of one rank comes out as the same kind on others.

The text of an error leaves its process only where it is known to be public (`TacitError.public`):
one that a process meets on its own data may quote a label, a path or a number of a record. Of all
others, the kind and the rank are told, and that the rest stands on that process's own screen.

A report is JSON, `{"kind": ..., "line": ...}`; whatever else is read is a lost peer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
