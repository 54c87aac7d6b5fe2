"""Tests and attacks on the code that trains, and what they show of its privacy.

`audit` runs the product's own code (plan, sampler, clip, noise, exchange). Tests of fidelity ask
whether it does what the plan states, and say how small a defect they find. Attacks run it on
neighbouring data sets, look at the full transcript, and state an epsilon that is exceeded with a
stated confidence: statistics, not proof. It stands beside `certified`, which is an upper bound with
a proof, and `claimed`, which is what a paper's formula says.
"""

from tacit.analysis.audit.canaries import Canaries
from tacit.analysis.audit.deployed import (
    audit_deployed,
    deployed_lines,
    plant_canaries,
    read_planted,
)
from tacit.analysis.audit.procedure import audit, audit_job
from tacit.analysis.audit.report import (
    AuditOptions,
    audit_progress,
    audit_table,
    record_audit,
    run_experiment,
)
from tacit.report.documents.claims import (
    Attack,
    AuditDocument,
    AuditedModel,
    Comparison,
    FidelityTest,
    PlantedAuditDocument,
)

__all__ = [
    "Attack",
    "AuditDocument",
    "AuditOptions",
    "AuditedModel",
    "Canaries",
    "Comparison",
    "FidelityTest",
    "PlantedAuditDocument",
    "audit",
    "audit_deployed",
    "audit_job",
    "audit_progress",
    "audit_table",
    "deployed_lines",
    "plant_canaries",
    "read_planted",
    "record_audit",
    "run_experiment",
]
