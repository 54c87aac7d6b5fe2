"""Consortia for tests: members that are approved and have joined, in a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import pytest

from tacit.errors import InputError
from tacit.identities import Site, approve, create_site, join

SITES: Mapping[str, Sequence[str]] = {"north": (), "south": ()}
RELAYS: Mapping[str, Sequence[str]] = {"relay": ("127.0.0.1:7447",)}


def consortium(
    folder: Path,
    sites: Mapping[str, Sequence[str]] = SITES,
    relays: Mapping[str, Sequence[str]] = RELAYS,
    *,
    days: int = 365,
    now: datetime | None = None,
) -> dict[str, Site]:
    """Members by name, each with its addresses; the coordinator's folder is `consortium`."""
    requests = [create_site(folder / name, name, "site", sites[name]) for name in sites]
    requests += [create_site(folder / name, name, "relay", relays[name]) for name in relays]
    bundle = approve(folder / "consortium", requests, days=days, now=now).path
    return {name: join(folder / name, bundle, now=now) for name in (*sites, *relays)}


def refused(error: pytest.ExceptionInfo[InputError], *words: str) -> None:
    """An error is one line with these words."""
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text
