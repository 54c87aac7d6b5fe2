"""Runs that must agree to the last bit: what each showed, and what differs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import zip_longest

from torch import Tensor

from tacit.analysis.audit.fidelity.finding import Finding, exact_finding

Items = tuple[tuple[str, str], ...]
"""What each thing is, for people, and a digest of it, in the order in which they came."""


def fingerprint(value: Tensor, *more: str) -> str:
    """A digest of a tensor's type, shape and bits, and of texts that go with it."""
    plain = value.detach().contiguous().cpu()
    return digest(repr((str(plain.dtype), tuple(plain.shape), more)), plain.numpy().tobytes())


def digest(text: str, content: bytes = b"") -> str:
    """A digest of a text and of bytes that follow it."""
    whole = hashlib.blake2b(text.encode(), digest_size=16)
    whole.update(content)
    return whole.hexdigest()


def changed(first: Items, other: Items) -> list[str]:
    """What is not the same in two runs, in words; what only one of them has counts too."""
    pairs = zip_longest(first, other, fillvalue=("", ""))
    return [own[0] or theirs[0] for own, theirs in pairs if own != theirs]


def compared_finding(
    name: str,
    question: str,
    differences: Sequence[str],
    things: str,
    count: int,
    power: str,
    meaning: str = "how many of them differ between runs that must agree to the last bit",
) -> Finding:
    """A test that no correct program fails: its statistic is how many things differ.

    Args:
        name: of the test.
        question: what it asks.
        differences: each in words, that of the first run before.
        things: what was compared, in the plural.
        count: how many of them one run has.
        power: what it finds.
        meaning: of the statistic.
    """
    saw = f"None of the {count} {things} differed." if count else f"There were no {things}."
    if differences:
        saw = (
            f"Of the {count} {things} that were compared in each run, {len(differences)} differed "
            f"in all; the first: {differences[0]}."
        )
    return exact_finding(name, question, len(differences), meaning, saw, power)
