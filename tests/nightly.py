"""Which tests wait for the night: more of what a test of every change asks already.

`make test-nightly` runs them, and the hosted workflow does every night. Two rules send tests there:

- Where a test has several decorators `parametrize`, every row of each of them stays with every
  change, in as few combinations as that takes; the other combinations wait (`combinations`).
- `nightly.txt` lists more, a function a line: `file::function | parts | what stays`. Parts are
  parts of ids: `-part` sends those tests, `+part` keeps those and sends all others, `all` sends
  every one. No name of a function stands for all functions of the file.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

# Of a test session: the tests that were collected, before any was left out, and their marks.
COLLECTED = pytest.StashKey[dict[str, frozenset[str]]]()


class Nightly(NamedTuple):
    """Of a function, the tests whose id has one of `sent` in it and none of `kept`."""

    file: str
    function: str
    kept: tuple[str, ...]
    stays: str
    sent: tuple[str, ...] = ("",)

    def takes(self, test: str) -> bool:
        """Whether a test of the function waits for the night."""
        return any(part in test for part in self.sent) and not any(p in test for p in self.kept)


# Of algorithms that one file of `tacit.algorithms` holds, those beside which another one stays; and
# those that release in pairs or by push-sum as another one does (`adp2-sgd`, `privsgp`).
ALIKE = tuple(
    f"[{name}"
    for name in (
        "const-d2p",
        "dyn-c",
        "dyn-mu",
        "dyn-general",
        "private-gradient-tracking",
        "d-psgd",
        "choco-sgd",
        "dpdl",
        "fedavg",
        "ddp-admm-gradient",
        "dp-radmm-gradient",
        "soteriafl-svrg",
        "ldp-spider",
        "noised-moments-server",
    )
)

# One algorithm of each way to release: by gossip, by a server and by ADMM, with Laplace noise, with
# noise of pairs, compressed, from differences, from tables and from moments.
KINDS = tuple(
    f"[{name}"
    for name in (
        "dp-sgd",
        "privsgp-vr",
        "cpgt",
        "dpdo",
        "fedspd-dp",
        "dp-madmm-gradient",
        "dp-srm",
        "do-adp",
        "adp2-sgd",
        "noised-moments",
    )
)

# Of these, some that have little in common, for what is asked of a run whatever it releases.
SOME = ("[privsgp-vr", "[dpdo", "[dp-madmm-gradient", "[dp-srm", "[do-adp")


def _line(text: str) -> Nightly:
    place, parts, stays = (part.strip() for part in text.split(" | "))
    file, _, function = place.partition("::")
    named = {"ALIKE": ALIKE, "KINDS": KINDS, "SOME": SOME}
    sides = {"-": (), "+": ()}
    for part in [] if parts == "all" else parts.split("; "):
        sides[part[0]] += named.get(part[1:], (part[1:],))
    return Nightly(file, function, sides["+"], stays, sides["-"] or ("",))


NIGHTLY = tuple(
    _line(text)
    for text in Path(__file__).with_name("nightly.txt").read_text(encoding="utf-8").splitlines()
)


def combinations(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Of the tests of one function, those that wait so that each row of its decorators stays.

    Rows are counted by decorator, so that values which stand together in one row stay together.
    """
    rows = {item: _rows(item) for item in items}
    if any(len(own) < 2 for own in rows.values()):
        return []
    left = set().union(*rows.values())
    waiting = list(rows)
    while left:
        most = max(waiting, key=lambda item: len(rows[item] & left))
        waiting.remove(most)
        left -= rows[most]
    return waiting


def _rows(item: pytest.Item) -> set[tuple[str, tuple[int, ...]]]:
    """The row of each decorator that a test was made from; of its values, which object each is."""
    spec = getattr(item, "callspec", None)
    found = set()
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        if isinstance(names, str):
            names = [name.strip() for name in names.split(",")]
        found.add((",".join(names), tuple(id(spec.params[name]) for name in names)))
    return found
