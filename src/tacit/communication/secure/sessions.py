"""One session of the engine: mutual TLS, no scouting, and what each member may do in it.

The engine (zenoh) verifies certificates against the consortium's authority at both ends, and knows
the other end by the common name of its certificate: the name of a member. What is not allowed here
to one of these names is refused: by a relay to sites, and by a site to relays and other sites.

A relay is a session to which sites connect outwards, and which passes their frames on. TLS ends
there: a relay sees who connects, when, and every frame with its sender, receiver and size. It keeps
nothing. Sites sign their messages end to end, so that it can delay or drop them, but not change,
forge or replay one unseen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

import zenoh

from tacit.errors import InputError
from tacit.identities.bundle import Member, read_bundle
from tacit.identities.names import check_address
from tacit.identities.site import BUNDLE_FILE, Site

RETRY = 1.0  # seconds after which a connection that was lost is tried again; then twice as long
ATTEMPT = 30.0  # seconds of one attempt of a client: on a line of 2 s each way, greetings take 20
PIECE = 60 * 2**10  # bytes of a message of the engine, which divides what is longer than 65,535
_LARGEST_MESSAGE = 2**17  # bytes that the engine collects of one message
_WAITING_MESSAGES = 16  # on the way out, the engine's most: with its 2, a frame waits for itself
_POLL = 0.2  # seconds
_TELL = 2.0  # seconds between two times that one who is not let in is told why
_STALLED_US = 5_000_000  # a connection on which a message has not gone out so long is given up


def open_listening(config: zenoh.Config, where: str, listen: Sequence[str]) -> zenoh.Session:
    """A session at which others connect, at each HOST:PORT of `listen`.

    `where` is the option that named the addresses; one that cannot be had is an InputError.
    """
    for address in listen:
        host, _, port = address.rpartition(":")
        every = host in ("0.0.0.0", "[::]")  # nobody can call these, but one can listen at them
        try:
            check_address(f"127.0.0.1:{port}" if every else address)
        except InputError as error:
            raise InputError(where, address, error.expected) from None
    try:
        return zenoh.open(config)
    except zenoh.ZError as error:
        reason = str(error).split(" at /")[0]  # what follows is where in the engine it was found
        expected = f"must be a free HOST:PORT of this machine ({reason})"
        raise InputError(where, ", ".join(listen), expected) from None


def session_config(
    site: Site,
    mode: Literal["client", "peer", "router"],
    others: Sequence[Member],
    own: str,
    *,
    listen: Sequence[str] = (),
    connect: Sequence[str] = (),
) -> zenoh.Config:
    """The configuration of one session of this member.

    `mode` is as the engine calls it: a client connects to a relay, a peer to sites. It speaks with
    the `others`, of whom those who were revoked are left out. `own` is its rank, `*` at a relay. It
    listens and connects at each HOST:PORT of `listen` and `connect`.
    """
    config = zenoh.Config()
    tls = {
        "enable_mtls": True,
        "verify_name_on_connect": True,
        "close_link_on_expiration": True,
        "root_ca_certificate": str(site.authority_file),
        "listen_certificate": str(site.certificate_file),
        "listen_private_key": str(site.key_file),
        "connect_certificate": str(site.certificate_file),
        "connect_private_key": str(site.key_file),
    }
    retry = {
        "period_init_ms": int(1000 * RETRY),
        "period_max_ms": int(2000 * RETRY),
        "period_increase_factor": 2.0,
    }
    settings = {
        "mode": mode,
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "adminspace/enabled": False,
        "plugins_loading/enabled": False,
        "transport/shared_memory/enabled": False,
        "transport/link/protocols": ["tls"],
        "transport/link/tls": tls,
        "transport/unicast/open_timeout": int(1000 * ATTEMPT),
        "transport/unicast/accept_timeout": int(1000 * ATTEMPT),
        "transport/link/rx/max_message_size": _LARGEST_MESSAGE,
        "transport/link/tx/queue/size/data": _WAITING_MESSAGES,
        "transport/link/tx/queue/congestion_control/block/wait_before_close": _STALLED_US,
        "listen/endpoints": [f"tls/{address}" for address in listen],
        "listen/exit_on_failure": True,
        "connect/endpoints": [f"tls/{address}" for address in connect],
        # A client that reached nobody fails; a peer goes on trying in the background.
        "connect/timeout_ms": int(1000 * ATTEMPT) if mode == "client" else -1,
        "connect/exit_on_failure": mode == "client",
        "connect/retry": retry,
        "open/return_conditions/connect_scouted": False,
        "access_control": _access(site, others, own),
    }
    for key, value in settings.items():
        config.insert_json5(key, json.dumps(value))
    return config


def door(site: Site) -> str:
    """Where a relay listens, and nothing is sent: who sees it there has been let in."""
    return f"tacit/{site.bundle.consortium}/door"


def notice(site: Site, name: str) -> str:
    """Where a relay puts its bundle for a member that it does not let in."""
    return f"tacit/{site.bundle.consortium}/notice/{name}"


def _access(site: Site, others: Sequence[Member], own: str) -> dict[str, object]:
    """What each of the others may do here; nobody else may do anything.

    They are told by the common names of their certificates. `own` is the rank whose frames this
    process takes and sends; `*` at a relay, which does so for all.
    """
    place = f"tacit/{site.bundle.consortium}/*/to"
    rules: list[dict[str, object]] = []
    policies: list[dict[str, object]] = []
    subjects: list[dict[str, object]] = []
    for other in others:
        if other.name == site.own.name:
            continue
        theirs = "*" if other.rank is None else str(other.rank)
        allowed = {
            ("ingress", "put"): [f"{place}/{own}/from/{theirs}"],
            ("egress", "put"): [f"{place}/{theirs}/from/{own}"],
            ("ingress", "declare_subscriber"): [f"{place}/{theirs}/from/*", door(site)],
            ("egress", "declare_subscriber"): [f"{place}/{own}/from/*", door(site)],
        }
        if other.revoked:
            allowed = {flow: [] for flow in allowed}
        # A member that was revoked, and cannot know it, reads so: from a relay, and no more.
        gives, takes = ("egress", "ingress") if own == "*" else ("ingress", "egress")
        if own == "*" or other.rank is None:
            told = notice(site, other.name if own == "*" else site.own.name)
            allowed[gives, "put"].append(told)
            allowed[takes, "declare_subscriber"].append(told)
        allowed = {flow: keys for flow, keys in allowed.items() if keys}
        if not allowed:
            continue
        for (flow, message), keys in allowed.items():
            rule = f"{other.name} {flow} {message}"
            rules.append(
                {
                    "id": rule,
                    "permission": "allow",
                    "flows": [flow],
                    "messages": [message],
                    "key_exprs": keys,
                }
            )
        subjects.append({"id": other.name, "cert_common_names": [other.name]})
        policies.append(
            {"rules": [rule["id"] for rule in rules[-len(allowed) :]], "subjects": [other.name]}
        )
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }


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

    It listens at each HOST:PORT of `listen`, asks `until` five times a second whether to end, and
    tells of an event and whom it concerns: "listening" with the addresses, "connected", "left" and
    "refused" with a name.

    Raises:
        InputError: the folder is no relay's, or an address cannot be listened at.
    """
    if site.own.role != "relay":
        expected = "must be the folder of a relay: `tacit site create NAME --role relay ...`"
        raise InputError("--site", site.own.name, expected)
    admitted = {member.name for member in site.bundle.sites if not member.revoked}
    config = session_config(site, "router", site.bundle.sites, "*", listen=listen)
    with open_listening(config, "--listen", listen) as session:
        session.declare_subscriber(door(site), lambda sample: None)
        tell("listening", ", ".join(listen))
        before: dict[str, str] = {}
        bundle, told = read_bundle(site.folder / BUNDLE_FILE)[1], 0.0
        while not until():
            # By connection, the common name of the certificate at its other end.
            now = {
                f"{link.zid} {link.dst}": link.auth_identifier or "unknown"
                for link in session.info.links()
            }
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
