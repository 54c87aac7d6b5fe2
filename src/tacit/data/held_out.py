"""Test records that are held out of a data set without any, and declared public: `test_share`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tacit.data.datasets import TaskData
from tacit.data.public_coins import TEST_SPLIT, public_generator
from tacit.errors import InputError


def hold_out(data: TaskData, share: float, seed: int) -> TaskData:
    """Move a share of the training records, drawn by the public seed, to the test records.

    They are trained on by nobody, and epsilon covers nothing that is said of them. At least one is
    moved, and one stays. Where units are known, they are a share of these, with all their records.

    Raises:
        InputError: on `task.test_share`, if there are test records already, or too few records.
    """
    if data.test is not None:
        raise InputError("task.test_share", share, f"{data.name} has test records: leave it out")
    whose = np.arange(len(data.train))
    if data.train.units is not None:
        whose = np.unique(data.train.units, return_inverse=True)[1]
    count = int(whose.max()) + 1
    moved = round(share * count)
    kind = "records" if data.train.units is None else "units"
    if not 1 <= moved < count:
        expected = f"must leave at least one of the {count:,} {kind} on both sides"
        raise InputError("task.test_share", share, expected)
    order = public_generator(seed, TEST_SPLIT).permutation(count)
    moves = np.isin(whose, order[:moved])
    note = (
        f"test records: {moved:,} of {count:,} {kind} are held out and declared public "
        f"(task.test_share = {share:g}): no epsilon covers what is said of them"
    )
    kept = data.chosen(np.flatnonzero(~moves))
    return replace(kept, test=data.train.chosen(np.flatnonzero(moves)), notes=(*data.notes, note))
