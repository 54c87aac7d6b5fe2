"""FedSPD-DP on Adult: its records, client by client, and the setting that both contenders take.

The setting is that of the certified lines in `papers/fedspd-dp`: 100 clients of 325 records,
logistic regression with l1 regularisation on tacit's 105 features, public state. As a row of the
table:

    Workload("fedspd-adult", algorithm="fedspd-dp", model="logistic", dataset="adult", nodes=100,
             records=325, shape=(105,), classes=1, active=20, batch=10, local_steps=5)

Without the files of Adult, records of the same kind are generated: no time depends on what they
say.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from workloads import Records, Workload, records_of

FEDSPD_OPTIONS: Mapping[str, Any] = MappingProxyType(
    {"penalty": 0.1, "inverse_step": 0.3, "regulariser": "l1", "regularisation": 0.0001}
)
"""rho, gamma, R and lambda_R, named as the options of tacit's algorithm."""

_FILES = ("adult.data", "adult.test")


def clients_of(workload: Workload) -> Records:
    """Every client's records: of Adult where that is the data set and its files are there.

    Labels of Adult are 0 or 1.
    """
    if workload.dataset != "adult":
        return records_of(workload)
    folder = Path(workload.data_dir) / "adult"
    present = all(any(folder.glob(f"{name}*")) for name in _FILES)
    inputs, labels = (_read if present else _generated)(workload)
    shape = (workload.nodes, workload.records)
    return Records(inputs.reshape(*shape, *workload.shape), labels.reshape(shape))


def _read(workload: Workload) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The training records in a random order, dealt out."""
    from tacit.data.formats.adult import load_adult

    train = load_adult(Path(workload.data_dir)).train
    order = np.random.default_rng(workload.seed).permutation(len(train.targets))
    chosen = np.resize(order, workload.nodes * workload.records)
    return train.inputs.numpy()[chosen], train.targets.numpy()[chosen]


def _generated(workload: Workload) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Records of L2 norm 1, labels by coin."""
    draw = np.random.default_rng(workload.seed)
    total = workload.nodes * workload.records
    inputs = draw.random((total, *workload.shape), dtype=np.float32)
    norms = np.linalg.norm(inputs.reshape(total, -1), axis=1)
    inputs /= norms.reshape(total, *(1 for _ in workload.shape))
    return inputs, draw.integers(0, 2, total)
