"""`status.json`: where one process of a run stands, for the eyes of its own site.

Nothing in it is measured on private records: no training loss, no clip rate, no count of records.
"""

from __future__ import annotations

from typing import Literal

from tacit.report.documents.base import Count, Items, OptionalNumber, RunDocument, Text

__all__ = ["FINAL", "ProcessState", "SiteStatus", "StatusDocument"]

ProcessState = Literal["starting", "running", "waiting", "stopped", "done", "failed"]
FINAL: tuple[ProcessState, ...] = ("stopped", "done", "failed")


class SiteStatus(RunDocument):
    """What this process knows of a site, its own included.

    Args:
        rank: of its process.
        name: of the site; "rank 2" where it has none.
        state: "connected": heard of just now; "away": it was, and is not any more; "done": ended
            as it should; "unknown": never heard of.
        step: steps that it has made, by its own word.
        last_seen: ISO 8601, UTC.
        last_error: what last went wrong between it and this process.
    """

    rank: Count
    name: Text
    state: Literal["connected", "away", "done", "unknown"]
    step: Count | None
    last_seen: Text | None
    last_error: Text | None


class StatusDocument(RunDocument):
    """Where a process stands.

    Args:
        format_version: 1.
        rank: of the process.
        site: its name, as in `sites`.
        state: "waiting": it stands still since it has to hear of others first.
        step: steps made.
        steps: that the run makes; None until that is known.
        epsilon: the largest that a node of this process has spent by all that its ledger has
            charged, rounded up between evaluations; None where nothing is accounted.
        budget: of that node; None where it has none.
        bytes_sent: by the nodes of this process, over all sessions.
        since: when it came into this state, ISO 8601, UTC.
        updated: when this was written; about once a second until the process ends.
        waiting_for: names of the sites.
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
