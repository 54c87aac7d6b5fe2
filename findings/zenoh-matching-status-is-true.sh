#!/usr/bin/env bash
# Zenoh 1.10.2 (eclipse-zenoh): `if publisher.matching_status:` is always taken, also where nobody listens.
#
# The types that the package ships say that the property is a bool; what it gives is a MatchingStatus, an object without
# a truth value of its own, and so always true. Whether anybody listens is its attribute `matching`, which a
# type checker refuses. It is so of a querier's as well.
#
# Exit status 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check --quiet install eclipse-zenoh==1.10.2 mypy==1.19.1
cat >"$folder/reads.py" <<'PYTHON'
import zenoh


def listened(publisher: zenoh.Publisher) -> bool:
    reveal_type(publisher.matching_status)
    return publisher.matching_status.matching
PYTHON
said=$("$folder/venv/bin/mypy" --no-error-summary "$folder/reads.py" | sed 's/.*reads.py/reads.py/' || true)
echo "$said"
grep -q 'Revealed type is "\(builtins\.\)\?bool"' <<<"$said"
grep -q '"bool" has no attribute "matching"' <<<"$said"
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import zenoh

config = zenoh.Config()
config.insert_json5("scouting/multicast/enabled", "false")
config.insert_json5("listen/endpoints", "[]")
with zenoh.open(config) as session:
    publisher = session.declare_publisher("a/b")
    querier = session.declare_querier("a/b")
    print("eclipse-zenoh", version("eclipse-zenoh"))
    for asks in (publisher, querier):
        alone = asks.matching_status
        print(f"{type(asks).__name__}, nobody listens: {type(alone).__name__}, bool {bool(alone)}, matching {alone.matching}")
        assert bool(alone) and not alone.matching
    subscriber = session.declare_subscriber("a/b")
    heard = publisher.matching_status
    print(f"Publisher, one listens: bool {bool(heard)}, matching {heard.matching}")
    assert bool(heard) and heard.matching
PYTHON
