"""Sites without which a run goes on: what is written and said of them, and who is at fault."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tacit.communication.blame import PeerProgress, first_failure
from tacit.communication.secure.streams import AWAY, Outgoing, PeerView
from tacit.errors import InputError, LeftOutError, PeerError, TacitError

_log = logging.getLogger(__name__)

LEFT = "left out "  # and a rank: what a journal says of a site that is left out
GRACE = 3  # times as long other sites wait until rank 0 has said without whom the run goes on
_TWO_BEATS = 2.0  # seconds


def progress(peers: Mapping[int, PeerView], limit: float) -> dict[int, PeerProgress]:
    """What sites said last, where a wait has a limit of so many seconds."""
    heard_since = time.monotonic() - _silence(limit)
    return {
        rank: PeerProgress(silent=True, heard=False)
        if view.beat is None
        else PeerProgress(
            view.beat.step,
            None if view.beat.waiting_for < 0 else view.beat.waiting_for,
            view.done,
            silent=view.heard < heard_since,
        )
        for rank, view in peers.items()
    }


def since(view: PeerView, limit: float) -> float:
    """From when on a site does nothing, by the monotonic clock; `limit` is as in `progress`.

    One that was waiting when it fell silent could do nothing while it was heard, and counts from
    when it was heard last: else it had no time at all where its wait was as long as the limit.
    """
    waited = view.beat is not None and view.beat.waiting_for >= 0
    away = time.monotonic() - view.heard > _silence(limit)
    return view.heard if waited and away else view.moved


def _silence(limit: float) -> float:
    """Seconds without a word after which what a site has said last does not count any more."""
    return min(AWAY, max(limit / 2, _TWO_BEATS))


def untold(views: Iterable[PeerView]) -> bool:
    """Whether somebody is there who is not done, and may not know that this site is."""
    heard_since = time.monotonic() - AWAY
    return any(view.heard > heard_since and not view.done for view in views)


def owes(outs: Mapping[int, Outgoing], views: Mapping[int, PeerView]) -> bool:
    """Whether somebody who is not done may still need something that was sent to it."""
    return any(
        outs[rank].kept and not view.done and view.beat is not None for rank, view in views.items()
    )


def lost(
    rank: int, own: int, limit: float, sites: Sequence[str], view: PeerView, barred: str | None
) -> PeerError:
    """The error of a site that has not come further for `limit` seconds.

    `barred` says why it is not believed, or this site by others; None: it is.
    """
    away = time.monotonic() - view.heard
    silent = away > min(AWAY, limit / 2)
    reason = (
        f"it was away for {away:.0f} s" if silent else f"it has not come further for {limit:g} s"
    )
    said = replace(progress({rank: view}, limit)[rank], silent=silent)
    if (awaited := said.waiting) is not None and awaited < len(sites):
        reason += f", and says that it waits for {sites[awaited]}"
    reason += "" if barred is None else f"; {barred}"
    return first_failure((own, rank), reason, {rank: said}, sites, "every site")


def differs(name: str, receiver: str, step: int) -> InputError:
    """The error of a site that has come back, and would send another message than it did before."""
    expected = (
        f"the message to {receiver} at step {step} differs from the one that was sent before this "
        "process came back, and nothing was sent: put the records, the versions and the machine "
        "back as they were, and start this site again, or start a new run"
    )
    return InputError("--site", name, expected)


def left_out(stated: Mapping[str, str]) -> dict[int, int]:
    """Ranks that are left out, and from which step on, by what a journal holds."""
    held = {key: text for key, text in stated.items() if key.startswith(LEFT)}
    return {int(key.removeprefix(LEFT)): int(text) for key, text in held.items()}


def left_behind(name: str, step: int, takes_back: bool | None, here: bool) -> TacitError | None:
    """The error of a site without which the others go on, from `step` on at the latest.

    `takes_back` says whether they take it back; None: it is not known yet. `here` says whether the
    site is in their session still, and not in one that waits for that.
    """
    if takes_back is None or (takes_back and not here):
        return None
    if takes_back:
        return LeftOutError(f"{name} was left out, and the others take it back")
    if step == 0:
        expected = "came too late: the others began without it, and do not take it in any more"
        return InputError("--site", name, expected)
    return InputError(
        "--site",
        name,
        f"was left out, from step {step} at the latest: it was away, or came no further, for "
        "longer than train.patience, and the others go on without it; what it sent stays charged "
        "in its ledger",
    )


def say_left(name: str, step: int) -> None:
    """Log that the run goes on without a site, or begins without it."""
    if step == 0:
        _log.warning(
            "%s did not come within train.patience: the run begins without it, and takes it in "
            "when it comes",
            name,
        )
        return
    _log.warning(
        "%s was away, or came no further, for longer than train.patience: the run goes on without "
        "it, and from step %d on nobody counts on it",
        name,
        step,
    )


def say_back(step: int) -> None:
    """Log that the run stops for sites that were left out."""
    _log.warning(
        "who was left out is back: the run stops after step %d, and goes on from there with all "
        "that are there",
        step,
    )
