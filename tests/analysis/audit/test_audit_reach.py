"""Defects that show late in a run only, or in records of high numbers."""

import numpy as np
import pytest
from audit_bugs import job_of

from tacit.analysis.audit import AuditOptions, audit_job
from tacit.analysis.audit.laboratory import in_small
from tacit.training import sampling
from tacit.training.stacked_context import StackedContext

pytestmark = pytest.mark.slow

QUICK = AuditOptions(repetitions=200, canaries=0, seconds=0.1)


class LateRealisedBatch(StackedContext):
    """From step 4 on, sums are divided by how many records were drawn."""

    steps_made = 0

    def batch_gradient(self, at, k, **options):
        self.steps_made = k
        return super().batch_gradient(at, k, **options)

    def divide(self, total):
        if self.steps_made < 4:
            return super().divide(total)
        assert self.last_mask is not None
        return total.div_(self.last_mask.sum(1, keepdim=True).clamp(min=1))


def alarms(job, **more):
    report = audit_job(job, options=QUICK, **more)
    return [failure.name for failure in report.failures]


def test_a_defect_of_later_steps_is_found():
    job = job_of(steps=8)
    assert alarms(job) == []
    assert "what is sent" in alarms(job, context=LateRealisedBatch)


def test_records_beyond_those_of_the_laboratory_are_looked_at(monkeypatch):
    job = job_of(records=300, batch=15, steps=4)
    assert in_small(job.plan).nodes[0].records == 200
    assert alarms(job) == []
    right = sampling._coins

    def wrong(rows, *arguments):
        last = [np.arange(256, node.records) for node in rows]
        return [np.union1d(*pair) for pair in zip(right(rows, *arguments), last, strict=True)]

    monkeypatch.setattr(sampling, "_coins", wrong)
    assert {"sampling rate", "favoured records"} & set(alarms(job))
