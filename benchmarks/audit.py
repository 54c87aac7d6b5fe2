"""The longer audits of docs/how-to/audit.md: `python benchmarks/audit.py [NAME]...`, a table each.

The data do not matter to these attacks, which bring their own; only how many records a node has.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tacit.analysis.audit import AuditOptions, audit, audit_table
from tacit.config import load_config


@dataclass(frozen=True)
class Case:
    """An experiment and how hard it is attacked."""

    records: int
    nodes: int
    repetitions: int
    algorithm: dict[str, Any]
    privacy: dict[str, Any]
    train: dict[str, Any]


PUBLISHED = {"epsilon": 1.0, "accounting": "published"}
ONE_RECORD = {"batch": 1}
FIXED = {**ONE_RECORD, "sampling": "fixed"}
CASES = {
    "privsgp-whole": Case(
        100, 16, 200_000, {"name": "privsgp"}, {"epsilon": 3.0}, {"steps": 3, "batch": "all"}
    ),
    "dyn-d2p-poisson": Case(
        100, 16, 100_000, {"name": "dyn-d2p"}, {"epsilon": 3.0}, {"steps": 4, "batch": 25}
    ),
    "dyn-d2p-published-poisson": Case(
        20,
        16,
        200_000,
        {"name": "dyn-d2p"},
        {**PUBLISHED, "delta": 1e-3},
        {**ONE_RECORD, "steps": 2},
    ),
    "privsgp-published-poisson": Case(
        100,
        16,
        30_000,
        {"name": "privsgp"},
        {**PUBLISHED, "delta": 1e-5},
        {**ONE_RECORD, "steps": 10},
    ),
    "dyn-d2p-as-in-the-paper": Case(
        3000,
        20,
        2_000,
        {"name": "const-d2p"},
        {**PUBLISHED, "delta": 1e-4, "relation": "replace-one"},
        {**FIXED, "steps": 1000},
    ),
}


def main(names: Sequence[str]) -> None:
    """Run the named cases, or all."""
    for name in names or CASES:
        case = CASES[name]
        config = load_config(
            {
                "task": {"loss": "mse"},
                "algorithm": case.algorithm,
                "privacy": {"delta": 1e-3, **case.privacy},
                "train": case.train,
            },
            count=case.nodes,
            given_model=True,
        )
        data = (torch.zeros(case.records, 1), torch.zeros(case.records, 1))
        report = audit(
            config,
            options=AuditOptions(repetitions=case.repetitions, canaries=0),
            model=nn.Linear(1, 1),
            nodes=[data] * case.nodes,
        )
        print(f"\n## {name}: {case.records} records a node, {report.seconds:.0f} s")
        audit_table(report)
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
