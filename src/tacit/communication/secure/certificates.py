"""Certificates that end before a run or while it goes on: whose, when, and what to do."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

from tacit.errors import InputError
from tacit.identities import Site, refusal
from tacit.identities.certificates import shown_time

_log = logging.getLogger(__name__)
_REMEDY = (
    "ask the coordinator to approve its request again, join the new bundle everywhere, and start "
    "every site and relay again with the same command"
)


class Certificates:
    """The certificates on which a site depends: its own, every other site's, those of the relays.

    `until` is when the run is likely to end.
    """

    def __init__(self, site: Site, until: datetime) -> None:
        self.until = until
        self._site = site
        self._members = [one for one in (*site.sites, *site.relays) if not one.revoked]
        self._told: set[tuple[str, bool]] = set()
        self._looked = datetime.min.replace(tzinfo=UTC)

    def expired(self, now: datetime) -> str | None:
        """Which of them do not hold at a time, and what to do; None: all hold."""
        reasons = [why for one in self._members if (why := refusal(one, self._site, now))]
        return f"{', and '.join(reasons)}: {_REMEDY}" if reasons else None

    def look(self, now: datetime) -> None:
        """Log, once each, which do not hold and which will not until the run ends."""
        if now - self._looked < timedelta(seconds=1):
            return
        self._looked = now
        for member in self._members:
            why, ends = refusal(member, self._site, now), member.certificate.not_valid_after_utc
            if (why is None and ends > self.until) or (member.name, bool(why)) in self._told:
                continue
            self._told.add((member.name, bool(why)))
            soon = (
                f"the certificate of {member.name} expires on {shown_time(ends)}, and this run is "
                f"likely to last until {shown_time(self.until)} or longer"
            )
            _log.warning("%s: %s", why or soon, _REMEDY)


def refuse_in_vain(site: Site, now: datetime) -> None:
    """Refuse to begin a run in which a site cannot take part, or no relay can pass messages on.

    Raises:
        InputError: naming it, and why.
    """
    for one in site.sites:
        if (why := refusal(one, site, now)) is not None:
            expected = (
                f"cannot take part, and a run needs every site: {why}; join the bundle in which "
                "the coordinator has approved it again, or a consortium without it"
            )
            raise InputError("--site", one.name, expected)
    faults = [refusal(relay, site, now) for relay in site.relays]
    if faults and all(faults) and not any(one.addresses for one in site.sites):
        expected = (
            f"cannot pass messages on, and no other relay can: {faults[0]}; join the bundle in "
            "which the coordinator has approved it again"
        )
        raise InputError("--site", site.relays[0].name, expected)
