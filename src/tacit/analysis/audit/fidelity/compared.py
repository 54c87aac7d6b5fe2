"""Runs that must agree to the last bit: what each showed, by channel, and what differs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from torch import Tensor

from tacit.analysis.audit.fidelity.finding import Finding, exact_finding
from tacit.analysis.audit.records import CHANGES, Change, other_records
from tacit.data import StackedData
from tacit.training.job import Job

Items = tuple[tuple[str, str], ...]
"""What each thing is, for people, and a digest of it, in the order in which they came."""


@dataclass(frozen=True)
class Shown:
    """What one run, or one preparation, showed: digests of what went over channels, by their names.

    `error` is the kind of error that ended it, as its text may quote private values; None: nothing
    did.
    """

    channels: Mapping[str, Items]
    error: str | None = None

    def of(self, *channels: str) -> Items:
        """What went over some channels; nothing over one that an error came before."""
        there = {**dict.fromkeys(channels, ()), **self.channels} if self.error else self.channels
        return tuple(chain.from_iterable(there[name] for name in channels))


def fingerprint(value: Tensor, *more: str) -> str:
    """A digest of a tensor's type, shape and bits, and of texts that go with it."""
    plain = value.detach().contiguous().cpu()
    return digest(repr((str(plain.dtype), tuple(plain.shape), more)), plain.numpy().tobytes())


def digest(text: str, content: bytes = b"") -> str:
    """A digest of a text and of bytes that follow it."""
    whole = hashlib.blake2b(text.encode(), digest_size=16)
    whole.update(content)
    return whole.hexdigest()


def on_others(
    job: Job,
    show: Callable[[str, StackedData], Shown],
    names: Iterable[str] = CHANGES,
    records: Callable[[Job, Change], StackedData | None] = other_records,
) -> dict[str, Shown]:
    """What is shown after each change of the records that the job's model takes, by its name."""
    made = ((name, records(job, CHANGES[name])) for name in names)
    return {name: show(name, data) for name, data in made if data is not None}


def changed(first: Items, other: Items) -> list[str]:
    """What is not the same in two runs, in words; what only one of them has counts too."""
    pairs = zip_longest(first, other, fillvalue=("", ""))
    return [own[0] or theirs[0] for own, theirs in pairs if own != theirs]


def compared(
    first: Shown,
    name: str,
    question: str,
    runs: Mapping[str, Shown],
    channels: Sequence[str],
    things: str,
    power: str,
    ended: str = "it ended with an error,",
) -> Finding:
    """Whether runs showed `things` over some channels as the first one did.

    That all ended with an error of one kind is no difference. Where the first one did, the finding
    says so. The kind of any other error stands after `ended`.
    """
    found = []
    for run, shown in runs.items():
        records = f"with other records ({run})," if run in CHANGES else f"with {run},"
        if shown.error != first.error:
            how = "nothing was wrong" if shown.error is None else f"{ended} {shown.error}"
            found.append(f"{records} {how}")
            continue
        found += [f"{records} {what}" for what in changed(first.of(*channels), shown.of(*channels))]
    finding = agreement(name, question, found, things, len(first.of(*channels)), power)
    if first.error is None:
        return finding
    reason = f"Only what came before an error was compared, {first.error}. "
    return finding.model_copy(update={"saw": reason + finding.saw})


def agreement(
    name: str,
    question: str,
    differences: Sequence[str],
    things: str,
    count: int,
    power: str,
    meaning: str = "how many of them differ between runs that must agree to the last bit",
) -> Finding:
    """The finding of what differs, each in words, of `count` things that one run has."""
    saw = f"None of the {count} {things} differed." if count else f"There were no {things}."
    if differences:
        saw = (
            f"Of the {count} {things} that were compared in each run, {len(differences)} differed "
            f"in all; the first: {differences[0]}."
        )
    return exact_finding(name, question, len(differences), meaning, saw, power)
