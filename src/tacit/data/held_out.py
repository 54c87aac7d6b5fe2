"""Test records that are held out of a data set without any, and declared public: `test_share`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from tacit.data.datasets import Dataset, TaskData
from tacit.data.partitions import TEST_SPLIT, public_generator
from tacit.errors import InputError


def hold_out(data: TaskData, share: float, seed: int) -> TaskData:
    """Move a share of the training records, drawn by the public seed, to the test records.

    They are trained on by nobody, and epsilon covers nothing that is said of them. At least one is
    moved, and one stays.

    Raises:
        InputError: on `task.test_share`, if there are test records already, or too few records.
    """
    if data.test is not None:
        raise InputError("task.test_share", share, f"{data.name} has test records: leave it out")
    count = len(data.train)
    moved = round(share * count)
    if not 1 <= moved < count:
        expected = f"must leave at least one of the {count:,} records on both sides"
        raise InputError("task.test_share", share, expected)
    order = public_generator(seed, TEST_SPLIT).permutation(count)
    test, train = np.sort(order[:moved]), np.sort(order[moved:])
    note = (
        f"test records: {moved:,} of {count:,} records are held out and declared public "
        f"(task.test_share = {share:g}): no epsilon covers what is said of them"
    )
    return replace(
        data,
        train=_chosen(data.train, train),
        test=_chosen(data.train, test),
        columns={name: values[train] for name, values in data.columns.items()},
        notes=(*data.notes, note),
    )


def _chosen(records: Dataset, rows: np.ndarray) -> Dataset:
    chosen = torch.from_numpy(rows)
    return Dataset(records.inputs[chosen], records.targets[chosen])
