"""`status.json`: where one process of a run stands, for the eyes of its own site.

Nothing in it is measured on private records: no training loss, no clip rate, no count of records.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from tacit.base.plain_files import read_plain
from tacit.errors import FormatError, InputError
from tacit.report.documents.base import (
    Count,
    Document,
    Flag,
    Items,
    OptionalNumber,
    RunDocument,
    Text,
    load,
)

STATUS = "status.json"
SILENT = 15.0  # seconds without a new status, after which a process is said to be silent
ProcessState = Literal["starting", "running", "waiting", "stopped", "done", "failed"]
FINAL: tuple[ProcessState, ...] = ("stopped", "done", "failed")

_LARGEST = 4 * 2**20  # bytes of a status: some 20,000 sites


class SiteStatus(RunDocument):
    """What this process knows of a site, its own included.

    Args:
        name: "rank 2" where it has none.
        state: "connected": heard of just now; "away": it was, and is not any more; "done": ended
            as it should; "gone": the run goes on without it; "unknown": never heard of.
        step: steps that it has made, by its own word.
        last_seen: ISO 8601, UTC.
        last_error: what last went wrong between it and this process.
        rate: bytes a second that it has acknowledged in the last ten seconds; None: not measured,
            as of this process itself, and in one rack.
        frames: messages that were handed over for it by this process; None likewise.
        again: how many of these were sent again.
    """

    rank: Count
    name: Text
    state: Literal["connected", "away", "gone", "done", "unknown"]
    step: Count | None
    last_seen: Text | None
    last_error: Text | None
    rate: OptionalNumber
    frames: Count | None
    again: Count | None


class StatusDocument(RunDocument):
    """Where a process stands.

    Args:
        site: its name, as in `sites`.
        state: "waiting": it stands still since it has to hear of others first.
        steps: that the run makes, of which `step` are made; None until that is known.
        epsilon: the largest that a node of this process has spent by all that its ledger has
            charged, rounded up between evaluations; None where nothing is accounted.
        budget: of that node; None where it has none.
        bytes_sent: by the nodes of this process, over all sessions.
        since: when it came into this state, ISO 8601, UTC.
        updated: when this was written; about once a second until the process ends.
        sites: all of a run of several processes; empty where one process has all nodes.
        last_error: what ended the run, or else what last went wrong between sites.
    """

    format_version: Count
    rank: Count
    site: Text
    state: ProcessState
    step: Count
    steps: Count | None
    epsilon: OptionalNumber
    budget: OptionalNumber
    bytes_sent: Count
    since: Text
    updated: Text
    waiting_for: Items[Text]
    sites: Items[SiteStatus]
    last_error: Text | None


class WatchedProcess(Document):
    """What the folder of a process says at one moment.

    `status` is None where it cannot be read, and `problem` says why. `age` is in seconds since it
    was written. A process is `silent` that has written nothing for `SILENT` seconds and has not
    ended.
    """

    folder: Text
    status: StatusDocument | None
    problem: Text | None
    age: OptionalNumber
    silent: Flag


class WatchDocument(Document):
    """What `tacit watch` sees of a run at one moment: one line of `--json`."""

    format_version: Count
    run: Text
    time: Text
    processes: Items[WatchedProcess]

    @property
    def statuses(self) -> tuple[StatusDocument, ...]:
        """Those that can be read."""
        return tuple(each.status for each in self.processes if each.status is not None)

    @property
    def ended(self) -> bool:
        """Whether all processes that are here have ended."""
        return all(
            process.status is not None and process.status.state in FINAL
            for process in self.processes
        )


def read_status(folder: Path) -> StatusDocument:
    """The status of the process whose folder this is.

    Raises:
        InputError: there is none, or it is damaged.
    """
    path = folder / STATUS
    try:
        content = read_plain(path, _LARGEST)
    except FileNotFoundError:
        expected = "is not there: no process has run here yet, or an older tacit made this folder"
        raise InputError(STATUS, str(path), expected) from None
    except OSError as error:
        raise InputError(STATUS, str(path), f"cannot be read ({error.strerror})") from None
    try:
        status = load(StatusDocument, content, STATUS)
        moment_of(status.updated)
        for site in status.sites:
            moment_of(site.last_seen or status.updated)
    except FormatError:
        raise
    except InputError as error:
        expected = f"is damaged ({error}); the process writes it anew when it runs again"
        raise InputError(STATUS, str(path), expected) from None
    if status.state != "done":
        return status
    # With it all others have ended, but those without whom it went on; nobody hears them any more.
    ended = {"state": "done", "step": status.step}
    sites = [one if one.state == "gone" else one.model_copy(update=ended) for one in status.sites]
    return status.model_copy(update={"sites": tuple(sites)})


def moment_of(text: str) -> datetime:
    """A time as it stands in a status.

    Raises:
        InputError: it is none.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError("time", text, "must be a time of ISO 8601") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def watched(run: Path, now: datetime) -> WatchDocument:
    """What can be seen of a run in this folder: of the processes that ran here, and of no others.

    `now` is the time, with its zone.

    Raises:
        InputError: it is no run folder.
    """
    try:
        inside = [Path(entry.path) for entry in os.scandir(run) if entry.is_dir()]
    except FileNotFoundError:
        expected = "is not there: a run makes its folder once all its processes have come"
        raise InputError("RUN", str(run), expected) from None
    except OSError as error:
        raise InputError("RUN", str(run), f"cannot be read ({error.strerror})") from None
    folders = sorted(path for path in inside if path.name.startswith("rank-"))
    if (run / STATUS).exists() or not folders:
        if not (run / "config.toml").exists() and not (run / STATUS).exists():
            expected = (
                "is not a run folder: it has neither config.toml nor a folder of a process "
                "(rank-0000, ...)"
            )
            raise InputError("RUN", str(run), expected)
        folders = [run]
    return WatchDocument(
        format_version=WatchDocument.version,
        run=str(run),
        time=now.astimezone(UTC).isoformat(timespec="seconds"),
        processes=tuple(_watched(folder, now) for folder in folders),
    )


def _watched(folder: Path, now: datetime) -> WatchedProcess:
    try:
        status = read_status(folder)
    except InputError as error:
        return WatchedProcess(
            folder=str(folder), status=None, problem=str(error), age=None, silent=False
        )
    age = max((now - moment_of(status.updated)).total_seconds(), 0.0)
    silent = status.state not in FINAL and age > SILENT
    return WatchedProcess(folder=str(folder), status=status, problem=None, age=age, silent=silent)
