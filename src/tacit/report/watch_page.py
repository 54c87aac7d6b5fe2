"""Where a run stands, for people at one site: what `tacit watch` shows."""

from __future__ import annotations

from collections.abc import Iterator

from tacit.report.documents.status import (
    FINAL,
    SiteStatus,
    StatusDocument,
    WatchDocument,
    WatchedProcess,
    moment_of,
)
from tacit.report.view import Block, Table, Text
from tacit.report.wording import NOTHING, bytes_text, duration_text, epsilon_text

_JUST_NOW = 5.0  # seconds: a site that was heard of so lately is heard of
_PASSING = ("connected", "away")  # states of another site that nobody here follows any more
_MOST_URGENT = ("failed", "waiting", "starting", "running", "stopped", "done")
_COLUMNS = ("site", "state", "step", "last seen", "epsilon", "sent")


def watch_blocks(seen: WatchDocument) -> list[Block]:
    """Where the run stands, its sites, and a line for all that is wrong."""
    rows = [tuple(map(_plain, row)) for row in _rows(seen)]
    return [
        Text(_plain(f"{seen.run}: {_headline(seen)}"), unbroken=True),
        *([Table(_COLUMNS, rows, left=_COLUMNS)] if rows else []),
        *(Text(_plain(line), unbroken=True) for line in _remarks(seen)),
    ]


def _plain(text: str) -> str:
    """What others have named must not move the cursor; between a number and its unit is a space."""
    return "".join(sign for sign in text if sign.isprintable() or sign == "\u202f")


def _headline(seen: WatchDocument) -> str:
    """The state of the run in a few words: of the process that most needs attention."""
    if not seen.statuses:
        return "nothing can be seen here"
    status = min(seen.statuses, key=lambda status: _MOST_URGENT.index(status.state))
    steps = "" if status.steps is None else f" of {status.steps:,}"
    at = f"step {status.step:,}{steps}"
    words = {
        "failed": f"has failed at {at}",
        "waiting": f"waits for {_listed(status.waiting_for)} at {at}",
        "starting": "is starting",
        "running": f"is running, {at}",
        "stopped": f"was stopped after {at}",
        "done": f"is done, {at}",
    }
    return words[status.state]


def _rows(seen: WatchDocument) -> Iterator[tuple[str, ...]]:
    """A row for each site: of those that run here by their own word, of others by what is heard."""
    here = {
        process.status.rank: (process.status, process)
        for process in seen.processes
        if process.status is not None
    }
    if not here:
        return
    latest = max(seen.statuses, key=lambda status: status.updated)
    others = {site.rank: site for site in latest.sites}
    for rank in sorted({*here, *others}):
        if rank not in here:
            yield _heard_row(others[rank], *here[latest.rank])
            continue
        status, process = here[rank]
        budget = "" if status.budget is None else f" of {status.budget:g}"
        waits = f"waits for {_listed(status.waiting_for)}"
        yield (
            f"{status.site} (here)",
            "silent" if process.silent else waits if status.state == "waiting" else status.state,
            f"{status.step:,}",
            "now" if _is_alive(process) else f"{duration_text(process.age)} ago",
            f"{epsilon_text(status.epsilon)}{budget}",
            bytes_text(status.bytes_sent),
        )


def _heard_row(
    site: SiteStatus, latest: StatusDocument, process: WatchedProcess
) -> tuple[str, ...]:
    """A site as the process here knows it, which may have ended since."""
    seen, step = "never", NOTHING if site.step is None else f"{site.step:,}"
    if site.last_seen is not None:
        age = (moment_of(latest.updated) - moment_of(site.last_seen)).total_seconds()
        age += 0.0 if _is_alive(process) else process.age or 0.0
        seen = "now" if age < _JUST_NOW else f"{duration_text(age)} ago"
    state: str = site.state
    if state in _PASSING and not _is_alive(process):
        state = "unknown"
    rate = f"{bytes_text(site.rate)}/s" if site.rate and _is_alive(process) else ""
    return (site.name, state, step, seen, "", rate)


def _is_alive(process: WatchedProcess) -> bool:
    return not process.silent and process.status is not None and process.status.state not in FINAL


def _remarks(seen: WatchDocument) -> Iterator[str]:
    for process in seen.processes:
        if process.problem is not None:
            yield process.problem
    for process in seen.processes:
        status = process.status
        if status is None:
            continue
        if process.silent:
            yield (
                f"{status.site} has given no sign of life for {duration_text(process.age)}: its "
                "process has ended without a word, hangs, or cannot write into its folder"
            )
        elif status.waiting_for:
            yield f"{status.site} has waited for {_listed(status.waiting_for)} since {status.since}"
        for site in status.sites:
            if site.again:
                yield (
                    f"{status.site}: of {site.frames or 0:,} messages to {site.name}, "
                    f"{site.again:,} were sent again"
                )
        if status.last_error is not None:
            yield f"{status.site}: last error: {status.last_error}"


def _listed(names: tuple[str, ...]) -> str:
    *before, last = names or ("another",)
    return f"{', '.join(before)} and {last}" if before else last
