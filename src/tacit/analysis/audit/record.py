"""Puts what an audit found beside the run whose experiment was audited."""

from __future__ import annotations

from pathlib import Path

from tacit.analysis.audit.report import claim_verdict
from tacit.errors import InputError
from tacit.report import write_report
from tacit.report.documents.base import parse_file
from tacit.report.documents.claims import Attack, AuditDocument
from tacit.report.documents.run import LET_IT_END, AuditFailure, RunAudit, read_result
from tacit.training.run_folder.folder import RESULT, RunFolder, trusted_config


def run_experiment(run: Path, trust: bool) -> Path:
    """The experiment file of a finished run, whose functions may then be imported and called.

    Raises:
        InputError: it is not the folder of a run with a result that can be read, or names functions
            that are not trusted; see `trusted_config`.
    """
    for name in ("config.toml", "result.json"):
        if not (run / name).is_file():
            raise InputError("FILE", str(run), f"is a folder without {name}: {LET_IT_END}")
    read_result(run / RESULT)
    trusted_config(run, trust)
    return run / "config.toml"


def record_audit(run: Path, document: AuditDocument) -> Path:
    """Write an audit's document into a run folder, its figures into result.json and the report.

    `audit.json` stays with the owner of the records: what is measured in runs on them is a function
    of them that no noise hides. The result, the report and a statement are for others. They get
    what the attacks on the laboratory extracted, whose records are made, and which tests passed; a
    correct program passes all of them, whatever its records are, but for `alarm_rate`.

    An audit is of an experiment's mechanism, at a delta of its own. Earlier audits are kept:
    `audit.json`, then `audit-2.json` and so on. The result shows the last, and how many of the
    earlier ones accused the program: another audit does not undo that.

    Raises:
        InputError: the run's result, or an earlier audit, cannot be read.
    """
    names = ["audit.json", *(f"audit-{number}.json" for number in range(2, 1000))]
    earlier = [run / name for name in names if (run / name).exists()]
    name = next(name for name in names if not (run / name).exists())
    try:
        result = read_result(run / RESULT)
        alarms = sum(bool(parse_file(file)["defect"]) for file in earlier)
    except (InputError, KeyError, OSError) as error:
        raise InputError(
            "FILE", str(run), f"has a result.json or an audit.json that cannot be read: {error}"
        ) from None
    audited = max((attack.epsilon for attack in _made(document)), default=0.0)
    own = {
        "attacks": len(_made(document)),
        "claim_verdict": claim_verdict(
            document.claimed_epsilon,
            audited,
            document.confidence,
            hides=document.claim_violated is None,  # though there is a claim
        ),
        "questions": [test.question for test in document.fidelity],
        "tested": [
            f"{own.place} ({own.model}, {own.parameters:,} parameters, {own.gradient_path})"
            for own in document.tested
        ],
        "earlier_alarms": alarms,
        "failures": [AuditFailure(name=one.name, saw=_OWN) for one in document.failures],
        "verdict": _verdict(document),
        "certified_violated": any(attack.hardest.violated for attack in _made(document)),
    }
    same = {name: getattr(document, name) for name in RunAudit.model_fields if name not in own}
    audit = RunAudit.model_validate(same | own)
    shown = {"audited_epsilon": audited, "audit": audit}
    folder = RunFolder(run)
    folder.write_document(name, document)
    folder.write_document(RESULT, result.model_copy(update=shown))
    write_report(run)
    return run / name


_OWN = "What it saw is in audit.json, which stays with the owner of the records."


def _made(document: AuditDocument) -> list[Attack]:
    """Attacks on records that the audit made, and not on the experiment's own."""
    return [attack for attack in document.attacks if not attack.method.startswith("one-run")]


def _verdict(document: AuditDocument) -> str:
    """In one line, without what was seen on the experiment's own records."""
    if document.alarms:
        return f"ALARM, a defect: accused by {', '.join(document.alarms)}"
    tests = f"all {document.fidelity_tests} fidelity tests passed"
    return f"no alarm; {tests}" if document.fidelity_tests else "no alarm"
