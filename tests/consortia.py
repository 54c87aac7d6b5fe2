"""Consortia for tests: members that are approved and have joined, in a folder."""

from tacit.identities.consortium import approve
from tacit.identities.site import create_site, join

SITES = {"north": (), "south": ()}
RELAYS = {"relay": ("127.0.0.1:7447",)}


def consortium(folder, sites=SITES, relays=RELAYS, *, days=365, now=None):
    """Members by name, each with its addresses; the coordinator's folder is `consortium`."""
    requests = [create_site(folder / name, name, "site", sites[name]) for name in sites]
    requests += [create_site(folder / name, name, "relay", relays[name]) for name in relays]
    bundle = approve(folder / "consortium", requests, days=days, now=now).path
    return {name: join(folder / name, bundle, now=now) for name in (*sites, *relays)}


def refused(error, *words):
    """An error is one line with these words."""
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text
