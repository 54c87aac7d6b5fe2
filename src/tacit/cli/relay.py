"""The command `tacit relay`: parses, calls, prints; decides nothing."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from typer import Option

from tacit.cli.options import Json
from tacit.cli.signals import handled

_LINES = {
    "listening": "listening at {}",
    "connected": "{} has connected",
    "left": "{} has left",
    "refused": "{} is refused: it is no site of this relay's bundle, or was revoked",
}


def relay(
    site: Annotated[Path, Option(metavar="DIR", help="The relay's folder, joined to a bundle.")],
    listen: Annotated[
        list[str] | None,
        Option(
            metavar="HOST:PORT",
            help="Where sites connect; repeatable; by default the relay's approved addresses.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Pass the messages of a consortium's sites on, until SIGTERM or Ctrl-C.

    Sites connect outwards to it, and nobody connects to them. It prints who connects and leaves:
    with --json, one JSON object a line.
    """
    from tacit.communication.secure.sessions import run_relay
    from tacit.identities.site import load_site

    loaded = load_site(site)
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        asked.append(number)

    def tell(event: str, who: str) -> None:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        line = f"{time} {loaded.own.name}: {_LINES[event].format(who)}"
        if as_json:
            values = {"time": time, "relay": loaded.own.name, "event": event, "who": who}
            line = json.dumps(values)
        print(line, flush=True)

    with handled(ask, signal.SIGINT, signal.SIGTERM):
        run_relay(loaded, listen or loaded.own.addresses, lambda: bool(asked), tell=tell)
