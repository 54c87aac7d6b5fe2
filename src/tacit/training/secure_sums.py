"""Secure sums as a run plans them: who takes part, what their noise counts for, on which lattice.

In round k every participant has noise of one and the same deviation a(k), in units of the **mean**
over its batch, weighed, whatever its batch and its budget; the server sees the sum over the m
participants and no message alone. Before any t of them who pool what they know, the noise of m - t
hides a record, so that the own noise counts for sqrt(m - t) times what it is: its *gain*
(`tacit.privacy.noise.summands`, `docs/proofs/pairwise-noise.md`).

*One deviation for all.* The strictest budget decides it, and the others spend less than theirs.
Where all need the same noise that is the least in total; where they do not, its variance in the sum
is at most m / (m - t) times the least. The lattice is then common too, which the sum needs: its
spacing is a function of a(k).

*Rounding.* Values are divided by the batch in float64 before noise is added, which errs by a share
of 2^-53 of a sum of at most J clipped gradients: a record of up to J = 2^30 moves a value by less
than C (1 + 2^-21) / B. Deviations that should be equal may differ in their last bits. `_MARGIN` of
every gain pays for both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InputError
from tacit.privacy.mechanisms.clipping import Clipping
from tacit.privacy.noise.summands import MOST_PARTICIPANTS, MOST_POINTS, most_points
from tacit.report.wording import count_text

SUMMAND_BYTES = 8
"""Of one number of a client's message: an int64."""

_MARGIN = 1.0 - 2.0**-20
_MOST_RECORDS = 1 << 30


@dataclass(frozen=True, eq=False)
class SecureSums:
    """That the server of a run sees sums only.

    Args:
        nodes: how many clients there are.
        colluding: how many of them may pool all that they know, with the server too: between
            processes rank 0 is the server, and its own clients are among these.
        active: who takes part when, bool `[steps, nodes]`; None: everybody always.
    """

    nodes: int
    colluding: int
    active: NDArray[np.bool_] | None = None

    @cached_property
    def participants(self) -> NDArray[np.int64]:
        """How many take part: `[steps]`; one number where all do in every step."""
        if self.active is None:
            return np.array([self.nodes], np.int64)
        return np.asarray(self.active.sum(axis=1), np.int64)

    @property
    def most(self) -> int:
        """Participants of the largest round."""
        return int(self.participants.max())

    @cached_property
    def gains(self) -> NDArray[np.float64]:
        """What own noise counts for, over what it is: `[steps, 1]`, never rounded up.

        sqrt(m - t), and 1 where nobody honest would be left: its own noise is its own. The same
        for every participant; one row where all take part in every step.
        """
        honest = np.maximum(1, self.participants - self.colluding)
        return np.asarray(np.sqrt(honest) * _MARGIN, np.float64)[:, None]

    def gain(self, node: int, k: int) -> float:
        """That of one node in round k."""
        return float(self.gains[k if len(self.gains) > 1 else 0, 0])

    @property
    def note(self) -> str:
        """What they come to, in one line."""
        least, most = (
            f"{math.sqrt(max(1, int(m) - self.colluding)):.3g}"
            for m in (self.participants.min(), self.participants.max())
        )
        counted = least if least == most else f"{least} to {most}"
        return (
            "secure sums: the server sees the sum over a round's clients, and no message alone; "
            f"against it and {count_text(self.colluding, 'colluding client')}, whichever they are, "
            f"a client's own noise counts {counted} times; between processes the server is that of "
            "rank 0, whose own clients are among those that collude with it"
        )

    def against(self, colluding: int) -> SecureSums:
        """The same sums, before another number of clients who pool what they know."""
        return replace(self, colluding=colluding)


def most_value(bound: float, most: float) -> float:
    """The largest number that a client adds to a sum, without noise; for certain.

    At most every record is drawn, and contributes at most `bound` (C), or twice that where
    differences of gradients are added, to a sum that is divided by the share q of their number, and
    weighed. Twice that leaves room for any rounding. `most` is the largest weight / q of all
    clients.
    """
    return 4.0 * bound * most


def check_range(
    sums: SecureSums,
    clip: Clipping,
    deviations: Sequence[float],
    most: float,
    records: Sequence[int],
) -> None:
    """Refuse sums that could leave 64 bits; what is checked is public, and holds for certain.

    `deviations` are a(k) of every step, `most` is the largest weight / q of all clients, and
    `records` is J of each.

    Raises:
        InputError: on `privacy.aggregation`; on `algorithm.clip`, nothing is clipped.
    """
    if clip.bounds is None:
        expected = "must be given: secure sums hold numbers that are bounded before they are added"
        raise InputError("algorithm.clip", None, expected)
    if sums.most > MOST_PARTICIPANTS:
        expected = f"takes {MOST_PARTICIPANTS} clients a round at most, and there are {sums.most}"
        raise InputError("privacy.aggregation", "secure-sum", expected)
    if max(records) > _MOST_RECORDS:
        expected = f"is proved for clients of up to {_MOST_RECORDS} records"
        raise InputError("privacy.aggregation", "secure-sum", expected)
    for bound, deviation in set(zip(clip.bounds, deviations, strict=True)):
        largest = most_points(most_value(bound, most), deviation)
        if largest > MOST_POINTS:
            expected = (
                f"counts values in steps of about 1/100 of their noise, and here one could have "
                f"{largest:.3g} of them, above {MOST_POINTS:.3g}: choose larger batches, or more "
                "noise"
            )
            raise InputError("privacy.aggregation", "secure-sum", expected)
