"""Attacks on what a run really sends, and the lower bounds on epsilon that they prove.

`audit` runs the product's own code (plan, sampler, clip, noise, exchange) on neighbouring data
sets, attacks the full transcript, and states an epsilon that is exceeded with a stated
confidence: statistics, not proof. It stands beside `certified`, which is an upper bound with a
proof, and `claimed`, which is what a paper's formula says.
"""

from tacit.analysis.audit.attacks import audit, audit_file, audit_job
from tacit.analysis.audit.record import record_audit, run_experiment
from tacit.analysis.audit.report import (
    AuditOptions,
    AuditReport,
    audit_document,
    audit_progress,
    audit_table,
)
from tacit.report.documents.claims import Attack, Comparison

__all__ = [
    "Attack",
    "AuditOptions",
    "AuditReport",
    "Comparison",
    "audit",
    "audit_document",
    "audit_file",
    "audit_job",
    "audit_progress",
    "audit_table",
    "record_audit",
    "run_experiment",
]
