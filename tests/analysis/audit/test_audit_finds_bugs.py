"""Every planted bug raises an alarm, and no correct program does: an audit of each, in short.

A record is searched for half a second in place of
twenty, and there is no training with canaries. `benchmarks/audit_bugs.py` and
`benchmarks/audit_clean.py` do the same at all options that are default, in every experiment.
"""

from dataclasses import replace

import pytest
from bug_table import BUGS
from clean_cases import BY_ALGORITHM, OF_PERSONS
from planting import planted

from tacit.analysis.audit import AuditOptions
from tacit.analysis.audit.procedure import audit_job

pytestmark = pytest.mark.slow

SHORT = AuditOptions(seconds=0.2, canaries=0, repetitions=500, steps=4)


def one_each():
    """One experiment of each bug: of the first its first, of the second its second, and so on."""
    return [
        pytest.param(bug, list(bug.cases)[number % len(bug.cases)], id=bug.name)
        for number, bug in enumerate(BUGS.values())
    ]


@pytest.mark.parametrize(("bug", "case"), one_each())
def test_every_planted_bug_raises_an_alarm(bug, case):
    # What a statistic finds needs the repetitions of an audit by default.
    few = {} if bug.found_by.startswith(("attack", "coins of runs")) else {"repetitions": 500}
    with planted(bug, case) as job:
        options = AuditOptions(seconds=bug.seconds, canaries=0, **few)
        report = audit_job(job, options=options, context=bug.context)
    assert report.defect
    assert bug.found_by in {failure.name for failure in report.failures}, report.verdict


def test_an_audit_by_person_speaks_of_persons():
    job = OF_PERSONS["privsgp, persons by mean, poisson"]()
    report = audit_job(job, options=replace(SHORT, canaries=40))
    words = [text for f in report.fidelity for text in (f.question, f.meaning, f.saw, f.power)]
    assert not [text for text in words if "record" in text]
    assert "Has no person more rows than count, or rows at more nodes than are accounted?" in words
    assert report.attacks[-1].name == "one training, persons unlike any other"


@pytest.mark.parametrize("name", BY_ALGORITHM)
def test_no_correct_program_is_accused(name):
    job = BY_ALGORITHM[name]()
    report = audit_job(job, options=replace(SHORT, steps=min(4, job.plan.steps)))
    assert not report.defect, report.verdict
    assert not [finding.saw for finding in report.fidelity if "before an error" in finding.saw]
    assert len(report.fidelity) > 10
