"""Who is who in a consortium: sites and relays with keys and certificates of their own.

A member makes a key and a request (`create_site`), a coordinator approves requests and signs a
*bundle* of all members (`approve`, `revoke`), and each member joins the bundle (`join`). What
follows needs no coordinator: members recognise each other by their certificates
(`Bundle.refusal`) and their messages by their signatures (`sign`, `verify`).
"""

from __future__ import annotations

from tacit.identities.bundle import Bundle, Member, read_bundle
from tacit.identities.consortium import Approval, approve, load_consortium, revoke
from tacit.identities.site import Site, create_site, join, load_site, sign, verify

__all__ = [
    "Approval",
    "Bundle",
    "Member",
    "Site",
    "approve",
    "create_site",
    "join",
    "load_consortium",
    "load_site",
    "read_bundle",
    "revoke",
    "sign",
    "verify",
]
