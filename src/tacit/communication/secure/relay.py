"""The relay: sites connect outwards to it, and it passes their frames on.

TLS ends here: a relay sees who connects, when, and every frame with its sender, receiver and size.
It keeps nothing. Sites sign their messages end to end, so that it can delay or drop them, but not
change, forge or replay one unseen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import zenoh

from tacit.communication.secure.sessions import door, notice, open_listening, session_config
from tacit.errors import InputError
from tacit.identities import Site
from tacit.identities.bundle import read_bundle
from tacit.identities.site import BUNDLE_FILE

_POLL = 0.2  # seconds
_TELL = 2.0  # seconds between two times that one who is not let in is told why


def run_relay(
    site: Site,
    listen: Sequence[str],
    until: Callable[[], bool],
    *,
    tell: Callable[[str, str], None] = lambda event, who: None,
) -> None:
    """Pass frames on between the sites of a consortium, until it is to end.

    Who is let in is what the relay's bundle says when this is called: after a site was revoked or
    approved, a relay joins the new bundle and is started again.

    Args:
        site: the relay's own folder.
        listen: HOST:PORT of each address.
        until: asked five times a second whether to end.
        tell: called with an event and whom it concerns: "listening" with the addresses,
            "connected", "left" and "refused" with a name.

    Raises:
        InputError: the folder is no relay's, or an address cannot be listened at.
    """
    if site.own.role != "relay":
        expected = "must be the folder of a relay: `tacit site create NAME --role relay ...`"
        raise InputError("--site", site.own.name, expected)
    admitted = {member.name for member in site.sites if not member.revoked}
    config = session_config(site, "router", site.sites, "*", listen=listen)
    with open_listening(config, "--listen", listen) as session:
        session.declare_subscriber(door(site), lambda sample: None)
        tell("listening", ", ".join(listen))
        before: dict[str, str] = {}
        bundle, told = read_bundle(site.folder / BUNDLE_FILE)[1], 0.0
        while not until():
            now = _connected(session)
            if time.monotonic() - told > _TELL:
                told = time.monotonic()
                for name in set(now.values()) - admitted:  # it may not know that it was revoked
                    with suppress(zenoh.ZError):
                        session.put(notice(site, name), bundle)
            for link in before.keys() - now.keys():
                tell("left", before[link])
            for link in now.keys() - before.keys():
                tell("connected" if now[link] in admitted else "refused", now[link])
            before = now
            time.sleep(_POLL)


def _connected(session: zenoh.Session) -> dict[str, str]:
    """The common name of the certificate at each connection's other end."""
    return {
        f"{link.zid} {link.dst}": link.auth_identifier or "unknown" for link in session.info.links()
    }
