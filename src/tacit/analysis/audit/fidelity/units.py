"""Whose rows are whose: what the certificate of a person rests on, beside what a step does.

A unit's vector is made of `privacy.unit_rows` rows at most, and its epsilon is that of
`privacy.unit_nodes` nodes. Both are compared with the records that the run holds, by their ids.
"""

from __future__ import annotations

import numpy as np

from tacit.analysis.audit.fidelity.finding import Finding, exact_finding
from tacit.training.job import Job


def unit_findings(job: Job) -> list[Finding]:
    """Whether the rows of each unit are where and as many as is planned; none without units."""
    privacy, units = job.config.privacy, job.train.units
    if privacy.unit_column is None:
        return []
    wrong, saw = len(job.train.targets), "In this run every row is a record."
    if units is not None:
        names, nodes = np.unique(np.concatenate(units.ids), return_counts=True)
        apart = int((nodes > privacy.unit_nodes).sum())
        many = int((units.counts > privacy.unit_rows).sum())
        wrong = apart + many
        saw = f"None of {len(names):,} records had more rows, or rows at more nodes."
        if wrong:
            saw = (
                f"{apart:,} of {len(names):,} records had rows at more than {privacy.unit_nodes} "
                f"of the nodes, and {many:,} more than {privacy.unit_rows} rows at one."
            )
    return [
        exact_finding(
            "rows of a unit",
            "Has no record more rows than count, or rows at more nodes than are accounted?",
            wrong,
            "how many records have",
            saw,
            "Every such record of the nodes of this process is found. Ids of other processes are "
            "not compared.",
        )
    ]
